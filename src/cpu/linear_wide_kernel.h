// fp32 inputs times weights in bf16, f16, f32, int8, E4M3 or MXFP4, widened in registers; written once for every width. The
// including file has chosen a width (vec_*.h) and defines WIDE_TALL_TOKENS, the tokens up to which a tile has four rows and
// not two. Each (token, row) has one accumulator of VEC_LANES lanes that runs through the columns in order, so its bits do
// not depend on the tile it is computed in.
#ifndef NIB_CPU_LINEAR_WIDE_KERNEL_H
#define NIB_CPU_LINEAR_WIDE_KERNEL_H

#include <stdbool.h>

#include "cpu/cpu_kernels.h"
#include "cpu/unroll.h"

enum {
    WIDE_ROWS = 4,
    WIDE_TOKENS = 6,
    WIDE_CACHED_BYTES = 1 << 19, // inputs that stay in the second-level cache while the weights pass
};

// Of n neighbouring elements.
INLINE int64_t wide_bytes(enum nib_dtype dtype, int64_t n)
{
    if (dtype == NIB_U8)
        return n / 2;
    return n * (dtype == NIB_F32 ? 4 : dtype == NIB_I8 || dtype == NIB_F8_E4M3 ? 1 : 2);
}

INLINE vec wide_weights(enum nib_dtype dtype, const char *at)
{
    if (dtype == NIB_F32)
        return vec_load((const float *)(const void *)at);
    if (dtype == NIB_I8)
        return vec_from_i8((const int8_t *)at);
    if (dtype == NIB_F8_E4M3)
        return vec_from_e4m3((const uint8_t *)at);
    if (dtype == NIB_U8)
        return vec_from_e2m1((const uint8_t *)at);
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return dtype == NIB_F16 ? vec_from_f16(halves) : vec_from_bf16(halves);
}

INLINE vec wide_weights_some(enum nib_dtype dtype, const char *at, int64_t n)
{
    if (dtype == NIB_F32)
        return vec_load_some((const float *)(const void *)at, n);
    if (dtype == NIB_I8)
        return vec_from_i8_some((const int8_t *)at, n);
    if (dtype == NIB_F8_E4M3)
        return vec_from_e4m3_some((const uint8_t *)at, n);
    const uint16_t *halves = (const uint16_t *)(const void *)at;
    return dtype == NIB_F16 ? vec_from_f16_some(halves, n) : vec_from_bf16_some(halves, n);
}

// 2^(byte - 127), with a NaN for 255.
INLINE float wide_power(uint8_t byte)
{
    uint32_t bits = byte == 0 ? 1u << 22 : byte == 255 ? 0x7fc00000u : (uint32_t)byte << 23;
    float power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return power;
}

// What a code of E4M3 (as vec_from_e4m3 gives it) or E2M1 is multiplied by in the block that column k of a row lies in.
INLINE vec wide_scale(enum nib_dtype dtype, const struct nib_linear_part *part, int64_t row, int64_t k)
{
    if (dtype == NIB_U8)
        return vec_set(wide_power(part->exponents[((part->first_row + row) * part->cols + k) / NIB_MX_BLOCK]));
    int64_t pitch = (part->cols + part->block_cols - 1) / part->block_cols;
    int64_t block_row = (part->first_row + row) / part->block_rows;
    return vec_set(part->scales[block_row * pitch + k / part->block_cols] * VEC_E4M3_UNIT);
}

INLINE void wide_tile(enum nib_dtype dtype, int rows, int tokens, const struct nib_linear_part *part, int64_t row,
                      int64_t token)
{
    int64_t pitch = wide_bytes(dtype, part->cols), k = 0;
    const char *weight = (const char *)part->weight + row * pitch;
    const float *x = (const float *)part->x + token * part->x_pitch;
    bool blocks = dtype == NIB_F8_E4M3 || dtype == NIB_U8;
    vec sum[WIDE_ROWS][WIDE_TOKENS], scale[WIDE_ROWS];
    for (int r = 0; r < WIDE_ROWS; r++)
        for (int t = 0; t < tokens; t++)
            sum[r][t] = vec_zero();
    int64_t span = dtype == NIB_U8 ? NIB_MX_BLOCK
                   : blocks        ? part->block_cols
                                   : part->cols; // columns that share a row's scale
    while (k + VEC_LANES <= part->cols) {
        int64_t end = k + span < part->cols ? k + span : part->cols;
        for (int r = 0; blocks && r < rows; r++)
            scale[r] = wide_scale(dtype, part, row + r, k);
        for (; k + VEC_LANES <= end; k += VEC_LANES) {
            vec w[WIDE_ROWS];
            for (int r = 0; r < rows; r++) {
                // A line of the rows 4 and 12 further on; several hints a line, because processors drop some.
                const char *at = weight + r * pitch + wide_bytes(dtype, k);
                _mm_prefetch(at + 4 * pitch, _MM_HINT_T1);
                _mm_prefetch(at + 12 * pitch, _MM_HINT_T1);
                w[r] = wide_weights(dtype, at);
                if (blocks)
                    w[r] = vec_mul(w[r], scale[r]);
            }
            for (int t = 0; t < tokens; t++) {
                vec in = vec_load(x + t * part->x_pitch + k);
                for (int r = 0; r < rows; r++)
                    sum[r][t] = vec_fma(w[r], in, sum[r][t]);
            }
        }
    }
    if (k < part->cols)
        for (int t = 0; t < tokens; t++) {
            vec in = vec_load_some(x + t * part->x_pitch + k, part->cols - k);
            for (int r = 0; r < rows; r++) {
                vec w = wide_weights_some(dtype, weight + r * pitch + wide_bytes(dtype, k), part->cols - k);
                if (blocks)
                    w = vec_mul(w, wide_scale(dtype, part, row + r, k));
                sum[r][t] = vec_fma(w, in, sum[r][t]);
            }
        }
    for (int t = 0; t < tokens; t++) {
        float y[4];
        _mm_storeu_ps(y, vec_sum4(sum[0][t], sum[1][t], sum[2][t], sum[3][t]));
        for (int r = 0; r < rows; r++)
            part->y[(token + t) * part->y_pitch + row + r] =
                y[r] * (dtype == NIB_I8 ? part->scales[part->first_row + row + r] : 1.0f) + part->bias[row + r];
    }
}

// Four rows of up to WIDE_TOKENS tokens, in one tile or in two of half the height, as the registers allow.
INLINE void wide_four_rows(enum nib_dtype dtype, int tokens, const struct nib_linear_part *part, int64_t row,
                           int64_t token)
{
    if (tokens <= WIDE_TALL_TOKENS) {
        wide_tile(dtype, 4, tokens, part, row, token);
    } else {
        wide_tile(dtype, 2, tokens, part, row, token);
        wide_tile(dtype, 2, tokens, part, row + 2, token);
    }
}

INLINE void wide_pass(enum nib_dtype dtype, int64_t tokens, const struct nib_linear_part *part, int64_t row,
                      int64_t token)
{
    switch (tokens) {
    case 1:
        wide_four_rows(dtype, 1, part, row, token);
        break;
    case 2:
        wide_four_rows(dtype, 2, part, row, token);
        break;
    case 3:
        wide_four_rows(dtype, 3, part, row, token);
        break;
    case 4:
        wide_four_rows(dtype, 4, part, row, token);
        break;
    case 5:
        wide_four_rows(dtype, 5, part, row, token);
        break;
    default:
        wide_four_rows(dtype, 6, part, row, token);
        break;
    }
}

// All rows of tokens [token, end).
INLINE void wide_block(enum nib_dtype dtype, const struct nib_linear_part *part, int64_t token, int64_t end)
{
    int64_t row = 0;
    for (; row + WIDE_ROWS <= part->n_rows; row += WIDE_ROWS) {
        // Passes of nearly equal width.
        int64_t left = (end - token + WIDE_TOKENS - 1) / WIDE_TOKENS;
        for (int64_t t = token, width; left > 0; t += width, left--) {
            width = (end - t + left - 1) / left;
            wide_pass(dtype, width, part, row, t);
        }
    }
    for (; row < part->n_rows; row++)
        for (int64_t t = token; t < end; t++)
            wide_tile(dtype, 1, 1, part, row, t);
}

static inline void linear_wide(const struct nib_linear_part *part)
{
    int64_t block = WIDE_CACHED_BYTES / (part->x_pitch * 4) / WIDE_TOKENS * WIDE_TOKENS;
    if (block < WIDE_TOKENS)
        block = WIDE_TOKENS;
    for (int64_t token = 0; token < part->tokens; token += block) {
        int64_t end = token + block < part->tokens ? token + block : part->tokens;
        if (part->dtype == NIB_BF16)
            wide_block(NIB_BF16, part, token, end);
        else if (part->dtype == NIB_I8)
            wide_block(NIB_I8, part, token, end);
        else if (part->dtype == NIB_F8_E4M3)
            wide_block(NIB_F8_E4M3, part, token, end);
        else if (part->dtype == NIB_U8)
            wide_block(NIB_U8, part, token, end);
        else
            wide_block(part->dtype, part, token, end);
    }
}

// y[t, c] = sum over r of x[t, r] * weight[r, c]: the weight from the other side. The sums stand in y, which a head's
// outputs leave in the first-level cache; rows come by eight, in order.
INLINE void across_rows(enum nib_dtype dtype, int rows, const struct nib_linear_part *part, int64_t row,
                        int64_t token)
{
    int64_t pitch = wide_bytes(dtype, part->cols), c = 0;
    const char *weight = (const char *)part->weight + row * pitch;
    const float *x = (const float *)part->x + token * part->x_pitch + row;
    float *y = part->y + token * part->y_pitch;
    bool blocks = dtype == NIB_F8_E4M3 || dtype == NIB_U8;
    for (; c + VEC_LANES <= part->cols; c += VEC_LANES) {
        vec sum = row ? vec_load(y + c) : vec_zero();
        for (int r = 0; r < rows; r++) {
            vec w = wide_weights(dtype, weight + r * pitch + wide_bytes(dtype, c));
            if (blocks)
                w = vec_mul(w, wide_scale(dtype, part, row + r, c));
            sum = vec_fma(w, vec_set(x[r]), sum);
        }
        vec_store(y + c, sum);
    }
    for (int64_t left = part->cols - c, i = 0; i < left; i++) {
        float sum = row ? y[c + i] : 0;
        for (int r = 0; r < rows; r++) {
            float w[VEC_LANES];
            vec loaded = wide_weights_some(dtype, weight + r * pitch + wide_bytes(dtype, c), left);
            vec_store(w, blocks ? vec_mul(loaded, wide_scale(dtype, part, row + r, c)) : loaded);
            sum = __builtin_fmaf(w[i], x[r], sum);
        }
        y[c + i] = sum;
    }
}

INLINE void across(enum nib_dtype dtype, const struct nib_linear_part *part)
{
    enum { ROWS_AT_ONCE = 8 };
    int64_t row = 0;
    for (; row + ROWS_AT_ONCE <= part->n_rows; row += ROWS_AT_ONCE)
        for (int64_t t = 0; t < part->tokens; t++)
            across_rows(dtype, ROWS_AT_ONCE, part, row, t);
    for (; row < part->n_rows; row++)
        for (int64_t t = 0; t < part->tokens; t++)
            across_rows(dtype, 1, part, row, t);
}

static inline void linear_across(const struct nib_linear_part *part)
{
    if (part->dtype == NIB_BF16)
        across(NIB_BF16, part);
    else if (part->dtype == NIB_F8_E4M3)
        across(NIB_F8_E4M3, part);
    else if (part->dtype == NIB_U8)
        across(NIB_U8, part);
    else
        across(part->dtype, part);
}

#endif
