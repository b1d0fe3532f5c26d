// From logits to one token.
#ifndef NIB_ENGINE_SAMPLER_H
#define NIB_ENGINE_SAMPLER_H

#include "nibble/engine.h"

struct nib_sampler {
    struct nib_sampling options;
    uint64_t state; // of the random numbers
};

void nib_sampler_init(struct nib_sampler *sampler, const struct nib_sampling *options);

// The next of the sampler's random numbers, in [0, 1); greedy samplers use none and stay where they are.
double nib_sampler_unit(struct nib_sampler *sampler);

// NIB_ERR_ARGUMENT names the option that is out of range.
nib_status nib_sampling_check(const struct nib_sampling *options, struct nib_error *err);

// Room for sampling from a vocabulary; one serves any number of samplers, one at a time.
struct nib_sampler_scratch {
    struct nib_candidate {
        float logit;
        int32_t token;
    } * candidates; /* [vocab] */
};

nib_status nib_sampler_scratch_alloc(struct nib_sampler_scratch *scratch, int32_t vocab, struct nib_error *err);
void nib_sampler_scratch_free(struct nib_sampler_scratch *scratch);

// -1 when no logit is a number.
int32_t nib_sampler_pick(struct nib_sampler *sampler, struct nib_sampler_scratch *scratch,
                         const float *logits /* [vocab] */, int32_t vocab);

// Log-probability of `token` and, likeliest first, of the `n_top` likeliest tokens; returns how many of those there are
// (fewer than n_top where logits are NaN).
int32_t nib_logprobs(struct nib_sampler_scratch *scratch, const float *logits /* [vocab] */, int32_t vocab,
                     int32_t token, float *logprob, struct nib_token_logprob *top /* [n_top] */, int32_t n_top);

#endif
