// Where tests find their data, whatever the working directory.
#ifndef NIB_TEST_PATHS_H
#define NIB_TEST_PATHS_H

// A path below tests/data, in a static ring of buffers (valid for the next 8 calls).
const char *test_data(const char *relative);

// A path below the repository's root, likewise.
const char *test_source(const char *relative);

// A fresh empty folder for one test's files, likewise; it is left behind for a look after a failure.
const char *test_scratch(const char *name);

#endif
