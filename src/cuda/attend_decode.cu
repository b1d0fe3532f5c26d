// Attention for rows of few-row sequences. A cluster of up to eight blocks, or one where a window is short or rows are
// many, takes a row and a kv head, with up to 8 or 16 of its query heads, and divides the tokens that the row sees.
// Four warps of a block take tiles of 16 tokens in turn, each through its own ring in shared memory, and multiply keys
// times queries and values times probabilities on the tensor cores with the heads in the columns: with 8 heads to a kv
// head nothing is computed in vain. The warps' sums meet in shared memory, and the blocks' over the cluster. Loads of
// tokens from earlier steps begin before the previous kernel has ended. Where a sequence has one row, the launch can
// turn the queries and the key itself and write the new row: the warp that comes to its tile puts it there.
#include <algorithm>
#include <cooperative_groups.h>

#include "cuda/attend_shape.cuh"
#include "cuda/launch.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"

namespace cg = cooperative_groups;

namespace
{

constexpr int warps = 4, threads = 32 * warps;
constexpr int tile_tokens = 16;
constexpr int most_blocks = 8;   // of a row that may see many tokens
constexpr int few_tiles = 12;    // that one block works through
constexpr int busy_blocks = 256; // two a multiprocessor: with as many, a row's tokens are left together
constexpr int most_tiles = 512;  // of a block: a long row among short ones should not keep everybody waiting

// One head's largest logit (times log2 e) and the sum of its probabilities, relative to that.
struct head_sum {
    float largest, sum;
};

template <int key_dim, int v_dim, int groups, bool latent> struct shape {
    static constexpr int heads = 8 * groups;
    static constexpr int key_pieces = key_dim / 8, value_pieces = v_dim / 8;
    static constexpr int key_pitch = 16 * (key_pieces | 1),
                         value_pitch = latent ? key_pitch : 16 * (value_pieces | 1);
    static constexpr int key_bytes = tile_tokens * key_pitch;
    static constexpr int stage_bytes = key_bytes + (latent ? 0 : tile_tokens * value_pitch);
    static constexpr int stages = key_dim <= 64 ? 4 : key_dim <= 128 ? 3 : 2;
    static constexpr int ring_bytes = stages * stage_bytes;
    static constexpr int sum_pitch = v_dim + 4; // floats between the heads' sums of values
    static constexpr int warp_bytes = heads * sum_pitch * 4 > ring_bytes ? heads *sum_pitch * 4 : ring_bytes;
    static constexpr int shared_bytes = warps * warp_bytes;
};

// What a block works on. How the tokens are divided depends on what the row sees and on how many blocks it has.
struct unit {
    int row, kv_head, first_head, heads; // heads: how many of the columns are in use
    int first, position;                 // tokens seen: first … position
    int tile, end;                       // of this block
    int blocks;                          // that have any tiles
    int fresh;                           // tokens from here on are of this step
    int cached;                          // tokens up to this one are in the cache
    const int32_t *table;
};

// False where there is nothing to do.
__device__ __forceinline__ bool find_unit(const attend_args &args, int heads_each, unit &u)
{
    const nib_cuda_attention &call = args.call;
    int group = call.n_heads / call.n_kv_heads, chunks = (group + heads_each - 1) / heads_each;
    int skipped = static_cast<int>(blockIdx.y) % chunks * heads_each;
    u.row = blockIdx.z;
    u.kv_head = static_cast<int>(blockIdx.y) / chunks;
    u.first_head = u.kv_head * group + skipped;
    u.heads = min(heads_each, group - skipped);
    u.position = args.step.positions[u.row];
    int sequence = args.step.sequence_of[u.row];
    if (u.position < 0 || is_prompt(args, sequence))
        return false;
    u.first = first_visible(u.position, call.window);
    int first_tile = u.first / tile_tokens, tiles = u.position / tile_tokens - first_tile + 1;
    int each = max(warps, (tiles + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x));
    u.tile = first_tile + static_cast<int>(blockIdx.x) * each;
    u.end = min(u.tile + each, first_tile + tiles);
    u.blocks = (tiles + each - 1) / each;
    u.fresh = call.longest == 1 ? u.position : args.step.positions[args.step.first_row[sequence]];
    u.cached = args.fresh.k ? u.position - 1 : u.position;
    u.table = call.keys.tables + static_cast<int64_t>(sequence) * args.step.table_width;
    return true;
}

// Rows of a tile, which lies in one page, to shared memory; tokens that the row does not see, which may hold anything, as
// zeros.
template <int pieces, int pitch>
__device__ __forceinline__ void copy_rows(const nib_cuda_cache &cache, int64_t row, int offset, int skip, int end,
                                          uint32_t target, int lane)
{
    const uint16_t *base = cache.data + row * cache.width + offset;
#pragma unroll
    for (int i = 0; i < pieces * tile_tokens / 32; i++) {
        int index = i * 32 + lane, token = index / pieces, piece = index % pieces;
        copy_16_or_zeros(target + token * pitch + piece * 16,
                         base + token * static_cast<int>(cache.width) + piece * 8, token >= skip && token < end);
    }
}

__device__ __forceinline__ int32_t page_of_tile(const attend_args &args, const unit &u, int tile)
{
    return u.table[tile * tile_tokens >> args.step.page_shift];
}

// `page` is page_of_tile.
template <typename S>
__device__ __forceinline__ void copy_tile(const attend_args &args, const unit &u, int tile, int32_t page,
                                          uint32_t target, int lane)
{
    const nib_cuda_attention &call = args.call;
    int first = tile * tile_tokens, skip = u.first - first, end = u.cached - first + 1;
    int64_t row = row_in_page(args.step, page, first);
    copy_rows<S::key_pieces, S::key_pitch>(call.keys, row, u.kv_head * call.head_dim, skip, end, target, lane);
    if constexpr (S::stage_bytes > S::key_bytes)
        copy_rows<S::value_pieces, S::value_pitch>(call.values, row, u.kv_head * call.v_dim, skip, end,
                                                   target + S::key_bytes, lane);
}

// Queries as the products' second operand: of heads lane / 4 + 8 j, in bf16.
template <typename S, int key_dim, bool turning>
__device__ __forceinline__ void load_queries(const attend_args &args, const unit &u, const float2 *turns,
                                             uint32_t (&q)[S::heads / 8][key_dim / 16][2], int lane)
{
    const nib_cuda_attention &call = args.call;
#pragma unroll
    for (int j = 0; j < S::heads / 8; j++) {
        int head = min(lane / 4 + 8 * j, u.heads - 1); // a head that is not in use is somebody's copy
        int64_t at = static_cast<int64_t>(u.row) * call.n_heads + u.first_head + head;
        const float *from = call.q + at * call.head_dim + lane % 4 * 2;
        float2 pairs[key_dim / 8];
#pragma unroll
        for (int k = 0; k < key_dim / 8; k++)
            pairs[k] = *reinterpret_cast<const float2 *>(from + k * 8);
        if constexpr (turning) {
#pragma unroll
            for (int k = 0; k < key_dim / 16; k++) {
                float2 &a = pairs[k], &b = pairs[k + key_dim / 16];
                float4 turn = *reinterpret_cast<const float4 *>(turns + k * 8 + lane % 4 * 2);
                float2 even = rotate(make_float2(a.x, b.x), make_float2(turn.x, turn.y));
                float2 odd = rotate(make_float2(a.y, b.y), make_float2(turn.z, turn.w));
                a = make_float2(even.x, odd.x);
                b = make_float2(even.y, odd.y);
            }
        }
#pragma unroll
        for (int k = 0; k < key_dim / 8; k++)
            q[j][k / 2][k % 2] = pack_bf16(pairs[k].x, pairs[k].y);
    }
}

// The step's own row of a kv head: lane i has the pairs i, i + 32, … of the key, and the same elements of the value.
template <int dim> struct fresh_row {
    static constexpr int pairs = dim / 2 / 32;
    float2 key[pairs], value[pairs];

    __device__ __forceinline__ void load(const attend_args &args, const unit &u, int lane)
    {
        int64_t at = (static_cast<int64_t>(u.row) * args.call.n_kv_heads + u.kv_head) * dim + lane;
#pragma unroll
        for (int i = 0; i < pairs; i++) {
            key[i] = make_float2(args.fresh.k[at + i * 32], args.fresh.k[at + i * 32 + dim / 2]);
            value[i] = make_float2(args.fresh.v[at + i * 32], args.fresh.v[at + i * 32 + dim / 2]);
        }
    }

    // To its place in the tile, and, by one block, to the cache.
    template <typename S>
    __device__ __forceinline__ void put(const attend_args &args, const unit &u, const float2 *turns,
                                        uint8_t *stage, bool append, int lane) const
    {
        int token = u.position % tile_tokens;
        int64_t row = cached_row(args.step, u.table, u.position);
        uint16_t *tile[2] = {reinterpret_cast<uint16_t *>(stage + token * S::key_pitch),
                             reinterpret_cast<uint16_t *>(stage + S::key_bytes + token * S::value_pitch)};
        uint16_t *cache[2] = {args.call.keys.data + row * args.call.keys.width + u.kv_head * dim,
                              args.call.values.data + row * args.call.values.width + u.kv_head * dim};
#pragma unroll
        for (int i = 0; i < pairs; i++) {
            int at = lane + i * 32;
            float2 both[2] = {rotate(key[i], turns[at]), value[i]};
#pragma unroll
            for (int which = 0; which < 2; which++) {
                tile[which][at] = to_bf16(both[which].x);
                tile[which][at + dim / 2] = to_bf16(both[which].y);
                if (append) {
                    cache[which][at] = to_bf16(both[which].x);
                    cache[which][at + dim / 2] = to_bf16(both[which].y);
                }
            }
        }
    }
};

// A warp's running sums over its tiles: lane (g, c) has the heads 2c and 2c + 1 of each group of 8, of the values'
// columns g and g + 8 of each 16; `sum` is over the tokens g and g + 8 alone.
template <int v_dim, int groups> struct accumulator {
    float largest[groups][2], sum[groups][2];
    float values[v_dim / 16][groups][4];
};

// One tile's logits become probabilities, as the second operand of values x probabilities.
template <int v_dim, int groups>
__device__ __forceinline__ void weigh(accumulator<v_dim, groups> &acc, float (&logits)[groups][4],
                                      uint32_t (&weights)[groups][2])
{
#pragma unroll
    for (int j = 0; j < groups; j++) {
        float scale[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float most = fmaxf(logits[j][i], logits[j][i + 2]);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 4));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 8));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 16));
            most = fmaxf(most, acc.largest[j][i]);
            scale[i] = exp2_fast(acc.largest[j][i] - most);
            acc.largest[j][i] = most;
            logits[j][i] = exp2_fast(logits[j][i] - most);
            logits[j][i + 2] = exp2_fast(logits[j][i + 2] - most);
            acc.sum[j][i] = acc.sum[j][i] * scale[i] + (logits[j][i] + logits[j][i + 2]);
        }
        weights[j][0] = transpose_matrix(pack_bf16(logits[j][0], logits[j][1]));
        weights[j][1] = transpose_matrix(pack_bf16(logits[j][2], logits[j][3]));
#pragma unroll
        for (int m = 0; m < v_dim / 16; m++) {
            acc.values[m][j][0] *= scale[0];
            acc.values[m][j][1] *= scale[1];
            acc.values[m][j][2] *= scale[0];
            acc.values[m][j][3] *= scale[1];
        }
    }
}

template <typename S, int key_dim, int v_dim, int groups>
__device__ __forceinline__ void attend_tile(const attend_args &args, const unit &u, int tile, uint32_t stage,
                                            const uint32_t (&q)[groups][key_dim / 16][2],
                                            accumulator<v_dim, groups> &acc, int lane)
{
    float logits[groups][4] = {};
    uint32_t keys = stage + (lane % 16) * S::key_pitch + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < key_dim / 16; k++) {
        uint32_t a[4];
        load_matrices(a, keys + k * 32);
#pragma unroll
        for (int j = 0; j < groups; j++)
            mma_bf16(logits[j], a[0], a[1], a[2], a[3], q[j][k][0], q[j][k][1], logits[j]);
    }
    int token = tile * tile_tokens + lane / 4;
    bool low = token >= u.first && token <= u.position, high = token + 8 >= u.first && token + 8 <= u.position;
    float scale = args.call.scale * log2_e;
#pragma unroll
    for (int j = 0; j < groups; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            logits[j][i] = (i < 2 ? low : high) ? logits[j][i] * scale : -INFINITY;
    uint32_t weights[groups][2];
    weigh<v_dim, groups>(acc, logits, weights);
    uint32_t values = stage + (S::stage_bytes > S::key_bytes ? S::key_bytes : 0) +
                      (lane % 8 + lane / 16 * 8) * S::value_pitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < v_dim / 16; m++) {
        uint32_t a[4];
        load_matrices_transposed(a, values + m * 32);
#pragma unroll
        for (int j = 0; j < groups; j++)
            mma_bf16(acc.values[m][j], a[0], a[1], a[2], a[3], weights[j][0], weights[j][1], acc.values[m][j]);
    }
}

// A warp's sums to shared memory: values at [head][v], and largest and sum beside them.
template <typename S, int v_dim, int groups>
__device__ __forceinline__ void spill(const accumulator<v_dim, groups> &acc, float *values, head_sum *sums,
                                      int lane)
{
#pragma unroll
    for (int j = 0; j < groups; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int head = j * 8 + lane % 4 * 2 + i;
            float sum = acc.sum[j][i];
            sum += __shfl_xor_sync(~0u, sum, 4);
            sum += __shfl_xor_sync(~0u, sum, 8);
            sum += __shfl_xor_sync(~0u, sum, 16);
            if (lane < 4)
                sums[head] = {acc.largest[j][i], sum};
            float *to = values + head * S::sum_pitch + lane / 4;
#pragma unroll
            for (int m = 0; m < v_dim / 16; m++) {
                to[m * 16] = acc.values[m][j][i];
                to[m * 16 + 8] = acc.values[m][j][i + 2];
            }
        }
}

// Parts of a head's attention are added in order, each scaled to the largest logit of all.
template <int most, typename Sum, typename Values>
__device__ __forceinline__ head_sum add_parts(int parts, float4 &values, Sum sum_at, Values values_at)
{
    head_sum sums[most], all = {-INFINITY, 0};
    float4 v[most];
#pragma unroll
    for (int i = 0; i < most; i++)
        if (i < parts) {
            sums[i] = sum_at(i);
            v[i] = values_at(i);
        }
#pragma unroll
    for (int i = 0; i < most; i++)
        if (i < parts)
            all.largest = fmaxf(all.largest, sums[i].largest);
    values = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < most; i++)
        if (i < parts) {
            float weight = sums[i].largest == -INFINITY ? 0 : exp2_fast(sums[i].largest - all.largest);
            all.sum += weight * sums[i].sum;
            values = make_float4(values.x + weight * v[i].x, values.y + weight * v[i].y,
                                 values.z + weight * v[i].z, values.w + weight * v[i].w);
        }
    return all;
}

template <int v_dim>
__device__ __forceinline__ void store_result(const nib_cuda_attention &call, const unit &u, int head, int column,
                                             const head_sum &sum, float4 y)
{
    float factor = final_factor(call, u.first_head + head, sum.largest, sum.sum);
    y = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
    int64_t at = (static_cast<int64_t>(u.row) * call.n_heads + u.first_head + head) * v_dim + column;
    if (call.y)
        *reinterpret_cast<float4 *>(call.y + at) = y;
    if (call.y_half)
        *reinterpret_cast<uint2 *>(call.y_half + at) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
}

// The warps' sums become the block's, at [head][v] and beside them; where it is the only one, the result.
template <typename S, int v_dim>
__device__ __forceinline__ void add_warps(const attend_args &args, const unit &u, const uint8_t *memory,
                                          const head_sum (*sums)[S::heads], float (*block_values)[S::sum_pitch],
                                          head_sum *block_sums)
{
    for (int item = threadIdx.x; item < u.heads * (v_dim / 4); item += threads) {
        int head = item / (v_dim / 4), column = item % (v_dim / 4) * 4;
        float4 values;
        head_sum sum = add_parts<warps>(
            warps, values, [&](int i) { return sums[i][head]; },
            [&](int i) {
                const float *from = reinterpret_cast<const float *>(memory + i * S::warp_bytes);
                return *reinterpret_cast<const float4 *>(from + head * S::sum_pitch + column);
            });
        if (u.blocks == 1) {
            store_result<v_dim>(args.call, u, head, column, sum, values);
            continue;
        }
        *reinterpret_cast<float4 *>(&block_values[head][column]) = values;
        if (column == 0)
            block_sums[head] = sum;
    }
}

// The blocks' sums become the result: each block works out its share of the columns.
template <typename S, int v_dim>
__device__ __forceinline__ void add_blocks(const attend_args &args, const unit &u,
                                           float (*block_values)[S::sum_pitch], head_sum *block_sums)
{
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    int blocks = static_cast<int>(gridDim.x), items = u.heads * (v_dim / 4), each = (items + blocks - 1) / blocks,
        begin = static_cast<int>(blockIdx.x) * each;
    for (int item = begin + static_cast<int>(threadIdx.x); item < min(items, begin + each); item += threads) {
        int head = item / (v_dim / 4), column = item % (v_dim / 4) * 4;
        float4 values;
        head_sum sum = add_parts<most_blocks>(
            u.blocks, values, [&](int i) { return cluster.map_shared_rank(block_sums, i)[head]; },
            [&](int i) {
                return *reinterpret_cast<const float4 *>(&cluster.map_shared_rank(block_values, i)[head][column]);
            });
        store_result<v_dim>(args.call, u, head, column, sum, values);
    }
    cluster.sync(); // no block ends while another reads its sums
}

// Grid: blocks of a row and kv head, which are a cluster; kv heads, times the chunks of their query heads; rows.
template <int key_dim, int v_dim, int groups, bool latent, bool turning>
__global__ void __launch_bounds__(threads) attend_decode(const __grid_constant__ attend_args args)
{
    using S = shape<key_dim, v_dim, groups, latent>;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ head_sum sums[warps][S::heads], block_sums[S::heads];
    __shared__ __align__(16) float block_values[S::heads][S::sum_pitch];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t *own = memory + warp * S::warp_bytes;
    uint32_t ring = shared_address(own);
    unit u;
    bool any = find_unit(args, S::heads, u);
    int tile = any ? u.tile + warp : 0, end = any ? u.end : 0, started = 0;
    __shared__ __align__(16) float2 turns[turning ? key_dim / 2 : 1];
    for (; started < S::stages; started++) { // what earlier steps have cached can be had at once
        int next = tile + started * warps;
        if (next < end && (next + 1) * tile_tokens > u.fresh)
            break;
        if (next < end)
            copy_tile<S>(args, u, next, page_of_tile(args, u, next), ring + started * S::stage_bytes, lane);
        commit_copies();
    }
    if constexpr (turning) {
        if (any && threadIdx.x < key_dim / 2)
            turns[threadIdx.x] = turn_of(args.fresh.q_turn, threadIdx.x, u.position);
        __syncthreads();
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    if (!any || (u.blocks == 1 && blockIdx.x > 0))
        return;
    for (; started < S::stages; started++) {
        int next = tile + started * warps;
        if (next < end)
            copy_tile<S>(args, u, next, page_of_tile(args, u, next), ring + started * S::stage_bytes, lane);
        commit_copies();
    }
    accumulator<v_dim, groups> acc = {};
#pragma unroll
    for (int j = 0; j < groups; j++)
        acc.largest[j][0] = acc.largest[j][1] = -INFINITY;
    if (tile < end) {
        uint32_t q[groups][key_dim / 16][2];
        load_queries<S, key_dim, turning>(args, u, turns, q, lane);
        int last = u.position / tile_tokens; // where the step's own row goes
        fresh_row<turning ? key_dim : 64> row;
        if (turning && last < end && (last - tile) % warps == 0)
            row.load(args, u, lane);
        int next = tile + S::stages * warps;
        int32_t next_page = next < end ? page_of_tile(args, u, next) : 0; // looked up before it is needed
#pragma unroll 1
        for (int stage = 0; tile < end; tile += warps) {
            wait_copies<S::stages - 1>();
            __syncwarp();
            if (turning && tile == last) {
                row.template put<S>(args, u, turns, own + stage * S::stage_bytes,
                                    u.first_head % (args.call.n_heads / args.call.n_kv_heads) == 0, lane);
                __syncwarp();
            }
            attend_tile<S, key_dim, v_dim, groups>(args, u, tile, ring + stage * S::stage_bytes, q, acc, lane);
            __syncwarp();
            if (next < end)
                copy_tile<S>(args, u, next, next_page, ring + stage * S::stage_bytes, lane);
            commit_copies();
            next += warps;
            if (next < end)
                next_page = page_of_tile(args, u, next);
            stage = stage + 1 == S::stages ? 0 : stage + 1;
        }
    }
    wait_copies<0>();
    __syncwarp(); // the ring turns into room for the sums
    spill<S>(acc, reinterpret_cast<float *>(own), sums[warp], lane);
    __syncthreads();
    add_warps<S, v_dim>(args, u, memory, sums, block_values, block_sums);
    if (u.blocks > 1)
        add_blocks<S, v_dim>(args, u, block_values, block_sums);
}

// The start of a block and the adding up of a cluster take as long as tens of tiles, so that with many rows a row has
// few blocks; with `by_row` always as many as alone, so that its bits do not depend on the others. Rows of prompts,
// which end at once, do not count.
unsigned blocks_of_row(const attend_args &args, int columns)
{
    const nib_cuda_attention &call = args.call;
    if (call.window && call.window <= (few_tiles - 1) * tile_tokens)
        return 1;
    int reach = args.step.reach, rows = args.all_rows ? args.step.n_tokens : args.step.n_sequences;
    int tiles = (call.window ? std::min(call.window, reach) : reach) / tile_tokens;
    unsigned blocks = call.by_row ? most_blocks : 1;
    while (blocks < most_blocks && (rows * columns * static_cast<int>(blocks) < busy_blocks ||
                                    tiles > most_tiles * static_cast<int>(blocks)))
        blocks *= 2;
    return blocks;
}

template <int key_dim, int v_dim, int groups, bool latent = false, bool may_turn = false>
cudaError_t launch(cudaStream_t stream, const attend_args &args)
{
    using S = shape<key_dim, v_dim, groups, latent>;
    auto kernel = attend_decode<key_dim, v_dim, groups, latent, false>;
    if constexpr (may_turn)
        if (args.fresh.k)
            kernel = attend_decode<key_dim, v_dim, groups, latent, true>;
    int group = args.call.n_heads / args.call.n_kv_heads;
    int columns = args.call.n_kv_heads * ((group + S::heads - 1) / S::heads);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    if (error != cudaSuccess)
        return error;
    unsigned blocks = blocks_of_row(args, columns);
    dim3 grid(blocks, static_cast<unsigned>(columns), static_cast<unsigned>(args.step.n_tokens));
    return nib_launch_clusters(kernel, grid, blocks, threads, static_cast<size_t>(S::shared_bytes), stream, args);
}

} // namespace

cudaError_t nib_attend_decode(cudaStream_t stream, const attend_args &args)
{
    const nib_cuda_attention &call = args.call;
    bool many = call.n_heads / call.n_kv_heads > 8;
    switch (call.head_dim * 1000 + call.v_dim) {
    case 16016:
        return launch<16, 16, 1>(stream, args);
    case 32032:
        return launch<32, 32, 1>(stream, args);
    case 48032:
        return launch<48, 32, 1>(stream, args);
    case 48048:
        return launch<48, 48, 1>(stream, args);
    case 64064:
        return many ? launch<64, 64, 2, false, true>(stream, args) : launch<64, 64, 1, false, true>(stream, args);
    case 96096:
        return launch<96, 96, 1>(stream, args);
    case 128128:
        return many ? launch<128, 128, 2, false, true>(stream, args)
                    : launch<128, 128, 1, false, true>(stream, args);
    case 192128:
        return many ? launch<192, 128, 2>(stream, args) : launch<192, 128, 1>(stream, args);
    case 576512:
        return launch<576, 512, 1, true>(stream, args);
    default:
        return cudaErrorNotSupported;
    }
}
