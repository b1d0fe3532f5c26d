// Dense matrices narrowed to 8 bits on request: w = q * scale with one scale a row. Lossy: the only copy of weights that
// nibble ever makes, and only when a device is opened with dense_int8.
#ifndef NIB_OPS_DENSE_INT8_H
#define NIB_OPS_DENSE_INT8_H

#include "ops/ops.h"

struct nib_narrowed; // one matrix's 8-bit copy; a device keeps a list of them

// q = w / scale to the nearest, ties to even, with scale = max|row| / 127, so that the largest is ±127. `weight` then
// holds int8 rows with `scales`, owned by *list.
nib_status nib_narrow_matrix(const struct nib_weight_view *view, int threads, struct nib_narrowed **list,
                             struct nib_weight *weight, struct nib_error *err);
void nib_free_narrowed(struct nib_narrowed *list);

// Bytes of a copy of rows x cols.
uint64_t nib_narrowed_bytes(int64_t rows, int64_t cols);

#endif
