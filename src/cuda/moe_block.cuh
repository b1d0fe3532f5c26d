// What every warp of a decode block knows: its share of the tiles, its barriers, where things lie.
#ifndef NIB_CUDA_MOE_BLOCK_CUH
#define NIB_CUDA_MOE_BLOCK_CUH

#include <cstdint>

#include "cuda/moe_decode.cuh"
#include "cuda/moe_routing.cuh"

constexpr int multiply_warps = NIB_MOE_MULTIPLY_WARPS;
constexpr int finish_warps = NIB_MOE_FINISH_WARPS;
constexpr int producer_warps = NIB_MOE_PRODUCER_WARPS;
constexpr int max_stages = NIB_MOE_MAX_STAGES;
constexpr int max_slots = NIB_MOE_MAX_SLOTS;

// The tiles of one product that this block takes: `count` from a tile of a group on, in the order of the groups.
struct share {
    int group, tile, count;
};

struct block_state {
    routing routes;
    const share *shares;                  /* [2] */
    uint32_t full, empty;                 // barriers of the stages, 8 bytes apart
    uint32_t partial_full, partial_empty; // barriers of the slots of sums
    uint32_t activations;                 // one barrier: the first group's are asked for
    uint32_t ring, partials;
};

// This call's half of args.h_done, kept once for the block.
__device__ __forceinline__ unsigned *&own_h_done()
{
    __shared__ unsigned *own;
    return own;
}

// What the division by the number of blocks would give, without its latency.
__device__ __forceinline__ unsigned divide_by_blocks(const nib_moe_args &args, unsigned value)
{
    unsigned quotient = __umulhi(value, args.blocks_inverse); // the true one, or one less
    return quotient + (value - quotient * gridDim.x >= gridDim.x);
}

// The shares of this block, for lanes 0 and 1: of W13 and of W2. Those of W13 differ by a tile at most, or by a tile's
// weight, and so do those of both products together. 1024 routes weigh 20 each at most, a group has 1440 tiles: times
// NIB_MOE_MAX_BLOCKS that is below 2^32.
__device__ __forceinline__ share find_share(const nib_moe_args &args, const routing &r, int n_groups, int lane)
{
    int which = lane % 2;
    unsigned block = blockIdx.x + lane / 2 % 2, blocks = gridDim.x, tiles = args.product[which].tiles;
    route_group last = r.groups[n_groups - 1];
    unsigned all = last.before + tile_weight(args, last.count), first = all * args.product[0].tiles;
    unsigned begin = divide_by_blocks(args, first * block);
    if (which == 1)
        begin = all * tiles < blocks ? divide_by_blocks(args, all * tiles * block)
                                     : divide_by_blocks(args, (first + all * tiles) * block) - begin;
    int group = 0; // the last that begins there or before
    for (int end = n_groups; end - group > 1;) {
        int middle = (group + end) / 2;
        (r.groups[middle].before * tiles > begin ? end : group) = middle;
    }
    route_group g = r.groups[group];
    int tile = static_cast<int>((begin - g.before * tiles) / tile_weight(args, g.count));
    int next_group = __shfl_down_sync(~0u, group, 2), next_tile = __shfl_down_sync(~0u, tile, 2);
    return {group, tile, (next_group - group) * static_cast<int>(tiles) + next_tile - tile};
}

__device__ __forceinline__ nib_expert expert_at(const nib_moe_table &table, int index)
{
    if (!table.affine)
        return table.experts[index];
    nib_expert e = table.first;
    const int64_t *step = table.step;
    e.gate += index * step[0];
    e.up += index * step[1];
    e.gate_scales += index * step[2];
    e.up_scales += index * step[3];
    e.down += index * step[4];
    e.down_scales += index * step[5];
    e.gate_bias = static_cast<const uint8_t *>(e.gate_bias) + index * step[6];
    e.up_bias = static_cast<const uint8_t *>(e.up_bias) + index * step[7];
    e.down_bias = static_cast<const uint8_t *>(e.down_bias) + index * step[8];
    return e;
}

// Few routes leave columns of the tensor-core tile idle. They then take `spread` columns each, and block i of a slice
// goes into column i % spread of them: sums of several blocks are scaled at once, by as many lanes. The order of every
// sum stays the same, in four classes of blocks (i % 4), so a route's bits do not depend on the spread. A warp that has
// every other pair has two of the classes.
__device__ __forceinline__ int spread_of(const nib_moe_product &p, const route_group &group)
{
    return group.count <= 2 && !p.classes_apart ? 4 : group.count <= 4 ? 2 : 1;
}

#endif
