// Experts whose biases are in fp16, for a device whose kernels know fp32 and bf16.
#ifndef NIB_OPS_EXPERT_BIASES_H
#define NIB_OPS_EXPERT_BIASES_H

#include "nibble/moe.h"

struct nib_widened_biases {
    struct nib_moe_weights weights; // the same rows, the biases in fp32
    struct nib_expert *experts;     /* [E] */
    float *values;
};

// Everything of `weights` but the biases, which are read, must outlive what is made. Free it also after a failure.
nib_status nib_widen_biases(const struct nib_moe_weights *weights, struct nib_widened_biases *widened,
                            struct nib_error *err);
void nib_free_widened_biases(struct nib_widened_biases *widened);

#endif
