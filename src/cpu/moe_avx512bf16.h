// What the two files of the AVX-512 BF16 kernel share: the arithmetic is described in moe_avx512bf16.c.
#ifndef NIB_CPU_MOE_AVX512BF16_H
#define NIB_CPU_MOE_AVX512BF16_H

#include "cpu/moe_panel_avx512.h"

// Codes 0 … 15 as bf16, and with the exponent raised by 125, so that 6 has the largest there is.
static const _Alignas(32) uint16_t codes_plain[16] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                                      0, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
static const _Alignas(32) uint16_t codes_raised[16] = {0, 0x7d80, 0x7e00, 0x7e40, 0x7e80, 0x7ec0, 0x7f00, 0x7f40,
                                                       0, 0xfd80, 0xfe00, 0xfe40, 0xfe80, 0xfec0, 0xff00, 0xff40};

INLINE __m512bh load_x(const uint16_t *x, int64_t chunk, int plane)
{
    return (__m512bh)_mm512_load_si512(x + chunk * NIB_MOE_CHUNK + plane * 32);
}

// The four scales of a chunk of one row, zeros behind those of a partial one.
INLINE __m512i load_scales(const uint8_t *scales, int64_t partial)
{
    int32_t four;
    if (partial)
        return _mm512_zextsi128_si512(_mm_maskz_loadu_epi8((__mmask16)((1u << partial) - 1), scales));
    memcpy(&four, scales, sizeof four);
    return _mm512_zextsi128_si512(_mm_cvtsi32_si128(four));
}

// Scale L, for the 128-bit lane L: as the fp32 2^(s-127) …
INLINE __m512 scale_floats(__m512i scales)
{
    const __m512i top_byte =
        _mm512_set_epi64(0x0304040403040404, 0x0304040403040404, 0x0204040402040404, 0x0204040402040404,
                         0x0104040401040404, 0x0104040401040404, 0x0004040400040404, 0x0004040400040404);
    return _mm512_castsi512_ps(_mm512_srli_epi32(_mm512_permutexvar_epi8(top_byte, scales), 1));
}

// … or as the words to subtract from the raised codes.
INLINE __m512i scale_folds(__m512i scales)
{
    const __m512i top_byte =
        _mm512_set_epi64(0x0304030403040304, 0x0304030403040304, 0x0204020402040204, 0x0204020402040204,
                         0x0104010401040104, 0x0104010401040104, 0x0004000400040004, 0x0004000400040004);
    __m512i exponent = _mm512_srli_epi16(_mm512_permutexvar_epi8(top_byte, scales), 1);
    return _mm512_sub_epi16(_mm512_set1_epi16(252 << 7), exponent);
}

// a - b, or zero where that is negative: as vpsubusw does, which on Zen 4 has but the two pipes of vdpbf16ps.
INLINE __m512i subtract_saturating(__m512i a, __m512i b)
{
    __m512i larger = _mm512_max_epu16(a, b);
    __asm__("" : "+v"(larger)); // or the compiler makes a vpsubusw of it
    return _mm512_sub_epi16(larger, b);
}

// The panel's sums for any scales, slowly: saved[t][row] for m activation rows.
void nib_moe_multiply_panel_exact(const struct panel *panel, const uint16_t *const *x /* [m] */, int m,
                                  __m512 (*saved)[NIB_MOE_ROWS] /* [m] */);

// arrange and activate of struct nib_moe_tier for rows in planes.
void nib_moe_arrange_planes(const uint16_t *x /* [n] bf16 */, int64_t n, void *row);
void nib_moe_activate_planes(const struct nib_activation *activation, const float *gate_up /* [2, 8] */,
                             int64_t first, void *row, void *rest);

// A multiply of more than NIB_MOE_FEW activation rows.
void nib_moe_multiply_many(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                           const void *const *x /* [m] */, int m, float *out /* [m, 16] */);

#endif
