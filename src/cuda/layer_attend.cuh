// Attention of single rows inside a launch that does more. A block takes a row, a kv head with its up to eight query heads,
// and a part of the tokens; its eight warps take tiles of 16 tokens in turn. Keys and values go straight from memory into
// registers as operands of the tensor cores: a lane's 16 bytes of a key are eight elements of the inner dimension, in an
// order that the queries share, and its 16 bytes of a value are eight columns, one for each product.
#ifndef NIB_CUDA_LAYER_ATTEND_CUH
#define NIB_CUDA_LAYER_ATTEND_CUH

#include <cmath>

#include "cuda/attend_shape.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"

constexpr int part_warps = 8, part_heads = 8, part_dim = 64, part_tokens = 16;
constexpr int part_most = 16;  // parts of a row's tokens
constexpr int part_pitch = 72; // floats between heads in shared memory
constexpr int part_alone = 16; // tiles that one block takes alone

struct head_state {
    float largest, sum;
};

// In shared memory, while a block attends.
struct part_sums {
    float values[part_warps][part_heads][part_pitch];
    head_state states[part_warps][part_heads];
};

struct attend_part {
    int row, kv_head, part, parts;
    int first, position; // tokens seen: first … position, of which the last is not cached yet
    int tile, end;       // of this block
    const int32_t *table;
    int64_t ahead[2]; // rows of the cache that hold the warp's first two tiles

    // False where there is nothing to do.
    __device__ __forceinline__ bool find(const attend_args &args, int block, int parts_at_most)
    {
        const nib_cuda_attention &call = args.call;
        *this = {};
        row = block / parts_at_most / call.n_kv_heads;
        kv_head = block / parts_at_most % call.n_kv_heads;
        part = block % parts_at_most;
        if (row >= args.step.n_tokens)
            return false;
        position = args.step.positions[row];
        first = first_visible(position, call.window);
        int first_tile = first / part_tokens, tiles = position / part_tokens - first_tile + 1;
        int each = tiles <= part_alone ? tiles : max(part_warps, (tiles + parts_at_most - 1) / parts_at_most);
        parts = (tiles + each - 1) / each;
        tile = first_tile + part * each;
        end = min(tile + each, first_tile + tiles);
        table = call.keys.tables + static_cast<int64_t>(args.step.sequence_of[row]) * args.step.table_width;
        return position >= 0 && part < parts;
    }

    // Looked up long before they are needed.
    __device__ __forceinline__ void look_ahead(const attend_args &args, int warp)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (tile + warp + i * part_warps < end)
                ahead[i] = cached_row(args.step, table, (tile + warp + i * part_warps) * part_tokens);
    }

    __device__ __forceinline__ bool is_cached(int token) const
    {
        return token >= first && token < position;
    }
};

__device__ __forceinline__ uint4 load_cached(const uint16_t *address, bool cached)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    if (cached)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(address));
    return v;
}

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ uint4 pack_eight(const float (&v)[8])
{
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

__device__ __forceinline__ void load_eight(float (&v)[8], const float *from)
{
    float4 a = __ldcg(reinterpret_cast<const float4 *>(from)),
           b = __ldcg(reinterpret_cast<const float4 *>(from) + 1);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// A head's elements 8c … 8c + 7 and 32 + 8c … 39 + 8c, which turn with one another.
struct raw_head {
    float low[8], high[8];

    __device__ __forceinline__ void load(const float *head, int c)
    {
        load_eight(low, head + 8 * c);
        load_eight(high, head + 8 * c + part_dim / 2);
    }

    // As bf16.
    __device__ __forceinline__ void turn(uint4 (&pieces)[2], const float2 *turns, int c)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 pair = rotate(make_float2(low[i], high[i]), turns[8 * c + i]);
            low[i] = pair.x;
            high[i] = pair.y;
        }
        pieces[0] = pack_eight(low);
        pieces[1] = pack_eight(high);
    }
};

// The step's own row of a kv head: of the key the pieces c and c + 4, of the value piece g.
struct fresh_row {
    uint4 key[2], value;
};

// The queries of head g, and the fresh row where the warp comes to it: they arrive together.
__device__ __forceinline__ void load_fresh(const attend_args &args, const attend_part &p, bool appends,
                                           const float2 *turns, uint4 (&q)[2], fresh_row &fresh, int lane)
{
    const nib_cuda_attention &call = args.call;
    int g = lane / 4, c = lane % 4, group = call.n_heads / call.n_kv_heads;
    int64_t head = static_cast<int64_t>(p.row) * call.n_heads + p.kv_head * group + min(g, group - 1),
            kv_head = static_cast<int64_t>(p.row) * call.n_kv_heads + p.kv_head;
    raw_head queries, key;
    float value[8];
    queries.load(call.q + head * part_dim, c); // a head that is not in use is somebody's copy
    if (appends) {
        key.load(args.fresh.k + kv_head * part_dim, c);
        load_eight(value, args.fresh.v + kv_head * part_dim + g * 8);
        key.turn(fresh.key, turns, c);
        fresh.value = pack_eight(value);
    }
    queries.turn(q, turns, c);
}

// Lane (g, c) of a warp: keys of the tokens g and g + 8, pieces c and c + 4; values of the tokens 2c, 2c + 1, 2c + 8 and
// 2c + 9, piece g.
struct cached_tile {
    uint4 keys[2][2], values[4];

    __device__ __forceinline__ void load(const attend_args &args, const attend_part &p, int tile, int64_t row,
                                         int lane)
    {
        const nib_cuda_attention &call = args.call;
        int g = lane / 4, c = lane % 4, token = tile * part_tokens;
        const uint16_t *k = call.keys.data + row * call.keys.width + p.kv_head * part_dim,
                       *v = call.values.data + row * call.values.width + p.kv_head * part_dim;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int piece = 0; piece < 2; piece++)
                keys[half][piece] = load_cached(k + (g + 8 * half) * call.keys.width + (c + 4 * piece) * 8,
                                                p.is_cached(token + g + 8 * half));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = 2 * c + i % 2 + i / 2 * 8;
            values[i] = load_cached(v + at * call.values.width + g * 8, p.is_cached(token + at));
        }
    }

    // The step's own row to its place here and in the cache.
    __device__ __forceinline__ void append(const attend_args &args, const attend_part &p, const fresh_row &fresh,
                                           int lane)
    {
        const nib_cuda_attention &call = args.call;
        int g = lane / 4, c = lane % 4, token = p.position % part_tokens;
        int64_t row = cached_row(args.step, p.table, p.position);
        uint16_t *k = call.keys.data + row * call.keys.width + p.kv_head * part_dim,
                 *v = call.values.data + row * call.values.width + p.kv_head * part_dim;
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
#pragma unroll
            for (int half = 0; half < 2; half++)
                keys[half][piece] = token == g + 8 * half ? fresh.key[piece] : keys[half][piece];
            if (token % 8 == g)
                *reinterpret_cast<uint4 *>(k + (c + 4 * piece) * 8) = fresh.key[piece];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            values[i] = token == 2 * c + i % 2 + i / 2 * 8 ? fresh.value : values[i];
        if (token % 8 / 2 == c)
            *reinterpret_cast<uint4 *>(v + g * 8) = fresh.value;
        __syncwarp();
    }
};

// A warp's running sums: lane (g, c) has head g, of product j the columns 16c + j and 16c + 8 + j. `state.sum` is over
// the lane's own tokens.
struct part_state {
    head_state state;
    float values[8][4];

    __device__ __forceinline__ void clear()
    {
        state = {-INFINITY, 0};
#pragma unroll
        for (int j = 0; j < 8; j++)
            values[j][0] = values[j][1] = values[j][2] = values[j][3] = 0;
    }

    __device__ __forceinline__ void attend(const cached_tile &t, const uint4 (&q)[2], const attend_part &p,
                                           int tile, float scale, int lane)
    {
        float logits[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int piece = 0; piece < 2; piece++) {
                const uint4 &a = q[piece], &b = t.keys[half][piece];
                mma_bf16(logits[half], a.x, 0, a.y, 0, b.x, b.y, logits[half]);
                mma_bf16(logits[half], a.z, 0, a.w, 0, b.z, b.w, logits[half]);
            }
        float most = state.largest;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int token = tile * part_tokens + i / 2 * 8 + lane % 4 * 2 + i % 2;
            float &logit = logits[i / 2][i % 2];
            logit = token >= p.first && token <= p.position ? logit * scale : -INFINITY;
            most = fmaxf(most, logit);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        float shrink = exp2_fast(state.largest - most), weights[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            weights[i] = exp2_fast(logits[i / 2][i % 2] - most);
        state.largest = most;
        state.sum = state.sum * shrink + ((weights[0] + weights[1]) + (weights[2] + weights[3]));
        uint32_t low = pack_bf16(weights[0], weights[1]), high = pack_bf16(weights[2], weights[3]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t order = j % 2 ? 0x7632 : 0x5410,
                     b0 = __byte_perm(word_of(t.values[0], j / 2), word_of(t.values[1], j / 2), order),
                     b1 = __byte_perm(word_of(t.values[2], j / 2), word_of(t.values[3], j / 2), order);
            values[j][0] *= shrink;
            values[j][1] *= shrink;
            mma_bf16(values[j], low, 0, high, 0, b0, b1, values[j]);
        }
    }

    __device__ __forceinline__ void spill(part_sums &to, int warp, int lane)
    {
        float sum = state.sum;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int head = lane / 4;
        if (lane % 4 == 0)
            to.states[warp][head] = {state.largest, sum};
        float4 *at = reinterpret_cast<float4 *>(&to.values[warp][head][lane % 4 * 16]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            at[2 * i] = make_float4(values[0][i], values[1][i], values[2][i], values[3][i]);
            at[2 * i + 1] = make_float4(values[4][i], values[5][i], values[6][i], values[7][i]);
        }
    }
};

// Parts of a head's attention are added in order, each scaled to the largest logit of all.
template <int most, typename State, typename Values>
__device__ __forceinline__ head_state join_parts(int parts, float2 &values, State state_of, Values values_of)
{
    head_state states[most], all = {-INFINITY, 0};
    float2 v[most];
#pragma unroll
    for (int i = 0; i < most; i++)
        if (i < parts) {
            states[i] = state_of(i);
            v[i] = values_of(i);
        }
#pragma unroll
    for (int i = 0; i < most; i++)
        if (i < parts)
            all.largest = fmaxf(all.largest, states[i].largest);
    values = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < most; i++)
        if (i < parts) {
            float weight = exp2_fast(states[i].largest - all.largest);
            all.sum += weight * states[i].sum;
            values = make_float2(values.x + weight * v[i].x, values.y + weight * v[i].y);
        }
    return all;
}

// Thread i has the columns 2i and 2i + 1 of the block's heads, 64 to a head.
__device__ __forceinline__ void store_attended(const attend_args &args, const attend_part &p,
                                               const head_state &state, float2 values)
{
    const nib_cuda_attention &call = args.call;
    int group = call.n_heads / call.n_kv_heads, head = static_cast<int>(threadIdx.x) / 32;
    if (head >= group)
        return;
    int64_t at = (static_cast<int64_t>(p.row) * call.n_heads + p.kv_head * group + head) * part_dim;
    float factor = final_factor(call, p.kv_head * group + head, state.largest, state.sum);
    reinterpret_cast<uint32_t *>(call.y_half + at)[threadIdx.x % 32] =
        pack_bf16(values.x * factor, values.y * factor);
}

// What a part leaves for the last of its row and head to come: [block][head][column], and the states behind all.
struct part_results {
    float *values;
    float2 *states;

    __device__ __forceinline__ part_results(float *partial, int blocks)
        : values(partial), states(reinterpret_cast<float2 *>(partial + blocks * part_heads * part_dim))
    {
    }

    __device__ __forceinline__ void put(int block, const head_state &state, float2 v)
    {
        int thread = static_cast<int>(threadIdx.x);
        __stcg(reinterpret_cast<float2 *>(values + block * part_heads * part_dim) + thread, v);
        if (thread % 32 == 0)
            __stcg(states + block * part_heads + thread / 32, make_float2(state.largest, state.sum));
    }

    __device__ __forceinline__ head_state join(int first_block, int parts, float2 &v) const
    {
        int thread = static_cast<int>(threadIdx.x);
        return join_parts<part_most>(
            parts, v,
            [&](int i) {
                float2 state = __ldcg(states + (first_block + i) * part_heads + thread / 32);
                return head_state{state.x, state.y};
            },
            [&](int i) {
                return __ldcg(
                    reinterpret_cast<const float2 *>(values + (first_block + i) * part_heads * part_dim) + thread);
            });
    }
};

#endif
