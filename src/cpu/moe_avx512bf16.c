// AVX-512 BF16: packed weights become bf16 in registers, their block scale folded into the exponent, and go straight into
// vdpbf16ps.
//
// 64 packed bytes are 32 words of four elements. Word w holds elements 4w … 4w+3 and belongs to scale block w / 8, so the
// four nibble planes (the word shifted by 0, 4, 8, 12) share one vector of scales, and an activation row arranged by
// planes meets them without a shuffle. vpermw looks only at 5 bits of each index: a table of 32 entries that repeats
// itself needs no mask.
//
// A chunk's four products for one row and token start from zero and are scaled by their blocks' 2^(s-127) when they are
// added to the sum. That can be done in two ways that give the same bits, because a power of two commutes with rounding:
// as a multiply-add of the chunk's sum, the cheaper for few tokens, or folded into the weights' exponents, once for many
// tokens. Folding is a saturating subtraction of (252 - s) << 7 from codes whose exponent was raised by 125: what is
// zero stays zero. Blocks of rows with a scale outside 2^-63 … 2^63, where exponents could leave their field, take a plain
// path. (Sums below 2^-60 or above 2^60 of fp32's range may lose their last bits differently in the two ways.)
#include "cpu/moe_kernel.h"

#include <immintrin.h>
#include <stdbool.h>

#include "cpu/moe_activation.h"

#define SCALE_LOWEST 64
#define SCALE_HIGHEST 190
#define FOLD_FROM 5 // activation rows in one multiply
#define PANEL_CHUNKS 32
#define CHUNK_BYTES (NIB_MOE_CHUNK / 2)
#define CHUNK_SCALES (NIB_MOE_CHUNK / NIB_MX_BLOCK)

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// A stretch of a block's columns.
struct panel {
    const struct nib_moe_block *block;
    const struct nib_moe_block *ahead; // to prefetch, or NULL
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

// `rows` rows of a panel.
struct rows {
    const uint8_t *packed[8], *scales[8];
};

INLINE void multiply_chunk(const struct rows *from, int64_t c, int64_t partial, int rows, const uint16_t *const *x,
                           int m, __m512 *sum /* [m, rows] */)
{
    const bool fold = m >= FOLD_FROM;
    const __m512i table = load_table(fold ? codes_raised : codes_plain);
    __m512i word[8], scales[8], folds[8];
    __m512 product[16];
    UNROLL
    for (int i = 0; i < rows; i++) {
        word[i] = load_packed(from->packed[i] + c * CHUNK_BYTES, partial);
        scales[i] = load_scales(from->scales[i] + c * CHUNK_SCALES, partial);
        folds[i] = fold ? scale_folds(scales[i]) : scales[i];
    }
    UNROLL
    for (int p = 0; p < 4; p++) {
        __m512bh weight[8];
        UNROLL
        for (int i = 0; i < rows; i++) {
            __m512i code = p ? _mm512_srli_epi16(word[i], (uint8_t)(4 * p)) : word[i];
            __m512i value = _mm512_permutexvar_epi16(code, table);
            weight[i] = (__m512bh)(fold ? subtract_saturating(value, folds[i]) : value);
        }
        UNROLL
        for (int t = 0; t < m; t++) {
            __m512bh value = load_x(x[t], c, p);
            UNROLL
            for (int i = 0; i < rows; i++) {
                __m512 *d = &product[t * rows + i];
                *d = _mm512_dpbf16_ps(p ? *d : _mm512_setzero_ps(), weight[i], value);
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int t = 0; t < m; t++) {
            __m512 *s = &sum[t * rows + i], d = product[t * rows + i];
            *s = fold ? _mm512_add_ps(d, *s) : _mm512_fmadd_ps(d, scale_floats(scales[i]), *s);
        }
    }
}

// All rows of the panel, `rows` at a time, so that their sums stay in registers.
INLINE void multiply_panel(const struct panel *panel, int rows, const uint16_t *const *x, int m,
                           __m512 (*saved)[NIB_MOE_ROWS])
{
    for (int first = 0; first < NIB_MOE_ROWS; first += rows) {
        struct rows from;
        __m512 sum[16];
        UNROLL
        for (int i = 0; i < rows; i++) {
            from.packed[i] = nib_moe_block_packed(panel->block, first + i) + panel->start / 2;
            from.scales[i] = nib_moe_block_scales(panel->block, first + i) + panel->start / NIB_MX_BLOCK;
            UNROLL
            for (int t = 0; t < m; t++)
                sum[t * rows + i] = panel->start ? saved[t][first + i] : _mm512_setzero_ps();
        }
        if (panel->ahead) {
            // both blocks have the same strides
            uintptr_t distance = (uintptr_t)nib_moe_block_packed(panel->ahead, first) -
                                 (uintptr_t)nib_moe_block_packed(panel->block, first);
            for (int64_t c = 0; c < panel->chunks; c++) {
                UNROLL
                for (int i = 0; i < rows; i++)
                    _mm_prefetch(
                        (const char *)((uintptr_t)from.packed[i] + (uintptr_t)(c * CHUNK_BYTES) + distance),
                        _MM_HINT_T1);
                multiply_chunk(&from, c, 0, rows, x, m, sum);
            }
        } else {
            for (int64_t c = 0; c < panel->chunks; c++)
                multiply_chunk(&from, c, 0, rows, x, m, sum);
        }
        if (panel->partial)
            multiply_chunk(&from, panel->chunks, panel->partial, rows, x, m, sum);
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int t = 0; t < m; t++)
                saved[t][first + i] = sum[t * rows + i];
        }
    }
}

// The same for any scales.
static void multiply_panel_exact(const struct panel *panel, const uint16_t *const *x, int m,
                                 __m512 (*saved)[NIB_MOE_ROWS])
{
    const __m512i table = load_table(codes_plain);
    int64_t chunks = panel->chunks + (panel->partial != 0);
    for (int row = 0; row < NIB_MOE_ROWS; row++) {
        const uint8_t *packed = nib_moe_block_packed(panel->block, row) + panel->start / 2;
        const uint8_t *scales = nib_moe_block_scales(panel->block, row) + panel->start / NIB_MX_BLOCK;
        for (int t = 0; t < m; t++) {
            __m512 sum = panel->start ? saved[t][row] : _mm512_setzero_ps();
            for (int64_t c = 0; c < chunks; c++) {
                int64_t blocks = c < panel->chunks ? CHUNK_SCALES : panel->partial;
                __m512i word = load_packed(packed + c * CHUNK_BYTES, blocks == CHUNK_SCALES ? 0 : blocks);
                _Alignas(64) float scale[16] = {0};
                for (int lane = 0; lane < 4 * blocks; lane++)
                    scale[lane] = nib_e8m0_to_f32(scales[c * CHUNK_SCALES + lane / 4]);
                __m512 product = _mm512_setzero_ps();
                for (int p = 0; p < 4; p++) {
                    __m512i code = _mm512_srli_epi16(word, (uint8_t)(4 * p));
                    product = _mm512_dpbf16_ps(product, (__m512bh)_mm512_permutexvar_epi16(code, table),
                                               load_x(x[t], c, p));
                }
                sum = _mm512_fmadd_ps(product, _mm512_load_ps(scale), sum);
            }
            saved[t][row] = sum;
        }
    }
}

// True when every scale of the panel is in the range of the fast paths.
static bool scales_in_range(const struct panel *panel, int64_t n_scales)
{
    const __m512i lowest = _mm512_set1_epi8(SCALE_LOWEST), span = _mm512_set1_epi8(SCALE_HIGHEST - SCALE_LOWEST);
    __mmask64 outside = 0;
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(panel->block, i) + panel->start / NIB_MX_BLOCK;
        int64_t k = 0;
        for (; k + 64 <= n_scales; k += 64)
            outside |= _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(_mm512_loadu_si512(scales + k), lowest), span);
        __mmask64 rest = ((__mmask64)1 << (n_scales - k)) - 1;
        __m512i last = _mm512_sub_epi8(_mm512_maskz_loadu_epi8(rest, scales + k), lowest);
        outside |= _mm512_mask_cmpgt_epu8_mask(rest, last, span);
    }
    return outside == 0;
}

static void prefetch_scales(const struct panel *panel, int64_t n_scales)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(panel->ahead, i) + panel->start / NIB_MX_BLOCK;
        for (int64_t k = 0; k < n_scales; k += 64)
            _mm_prefetch((const char *)scales + k, _MM_HINT_T1);
    }
}

// The 16 lanes of each of 16 sums added in one fixed tree: lane i of the result belongs to sum[i].
static __m512 reduce_rows(const __m512 *sum /* [16] */)
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

static void multiply_panel_1(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 8, x, 1, saved);
}

static void multiply_panel_2(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 4, x, 2, saved);
}

static void multiply_panel_3(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 2, x, 3, saved);
}

static void multiply_panel_4(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 2, x, 4, saved);
}

static void multiply_panel_5(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 2, x, 5, saved);
}

static void multiply_panel_6(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 2, x, 6, saved);
}

static void multiply_panel_7(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 2, x, 7, saved);
}

static void multiply_panel_8(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_panel(panel, 2, x, 8, saved);
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    static void (*const panels[NIB_MOE_TOKENS])(const struct panel *, const uint16_t *const *,
                                                __m512(*)[NIB_MOE_ROWS]) = {
        multiply_panel_1, multiply_panel_2, multiply_panel_3, multiply_panel_4,
        multiply_panel_5, multiply_panel_6, multiply_panel_7, multiply_panel_8};
    const int64_t panel_columns = PANEL_CHUNKS * NIB_MOE_CHUNK;
    struct panel panel = {.block = block, .ahead = ahead};
    __m512 saved[NIB_MOE_TOKENS][NIB_MOE_ROWS];
    for (panel.start = 0; panel.start < n; panel.start += panel_columns) {
        int64_t columns = n - panel.start < panel_columns ? n - panel.start : panel_columns;
        const uint16_t *from[NIB_MOE_TOKENS];
        panel.chunks = columns / NIB_MOE_CHUNK;
        panel.partial = columns % NIB_MOE_CHUNK / NIB_MX_BLOCK;
        for (int t = 0; t < m; t++)
            from[t] = (const uint16_t *)x[t] + panel.start;
        if (ahead)
            prefetch_scales(&panel, columns / NIB_MX_BLOCK);
        if (__builtin_expect(scales_in_range(&panel, columns / NIB_MX_BLOCK), 1))
            panels[m - 1](&panel, from, saved);
        else
            multiply_panel_exact(&panel, from, m, saved);
    }
    for (int t = 0; t < m; t++)
        _mm512_storeu_ps(out + t * NIB_MOE_ROWS, reduce_rows(saved[t]));
}

static void arrange(const uint16_t *x, int64_t n, void *row)
{
    uint16_t *planes = row;
    int64_t whole = n / NIB_MOE_CHUNK * NIB_MOE_CHUNK;
    if (whole < n)
        memset(planes + whole, 0, NIB_MOE_CHUNK * sizeof *planes);
    for (int64_t i = 0; i < n; i++)
        planes[nib_moe_plane_index(i)] = x[i];
}

static void activate(const struct nib_activation *activation, const float *gate_up, int64_t first, void *row,
                     void *rest)
{
    float value[8];
    moe_activate_8(activation, gate_up, value);
    uint16_t *planes = row, *rest_planes = rest;
    for (int i = 0; i < 8; i++) {
        int64_t place = nib_moe_plane_index(first + i);
        planes[place] = nib_bf16_from_f32(value[i]);
        if (rest)
            rest_planes[place] = nib_bf16_from_f32(value[i] - nib_bf16_to_f32(planes[place]));
    }
}

const struct nib_moe_kernel nib_moe_avx512bf16 = {
    .name = "avx512bf16",
    .tier = NIB_CPU_AVX512BF16,
    .reason = "vdpbf16ps on weights unpacked in registers with their scale in the exponent",
    .element_bytes = 2,
    .arrange = arrange,
    .multiply = multiply,
    .activate = activate,
};
