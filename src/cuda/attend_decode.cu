// Attention for rows of few-row sequences: the tokens that a row sees are cut into splits, and a block takes the splits of
// a row and kv head, with up to 8 or 16 of its query heads, one after another. Four warps take tiles of 16 tokens in turn,
// each through its own ring in shared memory, and multiply keys x queries and values x probabilities on the tensor cores,
// heads in the columns: with 8 heads of a kv head nothing is computed in vain. Loads of tokens from earlier steps begin
// before the previous kernel has ended.
#include "cuda/attend_shape.cuh"
#include "cuda/launch.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr int warps = 4, threads = 32 * warps;
constexpr int tile_tokens = 16;
constexpr int max_splits = 64, max_rows = 64; // of one launch

// Splits depend on what the row sees and on nothing else.
struct row_splits {
    int first, position; // tokens seen: first … position
    int first_tile, tiles, tiles_each, count;
};

__device__ __forceinline__ row_splits split_row(int position, int window)
{
    row_splits s;
    s.position = position;
    s.first = first_visible(position, window);
    s.first_tile = s.first / tile_tokens;
    s.tiles = position / tile_tokens - s.first_tile + 1;
    s.tiles_each = s.tiles <= 12     ? 12
                   : s.tiles <= 256  ? 8
                   : s.tiles <= 1024 ? 16
                   : s.tiles <= 4096 ? 64
                                     : (s.tiles + max_splits - 1) / max_splits;
    s.count = (s.tiles + s.tiles_each - 1) / s.tiles_each;
    return s;
}

// One head's largest logit (times log2 e) and the sum of its probabilities, relative to that.
struct head_sum {
    float largest, sum;
};

struct scratch_layout {
    unsigned *arrived; /* [max_rows, columns] splits finished; zero between calls */
    head_sum *sums;    /* [splits, columns, heads] */
    float *values;     /* [splits, columns, heads, v_dim] */
};

template <int key_dim, int v_dim, int groups, bool latent> struct shape {
    static constexpr int heads = 8 * groups;
    static constexpr int key_pieces = key_dim / 8, value_pieces = v_dim / 8;
    static constexpr int key_pitch = 16 * (key_pieces | 1),
                         value_pitch = latent ? key_pitch : 16 * (value_pieces | 1);
    static constexpr int key_bytes = tile_tokens * key_pitch;
    static constexpr int stage_bytes = key_bytes + (latent ? 0 : tile_tokens * value_pitch);
    static constexpr int stages = 2;
    static constexpr int ring_bytes = stages * stage_bytes;
    static constexpr int residents = key_dim <= 64 && groups == 1 ? 5 : 1; // blocks of an SM at least
    static constexpr int merged_pitch = v_dim + 4;                         // floats between heads in shared memory
    static constexpr int merged_bytes = warps * heads * merged_pitch * 4;
    static constexpr int shared_bytes = warps * ring_bytes > merged_bytes ? warps *ring_bytes : merged_bytes;
    static_assert(max_splits * heads * sizeof(head_sum) <= shared_bytes, "the splits' sums go there, too");
};

// What a block works on.
struct unit {
    row_splits splits;
    int row, split, column, kv_head, first_head, heads; // heads: how many of the columns are in use
    const int32_t *table;
    int fresh; // tokens from here on are of this step
};

template <typename S> struct tile_copier {
    const attend_args &args;
    const unit &u;
    uint32_t ring;
    int lane;

    template <int pieces, int pitch>
    __device__ __forceinline__ void copy(const nib_cuda_cache &cache, int offset, int tile, uint32_t target) const
    {
        const uint16_t *base = cache.data + offset;
#pragma unroll
        for (int i = 0; i < pieces * tile_tokens / 32; i++) {
            int index = i * 32 + lane, token = index / pieces, piece = index % pieces;
            // the tile may run beyond the last token: its page may not exist
            int64_t row = cached_row(args.step, u.table,
                                     max(min(tile * tile_tokens + token, u.splits.position), u.splits.first));
            copy_16(target + token * pitch + piece * 16, base + row * cache.width + piece * 8);
        }
    }

    __device__ __forceinline__ void start(int tile, int stage) const
    {
        const nib_cuda_attention &call = args.call;
        uint32_t target = ring + stage * S::stage_bytes;
        copy<S::key_pieces, S::key_pitch>(call.keys, u.kv_head * call.head_dim, tile, target);
        if constexpr (S::stage_bytes > S::key_bytes)
            copy<S::value_pieces, S::value_pitch>(call.values, u.kv_head * call.v_dim, tile,
                                                  target + S::key_bytes);
    }
};

// The block's unit of that number. before[row]: splits of the rows before it.
__device__ __forceinline__ unit find_unit(const attend_args &args, const int *before, int index, int columns,
                                          int heads_each)
{
    const nib_cuda_attention &call = args.call;
    int split = index / columns, low = 0, high = args.rows;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (before[middle] <= split)
            low = middle;
        else
            high = middle;
    }
    unit u;
    int group = call.n_heads / call.n_kv_heads, chunks = (group + heads_each - 1) / heads_each;
    u.row = low;
    u.split = split - before[low];
    u.column = index - split * columns;
    u.kv_head = u.column / chunks;
    int skipped = u.column % chunks * heads_each;
    u.first_head = u.kv_head * group + skipped;
    u.heads = min(heads_each, group - skipped);
    int row = args.first_row + low, sequence = args.step.sequence_of[row];
    u.splits = split_row(args.step.positions[row], call.window);
    u.table = call.keys.tables + static_cast<int64_t>(sequence) * args.step.table_width;
    u.fresh = args.call.longest == 1 ? u.splits.position : args.step.positions[args.step.first_row[sequence]];
    return u;
}

// before[i] = splits of rows 0 … i - 1; rows that are padding or belong to prompts have none.
__device__ __forceinline__ void count_splits(const attend_args &args, int *before)
{
    static_assert(max_rows <= threads && max_rows % 32 == 0, "a row a thread");
    __shared__ int of_warp[max_rows / 32];
    int row = threadIdx.x, count = 0;
    if (row < max_rows) {
        if (row < args.rows) {
            int position = args.step.positions[args.first_row + row];
            if (position >= 0 && !is_prompt(args, args.step.sequence_of[args.first_row + row]))
                count = split_row(position, args.call.window).count;
        }
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(~0u, count, step);
            count += threadIdx.x % 32 >= step ? left : 0;
        }
        if (row % 32 == 31)
            of_warp[row / 32] = count;
    }
    __syncthreads();
    if (row < max_rows) {
        for (int i = 0; i < row / 32; i++)
            count += of_warp[i];
        before[row + 1] = count;
    }
    if (row == 0)
        before[0] = 0;
    __syncthreads();
}

// Queries as the products' second operand: of heads lane / 4 + 8 j, in bf16.
template <typename S, int key_dim>
__device__ __forceinline__ void load_queries(const attend_args &args, const unit &u,
                                             uint32_t (&q)[S::heads / 8][key_dim / 16][2], int lane)
{
    const nib_cuda_attention &call = args.call;
    int64_t row = args.first_row + u.row;
#pragma unroll
    for (int j = 0; j < S::heads / 8; j++) {
        int head = lane / 4 + 8 * j;
        const float *from = call.q + (row * call.n_heads + u.first_head + head) * call.head_dim + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < key_dim / 8; k++) {
            float2 pair = make_float2(0, 0);
            if (head < u.heads)
                pair = *reinterpret_cast<const float2 *>(from + k * 8);
            q[j][k / 2][k % 2] = pack_bf16(pair.x, pair.y);
        }
    }
}

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
    bool low = token >= u.splits.first && token <= u.splits.position,
         high = token + 8 >= u.splits.first && token + 8 <= u.splits.position;
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

// The warps' sums to shared memory: values at [warp][head][v], and largest and sum beside them.
template <typename S, int v_dim, int groups>
__device__ __forceinline__ void spill(accumulator<v_dim, groups> &acc, float *merged, head_sum (*sums)[S::heads],
                                      int warp, int lane)
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
                sums[warp][head] = {acc.largest[j][i], sum};
            float *to = merged + (warp * S::heads + head) * S::merged_pitch + lane / 4;
#pragma unroll
            for (int m = 0; m < v_dim / 16; m++) {
                to[m * 16] = acc.values[m][j][i];
                to[m * 16 + 8] = acc.values[m][j][i + 2];
            }
        }
}

// Parts with these sums, one after another, have together the first's `largest` and `sum`; a part counts times
// weight(its largest).
struct merger {
    float largest = -INFINITY, sum = 0;

    __device__ __forceinline__ float weight(float of) const
    {
        return of == -INFINITY ? 0 : exp2_fast(of - largest);
    }
};

template <typename Load> __device__ __forceinline__ merger merge_sums(int parts, Load load)
{
    merger m;
    for (int i = 0; i < parts; i++)
        m.largest = fmaxf(m.largest, load(i).largest);
    for (int i = 0; i < parts; i++)
        m.sum += load(i).sum * m.weight(load(i).largest);
    return m;
}

__device__ __forceinline__ void store_result(const attend_args &args, const unit &u, int head, int column,
                                             const merger &m, const float4 &values)
{
    const nib_cuda_attention &call = args.call;
    float sum = m.sum, factor = 1;
    if (call.sinks) { // one more logit, which may be the largest
        float sink = call.sinks[u.first_head + head] * log2_e, largest = fmaxf(sink, m.largest);
        factor = exp2_fast(m.largest - largest);
        sum = sum * factor + exp2_fast(sink - largest);
    }
    factor *= call.value_scale / sum;
    float4 y = make_float4(values.x * factor, values.y * factor, values.z * factor, values.w * factor);
    int64_t at =
        (static_cast<int64_t>(args.first_row + u.row) * call.n_heads + u.first_head + head) * call.v_dim + column;
    if (call.y)
        *reinterpret_cast<float4 *>(call.y + at) = y;
    if (call.y_half)
        *reinterpret_cast<uint2 *>(call.y_half + at) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
}

__device__ __forceinline__ void add_scaled(float4 &sum, float weight, const float4 &v)
{
    sum.x += weight * v.x;
    sum.y += weight * v.y;
    sum.z += weight * v.z;
    sum.w += weight * v.w;
}

// All splits of the row and column, in order.
template <typename S, int v_dim>
__device__ __forceinline__ void combine_splits(const attend_args &args, const unit &u,
                                               const scratch_layout &scratch, int64_t first, int columns,
                                               head_sum *shared_sums)
{
    int parts = u.splits.count;
    for (int i = threadIdx.x; i < parts * S::heads; i += threads) {
        const head_sum *from =
            scratch.sums + (first + static_cast<int64_t>(i / S::heads) * columns) * S::heads + i % S::heads;
        float2 pair = __ldcg(reinterpret_cast<const float2 *>(from));
        shared_sums[i] = {pair.x, pair.y};
    }
    __syncthreads();
    for (int item = threadIdx.x; item < u.heads * (v_dim / 4); item += threads) {
        int head = item / (v_dim / 4), column = item % (v_dim / 4) * 4;
        merger m = merge_sums(parts, [&](int i) { return shared_sums[i * S::heads + head]; });
        const float *from = scratch.values + (first * S::heads + head) * v_dim + column;
        int64_t step = static_cast<int64_t>(columns) * S::heads * v_dim;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int i = 0; i < parts; i++)
            add_scaled(sum, m.weight(shared_sums[i * S::heads + head].largest),
                       __ldcg(reinterpret_cast<const float4 *>(from + i * step)));
        store_result(args, u, head, column, m, sum);
    }
    __syncthreads();
}

// The warps' sums become the row's result, or its split's, which the last block to come adds up.
template <typename S, int v_dim>
__device__ __forceinline__ void finish_unit(const attend_args &args, const unit &u, const scratch_layout &scratch,
                                            const int *before, int columns, float *merged,
                                            const head_sum (*sums)[S::heads], bool *last)
{
    int64_t first = static_cast<int64_t>(before[u.row]) * columns + u.column,
            slot = first + static_cast<int64_t>(u.split) * columns;
    bool single = u.splits.count == 1;
    for (int item = threadIdx.x; item < u.heads * (v_dim / 4); item += threads) {
        int head = item / (v_dim / 4), column = item % (v_dim / 4) * 4;
        merger m = merge_sums(warps, [&](int i) { return sums[i][head]; });
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < warps; i++)
            add_scaled(
                sum, m.weight(sums[i][head].largest),
                *reinterpret_cast<const float4 *>(merged + (i * S::heads + head) * S::merged_pitch + column));
        if (single) {
            store_result(args, u, head, column, m, sum);
            continue;
        }
        *reinterpret_cast<float4 *>(scratch.values + (slot * S::heads + head) * v_dim + column) = sum;
        if (column == 0)
            scratch.sums[slot * S::heads + head] = {m.largest, m.sum};
    }
    if (single) {
        __syncthreads();
        return;
    }
    __threadfence();
    __syncthreads();
    unsigned *arrived = scratch.arrived + u.row * columns + u.column;
    if (threadIdx.x == 0) {
        *last = add_acquire_release(arrived, 1) + 1 == static_cast<unsigned>(u.splits.count);
        if (*last)
            *arrived = 0;
    }
    __syncthreads();
    if (*last) {
        __threadfence();
        combine_splits<S, v_dim>(args, u, scratch, first, columns, reinterpret_cast<head_sum *>(merged));
    }
}

template <int key_dim, int v_dim, int groups, bool latent>
__global__ void __launch_bounds__(threads, (shape<key_dim, v_dim, groups, latent>::residents))
    attend_decode(const __grid_constant__ attend_args args, const scratch_layout scratch)
{
    using S = shape<key_dim, v_dim, groups, latent>;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ int before[max_rows + 1];
    __shared__ head_sum sums[warps][S::heads];
    __shared__ bool last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int group = args.call.n_heads / args.call.n_kv_heads;
    int columns = args.call.n_kv_heads * ((group + S::heads - 1) / S::heads);
    uint32_t ring = shared_address(memory) + warp * S::ring_bytes;

    count_splits(args, before);
    int units = before[args.rows] * columns;
    bool waited = false;
    for (int index = blockIdx.x; index < units; index += gridDim.x) {
        unit u = find_unit(args, before, index, columns, S::heads);
        tile_copier<S> copier = {args, u, ring, lane};
        int tile = u.splits.first_tile + u.split * u.splits.tiles_each,
            end = min(tile + u.splits.tiles_each, u.splits.first_tile + u.splits.tiles);
        tile += warp;
        int started = 0;
        if (!waited) { // what earlier steps have cached can be had at once
            for (; started < S::stages; started++) {
                int next = tile + started * warps;
                if (next < end && (next + 1) * tile_tokens > u.fresh)
                    break;
                if (next < end)
                    copier.start(next, started);
                commit_copies();
            }
            wait_for_previous_kernel();
            allow_next_kernel();
            waited = true;
        }
        for (; started < S::stages; started++) {
            if (tile + started * warps < end)
                copier.start(tile + started * warps, started);
            commit_copies();
        }
        uint32_t q[groups][key_dim / 16][2];
        load_queries<S, key_dim>(args, u, q, lane);
        accumulator<v_dim, groups> acc = {};
#pragma unroll
        for (int j = 0; j < groups; j++)
            acc.largest[j][0] = acc.largest[j][1] = -INFINITY;
#pragma unroll 1
        for (int stage = 0; tile < end; tile += warps, stage ^= 1) {
            wait_copies<S::stages - 1>();
            __syncwarp();
            attend_tile<S, key_dim, v_dim, groups>(args, u, tile, ring + stage * S::stage_bytes, q, acc, lane);
            __syncwarp();
            if (tile + S::stages * warps < end)
                copier.start(tile + S::stages * warps, stage);
            commit_copies();
        }
        wait_copies<0>();
        __syncthreads(); // the rings turn into room for the sums
        float *merged = reinterpret_cast<float *>(memory);
        spill<S, v_dim, groups>(acc, merged, sums, warp, lane);
        __syncthreads();
        finish_unit<S, v_dim>(args, u, scratch, before, columns, merged, sums, &last);
        __syncthreads();
    }
    if (!waited) {
        wait_for_previous_kernel();
        allow_next_kernel();
    }
}

int sm_count()
{
    int device = 0, sms = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    return sms;
}

scratch_layout scratch_of(void *scratch, int64_t columns, int heads)
{
    scratch_layout layout;
    layout.arrived = static_cast<unsigned *>(scratch);
    layout.sums = reinterpret_cast<head_sum *>(layout.arrived + (max_rows * columns + 31) / 32 * 32);
    layout.values = reinterpret_cast<float *>(layout.sums + max_rows * max_splits * columns * heads);
    return layout;
}

template <int key_dim, int v_dim, int groups, bool latent = false>
cudaError_t launch(cudaStream_t stream, attend_args args)
{
    using S = shape<key_dim, v_dim, groups, latent>;
    auto kernel = attend_decode<key_dim, v_dim, groups, latent>;
    int group = args.call.n_heads / args.call.n_kv_heads, total = args.rows;
    int columns = args.call.n_kv_heads * ((group + S::heads - 1) / S::heads), resident = 0;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, S::shared_bytes);
    scratch_layout scratch = scratch_of(args.call.scratch, columns, S::heads);
    for (int done = 0; error == cudaSuccess && done < total; done += max_rows) {
        args.first_row = done;
        args.rows = total - done < max_rows ? total - done : max_rows;
        int64_t most = static_cast<int64_t>(args.rows) * columns * max_splits,
                fit = static_cast<int64_t>(sm_count()) * resident;
        error = nib_launch(kernel, dim3(static_cast<unsigned>(most < fit ? most : fit)), threads,
                           static_cast<size_t>(S::shared_bytes), stream, args, scratch);
    }
    return error;
}

} // namespace

size_t nib_cuda_attend_scratch(int32_t n_heads, int32_t n_kv_heads, int32_t v_dim)
{
    int64_t group = n_heads / n_kv_heads, columns = n_kv_heads * ((group + 7) / 8);
    int64_t heads = n_kv_heads * ((group + 15) / 16) * 16; // rounded up to what a block takes, at most
    return static_cast<size_t>((max_rows * columns + 31) / 32 * 32 * 4 +
                               max_rows * max_splits * heads *
                                   (v_dim * 4 + static_cast<int64_t>(sizeof(head_sum))));
}

cudaError_t nib_attend_decode(cudaStream_t stream, attend_args args)
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
        return many ? launch<64, 64, 2>(stream, args) : launch<64, 64, 1>(stream, args);
    case 96096:
        return launch<96, 96, 1>(stream, args);
    case 128128:
        return many ? launch<128, 128, 2>(stream, args) : launch<128, 128, 1>(stream, args);
    case 192128:
        return many ? launch<192, 128, 2>(stream, args) : launch<192, 128, 1>(stream, args);
    case 576512:
        return launch<576, 512, 1, true>(stream, args);
    default:
        return cudaErrorNotSupported;
    }
}
