// The unpack path on the GPU, which `nibble bench moe --device cuda` compares with: what a stack without a packed kernel does.
// The touched experts are widened to bf16 in memory, and each is multiplied by cuBLASLt.
#ifndef NIB_CLI_MOE_UNPACK_CUDA_CUH
#define NIB_CLI_MOE_UNPACK_CUDA_CUH

#include <cuda_runtime.h>
#include <vector>

#include "nibble/moe.h"
extern "C" {
#include "cuda/cuda_gemm.h"
}

// A call's routes by expert: on the host what the launches need, on the device what the kernels need.
struct unpack_routes {
    std::vector<int> experts,
        first; // those touched; the first of each one's places among the sorted routes, and the end
    std::vector<int32_t> order, place,
        expert_of; // route of each place; place of each route; touched expert of each place
};

unpack_routes sort_unpack_routes(const int32_t *expert_ids /* [routes] */, int64_t routes, int64_t n_experts);

struct unpack_call {
    int64_t hidden, intermediate, gate_up_row_stride, top_k, tokens;
    nib_activation activation;
    bool biased;                              // bf16
    const nib_expert *experts;                /* [touched] on the device */
    const int32_t *order, *place, *expert_of; /* [routes] on the device */
    const uint16_t *x;                        /* [T, K] bf16 */
    const float *weights;                     /* [routes] */
    uint16_t *w13, *w2;                       /* [touched, 2I, K], [touched, K, I] */
    uint16_t *gathered, *h;                   /* [routes, K], [routes, I] by place */
    float *gate_up, *out;                     /* [routes, 2I], [routes, K] by place */
    uint16_t *y;                              /* [T, K] bf16 */
};

cudaError_t run_unpack(nib_cuda_gemm *gemm, const unpack_routes &routes, const unpack_call &call,
                       cudaStream_t stream);

#endif
