// How many packed bytes a MoE layer reads for given routes: the floor that benchmarks compare with.
#ifndef NIB_OPS_EXPERT_BYTES_H
#define NIB_OPS_EXPERT_BYTES_H

#include "nibble/moe.h"

// Packed rows, scales and biases of one expert.
uint64_t nib_expert_bytes(const struct nib_moe_weights *weights);

// Different ids among `n`, those outside [first, first + n_experts) not counted; n_experts at most 65536.
int64_t nib_distinct_experts(const int32_t *ids /* [n] */, int64_t n, int64_t first, int64_t n_experts);

#endif
