// Random MoE layers at the shapes of released models, for parity and benchmarks.
#ifndef NIB_CLI_MOE_LAYER_H
#define NIB_CLI_MOE_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/moe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct moe_variant {
    const char *name;
    int64_t experts, hidden, intermediate, top_k;
    struct nib_activation activation;
    bool interleaved; // gate and up rows alternate; else all gate rows come first
    bool biased;      // bf16
    bool per_route;   // the model wants each route's output
};

#define MOE_VARIANTS 9
extern const struct moe_variant moe_variants[MOE_VARIANTS];

const struct moe_variant *moe_variant_find(const char *name); // NULL when there is none

struct moe_layer {
    struct nib_moe_weights weights;
    struct nib_expert *experts;
    void *memory; // one map, as in a file
    size_t bytes;
};

// Random packed bytes and scales that keep sums near 1, in fresh memory with the system's ordinary pages.
nib_status moe_layer_create(const struct moe_variant *variant, int64_t experts, uint64_t seed,
                            struct moe_layer *layer, struct nib_error *err);
void moe_layer_free(struct moe_layer *layer);

// Bytes of packed weights and scales of one expert.
double moe_expert_bytes(const struct nib_moe_weights *weights);

// xorshift64*: the same numbers everywhere.
uint64_t moe_random(uint64_t *state);

// Normal values with the given root mean square, as bf16.
void moe_random_x(uint64_t *state, float rms, int64_t n, uint16_t *x /* [n] */);

// top_k different experts of n_experts for each token; or, all_on_one, the same ones for every token. Weights sum to 1.
void moe_random_routes(uint64_t *state, int64_t tokens, int64_t top_k, int64_t n_experts, bool all_on_one,
                       int32_t *expert_ids /* [tokens, top_k] */, float *weights /* [tokens, top_k] */);

#ifdef __cplusplus
}
#endif
#endif
