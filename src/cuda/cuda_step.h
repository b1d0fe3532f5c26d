// A step as kernels see it: every array is in device memory and holds this step's values when the kernels run.
#ifndef NIB_CUDA_CUDA_STEP_H
#define NIB_CUDA_CUDA_STEP_H

#include <stdint.h>

struct nib_cuda_step {
    int32_t n_tokens, n_sequences, n_outputs;
    int32_t page_tokens, page_shift; // page_tokens = 1 << page_shift
    int32_t table_width;             // pages in a row of a table, as the step uses them
    int32_t reach;                   // no sequence is longer than this after the step; a power of two
    const int32_t *tokens;           /* [T] */
    const int32_t *positions;        /* [T] */
    const int32_t *sequence_of;      /* [T] */
    const int32_t *first_row;        /* [S + 1] */
    const int32_t *output_rows;      /* [R] */
    const int32_t *page_tables;      /* [n_groups, S, table_width] */
};

// Pages of a cache and the tables that name them.
struct nib_cuda_cache {
    uint16_t *data; /* [pages, page_tokens, width] bf16 */
    int64_t width;
    const int32_t *tables; /* [S, table_width] */
};

#endif
