// Routers: choosing experts from logits; and, for few tokens, all from the residual stream on in one launch.
#include <cuda_bf16.h>

#include "cuda/block_sum.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/route_choice.cuh"

namespace
{

constexpr unsigned route_warps = 4;
constexpr int kept_vectors = 12; // of eight columns each that a lane keeps of an expert's row

__global__ void __launch_bounds__(route_warps * 32)
    route(const nib_cuda_router r, int tokens, const float *logits, int32_t *ids, float *weights, int32_t *log)
{
    extern __shared__ float memory[];
    wait_for_previous_kernel();
    allow_next_kernel();
    int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
    int token = static_cast<int>(blockIdx.x * route_warps) + warp;
    if (token >= tokens)
        return;
    float *scores = memory + 2 * warp * r.n_experts;
    for (int e = lane; e < r.n_experts; e += 32)
        scores[e] = logits[static_cast<int64_t>(token) * r.n_experts + e];
    choose_experts(r, scores, scores + r.n_experts, target_of(ids, weights, log, token, r.top_k), lane);
}

__device__ __forceinline__ uint32_t pack(float a, float b)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<uint32_t &>(two);
}

__device__ __forceinline__ void load_eight(float (&values)[8], const float *from)
{
    float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

// An expert's row times the norm's weights: the token's own factor is multiplied with the whole sum.
struct expert_row {
    float values[kept_vectors][8];
};

__device__ __forceinline__ void load_row(expert_row &row, const nib_cuda_norm_route &p, int expert, int lane)
{
    const uint4 *weights = static_cast<const uint4 *>(p.weight) + static_cast<int64_t>(expert) * p.width / 8;
#pragma unroll
    for (int i = 0; i < kept_vectors; i++) {
        int vector = i * 32 + lane;
        if (vector * 8 >= p.width || expert >= p.router.n_experts) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                row.values[i][j] = 0;
            continue;
        }
        uint4 packed = weights[vector];
        load_eight(row.values[i], p.norm_weight + vector * 8);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t word = reinterpret_cast<const uint32_t *>(&packed)[j];
            row.values[i][2 * j] *= __uint_as_float(word << 16);
            row.values[i][2 * j + 1] *= __uint_as_float(word & 0xffff0000u);
        }
    }
}

// Sums of squares and of products over a token's row.
__device__ __forceinline__ float2 sums_of(const expert_row &row, const float *x, int width, int lane)
{
    float square = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kept_vectors; i++) {
        int column = (i * 32 + lane) * 8;
        if (column >= width)
            continue;
        float values[8];
        load_eight(values, x + column);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            square += values[j] * values[j];
            product += values[j] * row.values[i][j];
        }
    }
    return make_float2(warp_sum(square), warp_sum(product));
}

// The normed row, as fp32 and bf16, shared by the block's warps.
__device__ __forceinline__ void store_normed(const nib_cuda_norm_route &p, int token, float inverse)
{
    int64_t at = static_cast<int64_t>(token) * p.width;
    for (int column = static_cast<int>(threadIdx.x) * 8; column < p.width; column += route_warps * 32 * 8) {
        float x[8], weight[8];
        load_eight(x, p.x + at + column);
        load_eight(weight, p.norm_weight + column);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = x[j] * inverse * weight[j];
        float4 *y = reinterpret_cast<float4 *>(p.y + at + column);
        y[0] = make_float4(x[0], x[1], x[2], x[3]);
        y[1] = make_float4(x[4], x[5], x[6], x[7]);
        *reinterpret_cast<uint4 *>(p.y_half + at + column) =
            make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    }
}

// Counts this block in, and makes what it has stored and what the others have visible to whom it concerns.
__device__ __forceinline__ unsigned count_in(unsigned *counter)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// True in the last block of the token group to come here, which then sees the logits of all.
__device__ __forceinline__ bool is_last(unsigned *counter)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = count_in(counter) == gridDim.x - 1;
        if (last)
            *counter = 0;
    }
    __syncthreads();
    return last;
}

// Blocks (experts, tokens): a warp has an expert's row in registers and meets it with the group's tokens one by one; the
// last block of a group routes its tokens.
__global__ void __launch_bounds__(route_warps * 32)
    norm_route(const __grid_constant__ nib_cuda_norm_route p, int tokens_a_group)
{
    extern __shared__ float memory[];
    int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
    int expert = static_cast<int>(blockIdx.x * route_warps) + warp;
    int first = static_cast<int>(blockIdx.y) * tokens_a_group, end = min(p.tokens, first + tokens_a_group);
    expert_row row;
    load_row(row, p, expert, lane);
    float bias = p.bias && expert < p.router.n_experts ? p.bias[expert] : 0.0f;
    wait_for_previous_kernel();
    for (int token = first; token < end; token++) {
        float2 sums = sums_of(row, p.x + static_cast<int64_t>(token) * p.width, p.width, lane);
        float inverse = 1.0f / sqrtf(sums.x / static_cast<float>(p.width) + p.eps);
        if (lane == 0 && expert < p.router.n_experts)
            p.logits[static_cast<int64_t>(token) * p.router.n_experts + expert] = sums.y * inverse + bias;
        if (token % gridDim.x == blockIdx.x)
            store_normed(p, token, inverse);
    }
    allow_next_kernel();
    if (!is_last(p.counters + blockIdx.y))
        return;
    float *scores = memory + 2 * warp * p.router.n_experts;
    for (int token = first + warp; token < end; token += route_warps) {
        for (int e = lane; e < p.router.n_experts; e += 32)
            scores[e] = __ldcg(p.logits + static_cast<int64_t>(token) * p.router.n_experts + e);
        choose_experts(p.router, scores, scores + p.router.n_experts,
                       target_of(p.ids, p.weights, p.log, token, p.router.top_k), lane);
    }
}

size_t shared_bytes(const nib_cuda_router &router)
{
    return route_warps * 2 * sizeof(float) * static_cast<size_t>(router.n_experts);
}

bool fits(const nib_cuda_router &router)
{
    return router.top_k <= most_top_k && router.n_experts <= most_experts && router.n_groups <= most_groups;
}

} // namespace

cudaError_t nib_cuda_route(cudaStream_t stream, int32_t tokens, const float *logits, const nib_cuda_router *router,
                           int32_t *ids, float *weights, int32_t *log)
{
    if (!fits(*router))
        return cudaErrorInvalidValue;
    unsigned blocks = (static_cast<unsigned>(tokens) + route_warps - 1) / route_warps;
    return nib_launch(route, dim3(blocks), route_warps * 32, shared_bytes(*router), stream, *router, tokens,
                      logits, ids, weights, log);
}

bool nib_cuda_norm_route_takes(int32_t tokens, int32_t width, const nib_cuda_router *router)
{
    return tokens <= NIB_CUDA_NORM_ROUTE_TOKENS && width % 8 == 0 && width <= kept_vectors * 32 * 8 &&
           fits(*router);
}

cudaError_t nib_cuda_norm_and_route(cudaStream_t stream, const nib_cuda_norm_route *call)
{
    unsigned experts = (static_cast<unsigned>(call->router.n_experts) + route_warps - 1) / route_warps;
    int groups = call->tokens < NIB_CUDA_NORM_ROUTE_GROUPS ? call->tokens : NIB_CUDA_NORM_ROUTE_GROUPS;
    int tokens_a_group = (call->tokens + groups - 1) / groups;
    dim3 grid(experts, static_cast<unsigned>((call->tokens + tokens_a_group - 1) / tokens_a_group));
    return nib_launch(norm_route, grid, route_warps * 32, shared_bytes(call->router), stream, *call,
                      tokens_a_group);
}
