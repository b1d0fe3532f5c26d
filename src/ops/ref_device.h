// The operations of the reference device.
#ifndef NIB_OPS_REF_DEVICE_H
#define NIB_OPS_REF_DEVICE_H

#include "ops/host_device.h"

void nib_ref_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table);
void nib_ref_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                      const struct nib_weight *weight, float eps);
void nib_ref_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                       const struct nib_weight *weight, float eps);
void nib_ref_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                          const struct nib_head_product *product);
void nib_ref_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up);
void nib_ref_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                    const struct nib_projection *projections, int n_projections);
void nib_ref_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                  const struct nib_rope *rope);
void nib_ref_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x);
void nib_ref_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                    struct nib_cache values, const struct nib_attend *attend);
void nib_ref_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                   const struct nib_router *router);
void nib_ref_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
                 const struct nib_moe *moe);
void nib_ref_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y);
void nib_ref_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x);

#endif
