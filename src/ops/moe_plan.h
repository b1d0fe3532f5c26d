// The inside of a MoE plan (nibble/moe.h), and what it asks of whoever computes the layer.
#ifndef NIB_OPS_MOE_PLAN_H
#define NIB_OPS_MOE_PLAN_H

#include "nibble/moe.h"

struct nib_moe_kernel {
    const char *name;
    const char *reason; // why this one, once its kind was asked for
    bool takes_f32;     // x may be fp32, and the intermediate is not rounded
    size_t (*scratch_bytes)(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads);
    // The call is a checked one, of at least one token.
    void (*run)(const struct nib_moe_plan *plan, const struct nib_moe_call *call);
};

struct nib_moe_plan {
    struct nib_moe_weights weights; // its experts are the copy below
    struct nib_activation activation;
    int64_t first_expert;
    const struct nib_moe_kernel *kernel;
    char reason[200];
    struct nib_expert experts[];
};

// nib_moe_plan_create once the kernel is picked; `why` it was stands before the kernel's own reason.
nib_status nib_moe_plan_make(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                             const struct nib_moe_kernel *kernel, const char *why, struct nib_moe_plan **plan,
                             struct nib_error *err);

#endif
