// What the attention kernels share: arguments, and how a cached token is found.
#ifndef NIB_CUDA_ATTEND_SHAPE_CUH
#define NIB_CUDA_ATTEND_SHAPE_CUH

#include <cstdint>

#include "cuda/attend.h"

constexpr float log2_e = 1.4426950408889634f;

struct attend_args {
    nib_cuda_attention call;
    nib_cuda_step step;
    nib_cuda_rotate_append fresh; // what the launch rotates and appends itself, or all zeros
    bool all_rows;                // prompts' rows too go to the decode kernel
};

// 16 bytes from a cached row to shared memory, past the L1.
__device__ __forceinline__ void copy_16(uint32_t target, const void *source)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void copy_16_or_zeros(uint32_t target, const void *source, bool copy)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(copy ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int left> __device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// Four 8x8 matrices of 16-bit elements, transposed; addresses as in load_matrices.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&values)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ uint32_t transpose_matrix(uint32_t value)
{
    uint32_t transposed;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(value));
    return transposed;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two values as a bf16 pair, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Row of the cache that holds a token, of a sequence whose page for it is known, or with this table.
__device__ __forceinline__ int64_t row_in_page(const nib_cuda_step &step, int32_t page, int token)
{
    return (static_cast<int64_t>(page) << step.page_shift) + (token & (step.page_tokens - 1));
}

__device__ __forceinline__ int64_t cached_row(const nib_cuda_step &step, const int32_t *table, int token)
{
    return row_in_page(step, table[token >> step.page_shift], token);
}

__device__ __forceinline__ uint16_t to_bf16(float x)
{
    return static_cast<uint16_t>(pack_bf16(x, 0) & 0xffff);
}

// cos and sin of a pair's angle.
__device__ __forceinline__ float2 turn_of(const nib_cuda_rotation &r, int pair, int position)
{
    float2 turn;
    sincosf(static_cast<float>(position) * r.inv_freq[pair], &turn.y, &turn.x);
    return make_float2(turn.x * r.scale, turn.y * r.scale);
}

__device__ __forceinline__ float2 rotate(float2 pair, float2 turn)
{
    return make_float2(pair.x * turn.x - pair.y * turn.y, pair.y * turn.x + pair.x * turn.y);
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

__device__ __forceinline__ int first_visible(int position, int window)
{
    return window && position >= window ? position - window + 1 : 0;
}

__device__ __forceinline__ bool is_prompt(const attend_args &args, int sequence)
{
    if (args.all_rows || args.call.longest <= NIB_CUDA_DECODE_ROWS)
        return false;
    const int32_t *first_row = args.step.first_row + sequence;
    return first_row[1] - first_row[0] > NIB_CUDA_DECODE_ROWS;
}

cudaError_t nib_attend_decode(cudaStream_t stream, const attend_args &args);
cudaError_t nib_attend_prefill(cudaStream_t stream, const attend_args &args);

#endif
