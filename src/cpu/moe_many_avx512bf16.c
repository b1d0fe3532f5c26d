// AVX-512 BF16 for many activation rows, as in prefill: eight weight rows at a time are unpacked to bf16, a panel that
// stays in L1, and every activation row meets them there. Unpacking is then shared by up to 64 rows, and the product is
// four loads short of pure vdpbf16ps. Sums are the same bits as for few rows.
#include "cpu/moe_avx512bf16.h"

#define PANEL_CHUNKS 8
#define HALF 8        // weight rows unpacked together
#define TILE_ROWS 4   // sums and products of 4 x 3
#define TILE_TOKENS 3 // take 24 registers

// [row][chunk][plane][word]
typedef uint16_t unpacked[HALF][PANEL_CHUNKS][4][32];

static void unpack_half(const struct panel *panel, int first, uint16_t (*weights)[PANEL_CHUNKS][4][32])
{
    const __m512i table = load_table(codes_raised);
    for (int i = 0; i < HALF; i++) {
        const uint8_t *packed = panel_row(panel, first + i);
        const uint8_t *scales = nib_moe_block_scales(panel->block, first + i) + panel->start / NIB_MX_BLOCK;
        const uint8_t *far = NULL, *near = NULL; // hints as in multiply_chunk, moe_avx512bf16.c
        if (panel->ahead) {
            far = nib_moe_block_packed(panel->ahead, first + i) + panel->start / 2;
            near = panel_row(panel, first + HALF + i);
        }
        for (int64_t c = 0; c < panel->chunks + (panel->partial != 0); c++) {
            int64_t partial = c < panel->chunks ? 0 : panel->partial;
            if (far && !partial) {
                _mm_prefetch((const char *)far + c * CHUNK_BYTES, _MM_HINT_T1);
                _mm_prefetch((const char *)near + c * CHUNK_BYTES, _MM_HINT_T0);
            }
            __m512i word = load_packed(packed + c * CHUNK_BYTES, partial);
            __m512i fold = scale_folds(load_scales(scales + c * CHUNK_SCALES, partial));
            UNROLL
            for (int p = 0; p < 4; p++) {
                __m512i code = p ? _mm512_srli_epi16(word, (uint8_t)(4 * p)) : word;
                __m512i weight = subtract_saturating(_mm512_permutexvar_epi16(code, table), fold);
                _mm512_store_si512(weights[i][c][p], weight);
            }
        }
    }
}

INLINE void multiply_tile(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                          int m, bool starts, __m512 (*saved)[NIB_MOE_ROWS])
{
    __m512 sum[TILE_TOKENS][TILE_ROWS], product[TILE_TOKENS][TILE_ROWS];
    UNROLL
    for (int t = 0; t < m; t++) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            sum[t][i] = starts ? _mm512_setzero_ps() : saved[t][i];
    }
    for (int64_t c = 0; c < chunks; c++) {
        UNROLL
        for (int p = 0; p < 4; p++) {
            __m512bh weight[TILE_ROWS];
            UNROLL
            for (int i = 0; i < TILE_ROWS; i++)
                weight[i] = (__m512bh)_mm512_load_si512(weights[i][c][p]);
            UNROLL
            for (int t = 0; t < m; t++) {
                __m512bh value = load_x(x[t], c, p);
                UNROLL
                for (int i = 0; i < TILE_ROWS; i++)
                    product[t][i] = _mm512_dpbf16_ps(p ? product[t][i] : _mm512_setzero_ps(), weight[i], value);
            }
        }
        UNROLL
        for (int t = 0; t < m; t++) {
            UNROLL
            for (int i = 0; i < TILE_ROWS; i++)
                sum[t][i] = _mm512_add_ps(product[t][i], sum[t][i]);
        }
    }
    UNROLL
    for (int t = 0; t < m; t++) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            saved[t][i] = sum[t][i];
    }
}

static void multiply_tile_1(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                            bool starts, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_tile(weights, chunks, x, 1, starts, saved);
}

static void multiply_tile_2(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                            bool starts, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_tile(weights, chunks, x, 2, starts, saved);
}

static void multiply_tile_3(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                            bool starts, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_tile(weights, chunks, x, 3, starts, saved);
}

static void multiply_panel(const struct panel *panel, const uint16_t *const *x, int m,
                           __m512 (*saved)[NIB_MOE_ROWS])
{
    _Alignas(64) unpacked weights;
    int64_t chunks = panel->chunks + (panel->partial != 0);
    bool starts = panel->start == 0;
    for (int first = 0; first < NIB_MOE_ROWS; first += HALF) {
        unpack_half(panel, first, weights);
        for (int t = 0; t < m; t += TILE_TOKENS) {
            for (int i = 0; i < HALF; i += TILE_ROWS) {
                __m512(*sums)[NIB_MOE_ROWS] = (__m512(*)[NIB_MOE_ROWS]) & saved[t][first + i];
                if (m - t >= 3)
                    multiply_tile_3(weights + i, chunks, x + t, starts, sums);
                else if (m - t == 2)
                    multiply_tile_2(weights + i, chunks, x + t, starts, sums);
                else
                    multiply_tile_1(weights + i, chunks, x + t, starts, sums);
            }
        }
    }
}

void nib_moe_multiply_many(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                           const void *const *x, int m, float *out)
{
    const bool in_range = scales_in_range(block, n);
    struct panel panel = {.block = block, .ahead = ahead};
    __m512 saved[NIB_MOE_TOKENS][NIB_MOE_ROWS];
    if (ahead)
        prefetch_scales(ahead, n);
    for (; panel.start < n; panel.start += PANEL_CHUNKS * NIB_MOE_CHUNK) {
        const uint16_t *from[NIB_MOE_TOKENS];
        cut_panel(&panel, n, PANEL_CHUNKS * NIB_MOE_CHUNK);
        for (int t = 0; t < m; t++)
            from[t] = (const uint16_t *)x[t] + panel.start;
        if (__builtin_expect(in_range, 1))
            multiply_panel(&panel, from, m, saved);
        else
            nib_moe_multiply_panel_exact(&panel, from, m, saved);
    }
    for (int t = 0; t < m; t++)
        _mm512_storeu_ps(out + t * NIB_MOE_ROWS, reduce_rows(saved[t]));
}
