// AVX2 and FMA: vpshufb looks up the two upper bytes of each element's fp32, which is its bf16.
//
// 32 packed bytes are two scale blocks, one in each 128-bit lane. Low and high nibbles are looked up apart, interleaved to
// bf16 words, and each pair of words becomes two fp32 by a shift and a mask. Activation rows are arranged in the order in
// which the elements come out, 64 at a time.
#include "cpu/moe_f32.h"

#define STEP 64 // elements of 32 packed bytes

INLINE __m256 widen_low(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

INLINE __m256 widen_high(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

// 32 nibbles to eight bf16 words a lane, from the lower and the upper eight of each lane.
INLINE void look_up(__m256i nibbles, __m256i words[2])
{
    const __m256i low =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0,
                                                  0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0));
    const __m256i high = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0,
                                                                   (char)0xbf, (char)0xbf, (char)0xbf, (char)0xc0,
                                                                   (char)0xc0, (char)0xc0, (char)0xc0));
    __m256i l = _mm256_shuffle_epi8(low, nibbles), h = _mm256_shuffle_epi8(high, nibbles);
    words[0] = _mm256_unpacklo_epi8(l, h);
    words[1] = _mm256_unpackhi_epi8(l, h);
}

// Two scales, one for each lane.
INLINE __m256 spread_scales(const float *scales)
{
    __m256 lower = _mm256_broadcast_ss(scales), upper = _mm256_broadcast_ss(scales + 1);
    return _mm256_blend_ps(lower, upper, 0xf0);
}

// 64 columns of one row; `whole` is false when only the first 32 are there.
INLINE void multiply_step(const uint8_t *packed, const float *scales, bool whole, const float *const *x, int m,
                          __m256 *sum)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m128i *source = (const __m128i *)(const void *)packed;
    __m256i bytes =
        whole ? _mm256_loadu_si256((const __m256i *)source) : _mm256_zextsi128_si256(_mm_loadu_si128(source));
    __m256i words[4];
    look_up(_mm256_and_si256(bytes, nibble), words);
    look_up(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble), words + 2);
    __m256 low[NIB_MOE_FEW], high[NIB_MOE_FEW];
    UNROLL
    for (int w = 0; w < 4; w++) {
        __m256 a = widen_low(words[w]), b = widen_high(words[w]);
        UNROLL
        for (int t = 0; t < m; t++) {
            __m256 xa = _mm256_load_ps(x[t] + w * 16), xb = _mm256_load_ps(x[t] + w * 16 + 8);
            low[t] = w ? _mm256_fmadd_ps(a, xa, low[t]) : _mm256_mul_ps(a, xa);
            high[t] = w ? _mm256_fmadd_ps(b, xb, high[t]) : _mm256_mul_ps(b, xb);
        }
    }
    __m256 scale = spread_scales(scales);
    UNROLL
    for (int t = 0; t < m; t++)
        sum[t] = _mm256_fmadd_ps(_mm256_add_ps(low[t], high[t]), scale, sum[t]);
}

INLINE void multiply_panel(const struct panel *panel, const float *const *x, int m, __m256 (*saved)[NIB_MOE_ROWS])
{
    for (int row = 0; row < NIB_MOE_ROWS; row++) {
        const uint8_t *packed = panel_packed(panel, row);
        const float *scales = panel->scales[row];
        __m256 sum[NIB_MOE_FEW];
        UNROLL
        for (int t = 0; t < m; t++)
            sum[t] = panel->start ? saved[t][row] : _mm256_setzero_ps();
        for (int64_t column = 0; column < panel->columns; column += STEP) {
            const float *from[NIB_MOE_FEW];
            UNROLL
            for (int t = 0; t < m; t++)
                from[t] = x[t] + column;
            if (column % NIB_MOE_CHUNK == 0)
                prefetch_ahead(panel, row, column / NIB_MOE_CHUNK);
            if (column + STEP <= panel->columns)
                multiply_step(packed + column / 2, scales + column / NIB_MX_BLOCK, true, from, m, sum);
            else
                multiply_step(packed + column / 2, scales + column / NIB_MX_BLOCK, false, from, m, sum);
        }
        UNROLL
        for (int t = 0; t < m; t++)
            saved[t][row] = sum[t];
    }
}

static void multiply_tokens(const struct panel *panel, const float *const *x, int m, __m256 (*saved)[NIB_MOE_ROWS])
{
    switch (m) {
    case 1:
        multiply_panel(panel, x, 1, saved);
        break;
    case 2:
        multiply_panel(panel, x, 2, saved);
        break;
    case 3:
        multiply_panel(panel, x, 3, saved);
        break;
    default:
        multiply_panel(panel, x, 4, saved);
        break;
    }
}

static float sum_lanes(__m256 v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static void multiply(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x, int m, float *out)
{
    struct panel panel;
    __m256 saved[NIB_MOE_FEW][NIB_MOE_ROWS];
    panel.block = block;
    for (panel.start = 0; panel.start < n; panel.start += PANEL_COLUMNS) {
        const float *from[NIB_MOE_FEW];
        for (int t = 0; t < m; t++)
            from[t] = (const float *)x[t] + panel.start;
        panel.columns = n - panel.start < PANEL_COLUMNS ? n - panel.start : PANEL_COLUMNS;
        expand_scales(&panel);
        for (int t = 0; t < m; t += 4) { // 16 registers hold the sums of four
            panel.ahead = t ? NULL : ahead;
            multiply_tokens(&panel, from + t, m - t < 4 ? m - t : 4, saved + t);
        }
    }
    for (int t = 0; t < m; t++)
        for (int i = 0; i < NIB_MOE_ROWS; i++)
            out[t * NIB_MOE_ROWS + i] = sum_lanes(saved[t][i]);
}

// Element 32L + 16h + 4j + 2w + o of 64: lane L, half h of its bytes, dword j, word w of it, odd or even nibble o.
static int64_t place(int64_t i)
{
    int64_t lane = i >> 5 & 1, half = i >> 4 & 1, dword = i >> 2 & 3, word = i >> 1 & 1, odd = i & 1;
    return (i & -STEP) + odd * 32 + half * 16 + word * 8 + lane * 4 + dword;
}

static void arrange(const uint16_t *x, int64_t n, void *row)
{
    float *planes = row;
    for (int64_t i = n; i % NIB_MOE_CHUNK; i++)
        planes[place(i)] = 0;
    for (int64_t i = 0; i < n; i++)
        planes[place(i)] = nib_bf16_to_f32(x[i]);
}

static void activate(const struct nib_activation *activation, const float *gate_up, int64_t first, void *row,
                     void *rest)
{
    float value[8];
    (void)rest;
    moe_activate_8(activation, gate_up, value);
    for (int i = 0; i < 8; i++)
        ((float *)row)[place(first + i)] = value[i];
}

const struct nib_moe_kernel nib_moe_avx2 = {
    .name = "avx2",
    .tier = NIB_CPU_AVX2,
    .reason = "fp32 multiply-adds on weights looked up in registers; no AVX-512",
    .element_bytes = 4,
    .max_tokens = NIB_MOE_FEW,
    .arrange = arrange,
    .multiply = multiply,
    .activate = activate,
};
