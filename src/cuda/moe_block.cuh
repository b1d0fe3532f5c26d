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

// The tiles of one product that this block takes: [begin, end) of group * tiles + tile.
struct share {
    int begin, end;
};

struct block_state {
    routing routes;
    share shares[2];
    uint32_t full, empty;                 // barriers of the stages, 8 bytes apart
    uint32_t partial_full, partial_empty; // barriers of the finishing warps
    uint32_t activations;                 // one barrier: the first group's are in registers
    uint32_t ring, partials;
};

// Where the shares of this block begin and end: bounds[2 * which] and bounds[2 * which + 1], one a lane. Shares of W13
// differ by a tile at most, and so do those of both products together.
__device__ __forceinline__ void bound_shares(const nib_moe_args &args, int n_groups, int *bounds, int lane)
{
    if (lane >= 4)
        return;
    unsigned first = n_groups * args.product[0].tiles, second = n_groups * args.product[1].tiles;
    unsigned blocks = gridDim.x, block = blockIdx.x + lane % 2;
    unsigned begin = first * block / blocks;
    if (lane >= 2)
        begin = second < blocks ? second * block / blocks : (first + second) * block / blocks - begin;
    bounds[lane] = static_cast<int>(begin);
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

// The place of a tile's row in its stage: in W13 every 16 rows are 8 gate rows and then their 8 up rows.
__device__ __forceinline__ int place_of(int which, int half, int row)
{
    return which == 0 ? row + (row & ~7) + half * 8 : row;
}

// Where the scales of that place lie among the tile's scales, in rows.
__device__ __forceinline__ int scale_row(const nib_moe_product &p, int which, int place)
{
    if (which == 1 || p.scale_copy != NIB_MOE_SCALES_BY_REGION)
        return place;
    int row = place / 16 * 8 + place % 8, up = place >> 3 & 1;
    return p.interleaved ? 2 * row + up : row + up * p.tile_rows;
}

// Few routes leave columns of the tensor-core tile idle. They then take `spread` columns each, and block i of a row goes
// into column i % spread of them: sums of several blocks are scaled at once, by as many lanes. The order of every sum
// stays the same, in four classes of blocks (i % 4), so a route's bits do not depend on the spread.
__device__ __forceinline__ int spread_of(const route_group &group)
{
    return group.count <= 2 ? 4 : group.count <= 4 ? 2 : 1;
}

#endif
