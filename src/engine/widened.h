// What weights take on a device that widens dense matrices at load.
#ifndef NIB_ENGINE_WIDENED_H
#define NIB_ENGINE_WIDENED_H

#include "nibble/checkpoint.h"

// The bytes by which a checkpoint's tensors grow where FP8 and MXFP4 matrices become bf16 and those in fp16 become fp32;
// packed experts stay as they are. Scales, which then go, are not taken off: a matrix has them while it is widened.
nib_status nib_widened_bytes(struct nib_checkpoint *checkpoint, uint64_t *bytes, struct nib_error *err);

#endif
