// The plain version, and which one runs.
#include <stdint.h>

#include "base/cpu_features.h"
#include "convert/rows.h"

// The magnitudes that occur in 16 packed bytes, as bits 0..7.
static unsigned present_codes(const uint8_t *codes /* [16] */)
{
    unsigned seen = 0;
    for (int i = 0; i < NIB_MX_BLOCK / 2; i++)
        seen |= 1u << (codes[i] & 7) | 1u << (codes[i] >> 4 & 7);
    return seen;
}

static void write_block(const uint8_t *codes /* [16] */, const uint8_t *table /* [16] */,
                        uint8_t *bytes /* [32] */)
{
    for (int i = 0; i < NIB_MX_BLOCK / 2; i++) {
        bytes[2 * i] = table[codes[i] & 15];
        bytes[2 * i + 1] = table[codes[i] >> 4];
    }
}

#include "convert/fp8_row_kernel.h"

enum nib_fp8_verdict nib_fp8_row_ref(const uint8_t *codes, const uint8_t *scales, int64_t cols, uint8_t *bytes,
                                     float *scale, int *span)
{
    return fp8_row(codes, scales, cols, bytes, scale, span);
}

nib_fp8_row *nib_fp8_row_pick(void)
{
    enum nib_cpu_tier tier;
    bool avx2 = nib_cpu_pick_tier(&tier, NULL) == NIB_OK && tier >= NIB_CPU_AVX2;
    return avx2 ? nib_fp8_row_avx2 : nib_fp8_row_ref;
}
