// The MoE layer for many tokens: routes sorted by expert, their activations gathered, two products on the tensor cores
// straight from the packed rows, and the sum over each token's routes. The host knows no group's size: blocks find their
// tiles in a list that the sorting kernel writes.
#include "cuda/moe_prefill.cuh"

#include "cuda/moe_gemm.cuh"
#include "cuda/moe_sort.cuh"

namespace
{

__device__ __forceinline__ uint32_t load_pair(const uint16_t *row, int column, int columns)
{
    return row && column < columns ? *reinterpret_cast<const uint32_t *>(row + column) : 0;
}

// x of every slot in the products' order; zeros behind the last column and in slots without a route. h gets its zeros too.
// A thread makes the two 16-byte pieces of one product.
__global__ void __launch_bounds__(256) gather_activations(const __grid_constant__ nib_moe_prefill args)
{
    const nib_moe_args &call = args.call;
    int columns = call.product[0].columns, groups = column_groups(call.product[0]);
    int h_columns = call.product[1].columns, h_group = h_columns % 128 ? h_columns / 128 : -1;
    int64_t all = static_cast<int64_t>(args.counts[1]) * 8 * groups * 8, stride = gridDim.x * 256;
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < all; i += stride) {
        int product = i % 8, group = static_cast<int>(i / 8 % groups), slot = static_cast<int>(i / 8 / groups);
        int route = args.slots[slot], e = product / 2 * 8 + product % 2 * 2;
        const uint16_t *row = route < 0 ? nullptr : call.x + static_cast<int64_t>(route / call.top_k) * columns;
        uint32_t low[4], high[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint32_t first = load_pair(row, group * 128 + c * 32 + e, columns);
            uint32_t second = load_pair(row, group * 128 + c * 32 + e + 4, columns);
            low[c] = __byte_perm(first, second, 0x5410);
            high[c] = __byte_perm(first, second, 0x7632);
        }
        auto place = [&](uint8_t *base, int in, int piece) {
            return reinterpret_cast<uint4 *>(piece_address(base, args.granules, slot, in, piece));
        };
        *place(args.x, group, product * 2) = make_uint4(low[0], low[1], low[2], low[3]);
        *place(args.x, group, product * 2 + 1) = make_uint4(high[0], high[1], high[2], high[3]);
        if (group == 0 && h_group >= 0) {
            *place(args.h, h_group, product * 2) = make_uint4(0, 0, 0, 0);
            *place(args.h, h_group, product * 2 + 1) = make_uint4(0, 0, 0, 0);
        }
    }
}

__global__ void __launch_bounds__(256) sum_outputs(const __grid_constant__ nib_moe_prefill args)
{
    const nib_moe_args &call = args.call;
    int quads = call.product[1].rows / 4;
    int64_t all = static_cast<int64_t>(call.tokens) * quads, stride = gridDim.x * 256;
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < all; i += stride)
        sum_token_quad(call, static_cast<int>(i / quads), static_cast<int>(i % quads) * 4, [&](int route) {
            int expert = call.expert_ids[route] - call.first_expert;
            return expert >= 0 && expert < call.n_experts;
        });
}

} // namespace

cudaError_t nib_moe_prefill_prepare()
{
    cudaError_t error =
        cudaFuncSetAttribute(multiply_routes<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, gemm_shared);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(multiply_routes<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, gemm_shared);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(sort_routes_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     sort_warps * 1024 * 2);
    return error;
}

cudaError_t nib_moe_prefill_launch(const nib_moe_prefill &args, int blocks, cudaStream_t stream)
{
    unsigned grid = static_cast<unsigned>(blocks);
    size_t counts = sizeof(uint16_t) * sort_warps * static_cast<size_t>(args.call.n_experts);
    sort_routes_kernel<<<1, sort_warps * 32, counts, stream>>>(args);
    gather_activations<<<grid * 8, 256, 0, stream>>>(args);
    multiply_routes<0><<<grid, gemm_threads, gemm_shared, stream>>>(args);
    multiply_routes<1><<<grid, gemm_threads, gemm_shared, stream>>>(args);
    sum_outputs<<<grid * 8, 256, 0, stream>>>(args);
    return cudaGetLastError();
}
