// The GPU's side of `nibble parity moe` and `nibble bench moe`. In a build without CUDA these fail and say so.
#ifndef NIB_CLI_MOE_CUDA_H
#define NIB_CLI_MOE_CUDA_H

#include "cli/moe_layer.h"

#ifdef __cplusplus
extern "C" {
#endif

// Computes y of a call whose pointers are the host's, on a device copy of the layer.
nib_status moe_cuda_run(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                        const struct nib_moe_call *call, float *y /* [T, K] on the host */, struct nib_error *err);

// One row of the benchmark: medians of graph replays, all in the same run. What was not measured is NAN.
struct moe_cuda_cell {
    int64_t tokens;
    double distinct_experts, us_median, gb_per_s; // of packed bytes touched
    double read_us, times_read;                   // a streaming read of as many bytes, and the ratio to it
    double tflops, share_of_gemm;                 // of the rate that a bf16 product of 8192 x 8192 x 8192 reaches
    double unpack_us, unpack_ratio;               // touched experts widened to bf16, then cuBLASLt
};

struct moe_cuda_bench {
    const struct moe_variant *variant;
    int64_t experts;
    uint64_t seed;
    bool all_on_one, with_unpack;
};

// Fills cells[n], whose tokens are set, handing each to `report` when it is done.
nib_status moe_cuda_bench(const struct moe_cuda_bench *bench, struct moe_cuda_cell *cells, int n,
                          void (*report)(const struct moe_cuda_cell *cell), struct nib_error *err);

#ifdef __cplusplus
}
#endif
#endif
