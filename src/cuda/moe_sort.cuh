// Many routes sorted by expert, by one block; within an expert they keep their order.
#ifndef NIB_CUDA_MOE_SORT_CUH
#define NIB_CUDA_MOE_SORT_CUH

#include "cuda/moe_prefill.cuh"
#include "cuda/moe_routing.cuh"

constexpr int sort_warps = 32;

// The sum of `value` over the threads before this one; every thread of the block calls.
__device__ inline int scan_block(int value, int *warp_sums /* [32] shared */)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = value;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? left : 0;
    }
    if (lane == 31)
        warp_sums[warp] = sum;
    __syncthreads();
    int before = __reduce_add_sync(~0u, lane < warp ? warp_sums[lane] : 0);
    return before + sum - value;
}

// Writes an expert's tiles, of about equal size.
__device__ inline void list_tiles(nib_moe_tile *tiles, int expert, int first, int count)
{
    int n = (count + NIB_MOE_TILE_ROUTES - 1) / NIB_MOE_TILE_ROUTES;
    int size = n ? ((count + n - 1) / n + 7) / 8 * 8 : 0;
    for (int i = 0; i < n; i++)
        tiles[i] = {expert, first + i * size, min(size, count - i * size), 0};
}

__global__ void __launch_bounds__(sort_warps * 32) sort_routes_kernel(const __grid_constant__ nib_moe_prefill args)
{
    extern __shared__ uint16_t counts[]; /* [warp, E]: of a warp; then of those before it */
    __shared__ int first_slot[1024], warp_sums[32];
    const nib_moe_args &call = args.call;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_experts = call.n_experts;
    uint16_t *own = counts + warp * n_experts;
    for (int i = threadIdx.x; i < sort_warps * n_experts; i += blockDim.x)
        counts[i] = 0;
    __syncthreads();
    int share = (call.routes + sort_warps * 32 - 1) / (sort_warps * 32) * 32;
    int begin = min(warp * share, call.routes), end = min(begin + share, call.routes);
    visit_routes(call, own, begin, end, lane, [](int, int, int) {});
    __syncthreads();

    int expert = threadIdx.x, count = 0;
    for (int i = 0; expert < n_experts && i < sort_warps; i++) {
        int here = counts[i * n_experts + expert];
        counts[i * n_experts + expert] = static_cast<uint16_t>(count);
        count += here;
    }
    int granules = (count + 7) / 8, tiles = (count + NIB_MOE_TILE_ROUTES - 1) / NIB_MOE_TILE_ROUTES;
    int before = scan_block(tiles << 16 | granules, warp_sums);
    int slot = (before & 0xffff) * 8;
    if (expert < n_experts) {
        first_slot[expert] = slot;
        list_tiles(args.tiles + (before >> 16), expert, slot, count);
        for (int i = count; i < granules * 8; i++)
            args.slots[slot + i] = -1;
    }
    if (expert == blockDim.x - 1) {
        args.counts[0] = (before >> 16) + tiles;
        args.counts[1] = (before & 0xffff) + granules;
    }
    __syncthreads();
    visit_routes(call, own, begin, end, lane, [&](int route, int e, int place) {
        if (e >= 0)
            args.slots[first_slot[e] + place] = route;
    });
}

#endif
