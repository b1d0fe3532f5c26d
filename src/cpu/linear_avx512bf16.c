// bf16 inputs times bf16 (or narrowed, int8) weights with vdpbf16ps, read once where they lie. Each (token, row) has one
// accumulator of 16 lanes of pairs that runs through the columns in order, so its bits do not depend on the tile.
#include "cpu/cpu_kernels.h"
#include "cpu/unroll.h"
#include "cpu/vec_avx512.h"

enum {
    ROWS = 4,
    TOKENS = 6,             // 24 accumulators
    CACHED_BYTES = 1 << 19, // inputs that stay in the second-level cache while the weights pass
};

static inline __mmask32 first_of_32(int64_t n)
{
    return (__mmask32)((1ull << n) - 1u);
}

// 32 int8 weights as bf16, which holds integers up to 256 exactly.
INLINE __m512bh widen_i8(__m256i weights)
{
    __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(weights)));
    __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(weights, 1)));
    return _mm512_cvtne2ps_pbh(high, low);
}

INLINE __m512bh load_weights(enum nib_dtype dtype, const char *p)
{
    return dtype == NIB_I8 ? widen_i8(_mm256_loadu_si256((const __m256i *)p)) : (__m512bh)_mm512_loadu_si512(p);
}

INLINE __m512bh load_last_weights(enum nib_dtype dtype, const char *p, __mmask32 live)
{
    return dtype == NIB_I8 ? widen_i8(_mm256_maskz_loadu_epi8(live, p))
                           : (__m512bh)_mm512_maskz_loadu_epi16(live, p);
}

// The whole vectors of a tile's columns, as 16-lane sums. Weights come from memory at full speed only when the lines of
// the tiles 1, 3 and 5 further on are asked for: processors drop a part of such hints, so each line is asked for about
// three times, by `tries` hints when the tile's tokens take one pass over its weights and by fewer when they take more.
INLINE int64_t whole_vectors(enum nib_dtype dtype, int rows, int tokens, int tries, const char *weight,
                             const uint16_t *x, const struct nib_linear_part *part, __m512 sum[ROWS][TOKENS])
{
    int64_t k = 0, size = dtype == NIB_I8 ? 1 : 2, row_bytes = part->cols * size;
    int64_t last_hint = 2 * ROWS * tries * row_bytes;
    for (; k + 32 <= part->cols; k += 32) {
        __m512bh w[ROWS];
        for (int64_t hint = ROWS * row_bytes; hint < last_hint; hint += 2 * ROWS * row_bytes)
            for (int r = 0; r < rows; r++)
                _mm_prefetch(weight + hint + r * row_bytes + k * size, _MM_HINT_T1);
        for (int r = 0; r < rows; r++)
            w[r] = load_weights(dtype, weight + r * row_bytes + k * size);
        for (int t = 0; t < tokens; t++) {
            __m512bh in = (__m512bh)_mm512_loadu_si512(x + t * part->x_pitch + k);
            for (int r = 0; r < rows; r++)
                sum[r][t] = _mm512_dpbf16_ps(sum[r][t], w[r], in);
        }
    }
    return k;
}

INLINE void tile(enum nib_dtype dtype, int rows, int tokens, int tries, const struct nib_linear_part *part,
                 int64_t row, int64_t token)
{
    int64_t size = dtype == NIB_I8 ? 1 : 2, row_bytes = part->cols * size;
    const char *weight = (const char *)part->weight + row * row_bytes;
    const uint16_t *x = (const uint16_t *)part->x + token * part->x_pitch;
    __m512 sum[ROWS][TOKENS];
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < tokens; t++)
            sum[r][t] = _mm512_setzero_ps();
    int64_t k = whole_vectors(dtype, rows, tokens, tries, weight, x, part, sum);
    if (k < part->cols)
        for (int t = 0; t < tokens; t++) {
            __m512bh in = (__m512bh)_mm512_loadu_si512(x + t * part->x_pitch + k);
            for (int r = 0; r < rows; r++) {
                __m512bh w =
                    load_last_weights(dtype, weight + r * row_bytes + k * size, first_of_32(part->cols - k));
                sum[r][t] = _mm512_dpbf16_ps(sum[r][t], w, in);
            }
        }
    for (int t = 0; t < tokens; t++) {
        float y[4];
        _mm_storeu_ps(y, vec_sum4(sum[0][t], sum[1][t], sum[2][t], sum[3][t]));
        for (int r = 0; r < rows; r++) {
            float scale = dtype == NIB_I8 ? part->scales[part->first_row + row + r] : 1.0f;
            part->y[(token + t) * part->y_pitch + row + r] = y[r] * scale + part->bias[row + r];
        }
    }
}

INLINE void four_rows(enum nib_dtype dtype, int64_t tokens, int tries, const struct nib_linear_part *part,
                      int64_t row, int64_t token)
{
    switch (tokens) {
    case 1:
        tile(dtype, 4, 1, tries, part, row, token);
        break;
    case 2:
        tile(dtype, 4, 2, tries, part, row, token);
        break;
    case 3:
        tile(dtype, 4, 3, tries, part, row, token);
        break;
    case 4:
        tile(dtype, 4, 4, tries, part, row, token);
        break;
    case 5:
        tile(dtype, 4, 5, tries, part, row, token);
        break;
    default:
        tile(dtype, 4, 6, tries, part, row, token);
        break;
    }
}

// All rows of tokens [token, end), in passes of nearly equal width.
INLINE void token_block(enum nib_dtype dtype, const struct nib_linear_part *part, int64_t token, int64_t end)
{
    int64_t passes = (end - token + TOKENS - 1) / TOKENS, row = 0;
    for (; row + ROWS <= part->n_rows; row += ROWS)
        for (int64_t t = token, left = passes, width; left > 0; t += width, left--) {
            width = (end - t + left - 1) / left;
            four_rows(dtype, width, passes < 3 ? (int)(4 - passes) : 1, part, row, t);
        }
    for (; row < part->n_rows; row++)
        for (int64_t t = token; t < end; t++)
            tile(dtype, 1, 1, 0, part, row, t);
}

INLINE void all_tokens(enum nib_dtype dtype, const struct nib_linear_part *part)
{
    int64_t block = CACHED_BYTES / (part->x_pitch * 2) / TOKENS * TOKENS;
    if (block < TOKENS)
        block = TOKENS;
    for (int64_t token = 0; token < part->tokens; token += block)
        token_block(dtype, part, token, token + block < part->tokens ? token + block : part->tokens);
}

void nib_linear_avx512bf16(const struct nib_linear_part *part)
{
    if (part->dtype == NIB_I8)
        all_tokens(NIB_I8, part);
    else
        all_tokens(NIB_BF16, part);
}

void nib_round_bf16_avx512bf16(const float *x, int64_t n, uint16_t *rounded)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(rounded + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    if (i < n)
        _mm256_mask_storeu_epi16(rounded + i, vec_first(n - i),
                                 (__m256i)_mm512_cvtneps_pbh(vec_load_some(x + i, n - i)));
}
