// The MoE layer call in plain fp32: what every kernel is held against. Shapes and rules: nibble/moe.h.
#ifndef NIB_OPS_MOE_REF_H
#define NIB_OPS_MOE_REF_H

#include "ops/moe_plan.h"

extern const struct nib_moe_kernel nib_moe_ref;

// act(gate, up), see enum nib_activation_kind.
float nib_moe_ref_activate(const struct nib_activation *activation, float gate, float up);

#endif
