// The producing warps of a decode block: tiles of packed rows and scales into the ring.
#ifndef NIB_CUDA_MOE_PRODUCE_CUH
#define NIB_CUDA_MOE_PRODUCE_CUH

#include "cuda/moe_block.cuh"
#include "cuda/pipeline.cuh"

// Where rows of an expert's matrix lie: row i at packed + i * packed_step, its scales at scales + i * scale_step.
struct row_source {
    const uint8_t *packed, *scales;
    int64_t packed_step, scale_step;
};

// half 1 of W13 are its up rows; W2 has one half.
__device__ __forceinline__ row_source rows_of(const nib_moe_args &args, int which, const nib_expert &e, int half)
{
    const nib_moe_product &p = args.product[which];
    int64_t stride = which == 0 ? args.gate_up_row_stride : 1;
    const uint8_t *packed = which ? e.down : half ? e.up : e.gate;
    const uint8_t *scales = which ? e.down_scales : half ? e.up_scales : e.gate_scales;
    return {packed, scales, stride * (p.columns / 2), stride * p.blocks};
}

__device__ __forceinline__ void copy_scale_bytes(const nib_moe_product &p, int which, int half,
                                                 const row_source &from, int count, uint8_t *target, int lane)
{
    for (int row = 0; row < count; row++)
        for (int block = lane; block < p.scale_stride; block += 32)
            target[place_of(p, which, half, row) * p.scale_stride + block] =
                block < p.blocks ? from.scales[row * from.scale_step + block] : 127;
}

// Starts the copies of a tile's rows of one half, a multiple of 8, the first of them at `packed` and `scales`. One
// thread's work.
__device__ __forceinline__ void copy_rows(const nib_moe_product &p, int which, int half, const row_source &from,
                                          int count, uint32_t target, uint32_t full, uint64_t policy)
{
    const uint8_t *packed = from.packed;
    uint32_t scale_target = target + p.scale_offset;
    int row_bytes = p.columns / 2, rows = p.interleaved ? 2 * count : count;
    bool with_other_half = half && p.interleaved;
    if (p.rows_by_region && !with_other_half)
        bulk_copy(target + half * p.tile_rows * p.row_stride, packed, rows * row_bytes, full, policy);
    for (int row = 0; !p.rows_by_region && row < count; row += 8) {
        uint32_t place = target + place_of(p, which, half, row) * p.row_stride;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bulk_copy(place, packed, row_bytes, full, policy);
            packed += from.packed_step;
            place += p.row_stride;
        }
    }
    if (p.scale_copy == NIB_MOE_SCALES_BY_ROW) {
        for (int row = 0; row < count; row++)
            bulk_copy(scale_target + place_of(p, which, half, row) * p.scale_stride,
                      from.scales + row * from.scale_step, p.blocks, full, policy);
    } else if (p.scale_copy == NIB_MOE_SCALES_BY_REGION && !with_other_half) {
        bulk_copy(scale_target + half * p.tile_rows * p.scale_stride, from.scales, rows * p.blocks, full, policy);
    }
}

__device__ __forceinline__ void copy_tile(const nib_moe_product &p, int which, const row_source (&from)[2],
                                          int count, uint8_t *stage, uint32_t full, uint64_t policy, int lane)
{
    int halves = which == 0 ? 2 : 1;
    bool by_byte = p.scale_copy == NIB_MOE_SCALES_BY_BYTE;
    if (by_byte) {
        copy_scale_bytes(p, which, 0, from[0], count, stage + p.scale_offset, lane);
        if (which == 0)
            copy_scale_bytes(p, which, 1, from[1], count, stage + p.scale_offset, lane);
        __syncwarp();
    }
    if (elect_one()) {
        barrier_arrive_expect(full, count * halves * (p.columns / 2 + (by_byte ? 0 : p.blocks)));
        copy_rows(p, which, 0, from[0], count, shared_address(stage), full, policy);
        if (which == 0)
            copy_rows(p, which, 1, from[1], count, shared_address(stage), full, policy);
    }
    __syncwarp();
}

__device__ __forceinline__ void move_source(row_source &from, int64_t rows)
{
    from.packed += rows * from.packed_step;
    from.scales += rows * from.scale_step;
}

// Producers take the block's tiles in turn: starting a copy costs some ten issue slots, and a tile has many. With few
// routes each starts one tile and then waits for the first group's activations, whose loads would else queue behind the
// others.
__device__ __forceinline__ void produce(const nib_moe_args &args, const block_state &block, uint8_t *memory,
                                        int producer, int lane)
{
    uint64_t policy = evict_first_policy();
    int stage = 0, phase = 0, turn = 0;
    bool few = args.routes <= NIB_MOE_FEW_ROUTES, first = true;
#pragma unroll 1
    for (int which = opaque(0); which < 2; which++) {
        const nib_moe_product &p = args.product[which];
        share mine = block.shares[which];
        for (int tile = mine.tile, left = mine.count; left > 0; tile = 0, mine.group++) {
            int end = min(p.tiles, tile + left);
            nib_expert expert = expert_at(args.table, block.routes.groups[mine.group].expert);
            row_source from[2] = {rows_of(args, which, expert, 0), rows_of(args, which, expert, 1)};
            move_source(from[0], static_cast<int64_t>(tile) * p.tile_rows);
            move_source(from[1], static_cast<int64_t>(tile) * p.tile_rows);
            left -= end - tile;
            for (; tile < end; tile++) {
                if (turn == producer) {
                    if (few && !first)
                        barrier_wait(block.activations, 0);
                    first = false;
                    barrier_wait(block.empty + 8 * stage, phase ^ 1);
                    copy_tile(p, which, from, min(p.tile_rows, p.rows - tile * p.tile_rows),
                              memory + stage * args.stage_bytes, block.full + 8 * stage, policy, lane);
                }
                move_source(from[0], p.tile_rows);
                move_source(from[1], p.tile_rows);
                turn = turn + 1 == producer_warps ? 0 : turn + 1;
                if (++stage == args.stages)
                    stage = 0, phase ^= 1;
            }
        }
    }
}

#endif
