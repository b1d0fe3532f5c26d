// Making rows of a unit: the arithmetic of every form, without files or threads.
#ifndef NIB_CONVERT_ROWS_H
#define NIB_CONVERT_ROWS_H

#include "convert/plan.h"

// What a run of rows of one unit came to; sums of runs in order give the same report on any number of threads.
struct nib_row_stats {
    uint32_t span_rows[256];                        // as in the report
    struct nib_convert_error parts[NIB_PART_COUNT]; // of gate, up, down; [0] for a dense matrix
};

// Rows [first, first + count) of the unit into out[o], `count` times outputs[o].row_bytes each (or the whole tensor, for
// one without rows, which is given where it is wanted and NULL elsewhere). On failure the message names tensor and row.
nib_status nib_make_rows(const struct nib_plan *plan, const struct nib_unit *unit, int64_t first, int64_t count,
                         uint8_t *const *out /* [n_outputs] */, struct nib_row_stats *stats,
                         struct nib_error *err);

// ---- One row each; `cols` is a multiple of 32 ----

nib_fp8_row nib_fp8_row_ref, nib_fp8_row_avx2;
nib_fp8_row *nib_fp8_row_pick(void); // the fastest that runs here (see NIBBLE_CPU)

// The codebook of a block: what each of the 16 codes becomes under its scale byte, given the largest magnitude code.
struct nib_int4_block {
    uint16_t scale;     // bf16
    uint8_t nibble[16]; // q + 8
    bool finite;
};

struct nib_int4_block nib_int4_codebook(uint8_t scale, unsigned largest);

// The largest magnitude code of a block.
unsigned nib_largest_code(const uint8_t *codes /* [16] */);

#endif
