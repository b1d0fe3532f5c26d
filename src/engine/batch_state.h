// What a batch is made of; shared by its files: batch.c (the life of requests), batch_plan.c (who takes part in the next
// step) and batch_draw.c (what they say next).
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
    int32_t row; // of the last step's logits
    struct nib_sampler sampler;
    struct nib_logit_rules rules;
};

// A token, its logprob and the likeliest beside it.
struct nib_picked {
    bool forbidden; // the request's rules leave no token
    struct nib_token_logprob token, top[NIB_MAX_TOP_LOGPROBS];
    int32_t n_top;
};

// What a thread needs to pick tokens.
struct nib_picker {
    struct nib_sampler_scratch scratch;
    float *changed; /* [vocab] logits after a request's rules */
};

struct nib_batch {
    struct nib_engine *engine;
    void (*on_event)(void *context, const struct nib_event *event);
    void *context;
    struct nib_running *first;
    int64_t next_id;
    struct nib_error begin_error; // why the first waiting request could not begin
    struct nib_picker *pickers;   /* [n_pickers] */
    int n_pickers;
    // Of the step being formed.
    struct nib_feed *feeds;        /* [max_sequences] */
    struct nib_running **fed_by;   /* [max_sequences] whose feed it is */
    struct nib_running **readers;  /* [max_sequences] scratch */
    int64_t taken[NIB_MAX_GROUPS]; // pages that the feeds need
    struct nib_draw *draws;        /* [max_sequences] of its rows of logits, where the device draws */
    struct nib_drawn *drawn;       /* [max_sequences] */
    struct nib_picked *picked;     /* [max_sequences] by row */
};

// Chooses what the next step feeds: fills feeds and fed_by, begins waiting requests. How many feeds there are.
int nib_batch_form_step(struct nib_batch *batch);

nib_status nib_batch_alloc_draws(struct nib_batch *batch, struct nib_error *err);
void nib_batch_free_draws(struct nib_batch *batch);

// What the device is to draw from each row of the step's logits; NULL when it draws for nobody.
const struct nib_draw *nib_batch_ask(struct nib_batch *batch, int n);

// After the step: fills `picked`, and the row of each request that has one.
void nib_batch_pick(struct nib_batch *batch, int n);

// Back to waiting: its pages go to the others, and it begins anew when there are enough.
void nib_batch_make_wait(struct nib_running *running);

#endif
