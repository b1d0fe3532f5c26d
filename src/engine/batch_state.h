// What a batch is made of; shared by its two files: batch.c (the life of requests) and batch_plan.c (who takes part in
// the next step).
#ifndef NIB_ENGINE_BATCH_STATE_H
#define NIB_ENGINE_BATCH_STATE_H

#include "engine/engine_state.h"
#include "engine/logit_rules.h"
#include "engine/sampler.h"

enum nib_phase {
    NIB_PHASE_WAITING,   // has no sequence
    NIB_PHASE_READING,   // its prompt goes in, chunk by chunk
    NIB_PHASE_SPEAKING,  // a token a step
    NIB_PHASE_CANCELLED, // has given back its sequence; its last event is to come
};

struct nib_running {
    struct nib_running *next; // in order of arrival
    enum nib_phase phase;
    int64_t id;
    void *user;
    struct nib_sequence *sequence; // while reading and speaking
    int32_t *tokens;               /* [n_prompt] */
    int32_t n_prompt, fed, cached, generated, max_tokens;
    int32_t pending; // while speaking: the token sampled last, not yet fed
    int32_t *stop_tokens;
    int32_t n_stop_tokens, top_logprobs;
    struct nib_sampler sampler;
    struct nib_logit_rules rules;
};

struct nib_batch {
    struct nib_engine *engine;
    void (*on_event)(void *context, const struct nib_event *event);
    void *context;
    struct nib_running *first;
    int64_t next_id;
    struct nib_error begin_error; // why the first waiting request could not begin
    struct nib_sampler_scratch scratch;
    float *changed; /* [vocab] logits after a request's rules */
    // Of the step being formed.
    struct nib_feed *feeds;        /* [max_sequences] */
    struct nib_running **fed_by;   /* [max_sequences] whose feed it is */
    struct nib_running **readers;  /* [max_sequences] scratch */
    int64_t taken[NIB_MAX_GROUPS]; // pages that the feeds need
    struct nib_draw *draws;        /* [max_sequences] of its rows of logits, where the device draws */
    struct nib_drawn *drawn;       /* [max_sequences] */
};

// Chooses what the next step feeds: fills feeds and fed_by, begins waiting requests. How many feeds there are.
int nib_batch_form_step(struct nib_batch *batch);

// Back to waiting: its pages go to the others, and it begins anew when there are enough.
void nib_batch_make_wait(struct nib_running *running);

#endif
