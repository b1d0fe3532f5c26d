// Sequences, and one step over a ragged batch of them.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine_state.h"

nib_status nib_sequence_create(struct nib_engine *engine, struct nib_sequence **sequence, struct nib_error *err)
{
    if (engine->n_sequences >= engine->plan.max_sequences)
        return nib_fail(err, NIB_ERR_LIMIT, "all %d sequences are in use", engine->plan.max_sequences);
    struct nib_sequence *created = calloc(1, sizeof *created);
    if (!created)
        return nib_fail_memory(err, sizeof *created, "a sequence");
    nib_status status = nib_page_table_init(&created->table, &engine->pool, err);
    if (status) {
        free(created);
        return status;
    }
    created->engine = engine;
    engine->n_sequences++;
    *sequence = created;
    return NIB_OK;
}

void nib_sequence_free(struct nib_sequence *sequence)
{
    if (!sequence)
        return;
    nib_page_table_release(&sequence->table, &sequence->engine->pool);
    sequence->engine->n_sequences--;
    free(sequence);
}

int32_t nib_sequence_length(const struct nib_sequence *sequence)
{
    return sequence->table.length;
}

int32_t nib_sequence_reuse(struct nib_sequence *sequence, const int32_t *tokens, int32_t n)
{
    struct nib_engine *engine = sequence->engine;
    if (!engine->pool.prefix || n > engine->plan.context)
        return 0;
    return nib_prefix_cache_attach(&engine->pool, &sequence->table, &sequence->trail, tokens, n);
}

nib_status nib_sequence_assume(struct nib_sequence *sequence, int32_t n, struct nib_error *err)
{
    struct nib_engine *engine = sequence->engine;
    if (n < 0 || n > engine->plan.context - sequence->table.length)
        return nib_fail(err, NIB_ERR_LIMIT, "%d tokens and %d more exceed the context of %d",
                        sequence->table.length, n, engine->plan.context);
    for (int32_t chunk; n > 0; n -= chunk) {
        chunk = n < engine->plan.max_step_tokens ? n : engine->plan.max_step_tokens;
        if (!nib_page_table_reserve(&sequence->table, &engine->pool, chunk))
            return nib_fail(err, NIB_ERR_LIMIT, "the KV cache of %lld tokens is full",
                            (long long)engine->plan.cache_tokens);
        nib_page_table_advance(&sequence->table, &engine->pool, chunk);
    }
    return NIB_OK;
}

static int32_t outputs_of(const struct nib_feed *feed)
{
    return feed->outputs == NIB_OUTPUTS_ALL ? feed->n_tokens : feed->outputs == NIB_OUTPUTS_LAST;
}

static nib_status check_feed(const struct nib_engine *engine, const struct nib_feed *feed, struct nib_error *err)
{
    int64_t vocab = engine->model->shape.vocab;
    if (feed->n_tokens < 1)
        return nib_fail(err, NIB_ERR_ARGUMENT, "a feed of %d tokens", feed->n_tokens);
    if (feed->n_tokens > engine->plan.context - feed->sequence->table.length)
        return nib_fail(err, NIB_ERR_LIMIT, "%d tokens and %d more exceed the context of %d",
                        feed->sequence->table.length, feed->n_tokens, engine->plan.context);
    for (int32_t i = 0; i < feed->n_tokens; i++)
        if (feed->tokens[i] < 0 || feed->tokens[i] >= vocab)
            return nib_fail(err, NIB_ERR_ARGUMENT, "token id %d is not in 0 .. %lld", feed->tokens[i],
                            (long long)vocab - 1);
    return NIB_OK;
}

static nib_status check_feeds(const struct nib_engine *engine, const struct nib_feed *feeds, int n,
                              struct nib_error *err)
{
    if (n < 1 || n > engine->plan.max_sequences)
        return nib_fail(err, NIB_ERR_LIMIT, "a step of %d sequences; the engine was opened for %d", n,
                        engine->plan.max_sequences);
    int64_t tokens = 0, outputs = 0;
    for (int i = 0; i < n; i++) {
        nib_status status = check_feed(engine, &feeds[i], err);
        if (status)
            return status;
        for (int j = 0; j < i; j++)
            if (feeds[j].sequence == feeds[i].sequence)
                return nib_fail(err, NIB_ERR_ARGUMENT, "feeds %d and %d are of the same sequence", j, i);
        tokens += feeds[i].n_tokens;
        outputs += outputs_of(&feeds[i]);
    }
    if (tokens > engine->plan.max_step_tokens)
        return nib_fail(err, NIB_ERR_LIMIT, "a step of %lld tokens; the engine was opened for %d",
                        (long long)tokens, engine->plan.max_step_tokens);
    if (outputs > engine->max_outputs)
        return nib_fail(err, NIB_ERR_LIMIT, "a step with %lld rows of logits; the engine was opened for %d",
                        (long long)outputs, engine->max_outputs);
    return NIB_OK;
}

static nib_status reserve_pages(struct nib_engine *engine, const struct nib_feed *feeds, int n,
                                struct nib_error *err)
{
    for (int i = 0; i < n; i++) {
        if (nib_page_table_reserve(&feeds[i].sequence->table, &engine->pool, feeds[i].n_tokens))
            continue;
        for (int j = 0; j < i; j++)
            nib_page_table_unreserve(&feeds[j].sequence->table, &engine->pool);
        return nib_fail(err, NIB_ERR_LIMIT, "the KV cache of %lld tokens is full",
                        (long long)engine->plan.cache_tokens);
    }
    return NIB_OK;
}

// Lays the feeds out as one flat batch.
static struct nib_step describe(struct nib_engine *engine, const struct nib_feed *feeds, int n)
{
    struct nib_step_arrays *a = &engine->arrays;
    int32_t row = 0, output = 0, width = engine->pool.table_width;
    for (int s = 0; s < n; s++) {
        const struct nib_page_table *table = &feeds[s].sequence->table;
        a->first_row[s] = row;
        for (int32_t i = 0; i < feeds[s].n_tokens; i++, row++) {
            a->tokens[row] = feeds[s].tokens[i];
            a->positions[row] = table->length + i;
            a->sequence_of[row] = s;
            if (feeds[s].outputs == NIB_OUTPUTS_ALL ||
                (feeds[s].outputs == NIB_OUTPUTS_LAST && i == feeds[s].n_tokens - 1))
                a->output_rows[output++] = row;
        }
        for (int g = 0; g < engine->pool.n_groups; g++)
            memcpy(a->page_tables + ((size_t)g * (size_t)n + (size_t)s) * (size_t)width,
                   table->pages + (size_t)g * (size_t)width, (size_t)width * sizeof(int32_t));
    }
    a->first_row[n] = row;
    return (struct nib_step){
        .n_tokens = row,
        .n_sequences = n,
        .n_outputs = output,
        .page_tokens = NIB_PAGE_TOKENS,
        .n_groups = engine->pool.n_groups,
        .table_width = width,
        .tokens = a->tokens,
        .positions = a->positions,
        .sequence_of = a->sequence_of,
        .first_row = a->first_row,
        .page_tables = a->page_tables,
        .output_rows = a->output_rows,
    };
}

// Cached rows that the feeds' last tokens see: each is read once, however many of the feed's tokens see it.
static uint64_t cache_bytes(const struct nib_engine *engine, const struct nib_feed *feeds, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < engine->pool.n_groups; g++) {
            int64_t seen = feeds[i].sequence->table.length + feeds[i].n_tokens,
                    window = engine->pool.groups[g].window;
            int64_t reach = window + feeds[i].n_tokens - 1;
            bytes += (uint64_t)(window && seen > reach ? reach : seen) * engine->pool.groups[g].row_bytes;
        }
    return bytes;
}

nib_status nib_engine_step_and_draw(struct nib_engine *engine, const struct nib_feed *feeds, int n,
                                    const struct nib_draw *draws, struct nib_drawn *drawn, struct nib_error *err)
{
    nib_status status = check_feeds(engine, feeds, n, err);
    if (!status)
        status = reserve_pages(engine, feeds, n, err);
    if (status)
        return status;
    struct nib_step step = describe(engine, feeds, n);
    engine->ops->begin(engine->device, &step);
    nib_model_forward(engine->model, &step, engine->pool.caches);
    if (draws && step.n_outputs)
        engine->ops->sample(engine->device, step.n_outputs, engine->model->logits, draws, drawn);
    status = engine->ops->end(engine->device, err);
    engine->n_output_rows = status ? 0 : step.n_outputs;
    engine->logits_read = false;
    engine->step_cache_bytes = cache_bytes(engine, feeds, n);
    for (int i = 0; i < n; i++) {
        if (status)
            nib_page_table_unreserve(&feeds[i].sequence->table, &engine->pool);
        else if (engine->pool.prefix)
            nib_prefix_cache_note(&engine->pool, &feeds[i].sequence->table, &feeds[i].sequence->trail,
                                  feeds[i].tokens, feeds[i].n_tokens);
        if (!status)
            nib_page_table_advance(&feeds[i].sequence->table, &engine->pool, feeds[i].n_tokens);
    }
    return status;
}

nib_status nib_engine_step(struct nib_engine *engine, const struct nib_feed *feeds, int n, struct nib_error *err)
{
    return nib_engine_step_and_draw(engine, feeds, n, NULL, NULL, err);
}

// Rows are fetched when the first of them is asked for: drawn tokens may be all that anybody wants.
const float *nib_engine_logits(struct nib_engine *engine, int64_t row)
{
    if (row < 0 || row >= engine->n_output_rows)
        return NULL;
    if (!engine->logits_read)
        engine->ops->read(engine->device, engine->n_output_rows, engine->model->logits, engine->arrays.logits);
    engine->logits_read = true;
    return engine->arrays.logits + row * engine->model->shape.vocab;
}
