// Products of many rows by cuBLASLt, which is loaded when a device is opened and may be absent.
#ifndef NIB_CUDA_CUDA_GEMM_H
#define NIB_CUDA_CUDA_GEMM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "nibble/status.h"

struct nib_cuda_gemm;

// NULL in *gemm, and NIB_OK, where the library is not to be had; *why then says so (static).
nib_status nib_cuda_gemm_create(struct nib_cuda_gemm **gemm, const char **why, struct nib_error *err);
void nib_cuda_gemm_free(struct nib_cuda_gemm *gemm);

struct nib_cuda_gemm_call {
    float *y; /* [rows, y_pitch], at its first column */
    int64_t y_pitch;
    const uint16_t *x;      /* [rows, cols] bf16 */
    const uint16_t *weight; /* [out, cols] bf16 */
    const float *bias;      /* [out] or NULL */
    bool accumulate;        // y += instead of y =
    int64_t rows, cols, out;
};
// cudaErrorNotSupported when the library has no kernel for the shape.
cudaError_t nib_cuda_gemm_run(struct nib_cuda_gemm *gemm, cudaStream_t stream,
                              const struct nib_cuda_gemm_call *call);

#endif
