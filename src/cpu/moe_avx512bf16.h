// What the two files of the AVX-512 BF16 kernel share: the arithmetic is described in moe_avx512bf16.c.
#ifndef NIB_CPU_MOE_AVX512BF16_H
#define NIB_CPU_MOE_AVX512BF16_H

#include "cpu/moe_packed.h"
#include "cpu/unroll.h"

#include <immintrin.h>
#include <stdbool.h>

#define SCALE_LOWEST 64
#define SCALE_HIGHEST 190
#define CHUNK_BYTES (NIB_MOE_CHUNK / 2)
#define CHUNK_SCALES (NIB_MOE_CHUNK / NIB_MX_BLOCK)

// A stretch of a block's columns.
struct panel {
    const struct nib_moe_block *block;
    const struct nib_moe_block *ahead; // to prefetch, or NULL
    const uint8_t *after;              // packed weights of the first rows that are multiplied behind this panel
    int64_t start;                     // its first column
    int64_t chunks;                    // whole ones
    int64_t partial;                   // scales in a last, partial chunk
};

// Codes 0 … 15 as bf16, and with the exponent raised by 125, so that 6 has the largest there is.
static const _Alignas(32) uint16_t codes_plain[16] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
                                                      0, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
static const _Alignas(32) uint16_t codes_raised[16] = {0, 0x7d80, 0x7e00, 0x7e40, 0x7e80, 0x7ec0, 0x7f00, 0x7f40,
                                                       0, 0xfd80, 0xfe00, 0xfe40, 0xfe80, 0xfec0, 0xff00, 0xff40};

INLINE __m512i load_table(const uint16_t *codes)
{
    return _mm512_broadcast_i64x4(_mm256_load_si256((const __m256i *)(const void *)codes));
}

INLINE __m512bh load_x(const uint16_t *x, int64_t chunk, int plane)
{
    return (__m512bh)_mm512_load_si512(x + chunk * NIB_MOE_CHUNK + plane * 32);
}

// A chunk of one row: its words and its four scales, zeros behind them and behind those of a partial chunk.
INLINE __m512i load_packed(const uint8_t *packed, int64_t partial)
{
    return partial ? _mm512_maskz_loadu_epi16((1u << partial * 8) - 1, packed) : _mm512_loadu_si512(packed);
}

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

// True when every scale of the block is in the range of the fast paths.
static inline bool scales_in_range(const struct nib_moe_block *block, int64_t n)
{
    const __m512i lowest = _mm512_set1_epi8(SCALE_LOWEST), span = _mm512_set1_epi8(SCALE_HIGHEST - SCALE_LOWEST);
    int64_t n_scales = n / NIB_MX_BLOCK;
    __mmask64 rest = ((__mmask64)1 << n_scales % 64) - 1;
    __m512i largest = _mm512_setzero_si512(); // above the lowest, modulo 256
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(block, i);
        int64_t k = 0;
        for (; k + 64 <= n_scales; k += 64)
            largest = _mm512_max_epu8(largest, _mm512_sub_epi8(_mm512_loadu_si512(scales + k), lowest));
        __m512i last = _mm512_maskz_sub_epi8(rest, _mm512_maskz_loadu_epi8(rest, scales + k), lowest);
        largest = _mm512_max_epu8(largest, last);
    }
    return _mm512_cmpgt_epu8_mask(largest, span) == 0;
}

static inline void prefetch_scales(const struct nib_moe_block *block, int64_t n)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(block, i);
        for (int64_t k = 0; k < n / NIB_MX_BLOCK; k += 64)
            _mm_prefetch((const char *)scales + k, _MM_HINT_T1);
    }
}

// Packed weights of a row of the panel, or counted on beyond its last, of one that is multiplied behind it.
static inline const uint8_t *panel_row(const struct panel *panel, int row)
{
    if (row >= NIB_MOE_ROWS)
        return panel->after + (row - NIB_MOE_ROWS) * panel->block->packed_stride;
    return nib_moe_block_packed(panel->block, row) + panel->start / 2;
}

// The panel's columns from its start on, at most `most` of a block's n.
static inline void cut_panel(struct panel *panel, int64_t n, int64_t most)
{
    int64_t columns = n - panel->start < most ? n - panel->start : most;
    panel->chunks = columns / NIB_MOE_CHUNK;
    panel->partial = columns % NIB_MOE_CHUNK / NIB_MX_BLOCK;
    if (panel->ahead)
        panel->after = panel->start + columns < n
                           ? nib_moe_block_packed(panel->block, 0) + (panel->start + columns) / 2
                           : nib_moe_block_packed(panel->ahead, 0);
}

// The 16 lanes of each of 16 sums added in one fixed tree: lane i of the result belongs to sum[i].
INLINE __m512 reduce_rows(const __m512 *sum /* [16] */)
{
    __m512 pair[8], quad[4];
    UNROLL
    for (int i = 0; i < 8; i++)
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(sum[2 * i], sum[2 * i + 1]),
                                _mm512_unpackhi_ps(sum[2 * i], sum[2 * i + 1]));
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pair[2 * i]), b = _mm512_castps_pd(pair[2 * i + 1]);
        quad[i] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 low =
        _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44), _mm512_shuffle_f32x4(quad[0], quad[1], 0xee));
    __m512 high =
        _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x44), _mm512_shuffle_f32x4(quad[2], quad[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
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
