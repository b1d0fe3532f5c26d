#include "server/generation.h"

#include <math.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#include "base/error.h"

#define MAX_CHOICES 16 // of a prompt
#define MAX_JOBS 1024  // of a request

// ---- life ----

static void free_choice(struct nib_choice *choice)
{
    nib_assembler_free(&choice->assembler);
    nib_guide_free(choice->guide);
    nib_bytes_free(&choice->content);
    nib_bytes_free(&choice->reasoning);
    for (size_t i = 0; i < choice->n_calls; i++) {
        nib_bytes_free(&choice->calls[i].name);
        nib_bytes_free(&choice->calls[i].arguments);
    }
    free(choice->calls);
    json_decref(choice->logprobs);
}

static void free_generation(void *work)
{
    struct nib_generation *g = work;
    for (int64_t i = 0; g->choices && i < g->n; i++)
        free_choice(&g->choices[i]);
    free(g->choices);
    nib_token_list_free(&g->prompt);
    free(g->ends);
    free(g->bias);
    free(g->branches);
    if (g->free_state)
        g->free_state(g->state);
    json_decref(g->body);
    free(g);
}

static void cancel_generation(void *work)
{
    struct nib_generation *g = work;
    for (int64_t i = 0; g->choices && i < g->n; i++)
        nib_job_cancel(&g->choices[i].job);
}

struct nib_generation *nib_generation_create(struct nib_server *server, struct nib_exchange *exchange,
                                             const struct nib_reply_format *format, json_t *body,
                                             const char *id_prefix)
{
    struct nib_generation *g = calloc(1, sizeof *g);
    if (!g) {
        json_decref(body);
        return NULL;
    }
    const struct nib_sampling *sampling = &server->options.sampling;
    *g = (struct nib_generation){
        .server = server,
        .exchange = exchange,
        .format = format,
        .body = body,
        .id = nib_make_id(id_prefix),
        .created = (long)time(NULL),
        .n = 1,
        .n_prompts = 1,
        .max_tokens = server->options.max_tokens,
        .top_logprobs = 0,
        .temperature = (double)sampling->temperature,
        .top_p = (double)sampling->top_p,
        .min_p = (double)sampling->min_p,
        .top_k = sampling->top_k,
        .repetition_penalty = (double)server->options.repetition_penalty,
    };
    exchange->work = g;
    exchange->free_work = free_generation;
    return g;
}

// ---- the request ----

static bool read_stop(struct nib_generation *g, const struct nib_fields *fields)
{
    const json_t *stop = nib_field(fields, "stop");
    size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
    if (!stop)
        return true;
    if (count > NIB_MAX_STOP_STRINGS)
        return nib_field_fail(fields, "stop", "array_above_max_length", "'stop' has %zu strings; %d are allowed.",
                              count, NIB_MAX_STOP_STRINGS);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(item))
            return nib_field_fail(fields, "stop", "invalid_type", "'stop' must be a string or strings.");
        size_t size = json_string_length(item);
        if (size < 1 || size > NIB_MAX_STOP_BYTES)
            return nib_field_fail(fields, "stop", "invalid_value",
                                  "A stop string of %zu bytes is not one of 1 to %d.", size, NIB_MAX_STOP_BYTES);
    }
    g->stop = stop;
    return true;
}

static bool read_stream(struct nib_generation *g, const struct nib_fields *fields)
{
    static const char *const known[] = {"include_usage", NULL}, *const ignored[] = {"include_obfuscation", NULL};
    const json_t *options = nib_field(fields, "stream_options");
    struct nib_fields inner;
    if (!nib_field_bool(fields, "stream", &g->stream))
        return false;
    if (!options)
        return true;
    if (!g->stream)
        return nib_field_fail(fields, "stream_options", "invalid_value",
                              "'stream_options' is only for requests with stream=true.");
    return nib_fields_open(&inner, options, fields->error, "stream_options") &&
           nib_fields_only(&inner, known, ignored) && nib_field_bool(&inner, "include_usage", &g->include_usage);
}

static bool read_model(const struct nib_generation *g, const struct nib_fields *fields)
{
    struct nib_text model = {0};
    if (!nib_field_text(fields, "model", &model))
        return false;
    if (!model.size || nib_text_equal(model, nib_text_of(g->server->options.model_name)))
        return true;
    nib_field_fail(fields, "model", "model_not_found",
                   "The model '%.100s' does not exist; this server has '%.200s'.", model.bytes,
                   g->server->options.model_name);
    fields->error->status = 404;
    return false;
}

// {"1234": -100, …}
static bool read_bias(struct nib_generation *g, const struct nib_fields *fields)
{
    const json_t *given = nib_field(fields, "logit_bias");
    struct nib_fields inner;
    const char *key;
    json_t *value;
    if (!given)
        return true;
    if (!nib_fields_open(&inner, given, fields->error, "logit_bias"))
        return false;
    g->bias = malloc((json_object_size(given) + 1) * sizeof *g->bias);
    if (!g->bias)
        return nib_api_fail(fields->error, 500, NULL, NULL, "out of memory");
    json_object_foreach((json_t *)given, key, value)
    {
        char *end;
        double bias = 0;
        long token = strtol(key, &end, 10);
        if (!*key || *end || token < 0 || token >= g->server->backend.vocab)
            return nib_field_fail(fields, "logit_bias", "invalid_value",
                                  "'logit_bias' has '%.40s', which is no token id.", key);
        if (!nib_field_real(&inner, key, -100, 100, &bias))
            return false;
        g->bias[g->n_bias++] = (struct nib_logit_bias){(int32_t)token, (float)bias};
    }
    return true;
}

bool nib_generation_only(const struct nib_fields *fields, const char *const *own, const char *const *ignored)
{
    static const char *const common[] = {"model",
                                         "stream",
                                         "stream_options",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "seed",
                                         "stop",
                                         "n",
                                         "logit_bias",
                                         "frequency_penalty",
                                         "presence_penalty",
                                         "repetition_penalty",
                                         NULL};
    const char *known[48];
    size_t count = 0;
    for (const char *const *name = common; *name; name++)
        known[count++] = *name;
    for (; *own && count + 1 < sizeof known / sizeof *known; own++)
        known[count++] = *own;
    known[count] = NULL;
    return nib_fields_only(fields, known, ignored);
}

bool nib_generation_read(struct nib_generation *g, const struct nib_fields *fields)
{
    bool read = read_model(g, fields) && read_stream(g, fields) &&
                nib_field_real(fields, "temperature", 0, 2, &g->temperature) &&
                nib_field_real(fields, "top_p", 0, 1, &g->top_p) &&
                nib_field_real(fields, "min_p", 0, 1, &g->min_p) &&
                nib_field_int(fields, "top_k", -1, INT32_MAX, &g->top_k) &&
                nib_field_int(fields, "seed", INT64_MIN, INT64_MAX, &g->seed) &&
                nib_field_int(fields, "n", 1, MAX_CHOICES, &g->n) &&
                nib_field_real(fields, "frequency_penalty", -2, 2, &g->frequency_penalty) &&
                nib_field_real(fields, "presence_penalty", -2, 2, &g->presence_penalty) &&
                nib_field_real(fields, "repetition_penalty", 0.01, 100, &g->repetition_penalty) &&
                read_bias(g, fields) && read_stop(g, fields);
    g->has_seed = nib_field(fields, "seed");
    if (g->top_k < 0)
        g->top_k = 0; // what other servers call "all"
    if (g->top_p <= 0)
        g->top_p = 1e-6; // only the likeliest
    return read;
}

// ---- events ----

// Appends; false when memory is out, which ends the answer.
static bool append(struct nib_choice *choice, struct nib_bytes *buffer, struct nib_text text)
{
    nib_status status = nib_bytes_append(buffer, text.bytes, text.size, NULL);
    if (status)
        choice->assembler.status = status;
    return !status;
}

// The model's own, if it is not too long and no call of the answer has it.
static struct nib_unique_id id_of_call(const struct nib_choice *choice, struct nib_text id)
{
    struct nib_unique_id own = {0};
    bool usable = id.size > 0 && id.size < sizeof own.text;
    for (size_t i = 0; usable && i < id.size; i++) {
        own.text[i] = id.bytes[i];
        usable = id.bytes[i] > ' ' && id.bytes[i] < 0x7f;
    }
    for (size_t i = 0; i < choice->n_calls; i++)
        usable = usable && strcmp(choice->calls[i].id.text, own.text) != 0;
    return usable ? own : nib_make_id("call_");
}

static bool begin_call(struct nib_choice *choice, struct nib_text name, struct nib_text id)
{
    if (choice->n_calls == choice->calls_capacity) {
        size_t capacity = 4 + 2 * choice->calls_capacity;
        struct nib_called *calls = realloc(choice->calls, capacity * sizeof *calls);
        if (!calls) {
            choice->assembler.status = NIB_ERR_MEMORY;
            return false;
        }
        choice->calls = calls;
        choice->calls_capacity = capacity;
    }
    struct nib_called *call = &choice->calls[choice->n_calls];
    *call = (struct nib_called){.id = id_of_call(choice, id)};
    choice->n_calls++;
    return append(choice, &call->name, name);
}

static void on_delta(void *context, const struct nib_delta *delta)
{
    struct nib_choice *choice = context;
    const struct nib_generation *g = choice->generation;
    bool kept = false;
    switch (delta->kind) {
    case NIB_DELTA_REASONING:
        kept = append(choice, &choice->reasoning, delta->text);
        break;
    case NIB_DELTA_CONTENT:
        kept = append(choice, &choice->content, delta->text);
        if (delta->logprobs)
            json_array_extend(choice->logprobs, delta->logprobs);
        break;
    case NIB_DELTA_CALL:
        kept = begin_call(choice, delta->text, delta->id);
        break;
    case NIB_DELTA_ARGUMENTS:
        kept = append(choice, &choice->calls[choice->n_calls - 1].arguments, delta->text);
        break;
    }
    if (kept && (g->stream || g->format->every_delta))
        g->format->delta(choice, delta);
}

static void begin_choice(struct nib_choice *choice)
{
    struct nib_generation *g = choice->generation;
    if (choice->begun)
        return;
    choice->begun = true;
    if (g->stream && g->format->begin)
        g->format->begin(choice);
    nib_assembler_preset(&choice->assembler, g->prompt.ids + g->prompt.count - g->preset, g->preset);
}

static void finish_choice(struct nib_choice *choice, const struct nib_event *event)
{
    struct nib_generation *g = choice->generation;
    // A cache that filled up cuts an answer short; without any answer it is an error.
    bool failed = event->finish == NIB_FINISH_ERROR && choice->generated == 0;
    if (failed && !g->error.status)
        g->error = *event->error;
    if (!failed)
        begin_choice(choice);
    choice->finish_reason = nib_assembler_end(&choice->assembler, event->finish);
    if (choice->assembler.status && !g->error.status)
        nib_fail_memory(&g->error, 0, "an answer");
    if (g->stream && !g->error.status)
        g->format->end(choice);
    if (--g->unfinished == 0) {
        struct nib_api_error error;
        if (g->error.status && !g->stream) {
            nib_api_fail_status(&error, NULL, &g->error);
            error.status = 503;
            nib_exchange_fail(g->exchange, &error);
        } else if (g->error.status) {
            nib_api_fail_status(&error, NULL, &g->error);
            nib_exchange_send(g->exchange, NULL, nib_api_error_json(&error));
            nib_exchange_end(g->exchange);
        } else {
            g->format->done(g);
        }
    }
    nib_exchange_release(g->exchange);
}

static bool on_event(struct nib_job *job, const struct nib_event *event)
{
    struct nib_choice *choice = (struct nib_choice *)job; // its first member
    bool more = true;
    choice->cached_tokens = event->cached_tokens;
    if (event->has_token) {
        choice->generated = event->generated_tokens;
        begin_choice(choice);
        more = nib_assembler_push(&choice->assembler, event);
    }
    if (event->finish != NIB_FINISH_NOT_YET)
        finish_choice(choice, event);
    return more;
}

// ---- to the scheduler ----

static nib_status add_stops(struct nib_assembler *assembler, const json_t *stop, struct nib_error *err)
{
    nib_status status = NIB_OK;
    size_t count = json_is_array(stop) ? json_array_size(stop) : stop != NULL;
    for (size_t i = 0; !status && i < count; i++) {
        const json_t *item = json_is_array(stop) ? json_array_get(stop, i) : stop;
        status = nib_stop_strings_add(&assembler->stop, json_string_value(item), json_string_length(item), err);
    }
    return status;
}

bool nib_generation_end_prompt(struct nib_generation *g, struct nib_api_error *error)
{
    size_t *ends = realloc(g->ends, (g->n_prompts + 1) * sizeof *ends);
    if (!ends)
        return nib_api_fail(error, 500, NULL, NULL, "out of memory");
    g->n_prompts = g->ends ? g->n_prompts + 1 : 1;
    g->ends = ends;
    ends[g->n_prompts - 1] = g->prompt.count;
    return true;
}

struct prompt {
    const int32_t *ids; /* [count] */
    size_t count;
};

static struct prompt prompt_at(const struct nib_generation *g, size_t index)
{
    size_t begin = index ? g->ends[index - 1] : 0, end = g->ends ? g->ends[index] : g->prompt.count;
    return (struct prompt){begin ? g->prompt.ids + begin : g->prompt.ids, end - begin}; // which may be NULL
}

static struct nib_request request_of(const struct nib_generation *g, struct prompt prompt, uint64_t seed)
{
    return (struct nib_request){
        .prompt = prompt.ids,
        .n_prompt = (int32_t)prompt.count,
        .max_tokens = (int32_t)g->max_tokens,
        .sampling = {.temperature = (float)g->temperature,
                     .top_k = (int32_t)g->top_k,
                     .top_p = (float)g->top_p,
                     .min_p = (float)g->min_p,
                     .seed = seed},
        .stop_tokens = g->server->options.stop_tokens,
        .n_stop_tokens = g->server->options.n_stop_tokens,
        .top_logprobs = g->logprobs ? (int32_t)g->top_logprobs : -1,
        .frequency_penalty = (float)g->frequency_penalty,
        .presence_penalty = (float)g->presence_penalty,
        .repetition_penalty = (float)g->repetition_penalty,
        .bias = g->bias,
        .n_bias = g->n_bias,
    };
}

// Tokens of the answer that stand in the prompt have been written by the request.
static nib_status guide_choice(struct nib_choice *choice, struct nib_error *err)
{
    const struct nib_generation *g = choice->generation;
    nib_status status = nib_guide_create(g->server->chat, g->server->tokenizer, g->server->vocabulary, g->branches,
                                         g->n_branches, &choice->guide, err);
    if (status)
        return status;
    for (size_t i = g->prompt.count - g->preset; i < g->prompt.count; i++)
        nib_guide_accept(choice->guide, g->prompt.ids[i]);
    choice->job.request.constraint =
        (struct nib_constraint){.self = choice->guide, .mask = nib_guide_mask, .accept = nib_guide_accept};
    return NIB_OK;
}

// The choices of a prompt follow each other, with seeds as if it were alone.
static nib_status init_choice(struct nib_generation *g, int index, uint64_t seed, struct nib_error *err)
{
    struct nib_choice *choice = &g->choices[index];
    int64_t of_each = g->n / (int64_t)g->n_prompts;
    struct prompt prompt = prompt_at(g, (size_t)(index / of_each));
    choice->generation = g;
    choice->index = index;
    choice->job = (struct nib_job){.request = request_of(g, prompt, seed + (uint64_t)(index % of_each)),
                                   .on_event = on_event};
    choice->logprobs = json_array();
    nib_status status = nib_assembler_init(&choice->assembler, g->chat ? g->server->chat : NULL,
                                           g->server->tokenizer, on_delta, choice, err);
    if (!status && choice->assembler.parser)
        nib_chat_parser_set_tools(choice->assembler.parser, g->tools, g->n_tools);
    if (!status && g->n_branches)
        status = guide_choice(choice, err);
    choice->assembler.tools_offered = g->tools_offered;
    choice->assembler.one_call = g->one_call;
    choice->assembler.logprobs = g->logprobs;
    return status ? status : add_stops(&choice->assembler, g->stop, err);
}

static bool check_lengths(const struct nib_generation *g, const char *prompt_field, struct nib_api_error *error)
{
    size_t context = (size_t)g->server->backend.context;
    for (size_t i = 0; i < g->n_prompts; i++) {
        size_t count = prompt_at(g, i).count;
        if (count < 1)
            return nib_api_fail(error, 400, "invalid_value", prompt_field, "'%s' is empty.", prompt_field);
        if (count >= context)
            return nib_api_fail(error, 400, "context_length_exceeded", prompt_field,
                                "The prompt has %zu tokens; the context holds %zu, the answer included.", count,
                                context);
    }
    return true;
}

// More answers than ever run and wait at the same time would be refused for ever.
static bool check_count(const struct nib_generation *g, const char *prompt_field, struct nib_api_error *error)
{
    int64_t most = g->server->options.queue + g->server->backend.max_sequences;
    most = most < MAX_JOBS ? most : MAX_JOBS;
    return g->n <= most || nib_api_fail(error, 400, "invalid_value", g->n_prompts > 1 ? prompt_field : "n",
                                        "The request asks for %lld answers; this server takes %lld at a time.",
                                        (long long)g->n, (long long)most);
}

bool nib_generation_submit(struct nib_generation *g, const char *prompt_field, struct nib_api_error *error)
{
    struct nib_job *jobs[MAX_JOBS];
    struct nib_error err;
    uint64_t seed = (uint64_t)g->seed;
    g->n *= (int64_t)g->n_prompts;
    if (!check_lengths(g, prompt_field, error) || !check_count(g, prompt_field, error))
        return false;
    if (!g->has_seed && getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint64_t)g->created;
    nib_status status = NIB_OK;
    g->choices = calloc((size_t)g->n, sizeof *g->choices);
    if (!g->choices)
        status = nib_fail_memory(&err, (unsigned long long)g->n * sizeof *g->choices, "an answer");
    for (int i = 0; !status && i < g->n; i++) {
        status = init_choice(g, i, seed, &err);
        jobs[i] = &g->choices[i].job;
    }
    if (status)
        return nib_api_fail_status(error, g->schema_field, &err);
    // From here on the scheduler's thread may be at work.
    g->unfinished = (int)g->n;
    g->exchange->cancel_work = cancel_generation;
    for (int i = 0; i < g->n; i++)
        nib_exchange_retain(g->exchange);
    status = nib_scheduler_submit(g->server->scheduler, jobs, (int)g->n, &err);
    if (!status) {
        if (g->stream)
            nib_exchange_begin_stream(g->exchange);
        return true;
    }
    for (int i = 0; i < g->n; i++)
        nib_exchange_release(g->exchange);
    return nib_api_fail(error, status == NIB_ERR_LIMIT ? 429 : 503, status == NIB_ERR_LIMIT ? "queue_full" : NULL,
                        NULL, "%s", err.message);
}

// ---- usage ----

int64_t nib_generation_completion_tokens(const struct nib_generation *g)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < g->n; i++)
        tokens += g->choices[i].generated;
    return tokens;
}

int64_t nib_generation_reasoning_tokens(const struct nib_generation *g)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < g->n; i++)
        tokens += g->choices[i].assembler.reasoning_tokens;
    return tokens;
}

int64_t nib_generation_cached_tokens(const struct nib_generation *g)
{
    int64_t tokens = 0, of_each = g->n / (int64_t)g->n_prompts;
    for (int64_t i = 0; i < g->n; i += of_each)
        tokens += g->choices[i].cached_tokens;
    return tokens;
}

json_t *nib_generation_usage(const struct nib_generation *g)
{
    int64_t prompt = (int64_t)g->prompt.count, completion = nib_generation_completion_tokens(g);
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)prompt, "completion_tokens",
                     (json_int_t)completion, "total_tokens", (json_int_t)(prompt + completion),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)nib_generation_cached_tokens(g),
                     "completion_tokens_details", "reasoning_tokens",
                     (json_int_t)nib_generation_reasoning_tokens(g));
}
