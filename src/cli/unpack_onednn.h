// c = a * b^T through oneDNN's inner product, when nibble was built with it.
#ifndef NIB_CLI_UNPACK_ONEDNN_H
#define NIB_CLI_UNPACK_ONEDNN_H

#include <stdbool.h>
#include <stdint.h>

// False when it is not there or refuses; then nothing was computed.
bool onednn_gemm(const uint16_t *a /* [m, k] bf16 */, const uint16_t *b /* [n, k] bf16 */,
                 uint16_t *c /* [m, n] bf16 */, int64_t m, int64_t n, int64_t k, int threads);

#endif
