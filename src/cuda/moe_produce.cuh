// The producing warps of a decode block: tiles of packed rows and scales into the ring.
#ifndef NIB_CUDA_MOE_PRODUCE_CUH
#define NIB_CUDA_MOE_PRODUCE_CUH

#include "cuda/moe_block.cuh"
#include "cuda/moe_places.cuh"
#include "cuda/pipeline.cuh"

// Where rows of an expert's matrix lie, packed or their scales: row i at bytes + i * step.
struct row_source {
    const uint8_t *bytes;
    int64_t step;
};

// half 1 of W13 are its up rows; W2 has but one matrix.
__device__ __forceinline__ row_source packed_rows(const nib_moe_args &args, int which, const nib_expert &e,
                                                  int half)
{
    const uint8_t *rows = which ? e.down : half ? e.up : e.gate;
    return {rows, (which == 0 ? args.gate_up_row_stride : 1) * (args.product[which].columns / 2)};
}

__device__ __forceinline__ row_source scale_rows(const nib_moe_args &args, int which, const nib_expert &e,
                                                 int half)
{
    const uint8_t *rows = which ? e.down_scales : half ? e.up_scales : e.gate_scales;
    return {rows, (which == 0 ? args.gate_up_row_stride : 1) * args.product[which].blocks};
}

__device__ __forceinline__ void copy_scale_bytes(const nib_moe_product &p, int which, int half,
                                                 const row_source &from, int first, int count, uint8_t *target,
                                                 int lane)
{
    for (int row = 0; row < count; row++)
        for (int block = lane; block < p.scale_stride; block += 32)
            target[place_of(p, which, half, row) * p.scale_stride + block] =
                block < p.blocks ? from.bytes[(first + row) * from.step + block] : 127;
}

// The rows of a tile lie in two halves: of W13 gate and up rows, of W2 even and odd ones. `packed` and `scales` are where
// those of a tile begin, and a row of one half is `step` bytes behind the one before.
struct tile_source {
    const uint8_t *packed[2], *scales[2];
    int64_t packed_step, scales_step;
};

__device__ __forceinline__ tile_source source_of(const nib_moe_args &args, int which, const nib_expert &e,
                                                 int first)
{
    const nib_moe_product &p = args.product[which];
    tile_source from;
    row_source packed = packed_rows(args, which, e, 0), scales = scale_rows(args, which, e, 0);
    from.packed_step = packed.step * (1 + which);
    from.scales_step = scales.step * (1 + which);
    from.packed[0] = packed.bytes + first * packed.step;
    from.scales[0] = scales.bytes + first * scales.step;
    from.packed[1] = which ? from.packed[0] + packed.step : e.up + first * packed.step;
    from.scales[1] = which ? from.scales[0] + p.blocks : e.up_scales + first * scales.step;
    return from;
}

// `count` copies, a multiple of 8, of `bytes` each `step` bytes behind the one before, to places `stride` bytes apart;
// between eight and the next eight there are `gap` more.
__device__ __forceinline__ void copy_rows(uint32_t target, int stride, int gap, const uint8_t *source,
                                          int64_t step, int bytes, int count, uint32_t full, uint64_t policy)
{
#pragma unroll 1
    for (; count > 0; count -= 8, target += gap)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bulk_copy(target, source, bytes, full, policy);
            source += step;
            target += stride;
        }
}

// Starts the copies of a tile with `each` rows in each half. One thread's work.
__device__ __forceinline__ void copy_tile(const nib_moe_product &p, int which, const tile_source &from, int each,
                                          uint32_t target, uint32_t full, uint64_t policy)
{
    int row_bytes = p.columns / 2, to_second = p.tile_rows * p.row_stride; // half, where it lies apart
    bool together = which == 1 || p.interleaved;
    if (p.rows_by_region) {
        bulk_copy(target, from.packed[0], each * row_bytes * (together ? 2 : 1), full, policy);
        if (!together)
            bulk_copy(target + to_second, from.packed[1], each * row_bytes, full, policy);
    } else if (p.rows_paired) {
        copy_rows(target, p.row_stride, 0, from.packed[0], from.packed_step, 2 * row_bytes, each, full, policy);
    } else {
        for (int half = 0; half < 2; half++)
            copy_rows(target + half * 8 * p.row_stride, p.row_stride, 8 * p.row_stride, from.packed[half],
                      from.packed_step, row_bytes, each, full, policy);
    }
    target += p.scale_offset;
    if (p.scale_copy == NIB_MOE_SCALES_BY_REGION) {
        bulk_copy(target, from.scales[0], each * p.blocks * (together ? 2 : 1), full, policy);
        if (!together)
            bulk_copy(target + p.tile_rows * p.scale_stride, from.scales[1], each * p.blocks, full, policy);
    } else if (p.scale_copy == NIB_MOE_SCALES_BY_ROW) {
        for (int half = 0; half < 2; half++)
            copy_rows(target + half * 8 * p.scale_stride, p.scale_stride, 8 * p.scale_stride, from.scales[half],
                      from.scales_step, p.blocks, each, full, policy);
    }
}

// Where tiles are runs of rows one producer copies packed rows and the other scales: a copy or two of either a tile, so
// that tiles come in their order. See produce.
__device__ __forceinline__ void produce_runs(const nib_moe_args &args, const block_state &block, bool scales)
{
    uint64_t policy = evict_first_policy();
    int stage = 0, phase = 0;
    bool begun = false, waited = block.shares[0].count == 0;
#pragma unroll 1
    for (int which = opaque(0); which < 2; which++) {
        const nib_moe_product &p = args.product[which];
        share mine = block.shares[which];
        int row_bytes = scales ? p.blocks : p.columns / 2, offset = scales ? p.scale_offset : 0;
        bool together = which == 1 || p.interleaved;
        for (int tile = mine.tile, left = mine.count; left > 0; tile = 0, mine.group++) {
            int end = min(p.tiles, tile + left);
            nib_expert expert = expert_at(args.table, block.routes.groups[mine.group].expert);
            row_source from = scales ? scale_rows(args, which, expert, 0) : packed_rows(args, which, expert, 0);
            int64_t to_up = scales ? expert.up_scales - expert.gate_scales : expert.up - expert.gate;
            left -= end - tile;
#pragma unroll 1
            for (; tile < end; tile++) {
                int first = tile * p.tile_rows, bytes = min(p.tile_rows, p.rows - first) * row_bytes;
                uint32_t full = block.full + 8 * stage, target = block.ring + stage * args.stage_bytes + offset;
                if (begun && !waited) {
                    barrier_wait(block.activations, 0);
                    waited = true;
                }
                begun = true;
                barrier_wait(block.empty + 8 * stage, phase ^ 1);
                if (elect_one()) {
                    const uint8_t *source = from.bytes + first * from.step;
                    barrier_arrive_expect(full, bytes * (2 - which));
                    bulk_copy(target, source, together ? bytes * (2 - which) : bytes, full, policy);
                    if (!together)
                        bulk_copy(target + p.tile_rows * row_bytes, source + to_up, bytes, full, policy);
                }
                __syncwarp();
                if (++stage == args.stages)
                    stage = 0, phase ^= 1;
            }
        }
    }
}

// Producers take the block's tiles in turn: starting a tile's copies takes a while. Behind the first tile they wait until
// the first group's activations have been asked for, which would else queue behind all that a ring holds.
__device__ __forceinline__ void produce(const nib_moe_args &args, const block_state &block, uint8_t *memory,
                                        int producer, int lane)
{
    uint64_t policy = evict_first_policy();
    int stage = 0, phase = 0, turn = 0;
    bool begun = false, waited = block.shares[0].count == 0; // without W13, activations come when all have theirs
#pragma unroll 1
    for (int which = opaque(0); which < 2; which++) {
        const nib_moe_product &p = args.product[which];
        share mine = block.shares[which];
        bool by_byte = p.scale_copy == NIB_MOE_SCALES_BY_BYTE;
        for (int tile = mine.tile, left = mine.count; left > 0; tile = 0, mine.group++) {
            int end = min(p.tiles, tile + left);
            nib_expert expert = expert_at(args.table, block.routes.groups[mine.group].expert);
            tile_source from = source_of(args, which, expert, tile * p.tile_rows);
            left -= end - tile;
            for (; tile < end; tile++) {
                int first = tile * p.tile_rows, rows = min(p.tile_rows, p.rows - first);
                if (turn == producer) {
                    uint8_t *target = memory + stage * args.stage_bytes;
                    uint32_t full = block.full + 8 * stage;
                    if (begun && !waited) {
                        barrier_wait(block.activations, 0);
                        waited = true;
                    }
                    barrier_wait(block.empty + 8 * stage, phase ^ 1);
                    if (by_byte) {
#pragma unroll 1
                        for (int half = 0; half < 2 - which; half++)
                            copy_scale_bytes(p, which, half, scale_rows(args, which, expert, half), first, rows,
                                             target + p.scale_offset, lane);
                        __syncwarp();
                    }
                    if (elect_one()) {
                        barrier_arrive_expect(full,
                                              rows * (2 - which) * (p.columns / 2 + (by_byte ? 0 : p.blocks)));
                        copy_tile(p, which, from, which ? rows / 2 : rows, shared_address(target), full, policy);
                    }
                    __syncwarp();
                }
                begun = true;
                int each = which ? p.tile_rows / 2 : p.tile_rows;
                for (int half = 0; half < 2; half++) {
                    from.packed[half] += each * from.packed_step;
                    from.scales[half] += each * from.scales_step;
                }
                turn = turn + 1 == producer_warps ? 0 : turn + 1;
                if (++stage == args.stages)
                    stage = 0, phase ^= 1;
            }
        }
    }
}

#endif
