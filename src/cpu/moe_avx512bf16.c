// AVX-512 BF16: packed weights become bf16 in registers, their block scale folded into the exponent, and go straight into
// vdpbf16ps.
//
// 64 packed bytes are 32 words of four elements. Word w holds elements 4w … 4w+3 and belongs to scale block w / 8, so the
// four nibble planes (the word shifted by 0, 4, 8, 12) share one vector of scales, and an activation row arranged by
// planes meets them without a shuffle. vpermw looks only at 5 bits of each index: a table of 32 entries that repeats
// itself needs no mask.
//
// The table holds each code's bf16 with an exponent raised so far that one saturating subtraction of (255 - s) << 7 both
// applies the scale 2^(s-127) (times 2^-3, which the sum gives back at the end) and leaves zero at zero. That is exact for
// 5 <= s <= 254; a block of rows with any other scale takes the exact path, which scales the fp32 sums of a chunk instead.
#include "cpu/moe_kernel.h"

#include <immintrin.h>
#include <stdbool.h>

#include "cpu/moe_activation.h"

#define PANEL_CHUNKS 32
#define PANEL_SCALES (PANEL_CHUNKS * NIB_MOE_CHUNK / NIB_MX_BLOCK)
#define FOLD_LOWEST 5
#define FOLD_LIFT 3 // the sums are 2^-3 of what they mean

#define INLINE static inline __attribute__((always_inline))

// A panel: up to 32 chunks of the 16 rows.
struct panel {
    const uint8_t *packed[NIB_MOE_ROWS];
    const uint8_t *scales[NIB_MOE_ROWS];
    const uint8_t *ahead[NIB_MOE_ROWS]; // what to prefetch, if `prefetch`
    bool prefetch, exact;
    bool starts, ends;                                       // the rows
    int64_t chunks;                                          // whole ones
    __mmask32 partial;                                       // words of a last, partial chunk
    _Alignas(64) uint16_t folds[NIB_MOE_ROWS][PANEL_SCALES]; // (255 - s) << 7
};

INLINE __m512i load_x(const void *x, int64_t chunk, int plane)
{
    return _mm512_load_si512((const uint16_t *)x + chunk * NIB_MOE_CHUNK + plane * 32);
}

// Codes 0 … 15 as bf16 times 2^lift, twice.
INLINE __m512i code_table(int lift)
{
    static const uint16_t magnitudes[8] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
    uint16_t table[32];
    for (int i = 0; i < 32; i++) {
        uint16_t magnitude = magnitudes[i & 7];
        uint16_t raised = magnitude ? (uint16_t)(magnitude + (lift << 7)) : 0;
        table[i] = (uint16_t)(raised | (i & 8 && magnitude ? 0x8000 : 0));
    }
    return _mm512_loadu_si512(table);
}

// True when every scale can be folded.
static bool expand_scales(struct panel *panel, int64_t n_scales)
{
    const __m512i lowest = _mm512_set1_epi16(FOLD_LOWEST), span = _mm512_set1_epi16(254 - FOLD_LOWEST);
    __mmask32 outside = 0;
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        for (int64_t k = 0; k < n_scales; k += 32) {
            __mmask32 live = n_scales - k < 32 ? (1u << (n_scales - k)) - 1 : ~0u;
            __m256i bytes = _mm256_mask_loadu_epi8(_mm256_set1_epi8(127), live, panel->scales[i] + k);
            __m512i scale = _mm512_cvtepu8_epi16(bytes);
            outside |= _mm512_cmpgt_epu16_mask(_mm512_sub_epi16(scale, lowest), span);
            __m512i fold = _mm512_xor_si512(_mm512_slli_epi16(scale, 7), _mm512_set1_epi16(0x7f80));
            _mm512_store_si512(panel->folds[i] + k, fold);
        }
    }
    return outside == 0;
}

// The 16 lanes of each of 16 accumulators, summed in one fixed tree: lane j of the result belongs to sum[j].
INLINE __m512 reduce_16(const __m512 *sum)
{
    __m512 pair[8], quad[4];
    for (int i = 0; i < 8; i++)
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(sum[2 * i], sum[2 * i + 1]),
                                _mm512_unpackhi_ps(sum[2 * i], sum[2 * i + 1]));
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

// One chunk of `rows` rows times `m` activation rows into sum[row][token].
INLINE void multiply_chunk(const struct panel *panel, int64_t c, __mmask32 words, int first, int rows,
                           const void *const *x, int m, __m512 (*sum)[NIB_MOE_TOKENS])
{
    const __m512i table = code_table(254 - 129);
    // 128-bit lane L takes word L of the four folds, eight times
    const __m512i spread =
        _mm512_set_epi64(0x0706070607060706, 0x0706070607060706, 0x0504050405040504, 0x0504050405040504,
                         0x0302030203020302, 0x0302030203020302, 0x0100010001000100, 0x0100010001000100);
    __m512i packed[NIB_MOE_ROWS], fold[NIB_MOE_ROWS];
    for (int i = 0; i < rows; i++) {
        const uint8_t *source = panel->packed[first + i] + c * 64;
        packed[i] = words == ~0u ? _mm512_loadu_si512(source) : _mm512_maskz_loadu_epi16(words, source);
        int64_t four;
        memcpy(&four, panel->folds[first + i] + c * 4, sizeof four);
        fold[i] = _mm512_shuffle_epi8(_mm512_set1_epi64(four), spread);
    }
    for (int p = 0; p < 4; p++) {
        __m512bh weight[NIB_MOE_ROWS];
        for (int i = 0; i < rows; i++) {
            __m512i code = p ? _mm512_srli_epi16(packed[i], (unsigned)(4 * p)) : packed[i];
            weight[i] = (__m512bh)_mm512_subs_epu16(_mm512_permutexvar_epi16(code, table), fold[i]);
        }
        for (int t = 0; t < m; t++) {
            __m512bh value = (__m512bh)load_x(x[t], c, p);
            for (int i = 0; i < rows; i++)
                sum[i][t] = _mm512_dpbf16_ps(sum[i][t], weight[i], value);
        }
    }
}

// The same for any scale: the fp32 sum of each block of the chunk is scaled.
static void multiply_chunk_exact(const struct panel *panel, int64_t c, __mmask32 words, int first, int rows,
                                 const void *const *x, int m, __m512 (*sum)[NIB_MOE_TOKENS])
{
    const __m512i table = code_table(0);
    for (int i = 0; i < rows; i++) {
        __m512i packed = _mm512_maskz_loadu_epi16(words, panel->packed[first + i] + c * 64);
        _Alignas(64) float scale[16] = {0};
        for (int lane = 0; lane < 16 && (words >> (2 * lane) & 1); lane++)
            scale[lane] = nib_e8m0_to_f32(panel->scales[first + i][c * 4 + lane / 4]) * (1.0f / (1 << FOLD_LIFT));
        for (int t = 0; t < m; t++) {
            __m512 product = _mm512_setzero_ps();
            for (int p = 0; p < 4; p++) {
                __m512i code = _mm512_srli_epi16(packed, (unsigned)(4 * p));
                product = _mm512_dpbf16_ps(product, (__m512bh)_mm512_permutexvar_epi16(code, table),
                                           (__m512bh)load_x(x[t], c, p));
            }
            sum[i][t] = _mm512_fmadd_ps(product, _mm512_load_ps(scale), sum[i][t]);
        }
    }
}

INLINE void multiply_rows(const struct panel *panel, int first, int rows, const void *const *x, int m,
                          __m512 (*sum)[NIB_MOE_TOKENS])
{
    for (int64_t c = 0; c < panel->chunks; c++) {
        if (panel->prefetch)
            for (int i = 0; i < rows; i++)
                _mm_prefetch((const char *)panel->ahead[first + i] + c * 64, _MM_HINT_T0);
        multiply_chunk(panel, c, ~0u, first, rows, x, m, sum);
    }
    if (panel->partial)
        multiply_chunk(panel, panel->chunks, panel->partial, first, rows, x, m, sum);
}

static void multiply_rows_exact(const struct panel *panel, int first, int rows, const void *const *x, int m,
                                __m512 (*sum)[NIB_MOE_TOKENS])
{
    for (int64_t c = 0; c < panel->chunks; c++)
        multiply_chunk_exact(panel, c, ~0u, first, rows, x, m, sum);
    if (panel->partial)
        multiply_chunk_exact(panel, panel->chunks, panel->partial, first, rows, x, m, sum);
}

// The block's panel, `rows` rows at a time, for m activation rows; rows * m <= 16. `saved` carries the sums over panels.
INLINE void multiply_panel(const struct panel *panel, int rows, const void *const *x, int m, __m512 *saved,
                           float *out)
{
    for (int first = 0; first < NIB_MOE_ROWS; first += rows) {
        __m512 sum[NIB_MOE_ROWS][NIB_MOE_TOKENS];
        __m512 *kept = saved + first * m;
        for (int i = 0; i < rows; i++)
            for (int t = 0; t < m; t++)
                sum[i][t] = panel->starts ? _mm512_setzero_ps() : kept[i * m + t];
        if (__builtin_expect(panel->exact, 0))
            multiply_rows_exact(panel, first, rows, x, m, sum);
        else
            multiply_rows(panel, first, rows, x, m, sum);
        if (!panel->ends) {
            for (int i = 0; i < rows; i++)
                for (int t = 0; t < m; t++)
                    kept[i * m + t] = sum[i][t];
            continue;
        }
        __m512 flat[16];
        for (int j = 0; j < 16; j++)
            flat[j] = j < rows * m ? sum[j % rows][j / rows] : _mm512_setzero_ps();
        _Alignas(64) float result[16];
        _mm512_store_ps(result, _mm512_mul_ps(reduce_16(flat), _mm512_set1_ps(1 << FOLD_LIFT)));
        for (int t = 0; t < m; t++)
            memcpy(out + t * NIB_MOE_ROWS + first, result + t * rows, (size_t)rows * sizeof *out);
    }
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    struct panel panel;
    __m512 saved[NIB_MOE_ROWS * NIB_MOE_TOKENS];
    const void *px[NIB_MOE_TOKENS];
    panel.prefetch = ahead != NULL;
    for (int64_t start = 0; start < n; start += PANEL_CHUNKS * NIB_MOE_CHUNK) {
        int64_t columns = n - start < PANEL_CHUNKS * NIB_MOE_CHUNK ? n - start : PANEL_CHUNKS * NIB_MOE_CHUNK;
        panel.starts = start == 0;
        panel.ends = start + columns == n;
        panel.chunks = columns / NIB_MOE_CHUNK;
        panel.partial = (1u << (columns % NIB_MOE_CHUNK / 4)) - 1;
        for (int i = 0; i < NIB_MOE_ROWS; i++) {
            panel.packed[i] = nib_moe_block_packed(block, i) + start / 2;
            panel.scales[i] = nib_moe_block_scales(block, i) + start / NIB_MX_BLOCK;
            if (ahead) {
                panel.ahead[i] = nib_moe_block_packed(ahead, i) + start / 2;
                for (int64_t k = 0; k < columns / NIB_MX_BLOCK; k += 64)
                    _mm_prefetch((const char *)nib_moe_block_scales(ahead, i) + start / NIB_MX_BLOCK + k,
                                 _MM_HINT_T0);
            }
        }
        panel.exact = !expand_scales(&panel, columns / NIB_MX_BLOCK);
        for (int t = 0; t < m; t++)
            px[t] = (const uint16_t *)x[t] + start;
        switch (m) {
        case 1:
            multiply_panel(&panel, 16, px, 1, saved, out);
            break;
        case 2:
            multiply_panel(&panel, 8, px, 2, saved, out);
            break;
        case 3:
            multiply_panel(&panel, 4, px, 3, saved, out);
            break;
        case 4:
            multiply_panel(&panel, 4, px, 4, saved, out);
            break;
        case 5:
            multiply_panel(&panel, 2, px, 5, saved, out);
            break;
        case 6:
            multiply_panel(&panel, 2, px, 6, saved, out);
            break;
        case 7:
            multiply_panel(&panel, 2, px, 7, saved, out);
            break;
        default:
            multiply_panel(&panel, 2, px, 8, saved, out);
            break;
        }
    }
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
