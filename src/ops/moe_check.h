// What every device demands of a MoE layer before it makes a plan: possible shapes, complete experts, a known activation.
#ifndef NIB_OPS_MOE_CHECK_H
#define NIB_OPS_MOE_CHECK_H

#include "nibble/moe.h"

nib_status nib_moe_check_weights(const struct nib_moe_weights *weights, struct nib_error *err);
nib_status nib_moe_check_activation(const struct nib_activation *activation, struct nib_error *err);

#endif
