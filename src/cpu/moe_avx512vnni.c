// AVX-512 VNNI: packed weights become 16-bit integers in registers and meet activations that are 16-bit integers too, in
// vpdpwssd. On Intel's CPUs that does four times as many products in a cycle as vdpbf16ps.
//
// 64 packed bytes are 32 words of four elements; word w belongs to scale block w / 8, as in moe_avx512bf16.c. vpermw looks
// twice the value up, -12 … 12. A row's columns go in groups of 512. In each an activation row has a power of two of its
// own, the unit, which gives the largest element 15 bits: any element is within 2^-15 of that one, and a bf16 that is not
// below 2^-7 of it is held exactly. A weight row has the smallest of the group's 16 scales; the other blocks' integers are
// shifted left by what their scales have more, at most seven, so that a lane's 32 products of a group add up in 32 bits:
//
//     32 products * 12 * 2^7 * 2^15 < 2^31
//
// The sum of a group is exact, whatever the order: shifting the weights before the products (from three activation rows
// on) or each chunk's sums behind them gives the same bits, which is what makes a token's result independent of how many
// share its expert. Once a group it becomes fp32. Groups whose scales spread further are left out and added at the end,
// chunk by chunk; blocks of 16 rows with a scale outside 2^-63 … 2^56 or so are multiplied in that way altogether.
#include "cpu/moe_avx512vnni.h"

#include "cpu/moe_activation.h"

#define SHIFT_WEIGHTS_FROM 3 // activation rows in one multiply

INLINE __m512i load_x(const struct group *x, int64_t chunk, int plane)
{
    return _mm512_load_si512(x->planes[chunk][plane]);
}

// One chunk of four rows, or two. With `hint` the same rows of the block ahead are brought into L2, and from there the rows that
// come next on to L1.
INLINE void multiply_chunk(const struct rows *from, int rows, const __m512i *above, int64_t partial, bool hint,
                           const struct group *const *x, int64_t c, int m, __m512i *sum /* [m, rows] */)
{
    const bool shift_weights = m >= SHIFT_WEIGHTS_FROM;
    const __m512i table = load_table(codes_doubled);
    const __m512i places = shift_weights ? word_places(c) : dword_places(c);
    __m512i word[TILE_ROWS], shift[TILE_ROWS], product[2 * TILE_ROWS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        word[i] = load_packed(from->packed + (uintptr_t)i * from->packed_stride, partial);
        shift[i] = _mm512_shuffle_epi8(above[i], places);
    }
    UNROLL
    for (int p = 0; p < 4; p++) {
        __m512i weight[TILE_ROWS];
        UNROLL
        for (int i = 0; i < rows; i++) {
            __m512i code = p ? _mm512_srli_epi16(word[i], (uint8_t)(4 * p)) : word[i];
            weight[i] = _mm512_permutexvar_epi16(code, table);
            if (shift_weights)
                weight[i] = _mm512_sllv_epi16(weight[i], shift[i]);
            if (hint && i * 4 / rows == p) {
                _mm_prefetch((const char *)(from->far + (uintptr_t)i * from->packed_stride), _MM_HINT_T1);
                _mm_prefetch((const char *)(from->near + (uintptr_t)i * from->packed_stride), _MM_HINT_T0);
            }
        }
        UNROLL
        for (int k = 0; k < m * rows; k++) {
            __m512i value = load_x(x[k / rows], c, p), w = weight[k % rows];
            if (shift_weights)
                sum[k] = _mm512_dpwssd_epi32(sum[k], w, value);
            else
                product[k] = _mm512_dpwssd_epi32(p ? product[k] : _mm512_setzero_si512(), w, value);
        }
    }
    if (shift_weights)
        return;
    UNROLL
    for (int k = 0; k < m * rows; k++)
        sum[k] = _mm512_add_epi32(sum[k], _mm512_sllv_epi32(product[k], shift[k % rows]));
}

// One group of four rows.
INLINE void multiply_group(struct rows *from, struct stretch stretch, bool hint, const struct group *const *x,
                           int m, struct seen *seen, __m512 (*saved)[NIB_MOE_ROWS])
{
    const int rows = m <= 4 ? 4 : 2; // whose sums stay in registers
    struct group_scales scales = read_scales(from, stretch, seen);
    _Alignas(16) float factor[NIB_MOE_FEW * TILE_ROWS];
    for (int t = 0; t < m; t++)
        _mm_store_ps(factor + t * TILE_ROWS, _mm_mul_ps(scales.smallest, _mm_set1_ps(x[t]->unit)));
    UNROLL
    for (int first = 0; first < TILE_ROWS; first += rows) {
        struct rows part = *from;
        __m512i above[TILE_ROWS], sum[16];
        part.packed += (uintptr_t)first * part.packed_stride;
        part.far += (uintptr_t)first * part.packed_stride;
        part.near += (uintptr_t)first * part.packed_stride;
        UNROLL
        for (int i = 0; i < rows; i++)
            above[i] = row_above(&scales, first + i);
        UNROLL
        for (int k = 0; k < m * rows; k++)
            sum[k] = _mm512_setzero_si512();
        for (int64_t c = 0; c < stretch.chunks; c++, next_chunk(&part))
            multiply_chunk(&part, rows, above, 0, hint, x, c, m, sum);
        if (stretch.partial)
            multiply_chunk(&part, rows, above, stretch.partial, false, x, stretch.chunks, m, sum);
        UNROLL
        for (int k = 0; k < m * rows; k++)
            add_group(sum[k], factor[k / rows * TILE_ROWS + first + k % rows], &saved[k / rows][first + k % rows]);
    }
    skip_chunks(from, stretch.chunks);
}

// The panel's rows, four at a time, for m activation rows.
INLINE void multiply_panel(const struct panel *panel, int64_t n, const struct group *const *x, int m,
                           struct seen *seen, __m512 (*saved)[NIB_MOE_ROWS])
{
    const struct stretch whole = {.chunks = GROUP_CHUNKS};
    int64_t first_group = panel->start / GROUP_COLUMNS;
    int64_t end = panel->start + panel->chunks * NIB_MOE_CHUNK + panel->partial * NIB_MX_BLOCK;
    for (int first = 0; first < NIB_MOE_ROWS; first += TILE_ROWS) {
        struct rows from = tile_rows(panel, first, TILE_ROWS);
        int64_t g = first_group;
        const struct group *group[NIB_MOE_FEW];
        __m512(*to)[NIB_MOE_ROWS] = (__m512(*)[NIB_MOE_ROWS]) & saved[0][first];
        for (; (g + 1) * GROUP_COLUMNS <= end; g++) {
            UNROLL
            for (int t = 0; t < m; t++)
                group[t] = x[t] + g;
            if (panel->ahead)
                multiply_group(&from, whole, true, group, m, seen, to);
            else
                multiply_group(&from, whole, false, group, m, seen, to);
        }
        if (g * GROUP_COLUMNS < end) {
            UNROLL
            for (int t = 0; t < m; t++)
                group[t] = x[t] + g;
            multiply_group(&from, group_stretch(n, g), panel->ahead != NULL, group, m, seen, to);
        }
    }
}

#define MULTIPLY_PANEL(m)                                                                              \
    static void multiply_panel_##m(const struct panel *panel, int64_t n, const struct group *const *x, \
                                   struct seen *seen, __m512(*saved)[NIB_MOE_ROWS])                    \
    {                                                                                                  \
        multiply_panel(panel, n, x, m, seen, saved);                                                   \
    }

MULTIPLY_PANEL(1)
MULTIPLY_PANEL(2)
MULTIPLY_PANEL(3)
MULTIPLY_PANEL(4)
MULTIPLY_PANEL(5)
MULTIPLY_PANEL(6)
MULTIPLY_PANEL(7)
MULTIPLY_PANEL(8)

typedef void panel_multiply(const struct panel *panel, int64_t n, const struct group *const *x, struct seen *seen,
                            __m512 (*saved)[NIB_MOE_ROWS]);

// Added to saved[t][row].
static struct seen multiply_few(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                                const struct group *const *x, int m, __m512 (*saved)[NIB_MOE_ROWS])
{
    static panel_multiply *const panels[NIB_MOE_FEW] = {multiply_panel_1, multiply_panel_2, multiply_panel_3,
                                                        multiply_panel_4, multiply_panel_5, multiply_panel_6,
                                                        multiply_panel_7, multiply_panel_8};
    // One or two activation rows stay in L1 whole; of more, as much as leaves room for the weights.
    const int64_t panel_columns = (m <= 2 ? 16 : 4) * GROUP_COLUMNS;
    struct panel panel = {.block = block, .ahead = ahead};
    struct seen seen = nothing_seen();
    for (panel.start = 0; panel.start < n; panel.start += panel_columns) {
        cut_panel(&panel, n, panel_columns);
        panels[m - 1](&panel, n, x, &seen, saved);
    }
    return seen;
}

// 2^(s - 127) of each lane's scale, whatever it is.
static __m512 any_scales(const uint8_t *scales, int64_t n)
{
    uint8_t four[CHUNK_SCALES] = {0};
    int32_t bytes;
    memcpy(four, scales, (size_t)n);
    memcpy(&bytes, four, sizeof bytes);
    __m512i scale = _mm512_shuffle_epi8(_mm512_set1_epi32(bytes), dword_places(0));
    __m512i bits = _mm512_slli_epi32(scale, 23);
    bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(scale, scale), _mm512_set1_epi32(0x00400000));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(scale, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000)));
}

// A row's group whatever its scales: each chunk's sums become fp32 before they are scaled.
static void multiply_chunks(const struct nib_moe_block *block, int64_t n, int row, int64_t g,
                            const struct group *const *x, const float *unit /* [m], or NULL: all 1 */, int m,
                            __m512 (*saved)[NIB_MOE_ROWS])
{
    const __m512i table = load_table(codes_doubled);
    const uint8_t *packed = nib_moe_block_packed(block, row) + g * (GROUP_COLUMNS / 2);
    const uint8_t *scales = nib_moe_block_scales(block, row) + g * (GROUP_COLUMNS / NIB_MX_BLOCK);
    struct stretch stretch = group_stretch(n, g);
    for (int64_t c = 0; c < stretch.chunks + (stretch.partial != 0); c++) {
        int64_t partial = c < stretch.chunks ? 0 : stretch.partial;
        __m512i word = load_packed(packed + c * CHUNK_BYTES, partial), weight[4];
        __m512 scale = any_scales(scales + c * CHUNK_SCALES, partial ? partial : CHUNK_SCALES);
        for (int p = 0; p < 4; p++)
            weight[p] = _mm512_permutexvar_epi16(_mm512_srli_epi16(word, (uint8_t)(4 * p)), table);
        for (int t = 0; t < m; t++) {
            __m512i product = _mm512_setzero_si512();
            for (int p = 0; p < 4; p++)
                product = _mm512_dpwssd_epi32(product, weight[p], load_x(x[t] + g, c, p));
            __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(product), _mm512_set1_ps(x[t][g].unit));
            if (unit)
                value = _mm512_mul_ps(value, _mm512_set1_ps(unit[t]));
            saved[t][row] = _mm512_fmadd_ps(value, scale, saved[t][row]);
        }
    }
}

static bool spreads_too_far(const uint8_t *scales, int64_t n)
{
    uint8_t least = 255, largest = 0;
    for (int64_t k = 0; k < n; k++) {
        least = scales[k] < least ? scales[k] : least;
        largest = scales[k] > largest ? scales[k] : largest;
    }
    return largest - least > SPREAD;
}

// The groups that were left out. They come last for any number of activation rows.
static void add_left_out(const struct nib_moe_block *block, int64_t n, const struct group *const *x, int m,
                         __m512 (*saved)[NIB_MOE_ROWS])
{
    for (int row = 0; row < NIB_MOE_ROWS; row++) {
        for (int64_t g = 0; g * GROUP_COLUMNS < n; g++) {
            struct stretch stretch = group_stretch(n, g);
            const uint8_t *scales = nib_moe_block_scales(block, row) + g * (GROUP_COLUMNS / NIB_MX_BLOCK);
            if (spreads_too_far(scales, stretch.chunks * CHUNK_SCALES + stretch.partial))
                multiply_chunks(block, n, row, g, x, NULL, m, saved);
        }
    }
}

static void clear(__m512 (*saved)[NIB_MOE_ROWS], int m)
{
    for (int t = 0; t < m; t++)
        for (int row = 0; row < NIB_MOE_ROWS; row++)
            saved[t][row] = _mm512_setzero_ps();
}

// All groups, by way of sums in the activations' true size, which the scales may need.
static void multiply_any(const struct nib_moe_block *block, int64_t n, const struct group *const *x,
                         const float *unit, int m, __m512 (*saved)[NIB_MOE_ROWS])
{
    clear(saved, m);
    for (int row = 0; row < NIB_MOE_ROWS; row++)
        for (int64_t g = 0; g * GROUP_COLUMNS < n; g++)
            multiply_chunks(block, n, row, g, x, unit, m, saved);
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    const struct group *const *groups = (const struct group *const *)x;
    __m512 saved[NIB_MOE_TOKENS][NIB_MOE_ROWS];
    float unit[NIB_MOE_TOKENS];
    for (int t = 0; t < m; t++)
        unit[t] = groups[t]->row_unit;
    clear(saved, m);
    if (ahead)
        prefetch_scales(ahead, n);
    struct seen seen = m <= NIB_MOE_FEW ? multiply_few(block, ahead, n, groups, m, saved)
                                        : nib_moe_multiply_many_vnni(block, ahead, n, groups, m, saved);
    bool fast = in_range(&seen);
    if (__builtin_expect(!fast, 0))
        multiply_any(block, n, groups, unit, m, saved);
    else if (__builtin_expect(seen.too_far, 0))
        add_left_out(block, n, groups, m, saved);
    for (int t = 0; t < m; t++) {
        __m512 sums = reduce_rows(saved[t]);
        _mm512_storeu_ps(out + t * NIB_MOE_ROWS, fast ? _mm512_mul_ps(sums, _mm512_set1_ps(unit[t])) : sums);
    }
}

// The intermediate waits as fp32 until the row is whole; a group then takes the place of its elements.
static void activate(const struct nib_activation *activation, const float *gate_up, int64_t first, void *row,
                     void *rest)
{
    (void)rest;
    _mm256_storeu_ps((float *)row + first, moe_activate_8(activation, gate_up));
}

const struct nib_moe_tier nib_moe_avx512vnni = {
    .kernel =
        {
            .name = "avx512vnni",
            .reason = "vpdpwssd on 16-bit activations and weights looked up in registers",
            .scratch_bytes = nib_moe_packed_scratch_bytes,
            .run = nib_moe_packed_run,
        },
    .tier = NIB_CPU_AVX512VNNI,
    .element_bytes = 4,
    .max_tokens = NIB_MOE_TOKENS,
    .arrange = nib_moe_arrange_groups,
    .multiply = multiply,
    .activate = activate,
    .finish = nib_moe_finish_groups,
};
