#include "cli/generate.h"

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

struct run {
    struct generation *generation;
    struct nib_batch *batch;
    double started, first; // seconds; first: of the first token
    bool enough, ended;
    struct nib_error error; // of the request
};

static void on_event(void *context, const struct nib_event *event)
{
    struct run *run = context;
    struct generation *g = run->generation;
    if (run->ended || run->enough) {
        run->ended |= event->finish != NIB_FINISH_NOT_YET;
        return;
    }
    g->generated = event->generated_tokens;
    if (event->has_token && g->generated == 1)
        run->first = nib_seconds();
    if (event->has_token && event->finish == NIB_FINISH_STOP)
        g->stop_token = event->token.token;
    else if (event->has_token && !g->on_token(g->context, event)) {
        run->enough = true;
        nib_batch_cancel(run->batch, event->request);
    }
    if (event->finish == NIB_FINISH_NOT_YET)
        return;
    run->ended = true;
    g->finish = event->finish;
    if (event->finish == NIB_FINISH_ERROR)
        run->error = *event->error;
}

static nib_status step_until_done(struct run *run, int64_t id, struct nib_error *err)
{
    struct nib_progress bar;
    bool busy = true;
    nib_status status = NIB_OK;
    nib_progress_begin(&bar, "reading the prompt", run->generation->n_prompt, "tok");
    while (!status && busy) {
        if (interrupted())
            nib_batch_cancel(run->batch, id);
        int32_t read = nib_batch_prefilled(run->batch, id);
        if (read >= 0 && read < run->generation->n_prompt)
            nib_progress_update(&bar, read);
        else
            nib_progress_end(&bar);
        status = nib_batch_step(run->batch, &busy, err);
    }
    nib_progress_end(&bar);
    return status;
}

nib_status generate(struct session *session, struct generation *g, struct nib_error *err)
{
    struct nib_request request = {
        .prompt = g->prompt,
        .n_prompt = g->n_prompt,
        .max_tokens = g->max_tokens,
        .sampling = g->sampling,
        .repetition_penalty = g->repetition_penalty,
        .stop_tokens = session->stop_tokens,
        .n_stop_tokens = session->n_stop_tokens,
        .top_logprobs = g->top_logprobs,
    };
    struct run run = {.generation = g, .started = nib_seconds()};
    int64_t id;
    g->finish = NIB_FINISH_NOT_YET;
    g->stop_token = -1;
    g->generated = 0;
    nib_status status = nib_batch_create(session->engine, on_event, &run, &run.batch, err);
    if (status)
        return status;
    status = nib_batch_add(run.batch, &request, &id, err);
    if (!status)
        status = step_until_done(&run, id, err);
    nib_batch_free(run.batch);
    double ended = nib_seconds();
    g->prefill_seconds = (run.first > 0 ? run.first : ended) - run.started;
    g->decode_seconds = run.first > 0 ? ended - run.first : 0;
    if (run.enough)
        g->finish = NIB_FINISH_STOP;
    if (!status && run.error.status) {
        *err = run.error;
        status = err->status;
    }
    return status;
}

double prefill_rate(const struct generation *g)
{
    return g->generated && g->prefill_seconds > 0 ? g->n_prompt / g->prefill_seconds : 0;
}

double decode_rate(const struct generation *g)
{
    return g->generated > 1 && g->decode_seconds > 0 ? (g->generated - 1) / g->decode_seconds : 0;
}

const char *finish_name(enum nib_finish finish)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return names[finish];
}
