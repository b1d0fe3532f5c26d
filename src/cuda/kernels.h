// The kernels' launches, callable from C. Each enqueues on `stream` and returns what the launch said; pointers are device
// pointers; a missing output is null. Activations are fp32 with, where a product wants them, bf16 copies.
#ifndef NIB_CUDA_KERNELS_H
#define NIB_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "cuda/attend.h"
#include "nibble/moe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum nib_cuda_element { NIB_CUDA_BF16, NIB_CUDA_F32 };

// A dense matrix.
struct nib_cuda_matrix {
    const void *data; /* [rows, cols] */
    enum nib_cuda_element element;
    int64_t rows, cols;
};

// ---- rows ----

// y[t] = table[tokens[t]]
cudaError_t nib_cuda_embed(cudaStream_t stream, const struct nib_cuda_step *step, float *y /* [T, cols] */,
                           const struct nib_cuda_matrix *table);

// What is added to the residual stream: rows, or a MoE layer's routes that nobody has added up yet, each of which counts by
// its weight.
struct nib_cuda_branch {
    const float *rows;    /* [rows, width], or where there are weights [rows, top_k, width]; NULL: nothing */
    const float *weights; /* [rows, top_k], or NULL */
    int32_t top_k;
    float *sum; /* [rows, width] room for the sum of routes */
};

// x += branch unless that is none; then y = norm(x) * weight as fp32 and, unless null, as bf16.
struct nib_cuda_norm {
    float *x; /* [rows, width] */
    struct nib_cuda_branch branch;
    float *y;            /* [rows, width], may be x when there is no branch; or NULL */
    uint16_t *y_half;    /* [rows, width] bf16, or NULL */
    const float *weight; /* [width] */
    const int32_t *from; /* [rows] rows of x to take in place of 0, 1, …; or NULL. Not with a branch */
    int32_t rows, width;
    float eps;
};
cudaError_t nib_cuda_rms_norm(cudaStream_t stream, const struct nib_cuda_norm *norm);

cudaError_t nib_cuda_head_norm(cudaStream_t stream, float *x /* [rows, n_heads * head_dim] */, int32_t rows,
                               int32_t n_heads, int32_t head_dim, const float *weight /* [normed] */,
                               int32_t normed, float eps);
// x += y
cudaError_t nib_cuda_add(cudaStream_t stream, float *x /* [n] */, const float *y /* [n] */, int64_t n);
// gate = silu(gate) * up
cudaError_t nib_cuda_silu_mul(cudaStream_t stream, float *gate /* [n] */,
                              uint16_t *gate_half /* [n] the same as bf16, or NULL */, const float *up /* [n] */,
                              int64_t n);
cudaError_t nib_cuda_gather(cudaStream_t stream, float *y /* [n, width] */, const float *x /* [any, width] */,
                            const int32_t *rows /* [n] of x */, int32_t n, int32_t width);
cudaError_t nib_cuda_to_bf16(cudaStream_t stream, uint16_t *y /* [n] bf16 */, const float *x /* [n] */, int64_t n);

// ---- products ----

// y[r, column + o] = x[r] . w[o] + bias[o] in fp32 from fp32 inputs, each row's sums in the same order whatever `rows` is.
struct nib_cuda_plain_linear {
    float *y; /* [rows, y_pitch], at its first column */
    int64_t y_pitch;
    const float *x; /* [rows, cols] */
    struct nib_cuda_matrix weight;
    const float *bias; /* [weight rows] or NULL */
};
cudaError_t nib_cuda_linear(cudaStream_t stream, int32_t rows, const struct nib_cuda_plain_linear *linear);

// See struct nib_head_product.
struct nib_cuda_head_product {
    float *y;                 /* [T, y_width] */
    const float *x;           /* [T, x_width] */
    int64_t y_width, x_width; // of a row
    struct nib_cuda_matrix weight;
    int32_t n_heads, row_pitch, first_row, rows, x_pitch, y_pitch, tail;
    bool transposed;
};
cudaError_t nib_cuda_linear_heads(cudaStream_t stream, int32_t tokens, const struct nib_cuda_head_product *p);

// ---- attention ----

// Each rotates, or stores, alone; rows that need both go through nib_cuda_rotate_and_append.
cudaError_t nib_cuda_rotate(cudaStream_t stream, const struct nib_cuda_step *step,
                            float *x /* [T, n_heads * head_dim] */, int32_t n_heads, int32_t head_dim,
                            const struct nib_cuda_rotation *rotation);
cudaError_t nib_cuda_append(cudaStream_t stream, const struct nib_cuda_step *step,
                            const struct nib_cuda_cache *cache, const float *x /* [T, cache width] */);
// Any shape, one block for each token and head.
cudaError_t nib_cuda_attend_plain(cudaStream_t stream, const struct nib_cuda_step *step,
                                  const struct nib_cuda_attention *call);

// ---- experts ----

enum nib_cuda_router_kind { NIB_CUDA_TOPK_SOFTMAX, NIB_CUDA_SOFTMAX, NIB_CUDA_SIGMOID }; // as enum nib_router_kind

struct nib_cuda_router {
    enum nib_cuda_router_kind kind;
    int32_t n_experts, top_k;
    const float *correction; /* [n_experts] or NULL */
    int32_t n_groups, top_groups;
    bool normalise;
    float scale;
};
// Also leaves the ids in `log`. See ops/route.h for the arithmetic; ties go to the lower id.
cudaError_t nib_cuda_route(cudaStream_t stream, int32_t tokens, const float *logits /* [T, n_experts] */,
                           const struct nib_cuda_router *router, int32_t *ids /* [T, top_k] */,
                           float *weights /* [T, top_k] */, int32_t *log /* [T, top_k] */);

// For few tokens: y = rms_norm(x), the logits of a bf16 router from it in fp32, and the choice, in one launch.
enum { NIB_CUDA_NORM_ROUTE_TOKENS = 64, NIB_CUDA_NORM_ROUTE_GROUPS = 12 };
struct nib_cuda_norm_route {
    const float *x;           /* [T, width] */
    float *y;                 /* [T, width] */
    uint16_t *y_half;         /* [T, width] bf16 */
    const float *norm_weight; /* [width] */
    float eps;
    int32_t tokens, width;
    const void *weight; /* [n_experts, width] bf16 */
    const float *bias;  /* [n_experts] or NULL */
    float *logits;      /* [T, n_experts] */
    struct nib_cuda_router router;
    int32_t *ids;       /* [T, top_k] */
    float *weights;     /* [T, top_k] */
    int32_t *log;       /* [T, top_k] */
    unsigned *counters; /* [NIB_CUDA_NORM_ROUTE_GROUPS] zero between calls */
};
bool nib_cuda_norm_route_takes(int32_t tokens, int32_t width, const struct nib_cuda_router *router);
cudaError_t nib_cuda_norm_and_route(cudaStream_t stream, const struct nib_cuda_norm_route *call);

// Experts of dense matrices, one by one: slow, for any number of tokens.
struct nib_cuda_dense_expert {
    struct nib_cuda_matrix gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* [I], [I], [K], or NULL */
};
cudaError_t nib_cuda_dense_moe(cudaStream_t stream, int32_t tokens, int32_t top_k, float *y /* [T, K] */,
                               const float *x /* [T, K] */, float *h /* [T, top_k, I] */,
                               const struct nib_cuda_dense_expert *experts /* [E] on the device */, int32_t hidden,
                               int32_t intermediate, const struct nib_activation *activation,
                               const int32_t *ids /* [T, top_k] */, const float *weights /* [T, top_k] */);

// ---- binding ----

// What a stored element is; values are code * scale of its block.
struct nib_cuda_stored {
    const void *data; /* [rows, cols]; MXFP4: [rows, cols / 2] */
    int32_t dtype;    // enum nib_dtype: NIB_BF16, NIB_F16, NIB_F32, NIB_F8_E4M3, NIB_U8 (MXFP4)
    int64_t rows, cols;
    const void *scales; /* [blocks of rows, blocks of columns] fp32; MXFP4: [rows, cols / 32] E8M0 */
    int64_t block_rows, block_cols;
};
cudaError_t nib_cuda_widen(cudaStream_t stream, void *y /* [rows, cols] */, enum nib_cuda_element element,
                           const struct nib_cuda_stored *stored);

// Made-up weights for benchmarks. mean + deviation * a standard normal value.
cudaError_t nib_cuda_fill_normal(cudaStream_t stream, void *y /* [n] */, enum nib_cuda_element element, int64_t n,
                                 float mean, float deviation, uint64_t seed);
// Bytes low … low + span - 1.
cudaError_t nib_cuda_fill_bytes(cudaStream_t stream, uint8_t *y /* [n] */, int64_t n, int low, int span,
                                uint64_t seed);

// ---- measuring ----

// Reads the bytes, a multiple of 16, and nothing else. A word is written only for data that has one certain sum.
cudaError_t nib_cuda_stream_read(cudaStream_t stream, const void *data /* [bytes] */, int64_t bytes,
                                 uint32_t *sink /* [1] */);
// Keeps the stream busy for about this long, so that what follows is queued before it runs.
cudaError_t nib_cuda_delay(cudaStream_t stream, int64_t nanoseconds);

#ifdef __cplusplus
}
#endif
#endif
