// What the reference device keeps; shared by the files that implement it.
#ifndef NIB_OPS_REF_DEVICE_H
#define NIB_OPS_REF_DEVICE_H

#include "ops/dense_fp8.h"
#include "ops/dense_int8.h"
#include "ops/dense_moe.h"
#include "ops/ops.h"

struct nib_device {
    struct nib_device_options options;
    const struct nib_step *step; // between begin and end
    struct nib_error error;      // the first failure since begin
    void *moe_scratch;           // grown when a layer is bound
    size_t moe_scratch_bytes;
    uint64_t expert_bytes_read;    // since begin
    struct nib_narrowed *narrowed; // 8-bit copies of dense matrices, with dense_int8
    struct nib_fp8_scales *scales; // of dense matrices in FP8
};

struct nib_moe {
    struct nib_moe_plan *plan;
    struct nib_dense_moe *dense; // in place of the plan
    uint64_t expert_bytes;       // of one expert
    int64_t first_expert, n_experts;
};

// The arithmetic of each operation, one function per entry of struct nib_ops.
void ref_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table);
void ref_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                  const struct nib_weight *weight, float eps);
void ref_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                   const struct nib_weight *weight, float eps);
void ref_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                      const struct nib_head_product *product);
void ref_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up);
void ref_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                const struct nib_projection *projections, int n_projections);
void ref_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
              const struct nib_rope *rope);
void ref_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x);
void ref_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                struct nib_cache values, const struct nib_attend *attend);
void ref_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
               const struct nib_router *router);
void ref_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
             const struct nib_moe *moe);
void ref_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y);
void ref_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x);

#endif
