// The GPU's side of `nibble parity moe` and `nibble bench moe`. In a build without CUDA these fail and say so.
#ifndef NIB_CLI_MOE_CUDA_H
#define NIB_CLI_MOE_CUDA_H

#include "cli/moe_layer.h"

#ifdef __cplusplus
extern "C" {
#endif

// Computes y of a call whose pointers are the host's, on a device copy of the layer. y: [T, K] on the host.
nib_status moe_cuda_run(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                        const struct nib_moe_call *call, float *y, struct nib_error *err);

// One row of the benchmark: medians of graph replays, and a streaming read of as many bytes in the same run.
struct moe_cuda_cell {
    int64_t tokens;
    double distinct_experts, us_median, gb_per_s, read_us, times_read;
};

// Fills one cell for each of tokens[n], handing each to `report` when it is done.
nib_status moe_cuda_bench(const struct moe_variant *variant, int64_t experts, uint64_t seed, bool all_on_one,
                          const int64_t *tokens, int n, void (*report)(const struct moe_cuda_cell *cell),
                          struct nib_error *err);

#ifdef __cplusplus
}
#endif
#endif
