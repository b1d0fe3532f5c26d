// Dense matrices in FP8 as checkpoints store them: E4M3 codes that stay where they lie, and a scale for each block.
#ifndef NIB_OPS_DENSE_FP8_H
#define NIB_OPS_DENSE_FP8_H

#include "ops/ops.h"

struct nib_fp8_scales; // one matrix's scales as fp32; a device keeps a list of them

// `weight` keeps the view's codes and gets fp32 copies of its scales (at most one for a row, or for 1024 elements), owned
// by *list.
nib_status nib_bind_fp8(const struct nib_weight_view *view, struct nib_fp8_scales **list,
                        struct nib_weight *weight, struct nib_error *err);
void nib_free_fp8_scales(struct nib_fp8_scales *list);

#endif
