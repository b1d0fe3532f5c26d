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
constexpr int most_shared = 160 * 1024;

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

// What a block of norm_route keeps in shared memory, in bytes from its beginning.
struct norm_route_layout {
    int row, wide_row; // bytes of a row of bf16 and of fp32
    int norm, x, scores, bytes;
};

__host__ __device__ inline norm_route_layout lay_out(int width, int n_experts)
{
    norm_route_layout l = {};
    l.row = width * 2;
    l.wide_row = width * 4;
    l.norm = static_cast<int>(route_warps) * l.row; // behind the experts' rows
    l.x = l.norm + l.wide_row;
    l.scores = l.x + 2 * l.wide_row;
    l.bytes = l.scores + static_cast<int>(route_warps) * 2 * n_experts * 4;
    return l;
}

// Sums of squares and of products over a token's row: the token's own factor is multiplied with the whole product.
__device__ __forceinline__ float2 sums_of(const uint8_t *weights, const float *norm, const float *x, int width,
                                          int lane)
{
    float square = 0, product = 0;
#pragma unroll 4
    for (int column = lane * 4; column < width; column += 128) {
        float4 value = *reinterpret_cast<const float4 *>(x + column);
        float4 factor = *reinterpret_cast<const float4 *>(norm + column);
        uint2 packed = *reinterpret_cast<const uint2 *>(weights + column * 2);
        square += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
        product += value.x * factor.x * __uint_as_float(packed.x << 16);
        product += value.y * factor.y * __uint_as_float(packed.x & 0xffff0000u);
        product += value.z * factor.z * __uint_as_float(packed.y << 16);
        product += value.w * factor.w * __uint_as_float(packed.y & 0xffff0000u);
    }
    return make_float2(warp_sum(square), warp_sum(product));
}

// The normed row, as fp32 and bf16, shared by the block's threads.
__device__ __forceinline__ void store_normed(const nib_cuda_norm_route &p, int token, const float *x,
                                             const float *norm, float inverse)
{
    int64_t at = static_cast<int64_t>(token) * p.width;
    for (int column = static_cast<int>(threadIdx.x) * 4; column < p.width; column += route_warps * 32 * 4) {
        float4 value = *reinterpret_cast<const float4 *>(x + column);
        float4 factor = *reinterpret_cast<const float4 *>(norm + column);
        value = make_float4(value.x * inverse * factor.x, value.y * inverse * factor.y,
                            value.z * inverse * factor.z, value.w * inverse * factor.w);
        __nv_bfloat162 low = __floats2bfloat162_rn(value.x, value.y);
        __nv_bfloat162 high = __floats2bfloat162_rn(value.z, value.w);
        *reinterpret_cast<float4 *>(p.y + at + column) = value;
        *reinterpret_cast<uint2 *>(p.y_half + at + column) =
            make_uint2(reinterpret_cast<uint32_t &>(low), reinterpret_cast<uint32_t &>(high));
    }
}

// Starts the copies of the block's experts' rows and of the norm's weights. One thread's work.
__device__ __forceinline__ void fetch_weights(const nib_cuda_norm_route &p, const norm_route_layout &l,
                                              uint32_t memory, uint32_t barrier)
{
    int first = static_cast<int>(blockIdx.x * route_warps);
    int count = min(static_cast<int>(route_warps), p.router.n_experts - first);
    uint64_t keep = evict_first_policy();
    barrier_arrive_expect(barrier, count * l.row + l.wide_row);
    bulk_copy(memory, static_cast<const uint8_t *>(p.weight) + static_cast<int64_t>(first) * l.row, count * l.row,
              barrier, keep);
    bulk_copy(memory + l.norm, p.norm_weight, l.wide_row, barrier, keep);
}

__device__ __forceinline__ void fetch_token(const nib_cuda_norm_route &p, const norm_route_layout &l, int token,
                                            uint32_t target, uint32_t barrier)
{
    barrier_arrive_expect(barrier, l.wide_row);
    bulk_copy(target, p.x + static_cast<int64_t>(token) * p.width, l.wide_row, barrier, evict_first_policy());
}

// True in the last block of the token group to come here, which then sees the logits of all.
__device__ __forceinline__ bool is_last(unsigned *counter)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = add_acquire_release(counter, 1) == gridDim.x - 1;
        if (last)
            *counter = 0;
    }
    __syncthreads();
    return last;
}

// Blocks (experts, tokens): a warp has an expert's row and meets it with the group's tokens one by one; the last block of a
// group routes its tokens. Rows come by bulk copies and the loops are short: what a launch this small waits for is memory
// and instructions that it runs once.
__global__ void __launch_bounds__(route_warps * 32)
    norm_route(const __grid_constant__ nib_cuda_norm_route p, int tokens_a_group)
{
    extern __shared__ __align__(128) uint8_t rows[];
    __shared__ uint64_t barriers[3];
    norm_route_layout l = lay_out(p.width, p.router.n_experts);
    int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
    int expert = static_cast<int>(blockIdx.x * route_warps) + warp;
    int first = static_cast<int>(blockIdx.y) * tokens_a_group, count = min(p.tokens - first, tokens_a_group);
    uint32_t memory = shared_address(rows), barrier = shared_address(barriers);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; i++)
            barrier_init(barrier + 8 * i, 1);
        barrier_init_fence();
        fetch_weights(p, l, memory, barrier);
    }
    float bias = p.bias && expert < p.router.n_experts ? p.bias[expert] : 0.0f;
    const float *norm = reinterpret_cast<const float *>(rows + l.norm);
    __syncthreads();
    wait_for_previous_kernel();
    allow_next_kernel();
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.async.global;" ::: "memory"); // others stored what is copied now
        for (int i = 0; i < 2 && i < count; i++)
            fetch_token(p, l, first + i, memory + l.x + i * l.wide_row, barrier + 8 + 8 * i);
    }
    barrier_wait(barrier, 0);
    for (int i = 0; i < count; i++) {
        const float *x = reinterpret_cast<const float *>(rows + l.x + i % 2 * l.wide_row);
        barrier_wait(barrier + 8 + 8 * (i % 2), i / 2 % 2);
        float2 sums = sums_of(rows + warp * l.row, norm, x, p.width, lane);
        float inverse = 1.0f / sqrtf(sums.x / static_cast<float>(p.width) + p.eps);
        if (lane == 0 && expert < p.router.n_experts)
            p.logits[static_cast<int64_t>(first + i) * p.router.n_experts + expert] = sums.y * inverse + bias;
        if ((first + i) % gridDim.x == blockIdx.x)
            store_normed(p, first + i, x, norm, inverse);
        __syncthreads();
        if (threadIdx.x == 0 && i + 2 < count)
            fetch_token(p, l, first + i + 2, memory + l.x + i % 2 * l.wide_row, barrier + 8 + 8 * (i % 2));
    }
    if (!is_last(p.counters + blockIdx.y))
        return;
    float *scores = reinterpret_cast<float *>(rows + l.scores) + 2 * warp * p.router.n_experts;
    for (int token = first + warp; token < first + count; token += route_warps) {
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
    return tokens <= NIB_CUDA_NORM_ROUTE_TOKENS && width % 8 == 0 && width <= 16384 && fits(*router) &&
           lay_out(width, router->n_experts).bytes <= most_shared;
}

cudaError_t nib_cuda_norm_and_route(cudaStream_t stream, const nib_cuda_norm_route *call)
{
    unsigned experts = (static_cast<unsigned>(call->router.n_experts) + route_warps - 1) / route_warps;
    int groups = call->tokens < NIB_CUDA_NORM_ROUTE_GROUPS ? call->tokens : NIB_CUDA_NORM_ROUTE_GROUPS;
    int tokens_a_group = (call->tokens + groups - 1) / groups;
    dim3 grid(experts, static_cast<unsigned>((call->tokens + tokens_a_group - 1) / tokens_a_group));
    int bytes = lay_out(call->width, call->router.n_experts).bytes;
    cudaError_t error = cudaFuncSetAttribute(norm_route, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared);
    if (error != cudaSuccess)
        return error;
    return nib_launch(norm_route, grid, route_warps * 32, static_cast<size_t>(bytes), stream, *call,
                      tokens_a_group);
}
