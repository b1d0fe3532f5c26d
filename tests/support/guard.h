// Memory that ends, or begins, where touching it is fatal.
#ifndef NIB_TEST_GUARD_H
#define NIB_TEST_GUARD_H

#include <stddef.h>

struct test_guarded {
    void *data; // `bytes` long
    void *map;
    size_t map_bytes;
};

enum test_guard_side { TEST_GUARD_BEHIND, TEST_GUARD_BEFORE };

// `data` touches an inaccessible page on the side asked for (the other side has one too, at most a page away). The
// bytes are zero. Ends the program when the system refuses.
struct test_guarded test_guarded_alloc(size_t bytes, enum test_guard_side side);
void test_guarded_free(struct test_guarded *guarded);

#endif
