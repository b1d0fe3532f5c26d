// What turning a step's program into launches (cuda_lower.c) shares with its part on linears (cuda_lower_linear.c).
#ifndef NIB_CUDA_CUDA_LOWER_H
#define NIB_CUDA_CUDA_LOWER_H

#include "cuda/cuda_device.h"
#include "cuda/skinny_linear.h"

// Counts and names `launches` that have just been made; false, with the error noted, when they failed.
bool nib_cuda_launched(struct nib_device *device, cudaError_t error, const char *name, int launches);

// Says whether the buffer's bf16 copy holds what it holds.
void nib_cuda_set_half(struct nib_device *device, struct nib_buffer buffer, bool fresh);

// The buffer as bf16; rounded now unless whoever wrote it has done so.
const uint16_t *nib_cuda_half_of(struct nib_device *device, struct nib_buffer buffer, int64_t rows);

// The operation at `i` if it is of that kind, or NULL.
const struct nib_cuda_op *nib_cuda_op_at(const struct nib_device *device, int32_t i, enum nib_cuda_op_kind kind);

// Whether a linear writes whole rows of its output.
bool nib_cuda_whole_rows(const struct nib_cuda_op *linear);

// Whether nothing from op `i` on, nor what the program was started for, reads the buffer before it is written anew.
bool nib_cuda_is_dead(const struct nib_device *device, int32_t i, const void *data);

// ---- cuda_lower_linear.c ----

// Whether the bf16 kernels can do the linear.
bool nib_cuda_takes_bf16(const struct nib_cuda_op *op);

// A launch for `n` linears of one input, their sums added to the residual stream if `add` is not NULL: rows first … first +
// rows - 1; x, if not NULL, is at the first of all.
struct nib_cuda_skinny_linear nib_cuda_skinny_of(const struct nib_cuda_op *ops, int32_t n,
                                                 const struct nib_cuda_op *add, const uint16_t *x, int64_t first,
                                                 int64_t rows);

// How many linears of the same input follow one another from `i` on that one launch can do.
int32_t nib_cuda_linears_at(const struct nib_device *device, int32_t i);

// The linear at `i`, and those behind it and the addition that its launch does as well; returns how many it took.
int32_t nib_cuda_lower_linear(struct nib_device *device, int32_t i);

#endif
