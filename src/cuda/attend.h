// Attention over the paged bf16 cache, for any mix of decodes and prompts.
//
// Sequences with few rows in the step go to the decode kernel. It cuts the cached tokens that a row sees into splits,
// into fewer where there are many rows; all query heads of a kv head share one pass over a split, and splits are added
// in order. With `by_row` they depend on the row's own position alone, and so the row's bits on nothing else in the
// step. Sequences with more rows go to the prefill kernel: tiles of rows times the query heads of a kv head, on the
// tensor cores.
// Dao, "FlashAttention-2" (2023); Dao et al., "Flash-Decoding" (2023).
#ifndef NIB_CUDA_ATTEND_H
#define NIB_CUDA_ATTEND_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "cuda/cuda_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_CUDA_DECODE_ROWS 4 // a sequence with more rows in a step is a prompt

struct nib_cuda_rotation {
    const float *inv_freq; /* [dims / 2] */
    int32_t first, dims;   // elements first … first + dims - 1 of a head turn
    float scale;           // of cos and sin
    bool interleaved;      // pairs are (2i, 2i + 1), else (i, i + dims / 2)
};

struct nib_cuda_attention {
    float *y;                           /* [T, n_heads * v_dim], or NULL */
    uint16_t *y_half;                   /* the same as bf16, or NULL */
    const float *q;                     /* [T, n_heads * head_dim] */
    struct nib_cuda_cache keys, values; // of one group: the keys' tables serve both; heads lie side by side
    int32_t n_heads, n_kv_heads, head_dim, v_dim;
    int32_t window; // 0: all tokens
    float scale, value_scale;
    const float *sinks; /* [n_heads], or NULL */
    // The most rows that a sequence has in this step: 1 for a step of decodes alone.
    int32_t longest;
    // Every row goes to the decode kernel and is divided as if it were alone, so that its bits depend neither on other
    // rows nor on how a prompt was cut into steps. Slow.
    bool by_row;
};

// Whether there are kernels for heads of this size; pages must hold 16 tokens at least.
bool nib_cuda_attend_takes(int32_t head_dim, int32_t v_dim);

// A row whose position is negative is padding: nothing is written for it. The step's arrays and what earlier steps cached
// are read before the previous kernel has ended: they must not be its work.
cudaError_t nib_cuda_attend_paged(cudaStream_t stream, const struct nib_cuda_step *step,
                                  const struct nib_cuda_attention *call);

// What comes before: q is rotated in place at its rows' positions; k, rotated, and v go to their pages as bf16. Rows
// with a negative position are left alone. v may be NULL (one cache holds both).
struct nib_cuda_rotate_append {
    float *q;       /* [T, q_heads * head_dim], or NULL */
    const float *k; /* [T, k_heads * k_dim], k_heads * k_dim = keys.width */
    const float *v; /* [T, values.width], or NULL */
    int32_t q_heads, head_dim, k_heads, k_dim;
    struct nib_cuda_rotation q_turn, k_turn; // dims = 0: none
    struct nib_cuda_cache keys, values;
};
cudaError_t nib_cuda_rotate_and_append(cudaStream_t stream, const struct nib_cuda_step *step,
                                       const struct nib_cuda_rotate_append *call);

// Both in one launch, for steps with one row a sequence: call->q and fresh->k are as the linears left them, and stay so.
cudaError_t nib_cuda_attend_fresh(cudaStream_t stream, const struct nib_cuda_step *step,
                                  const struct nib_cuda_attention *call,
                                  const struct nib_cuda_rotate_append *fresh);
bool nib_cuda_attend_fresh_takes(const struct nib_cuda_attention *call,
                                 const struct nib_cuda_rotate_append *fresh);

#ifdef __cplusplus
}
#endif
#endif
