// Continuous batching: requests wait, are prefilled in chunks beside the decodes of others, and end one by one.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/logit_rules.h"
#include "engine/sampler.h"

// A request that waits has no sequence yet.
struct running {
    struct running *next; // in order of arrival
    int64_t id;
    void *user;
    struct nib_sequence *sequence;
    int32_t *tokens; /* [capacity] prompt, and the token to feed next */
    int32_t n_prompt, fed, cached, generated, max_tokens;
    int32_t pending; // the token sampled last, not yet fed
    int32_t *stop_tokens;
    int32_t n_stop_tokens, top_logprobs;
    struct nib_sampler sampler;
    struct nib_logit_rules rules;
    bool cancelled;
};

struct nib_batch {
    struct nib_error begin_error; // why the last waiting request could not begin
    struct nib_engine *engine;
    void (*on_event)(void *context, const struct nib_event *event);
    void *context;
    struct running *first;
    int64_t next_id;
    struct nib_sampler_scratch scratch;
    float *changed;          /* [vocab] logits after a request's rules */
    struct nib_feed *feeds;  /* [max_sequences] of the step being formed */
    struct running **fed_by; /* [max_sequences] */
};

nib_status nib_batch_create(struct nib_engine *engine,
                            void (*on_event)(void *context, const struct nib_event *event), void *context,
                            struct nib_batch **batch, struct nib_error *err)
{
    struct nib_batch *created = calloc(1, sizeof *created);
    if (!created)
        return nib_fail_memory(err, sizeof *created, "a batch");
    created->engine = engine;
    created->on_event = on_event;
    created->context = context;
    size_t sequences = (size_t)engine->plan.max_sequences;
    created->feeds = malloc(sequences * sizeof *created->feeds);
    created->fed_by = malloc(sequences * sizeof *created->fed_by);
    size_t vocab = (size_t)nib_engine_vocab(engine);
    created->changed = malloc(vocab * sizeof *created->changed);
    nib_status status = nib_sampler_scratch_alloc(&created->scratch, (int32_t)vocab, err);
    if (!status && (!created->feeds || !created->fed_by || !created->changed))
        status = nib_fail_memory(err, sequences * sizeof *created->feeds + vocab * 4, "a batch");
    if (status) {
        nib_batch_free(created);
        return status;
    }
    *batch = created;
    return NIB_OK;
}

static void free_running(struct running *r)
{
    nib_sequence_free(r->sequence);
    free(r->tokens);
    free(r->stop_tokens);
    nib_logit_rules_free(&r->rules);
    free(r);
}

void nib_batch_free(struct nib_batch *batch)
{
    if (!batch)
        return;
    while (batch->first) {
        struct running *r = batch->first;
        batch->first = r->next;
        free_running(r);
    }
    nib_sampler_scratch_free(&batch->scratch);
    free(batch->changed);
    free(batch->feeds);
    free(batch->fed_by);
    free(batch);
}

static nib_status check_request(const struct nib_engine *engine, const struct nib_request *request,
                                struct nib_error *err)
{
    int32_t vocab = nib_engine_vocab(engine);
    if (request->n_prompt < 1)
        return nib_fail(err, NIB_ERR_ARGUMENT, "the prompt has no tokens");
    if (request->n_prompt >= engine->plan.context || request->n_prompt > engine->plan.cache_tokens)
        return nib_fail(err, NIB_ERR_LIMIT,
                        "a prompt of %d tokens leaves no room in a context of %d (cache of %lld)",
                        request->n_prompt, engine->plan.context, (long long)engine->plan.cache_tokens);
    for (int32_t i = 0; i < request->n_prompt; i++)
        if (request->prompt[i] < 0 || request->prompt[i] >= vocab)
            return nib_fail(err, NIB_ERR_ARGUMENT, "prompt token %d is id %d, not in 0 .. %d", i,
                            request->prompt[i], vocab - 1);
    if (request->max_tokens < 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "max_tokens %d is negative", request->max_tokens);
    if (request->n_stop_tokens < 0 || request->n_bias < 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "%d stop tokens, %d biases", request->n_stop_tokens,
                        request->n_bias);
    if (request->top_logprobs < -1 || request->top_logprobs > NIB_MAX_TOP_LOGPROBS)
        return nib_fail(err, NIB_ERR_ARGUMENT, "top_logprobs %d is not in -1 .. %d", request->top_logprobs,
                        NIB_MAX_TOP_LOGPROBS);
    return nib_sampling_check(&request->sampling, err);
}

nib_status nib_batch_add(struct nib_batch *batch, const struct nib_request *request, int64_t *id,
                         struct nib_error *err)
{
    nib_status status = check_request(batch->engine, request, err);
    if (status)
        return status;
    int32_t room = batch->engine->plan.context - request->n_prompt;
    struct running *r = calloc(1, sizeof *r);
    if (!r)
        return nib_fail_memory(err, sizeof *r, "a request");
    r->tokens = malloc((size_t)request->n_prompt * sizeof *r->tokens);
    r->stop_tokens = malloc(((size_t)request->n_stop_tokens + 1) * sizeof *r->stop_tokens);
    if (!r->tokens || !r->stop_tokens) {
        free_running(r);
        return nib_fail_memory(err, (unsigned long long)request->n_prompt * 4, "a prompt");
    }
    status = nib_logit_rules_init(&r->rules, request, nib_engine_vocab(batch->engine), err);
    if (status) {
        free_running(r);
        return status;
    }
    memcpy(r->tokens, request->prompt, (size_t)request->n_prompt * sizeof *r->tokens);
    if (request->n_stop_tokens)
        memcpy(r->stop_tokens, request->stop_tokens, (size_t)request->n_stop_tokens * sizeof *r->stop_tokens);
    r->n_prompt = request->n_prompt;
    r->n_stop_tokens = request->n_stop_tokens;
    r->max_tokens = request->max_tokens && request->max_tokens < room ? request->max_tokens : room;
    r->top_logprobs = request->top_logprobs;
    r->user = request->user;
    r->id = *id = batch->next_id++;
    nib_sampler_init(&r->sampler, &request->sampling);
    struct running **end = &batch->first;
    while (*end)
        end = &(*end)->next;
    *end = r;
    return NIB_OK;
}

static struct running *find(const struct nib_batch *batch, int64_t id)
{
    struct running *r = batch->first;
    while (r && r->id != id)
        r = r->next;
    return r;
}

// Takes the request off the list before its last event, so that the callback may add and cancel others.
static void finish(struct nib_batch *batch, struct running *r, struct nib_event *event, enum nib_finish why)
{
    struct running **link = &batch->first;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    event->finish = why;
    nib_sequence_free(r->sequence);
    r->sequence = NULL;
    batch->on_event(batch->context, event);
    free_running(r);
}

static struct nib_event event_of(const struct running *r)
{
    return (struct nib_event){
        .request = r->id,
        .user = r->user,
        .prompt_tokens = r->n_prompt,
        .generated_tokens = r->generated,
        .cached_tokens = r->cached,
    };
}

void nib_batch_cancel(struct nib_batch *batch, int64_t id)
{
    struct running *r = find(batch, id);
    if (r && !r->cancelled) {
        r->cancelled = true;
        // Its pages go at once; the request itself is taken away between steps, when nobody holds a pointer to it.
        nib_sequence_free(r->sequence);
        r->sequence = NULL;
    }
}

int32_t nib_batch_prefilled(const struct nib_batch *batch, int64_t id)
{
    const struct running *r = find(batch, id);
    return !r ? -1 : r->fed < r->n_prompt ? r->fed : r->n_prompt;
}

static void sweep_cancelled(struct nib_batch *batch)
{
    for (struct running *r = batch->first, *next; r; r = next) {
        next = r->next;
        if (r->cancelled) {
            struct nib_event event = event_of(r);
            finish(batch, r, &event, NIB_FINISH_CANCELLED);
            next = batch->first; // the callback may have changed the list
        }
    }
}

static bool decoding(const struct running *r)
{
    return r->fed >= r->n_prompt;
}

// What each group of the pool still has, less what the step being formed takes.
static bool pages_left_for(const struct nib_batch *batch, int n_feeds, const struct running *r, int32_t n_tokens)
{
    const struct nib_kv_pool *pool = &batch->engine->pool;
    for (int g = 0; g < pool->n_groups; g++) {
        int64_t wanted = nib_page_table_wanted(&r->sequence->table, g, n_tokens);
        for (int i = 0; i < n_feeds; i++)
            wanted += nib_page_table_wanted(&batch->feeds[i].sequence->table, g, batch->feeds[i].n_tokens);
        if (wanted > pool->groups[g].n_free)
            return false;
    }
    return true;
}

static void put_feed(struct nib_batch *batch, int *n, struct running *r, const int32_t *tokens, int32_t n_tokens,
                     enum nib_outputs outputs)
{
    batch->feeds[*n] = (struct nib_feed){r->sequence, tokens, n_tokens, outputs};
    batch->fed_by[(*n)++] = r;
}

// Gives a waiting request its sequence, and what the prefix cache knows of its prompt.
static bool begin(struct nib_batch *batch, struct running *r)
{
    if (nib_sequence_create(batch->engine, &r->sequence, &batch->begin_error))
        return false;
    r->fed = r->cached = nib_sequence_reuse(r->sequence, r->tokens, r->n_prompt);
    return true;
}

// Back to waiting: its pages go to the others, and it begins anew when there are enough.
static void make_wait(struct running *r)
{
    nib_sequence_free(r->sequence);
    r->sequence = NULL;
    r->fed = r->cached = 0;
}

// Decodes first, so that running answers keep flowing; then the prompts in order of arrival, as far as tokens last.
static int form_step(struct nib_batch *batch)
{
    int n = 0, most = batch->engine->plan.max_sequences;
    int32_t left = batch->engine->plan.max_step_tokens, outputs = batch->engine->max_outputs;
    for (struct running *r = batch->first; r && n < most && outputs > 0; r = r->next)
        if (r->sequence && decoding(r) && pages_left_for(batch, n, r, 1)) {
            put_feed(batch, &n, r, &r->pending, 1, NIB_OUTPUTS_LAST);
            left--;
            outputs--;
        }
    for (struct running *r = batch->first; r && n < most && left > 0; r = r->next) {
        if (r->cancelled || decoding(r))
            continue;
        if (!r->sequence && !begin(batch, r))
            break; // those behind it wait too: first come, first served
        int32_t chunk = r->n_prompt - r->fed < left ? r->n_prompt - r->fed : left;
        bool last = r->fed + chunk == r->n_prompt;
        if ((last && outputs == 0) || !pages_left_for(batch, n, r, chunk)) {
            if (r->fed == r->cached)
                make_wait(r); // it holds nothing of its own: it must not count among those that do
            break;
        }
        put_feed(batch, &n, r, r->tokens + r->fed, chunk, last ? NIB_OUTPUTS_LAST : NIB_OUTPUTS_NONE);
        left -= chunk;
        outputs -= last;
    }
    return n;
}

static bool is_stop(const struct running *r, int32_t token)
{
    for (int32_t i = 0; i < r->n_stop_tokens; i++)
        if (r->stop_tokens[i] == token)
            return true;
    return false;
}

static void end_with_error(struct nib_batch *batch, struct running *r, struct nib_event *event,
                           const struct nib_error *err)
{
    event->error = err;
    finish(batch, r, event, NIB_FINISH_ERROR);
}

// Samples the request's next token from its row of logits and reports it.
static void sample(struct nib_batch *batch, struct running *r, const float *logits)
{
    struct nib_token_logprob top[NIB_MAX_TOP_LOGPROBS];
    int32_t vocab = nib_engine_vocab(batch->engine);
    struct nib_event event = event_of(r);
    struct nib_error err;
    const float *allowed = nib_logit_rules_apply(&r->rules, logits, batch->changed, vocab);
    if (!allowed) {
        nib_fail(&err, NIB_ERR_ARGUMENT, "no token of the vocabulary may follow here");
        end_with_error(batch, r, &event, &err);
        return;
    }
    int32_t token = nib_sampler_pick(&r->sampler, &batch->scratch, allowed, vocab);
    if (token < 0) {
        nib_fail(&err, NIB_ERR_FORMAT, "the model's logits are not numbers: its weights hold NaN or infinity");
        end_with_error(batch, r, &event, &err);
        return;
    }
    if (nib_logit_rules_accept(&r->rules, token, &err)) {
        end_with_error(batch, r, &event, &err);
        return;
    }
    r->pending = token;
    event.generated_tokens = ++r->generated;
    event.has_token = true;
    event.token.token = token;
    if (r->top_logprobs >= 0) {
        event.top = top;
        event.n_top =
            nib_logprobs(&batch->scratch, logits, vocab, token, &event.token.logprob, top, r->top_logprobs);
    }
    if (is_stop(r, token))
        finish(batch, r, &event, NIB_FINISH_STOP);
    else if (r->generated >= r->max_tokens)
        finish(batch, r, &event, NIB_FINISH_LENGTH);
    else
        batch->on_event(batch->context, &event);
}

// Nothing could be fed although requests are left, so one must give way or nobody ever moves: the youngest that holds a
// sequence. If it has said nothing yet and is not the only one, it waits again; otherwise it ends with an error.
static void give_way(struct nib_batch *batch)
{
    struct running *youngest = NULL;
    int holders = 0;
    for (struct running *r = batch->first; r; r = r->next)
        if (r->sequence) {
            youngest = r;
            holders++;
        }
    if (youngest && youngest->generated == 0 && holders > 1) {
        make_wait(youngest);
        return;
    }
    struct nib_error full;
    nib_fail(&full, NIB_ERR_LIMIT, "the KV cache of %lld tokens is full",
             (long long)batch->engine->plan.cache_tokens);
    struct running *ends = youngest ? youngest : batch->first;
    if (!ends)
        return;
    struct nib_event event = event_of(ends);
    end_with_error(batch, ends, &event, youngest ? &full : &batch->begin_error);
}

nib_status nib_batch_step(struct nib_batch *batch, bool *busy, struct nib_error *err)
{
    sweep_cancelled(batch);
    int n = form_step(batch);
    if (n == 0) {
        give_way(batch);
        *busy = batch->first != NULL;
        return NIB_OK;
    }
    nib_status status = nib_engine_step(batch->engine, batch->feeds, n, err);
    if (status)
        return status;
    int64_t row = 0;
    for (int i = 0; i < n; i++) {
        struct running *r = batch->fed_by[i];
        r->fed += batch->feeds[i].n_tokens;
        if (batch->feeds[i].outputs == NIB_OUTPUTS_NONE)
            continue;
        const float *logits = nib_engine_logits(batch->engine, row++);
        if (!r->cancelled) // an earlier event of this step may have cancelled it
            sample(batch, r, logits);
    }
    sweep_cancelled(batch);
    *busy = batch->first != NULL;
    return NIB_OK;
}
