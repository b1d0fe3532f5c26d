// Attention of a few query rows over one block of keys, written once for every tier. The including file has chosen a
// width (vec_*.h) and defines
//     enum { ATTEND_VECTORS }                               vectors of one row that a product keeps in registers
//     vec attend_multiply(vec sum, vec_units b, const float *a, int64_t unit)   sum + b * unit `unit` of a
//     void attend_store(float *packed, const vec *p)        a block's probabilities as a product's left side
// Every logit and every output is one chain of additions in the order of its dimension, so its bits are the same whatever
// rows stand beside it.
#ifndef NIB_CPU_ATTEND_KERNEL_H
#define NIB_CPU_ATTEND_KERNEL_H

#include "cpu/cpu_kernels.h"
#include "cpu/unroll.h"
#include "cpu/vec_exp2.h"

enum {
    ATTEND_ROWS = 4,
    ATTEND_COLUMNS = ATTEND_VECTORS * VEC_LANES,
    ATTEND_BLOCK_VECTORS = NIB_ATTEND_KEYS / VEC_LANES,
    ATTEND_STEP = 4,  // units between hints
    ATTEND_LINE = 32, // elements of a cache line
};

static inline void attend_hint(struct nib_attend_hints *hints, int64_t lines)
{
    for (; lines > 0 && hints->run < 2; lines--) {
        _mm_prefetch((const char *)(hints->runs[hints->run].rows[hints->row] + hints->column), _MM_HINT_T1);
        hints->column += ATTEND_LINE;
        if (hints->column < hints->runs[hints->run].columns)
            continue;
        hints->column = 0;
        if (++hints->row < hints->runs[hints->run].n_rows)
            continue;
        hints->row = 0;
        hints->run++;
    }
}

static inline int64_t attend_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

// Lines to hint at in every step of every product of the block, so that they are spread over its whole time.
static inline int64_t attend_lines_a_step(const struct nib_attend_block *block)
{
    int64_t logits = attend_divide_up((block->head_dim + 1) / 2, ATTEND_STEP) * (NIB_ATTEND_KEYS / ATTEND_COLUMNS);
    int64_t values = attend_divide_up((block->n_keys + 1) / 2, ATTEND_STEP) * (block->v_pitch / ATTEND_COLUMNS);
    return attend_divide_up(block->hints->lines, attend_divide_up(block->n_rows, ATTEND_ROWS) * (logits + values));
}

// c[r] += a[r] * b over n_units units, for ATTEND_COLUMNS columns.
INLINE void attend_product(int rows, struct nib_attend_hints *hints, int64_t lines, int64_t n_units,
                           const float *a, int64_t a_pitch, const uint32_t *b, int64_t b_pitch,
                           vec c[ATTEND_ROWS][ATTEND_VECTORS])
{
    for (int64_t step = 0; step < n_units; step += ATTEND_STEP) {
        int64_t end = step + ATTEND_STEP < n_units ? step + ATTEND_STEP : n_units;
        attend_hint(hints, lines);
        for (int64_t u = step; u < end; u++) {
            vec_units column[ATTEND_VECTORS];
            for (int v = 0; v < ATTEND_VECTORS; v++)
                column[v] = vec_load_units(b + u * b_pitch + v * VEC_LANES);
            for (int r = 0; r < rows; r++)
                for (int v = 0; v < ATTEND_VECTORS; v++)
                    c[r][v] = attend_multiply(c[r][v], column[v], a + r * a_pitch, u);
        }
    }
}

INLINE void attend_logits(int rows, int64_t lines, const struct nib_attend_block *block, int64_t first_row)
{
    int64_t units = (block->head_dim + 1) / 2;
    for (int64_t key = 0; key < NIB_ATTEND_KEYS; key += ATTEND_COLUMNS) {
        vec c[ATTEND_ROWS][ATTEND_VECTORS];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < ATTEND_VECTORS; v++)
                c[r][v] = vec_zero();
        for (int part = 0; part < block->parts; part++)
            attend_product(rows, block->hints, lines, units, block->queries + first_row * block->query_pitch,
                           block->query_pitch, block->key_units + part * units * NIB_ATTEND_KEYS + key,
                           NIB_ATTEND_KEYS, c);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < ATTEND_VECTORS; v++)
                vec_store(block->scores + r * NIB_ATTEND_KEYS + key + v * VEC_LANES, c[r][v]);
    }
}

// Turns a row's logits into probabilities relative to the new running maximum and returns their sums by lane;
// `*rescale` is what everything summed before must be multiplied with.
INLINE vec attend_softmax_row(const struct nib_attend_block *block, int64_t row, float *scores, float *rescale)
{
    int32_t first = block->visible[2 * row], last = block->visible[2 * row + 1];
    vec p[ATTEND_BLOCK_VECTORS], scale = vec_set(block->scale);
    for (int v = 0; v < ATTEND_BLOCK_VECTORS; v++)
        p[v] = vec_mul(vec_load(scores + v * VEC_LANES), scale);
    if (first > 0 || last < NIB_ATTEND_KEYS - 1)
        for (int v = 0; v < ATTEND_BLOCK_VECTORS; v++)
            p[v] = vec_keep_range(p[v], first - v * VEC_LANES, last - v * VEC_LANES);
    vec lanes = p[0];
    for (int v = 1; v < ATTEND_BLOCK_VECTORS; v++)
        lanes = vec_max(lanes, p[v]);
    float before = block->largest[row], here = vec_largest(lanes);
    float largest = here > before ? here : before;
    block->largest[row] = largest;

    vec sum = vec_zero();
    for (int v = 0; v < ATTEND_BLOCK_VECTORS; v++) {
        p[v] = vec_exp2(vec_sub(p[v], vec_set(largest)));
        sum = vec_add(sum, p[v]);
    }
    attend_store(scores, p);
    vec_store(rescale, vec_exp2(vec_set(before - largest)));
    return sum;
}

INLINE void attend_values(int rows, int64_t lines, const struct nib_attend_block *block, int64_t first_row,
                          const float rescale[ATTEND_ROWS][VEC_LANES])
{
    for (int64_t column = 0; column < block->v_pitch; column += ATTEND_COLUMNS) {
        float *out = block->out + first_row * block->v_pitch + column;
        vec c[ATTEND_ROWS][ATTEND_VECTORS];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < ATTEND_VECTORS; v++)
                c[r][v] = vec_mul(vec_load(out + r * block->v_pitch + v * VEC_LANES), vec_load(rescale[r]));
        for (int part = 0; part < block->parts; part++)
            attend_product(rows, block->hints, lines, (block->n_keys + 1) / 2, block->scores, NIB_ATTEND_KEYS,
                           block->value_units + part * (NIB_ATTEND_KEYS / 2) * block->v_pitch + column,
                           block->v_pitch, c);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < ATTEND_VECTORS; v++)
                vec_store(out + r * block->v_pitch + v * VEC_LANES, c[r][v]);
    }
}

INLINE void attend_rows(int rows, int64_t lines, const struct nib_attend_block *block, int64_t first_row)
{
    float rescale[ATTEND_ROWS][VEC_LANES], sums[4];
    vec lanes[ATTEND_ROWS] = {vec_zero(), vec_zero(), vec_zero(), vec_zero()};
    attend_logits(rows, lines, block, first_row);
    for (int r = 0; r < rows; r++)
        lanes[r] = attend_softmax_row(block, first_row + r, block->scores + r * NIB_ATTEND_KEYS, rescale[r]);
    _mm_storeu_ps(sums, vec_sum4(lanes[0], lanes[1], lanes[2], lanes[3]));
    for (int r = 0; r < rows; r++)
        block->sum[first_row + r] = __builtin_fmaf(block->sum[first_row + r], rescale[r][0], sums[r]);
    attend_values(rows, lines, block, first_row, rescale);
}

static inline void attend_block(const struct nib_attend_block *block)
{
    for (int part = 0; part < block->parts; part++) {
        nib_attend_pack_keys_avx2(block, part);
        nib_attend_pack_values_avx2(block, part);
    }
    int64_t row = 0, lines = attend_lines_a_step(block);
    for (; row + ATTEND_ROWS <= block->n_rows; row += ATTEND_ROWS)
        attend_rows(ATTEND_ROWS, lines, block, row);
    switch (block->n_rows - row) {
    case 1:
        attend_rows(1, lines, block, row);
        break;
    case 2:
        attend_rows(2, lines, block, row);
        break;
    case 3:
        attend_rows(3, lines, block, row);
        break;
    default:
        break;
    }
}

#endif
