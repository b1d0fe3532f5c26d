// The multiplying warps of a decode block: packed tiles times activations on the tensor cores.
#ifndef NIB_CUDA_MOE_MULTIPLY_CUH
#define NIB_CUDA_MOE_MULTIPLY_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/moe_block.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"

constexpr uint32_t exact_factor = 0x7e807e80u; // 2^126 twice, in bf16

// One warp's part of a tile: P pairs of blocks, of which the first `missing` are not there.
struct slice {
    int first_pair, missing; // of 64 columns each; the first counts the missing ones
    uint32_t rows;           // offset in a stage of this lane's ldmatrix row
    uint32_t scales[2];      // and of the scales of rows g and g + 8
    uint32_t partial;        // and of its sums among a tile's
};

// Slices differ by a pair at most. Where there are very few, any may be missing.
constexpr int least_pairs = 3;
// Only where the largest slice has seven pairs or more are slices halved (join_teams).
constexpr int least_halved = 4;

template <int P> __device__ __forceinline__ bool has_pair(const slice &s, int pair)
{
    return (P > least_pairs && pair > 0) || pair >= s.missing;
}

// That pair, or one that is there.
template <int P> __device__ __forceinline__ int some_pair(const slice &s, int pair)
{
    return P > least_pairs && pair > 0 ? pair : max(pair, s.missing);
}

__device__ __forceinline__ bool in_second_half(int warp)
{
    return warp >= multiply_warps / 2;
}

template <int P, bool apart>
__device__ __forceinline__ slice slice_of(const nib_moe_product &p, int warp, int lane)
{
    nib_moe_slice mine = p.slices[warp];
    slice s;
    s.missing = P - mine.pairs;
    s.first_pair = mine.first_pair - s.missing * (apart ? 2 : 1);
    s.partial = mine.sums * NIB_MOE_SUM_BYTES;
    int place = mine.row_group * 16;
    s.rows = p.packed_at[place + lane % 16] + (lane / 16) * 16 + s.first_pair * 32;
    for (int half = 0; half < 2; half++)
        s.scales[half] = p.scale_offset + p.scales_at[place + lane / 4 + half * 8] + s.first_pair * 2;
    return s;
}

// The activation row of this lane's column, or null.
__device__ __forceinline__ const uint16_t *activation_row(const nib_moe_args &args, const block_state &block,
                                                          int which, const route_group &group, int spread,
                                                          int lane)
{
    int member = lane / 4 >> spread / 2;
    if (member >= group.count)
        return nullptr;
    int route = block.routes.slots[group.first + member];
    return which == 0 ? args.x + static_cast<int64_t>(route * args.top_k_inverse >> 16) * args.product[0].columns
                      : args.h + static_cast<int64_t>(route) * args.product[1].columns;
}

__device__ __forceinline__ uint4 load_activations(const uint16_t *row, int block, int blocks, int lane)
{
    if (!row || block >= blocks)
        return make_uint4(0, 0, 0, 0);
    return __ldcg(reinterpret_cast<const uint4 *>(row + block * 32 + lane % 4 * 8));
}

__device__ __forceinline__ __nv_bfloat162 as_bf16x2(uint32_t bits)
{
    return reinterpret_cast<const __nv_bfloat162 &>(bits);
}

template <typename Pair> __device__ __forceinline__ uint32_t as_word(const Pair &pair)
{
    return reinterpret_cast<const uint32_t &>(pair);
}

// What a warp holds of a group's activations while it multiplies the group's tiles: its columns in f16, each route's times
// a power of two that brings their largest into [2^14, 2^15), or below where all are less than 2^-111. A bf16 that is less
// than 2^-31 of the largest loses bits, and one of less than 2^-39 is gone, whatever scales its weights have. The
// slice's even pairs of blocks and its odd ones, which may be two warps', have powers of their own: the same numbers
// whoever multiplies them. A decoded weight is value * 2^-14, so a lane's sums come out as the true ones by `factor`
// [parity][its two columns]. Good for scales from NIB_MOE_DECODE_MIN_SCALE to _MAX_SCALE; multiply_tile_exactly takes the
// rest.
template <int P> struct prepared {
    uint32_t b[P * 2][4];
    float factor[2][2];
};

// Of the two classes of sums that a pair of blocks has, the number; by the distance from the slice's last pair.
template <int P, bool apart> __device__ __forceinline__ constexpr int parity_of(int pair)
{
    return apart ? 0 : (pair + P) % 2;
}

// 2^e for a bf16 of [2^e, 2^(e + 1)), as the bits of a float; 2^-111 at least, so that its inverse is a float too. Of an
// infinity, or what is no number, an infinity.
__device__ __forceinline__ uint32_t power_below(uint32_t bf16)
{
    return max(bf16 >> 7 & 0xff, 16u) << 23;
}

// Two bf16 in a word, and in another, to f16: of the low ones, and of the high ones.
__device__ __forceinline__ uint32_t low_to_f16(uint32_t a, uint32_t b, float factor)
{
    return as_word(__floats2half2_rn(__uint_as_float(a << 16) * factor, __uint_as_float(b << 16) * factor));
}

__device__ __forceinline__ uint32_t high_to_f16(uint32_t a, uint32_t b, float factor)
{
    return as_word(
        __floats2half2_rn(__uint_as_float(a & 0xffff0000u) * factor, __uint_as_float(b & 0xffff0000u) * factor));
}

// Asks for this warp's columns of the group's activations, as they lie in memory: of a route that takes `spread` columns
// each of them gets every spread'th block, and zeros for the others.
template <int P, bool apart>
__device__ __forceinline__ void load_slice(uint4 (&raw)[P * 2], const uint16_t *row, const slice &s, int spread,
                                           int blocks, int lane)
{
    constexpr int step = apart ? 2 : 1;
    const uint16_t *first = row + s.first_pair * 64 + lane % 4 * 8;
    bool mine[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        mine[i] = row && ((i + P % 2 * 2 ^ lane / 4) & (spread - 1)) == 0;
#pragma unroll
    for (int i = 0; i < P * 2; i++) {
        bool there = mine[i % 4] && has_pair<P>(s, i / 2);
        if (i == P * 2 - 1) // a row's last pair may be one block
            there = there && (s.first_pair + i / 2 * step) * 2 + 1 < blocks;
        raw[i] = load_global_u4_if(there, first + (i / 2 * step * 2 + i % 2) * 32);
    }
}

template <int P, bool apart>
__device__ __forceinline__ void prepare_activations(prepared<P> &to, const uint4 (&raw)[P * 2], int spread,
                                                    int lane)
{
    __nv_bfloat162 largest[2] = {};
#pragma unroll
    for (int i = 0; i < P * 2; i++) {
        __nv_bfloat162 &of = largest[parity_of<P, apart>(i / 2)];
        for (uint32_t word : {raw[i].x, raw[i].y, raw[i].z, raw[i].w})
            of = __hmax2_nan(of, __habs2(as_bf16x2(word)));
    }
    // Both parities side by side, of all the lanes that have columns of this one's route; where it takes four columns, two of
    // them have even pairs and two odd ones, and each lane needs its own.
    __nv_bfloat162 both =
        __hmax2_nan(__lows2bfloat162(largest[0], largest[1]), __highs2bfloat162(largest[0], largest[1]));
    for (int apart_by = 1; apart_by < (spread > 1 ? 8 : 4); apart_by *= 2)
        both = __hmax2_nan(both, __shfl_xor_sync(~0u, both, apart_by));
    uint32_t mine = as_word(both);
#pragma unroll
    for (int column = 0; column < 2; column++) {
        uint32_t other = __shfl_sync(~0u, mine, lane % 4 * 8 + column * 4);
        for (int parity = 0; parity < 2; parity++)
            to.factor[parity][column] = __uint_as_float(power_below(other >> 16 * parity));
    }
    if (spread == 4 && lane % 2 == 1) // both of its columns are of odd pairs
        to.factor[0][0] = to.factor[1][0];
#pragma unroll
    for (int i = 0; i < P * 2; i++) {
        float inverse = __uint_as_float((268u << 23) - power_below(mine >> 16 * parity_of<P, apart>(i / 2)));
        // In the order in which decode_f16 leaves a lane's eight weights.
        to.b[i][0] = low_to_f16(raw[i].x, raw[i].z, inverse);
        to.b[i][1] = high_to_f16(raw[i].x, raw[i].z, inverse);
        to.b[i][2] = low_to_f16(raw[i].y, raw[i].w, inverse);
        to.b[i][3] = high_to_f16(raw[i].y, raw[i].w, inverse);
    }
}

// 2^(s - 127) for the low and the high byte of two scales.
__device__ __forceinline__ void prepare_scales(uint32_t two, float (&factor)[2])
{
    factor[0] = __uint_as_float((two & 0xffu) << 23);
    factor[1] = __uint_as_float((two & 0xff00u) << 15);
}

__device__ __forceinline__ void accumulate(float (&sum)[4], const float (&product)[4], float a, float b, float c,
                                           float d)
{
    sum[0] += product[0] * a;
    sum[1] += product[1] * b;
    sum[2] += product[2] * c;
    sum[3] += product[3] * d;
}

__device__ __forceinline__ void clear(float (&v)[4])
{
    v[0] = v[1] = v[2] = v[3] = 0;
}

// Adds a block's product to `product`: 16 rows by 8 columns.
__device__ __forceinline__ void multiply_block(float (&product)[4], uint32_t upper_rows, uint32_t lower_rows,
                                               const uint32_t (&x)[4])
{
    uint32_t top[4], bottom[4];
    decode_f16(upper_rows, top);
    decode_f16(lower_rows, bottom);
    mma_f16(product, top[0], bottom[0], top[1], bottom[1], x[0], x[1], product);
    mma_f16(product, top[2], bottom[2], top[3], bottom[3], x[2], x[3], product);
}

// The four classes' sums of lane (g, c), in one order for every spread, to what finish_rows expects. factor: [parity of
// the class's pairs][column], powers of two. Products are rounded before they are added, as where two lanes or two warps
// have them: in a fused addition a subnormal one would not be.
template <int spread>
__device__ __forceinline__ float4 sum_classes(const float (&sum)[4 / spread][4], const float (&factor)[2][2])
{
    if constexpr (spread == 4) { // classes 0, 1 of even lanes, 2, 3 of odd
        float upper = __fmul_rn(sum[0][0] + sum[0][1], factor[0][0]);
        float lower = __fmul_rn(sum[0][2] + sum[0][3], factor[0][0]);
        return make_float4(upper + __shfl_xor_sync(~0u, upper, 1), 0, lower + __shfl_xor_sync(~0u, lower, 1), 0);
    } else if constexpr (spread == 2) {
        return make_float4(
            __fmul_rn(sum[0][0] + sum[0][1], factor[0][0]) + __fmul_rn(sum[1][0] + sum[1][1], factor[1][0]), 0,
            __fmul_rn(sum[0][2] + sum[0][3], factor[0][0]) + __fmul_rn(sum[1][2] + sum[1][3], factor[1][0]), 0);
    } else {
        float all[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            all[i] = __fmul_rn(sum[0][i] + sum[1][i], factor[0][i % 2]) +
                     __fmul_rn(sum[2][i] + sum[3][i], factor[1][i % 2]);
        return make_float4(all[0], all[1], all[2], all[3]);
    }
}

// A pair's packed words and scales as they lie in the stage: of the rows g, and of g + 8.
struct packed_pair {
    uint32_t words[4], low_scales, high_scales;
};

// Pairs are loaded some ahead of their products. The one that may be missing is the first, so that all else is one
// stretch of code for the compiler to mix; the classes of the sums then go by the distance from the last.
template <int P, int spread, bool apart>
__device__ __forceinline__ float4 multiply_tile(const prepared<P> &x, const slice &s, uint32_t stage, int lane)
{
    constexpr int step = apart ? 2 : 1; // from a pair to the next
    constexpr int ahead = P < 5 ? P : 3;
    float sum[4 / spread][4] = {};
    float product[2][4] = {};
    packed_pair pairs[P];
    uint32_t rows = stage + s.rows, low = stage + s.scales[0], high = stage + s.scales[1];
    auto load = [&](int i) {
        load_matrices(pairs[i].words, rows + some_pair<P>(s, i) * step * 32);
        if (spread == 4 && (i + P) % 2 == 0)
            return;
        // With four columns a route the even lanes need the scales of the pair before.
        int from = spread == 4 && i > 0 && has_pair<P>(s, i - 1) ? i - 1 + lane % 2 : some_pair<P>(s, i);
        pairs[i].low_scales = load_shared_u16(low + from * step * 2);
        pairs[i].high_scales = load_shared_u16(high + from * step * 2);
    };
#pragma unroll
    for (int i = 0; i < ahead; i++)
        load(i);
#pragma unroll
    for (int i = 0; i < P; i++) {
        const int half = (i + P) % 2; // of the four classes, even where a warp has but one
        if (i > 0 && i - 1 + ahead < P)
            load(i - 1 + ahead);
        float low_factor[2], high_factor[2];
        if (spread < 4 || half == 1) {
            prepare_scales(pairs[i].low_scales, low_factor);
            prepare_scales(pairs[i].high_scales, high_factor);
        }
        if (spread < 4 || half == 0)
            clear(product[0]);
        if (spread == 1)
            clear(product[1]);
        if (has_pair<P>(s, i)) { // the same for the whole warp
            multiply_block(product[0], pairs[i].words[0], pairs[i].words[1], x.b[2 * i]);
            multiply_block(product[spread == 1], pairs[i].words[2], pairs[i].words[3], x.b[2 * i + 1]);
        }
        if constexpr (spread == 1) {
#pragma unroll
            for (int j = 0; j < 2; j++)
                accumulate(sum[(apart ? 0 : half * 2) + j], product[j], low_factor[j], low_factor[j],
                           high_factor[j], high_factor[j]);
        } else if (spread == 2 || half == 1) {
            accumulate(sum[apart || spread == 4 ? 0 : half], product[0], low_factor[0], low_factor[1],
                       high_factor[0], high_factor[1]);
        }
    }
    return sum_classes<spread>(sum, x.factor);
}

// What the exact path reads beside the tile: this lane's activations, one column a route, and where, from each of their
// elements, the part lies that its rounding to bf16 took away (0: nowhere). `spread` is how the sums are handed on.
struct exact_source {
    const uint16_t *row;
    int64_t rest;
    int spread;
};

// From one column a route to where sum_classes<spread> would have left the sums.
__device__ __forceinline__ float4 respread(const float4 &sum, int spread, int lane)
{
    if (spread == 1)
        return sum;
    int route = lane % 4 * 2 >> spread / 2, from = lane / 4 * 4 + route / 2;
    float x = __shfl_sync(~0u, sum.x, from), y = __shfl_sync(~0u, sum.y, from);
    float z = __shfl_sync(~0u, sum.z, from), w = __shfl_sync(~0u, sum.w, from);
    return route % 2 ? make_float4(y, 0, w, 0) : make_float4(x, 0, z, 0);
}

// Any scale, any activation: the same sums in the same order, with true bf16 weights and unscaled activations.
template <int P, bool apart>
__device__ __forceinline__ float4 multiply_tile_exactly(const slice &s, uint32_t stage, const exact_source &from,
                                                        int blocks, int lane)
{
    constexpr int step = apart ? 2 : 1;
    const float zero[4] = {0, 0, 0, 0}, ones[2][2] = {{1, 1}, {1, 1}};
    float sum[4][4] = {};
#pragma unroll 1
    for (int first = s.missing * 2; first < P * 2; first += 4 / step) { // a block of each class
#pragma unroll
        for (int i = 0; i < 4 / step; i++) {
            int pair = (first + i) / 2 * step, block = (s.first_pair + pair) * 2 + i % 2;
            if (block >= blocks || first + i >= P * 2)
                continue;
            uint32_t packed[4], top[4], bottom[4], x[4];
            float product[4], factor[2];
            load_matrices(packed, stage + s.rows + pair * 32);
            permute_activations(load_activations(from.row, block, blocks, lane), x);
            decode_nibbles(packed[i % 2 * 2], top);
            decode_nibbles(packed[i % 2 * 2 + 1], bottom);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                top[k] = mul_bf16x2(top[k], exact_factor);
                bottom[k] = mul_bf16x2(bottom[k], exact_factor);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t code = load_shared_u16(stage + s.scales[half] + pair * 2) >> (8 * (i % 2)) & 0xff;
                factor[half] = __uint_as_float(code == 255 ? 0x7fc00000u : code == 0 ? 0x00400000u : code << 23);
            }
            mma_bf16(product, top[0], bottom[0], top[1], bottom[1], x[0], x[1], zero);
            mma_bf16(product, top[2], bottom[2], top[3], bottom[3], x[2], x[3], product);
            if (from.rest) {
                permute_activations(
                    load_activations(from.row ? from.row + from.rest : from.row, block, blocks, lane), x);
                mma_bf16(product, top[0], bottom[0], top[1], bottom[1], x[0], x[1], product);
                mma_bf16(product, top[2], bottom[2], top[3], bottom[3], x[2], x[3], product);
            }
            accumulate(sum[i], product, factor[0], factor[0], factor[1], factor[1]);
        }
    }
    return respread(sum_classes<1>(sum, ones), from.spread, lane);
}

// Where a block's tiles stand in the rings of stages and of partial sums.
struct position {
    int stage, stage_phase, partial, partial_phase;
    int tile; // counted over both products. Half of the warps count from 1: of two teams each takes the ones it counts even
};

__device__ __forceinline__ void advance(position &at, const nib_moe_args &args)
{
    if (++at.stage == args.stages)
        at.stage = 0, at.stage_phase ^= 1;
    if (++at.partial == args.partial_slots)
        at.partial = 0, at.partial_phase ^= 1;
    at.tile++;
}

// One tile: multiply, give the stage back, hand the partial sums on. spread 0: exactly.
template <int P, int spread, bool apart>
__device__ __forceinline__ void multiply_item(const nib_moe_args &args, const block_state &block,
                                              const position &at, const prepared<P> &x, const slice &s,
                                              const exact_source &from, const nib_moe_product &p, int lane)
{
    barrier_wait(block.full + 8 * at.stage, at.stage_phase);
    uint32_t stage = block.ring + at.stage * args.stage_bytes;
    float4 sum;
    if constexpr (spread > 0)
        sum = multiply_tile<P, spread, apart>(x, s, stage, lane);
    else
        sum = multiply_tile_exactly<P, apart>(s, stage, from, p.blocks, lane);
    __syncwarp();
    if (lane == 0)
        barrier_arrive(block.empty + 8 * at.stage, p.teams);
    barrier_wait(block.partial_empty + 8 * at.partial, at.partial_phase ^ 1);
    uint32_t partial = block.partials + at.partial * multiply_warps * NIB_MOE_SUM_BYTES + s.partial;
    if (from.spread > 1)
        store_shared_f2(partial + lane * 8, sum.x, sum.z);
    else
        store_shared_f4(partial + lane * 16, sum.x, sum.y, sum.z, sum.w);
    __syncwarp();
    if (lane == 0)
        barrier_arrive(block.partial_full + 8 * at.partial, p.teams);
}

// `count` tiles of one group, as far as they are this warp's.
template <int P, int spread, bool apart>
__device__ __forceinline__ void
multiply_items(const nib_moe_args &args, const block_state &block, const nib_moe_product &p, position &at,
               int count, const prepared<P> &x, const slice &s, const exact_source &from, int lane)
{
#pragma unroll 1
    for (int i = 0; i < count; i++, advance(at, args))
        if (p.teams == 1 || at.tile % 2 == 0)
            multiply_item<P, spread, apart>(args, block, at, x, s, from, p, lane);
}

// Waits until h of a group is complete. One thread looks, or the looking itself would hold up the memory. Teams meet
// here too, before one waits for stages that were the other's.
__device__ __forceinline__ void wait_for_group(const nib_moe_args &args, int group)
{
    if (threadIdx.x == 0)
        while (load_acquire(own_h_done() + group) < static_cast<unsigned>(args.product[0].tiles))
            ;
    named_barrier<1, multiply_warps * 32>();
}

template <int P, bool apart>
__device__ __forceinline__ void multiply_product(const nib_moe_args &args, const block_state &block, int which,
                                                 position &at, int warp, int lane)
{
    const nib_moe_product &p = args.product[which];
    share mine = block.shares[which];
    slice s = slice_of<P, apart>(p, warp, lane);
    for (int tile = mine.tile, left = mine.count; left > 0; tile = 0, mine.group++) {
        int group = mine.group, count = min(p.tiles - tile, left);
        route_group g = block.routes.groups[group];
        exact_source from = {nullptr, which == 1 ? args.h_rest : 0, spread_of(p, g)};
        bool exact = (args.exact[g.expert] >> which & 1) || from.rest;
        if (which == 1)
            wait_for_group(args, group);
        uint4 raw[P * 2];
        load_slice<P, apart>(raw, activation_row(args, block, which, g, from.spread, lane), s, from.spread,
                             p.blocks, lane);
        if (lane == 0 && at.tile == in_second_half(warp))
            barrier_arrive(block.activations);
        prepared<P> x;
        prepare_activations<P, apart>(x, raw, from.spread, lane);
        if (exact) {
            from.row = activation_row(args, block, which, g, 1, lane);
            multiply_items<P, 0, apart>(args, block, p, at, count, x, s, from, lane);
        } else if (!apart && from.spread == 4) {
            if constexpr (!apart)
                multiply_items<P, 4, apart>(args, block, p, at, count, x, s, from, lane);
        } else if (from.spread == 2)
            multiply_items<P, 2, apart>(args, block, p, at, count, x, s, from, lane);
        else
            multiply_items<P, 1, apart>(args, block, p, at, count, x, s, from, lane);
        left -= count;
    }
}

template <int P, bool apart>
__device__ __forceinline__ void multiply_slices(const nib_moe_args &args, const block_state &block, int which,
                                                position &at, int warp, int lane)
{
    if (max(args.product[which].max_pairs, least_pairs) == P)
        multiply_product<P, apart>(args, block, which, at, warp, lane);
    else if constexpr (P < (apart ? NIB_MOE_MAX_PAIRS / 2 : NIB_MOE_MAX_PAIRS))
        multiply_slices<P + 1, apart>(args, block, which, at, warp, lane);
}

__device__ __forceinline__ void multiply(const nib_moe_args &args, const block_state &block, int warp, int lane)
{
    position at = {};
    at.tile = in_second_half(warp);
#pragma unroll 1
    for (int which = opaque(0); which < 2; which++)
        if (args.product[which].classes_apart)
            multiply_slices<least_halved, true>(args, block, which, at, warp, lane);
        else
            multiply_slices<least_pairs, false>(args, block, which, at, warp, lane);
}

#endif
