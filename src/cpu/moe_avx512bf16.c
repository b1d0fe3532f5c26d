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
#include "cpu/moe_avx512bf16.h"

#include "cpu/moe_activation.h"

#define FOLD_FROM 5 // activation rows in one multiply

// One chunk. With `hint` the same rows of the block ahead are brought into L2, and from there the rows that come next on to
// L1: a few at a time between the planes, for hints that come all at once do less.
INLINE void multiply_chunk(const struct rows *from, int rows, int64_t partial, bool hint, const uint16_t *const *x,
                           int64_t c, int m, __m512 *sum /* [m, rows] */)
{
    const bool fold = m >= FOLD_FROM;
    const __m512i table = load_table(fold ? codes_raised : codes_plain);
    __m512i word[8], scales[8], folds[8];
    __m512 product[16];
    UNROLL
    for (int i = 0; i < rows; i++) {
        word[i] = load_packed(from->packed + (uintptr_t)i * from->packed_stride, partial);
        scales[i] = load_scales(from->scales + (uintptr_t)i * from->scales_stride, partial);
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
        for (int i = 0; i < rows; i++) {
            if (!hint || i * 4 / rows != p)
                continue;
            _mm_prefetch((const char *)(from->far + (uintptr_t)i * from->packed_stride), _MM_HINT_T1);
            _mm_prefetch((const char *)(from->near + (uintptr_t)i * from->packed_stride), _MM_HINT_T0);
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
        struct rows from = tile_rows(panel, first, rows);
        __m512 sum[16];
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int t = 0; t < m; t++)
                sum[t * rows + i] = panel->start ? saved[t][first + i] : _mm512_setzero_ps();
        }
        if (panel->ahead) {
            for (int64_t c = 0; c < panel->chunks; c++, next_chunk(&from))
                multiply_chunk(&from, rows, 0, true, x, c, m, sum);
        } else {
            for (int64_t c = 0; c < panel->chunks; c++, next_chunk(&from))
                multiply_chunk(&from, rows, 0, false, x, c, m, sum);
        }
        if (panel->partial)
            multiply_chunk(&from, rows, panel->partial, false, x, panel->chunks, m, sum);
        UNROLL
        for (int i = 0; i < rows; i++) {
            UNROLL
            for (int t = 0; t < m; t++)
                saved[t][first + i] = sum[t * rows + i];
        }
    }
}

void nib_moe_multiply_panel_exact(const struct panel *panel, const uint16_t *const *x, int m,
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

typedef void panel_multiply(const struct panel *panel, const uint16_t *const *x, __m512 (*saved)[NIB_MOE_ROWS]);

// All columns of the block, panel by panel; exactly where there is no fast way.
static void multiply_panels(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                            const void *const *x, int m, panel_multiply *fast, __m512 (*saved)[NIB_MOE_ROWS])
{
    // One or two activation rows stay in L1 whole; of more, as much as leaves room for the weights.
    const int64_t panel_columns = (m <= 2 ? 64 : 8) * NIB_MOE_CHUNK;
    struct panel panel = {.block = block, .ahead = ahead};
    for (panel.start = 0; panel.start < n; panel.start += panel_columns) {
        const uint16_t *from[NIB_MOE_FEW];
        cut_panel(&panel, n, panel_columns);
        for (int t = 0; t < m; t++)
            from[t] = (const uint16_t *)x[t] + panel.start;
        if (fast)
            fast(&panel, from, saved);
        else
            nib_moe_multiply_panel_exact(&panel, from, m, saved);
    }
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    static panel_multiply *const panels[NIB_MOE_FEW] = {multiply_panel_1, multiply_panel_2, multiply_panel_3,
                                                        multiply_panel_4, multiply_panel_5, multiply_panel_6,
                                                        multiply_panel_7, multiply_panel_8};
    if (m > NIB_MOE_FEW) {
        nib_moe_multiply_many(block, ahead, n, x, m, out);
        return;
    }
    __m512 saved[NIB_MOE_FEW][NIB_MOE_ROWS];
    if (ahead)
        prefetch_scales(ahead, n);
    multiply_panels(block, ahead, n, x, m, panels[m - 1], saved);
    // Looked at only now, the scales are in the cache: before, they would be waited for.
    if (__builtin_expect(!scales_in_range(block, n), 0))
        multiply_panels(block, NULL, n, x, m, NULL, saved);
    for (int t = 0; t < m; t++)
        _mm512_storeu_ps(out + t * NIB_MOE_ROWS, reduce_rows(saved[t]));
}

void nib_moe_arrange_planes(const uint16_t *x, int64_t n, void *row)
{
    uint16_t *planes = row;
    int64_t whole = n / NIB_MOE_CHUNK * NIB_MOE_CHUNK;
    if (whole < n)
        memset(planes + whole, 0, NIB_MOE_CHUNK * sizeof *planes);
    for (int64_t i = 0; i < n; i++)
        planes[nib_moe_plane_index(i)] = x[i];
}

// Eight elements are two neighbours in each of four planes.
static void store_planes(__m128bh values, uint16_t *planes)
{
    const __m128i by_plane = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    int32_t pairs[4];
    _mm_storeu_si128((__m128i *)(void *)pairs, _mm_shuffle_epi8((__m128i)values, by_plane));
    for (int p = 0; p < 4; p++)
        memcpy(planes + p * 32, &pairs[p], sizeof pairs[p]);
}

void nib_moe_activate_planes(const struct nib_activation *activation, const float *gate_up, int64_t first,
                             void *row, void *rest)
{
    int64_t place = nib_moe_plane_index(first);
    __m256 exact = moe_activate_8(activation, gate_up);
    __m128bh rounded = _mm256_cvtneps_pbh(exact);
    store_planes(rounded, (uint16_t *)row + place);
    if (!rest)
        return;
    __m256 kept = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)rounded), 16));
    store_planes(_mm256_cvtneps_pbh(_mm256_sub_ps(exact, kept)), (uint16_t *)rest + place);
}

const struct nib_moe_tier nib_moe_avx512bf16 = {
    .kernel =
        {
            .name = "avx512bf16",
            .reason = "vdpbf16ps on weights unpacked in registers with their scale in the exponent",
            .scratch_bytes = nib_moe_packed_scratch_bytes,
            .run = nib_moe_packed_run,
        },
    .tier = NIB_CPU_AVX512BF16,
    .element_bytes = 2,
    .max_tokens = NIB_MOE_TOKENS,
    .arrange = nib_moe_arrange_planes,
    .multiply = multiply,
    .activate = nib_moe_activate_planes,
};
