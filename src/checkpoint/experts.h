// Reading a layer's experts, whatever their tensors are called.
#ifndef NIB_CHECKPOINT_EXPERTS_H
#define NIB_CHECKPOINT_EXPERTS_H

#include "checkpoint/internal.h"

enum { NIB_NAME_CAPACITY = 1280 }; // a tensor's name (at most 1024 bytes) with something behind it

// One packed matrix, or E of them in one tensor.
struct nib_packed {
    const struct nib_tensor *weight, *scale;
    const struct nib_tensor *bias; // NULL when there is none
    int64_t experts;               // 1 for a matrix of its own
    int64_t rows, cols;            // of one matrix, in elements
    const uint8_t *codes, *scales; /* [experts, rows, cols/2], [experts, rows, cols/32] */
};

// Fills in `packed` from its tensors: types are those of MXFP4, the scale's and the bias's shapes fit the weight's. A
// weight is [rows, cols/2] or [rows, cols/32, 16], with the experts before that when `fused`.
nib_status nib_packed_check(struct nib_packed *packed, bool fused, struct nib_error *err);

// Fused tensors, of whichever names. `*found` says whether there are any below the prefix.
nib_status nib_experts_fused(struct nib_checkpoint *checkpoint, const char *prefix, bool interleaved,
                             struct nib_experts *experts, bool *found, struct nib_error *err);

// Tensors per expert, likewise.
nib_status nib_experts_separate(struct nib_checkpoint *checkpoint, const char *prefix, struct nib_experts *experts,
                                bool *found, struct nib_error *err);

// "prefix.name" into `text`, or just the name below the empty prefix; false when it is too long for any tensor.
bool nib_name_join(char *text /* [NIB_NAME_CAPACITY] */, const char *prefix, const char *name);

// The names that follow the weight's own ending for its scale, tried in this order, NULL at the end.
extern const char *const nib_scale_endings[];

#endif
