// Attention for prompts: flash attention over the pages. A block takes 128 rows of one sequence and kv head, a row being
// one of the kv head's query heads at one position, and goes through the keys and values that any of them sees, 64 tokens
// at a time, two tiles ahead in shared memory. Longest ways first, so that the last blocks are short.
#include "cuda/attend_shape.cuh"
#include "cuda/launch.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr int block_rows = 128;
constexpr int tile_tokens = 64;

template <int key_dim, int v_dim, int m_tiles> struct shape {
    static constexpr int warps = block_rows / (16 * m_tiles), threads = 32 * warps;
    static constexpr int key_pieces = key_dim / 8, value_pieces = v_dim / 8;
    static constexpr int key_pitch = 16 * (key_pieces | 1), value_pitch = 16 * (value_pieces | 1);
    static constexpr int key_bytes = tile_tokens * key_pitch;
    static constexpr int stage_bytes = key_bytes + tile_tokens * value_pitch;
    static constexpr int shared_bytes = 2 * stage_bytes;
};

// The rows of a block.
struct row_block {
    int sequence, kv_head, group;
    int begin, end;      // flat rows position * group + head of the sequence's rows in this step
    int first_token_row; // row of the step that the sequence begins with
    int first_position;  // its position
    const int32_t *table;

    __device__ __forceinline__ int position(int flat) const
    {
        return first_position + flat / group;
    }
};

// Finds the block's sequence; false when there is none. Every warp works it out for itself.
__device__ __forceinline__ bool find_rows(const attend_args &args, row_block &b, int lane)
{
    b.group = args.call.n_heads / args.call.n_kv_heads;
    b.kv_head = blockIdx.y;
    int index = gridDim.x - 1 - blockIdx.x, before = 0;
    for (int base = 0; base < args.step.n_sequences; base += 32) {
        int sequence = base + lane, rows = 0;
        if (sequence < args.step.n_sequences && is_prompt(args, sequence))
            rows = args.step.first_row[sequence + 1] - args.step.first_row[sequence];
        int tiles = (rows * b.group + block_rows - 1) / block_rows, sum = tiles;
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? left : 0;
        }
        unsigned found = __ballot_sync(~0u, before + sum > index);
        if (!found) {
            before += __shfl_sync(~0u, sum, 31);
            continue;
        }
        int from = __ffs(found) - 1;
        int tile = index - before - __shfl_sync(~0u, sum - tiles, from);
        rows = __shfl_sync(~0u, rows, from);
        b.sequence = base + from;
        b.begin = tile * block_rows;
        b.end = min(b.begin + block_rows, rows * b.group);
        b.first_token_row = args.step.first_row[b.sequence];
        b.first_position = args.step.positions[b.first_token_row];
        b.table = args.call.keys.tables + static_cast<int64_t>(b.sequence) * args.step.table_width;
        return b.first_position >= 0;
    }
    return false;
}

template <int pieces, int pitch, int threads>
__device__ __forceinline__ void copy_tile(const attend_args &args, const row_block &b, const nib_cuda_cache &cache,
                                          int offset, int tile, int first, int last, uint32_t target)
{
    const uint16_t *base = cache.data + offset;
#pragma unroll
    for (int i = 0; i < pieces * tile_tokens / threads; i++) {
        int index = i * threads + threadIdx.x, token = index / pieces, piece = index % pieces;
        // tokens that no row sees may have no page
        int64_t row = cached_row(args.step, b.table, max(min(tile * tile_tokens + token, last), first));
        copy_16(target + token * pitch + piece * 16, base + row * cache.width + piece * 8);
    }
}

template <typename S>
__device__ __forceinline__ void copy_tiles(const attend_args &args, const row_block &b, int tile, int first,
                                           int last, uint32_t target)
{
    const nib_cuda_attention &call = args.call;
    copy_tile<S::key_pieces, S::key_pitch, S::threads>(args, b, call.keys, b.kv_head * call.head_dim, tile, first,
                                                       last, target);
    copy_tile<S::value_pieces, S::value_pitch, S::threads>(args, b, call.values, b.kv_head * call.v_dim, tile,
                                                           first, last, target + S::key_bytes);
}

// A warp's 16 rows: lane (g, c) has rows g and g + 8, of each 8 columns the columns 2c and 2c + 1.
template <int key_dim, int v_dim> struct row_tile {
    uint32_t q[key_dim / 16][4];
    float largest[2], sum[2];
    float values[v_dim / 8][4];
};

template <int key_dim, int v_dim>
__device__ __forceinline__ void load_rows(const attend_args &args, const row_block &b, row_tile<key_dim, v_dim> &t,
                                          int first, int lane)
{
    const nib_cuda_attention &call = args.call;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int flat = min(first + lane / 4 + 8 * i, b.end - 1), head = b.kv_head * b.group + flat % b.group;
        int64_t row = b.first_token_row + flat / b.group;
        const float *from = call.q + (row * call.n_heads + head) * call.head_dim + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < key_dim / 8; k++) {
            float2 pair = *reinterpret_cast<const float2 *>(from + k * 8);
            t.q[k / 2][k % 2 * 2 + i] = pack_bf16(pair.x, pair.y);
        }
        t.largest[i] = -INFINITY;
        t.sum[i] = 0;
    }
#pragma unroll
    for (int n = 0; n < v_dim / 8; n++)
        t.values[n][0] = t.values[n][1] = t.values[n][2] = t.values[n][3] = 0;
}

// Logits that a row does not see become -infinity.
__device__ __forceinline__ void mask_logits(const attend_args &args, const row_block &b, int first, int tile,
                                            float (&logits)[tile_tokens / 8][4], int lane)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int position = b.position(first + lane / 4 + 8 * i), oldest = first_visible(position, args.call.window);
#pragma unroll
        for (int n = 0; n < tile_tokens / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int token = tile * tile_tokens + n * 8 + lane % 4 * 2 + e;
                if (token > position || token < oldest)
                    logits[n][i * 2 + e] = -INFINITY;
            }
    }
}

// Logits to probabilities, and what was summed so far to the new scale. `scale` holds the factor of the logits.
template <int key_dim, int v_dim>
__device__ __forceinline__ void weigh_logits(row_tile<key_dim, v_dim> &t, float (&logits)[tile_tokens / 8][4],
                                             float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < tile_tokens / 8; n++)
            most = fmaxf(most, fmaxf(logits[n][i * 2], logits[n][i * 2 + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * scale;
        most = fmaxf(most, t.largest[i]);
        float shift = most == -INFINITY ? 0 : most; // a row may see nothing of this tile
        float factor = exp2_fast(t.largest[i] - shift), sum = 0;
#pragma unroll
        for (int n = 0; n < tile_tokens / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                sum += logits[n][i * 2 + e] = exp2_fast(fmaf(logits[n][i * 2 + e], scale, -shift));
        t.largest[i] = most;
        t.sum[i] = t.sum[i] * factor + sum;
#pragma unroll
        for (int n = 0; n < v_dim / 8; n++) {
            t.values[n][i * 2] *= factor;
            t.values[n][i * 2 + 1] *= factor;
        }
    }
}

template <int key_dim, int v_dim, int m_tiles>
__device__ __forceinline__ void attend_tile(const attend_args &args, const row_block &b, int first, int tile,
                                            bool masked, uint32_t stage, row_tile<key_dim, v_dim> (&rows)[m_tiles],
                                            int lane)
{
    using S = shape<key_dim, v_dim, m_tiles>;
    float logits[m_tiles][tile_tokens / 8][4] = {};
    uint32_t keys = stage + (lane % 8 + lane / 16 * 8) * S::key_pitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < key_dim / 16; k++)
#pragma unroll
        for (int n = 0; n < tile_tokens / 16; n++) {
            uint32_t p[4];
            load_matrices(p, keys + n * 16 * S::key_pitch + k * 32);
#pragma unroll
            for (int m = 0; m < m_tiles; m++) {
                const uint32_t(&q)[4] = rows[m].q[k];
                mma_bf16(logits[m][2 * n], q[0], q[1], q[2], q[3], p[0], p[1], logits[m][2 * n]);
                mma_bf16(logits[m][2 * n + 1], q[0], q[1], q[2], q[3], p[2], p[3], logits[m][2 * n + 1]);
            }
        }
#pragma unroll
    for (int m = 0; m < m_tiles; m++) {
        if (masked)
            mask_logits(args, b, first + m * 16, tile, logits[m], lane);
        weigh_logits(rows[m], logits[m], args.call.scale * log2_e);
    }
    uint32_t values = stage + S::key_bytes + (lane % 16) * S::value_pitch + lane / 16 * 16;
#pragma unroll
    for (int s = 0; s < tile_tokens / 16; s++) {
        uint32_t p[m_tiles][4];
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                p[m][i] = pack_bf16(logits[m][2 * s + i / 2][i % 2 * 2], logits[m][2 * s + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < v_dim / 16; n++) {
            uint32_t v[4];
            load_matrices_transposed(v, values + s * 16 * S::value_pitch + n * 32);
#pragma unroll
            for (int m = 0; m < m_tiles; m++) {
                mma_bf16(rows[m].values[2 * n], p[m][0], p[m][1], p[m][2], p[m][3], v[0], v[1],
                         rows[m].values[2 * n]);
                mma_bf16(rows[m].values[2 * n + 1], p[m][0], p[m][1], p[m][2], p[m][3], v[2], v[3],
                         rows[m].values[2 * n + 1]);
            }
        }
    }
}

template <int key_dim, int v_dim>
__device__ __forceinline__ void store_rows(const attend_args &args, const row_block &b,
                                           row_tile<key_dim, v_dim> &t, int first, int lane)
{
    const nib_cuda_attention &call = args.call;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = t.sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        int flat = first + lane / 4 + 8 * i, head = b.kv_head * b.group + flat % b.group;
        if (flat >= b.end)
            continue;
        float factor = 1;
        if (call.sinks) { // one more logit, which may be the largest
            float sink = call.sinks[head] * log2_e, largest = fmaxf(sink, t.largest[i]);
            factor = exp2_fast(t.largest[i] - largest);
            sum = sum * factor + exp2_fast(sink - largest);
        }
        factor *= call.value_scale / sum;
        int64_t row = b.first_token_row + flat / b.group;
        int64_t at = (row * call.n_heads + head) * call.v_dim + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < v_dim / 8; n++) {
            float2 pair = make_float2(t.values[n][i * 2] * factor, t.values[n][i * 2 + 1] * factor);
            if (call.y)
                *reinterpret_cast<float2 *>(call.y + at + n * 8) = pair;
            if (call.y_half)
                *reinterpret_cast<uint32_t *>(call.y_half + at + n * 8) = pack_bf16(pair.x, pair.y);
        }
    }
}

template <int key_dim, int v_dim, int m_tiles>
__global__ void __launch_bounds__(shape<key_dim, v_dim, m_tiles>::threads)
    attend_prefill(const __grid_constant__ attend_args args)
{
    using S = shape<key_dim, v_dim, m_tiles>;
    extern __shared__ __align__(128) uint8_t memory[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row_block b;
    bool found = find_rows(args, b, lane);
    wait_for_previous_kernel();
    allow_next_kernel();
    if (!found)
        return;
    int window = args.call.window, lowest = b.position(b.begin), last = b.position(b.end - 1);
    int first = first_visible(lowest, window), end = last / tile_tokens + 1;
    uint32_t ring = shared_address(memory);
    int next = first / tile_tokens;
    for (int stage = 0; stage < 2; stage++, next++) {
        if (next < end)
            copy_tiles<S>(args, b, next, first, last, ring + stage * S::stage_bytes);
        commit_copies();
    }
    row_tile<key_dim, v_dim> rows[m_tiles];
    int warp_row = b.begin + warp * 16 * m_tiles;
#pragma unroll
    for (int m = 0; m < m_tiles; m++)
        load_rows(args, b, rows[m], warp_row + m * 16, lane);
    int newest_first = first_visible(last, window); // all rows see the tokens from here to `lowest`
#pragma unroll 1
    for (int tile = first / tile_tokens, stage = 0; tile < end; tile++, stage ^= 1, next++) {
        wait_copies<1>();
        __syncthreads();
        bool masked = tile * tile_tokens < newest_first || (tile + 1) * tile_tokens - 1 > lowest;
        attend_tile<key_dim, v_dim, m_tiles>(args, b, warp_row, tile, masked, ring + stage * S::stage_bytes, rows,
                                             lane);
        __syncthreads();
        if (next < end)
            copy_tiles<S>(args, b, next, first, last, ring + stage * S::stage_bytes);
        commit_copies();
    }
#pragma unroll
    for (int m = 0; m < m_tiles; m++)
        store_rows(args, b, rows[m], warp_row + m * 16, lane);
}

template <int key_dim, int v_dim, int m_tiles> cudaError_t launch(cudaStream_t stream, const attend_args &args)
{
    using S = shape<key_dim, v_dim, m_tiles>;
    auto kernel = attend_prefill<key_dim, v_dim, m_tiles>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    if (error != cudaSuccess)
        return error;
    int64_t group = args.call.n_heads / args.call.n_kv_heads;
    int64_t blocks = args.step.n_tokens * group / block_rows + args.step.n_sequences;
    return nib_launch(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(args.call.n_kv_heads)),
                      S::threads, static_cast<size_t>(S::shared_bytes), stream, args);
}

} // namespace

cudaError_t nib_attend_prefill(cudaStream_t stream, const attend_args &args)
{
    switch (args.call.head_dim * 1000 + args.call.v_dim) {
    case 16016:
        return launch<16, 16, 2>(stream, args);
    case 32032:
        return launch<32, 32, 2>(stream, args);
    case 48032:
        return launch<48, 32, 2>(stream, args);
    case 48048:
        return launch<48, 48, 2>(stream, args);
    case 64064:
        return launch<64, 64, 2>(stream, args);
    case 96096:
        return launch<96, 96, 1>(stream, args);
    case 128128:
        return launch<128, 128, 1>(stream, args);
    case 192128:
        return launch<192, 128, 1>(stream, args);
    default:
        return cudaErrorNotSupported;
    }
}
