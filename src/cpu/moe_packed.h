// The parts of a call that all tiers share.
#ifndef NIB_CPU_MOE_PACKED_H
#define NIB_CPU_MOE_PACKED_H

#include "cpu/moe_tier.h"

// The local routes of a call, grouped by expert: group g holds routes order[first[g]] … order[first[g + 1] - 1], which
// are t * top_k + j, ascending.
struct nib_moe_groups {
    int32_t n_groups, n_routes;
    int32_t *expert; /* [n_groups] local expert of each group, ascending */
    int32_t *first;  /* [n_groups + 1] */
    int32_t *order;  /* [n_routes] */
};

// Bytes of `memory` that nib_moe_group_routes needs; the groups point into it.
size_t nib_moe_groups_bytes(int64_t n_experts, int64_t routes);

void nib_moe_group_routes(const int32_t *expert_ids /* [routes] */, int64_t routes, int64_t first_expert,
                          int64_t n_experts, int32_t *memory /* [nib_moe_groups_bytes / 4] */,
                          struct nib_moe_groups *groups);

// scratch_bytes and run of a tier's struct nib_moe_kernel.
size_t nib_moe_packed_scratch_bytes(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads);
void nib_moe_packed_run(const struct nib_moe_plan *plan, const struct nib_moe_call *call);

#endif
