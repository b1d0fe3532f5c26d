// The life of requests: they are checked and queued, read, answered token by token, and end one by one.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/batch_state.h"

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
    created->readers = malloc(sequences * sizeof *created->readers);
    nib_status status = created->feeds && created->fed_by && created->readers
                            ? nib_batch_alloc_draws(created, err)
                            : nib_fail_memory(err, sequences * sizeof *created->feeds, "a batch");
    if (status) {
        nib_batch_free(created);
        return status;
    }
    *batch = created;
    return NIB_OK;
}

static void free_running(struct nib_running *r)
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
        struct nib_running *r = batch->first;
        batch->first = r->next;
        free_running(r);
    }
    nib_batch_free_draws(batch);
    free(batch->feeds);
    free(batch->fed_by);
    free(batch->readers);
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
    struct nib_running *r = calloc(1, sizeof *r);
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
    struct nib_running **end = &batch->first;
    while (*end)
        end = &(*end)->next;
    *end = r;
    return NIB_OK;
}

static struct nib_running *find(const struct nib_batch *batch, int64_t id)
{
    struct nib_running *r = batch->first;
    while (r && r->id != id)
        r = r->next;
    return r;
}

// Takes the request off the list before its last event, so that the callback may add and cancel others.
static void finish(struct nib_batch *batch, struct nib_running *r, struct nib_event *event, enum nib_finish why)
{
    struct nib_running **link = &batch->first;
    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
    event->finish = why;
    nib_sequence_free(r->sequence);
    r->sequence = NULL;
    batch->on_event(batch->context, event);
    free_running(r);
}

static struct nib_event event_of(const struct nib_running *r)
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
    struct nib_running *r = find(batch, id);
    if (!r || r->phase == NIB_PHASE_CANCELLED)
        return;
    // Its pages go at once; the request itself is taken away between steps, when nobody holds a pointer to it.
    nib_sequence_free(r->sequence);
    r->sequence = NULL;
    r->phase = NIB_PHASE_CANCELLED;
}

int32_t nib_batch_prefilled(const struct nib_batch *batch, int64_t id)
{
    const struct nib_running *r = find(batch, id);
    return !r ? -1 : r->fed < r->n_prompt ? r->fed : r->n_prompt;
}

static void sweep_cancelled(struct nib_batch *batch)
{
    for (struct nib_running *r = batch->first, *next; r; r = next) {
        next = r->next;
        if (r->phase == NIB_PHASE_CANCELLED) {
            struct nib_event event = event_of(r);
            finish(batch, r, &event, NIB_FINISH_CANCELLED);
            next = batch->first; // the callback may have changed the list
        }
    }
}

static bool is_stop(const struct nib_running *r, int32_t token)
{
    for (int32_t i = 0; i < r->n_stop_tokens; i++)
        if (r->stop_tokens[i] == token)
            return true;
    return false;
}

static void end_with_error(struct nib_batch *batch, struct nib_running *r, struct nib_event *event,
                           const struct nib_error *err)
{
    event->error = err;
    finish(batch, r, event, NIB_FINISH_ERROR);
}

// Reports the request's next token.
static void say(struct nib_batch *batch, struct nib_running *r, const struct nib_picked *picked)
{
    struct nib_event event = event_of(r);
    struct nib_error err;
    int32_t token = picked->token.token;
    if (picked->forbidden) {
        nib_fail(&err, NIB_ERR_ARGUMENT, "no token of the vocabulary may follow here");
        end_with_error(batch, r, &event, &err);
        return;
    }
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
    event.token = picked->token;
    if (r->top_logprobs >= 0) {
        event.top = picked->top;
        event.n_top = picked->n_top;
    }
    if (is_stop(r, token))
        finish(batch, r, &event, NIB_FINISH_STOP);
    else if (r->generated >= r->max_tokens)
        finish(batch, r, &event, NIB_FINISH_LENGTH);
    else
        batch->on_event(batch->context, &event);
}

// Nothing could be fed although requests are left, so one of those that hold pages must give way or nobody ever moves: the
// youngest whose prompt is being read waits again, unless it is alone; otherwise the youngest answer ends with an error.
static void give_way(struct nib_batch *batch)
{
    struct nib_running *youngest = NULL, *reader = NULL;
    int holders = 0;
    for (struct nib_running *r = batch->first; r; r = r->next)
        if (r->sequence) {
            youngest = r;
            reader = r->phase == NIB_PHASE_READING ? r : reader;
            holders++;
        }
    if (reader && holders > 1) {
        nib_batch_make_wait(reader);
        return;
    }
    struct nib_error full;
    nib_fail(&full, NIB_ERR_LIMIT, "the KV cache of %lld tokens is full",
             (long long)batch->engine->plan.cache_tokens);
    struct nib_running *ends = youngest ? youngest : batch->first;
    if (!ends)
        return;
    struct nib_event event = event_of(ends);
    end_with_error(batch, ends, &event, youngest ? &full : &batch->begin_error);
}

nib_status nib_batch_step(struct nib_batch *batch, bool *busy, struct nib_error *err)
{
    sweep_cancelled(batch);
    int n = nib_batch_form_step(batch);
    if (n == 0) {
        give_way(batch);
        *busy = batch->first != NULL;
        return NIB_OK;
    }
    nib_status status =
        nib_engine_step_and_draw(batch->engine, batch->feeds, n, nib_batch_ask(batch, n), batch->drawn, err);
    if (status)
        return status;
    nib_batch_pick(batch, n);
    for (int i = 0; i < n; i++) {
        struct nib_running *r = batch->fed_by[i];
        r->fed += batch->feeds[i].n_tokens;
        if (batch->feeds[i].outputs == NIB_OUTPUTS_NONE)
            continue;
        if (r->phase == NIB_PHASE_CANCELLED) // by an earlier event of this step
            continue;
        r->phase = NIB_PHASE_SPEAKING;
        say(batch, r, &batch->picked[r->row]);
    }
    sweep_cancelled(batch);
    *busy = batch->first != NULL;
    return NIB_OK;
}
