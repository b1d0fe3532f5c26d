// fp32 inputs times weights in bf16, f16 or f32, widened in registers; written once for every width (vec_*.h, included
// before, with WIDE_TOKENS defined). Each (token, row) has one accumulator of VEC_LANES lanes that runs through the
// columns in order, so its bits do not depend on the tile it is computed in.
#ifndef NIB_CPU_LINEAR_WIDE_KERNEL_H
#define NIB_CPU_LINEAR_WIDE_KERNEL_H

#include "cpu/cpu_kernels.h"

enum { WIDE_ROWS = 4 };

#define WIDE_INLINE static inline __attribute__((always_inline))

WIDE_INLINE vec wide_weights(enum nib_dtype dtype, const char *row, int64_t k)
{
    if (dtype == NIB_F32)
        return vec_load((const float *)row + k);
    return dtype == NIB_F16 ? vec_from_f16((const uint16_t *)row + k) : vec_from_bf16((const uint16_t *)row + k);
}

WIDE_INLINE vec wide_weights_some(enum nib_dtype dtype, const char *row, int64_t k, int64_t n)
{
    if (dtype == NIB_F32)
        return vec_load_some((const float *)row + k, n);
    return dtype == NIB_F16 ? vec_from_f16_some((const uint16_t *)row + k, n)
                            : vec_from_bf16_some((const uint16_t *)row + k, n);
}

WIDE_INLINE void wide_tile(enum nib_dtype dtype, int rows, int tokens, const struct nib_linear_part *part,
                           int64_t row, int64_t token)
{
    int64_t row_bytes = part->cols * (dtype == NIB_F32 ? 4 : 2);
    const char *weight = (const char *)part->weight + row * row_bytes;
    const float *x = (const float *)part->x + token * part->x_pitch;
    vec sum[WIDE_ROWS][WIDE_TOKENS];
    for (int r = 0; r < WIDE_ROWS; r++)
        for (int t = 0; t < tokens; t++)
            sum[r][t] = vec_zero();
    int64_t k = 0;
    for (; k + VEC_LANES <= part->cols; k += VEC_LANES) {
        vec w[WIDE_ROWS];
        for (int r = 0; r < rows; r++) {
            // The tiles 1 and 3 further on; several hints a line, because processors drop some.
            const char *line = weight + r * row_bytes + k * (dtype == NIB_F32 ? 4 : 2);
            _mm_prefetch(line + WIDE_ROWS * row_bytes, _MM_HINT_T1);
            _mm_prefetch(line + 3 * WIDE_ROWS * row_bytes, _MM_HINT_T1);
            w[r] = wide_weights(dtype, weight + r * row_bytes, k);
        }
        for (int t = 0; t < tokens; t++) {
            vec in = vec_load(x + t * part->x_pitch + k);
            for (int r = 0; r < rows; r++)
                sum[r][t] = vec_fma(w[r], in, sum[r][t]);
        }
    }
    if (k < part->cols)
        for (int t = 0; t < tokens; t++) {
            vec in = vec_load_some(x + t * part->x_pitch + k, part->cols - k);
            for (int r = 0; r < rows; r++)
                sum[r][t] =
                    vec_fma(wide_weights_some(dtype, weight + r * row_bytes, k, part->cols - k), in, sum[r][t]);
        }
    for (int t = 0; t < tokens; t++) {
        float y[4];
        _mm_storeu_ps(y, vec_sum4(sum[0][t], sum[1][t], sum[2][t], sum[3][t]));
        for (int r = 0; r < rows; r++)
            part->y[(token + t) * part->y_pitch + row + r] = y[r] + part->bias[row + r];
    }
}

WIDE_INLINE void wide_rows(enum nib_dtype dtype, int rows, const struct nib_linear_part *part, int64_t row)
{
    int64_t token = 0;
    for (; token + WIDE_TOKENS <= part->tokens; token += WIDE_TOKENS)
        wide_tile(dtype, rows, WIDE_TOKENS, part, row, token);
    for (; token < part->tokens; token++)
        wide_tile(dtype, rows, 1, part, row, token);
}

WIDE_INLINE void wide_part(enum nib_dtype dtype, const struct nib_linear_part *part)
{
    int64_t row = 0;
    for (; row + WIDE_ROWS <= part->n_rows; row += WIDE_ROWS)
        wide_rows(dtype, WIDE_ROWS, part, row);
    for (; row < part->n_rows; row++)
        wide_rows(dtype, 1, part, row);
}

static inline void linear_wide(const struct nib_linear_part *part)
{
    if (part->dtype == NIB_F32)
        wide_part(NIB_F32, part);
    else if (part->dtype == NIB_F16)
        wide_part(NIB_F16, part);
    else
        wide_part(NIB_BF16, part);
}

#endif
