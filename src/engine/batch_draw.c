// The next token of each request that has logits in a step: drawn by the device where it can, else here, several rows at
// a time.
#include <omp.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/batch_state.h"

#define MOST_PICKERS 16 // more threads would wait for memory

nib_status nib_batch_alloc_draws(struct nib_batch *batch, struct nib_error *err)
{
    size_t sequences = (size_t)batch->engine->plan.max_sequences;
    int32_t vocab = nib_engine_vocab(batch->engine);
    int most = batch->engine->threads < MOST_PICKERS ? batch->engine->threads : MOST_PICKERS;
    batch->draws = malloc(sequences * sizeof *batch->draws);
    batch->drawn = malloc(sequences * sizeof *batch->drawn);
    batch->picked = malloc(sequences * sizeof *batch->picked);
    batch->pickers = calloc((size_t)most, sizeof *batch->pickers);
    if (!batch->draws || !batch->drawn || !batch->picked || !batch->pickers)
        return nib_fail_memory(err, sequences * sizeof *batch->picked, "a batch");
    while (batch->n_pickers < most && batch->n_pickers < batch->engine->plan.max_sequences) {
        struct nib_picker *picker = &batch->pickers[batch->n_pickers++];
        nib_status status = nib_sampler_scratch_alloc(&picker->scratch, vocab, err);
        if (status)
            return status;
        picker->changed = malloc((size_t)vocab * sizeof *picker->changed);
        if (!picker->changed)
            return nib_fail_memory(err, (unsigned long long)vocab * sizeof *picker->changed, "a batch");
    }
    return NIB_OK;
}

void nib_batch_free_draws(struct nib_batch *batch)
{
    for (int i = 0; i < batch->n_pickers; i++) {
        nib_sampler_scratch_free(&batch->pickers[i].scratch);
        free(batch->pickers[i].changed);
    }
    free(batch->pickers);
    free(batch->picked);
    free(batch->draws);
    free(batch->drawn);
}

// Whether the device draws this request's tokens: those from logits that nothing changes, where it can draw at all.
static bool device_draws(const struct nib_batch *batch, const struct nib_running *r)
{
    return batch->engine->ops->sample && nib_logit_rules_none(&r->rules);
}

const struct nib_draw *nib_batch_ask(struct nib_batch *batch, int n)
{
    int rows = 0, drawn = 0;
    for (int i = 0; i < n; i++) {
        if (batch->feeds[i].outputs == NIB_OUTPUTS_NONE)
            continue;
        struct nib_running *r = batch->fed_by[i];
        const struct nib_sampling *s = &r->sampler.options;
        bool draws = device_draws(batch, r);
        batch->draws[rows++] = (struct nib_draw){
            .unit = draws ? nib_sampler_unit(&r->sampler) : 0,
            .temperature = draws ? s->temperature : 0,
            .top_p = s->top_p,
            .min_p = s->min_p,
            .top_k = s->top_k,
            .n_top = draws ? r->top_logprobs : -1,
        };
        drawn += draws;
    }
    return drawn ? batch->draws : NULL;
}

static void take_drawn(const struct nib_drawn *drawn, struct nib_picked *picked)
{
    picked->token = (struct nib_token_logprob){drawn->token, drawn->logprob};
    picked->n_top = drawn->n_top;
    for (int32_t i = 0; i < drawn->n_top; i++)
        picked->top[i] = (struct nib_token_logprob){drawn->top_tokens[i], drawn->top_logprobs[i]};
}

static void pick(struct nib_running *r, const float *logits, int32_t vocab, struct nib_picker *picker,
                 struct nib_picked *picked)
{
    const float *allowed = nib_logit_rules_apply(&r->rules, logits, picker->changed, vocab);
    picked->forbidden = !allowed;
    if (!allowed)
        return;
    picked->token.token = nib_sampler_pick(&r->sampler, &picker->scratch, allowed, vocab);
    if (picked->token.token >= 0 && r->top_logprobs >= 0)
        picked->n_top = nib_logprobs(&picker->scratch, logits, vocab, picked->token.token, &picked->token.logprob,
                                     picked->top, r->top_logprobs);
}

void nib_batch_pick(struct nib_batch *batch, int n)
{
    int32_t vocab = nib_engine_vocab(batch->engine);
    int rows = 0, here = 0; // here: rows that the host draws from
    for (int i = 0; i < n; i++) {
        if (batch->feeds[i].outputs == NIB_OUTPUTS_NONE)
            continue;
        struct nib_running *r = batch->fed_by[i];
        struct nib_picked *picked = &batch->picked[rows];
        *picked = (struct nib_picked){0};
        if (device_draws(batch, r))
            take_drawn(&batch->drawn[rows], picked);
        else
            batch->readers[here++] = r;
        r->row = rows++;
    }
    if (!here)
        return;
    const float *logits = nib_engine_logits(batch->engine, 0); // of all rows
#pragma omp parallel for num_threads(here < batch->n_pickers ? here : batch->n_pickers) schedule(dynamic)
    for (int i = 0; i < here; i++) {
        struct nib_running *r = batch->readers[i];
        pick(r, logits + (size_t)r->row * (size_t)vocab, vocab, &batch->pickers[omp_get_thread_num()],
             &batch->picked[r->row]);
    }
}
