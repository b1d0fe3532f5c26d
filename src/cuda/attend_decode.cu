// Attention for rows of few-row sequences. The tokens that a row sees are cut into splits, and a warp takes a split of one
// kv head with up to 8 or 16 of its query heads: 16 tokens at a time, through its own ring in shared memory, keys times
// queries and values times probabilities on the tensor cores with the heads in the columns, so that with 8 heads to a kv
// head nothing is computed in vain. Neighbouring warps take neighbouring kv heads, whose rows lie side by side in memory.
// Loads of tokens from earlier steps begin before the previous kernel has ended. A second kernel adds up the splits.
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

// Splits that are not all their row sees, at [row][split][column]; a column is a kv head and some of its query heads.
struct scratch_layout {
    head_sum *sums; /* [max_rows, max_splits, columns, heads] */
    float *values;  /* [max_rows, max_splits, columns, heads, v_dim] */
};

template <int key_dim, int v_dim, int groups, bool latent> struct shape {
    static constexpr int heads = 8 * groups;
    static constexpr int key_pieces = key_dim / 8, value_pieces = v_dim / 8;
    static constexpr int key_pitch = 16 * (key_pieces | 1),
                         value_pitch = latent ? key_pitch : 16 * (value_pieces | 1);
    static constexpr int key_bytes = tile_tokens * key_pitch;
    static constexpr int stage_bytes = key_bytes + (latent ? 0 : tile_tokens * value_pitch);
    static constexpr int stages = key_dim <= 64 ? 4 : key_dim <= 128 ? 3 : 2;
    static constexpr int shared_bytes = warps * stages * stage_bytes;
};

// What a warp works on.
struct unit {
    row_splits splits;
    int row, split, column, kv_head, first_head, heads; // heads: how many of the column's are in use
    int tile, end;                                      // of the split
    int fresh;                                          // tokens from here on are of this step
    const int32_t *table;
};

__device__ __forceinline__ int columns_of(const nib_cuda_attention &call, int heads_each)
{
    return call.n_kv_heads * ((call.n_heads / call.n_kv_heads + heads_each - 1) / heads_each);
}

__device__ __forceinline__ void find_heads(const nib_cuda_attention &call, int column, int heads_each, unit &u)
{
    int group = call.n_heads / call.n_kv_heads, chunks = (group + heads_each - 1) / heads_each;
    int skipped = column % chunks * heads_each;
    u.column = column;
    u.kv_head = column / chunks;
    u.first_head = u.kv_head * group + skipped;
    u.heads = min(heads_each, group - skipped);
}

// The unit of that number. before[row]: splits of the rows before it.
__device__ __forceinline__ unit find_unit(const attend_args &args, const int *before, int index, int columns,
                                          int heads_each)
{
    int split = index / columns, low = 0, high = args.rows;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (before[middle] <= split)
            low = middle;
        else
            high = middle;
    }
    unit u;
    find_heads(args.call, index - split * columns, heads_each, u);
    int row = args.first_row + low, sequence = args.step.sequence_of[row];
    u.row = low;
    u.split = split - before[low];
    u.splits = split_row(args.step.positions[row], args.call.window);
    u.tile = u.splits.first_tile + u.split * u.splits.tiles_each;
    u.end = min(u.tile + u.splits.tiles_each, u.splits.first_tile + u.splits.tiles);
    u.fresh = args.call.longest == 1 ? u.splits.position : args.step.positions[args.step.first_row[sequence]];
    u.table = args.call.keys.tables + static_cast<int64_t>(sequence) * args.step.table_width;
    return u;
}

__device__ __forceinline__ int splits_of(const attend_args &args, int row)
{
    int position = args.step.positions[args.first_row + row];
    if (position < 0 || is_prompt(args, args.step.sequence_of[args.first_row + row]))
        return 0;
    return split_row(position, args.call.window).count;
}

// before[i] = splits of rows 0 … i - 1; rows that are padding or belong to prompts have none.
__device__ __forceinline__ void count_splits(const attend_args &args, int *before)
{
    static_assert(max_rows <= threads && max_rows % 32 == 0, "a row a thread");
    __shared__ int of_warp[max_rows / 32];
    int row = threadIdx.x, count = 0;
    if (row < max_rows) {
        count = row < args.rows ? splits_of(args, row) : 0;
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

// Rows of a tile, which lies in one page, to shared memory; tokens that the row does not see, which
// may hold anything, as zeros.
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

template <typename S>
__device__ __forceinline__ void copy_tile(const attend_args &args, const unit &u, int tile, uint32_t target,
                                          int lane)
{
    const nib_cuda_attention &call = args.call;
    int first = tile * tile_tokens, skip = u.splits.first - first, end = u.splits.position - first + 1;
    int64_t row = cached_row(args.step, u.table, first);
    copy_rows<S::key_pieces, S::key_pitch>(call.keys, row, u.kv_head * call.head_dim, skip, end, target, lane);
    if constexpr (S::stage_bytes > S::key_bytes)
        copy_rows<S::value_pieces, S::value_pitch>(call.values, row, u.kv_head * call.v_dim, skip, end,
                                                   target + S::key_bytes, lane);
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

// One more logit, which may be the largest, joins the sum; returns what the values are to be multiplied by.
__device__ __forceinline__ float final_factor(const nib_cuda_attention &call, int head, float largest, float sum)
{
    float factor = 1;
    if (call.sinks) {
        float sink = call.sinks[head] * log2_e, most = fmaxf(sink, largest);
        factor = exp2_fast(largest - most);
        sum = sum * factor + exp2_fast(sink - most);
    }
    return factor * call.value_scale / sum;
}

// A warp's sums become the row's result, or its split's for the second kernel to add up.
template <int v_dim, int groups>
__device__ __forceinline__ void store_unit(const attend_args &args, const scratch_layout &scratch, int columns,
                                           const unit &u, accumulator<v_dim, groups> &acc, int lane)
{
    const nib_cuda_attention &call = args.call;
    bool whole = u.splits.count == 1;
    int64_t slot = ((static_cast<int64_t>(u.row) * max_splits + u.split) * columns + u.column) * 8 * groups;
    int64_t first = (static_cast<int64_t>(args.first_row) + u.row) * call.n_heads + u.first_head;
    float *to = whole ? call.y : scratch.values;
#pragma unroll
    for (int j = 0; j < groups; j++) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int head = j * 8 + lane % 4 * 2 + i;
            float sum = acc.sum[j][i];
            sum += __shfl_xor_sync(~0u, sum, 4);
            sum += __shfl_xor_sync(~0u, sum, 8);
            sum += __shfl_xor_sync(~0u, sum, 16);
            factor[i] = 1;
            if (whole)
                factor[i] = head < u.heads ? final_factor(call, u.first_head + head, acc.largest[j][i], sum) : 0;
            else if (lane < 4)
                scratch.sums[slot + head] = {acc.largest[j][i], sum};
            if (head < u.heads && to) {
                float *at = to + ((whole ? first : slot) + head) * v_dim + lane / 4;
#pragma unroll
                for (int m = 0; m < v_dim / 16; m++) {
                    at[m * 16] = acc.values[m][j][i] * factor[i];
                    at[m * 16 + 8] = acc.values[m][j][i + 2] * factor[i];
                }
            }
        }
        if (!whole || !call.y_half)
            continue;
        uint16_t *half = call.y_half + (first + j * 8 + lane / 4) * v_dim + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < v_dim / 16; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t pair = transpose_matrix(
                    pack_bf16(acc.values[m][j][2 * i] * factor[0], acc.values[m][j][2 * i + 1] * factor[1]));
                if (j * 8 + lane / 4 < u.heads)
                    *reinterpret_cast<uint32_t *>(half + m * 16 + i * 8) = pair;
            }
    }
}

template <int key_dim, int v_dim, int groups, bool latent>
__global__ void __launch_bounds__(threads, key_dim <= 64 && groups == 1 ? 4 : 1)
    attend_splits(const __grid_constant__ attend_args args, const scratch_layout scratch)
{
    using S = shape<key_dim, v_dim, groups, latent>;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ int before[max_rows + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = columns_of(args.call, S::heads);
    uint32_t ring = shared_address(memory) + warp * S::stages * S::stage_bytes;

    count_splits(args, before);
    int units = before[args.rows] * columns, blocks = gridDim.x;
    // Few units go to as many multiprocessors as there are; of many, neighbours stay together.
    bool spread = units <= 2 * blocks, waited = false;
    for (int index = spread ? warp * blocks + blockIdx.x : blockIdx.x * warps + warp; index < units;
         index += blocks * warps) {
        unit u = find_unit(args, before, index, columns, S::heads);
        int started = 0;
        if (!waited) { // what earlier steps have cached can be had at once
            for (; started < S::stages; started++) {
                int next = u.tile + started;
                if (next < u.end && (next + 1) * tile_tokens > u.fresh)
                    break;
                if (next < u.end)
                    copy_tile<S>(args, u, next, ring + started * S::stage_bytes, lane);
                commit_copies();
            }
            wait_for_previous_kernel();
            allow_next_kernel();
            waited = true;
        }
        for (; started < S::stages; started++) {
            if (u.tile + started < u.end)
                copy_tile<S>(args, u, u.tile + started, ring + started * S::stage_bytes, lane);
            commit_copies();
        }
        uint32_t q[groups][key_dim / 16][2];
        load_queries<S, key_dim>(args, u, q, lane);
        accumulator<v_dim, groups> acc = {};
#pragma unroll
        for (int j = 0; j < groups; j++)
            acc.largest[j][0] = acc.largest[j][1] = -INFINITY;
        int stage = 0;
#pragma unroll 1
        for (int tile = u.tile; tile < u.end; tile++) {
            wait_copies<S::stages - 1>();
            __syncwarp();
            attend_tile<S, key_dim, v_dim, groups>(args, u, tile, ring + stage * S::stage_bytes, q, acc, lane);
            __syncwarp();
            if (tile + S::stages < u.end)
                copy_tile<S>(args, u, tile + S::stages, ring + stage * S::stage_bytes, lane);
            commit_copies();
            stage = stage + 1 == S::stages ? 0 : stage + 1;
        }
        store_unit<v_dim, groups>(args, scratch, columns, u, acc, lane);
    }
    if (!waited) {
        wait_for_previous_kernel();
        allow_next_kernel();
    }
}

// The splits of a row and column, in order: a split counts times 2^(its largest - the largest of all).
template <int v_dim, int heads>
__global__ void __launch_bounds__(threads)
    add_splits(const __grid_constant__ attend_args args, const scratch_layout scratch)
{
    __shared__ head_sum sums[max_splits][heads];
    const nib_cuda_attention &call = args.call;
    int columns = columns_of(call, heads), row = blockIdx.y, parts = splits_of(args, row);
    unit u;
    find_heads(call, blockIdx.x, heads, u);
    wait_for_previous_kernel();
    allow_next_kernel();
    if (parts <= 1)
        return;
    int64_t first = (static_cast<int64_t>(row) * max_splits * columns + u.column) * heads,
            step = static_cast<int64_t>(columns) * heads;
    for (int i = threadIdx.x; i < parts * heads; i += threads)
        sums[i / heads][i % heads] = scratch.sums[first + i / heads * step + i % heads];
    __syncthreads();
    for (int item = threadIdx.x; item < u.heads * (v_dim / 4); item += threads) {
        int head = item / (v_dim / 4), at = item % (v_dim / 4) * 4;
        float largest = -INFINITY, sum = 0;
        for (int i = 0; i < parts; i++)
            largest = fmaxf(largest, sums[i][head].largest);
        const float *from = scratch.values + (first + head) * v_dim + at;
        float4 y = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int i = 0; i < parts; i++) {
            float4 v = *reinterpret_cast<const float4 *>(from + i * step * v_dim);
            float weight = exp2_fast(sums[i][head].largest - largest);
            sum += sums[i][head].sum * weight;
            y = make_float4(y.x + weight * v.x, y.y + weight * v.y, y.z + weight * v.z, y.w + weight * v.w);
        }
        float factor = final_factor(call, u.first_head + head, largest, sum);
        y = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
        int64_t to =
            ((static_cast<int64_t>(args.first_row) + row) * call.n_heads + u.first_head + head) * v_dim + at;
        if (call.y)
            *reinterpret_cast<float4 *>(call.y + to) = y;
        if (call.y_half)
            *reinterpret_cast<uint2 *>(call.y_half + to) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
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

// The most splits of a row.
int most_splits(const attend_args &args)
{
    int64_t tokens = static_cast<int64_t>(args.step.table_width) * args.step.page_tokens;
    if (args.call.window && args.call.window + 2 * tile_tokens <= 12 * tile_tokens)
        return 1;
    return tokens <= 12 * tile_tokens ? 1 : max_splits;
}

template <int key_dim, int v_dim, int groups, bool latent = false>
cudaError_t launch(cudaStream_t stream, attend_args args)
{
    using S = shape<key_dim, v_dim, groups, latent>;
    auto kernel = attend_splits<key_dim, v_dim, groups, latent>;
    int group = args.call.n_heads / args.call.n_kv_heads, total = args.rows;
    int columns = args.call.n_kv_heads * ((group + S::heads - 1) / S::heads), resident = 0,
        most = most_splits(args);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, S::shared_bytes);
    scratch_layout scratch;
    scratch.sums = static_cast<head_sum *>(args.call.scratch);
    scratch.values = reinterpret_cast<float *>(scratch.sums + max_rows * max_splits * columns * S::heads);
    for (int done = 0; error == cudaSuccess && done < total; done += max_rows) {
        args.first_row = done;
        args.rows = total - done < max_rows ? total - done : max_rows;
        int64_t units = static_cast<int64_t>(args.rows) * columns * most,
                fit = static_cast<int64_t>(sm_count()) * resident;
        error = nib_launch(kernel, dim3(static_cast<unsigned>(units < fit ? units : fit)), threads,
                           static_cast<size_t>(S::shared_bytes), stream, args, scratch);
        if (error == cudaSuccess && most > 1)
            error = nib_launch(add_splits<v_dim, S::heads>,
                               dim3(static_cast<unsigned>(columns), static_cast<unsigned>(args.rows)), threads, 0,
                               stream, args, scratch);
    }
    return error;
}

} // namespace

size_t nib_cuda_attend_scratch(int32_t n_heads, int32_t n_kv_heads, int32_t v_dim)
{
    int64_t group = n_heads / n_kv_heads,
            heads = n_kv_heads * ((group + 15) / 16) * 16; // as a column may be padded
    return static_cast<size_t>(max_rows * max_splits * heads *
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
