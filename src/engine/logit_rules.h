// What a request changes about the model's logits before a token is drawn: biases, penalties, a constraint.
#ifndef NIB_ENGINE_LOGIT_RULES_H
#define NIB_ENGINE_LOGIT_RULES_H

#include "nibble/engine.h"

struct nib_logit_rules {
    struct nib_logit_bias *bias; /* [n_bias] */
    int32_t n_bias;
    float frequency_penalty, presence_penalty, repetition_penalty;
    struct nib_constraint constraint;
    struct nib_said {
        int32_t token, count;
    } * said; /* [n_said] tokens generated so far, only counted when there is a penalty */
    size_t n_said, said_capacity;
    // Bits of the tokens in prompt and answer; NULL without a repetition penalty.
    uint32_t *seen; /* [(vocab + 31) / 32] */
};

// NIB_ERR_ARGUMENT names the rule that cannot be kept.
nib_status nib_logit_rules_init(struct nib_logit_rules *rules, const struct nib_request *request, int32_t vocab,
                                struct nib_error *err);
void nib_logit_rules_free(struct nib_logit_rules *rules);

// Whether the model's logits are drawn from as they are.
bool nib_logit_rules_none(const struct nib_logit_rules *rules);

// The logits to draw from: `logits` themselves when no rule applies, else `changed`. NULL when the constraint leaves no
// token at all.
const float *nib_logit_rules_apply(struct nib_logit_rules *rules, const float *logits /* [vocab] */,
                                   float *changed /* [vocab] */, int32_t vocab);

// `token` was drawn. NIB_ERR_MEMORY when it cannot be counted.
nib_status nib_logit_rules_accept(struct nib_logit_rules *rules, int32_t token, struct nib_error *err);

#endif
