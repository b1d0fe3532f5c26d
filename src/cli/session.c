#include "cli/session.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/progress.h"
#include "cli/units.h"

enum nib_precision precision_of(const char *name)
{
    return strcmp(name, "exact") == 0  ? NIB_PRECISION_EXACT
           : strcmp(name, "fast") == 0 ? NIB_PRECISION_FAST
                                       : NIB_PRECISION_AUTO;
}

struct session_options session_defaults(void)
{
    return (struct session_options){.device = "cpu", .dense_dtype = "stored", .precision = "auto"};
}

void print_memory_plan(const struct nib_memory_plan *plan)
{
    fprintf(stderr,
            "memory: %s of %s available: weights %s (mapped), KV cache %s (%lld tokens), buffers %s, scratch %s\n",
            size_text(plan->total_bytes).text, size_text(plan->available_bytes).text,
            size_text(plan->weights_bytes + plan->widened_bytes).text, size_text(plan->cache_bytes).text,
            (long long)plan->cache_tokens, size_text(plan->buffer_bytes).text,
            size_text(plan->scratch_bytes).text);
}

// What opening an engine tells on the way.
struct opening {
    const struct session_options *options;
    struct nib_progress bar;
    uint64_t uploaded;
};

static void on_plan(void *user, const struct nib_memory_plan *plan)
{
    struct opening *opening = user;
    if (opening->options->print_plan)
        print_memory_plan(plan);
    nib_progress_begin(&opening->bar, "weights", (int64_t)(plan->weights_bytes >> 20), "MiB");
}

static void on_upload(void *user, uint64_t bytes)
{
    struct opening *opening = user;
    opening->uploaded += bytes;
    nib_progress_update(&opening->bar, (int64_t)(opening->uploaded >> 20));
}

// What an upload took, where anybody was kept waiting.
static void print_upload(const struct opening *opening)
{
    double seconds = nib_seconds() - opening->bar.started, gib = (double)opening->uploaded / 0x1p30;
    if (opening->options->print_plan && opening->uploaded && seconds >= 0.5)
        fprintf(stderr, "weights: %.2f GiB on the device after %.1f s, %.1f GiB/s\n", gib, seconds, gib / seconds);
}

nib_status open_tokenizer(const char *folder, struct nib_tokenizer **tokenizer, struct nib_error *err)
{
    return nib_tokenizer_open(tokenizer, folder, NULL, err);
}

static nib_status open_chat(struct session *session, struct nib_error *err)
{
    const struct nib_config *config = nib_checkpoint_config(nib_engine_checkpoint(session->engine));
    struct nib_vocabulary vocabulary = nib_vocabulary_of(session->tokenizer);
    const char *model_type = NULL;
    nib_status status = config ? nib_config_string_or(config, "model_type", NULL, &model_type, err) : NIB_OK;
    if (status)
        return status;
    status = nib_chat_open_fitting(&vocabulary, model_type, &session->chat, &session->no_chat);
    if (status && status != NIB_ERR_NOT_FOUND)
        *err = session->no_chat;
    return status == NIB_ERR_NOT_FOUND ? NIB_OK : status;
}

// Ids from the configs; and, whatever they say, those that end a turn in the chat format.
static nib_status read_stop_tokens(struct session *session, struct nib_error *err)
{
    int capacity = (int)(sizeof session->stop_tokens / sizeof *session->stop_tokens), count = 0;
    nib_status status = nib_checkpoint_eos_ids(nib_engine_checkpoint(session->engine), session->stop_tokens,
                                               capacity, &count, err);
    if (status)
        return status;
    size_t n_ends = 0;
    const int32_t *ends = session->chat ? nib_chat_stop_tokens(session->chat, &n_ends) : NULL;
    for (size_t i = 0; i < n_ends && count < capacity; i++) {
        bool known = false;
        for (int j = 0; j < count; j++)
            known |= session->stop_tokens[j] == ends[i];
        if (!known)
            session->stop_tokens[count++] = ends[i];
    }
    session->n_stop_tokens = count;
    return NIB_OK;
}

void warn_unused(const struct nib_checkpoint *checkpoint)
{
    const struct nib_tensor *first = nib_checkpoint_next_unused(checkpoint, NULL);
    int count = 0;
    for (const struct nib_tensor *t = first; t; t = nib_checkpoint_next_unused(checkpoint, t))
        count++;
    if (count)
        fprintf(stderr, "nibble: %d tensor%s not used by the model, the first is %s\n", count,
                count == 1 ? " is" : "s are", first->name);
}

nib_status session_open(struct session *session, const char *path, const struct session_options *options,
                        struct nib_error *err)
{
    memset(session, 0, sizeof *session);
    struct opening opening = {.options = options};
    struct nib_engine_options engine = {
        .device = options->device,
        .threads = (int)options->threads,
        .context = (int32_t)options->context,
        .max_sequences = (int32_t)options->max_sequences,
        .max_step_tokens = (int32_t)options->max_step_tokens,
        .max_outputs = (int32_t)options->max_outputs,
        .cache_tokens = options->cache_tokens,
        .prefix_cache = options->prefix_cache,
        .force = options->force,
        .dense_int8 = strcmp(options->dense_dtype, "int8") == 0,
        .precision = precision_of(options->precision),
        .deterministic = options->deterministic,
        .on_plan = on_plan,
        .on_upload = on_upload,
        .user = &opening,
    };
    nib_status status = nib_engine_open(path, &engine, &session->engine, err);
    nib_progress_end(&opening.bar);
    if (!status)
        print_upload(&opening);
    if (!status)
        status = open_tokenizer(path, &session->tokenizer, err);
    if (!status)
        status = open_chat(session, err);
    if (!status)
        status = read_stop_tokens(session, err);
    if (status) {
        session_close(session);
        return status;
    }
    warn_unused(nib_engine_checkpoint(session->engine));
    return NIB_OK;
}

nib_status session_sampling(const struct session *session, struct nib_sampling *sampling,
                            float *repetition_penalty, struct nib_error *err)
{
    const struct nib_config *config = nib_checkpoint_generation(nib_engine_checkpoint(session->engine));
    double temperature = 1, top_p = 1, min_p = 0, repetition = 1;
    int64_t top_k = 0;
    bool sample = true;
    nib_status status;
    if (config && ((status = nib_config_bool_or(config, "do_sample", true, &sample, err)) ||
                   (status = nib_config_real_or(config, "temperature", 1, 0, 100, &temperature, err)) ||
                   (status = nib_config_real_or(config, "top_p", 1, 0, 1, &top_p, err)) ||
                   (status = nib_config_real_or(config, "min_p", 0, 0, 1, &min_p, err)) ||
                   (status = nib_config_real_or(config, "repetition_penalty", 1, 0.01, 100, &repetition, err)) ||
                   (status = nib_config_int_or(config, "top_k", 0, -1, INT32_MAX, &top_k, err))))
        return status;
    *sampling = (struct nib_sampling){.temperature = sample ? (float)temperature : 0,
                                      .top_p = (float)top_p,
                                      .min_p = (float)min_p,
                                      .top_k = top_k < 0 ? 0 : (int32_t)top_k}; // -1: all, to some
    *repetition_penalty = (float)repetition;
    return NIB_OK;
}

void session_close(struct session *session)
{
    nib_chat_close(session->chat);
    nib_engine_close(session->engine);
    nib_tokenizer_close(session->tokenizer);
    memset(session, 0, sizeof *session);
}
