// AVX-512 BF16 for many activation rows, as in prefill: four weight rows at a time are unpacked to bf16, a panel that stays in
// L1, and every activation row meets them there. Meanwhile the next four are unpacked into a second panel, a little between
// two chunks, mostly on pipes that vdpbf16ps leaves idle. Sums are the same bits as for few rows.
#include "cpu/moe_avx512bf16.h"

#define PANEL_CHUNKS 8
#define TILE_ROWS 4   // unpacked together; sums and products of 4 x 3
#define TILE_TOKENS 3 // take 24 registers

// [row][chunk][plane][word]
typedef uint16_t unpacked[TILE_ROWS][PANEL_CHUNKS][4][32];

// Rows of a panel that are to be unpacked.
struct source {
    const uint8_t *packed, *scales; // of the next row
    const uint8_t *far, *near;      // its hints as in multiply_chunk, moe_avx512bf16.c, or any packed bytes
    int64_t packed_stride, scales_stride;
    int64_t chunks, partial; // whole ones, and the scales of a last one
    int rows;                // left
    uint16_t (*to)[4][32];
};

static struct source rows_of(const struct panel *panel, int first, uint16_t (*to)[PANEL_CHUNKS][4][32])
{
    struct source s = {.packed = panel_row(panel, first),
                       .scales = nib_moe_block_scales(panel->block, first) + panel->start / NIB_MX_BLOCK,
                       .packed_stride = panel->block->packed_stride,
                       .scales_stride = panel->block->scales_stride,
                       .chunks = panel->chunks,
                       .partial = panel->partial,
                       .rows = TILE_ROWS,
                       .to = to[0]};
    s.far = panel->ahead ? nib_moe_block_packed(panel->ahead, first) + panel->start / 2 : s.packed;
    s.near = panel->ahead ? panel_row(panel, first + TILE_ROWS) : s.packed;
    return s;
}

INLINE void unpack_chunk(const struct source *s, int64_t c, int64_t partial, __m512i table)
{
    __m512i word = load_packed(s->packed + c * CHUNK_BYTES, partial);
    __m512i fold = scale_folds(load_scales(s->scales + c * CHUNK_SCALES, partial));
    _mm_prefetch((const char *)s->far + c * CHUNK_BYTES, _MM_HINT_T1);
    _mm_prefetch((const char *)s->near + c * CHUNK_BYTES, _MM_HINT_T0);
    UNROLL
    for (int p = 0; p < 4; p++) {
        __m512i code = p ? _mm512_srli_epi16(word, (uint8_t)(4 * p)) : word;
        __m512i weight = subtract_saturating(_mm512_permutexvar_epi16(code, table), fold);
        _mm512_store_si512(s->to[c][p], weight);
    }
}

// The next row from chunk c on.
static void finish_row(struct source *s, int64_t c)
{
    const __m512i table = load_table(codes_raised);
    for (; c < s->chunks; c++)
        unpack_chunk(s, c, 0, table);
    if (s->partial)
        unpack_chunk(s, c, s->partial, table);
    s->packed += s->packed_stride;
    s->scales += s->scales_stride;
    s->far += s->packed_stride;
    s->near += s->packed_stride;
    s->to += PANEL_CHUNKS;
    s->rows--;
}

static void unpack_rows(struct source *s)
{
    while (s->rows)
        finish_row(s, 0);
}

INLINE __m512bh load_weight(const uint16_t *weights)
{
    __m512bh value = (__m512bh)_mm512_load_si512(weights);
#ifndef __clang__
    __asm__("" : "+v"(value)); // or gcc loads it anew for every token
#endif
    return value;
}

INLINE void multiply_chunk(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t c, const uint16_t *const *x, int m,
                           __m512 (*sum)[TILE_ROWS] /* [m] */)
{
    __m512 product[TILE_TOKENS][TILE_ROWS];
    UNROLL
    for (int p = 0; p < 4; p++) {
        __m512bh weight[TILE_ROWS];
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            weight[i] = load_weight(weights[i][c][p]);
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

// A tile; meanwhile a row of `next` is unpacked.
INLINE void multiply_tile(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                          int m, bool starts, struct source *next, __m512 (*saved)[NIB_MOE_ROWS])
{
    __m512 sum[TILE_TOKENS][TILE_ROWS];
    UNROLL
    for (int t = 0; t < m; t++) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            sum[t][i] = starts ? _mm512_setzero_ps() : saved[t][i];
    }
    int64_t c = 0, both = !next->rows ? 0 : next->chunks < chunks ? next->chunks : chunks;
    for (const __m512i table = load_table(codes_raised); c < both; c++) {
        unpack_chunk(next, c, 0, table);
        multiply_chunk(weights, c, x, m, sum);
    }
    if (next->rows)
        finish_row(next, both);
    for (; c < chunks; c++)
        multiply_chunk(weights, c, x, m, sum);
    UNROLL
    for (int t = 0; t < m; t++) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            saved[t][i] = sum[t][i];
    }
}

static void multiply_tile_1(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                            bool starts, struct source *next, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_tile(weights, chunks, x, 1, starts, next, saved);
}

static void multiply_tile_2(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                            bool starts, struct source *next, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_tile(weights, chunks, x, 2, starts, next, saved);
}

static void multiply_tile_3(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                            bool starts, struct source *next, __m512 (*saved)[NIB_MOE_ROWS])
{
    multiply_tile(weights, chunks, x, 3, starts, next, saved);
}

// The tiles of four rows and all activation rows; `next` is unpacked meanwhile.
static void multiply_rows(uint16_t (*weights)[PANEL_CHUNKS][4][32], int64_t chunks, const uint16_t *const *x,
                          int m, bool starts, struct source *next, __m512 (*saved)[NIB_MOE_ROWS])
{
    for (int t = 0; t < m; t += TILE_TOKENS) {
        if (m - t >= 3)
            multiply_tile_3(weights, chunks, x + t, starts, next, saved + t);
        else if (m - t == 2)
            multiply_tile_2(weights, chunks, x + t, starts, next, saved + t);
        else
            multiply_tile_1(weights, chunks, x + t, starts, next, saved + t);
    }
    unpack_rows(next);
}

// All columns and rows of a block whose scales are in range.
static void multiply_block(struct panel panel, int64_t n, const void *const *x, int m,
                           __m512 (*saved)[NIB_MOE_ROWS])
{
    _Alignas(64) unpacked weights[2];
    const int64_t panel_columns = PANEL_CHUNKS * NIB_MOE_CHUNK;
    cut_panel(&panel, n, panel_columns);
    struct source next = rows_of(&panel, 0, weights[0]);
    unpack_rows(&next);
    int turn = 0;
    while (panel.start < n) {
        struct panel now = panel;
        const uint16_t *from[NIB_MOE_TOKENS];
        for (int t = 0; t < m; t++)
            from[t] = (const uint16_t *)x[t] + now.start;
        for (int first = 0; first < NIB_MOE_ROWS; first += TILE_ROWS, turn ^= 1) {
            int following = first + TILE_ROWS;
            if (following == NIB_MOE_ROWS) {
                following = 0;
                panel.start += panel_columns;
                cut_panel(&panel, n, panel_columns);
            }
            if (panel.start < n)
                next = rows_of(&panel, following, weights[turn ^ 1]);
            multiply_rows(weights[turn], now.chunks + (now.partial != 0), from, m, now.start == 0, &next,
                          (__m512(*)[NIB_MOE_ROWS]) & saved[0][first]);
        }
    }
}

void nib_moe_multiply_many(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                           const void *const *x, int m, float *out)
{
    struct panel panel = {.block = block, .ahead = ahead};
    __m512 saved[NIB_MOE_TOKENS][NIB_MOE_ROWS];
    if (ahead)
        prefetch_scales(ahead, n);
    if (__builtin_expect(scales_in_range(block, n), 1)) {
        multiply_block(panel, n, x, m, saved);
    } else {
        for (; panel.start < n; panel.start += PANEL_CHUNKS * NIB_MOE_CHUNK) {
            const uint16_t *from[NIB_MOE_TOKENS];
            cut_panel(&panel, n, PANEL_CHUNKS * NIB_MOE_CHUNK);
            for (int t = 0; t < m; t++)
                from[t] = (const uint16_t *)x[t] + panel.start;
            nib_moe_multiply_panel_exact(&panel, from, m, saved);
        }
    }
    for (int t = 0; t < m; t++)
        _mm512_storeu_ps(out + t * NIB_MOE_ROWS, reduce_rows(saved[t]));
}
