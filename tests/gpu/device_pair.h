// The cuda device and the reference side by side: the same numbers go in, and what comes out is compared.
#ifndef NIB_TESTS_DEVICE_PAIR_H
#define NIB_TESTS_DEVICE_PAIR_H

#include <stdbool.h>

#include "ops/ops.h"
#include "support/devices.h"

#define BOUND_F32 2e-5  // sums in another order
#define BOUND_HALF 6e-3 // inputs or cached rows rounded to bf16

enum { MAX_TOKENS = 192, REF, CUDA, DEVICES };

extern struct test_device devices[DEVICES];
extern bool quick; // fewer shapes
extern int checks, failures;
extern double worst; // error as a share of its bound

void pair_die(const char *what, const char *why) __attribute__((noreturn));
void pair_expect(bool good, const char *what, double value, double bound);
void pair_expect_close(const char *what, const float *got, const float *want, int64_t n, double bound);

struct pair {
    struct nib_buffer on[DEVICES];
};

struct pair pair_make(int64_t rows, int64_t width, const float *values /* [rows, width] or NULL */);
struct pair pair_random(int64_t rows, int64_t width, uint64_t seed); // numbers that bf16 holds
void pair_drop(struct pair *pair);

struct weights {
    struct nib_weight on[DEVICES];
    void *data, *scales; // in host memory
};

// Takes over data and scales.
struct weights pair_bind(struct nib_weight_view view, void *data, void *scales);
struct weights pair_random_weights(int64_t rows, int64_t cols, enum nib_dtype dtype, float scale, uint64_t seed);
void pair_unbind(struct weights *weights);

// Runs `body` in a step on each device and compares `rows` rows of `result`.
typedef void body_function(int d, void *context);
void pair_compare(const char *what, const struct test_step *step, body_function *body, void *context,
                  const struct pair *result, int64_t rows, double bound);

// A step of one sequence that feeds `tokens` tokens after `first`.
struct test_step pair_plain_step(int32_t first, int32_t tokens);

// ---- the checks, each in a file of its own ----

void check_rows_and_products(void);
void check_attentions(void);
void check_experts(void);
void check_layers(void);
void check_drawing(void);

#endif
