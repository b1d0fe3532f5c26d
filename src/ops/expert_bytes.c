#include "ops/expert_bytes.h"

uint64_t nib_expert_bytes(const struct nib_moe_weights *weights)
{
    uint64_t elements = 3 * (uint64_t)weights->hidden * (uint64_t)weights->intermediate;
    uint64_t biases = 2 * (uint64_t)weights->intermediate + (uint64_t)weights->hidden;
    bool biased = weights->n_experts > 0 && weights->experts[0].down_bias;
    return elements / 2 + elements / NIB_MX_BLOCK + (biased ? biases * nib_dtype_size(weights->bias_dtype) : 0);
}

int64_t nib_distinct_experts(const int32_t *ids, int64_t n, int64_t first, int64_t n_experts)
{
    uint64_t seen[1024] = {0}; // a bit an expert
    int64_t distinct = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t e = ids[i] - first;
        if (e < 0 || e >= n_experts || seen[e / 64] >> (e % 64) & 1)
            continue;
        seen[e / 64] |= (uint64_t)1 << (e % 64);
        distinct++;
    }
    return distinct;
}
