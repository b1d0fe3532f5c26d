// Rotary positions, the paged cache, and attention of any shape: what the special kernels leave.
#include <cuda_bf16.h>

#include "cuda/block_sum.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr unsigned attend_threads = 128; // as many keys are scored at a time
constexpr int values_a_thread = 8;

__device__ __forceinline__ uint16_t to_bf16(float value)
{
    __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    return reinterpret_cast<uint16_t &>(rounded);
}

__device__ __forceinline__ float from_bf16(uint16_t bits)
{
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// The cached row of a sequence's position, or null where its page has been given back.
__device__ __forceinline__ uint16_t *cached_row(const nib_cuda_step &step, const nib_cuda_cache &cache,
                                                int sequence, int position)
{
    int page = cache.tables[static_cast<int64_t>(sequence) * step.table_width + (position >> step.page_shift)];
    if (page < 0)
        return nullptr;
    int64_t row = (static_cast<int64_t>(page) << step.page_shift) + (position & (step.page_tokens - 1));
    return cache.data + row * cache.width;
}

// Rotates pair i of a head: the two values, and where they lie.
__device__ __forceinline__ float2 rotate(const nib_cuda_rotation &rope, float *head, int position, int i,
                                         int &first, int &second)
{
    first = rope.first + (rope.interleaved ? 2 * i : i);
    second = rope.interleaved ? first + 1 : first + rope.dims / 2;
    float angle = static_cast<float>(position) * rope.inv_freq[i], s, c;
    sincosf(angle, &s, &c);
    c *= rope.scale;
    s *= rope.scale;
    return make_float2(head[first] * c - head[second] * s, head[second] * c + head[first] * s);
}

__global__ void rope_rows(const nib_cuda_step step, float *x, int n_heads, int head_dim,
                          const nib_cuda_rotation rope)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int token = static_cast<int>(blockIdx.x), position = step.positions[token], half = rope.dims / 2;
    float *row = x + static_cast<int64_t>(token) * n_heads * head_dim;
    for (int i = static_cast<int>(threadIdx.x); i < n_heads * half; i += static_cast<int>(blockDim.x)) {
        int first, second;
        float *head = row + i / half * head_dim;
        float2 pair = rotate(rope, head, position, i % half, first, second);
        head[first] = pair.x;
        head[second] = pair.y;
    }
}

__global__ void append(const nib_cuda_step step, const nib_cuda_cache cache, const float *x)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int token = static_cast<int>(blockIdx.x);
    uint16_t *row = cached_row(step, cache, step.sequence_of[token], step.positions[token]);
    for (int i = static_cast<int>(threadIdx.x); row && i < cache.width; i += static_cast<int>(blockDim.x))
        row[i] = to_bf16(x[static_cast<int64_t>(token) * cache.width + i]);
}

// One token's one head. Keys come in chunks of as many as there are threads: scored a key a thread, then the values are
// added up a column a thread.
__global__ void __launch_bounds__(attend_threads) attend(const nib_cuda_step step, const nib_cuda_attention a)
{
    extern __shared__ float query[]; /* [head_dim] */
    __shared__ float weights[attend_threads], partial[attend_threads / 32];
    __shared__ const uint16_t *rows[attend_threads];
    wait_for_previous_kernel();
    allow_next_kernel();
    int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), thread = threadIdx.x;
    int kv_head = head / (a.n_heads / a.n_kv_heads), sequence = step.sequence_of[token];
    int position = step.positions[token];
    int begin = a.window && position >= a.window ? position - a.window + 1 : 0;
    const float *q = a.q + (static_cast<int64_t>(token) * a.n_heads + head) * a.head_dim;
    for (int i = thread; i < a.head_dim; i += attend_threads)
        query[i] = q[i];
    float largest = a.sinks ? a.sinks[head] : -INFINITY, total = a.sinks ? 1.0f : 0.0f;
    float sum[values_a_thread] = {};
    for (int chunk = begin; chunk <= position; chunk += attend_threads) {
        __syncthreads();
        int key_position = chunk + thread;
        float score = -INFINITY;
        const uint16_t *value = nullptr;
        if (key_position <= position) {
            const uint16_t *key = cached_row(step, a.keys, sequence, key_position);
            const uint16_t *row = cached_row(step, a.values, sequence, key_position);
            if (key && row) {
                key += kv_head * a.head_dim;
                value = row + kv_head * a.v_dim;
                score = 0;
                for (int i = 0; i < a.head_dim; i++)
                    score += query[i] * from_bf16(key[i]);
                score *= a.scale;
            }
        }
        float top = warp_max(score);
        if (thread % 32 == 0)
            partial[thread / 32] = top;
        __syncthreads();
        for (unsigned i = 0; i < attend_threads / 32; i++)
            top = fmaxf(top, partial[i]);
        top = fmaxf(top, largest);
        float shrink = largest > -INFINITY ? expf(largest - top) : 0.0f;
        float weight = score > -INFINITY ? expf(score - top) : 0.0f;
        weights[thread] = weight;
        rows[thread] = value;
        __syncthreads();
        total = total * shrink + block_sum(weight, partial);
        largest = top;
        int here = min(static_cast<int>(attend_threads), position - chunk + 1);
#pragma unroll
        for (int j = 0; j < values_a_thread; j++) {
            int column = j * static_cast<int>(attend_threads) + thread;
            if (column >= a.v_dim)
                continue;
            float all = sum[j] * shrink;
            for (int i = 0; i < here; i++)
                if (rows[i])
                    all += weights[i] * from_bf16(rows[i][column]);
            sum[j] = all;
        }
    }
#pragma unroll
    for (int j = 0; j < values_a_thread; j++) {
        int column = j * static_cast<int>(attend_threads) + thread;
        if (column >= a.v_dim)
            continue;
        int64_t at = (static_cast<int64_t>(token) * a.n_heads + head) * a.v_dim + column;
        float value = sum[j] / total * a.value_scale;
        if (a.y)
            a.y[at] = value;
        if (a.y_half)
            a.y_half[at] = to_bf16(value);
    }
}

} // namespace

cudaError_t nib_cuda_rotate(cudaStream_t stream, const nib_cuda_step *step, float *x, int32_t n_heads,
                            int32_t head_dim, const nib_cuda_rotation *rotation)
{
    return nib_launch(rope_rows, dim3(static_cast<unsigned>(step->n_tokens)), 256, 0, stream, *step, x, n_heads,
                      head_dim, *rotation);
}

cudaError_t nib_cuda_append(cudaStream_t stream, const nib_cuda_step *step, const nib_cuda_cache *cache,
                            const float *x)
{
    return nib_launch(append, dim3(static_cast<unsigned>(step->n_tokens)), 256, 0, stream, *step, *cache, x);
}

cudaError_t nib_cuda_attend_plain(cudaStream_t stream, const nib_cuda_step *step, const nib_cuda_attention *call)
{
    if (call->v_dim > values_a_thread * static_cast<int>(attend_threads))
        return cudaErrorInvalidValue;
    dim3 grid(static_cast<unsigned>(step->n_tokens), static_cast<unsigned>(call->n_heads));
    return nib_launch(attend, grid, attend_threads, static_cast<size_t>(call->head_dim) * sizeof(float), stream,
                      *step, *call);
}
