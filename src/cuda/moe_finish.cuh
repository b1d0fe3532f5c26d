// The finishing warps of a decode block: partial sums to h and to the routes' outputs; and the sum over routes.
#ifndef NIB_CUDA_MOE_FINISH_CUH
#define NIB_CUDA_MOE_FINISH_CUH

#include <cuda_bf16.h>

#include "cuda/moe_activation.cuh"
#include "cuda/moe_block.cuh"
#include "cuda/moe_places.cuh"
#include "cuda/pipeline.cuh"

constexpr int sum_at_once = 8; // routes whose outputs a thread asks for before it adds any

// Four columns of a token's y from its local routes, in their order; foreign routes' own outputs, where asked for, become
// zeros.
template <typename IsLocal>
__device__ __forceinline__ void sum_token_quad(const nib_moe_args &args, int token, int column, IsLocal is_local)
{
    int rows = args.product[1].rows;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = 0; first < args.top_k; first += sum_at_once) {
        bool local[sum_at_once];
        float weights[sum_at_once];
        uint4 values[sum_at_once];
#pragma unroll
        for (int i = 0; i < sum_at_once; i++) {
            int route = token * args.top_k + min(first + i, args.top_k - 1);
            float *out = args.out + static_cast<int64_t>(route) * rows + column;
            bool there = first + i < args.top_k;
            local[i] = there && is_local(route);
            weights[i] = args.routing_weights[route];
            values[i] = load_global_u4_if(local[i] && args.y, out);
            if (there && !local[i] && args.y_per_route)
                *reinterpret_cast<float4 *>(out) = make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < sum_at_once; i++)
            if (local[i]) {
                sum.x += weights[i] * __uint_as_float(values[i].x);
                sum.y += weights[i] * __uint_as_float(values[i].y);
                sum.z += weights[i] * __uint_as_float(values[i].z);
                sum.w += weights[i] * __uint_as_float(values[i].w);
            }
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

// All blocks share the work, which may be none.
__device__ __forceinline__ void sum_routes(const nib_moe_args &args, const block_state &block, int n_groups,
                                           int warp, int lane)
{
    if (!args.y && n_groups > 0) {
        route_group last = block.routes.groups[n_groups - 1];
        if (last.first + last.count == args.routes) // no route is foreign
            return;
    }
    int quads = args.product[1].rows / 4;
    int all = args.tokens * quads, stride = static_cast<int>(gridDim.x) * NIB_MOE_DECODE_THREADS;
    for (int i = (warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * 32 + lane; i < all;
         i += stride)
        sum_token_quad(args, i / quads, i % quads * 4, [&](int route) { return block.routes.rank[route] != ~0u; });
}

// A lane (g, c) of a finishing warp has the rows at places g and g + 8 of every 16: of W13 gate and up row g, of W2 this
// one and one so much further on.
__device__ __forceinline__ int first_row(const nib_moe_product &p, int which, int lane)
{
    return lane / 4 * (which == 1 && p.rows_paired ? 2 : 1);
}

__device__ __forceinline__ int to_second_row(const nib_moe_product &p)
{
    return p.rows_paired ? 1 : 8;
}

// Biases of an output row and of the one that a lane finishes with it: of W13 gate and up, of W2 `further` rows on.
struct bias_pair {
    const uint8_t *first, *second; // null: none
    int64_t step;                  // bytes from row to row
};

__device__ __forceinline__ bias_pair biases_of(const nib_moe_args &args, int which, const nib_expert &e, int row,
                                               int further)
{
    if (!args.has_bias)
        return {nullptr, nullptr, 0};
    int64_t step = (args.bias_bf16 ? 2 : 4) * (which == 0 ? args.gate_up_row_stride : 1);
    const uint8_t *first = static_cast<const uint8_t *>(which == 0 ? e.gate_bias : e.down_bias) + row * step;
    return {first, which == 0 ? static_cast<const uint8_t *>(e.up_bias) + row * step : first + further * step,
            step};
}

// As they lie in memory, so that they can be loaded long before they are needed: what makes numbers of them waits for
// them.
struct raw_biases {
    uint32_t first, second;
};

// Of the row `rows` further, if it is there.
__device__ __forceinline__ raw_biases load_biases(const nib_moe_args &args, const bias_pair &biases, int rows,
                                                  bool there)
{
    if (!biases.first || !there)
        return {0, 0};
    const uint8_t *first = biases.first + rows * biases.step, *second = biases.second + rows * biases.step;
    if (args.bias_bf16)
        return {*reinterpret_cast<const uint16_t *>(first), *reinterpret_cast<const uint16_t *>(second)};
    return {*reinterpret_cast<const uint32_t *>(first), *reinterpret_cast<const uint32_t *>(second)};
}

__device__ __forceinline__ float bias_of(const nib_moe_args &args, uint32_t raw)
{
    return __uint_as_float(args.bias_bf16 ? raw << 16 : raw);
}

// What a lane (g, c) of a finishing warp has to do with a group: two rows (see first_row) of the group's routes 2c and
// 2c + 1, or of one where routes take several columns each.
struct finish_part {
    int routes;       // none, one or two
    bool one_column;  // one route at most, whose sums are x and z
    int64_t at[2];    // the first row of each, in h or among the outputs
    bias_pair biases; // of that row
};

// Rows of the output in 16 of a stage.
__device__ __forceinline__ int sixteen(int which)
{
    return which == 0 ? 8 : 16;
}

__device__ __forceinline__ finish_part part_of_group(const nib_moe_args &args, const block_state &block, int which,
                                                     int index, int lane)
{
    const nib_moe_product &p = args.product[which];
    route_group group = block.routes.groups[index];
    int spread = spread_of(p, group), c = lane % 4, row = first_row(p, which, lane), first = c * 2 >> spread / 2;
    finish_part part;
    part.one_column = spread > 1;
    part.routes = min(group.count - first, spread == 1 ? 2 : spread == 2 || c % 2 == 0 ? 1 : 0);
    for (int i = 0; i < 2; i++)
        part.at[i] =
            i < part.routes ? static_cast<int64_t>(block.routes.slots[group.first + first + i]) * p.rows + row : 0;
    part.biases = biases_of(args, which, expert_at(args.table, group.expert), row, to_second_row(p));
    return part;
}

__device__ __forceinline__ void store_h_element(const nib_moe_args &args, int64_t at, float value)
{
    __nv_bfloat16 h = __float2bfloat16_rn(value);
    args.h[at] = reinterpret_cast<uint16_t &>(h);
    if (args.h_rest) {
        float lost = value - __bfloat162float(h); // of an infinity nothing is lost, and inf - inf is no number
        __nv_bfloat16 rest = __float2bfloat16_rn(isfinite(lost) ? lost : 0);
        args.h[args.h_rest + at] = reinterpret_cast<uint16_t &>(rest);
    }
}

__device__ __forceinline__ void finish_rows(const nib_moe_args &args, const nib_moe_product &p, int which,
                                            const finish_part &part, int number, const float4 &sum,
                                            const raw_biases &biases, int lane)
{
    int row = number * sixteen(which);
    if (row >= p.rows)
        return;
    bool exchanged = half_at(p, 0, lane / 4);
    float first_bias = bias_of(args, biases.first), second_bias = bias_of(args, biases.second);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i >= part.routes)
            break;
        float upper = i ? sum.y : sum.x, lower = i ? sum.w : sum.z;
        float a = (exchanged ? lower : upper) + first_bias, b = (exchanged ? upper : lower) + second_bias;
        if (which == 0) {
            store_h_element(args, part.at[i] + row, activate(args.activation, a, b));
        } else {
            float *out = args.out + part.at[i] + row;
            if (p.rows_paired) {
                *reinterpret_cast<float2 *>(out) = make_float2(a, b);
            } else {
                out[0] = a;
                out[8] = b;
            }
        }
    }
}

// A lane's sums of one slice.
template <bool one_column> __device__ __forceinline__ float4 load_partial(uint32_t partial, int lane)
{
    if (!one_column)
        return load_shared_f4(partial + lane * 16);
    float2 sums = load_shared_f2(partial + lane * 8);
    return make_float4(sums.x, 0, sums.y, 0);
}

template <bool one_column> __device__ __forceinline__ float4 add(const float4 &a, const float4 &b)
{
    return one_column ? make_float4(a.x + b.x, 0, a.z + b.z, 0)
                      : make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Adds three slices' sums, or of halves three times two.
template <bool one_column, bool halves>
__device__ __forceinline__ float4 add_partials(float4 sum, uint32_t partial, uint32_t to_half, int lane)
{
    float4 values[3], others[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        values[i] = load_partial<one_column>(partial + i * NIB_MOE_SUM_BYTES, lane);
        if (halves)
            others[i] = load_partial<one_column>(partial + to_half + i * NIB_MOE_SUM_BYTES, lane);
    }
#pragma unroll
    for (int i = 0; i < 3; i++)
        sum = add<one_column>(sum, halves ? add<one_column>(values[i], others[i]) : values[i]);
    return sum;
}

// The sums of 16 rows' slices in their order; of halves, each slice's two are added first. There are three slices, or
// six or twelve.
template <bool one_column>
__device__ __forceinline__ float4 sum_partials(uint32_t partial, const nib_moe_product &p, int lane)
{
    float4 sum = make_float4(0, 0, 0, 0);
    if (p.classes_apart) {
        uint32_t to_half = p.k_slices / 2 * NIB_MOE_SUM_BYTES;
        sum = add_partials<one_column, true>(sum, partial, to_half, lane);
        return p.k_slices == 6
                   ? sum
                   : add_partials<one_column, true>(sum, partial + 3 * NIB_MOE_SUM_BYTES, to_half, lane);
    }
#pragma unroll 2
    for (int i = 0; i < p.k_slices; i += 3)
        sum = add_partials<one_column, false>(sum, partial + i * NIB_MOE_SUM_BYTES, 0, lane);
    return sum;
}

// Tells every block that this warp has stored h for `tiles` more tiles of the group.
__device__ __forceinline__ void signal_group(int group, int tiles, int lane)
{
    __syncwarp();
    if (lane == 0)
        add_release(own_h_done() + group, tiles);
}

// Tile i of the block is finished by warp i % finish_warps, from slot i % partial_slots.
__device__ __forceinline__ void finish(const nib_moe_args &args, const block_state &block, int warp, int lane)
{
    int slot = warp, phase = 0, skipped = warp; // tiles until this warp's next one
#pragma unroll 1
    for (int which = opaque(0); which < 2; which++) {
        const nib_moe_product &p = args.product[which];
        share mine = block.shares[which];
        int group = mine.group, tile = mine.tile + skipped, left = mine.count - skipped;
        while (left > 0) { // a group
            while (tile >= p.tiles)
                tile -= p.tiles, group++;
            finish_part part = part_of_group(args, block, which, group, lane);
            int number = tile * p.row_groups, i = 0, done = 0;
            auto load = [&](int from) {
                int rows = from * sixteen(which);
                return load_biases(args, part.biases, rows, rows < p.rows);
            };
            raw_biases ahead = load(number);
            while (left > 0 && tile < p.tiles) { // 16 rows
                uint32_t partial = block.partials + (slot * multiply_warps + i * p.k_slices) * NIB_MOE_SUM_BYTES;
                bool last = i + 1 == p.row_groups;
                int next = number + 1 + (last ? (finish_warps - 1) * p.row_groups : 0);
                raw_biases biases = ahead;
                ahead = load(next); // or beyond all
                if (i == 0)
                    barrier_wait(block.partial_full + 8 * slot, phase);
                float4 sum =
                    part.one_column ? sum_partials<true>(partial, p, lane) : sum_partials<false>(partial, p, lane);
                i++;
                if (last) {
                    __syncwarp();
                    if (lane == 0)
                        barrier_arrive(block.partial_empty + 8 * slot);
                    slot += finish_warps;
                    if (slot >= args.partial_slots)
                        slot = warp, phase ^= 1;
                    i = 0, tile += finish_warps, left -= finish_warps, done++;
                }
                finish_rows(args, p, which, part, number, sum, biases, lane);
                number = next;
            }
            if (which == 0)
                signal_group(group, done, lane);
        }
        skipped = -left;
    }
}

#endif
