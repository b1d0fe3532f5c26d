// Who takes part in the next step: every answer under way with one token, so that it keeps flowing; then the prompts,
// which share what the step has left evenly, so that a long one delays a short one by its share and no more.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/batch_state.h"

void nib_batch_make_wait(struct nib_running *r)
{
    nib_sequence_free(r->sequence);
    r->sequence = NULL;
    r->fed = r->cached = 0;
    r->phase = NIB_PHASE_WAITING;
}

// ---- feeding ----

static bool feed(struct nib_batch *batch, int *n, struct nib_running *r, const int32_t *tokens, int32_t n_tokens,
                 bool output)
{
    const struct nib_kv_pool *pool = &batch->engine->pool;
    const struct nib_page_table *table = &r->sequence->table;
    for (int g = 0; g < pool->n_groups; g++)
        if (batch->taken[g] + nib_page_table_wanted(table, g, n_tokens) > pool->groups[g].n_free)
            return false;
    for (int g = 0; g < pool->n_groups; g++)
        batch->taken[g] += nib_page_table_wanted(table, g, n_tokens);
    batch->feeds[*n] =
        (struct nib_feed){r->sequence, tokens, n_tokens, output ? NIB_OUTPUTS_LAST : NIB_OUTPUTS_NONE};
    batch->fed_by[(*n)++] = r;
    return true;
}

static int32_t unread(const struct nib_running *r)
{
    return r->n_prompt - r->fed;
}

static int by_unread(const void *a, const void *b)
{
    const struct nib_running *x = *(struct nib_running *const *)a, *y = *(struct nib_running *const *)b;
    return unread(x) != unread(y) ? (unread(x) > unread(y)) - (unread(x) < unread(y))
                                  : (x->id > y->id) - (x->id < y->id);
}

// The shortest first: each may take an equal part of what is left, and what it does not need goes to those behind.
static void feed_prompts(struct nib_batch *batch, int *n, int32_t left, int32_t outputs)
{
    int32_t readers = 0;
    for (struct nib_running *r = batch->first; r; r = r->next)
        if (r->phase == NIB_PHASE_READING)
            batch->readers[readers++] = r;
    qsort(batch->readers, (size_t)readers, sizeof(struct nib_running *), by_unread);
    for (int32_t i = 0; i < readers && left > 0; i++) {
        struct nib_running *r = batch->readers[i];
        int32_t share = (left + readers - i - 1) / (readers - i);
        int32_t chunk = unread(r) < share ? unread(r) : share;
        bool last = chunk == unread(r);
        if ((last && outputs == 0) || !feed(batch, n, r, r->tokens + r->fed, chunk, last))
            continue;
        left -= chunk;
        outputs -= last;
    }
}

// ---- beginning ----

// Whether a prompt that is being read begins like this one, farther than it has been read: what they share is then
// computed once, and a little later found in the prefix cache.
static bool is_being_read(const struct nib_batch *batch, const struct nib_running *r)
{
    for (const struct nib_running *other = batch->first; other; other = other->next) {
        int32_t next_page = (other->fed / NIB_PAGE_TOKENS + 1) * NIB_PAGE_TOKENS;
        if (other->phase == NIB_PHASE_READING && next_page <= other->n_prompt && next_page <= r->n_prompt &&
            memcmp(r->tokens, other->tokens, (size_t)next_page * sizeof *r->tokens) == 0)
            return true;
    }
    return false;
}

// Adds the pages that the rest of a prompt takes; false when there are not so many.
static bool promise(const struct nib_batch *batch, const struct nib_running *r, int64_t *promised)
{
    const struct nib_kv_pool *pool = &batch->engine->pool;
    bool there = true;
    for (int g = 0; g < pool->n_groups; g++) {
        promised[g] += nib_page_table_wanted_live(&r->sequence->table, pool, g, unread(r));
        there &= promised[g] <= pool->groups[g].n_free;
    }
    return there;
}

// First come, first served: a request begins when a sequence is free and all of its prompt has room beside the prompts
// that have begun, so that none of those has to give way to another.
static void begin_waiting(struct nib_batch *batch)
{
    int64_t promised[NIB_MAX_GROUPS];
    for (int g = 0; g < NIB_MAX_GROUPS; g++)
        promised[g] = batch->taken[g];
    for (struct nib_running *r = batch->first; r; r = r->next)
        if (r->phase == NIB_PHASE_READING)
            promise(batch, r, promised);
    for (struct nib_running *r = batch->first; r; r = r->next) {
        if (r->phase != NIB_PHASE_WAITING || (batch->engine->pool.prefix && is_being_read(batch, r)))
            continue;
        if (nib_sequence_create(batch->engine, &r->sequence, &batch->begin_error))
            return;
        r->phase = NIB_PHASE_READING;
        r->fed = r->cached = nib_sequence_reuse(r->sequence, r->tokens, r->n_prompt);
        if (promise(batch, r, promised))
            continue;
        nib_batch_make_wait(r);
        nib_fail(&batch->begin_error, NIB_ERR_LIMIT, "the KV cache of %lld tokens is full",
                 (long long)batch->engine->plan.cache_tokens);
        return;
    }
}

int nib_batch_form_step(struct nib_batch *batch)
{
    int n = 0;
    int32_t left = batch->engine->plan.max_step_tokens, outputs = batch->engine->max_outputs;
    for (int g = 0; g < NIB_MAX_GROUPS; g++)
        batch->taken[g] = 0;
    for (struct nib_running *r = batch->first; r && outputs > 0; r = r->next)
        if (r->phase == NIB_PHASE_SPEAKING && feed(batch, &n, r, &r->pending, 1, true)) {
            left--;
            outputs--;
        }
    begin_waiting(batch);
    feed_prompts(batch, &n, left, outputs);
    return n;
}
