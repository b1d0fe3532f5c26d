// A mixture of experts whose matrices are not MXFP4 (FP8 or bf16, as stored), for devices in host memory: the device's own
// linear, expert after expert. A token's result does not depend on the others of the call.
#ifndef NIB_OPS_DENSE_MOE_H
#define NIB_OPS_DENSE_MOE_H

#include "ops/ops.h"

struct nib_dense_moe;

// The experts' array is not copied.
nib_status nib_dense_moe_create(const struct nib_dense_expert *experts, int64_t n_experts,
                                const struct nib_activation *activation, struct nib_dense_moe **moe,
                                struct nib_error *err);
void nib_dense_moe_free(struct nib_dense_moe *moe);

// For linears of at most `rows` rows.
size_t nib_dense_moe_scratch_bytes(int64_t hidden, int64_t intermediate, int64_t rows);

// y = the layer of x for the step's tokens, in the device's MoE scratch. Returns the bytes of the experts that it read.
uint64_t nib_dense_moe_run(const struct nib_dense_moe *moe, struct nib_device *device, struct nib_buffer y,
                           struct nib_buffer x, struct nib_routes routes);

#endif
