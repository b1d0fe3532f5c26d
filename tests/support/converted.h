// What the tests of conversions share.
#ifndef NIB_TEST_CONVERTED_H
#define NIB_TEST_CONVERTED_H

#include "nibble/convert.h"

// Converts or ends the test with the message.
void test_convert(const char *source, const char *destination, struct nib_convert_options options);

// Verifies; ends the test with the first problem unless it is proven.
void test_proven(const char *source, const char *destination);

// How many problems there are; a comparison that could not take place counts as one. The first message goes to `text`.
uint64_t test_problems(const char *source, const char *destination, char *text, size_t capacity);

// Both folders hold the same files with the same bytes.
void test_same_folder(const char *one, const char *other);

// Both checkpoints hold the same tensors with the same bytes, in whatever files and order.
void test_same_tensors(const char *one, const char *other);

// A path for a folder that does not exist yet, in a static ring of buffers (valid for the next 16 calls).
const char *test_fresh(const char *name);

#endif
