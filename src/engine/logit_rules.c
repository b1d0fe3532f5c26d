#include "engine/logit_rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static nib_status check(const struct nib_request *request, int32_t vocab, struct nib_error *err)
{
    float largest = 1000; // far beyond any logit, and finite sums
    if (!(fabsf(request->frequency_penalty) <= largest) || !(fabsf(request->presence_penalty) <= largest))
        return nib_fail(err, NIB_ERR_ARGUMENT, "a penalty of %g or %g is not in -1000 .. 1000",
                        (double)request->frequency_penalty, (double)request->presence_penalty);
    float repetition = request->repetition_penalty;
    if (repetition != 0 && !(repetition >= 0.01f && repetition <= 100))
        return nib_fail(err, NIB_ERR_ARGUMENT, "a repetition penalty of %g is not in 0.01 .. 100",
                        (double)repetition);
    for (int32_t i = 0; i < request->n_bias; i++) {
        const struct nib_logit_bias *bias = &request->bias[i];
        if (bias->token < 0 || bias->token >= vocab)
            return nib_fail(err, NIB_ERR_ARGUMENT, "a bias for token %d, which is not in 0 .. %d", bias->token,
                            vocab - 1);
        if (!(fabsf(bias->bias) <= largest))
            return nib_fail(err, NIB_ERR_ARGUMENT, "a bias of %g for token %d is not in -1000 .. 1000",
                            (double)bias->bias, bias->token);
    }
    return NIB_OK;
}

static void mark(uint32_t *seen, int32_t token)
{
    seen[token / 32] |= 1u << token % 32;
}

static nib_status mark_prompt(struct nib_logit_rules *rules, const struct nib_request *request, int32_t vocab,
                              struct nib_error *err)
{
    size_t words = ((size_t)vocab + 31) / 32;
    rules->seen = calloc(words, sizeof *rules->seen);
    if (!rules->seen)
        return nib_fail_memory(err, words * sizeof *rules->seen, "the tokens of a prompt");
    for (int32_t i = 0; i < request->n_prompt; i++)
        mark(rules->seen, request->prompt[i]);
    return NIB_OK;
}

nib_status nib_logit_rules_init(struct nib_logit_rules *rules, const struct nib_request *request, int32_t vocab,
                                struct nib_error *err)
{
    nib_status status = check(request, vocab, err);
    if (status)
        return status;
    *rules = (struct nib_logit_rules){.frequency_penalty = request->frequency_penalty,
                                      .presence_penalty = request->presence_penalty,
                                      .repetition_penalty = request->repetition_penalty,
                                      .constraint = request->constraint};
    bool repeats = rules->repetition_penalty != 0 && rules->repetition_penalty != 1;
    if (repeats && (status = mark_prompt(rules, request, vocab, err)))
        return status;
    if (request->n_bias <= 0)
        return NIB_OK;
    size_t size = (size_t)request->n_bias * sizeof *rules->bias;
    rules->bias = malloc(size);
    if (!rules->bias) {
        nib_logit_rules_free(rules);
        return nib_fail_memory(err, size, "logit biases");
    }
    memcpy(rules->bias, request->bias, size);
    rules->n_bias = request->n_bias;
    return NIB_OK;
}

void nib_logit_rules_free(struct nib_logit_rules *rules)
{
    free(rules->bias);
    free(rules->said);
    free(rules->seen);
    *rules = (struct nib_logit_rules){0};
}

static bool has_penalty(const struct nib_logit_rules *rules)
{
    return rules->frequency_penalty != 0 || rules->presence_penalty != 0;
}

bool nib_logit_rules_none(const struct nib_logit_rules *rules)
{
    return rules->n_bias == 0 && !has_penalty(rules) && !rules->seen && !rules->constraint.mask &&
           !rules->constraint.accept;
}

// Forbidden logits become -infinity; false when none is left.
static bool mask_out(float *logits, const uint32_t *mask, int32_t vocab)
{
    uint32_t any = 0;
    for (int32_t word = 0; word < (vocab + 31) / 32; word++) {
        any |= mask[word];
        if (mask[word] == UINT32_MAX)
            continue;
        int32_t first = word * 32, end = first + 32 < vocab ? first + 32 : vocab;
        for (int32_t t = first; t < end; t++)
            if (!(mask[word] >> (t - first) & 1))
                logits[t] = -INFINITY;
    }
    return any != 0;
}

static void lower_seen(const struct nib_logit_rules *rules, float *logits, int32_t vocab)
{
    float penalty = rules->repetition_penalty;
    for (int32_t t = 0; t < vocab; t++)
        if (rules->seen[t / 32] >> t % 32 & 1)
            logits[t] = logits[t] > 0 ? logits[t] / penalty : logits[t] * penalty;
}

const float *nib_logit_rules_apply(struct nib_logit_rules *rules, const float *logits, float *changed,
                                   int32_t vocab)
{
    const struct nib_constraint *constraint = &rules->constraint;
    const uint32_t *mask = constraint->mask ? constraint->mask(constraint->self) : NULL;
    if (!mask && !rules->n_bias && !rules->n_said && !rules->seen)
        return logits;
    memcpy(changed, logits, (size_t)vocab * sizeof *changed);
    if (rules->seen)
        lower_seen(rules, changed, vocab);
    for (int32_t i = 0; i < rules->n_bias; i++)
        changed[rules->bias[i].token] += rules->bias[i].bias;
    for (size_t i = 0; i < rules->n_said; i++)
        changed[rules->said[i].token] -=
            rules->presence_penalty + rules->frequency_penalty * (float)rules->said[i].count;
    return !mask || mask_out(changed, mask, vocab) ? changed : NULL;
}

nib_status nib_logit_rules_accept(struct nib_logit_rules *rules, int32_t token, struct nib_error *err)
{
    if (rules->constraint.accept)
        rules->constraint.accept(rules->constraint.self, token);
    if (rules->seen)
        mark(rules->seen, token);
    if (!has_penalty(rules))
        return NIB_OK;
    for (size_t i = 0; i < rules->n_said; i++)
        if (rules->said[i].token == token) {
            rules->said[i].count++;
            return NIB_OK;
        }
    if (rules->n_said == rules->said_capacity) {
        size_t capacity = 64 + 2 * rules->said_capacity;
        struct nib_said *said = realloc(rules->said, capacity * sizeof *said);
        if (!said)
            return nib_fail_memory(err, capacity * sizeof *said, "counting tokens");
        rules->said = said;
        rules->said_capacity = capacity;
    }
    rules->said[rules->n_said++] = (struct nib_said){token, 1};
    return NIB_OK;
}
