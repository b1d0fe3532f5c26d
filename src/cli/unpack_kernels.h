// The two kernels of the unpack path.
#ifndef NIB_CLI_UNPACK_KERNELS_H
#define NIB_CLI_UNPACK_KERNELS_H

#include <stdint.h>

// One MXFP4 row to bf16; the CPU must have AVX2.
void unpack_row_avx2(const uint8_t *packed /* [n/2] */, const uint8_t *scales /* [n/32] */, int64_t n,
                     uint16_t *row /* [n] bf16 */);

// c = a * b^T with fp32 sums, rounded to bf16; the CPU must have AVX2 and FMA.
void unpack_gemm_avx2(const uint16_t *a /* [m, k] bf16 */, const uint16_t *b /* [n, k] bf16 */,
                      uint16_t *c /* [m, n] bf16 */, int64_t m, int64_t n, int64_t k, int threads);

#endif
