// The MoE layer call in plain fp32: what every kernel is held against. Shapes and rules: nibble/moe.h.
#ifndef NIB_OPS_MOE_REF_H
#define NIB_OPS_MOE_REF_H

#include "nibble/moe.h"

size_t nib_moe_ref_scratch_bytes(const struct nib_moe_weights *weights, int64_t tokens, int64_t top_k,
                                 int threads);

// x may be bf16 or f32; the intermediate is not rounded. The call was checked by nib_moe_run.
void nib_moe_ref_run(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                     int64_t first_expert, const struct nib_moe_call *call);

// act(gate, up), see enum nib_activation_kind.
float nib_moe_ref_activate(const struct nib_activation *activation, float gate, float up);

#endif
