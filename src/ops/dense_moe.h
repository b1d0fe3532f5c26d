// A mixture of experts whose matrices are not MXFP4 (FP8 or bf16, as stored), for devices on host memory: the device's own
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
size_t nib_dense_moe_scratch_bytes(const struct nib_dense_moe *moe, int64_t rows);

struct nib_dense_moe_call {
    struct nib_device *device;
    void (*linear)(struct nib_device *device, int64_t rows, struct nib_buffer x,
                   const struct nib_projection *projections, int n_projections);
    int64_t tokens, rows; // rows: at most in one linear
    struct nib_buffer y, x;
    struct nib_routes routes;
    void *scratch;
};

// Returns the bytes of the experts that it read.
uint64_t nib_dense_moe_run(const struct nib_dense_moe *moe, const struct nib_dense_moe_call *call);

#endif
