// Which attention kernel takes which rows; rotary positions and the cache's new rows.
#include "cuda/attend_shape.cuh"
#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr int rotate_threads = 256;

// Where a row of the step goes in its cache; -1: padding.
__device__ __forceinline__ int64_t row_in_cache(const nib_cuda_step &step, const nib_cuda_cache &cache, int row)
{
    int position = step.positions[row];
    if (position < 0)
        return -1;
    return cached_row(step, cache.tables + static_cast<int64_t>(step.sequence_of[row]) * step.table_width,
                      position);
}

// The turns of one kind of head. A thread's pair stays the same from head to head where the threads are a multiple of the
// pairs, so it is worked out once, and that before the previous kernel has ended.
struct turner {
    nib_cuda_rotation r;
    int position, pair;
    float2 turn;

    __device__ __forceinline__ void prepare(int wanted)
    {
        if (wanted == pair)
            return;
        pair = wanted;
        turn = turn_of(r, pair, position);
    }

    // The pair's elements in its head.
    __device__ __forceinline__ int first() const
    {
        return r.first + (r.interleaved ? 2 * pair : pair);
    }

    __device__ __forceinline__ int second() const
    {
        return first() + (r.interleaved ? 1 : r.dims / 2);
    }
};

__global__ void __launch_bounds__(rotate_threads)
    rotate_append(const __grid_constant__ nib_cuda_step step, const __grid_constant__ nib_cuda_rotate_append call)
{
    int row = blockIdx.x, thread = blockIdx.y * rotate_threads + threadIdx.x, stride = gridDim.y * rotate_threads;
    int position = step.positions[row], q_pairs = call.q_turn.dims / 2, k_pairs = call.k_turn.dims / 2;
    int64_t k_row = row_in_cache(step, call.keys, row), v_row = call.v ? row_in_cache(step, call.values, row) : 0;
    turner q_turner = {call.q_turn, position, -1, {}}, k_turner = {call.k_turn, position, -1, {}};
    if (q_pairs && position >= 0)
        q_turner.prepare(thread % q_pairs);
    if (thread < call.k_heads * k_pairs && position >= 0)
        k_turner.prepare(thread % k_pairs);
    wait_for_previous_kernel();
    allow_next_kernel();
    if (position < 0)
        return;
    for (int i = thread; call.q && i < call.q_heads * q_pairs; i += stride) {
        q_turner.prepare(i % q_pairs);
        float *q = call.q + (static_cast<int64_t>(row) * call.q_heads + i / q_pairs) * call.head_dim;
        float2 pair = rotate(make_float2(q[q_turner.first()], q[q_turner.second()]), q_turner.turn);
        q[q_turner.first()] = pair.x;
        q[q_turner.second()] = pair.y;
    }
    const float *k = call.k + static_cast<int64_t>(row) * call.k_heads * call.k_dim;
    uint16_t *keys = call.keys.data + k_row * call.keys.width;
    for (int i = thread; i < call.k_heads * k_pairs; i += stride) {
        k_turner.prepare(i % k_pairs);
        int at = i / k_pairs * call.k_dim, first = at + k_turner.first(), second = at + k_turner.second();
        float2 pair = rotate(make_float2(k[first], k[second]), k_turner.turn);
        keys[first] = to_bf16(pair.x);
        keys[second] = to_bf16(pair.y);
    }
    int still = call.k_dim - call.k_turn.dims; // elements of a head that do not turn
    for (int i = thread; i < call.k_heads * still; i += stride) {
        int element = i % still, at = i / still * call.k_dim + element;
        at += element < call.k_turn.first ? 0 : call.k_turn.dims;
        keys[at] = to_bf16(k[at]);
    }
    if (call.v)
        for (int i = thread; i < call.values.width; i += stride)
            call.values.data[v_row * call.values.width + i] = to_bf16(call.v[row * call.values.width + i]);
}

bool fits(const nib_cuda_step &step, const nib_cuda_attention &call)
{
    return step.page_tokens >= 16 && call.n_kv_heads > 0 && call.n_heads % call.n_kv_heads == 0 &&
           call.keys.width % 8 == 0 && call.values.width % 8 == 0 &&
           nib_cuda_attend_takes(call.head_dim, call.v_dim);
}

} // namespace

bool nib_cuda_attend_takes(int32_t head_dim, int32_t v_dim)
{
    const int32_t shapes[][2] = {{16, 16}, {32, 32},   {48, 32},   {48, 48},  {64, 64},
                                 {96, 96}, {128, 128}, {192, 128}, {576, 512}};
    for (const auto &shape : shapes)
        if (shape[0] == head_dim && shape[1] == v_dim)
            return true;
    return false;
}

cudaError_t nib_cuda_attend_paged(cudaStream_t stream, const struct nib_cuda_step *step,
                                  const struct nib_cuda_attention *call)
{
    if (!fits(*step, *call))
        return cudaErrorInvalidValue;
    bool latent = call->head_dim == 576; // no prefill kernel
    attend_args args = {*call, *step, {}, call->by_row || latent};
    if (args.all_rows || call->longest <= NIB_CUDA_DECODE_ROWS)
        return nib_attend_decode(stream, args);
    cudaError_t error = nib_attend_prefill(stream, args);
    return error != cudaSuccess || step->n_sequences == 1 ? error : nib_attend_decode(stream, args);
}

bool nib_cuda_attend_fresh_takes(const struct nib_cuda_attention *call, const struct nib_cuda_rotate_append *fresh)
{
    const nib_cuda_rotation &q = fresh->q_turn, &k = fresh->k_turn;
    bool shape = (call->head_dim == 64 || call->head_dim == 128) && call->v_dim == call->head_dim;
    return shape && call->longest == 1 && fresh->v && fresh->q_heads == call->n_heads &&
           fresh->k_heads == call->n_kv_heads && fresh->head_dim == call->head_dim &&
           fresh->k_dim == call->head_dim && !q.interleaved && q.first == 0 && q.dims == call->head_dim &&
           !k.interleaved && k.first == 0 && k.dims == q.dims && k.inv_freq == q.inv_freq && k.scale == q.scale;
}

cudaError_t nib_cuda_attend_fresh(cudaStream_t stream, const struct nib_cuda_step *step,
                                  const struct nib_cuda_attention *call,
                                  const struct nib_cuda_rotate_append *fresh)
{
    if (!fits(*step, *call) || !nib_cuda_attend_fresh_takes(call, fresh))
        return cudaErrorInvalidValue;
    return nib_attend_decode(stream, {*call, *step, *fresh, call->by_row});
}

cudaError_t nib_cuda_rotate_and_append(cudaStream_t stream, const struct nib_cuda_step *step,
                                       const struct nib_cuda_rotate_append *call)
{
    if (step->n_tokens == 0)
        return cudaSuccess;
    unsigned parts = step->n_tokens < 16 ? 8 : step->n_tokens < 256 ? 4 : 1;
    return nib_launch(rotate_append, dim3(static_cast<unsigned>(step->n_tokens), parts), rotate_threads, 0, stream,
                      *step, *call);
}
