#include "cpu/moe_packed.h"

#include <string.h>

size_t nib_moe_groups_bytes(int64_t n_experts, int64_t routes)
{
    return (size_t)(2 * n_experts + 1 + routes) * sizeof(int32_t);
}

static int64_t local_expert(int32_t id, int64_t first_expert, int64_t n_experts)
{
    int64_t local = (int64_t)id - first_expert;
    return local >= 0 && local < n_experts ? local : -1;
}

void nib_moe_group_routes(const int32_t *expert_ids, int64_t routes, int64_t first_expert, int64_t n_experts,
                          int32_t *memory, struct nib_moe_groups *groups)
{
    // A counting sort. `expert` holds the counts, then each expert's next place, and last the experts that have routes.
    int32_t *count = memory;
    groups->expert = memory;
    groups->first = memory + n_experts;
    groups->order = memory + 2 * n_experts + 1;

    memset(count, 0, (size_t)n_experts * sizeof *count);
    for (int64_t r = 0; r < routes; r++) {
        int64_t e = local_expert(expert_ids[r], first_expert, n_experts);
        if (e >= 0)
            count[e]++;
    }
    int32_t place = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        int32_t n = count[e];
        count[e] = place;
        place += n;
    }
    groups->n_routes = place;
    for (int64_t r = 0; r < routes; r++) {
        int64_t e = local_expert(expert_ids[r], first_expert, n_experts);
        if (e >= 0)
            groups->order[count[e]++] = (int32_t)r;
    }
    // count[e] is now the end of expert e's routes; a group is written at or before the count it was made from.
    int32_t n_groups = 0, start = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        int32_t end = count[e];
        if (end > start) {
            groups->first[n_groups] = start;
            groups->expert[n_groups++] = (int32_t)e;
        }
        start = end;
    }
    groups->first[n_groups] = place;
    groups->n_groups = n_groups;
}
