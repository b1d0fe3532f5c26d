// Experts of dense matrices (bf16 or fp32, as bound), a route at a time: for families whose experts are not MXFP4.
#include <cuda_bf16.h>

#include "cuda/block_sum.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/moe_activation.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr unsigned dense_warps = 8;

__device__ float dot(const nib_cuda_matrix &w, int row, const float *x, int n, int lane)
{
    int64_t first = static_cast<int64_t>(row) * n;
    float sum = 0;
    if (w.element == NIB_CUDA_BF16)
        for (int i = lane; i < n; i += 32)
            sum += x[i] * __bfloat162float(static_cast<const __nv_bfloat16 *>(w.data)[first + i]);
    else
        for (int i = lane; i < n; i += 32)
            sum += x[i] * static_cast<const float *>(w.data)[first + i];
    return warp_sum(sum);
}

// h = act(gate, up): blocks (route, part of the rows).
__global__ void first_product(float *h, const float *x, const nib_cuda_dense_expert *experts, int hidden,
                              int intermediate, const nib_activation activation, const int32_t *ids, int top_k)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int64_t route = blockIdx.x;
    const nib_cuda_dense_expert &e = experts[ids[route]];
    const float *row = x + route / top_k * hidden;
    int lane = threadIdx.x % 32;
    int i = static_cast<int>(blockIdx.y * dense_warps + threadIdx.x / 32);
    if (i >= intermediate)
        return;
    float gate = dot(e.gate, i, row, hidden, lane) + (e.gate_bias ? e.gate_bias[i] : 0.0f);
    float up = dot(e.up, i, row, hidden, lane) + (e.up_bias ? e.up_bias[i] : 0.0f);
    if (lane == 0)
        h[route * intermediate + i] = activate(activation, gate, up);
}

__global__ void second_product(float *y, const float *h, const nib_cuda_dense_expert *experts, int hidden,
                               int intermediate, const int32_t *ids, const float *weights, int top_k)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int64_t token = blockIdx.x;
    int lane = threadIdx.x % 32, o = static_cast<int>(blockIdx.y * dense_warps + threadIdx.x / 32);
    if (o >= hidden)
        return;
    float sum = 0;
    for (int j = 0; j < top_k; j++) {
        int64_t route = token * top_k + j;
        const nib_cuda_dense_expert &e = experts[ids[route]];
        float value = dot(e.down, o, h + route * intermediate, intermediate, lane);
        sum += weights[route] * (value + (e.down_bias ? e.down_bias[o] : 0.0f));
    }
    if (lane == 0)
        y[token * hidden + o] = sum;
}

} // namespace

cudaError_t nib_cuda_dense_moe(cudaStream_t stream, int32_t tokens, int32_t top_k, float *y, const float *x,
                               float *h, const nib_cuda_dense_expert *experts, int32_t hidden,
                               int32_t intermediate, const nib_activation *activation, const int32_t *ids,
                               const float *weights)
{
    auto parts = [](int32_t rows) { return (static_cast<unsigned>(rows) + dense_warps - 1) / dense_warps; };
    cudaError_t error =
        nib_launch(first_product, dim3(static_cast<unsigned>(tokens * top_k), parts(intermediate)),
                   dense_warps * 32, 0, stream, h, x, experts, hidden, intermediate, *activation, ids, top_k);
    if (error != cudaSuccess)
        return error;
    return nib_launch(second_product, dim3(static_cast<unsigned>(tokens), parts(hidden)), dense_warps * 32, 0,
                      stream, y, h, experts, hidden, intermediate, ids, weights, top_k);
}
