// Random MoE layers for tests, every buffer between two pages that nobody may touch.
#ifndef NIB_TEST_MOE_CASE_H
#define NIB_TEST_MOE_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble/moe.h"

enum moe_layout { MOE_INTERLEAVED, MOE_CONCATENATED, MOE_SEPARATE };
enum moe_bias { MOE_NO_BIAS, MOE_BIAS_F32, MOE_BIAS_BF16, MOE_BIAS_F16 };

struct moe_shape {
    int64_t hidden, intermediate, experts, tokens, top_k;
    enum moe_layout layout;
    enum moe_bias bias;
    struct nib_activation activation;
    uint8_t around; // what the rest of the pages beside scales and weights is filled with
};

struct moe_case {
    struct moe_shape shape;
    struct nib_moe_weights weights;
    struct nib_expert *experts;
    uint16_t *x;    /* [T, K] bf16 */
    int32_t *ids;   /* [T, top_k] */
    float *routing; /* [T, top_k] */
    struct guarded *guards;
    int n_guards;
};

// Memory of `bytes` bytes that ends at an inaccessible page, or with `at_start` begins right behind one; the rest of its
// pages holds `around`. Freed by free_guarded.
struct guarded {
    uint8_t *map, *data;
    size_t map_bytes;
};
struct guarded make_guarded(size_t bytes, bool at_start, uint8_t around);
void free_guarded(struct guarded *guarded);

// A pseudo-random number; the state is the test's seed.
uint32_t next_random(uint64_t *state);

// Scales lie in 110 … 125, routes are random with -1 and ids past the last expert now and then, and the same expert may
// stand twice. With `at_start` all buffers begin behind a guard page, else they end before one.
struct moe_case make_moe_case(const struct moe_shape *shape, uint64_t seed, bool at_start);
void free_moe_case(struct moe_case *c);

struct moe_result {
    float *y, *per_route; /* [T, K], [T, top_k, K] */
};

// Runs the case with a kernel; false when this CPU cannot. Outputs lie between guard pages, so does the scratch.
bool run_moe_case(const struct moe_case *c, const char *kernel, int threads, int64_t first_expert,
                  struct moe_result *result);
void free_moe_result(struct moe_result *result);

double relative_error(const float *got, const float *want, int64_t n);

extern const char *const moe_kernels[];
extern const int n_moe_kernels; // without "ref"

#endif
