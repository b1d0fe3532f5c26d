// The kernels of one instruction-set tier. A kernel neither allocates, starts threads nor prints, and the bits of each
// result depend on nothing but its own inputs: not on the other rows and tokens of the call.
#ifndef NIB_CPU_CPU_KERNELS_H
#define NIB_CPU_CPU_KERNELS_H

#include <stdint.h>

#include "base/cpu_features.h"
#include "nibble/mx.h"

// y[t, r] = sum over k of x[t, k] * weight[r, k], plus bias[r].
struct nib_linear_part {
    const void *x;      /* [tokens, x_pitch] bf16, zero from cols up to a multiple of 32; or fp32 */
    int64_t x_pitch;    // elements from one token to the next
    const void *weight; /* [n_rows, cols] dtype, any alignment */
    // Of weights in NIB_I8 and NIB_F8_E4M3, whose codes they multiply: row r has those of block row
    // (first_row + r) / block_rows. Blocks of NIB_I8 are whole rows; of NIB_F8_E4M3 that, or multiples of 16 columns.
    const float *scales; /* [blocks of rows, ceil(cols / block_cols)] */
    int64_t first_row, block_rows, block_cols;
    const uint8_t *exponents; /* [rows, cols / 32] of weights in NIB_U8, which is MXFP4, from row first_row on */
    const float *bias;        /* [n_rows] */
    float *y;                 /* [tokens, y_pitch], of which this part writes n_rows columns */
    int64_t y_pitch;          // elements
    enum nib_dtype dtype;     // of the weight
    int64_t tokens, n_rows, cols;
};

enum { NIB_ATTEND_KEYS = 64 }; // keys of one block; blocks start at multiples of it in the sequence

// Rows that the next block will want, which a kernel asks the memory system for bit by bit between its products: in one
// burst most hints would be dropped.
struct nib_attend_hints {
    struct {
        const uint16_t *const *rows; /* [n_rows] pointers to bf16 [columns] */
        int64_t n_rows, columns;
    } runs[2];           // keys, then values
    int64_t lines;       // of 64 bytes in all of it
    int64_t row, column; // where in the run at hand
    int run;
};

// One block of keys against the query rows of one kv head. `units` are 32 bits that hold two neighbours of the summed
// dimension, two bf16; in the tiers without bf16 products queries and probabilities are pairs of fp32 instead.
struct nib_attend_block {
    const uint16_t *const *keys; /* [n_keys] pointers to rows of bf16 whose columns from first_key_column on are */
    const uint16_t *const *values; /* … the kv head's [head_dim]; of values from first_value_column on, [v_dim] */
    int64_t first_key_column, first_value_column;
    int parts; // bf16 parts of an element, 1 or 2: the second stands so many columns behind the first:
    int64_t key_part_columns, value_part_columns;
    int64_t n_keys; // 1 .. NIB_ATTEND_KEYS
    int64_t head_dim, v_dim;
    int64_t n_rows;
    const float *queries;   /* [n_rows, query_pitch], packed by pack_query */
    int64_t query_pitch;    // floats
    const int32_t *visible; /* [n_rows, 2] first and last key of the block that the row sees; first > last: none */
    float scale;            // of the logits, times log2(e)
    float *largest;         /* [n_rows] running maximum of the logits, in units of log2 */
    float *sum;             /* [n_rows] running sum of the probabilities relative to it */
    float *out;             /* [n_rows, v_pitch] running weighted sum of the values */
    int64_t v_pitch;        // floats, v_dim rounded up to 64
    uint32_t *key_units;    /* [parts, (head_dim + 1) / 2, NIB_ATTEND_KEYS] scratch */
    uint32_t *value_units;  /* [parts, NIB_ATTEND_KEYS / 2, v_pitch] scratch */
    float *scores;          /* [4, NIB_ATTEND_KEYS] scratch */
    struct nib_attend_hints *hints;
};

struct nib_cpu_kernels {
    enum nib_cpu_tier tier;
    const char *linear_name; // of the kernel that multiplies bf16 weights
    const char *linear_reason;
    const char *wide_name;
    // x to bf16, to nearest even.
    void (*round_bf16)(const float *x /* [n] */, int64_t n, uint16_t *rounded /* [n] */);
    // bf16 x, weights in bf16 or int8; NULL where the tier has no such product, and linear_wide does that work.
    void (*linear_bf16)(const struct nib_linear_part *part);
    // fp32 x; weights in bf16, f16, f32, int8, E4M3 or MXFP4.
    void (*linear_wide)(const struct nib_linear_part *part);
    // The weight from the other side, y[t, c] = sum over r of x[t, r] * weight[r, c]: fp32 x, no bias, no int8.
    void (*linear_across)(const struct nib_linear_part *part);
    void (*pack_query)(const float *query /* [n] */, int64_t n, float *packed /* [n + 1] */);
    void (*attend_block)(const struct nib_attend_block *block);
};

// The kernels for a tier (VNNI and AMX add none here), or NULL for NIB_CPU_REF.
const struct nib_cpu_kernels *nib_cpu_kernels_for(enum nib_cpu_tier tier);

void nib_round_bf16_any(const float *x /* [n] */, int64_t n, uint16_t *rounded /* [n] */);
void nib_round_bf16_avx512bf16(const float *x /* [n] */, int64_t n, uint16_t *rounded /* [n] */);

void nib_linear_wide_avx2(const struct nib_linear_part *part);
void nib_linear_wide_avx512(const struct nib_linear_part *part);
void nib_linear_across_avx2(const struct nib_linear_part *part);
void nib_linear_across_avx512(const struct nib_linear_part *part);
void nib_linear_avx512bf16(const struct nib_linear_part *part);

void nib_attend_pack_query_wide(const float *query /* [n] */, int64_t n, float *packed /* [n + 1] */);
void nib_attend_pack_query_avx512bf16(const float *query /* [n] */, int64_t n, float *packed /* [n + 1] */);
void nib_attend_block_avx2(const struct nib_attend_block *block);
void nib_attend_block_avx512(const struct nib_attend_block *block);
void nib_attend_block_avx512bf16(const struct nib_attend_block *block);

// Lays a block's keys out as units of two neighbouring dimensions, and its values as units of two neighbouring keys.
void nib_attend_pack_keys_avx2(const struct nib_attend_block *block, int part);
void nib_attend_pack_values_avx2(const struct nib_attend_block *block, int part);

#endif
