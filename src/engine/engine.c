// Opening an engine: checkpoint, model, memory plan, device, weights, cache, in this order.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "engine/devices.h"
#include "engine/engine_state.h"
#include "engine/widened.h"

#define DEFAULT_SEQUENCES 8
#define DEFAULT_STEP_TOKENS 512
#define SMALLEST_CONTEXT 1024 // that a context of one's own choosing is shortened to

static nib_status check_options(const struct nib_engine_options *options, struct nib_error *err)
{
    const struct {
        const char *name;
        int64_t value, most;
    } limits[] = {
        {"threads", options->threads, 1024},
        {"context", options->context, 1 << 30},
        {"max_sequences", options->max_sequences, 4096},
        {"max_step_tokens", options->max_step_tokens, 65536},
        {"max_outputs", options->max_outputs, 65536},
        {"cache_tokens", options->cache_tokens == NIB_CACHE_ALL ? 0 : options->cache_tokens, (int64_t)1 << 36},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value < 0 || limits[i].value > limits[i].most)
            return nib_fail(err, NIB_ERR_ARGUMENT, "%s %lld is not in 0 .. %lld", limits[i].name,
                            (long long)limits[i].value, (long long)limits[i].most);
    return NIB_OK;
}

static struct nib_device_options device_options(const struct nib_engine *engine,
                                                const struct nib_engine_options *options)
{
    return (struct nib_device_options){
        .threads = engine->threads,
        .max_tokens = engine->plan.max_step_tokens,
        .max_sequences = engine->plan.max_sequences,
        .dense_int8 = engine->dense_int8,
        .exact = engine->plan.exact,
        .ordinal = engine->ordinal,
        .deterministic = options->deterministic,
        .random_weights = options->random_weights,
        .on_upload = options->on_upload,
        .user = options->user,
    };
}

static struct nib_scratch_query scratch_query(const struct nib_model_shape *shape)
{
    return (struct nib_scratch_query){
        .max_width = shape->max_linear_width,
        .n_experts = shape->n_experts,
        .top_k = shape->top_k,
        .hidden = shape->hidden,
        .intermediate = shape->intermediate,
        .n_heads = shape->n_heads,
        .head_dim = shape->head_dim,
    };
}

// The plan for a context of this many tokens, and a cache of that many.
static nib_status plan_sizes(struct nib_engine *engine, const struct nib_engine_options *options, int32_t context,
                             int64_t cache_tokens, struct nib_error *err)
{
    const struct nib_model_shape *shape = &engine->model->shape;
    struct nib_memory_plan *plan = &engine->plan;
    plan->context = context;
    plan->cache_tokens = cache_tokens;
    struct nib_device_options device = device_options(engine, options);
    plan->cache_element_bytes = engine->ops->cache_element_bytes(&device);
    nib_status status = nib_kv_pool_plan(&engine->pool, shape, plan->cache_element_bytes, context,
                                         plan->cache_tokens, plan->max_sequences, plan->max_step_tokens, err);
    if (status)
        return status;
    plan->cache_bytes = nib_kv_pool_bytes(&engine->pool);
    plan->cache_row_bytes = 0;
    plan->n_cache_groups = engine->pool.n_groups;
    for (int g = 0; g < engine->pool.n_groups; g++) {
        const struct nib_kv_group *group = &engine->pool.groups[g];
        plan->cache_groups[g] = (struct nib_cache_group){group->window, group->layers, group->row_bytes,
                                                         (int64_t)group->most_live * NIB_PAGE_TOKENS};
        if (group->window == 0)
            plan->cache_row_bytes += group->row_bytes;
    }
    struct nib_scratch_query query = scratch_query(shape);
    plan->scratch_bytes = engine->ops->scratch_bytes(&device, &query);
    uint64_t rows = (uint64_t)plan->max_step_tokens, outputs = (uint64_t)engine->max_outputs;
    uint64_t output_width = (uint64_t)(shape->hidden + shape->vocab);
    plan->buffer_bytes =
        (rows * (uint64_t)shape->buffer_width + outputs * output_width) * engine->ops->buffer_element_bytes +
        outputs * (uint64_t)shape->vocab * sizeof(float);
    plan->narrowed_bytes = engine->dense_int8 ? shape->narrowed_bytes : 0;
    plan->total_bytes = plan->narrowed_bytes + plan->widened_bytes + plan->weights_bytes + plan->cache_bytes +
                        plan->buffer_bytes + plan->scratch_bytes;
    return NIB_OK;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024 * 1024);
}

static nib_status plan_context(struct nib_engine *engine, const struct nib_engine_options *options,
                               int32_t context, struct nib_error *err)
{
    return plan_sizes(engine, options, context, options->cache_tokens > 0 ? options->cache_tokens : context, err);
}

// The largest cache that memory is left for, as far as sequences could fill it. One thirty-second of the memory stays free
// for what no plan knows of.
static nib_status fill_with_cache(struct nib_engine *engine, const struct nib_engine_options *options,
                                  struct nib_error *err)
{
    struct nib_memory_plan *plan = &engine->plan;
    int32_t context = plan->context;
    uint64_t usable = plan->available_bytes - plan->available_bytes / 32;
    int64_t fits = context, most = (int64_t)plan->max_sequences * context + 1;
    while (most - fits > 1) {
        int64_t middle = fits + (most - fits) / 2;
        bool enough = plan_sizes(engine, options, context, middle, err) == NIB_OK && plan->total_bytes <= usable;
        *(enough ? &fits : &most) = middle;
    }
    return plan_sizes(engine, options, context, fits, err);
}

// A context that was asked for is kept or refused; one of our own choosing is halved until it fits.
static nib_status plan_memory(struct nib_engine *engine, const struct nib_engine_options *options,
                              struct nib_error *err)
{
    struct nib_memory_plan *plan = &engine->plan;
    int64_t longest = engine->model->shape.context;
    int32_t context = options->context ? options->context : (int32_t)longest;
    nib_status status = plan_context(engine, options, context, err);
    while (!status && !options->context && plan->total_bytes > plan->available_bytes &&
           context / 2 >= SMALLEST_CONTEXT) {
        context /= 2;
        status = plan_context(engine, options, context, err);
    }
    if (status)
        return status;
    if (context > longest)
        return nib_fail(err, NIB_ERR_ARGUMENT, "context %d is longer than the model's %lld positions", context,
                        (long long)longest);
    if (options->cache_tokens == NIB_CACHE_ALL && plan->total_bytes <= plan->available_bytes &&
        (status = fill_with_cache(engine, options, err)))
        return status;
    if (plan->total_bytes > plan->available_bytes && !options->force)
        return nib_fail(
            err, NIB_ERR_MEMORY,
            "%s needs %.2f GiB (weights %.2f, cache %.2f for %lld tokens, buffers %.2f, scratch %.2f) but "
            "%.2f GiB are available; a smaller context or --force helps",
            nib_checkpoint_path(engine->checkpoint), gib(plan->total_bytes),
            gib(plan->weights_bytes + plan->widened_bytes), gib(plan->cache_bytes), (long long)plan->cache_tokens,
            gib(plan->buffer_bytes), gib(plan->scratch_bytes), gib(plan->available_bytes));
    return NIB_OK;
}

// From the configuration to the plan; allocates only what describes the model.
static nib_status prepare_model(struct nib_engine *engine, const struct nib_config *config, uint64_t weights_bytes,
                                const struct nib_engine_options *options, struct nib_error *err)
{
    nib_status status = nib_model_create(config, &engine->model, err);
    if (status)
        return status;
    engine->threads = options->threads ? options->threads : nib_thread_limit();
    struct nib_memory_plan *plan = &engine->plan;
    plan->max_sequences = options->max_sequences ? options->max_sequences : DEFAULT_SEQUENCES;
    plan->max_step_tokens = options->max_step_tokens ? options->max_step_tokens : DEFAULT_STEP_TOKENS;
    if (plan->max_step_tokens < plan->max_sequences)
        plan->max_step_tokens = plan->max_sequences;
    engine->dense_int8 = options->dense_int8;
    engine->max_outputs = options->max_outputs ? options->max_outputs : plan->max_sequences;
    plan->weights_bytes = weights_bytes;
    plan->exact = options->precision == NIB_PRECISION_EXACT ||
                  (options->precision == NIB_PRECISION_AUTO && plan->weights_bytes < NIB_EXACT_BELOW &&
                   !engine->ops->rounds);
    return plan_memory(engine, options, err);
}

// The device, and the memory it has left.
static nib_status find_device(struct nib_engine *engine, const struct nib_engine_options *options,
                              struct nib_error *err)
{
    nib_status status = check_options(options, err);
    if (!status)
        status = nib_find_device(options->device ? options->device : "cpu", &engine->ops, &engine->ordinal, err);
    if (status)
        return status;
    if (engine->ops->memory_available)
        return engine->ops->memory_available(engine->ordinal, &engine->plan.available_bytes, err);
    engine->plan.available_bytes = nib_memory_available();
    return NIB_OK;
}

static nib_status prepare(struct nib_engine *engine, const char *path, const struct nib_engine_options *options,
                          struct nib_error *err)
{
    nib_status status;
    if ((status = find_device(engine, options, err)) ||
        (status = nib_checkpoint_open(path, &engine->checkpoint, err)))
        return status;
    const struct nib_config *config = nib_checkpoint_config(engine->checkpoint);
    if (!config)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: a model is a folder with config.json beside its tensors",
                        path);
    if (engine->ops->widens && (status = nib_widened_bytes(engine->checkpoint, &engine->plan.widened_bytes, err)))
        return status;
    return prepare_model(engine, config, nib_checkpoint_bytes(engine->checkpoint), options, err);
}

static nib_status alloc_arrays(struct nib_engine *engine, struct nib_error *err)
{
    struct nib_step_arrays *a = &engine->arrays;
    size_t tokens = (size_t)engine->plan.max_step_tokens, sequences = (size_t)engine->plan.max_sequences;
    size_t outputs = (size_t)engine->max_outputs, vocab = (size_t)engine->model->shape.vocab;
    a->tokens = malloc(tokens * sizeof *a->tokens);
    a->positions = malloc(tokens * sizeof *a->positions);
    a->sequence_of = malloc(tokens * sizeof *a->sequence_of);
    a->first_row = malloc((sequences + 1) * sizeof *a->first_row);
    a->page_tables = malloc((size_t)engine->pool.n_groups * sequences * (size_t)engine->pool.table_width *
                            sizeof *a->page_tables);
    a->output_rows = malloc(outputs * sizeof *a->output_rows);
    a->logits = malloc(outputs * vocab * sizeof *a->logits);
    if (a->tokens && a->positions && a->sequence_of && a->first_row && a->page_tables && a->output_rows &&
        a->logits)
        return NIB_OK;
    return nib_fail_memory(err, outputs * vocab * sizeof *a->logits, "the step description and logits");
}

static nib_status start(struct nib_engine *engine, const struct nib_engine_options *options, struct nib_error *err)
{
    struct nib_device_options device = device_options(engine, options);
    struct nib_scratch_query query = scratch_query(&engine->model->shape);
    nib_status status;
    if ((status = engine->ops->open(&device, &query, &engine->device, err)) ||
        (status = nib_model_bind(engine->model, engine->checkpoint, engine->ops, engine->device,
                                 engine->plan.max_step_tokens, engine->max_outputs, err)) ||
        (status = nib_kv_pool_alloc(&engine->pool, &engine->model->shape, engine->ops, engine->device, err)) ||
        (options->prefix_cache && (status = nib_prefix_cache_create(&engine->pool, &engine->pool.prefix, err))))
        return status;
    engine->dense_bytes = engine->model->head_bytes;
    for (int64_t l = 0; l < engine->model->shape.n_layers; l++) {
        struct nib_layer_summary layer;
        nib_engine_describe_layer(engine, l, &layer);
        engine->dense_bytes += layer.dense_bytes;
    }
    return alloc_arrays(engine, err);
}

nib_status nib_engine_open(const char *path, const struct nib_engine_options *options, struct nib_engine **engine,
                           struct nib_error *err)
{
    struct nib_engine *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "the engine");
    nib_status status = prepare(opened, path, options, err);
    if (!status && options->on_plan)
        options->on_plan(options->user, &opened->plan);
    if (!status)
        status = start(opened, options, err);
    if (status) {
        nib_engine_close(opened);
        return status;
    }
    *engine = opened;
    return NIB_OK;
}

nib_status nib_engine_plan(const char *path, const struct nib_engine_options *options,
                           struct nib_memory_plan *plan, struct nib_error *err)
{
    struct nib_engine planned = {0};
    struct nib_engine_options forced = *options;
    forced.force = true;
    nib_status status = prepare(&planned, path, &forced, err);
    if (!status)
        *plan = planned.plan;
    nib_model_free(planned.model);
    nib_checkpoint_close(planned.checkpoint);
    return status;
}

nib_status nib_engine_plan_config(const struct nib_config *config, uint64_t weights_bytes,
                                  const struct nib_engine_options *options, struct nib_memory_plan *plan,
                                  struct nib_error *err)
{
    struct nib_engine planned = {0};
    struct nib_engine_options forced = *options;
    forced.force = true;
    nib_status status = find_device(&planned, options, err);
    if (!status)
        status = prepare_model(&planned, config, weights_bytes, &forced, err);
    if (!status)
        *plan = planned.plan;
    nib_model_free(planned.model);
    return status;
}

void nib_engine_close(struct nib_engine *engine)
{
    if (!engine)
        return;
    if (engine->device)
        nib_kv_pool_free(&engine->pool, engine->ops, engine->device);
    nib_model_free(engine->model);
    if (engine->device)
        engine->ops->close(engine->device);
    nib_checkpoint_close(engine->checkpoint);
    free(engine->arrays.tokens);
    free(engine->arrays.positions);
    free(engine->arrays.sequence_of);
    free(engine->arrays.first_row);
    free(engine->arrays.page_tables);
    free(engine->arrays.output_rows);
    free(engine->arrays.logits);
    free(engine);
}

const struct nib_memory_plan *nib_engine_memory(const struct nib_engine *engine)
{
    return &engine->plan;
}

struct nib_checkpoint *nib_engine_checkpoint(struct nib_engine *engine)
{
    return engine->checkpoint;
}

const char *nib_engine_device(const struct nib_engine *engine)
{
    return engine->ops->name;
}

int nib_engine_threads(const struct nib_engine *engine)
{
    return engine->threads;
}

int32_t nib_engine_vocab(const struct nib_engine *engine)
{
    return (int32_t)engine->model->shape.vocab;
}

int64_t nib_engine_free_pages(const struct nib_engine *engine)
{
    int64_t pages = 0;
    for (int g = 0; g < engine->pool.n_groups; g++)
        pages += engine->pool.groups[g].n_free;
    return pages;
}

int64_t nib_engine_prefix_pages(const struct nib_engine *engine)
{
    int64_t pages = 0;
    for (int g = 0; g < engine->pool.n_groups; g++)
        pages += engine->pool.groups[g].n_free - engine->pool.groups[g].n_listed;
    return pages;
}

int64_t nib_engine_layers(const struct nib_engine *engine)
{
    return engine->model->shape.n_layers;
}

void nib_engine_describe_layer(const struct nib_engine *engine, int64_t layer, struct nib_layer_summary *summary)
{
    engine->model->family->describe_layer(engine->model, layer, summary);
}

uint64_t nib_engine_token_bytes(const struct nib_engine *engine)
{
    const struct nib_model_shape *shape = &engine->model->shape;
    uint64_t bytes = engine->dense_bytes;
    for (int64_t l = 0; l < shape->n_layers; l++) {
        struct nib_layer_summary layer;
        nib_engine_describe_layer(engine, l, &layer);
        if (layer.expert_layout)
            bytes += layer.expert_bytes / (uint64_t)shape->n_experts * (uint64_t)shape->top_k;
    }
    return bytes;
}

uint64_t nib_engine_step_bytes(const struct nib_engine *engine)
{
    return engine->dense_bytes + engine->ops->expert_bytes_read(engine->device) + engine->step_cache_bytes;
}
