// Two devices side by side, fed the same numbers: the reference and one under test.
#ifndef NIB_TEST_DEVICES_H
#define NIB_TEST_DEVICES_H

#include "ops/ops.h"

struct test_device {
    const struct nib_ops *ops;
    struct nib_device *device;
};

// Ends the program when the device cannot be opened. `threads` counts for both kinds.
struct test_device test_device_open(const struct nib_ops *ops, int threads, int32_t max_tokens,
                                    const struct nib_scratch_query *query);
void test_device_close(struct test_device *device);

// A buffer of rows x width on the device; `values` of that size are copied in when it is not NULL (the device's elements
// are fp32 in host memory).
struct nib_buffer test_buffer(const struct test_device *device, int64_t rows, int64_t width, const float *values);

// A sequence of numbers in [-1, 1) that depends only on the seed.
float test_random(uint64_t *seed);
// `n` of those times `scale`; rounded to bf16 when `bf16`, so that rounding again changes nothing.
float *test_random_values(int64_t n, float scale, int bf16, uint64_t seed); // free it

// sqrt(sum (a-b)^2 / sum b^2), infinite when a holds a NaN that b does not.
double test_rel_l2(const float *a, const float *b, int64_t n);
// sqrt(mean (a-b)^2), likewise.
double test_rms_difference(const float *a, const float *b, int64_t n);

// A step whose sequence s has the positions first[s] .. first[s] + count[s] - 1, its pages dealt in a scrambled order.
// One cache group; the last row of each sequence is an output. Freed with test_step_free.
struct test_step {
    struct nib_step step;
    int64_t pages; // pages that the tables use
};
struct test_step test_step_make(int32_t page_tokens, int32_t n_sequences, const int32_t *first,
                                const int32_t *count);
void test_step_free(struct test_step *step);
// Frees the pages of a sequence that lie wholly before `position`.
void test_step_free_pages(struct test_step *step, int32_t sequence, int32_t position);

#endif
