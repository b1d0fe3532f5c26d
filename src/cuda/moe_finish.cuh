// The finishing warps of a decode block: partial sums to h and to the routes' outputs; and the sum over routes.
#ifndef NIB_CUDA_MOE_FINISH_CUH
#define NIB_CUDA_MOE_FINISH_CUH

#include <cuda_bf16.h>

#include "cuda/moe_activation.cuh"
#include "cuda/moe_block.cuh"
#include "cuda/pipeline.cuh"

__device__ __forceinline__ float bias_at(const nib_moe_args &args, const void *bias, int64_t i)
{
    if (!args.has_bias)
        return 0;
    return args.bias_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16 *>(bias)[i])
                          : static_cast<const float *>(bias)[i];
}

// Four columns of a token's y from its local routes, in their order; foreign routes' own outputs, where asked for, become
// zeros.
template <typename IsLocal>
__device__ __forceinline__ void sum_token_quad(const nib_moe_args &args, int token, int column, IsLocal is_local)
{
    int rows = args.product[1].rows;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int j = 0; j < args.top_k; j++) {
        int route = token * args.top_k + j;
        float4 *out = reinterpret_cast<float4 *>(args.out + static_cast<int64_t>(route) * rows + column);
        if (!is_local(route)) {
            if (args.y_per_route)
                *out = make_float4(0, 0, 0, 0);
            continue;
        }
        float weight = args.routing_weights[route];
        float4 value = __ldcg(out);
        sum.x += weight * value.x;
        sum.y += weight * value.y;
        sum.z += weight * value.z;
        sum.w += weight * value.w;
    }
    int64_t at = static_cast<int64_t>(token) * rows + column;
    if (args.y && args.y_bf16) {
        __nv_bfloat162 low = __floats2bfloat162_rn(sum.x, sum.y), high = __floats2bfloat162_rn(sum.z, sum.w);
        uint2 pair = {reinterpret_cast<uint32_t &>(low), reinterpret_cast<uint32_t &>(high)};
        *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(args.y) + at) = pair;
    } else if (args.y) {
        *reinterpret_cast<float4 *>(static_cast<float *>(args.y) + at) = sum;
    }
}

// All blocks share the work.
__device__ __forceinline__ void sum_routes(const nib_moe_args &args, const block_state &block, int warp, int lane)
{
    int quads = args.product[1].rows / 4;
    int64_t all = static_cast<int64_t>(args.tokens) * quads;
    int64_t stride = static_cast<int64_t>(gridDim.x) * (NIB_MOE_DECODE_THREADS);
    for (int64_t i = (static_cast<int64_t>(warp) * gridDim.x + blockIdx.x) * 32 + lane; i < all; i += stride)
        sum_token_quad(args, static_cast<int>(i / quads), static_cast<int>(i % quads) * 4,
                       [&](int route) { return block.routes.rank[route] != ~0u; });
}

// Of an expert's W13 gate and up, of W2 down twice.
struct bias_vectors {
    const void *first, *second;
};

__device__ __forceinline__ bias_vectors biases_of(int which, const nib_expert &e)
{
    return which == 0 ? bias_vectors{e.gate_bias, e.up_bias} : bias_vectors{e.down_bias, e.down_bias};
}

// Biases of rows g and g + 8 of a group of 16 rows (of W13: of gate and up row g), loaded before they are needed.
__device__ __forceinline__ float2 load_biases(const nib_moe_args &args, int which, const bias_vectors &bias,
                                              int row)
{
    if (!args.has_bias || row >= args.product[which].rows)
        return make_float2(0, 0);
    int64_t at = which == 0 ? row * args.gate_up_row_stride : row;
    return make_float2(bias_at(args, bias.first, at), bias_at(args, bias.second, which == 0 ? at : at + 8));
}

__device__ __forceinline__ int finish_row(const nib_moe_product &p, int which, int tile, int row_group, int lane)
{
    return tile * p.tile_rows + row_group * (which == 0 ? 8 : 16) + lane / 4;
}

// Lane (g, c) holds rows g and g + 8: of the group's routes 2c and 2c + 1, or of one route where routes take several
// columns each.
__device__ __forceinline__ void finish_rows(const nib_moe_args &args, const block_state &block, int which,
                                            const route_group &group, int row, const float4 &sum,
                                            const float2 &bias, int lane)
{
    const nib_moe_product &p = args.product[which];
    int spread = spread_of(p, group), c = lane % 4;
    int first = c * 2 / spread, count = spread == 1 ? 2 : spread == 2 || c % 2 == 0 ? 1 : 0;
    if (row >= p.rows)
        return;
#pragma unroll 1
    for (int i = 0; i < count && first + i < group.count; i++) {
        int64_t route = block.routes.slots[group.first + first + i];
        float a = (i ? sum.y : sum.x) + bias.x, b = (i ? sum.w : sum.z) + bias.y;
        if (which == 0) {
            float value = activate(args.activation, a, b);
            __nv_bfloat16 h = __float2bfloat16_rn(value);
            args.h[route * p.rows + row] = reinterpret_cast<uint16_t &>(h);
            if (args.h_rest) {
                float lost =
                    value - __bfloat162float(h); // of an infinity nothing is lost, and inf - inf is no number
                __nv_bfloat16 rest = __float2bfloat16_rn(isfinite(lost) ? lost : 0);
                args.h[args.h_rest + route * p.rows + row] = reinterpret_cast<uint16_t &>(rest);
            }
        } else {
            args.out[route * p.rows + row] = a;
            args.out[route * p.rows + row + 8] = b;
        }
    }
}

__device__ __forceinline__ float4 add(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The sums of a row group's slices in their order; of halves, each slice's two are added first.
__device__ __forceinline__ float4 sum_partials(uint32_t partial, const nib_moe_product &p)
{
    float4 sum = make_float4(0, 0, 0, 0);
    if (p.classes_apart) {
#pragma unroll 3
        for (int i = 0; i < p.k_slices; i += 2)
            sum = add(sum, add(load_shared_f4(partial + i * 512), load_shared_f4(partial + (i + 1) * 512)));
    } else {
#pragma unroll 6
        for (int i = 0; i < p.k_slices; i++)
            sum = add(sum, load_shared_f4(partial + i * 512));
    }
    return sum;
}

// `ahead` are the biases of the first row group.
__device__ __forceinline__ void finish_tile(const nib_moe_args &args, const block_state &block, int which,
                                            int group, int tile, const bias_vectors &biases, float2 ahead,
                                            int slot, uint32_t phase, int lane)
{
    const nib_moe_product &p = args.product[which];
    barrier_wait(block.partial_full + 8 * slot, phase);
#pragma unroll 1
    for (int i = 0; i < p.row_groups; i++) {
        int row = finish_row(p, which, tile, i, lane);
        float2 bias = ahead;
        if (i + 1 < p.row_groups)
            ahead = load_biases(args, which, biases, finish_row(p, which, tile, i + 1, lane));
        float4 sum = sum_partials(block.partials + ((slot * multiply_warps + i * p.k_slices) * 32 + lane) * 16, p);
        if (i == p.row_groups - 1) {
            __syncwarp();
            if (lane == 0)
                barrier_arrive(block.partial_empty + 8 * slot);
        }
        finish_rows(args, block, which, block.routes.groups[group], row, sum, bias, lane);
    }
}

// Tells every block that this warp has stored h for `tiles` more tiles of the group.
__device__ __forceinline__ void signal_group(const nib_moe_args &args, int group, int tiles, int lane)
{
    __syncwarp();
    if (lane == 0)
        add_release(args.h_done + group, tiles);
}

// Tile i of the block is finished by warp i % finish_warps, from slot i % partial_slots.
__device__ __forceinline__ void finish(const nib_moe_args &args, const block_state &block, int warp, int lane)
{
    int slot = warp, phase = 0, skipped = warp; // tiles until this warp's next one
#pragma unroll 1
    for (int which = opaque(0); which < 2; which++) {
        const nib_moe_product &p = args.product[which];
        share mine = block.shares[which];
        int group = mine.group, tile = mine.tile + skipped, left = mine.count - skipped, done = 0;
        auto find_group = [&] {
            while (tile >= p.tiles)
                tile -= p.tiles, group++;
        };
        auto find_biases = [&] {
            return args.has_bias ? biases_of(which, expert_at(args.table, block.routes.groups[group].expert))
                                 : bias_vectors{};
        };
        bias_vectors biases;
        float2 bias;
        if (left > 0) {
            find_group();
            biases = find_biases();
            bias = load_biases(args, which, biases, finish_row(p, which, tile, 0, lane));
        }
        for (; left > 0; left -= finish_warps) {
            int this_group = group, this_tile = tile;
            bias_vectors these = biases;
            float2 this_bias = bias;
            tile += finish_warps;
            find_group();
            if (left > finish_warps) { // the next tile's are on their way while this one is finished
                if (group != this_group)
                    biases = find_biases();
                bias = load_biases(args, which, biases, finish_row(p, which, tile, 0, lane));
            }
            finish_tile(args, block, which, this_group, this_tile, these, this_bias, slot, phase, lane);
            slot += finish_warps;
            if (slot >= args.partial_slots)
                slot = warp, phase ^= 1;
            done++;
            if (which == 0 && (left <= finish_warps || group != this_group)) {
                signal_group(args, this_group, done, lane);
                done = 0;
            }
        }
        skipped = -left;
    }
}

#endif
