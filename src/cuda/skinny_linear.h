// y = x W^T for few rows: W streams once past the tensor cores at memory speed. The sums of a row run in an order that
// depends on the number of columns alone, so a row's bits do not depend on the rows beside it, unless a call allows it.
#ifndef NIB_CUDA_SKINNY_LINEAR_H
#define NIB_CUDA_SKINNY_LINEAR_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_CUDA_SKINNY_ROWS 64   // rows of one call at most
#define NIB_CUDA_SKINNY_BEST 32   // beyond, a library's matrix product is faster
#define NIB_CUDA_SKINNY_OUTPUTS 8 // products of one call at most

// y[r, o] = x[r] . weight[o] + bias[o] + added[r, o]
struct nib_cuda_skinny_output {
    const uint16_t *weight; /* [out, cols] bf16, 16-byte aligned */
    const float *bias;      /* [out], or NULL */
    const float *added;     /* [rows, y_pitch], or NULL; may be y */
    float *y;               /* [rows, y_pitch]: at its first column */
    int64_t y_pitch;
    int32_t out;
};

// The inputs are x as bf16, or the bf16 rounding of rms_norm(x_wide) (see struct nib_ops), which every block then works
// out for itself: cheaper than a launch of its own for up to 4 rows.
struct nib_cuda_skinny_linear {
    const uint16_t *x;        /* [rows, cols] bf16, or NULL */
    const float *x_wide;      /* [rows, cols], or NULL */
    const float *norm_weight; /* [cols] */
    float eps;
    bool any_order;     // the order of a row's sums may depend on the number of rows, where that is faster
    int32_t rows, cols; // cols: a multiple of 8
    int32_t n_outputs;
    struct nib_cuda_skinny_output outputs[NIB_CUDA_SKINNY_OUTPUTS];
};
cudaError_t nib_cuda_multiply_skinny(cudaStream_t stream, const struct nib_cuda_skinny_linear *call);

// Whether the shape is within the kernel's limits: else another product must be used.
bool nib_cuda_skinny_takes(int32_t rows, int32_t cols);

#ifdef __cplusplus
}
#endif
#endif
