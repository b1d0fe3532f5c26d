// AVX-512 VNNI for many activation rows, as in prefill: a group of all 16 weight rows is unpacked to 16-bit integers, 16 KiB
// that stay in L1, and every activation row meets them there. Sums are the same bits as for few rows.
#include "cpu/moe_avx512vnni.h"

#define TILE_TOKENS 6 // sums of 4 x 6 take 24 registers

struct weights {
    _Alignas(64) int16_t planes[NIB_MOE_ROWS][GROUP_CHUNKS][4][32];
    _Alignas(64) float smallest[NIB_MOE_ROWS];
};

INLINE void unpack_chunk(const uint8_t *packed, int64_t partial, __m512i above, int64_t c, int16_t (*to)[32])
{
    const __m512i table = load_table(codes_doubled);
    __m512i word = load_packed(packed, partial), shift = _mm512_shuffle_epi8(above, word_places(c));
    UNROLL
    for (int p = 0; p < 4; p++) {
        __m512i code = p ? _mm512_srli_epi16(word, (uint8_t)(4 * p)) : word;
        _mm512_store_si512(to[p], _mm512_sllv_epi16(_mm512_permutexvar_epi16(code, table), shift));
    }
}

static void unpack_group(const struct panel *panel, struct stretch stretch, struct seen *seen, struct weights *to)
{
    for (int first = 0; first < NIB_MOE_ROWS; first += TILE_ROWS) {
        struct rows from = tile_rows(panel, first, TILE_ROWS);
        struct group_scales scales = read_scales(&from, stretch, seen);
        _mm_store_ps(to->smallest + first, scales.smallest);
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++) {
            uintptr_t row = (uintptr_t)i * from.packed_stride;
            __m512i above = row_above(&scales, i);
            int16_t(*planes)[4][32] = to->planes[first + i];
            for (int64_t c = 0; c < stretch.chunks; c++) {
                if (panel->ahead) {
                    _mm_prefetch((const char *)(from.far + row) + c * CHUNK_BYTES, _MM_HINT_T1);
                    _mm_prefetch((const char *)(from.near + row) + c * CHUNK_BYTES, _MM_HINT_T0);
                }
                unpack_chunk(from.packed + row + c * CHUNK_BYTES, 0, above, c, planes[c]);
            }
            if (stretch.partial)
                unpack_chunk(from.packed + row + stretch.chunks * CHUNK_BYTES, stretch.partial, above,
                             stretch.chunks, planes[stretch.chunks]);
        }
    }
}

// Four weight rows by m activation rows.
INLINE void multiply_tile(const struct weights *weights, int first, int64_t chunks, const struct group *const *x,
                          const float (*factor)[NIB_MOE_ROWS], int m, __m512 (*saved)[NIB_MOE_ROWS])
{
    __m512i sum[TILE_TOKENS * TILE_ROWS];
    UNROLL
    for (int t = 0; t < m; t++) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            sum[t * TILE_ROWS + i] = _mm512_setzero_si512();
    }
    for (int64_t c = 0; c < chunks; c++) {
        UNROLL
        for (int p = 0; p < 4; p++) {
            __m512i weight[TILE_ROWS];
            UNROLL
            for (int i = 0; i < TILE_ROWS; i++)
                weight[i] = _mm512_load_si512(weights->planes[first + i][c][p]);
            UNROLL
            for (int t = 0; t < m; t++) {
                __m512i value = _mm512_load_si512(x[t]->planes[c][p]);
                UNROLL
                for (int i = 0; i < TILE_ROWS; i++)
                    sum[t * TILE_ROWS + i] = _mm512_dpwssd_epi32(sum[t * TILE_ROWS + i], weight[i], value);
            }
        }
    }
    UNROLL
    for (int t = 0; t < m; t++) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++)
            add_group(sum[t * TILE_ROWS + i], factor[t][first + i], &saved[t][first + i]);
    }
}

INLINE void multiply_rows(const struct weights *weights, int64_t chunks, const struct group *const *x, int m,
                          __m512 (*saved)[NIB_MOE_ROWS])
{
    _Alignas(64) float factor[TILE_TOKENS][NIB_MOE_ROWS];
    for (int t = 0; t < m; t++)
        _mm512_store_ps(factor[t], _mm512_mul_ps(_mm512_load_ps(weights->smallest), _mm512_set1_ps(x[t]->unit)));
    for (int first = 0; first < NIB_MOE_ROWS; first += TILE_ROWS)
        multiply_tile(weights, first, chunks, x, factor, m, saved);
}

static void multiply_tokens(const struct weights *weights, int64_t chunks, const struct group *const *x, int m,
                            __m512 (*saved)[NIB_MOE_ROWS])
{
    switch (m) {
    case 1:
        multiply_rows(weights, chunks, x, 1, saved);
        break;
    case 2:
        multiply_rows(weights, chunks, x, 2, saved);
        break;
    case 3:
        multiply_rows(weights, chunks, x, 3, saved);
        break;
    case 4:
        multiply_rows(weights, chunks, x, 4, saved);
        break;
    case 5:
        multiply_rows(weights, chunks, x, 5, saved);
        break;
    default:
        multiply_rows(weights, chunks, x, 6, saved);
        break;
    }
}

struct seen nib_moe_multiply_many_vnni(const struct nib_moe_block *block, const struct nib_moe_block *ahead,
                                       int64_t n, const struct group *const *x, int m,
                                       __m512 (*saved)[NIB_MOE_ROWS])
{
    struct weights weights;
    struct panel panel = {.block = block, .ahead = ahead};
    const struct group *rows[NIB_MOE_TOKENS] = {NULL};
    struct seen seen = nothing_seen();
    int tiles = (m + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int64_t g = 0; g * GROUP_COLUMNS < n; g++) {
        struct stretch stretch = group_stretch(n, g);
        panel.start = g * GROUP_COLUMNS;
        cut_panel(&panel, n, GROUP_COLUMNS);
        unpack_group(&panel, stretch, &seen, &weights);
        for (int t = 0; t < m; t++)
            rows[t] = x[t] + g;
        for (int tile = 0, t = 0; tile < tiles; tile++) {
            int end = m * (tile + 1) / tiles;
            multiply_tokens(&weights, stretch.chunks + (stretch.partial != 0), rows + t, end - t, saved + t);
            t = end;
        }
    }
    return seen;
}
