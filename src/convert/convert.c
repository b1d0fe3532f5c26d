// The whole run: what may be asked for, which files are to be written, and what makes them a checkpoint in the end.
#include "nibble/convert.h"

#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "convert/destination.h"
#include "convert/rows.h"
#include "convert/side_files.h"
#include "convert/stream.h"

// ---- Options ----

static nib_status check_dtype_map(const struct nib_convert_options *options, struct nib_error *err)
{
    for (size_t i = 0; i < options->n_dtype_map; i++) {
        const char *equals = strrchr(options->dtype_map[i], '=');
        if (!equals || equals == options->dtype_map[i] ||
            (strcmp(equals, "=mxfp4") != 0 && strcmp(equals, "=keep") != 0))
            return nib_fail(err, NIB_ERR_ARGUMENT, "\"%.200s\" is not NAME=mxfp4 or NAME=keep",
                            options->dtype_map[i]);
    }
    return NIB_OK;
}

static nib_status check_options(const struct nib_convert_options *options, struct nib_error *err)
{
    if ((unsigned)options->form >= NIB_FORM_COUNT || (unsigned)options->names >= NIB_NAMES_COUNT ||
        (unsigned)options->scale_rule > NIB_MX_SCALE_SEARCH)
        return nib_fail(err, NIB_ERR_ARGUMENT, "no such form, names or scale rule");
    if (options->form == NIB_FORM_INT4_G32 && !options->lossy)
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "int4-g32 does not keep the values: MXFP4 has eight magnitudes per scale, a group of int4 "
                        "rounds most of them; it is done only on request (--lossy)");
    if (options->shards < 0 || (options->shards > 0 && (options->shard < 1 || options->shard > options->shards)))
        return nib_fail(err, NIB_ERR_ARGUMENT, "shard %lld of %lld: the first is 1, the last the number of shards",
                        (long long)options->shard, (long long)options->shards);
    if (options->merge && options->shards > 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "a run is one shard or merges them all, not both");
    return check_dtype_map(options, err);
}

// What the experts compute between their two products, as a consumer would call it.
static const char *activation_of(const struct nib_config *config)
{
    const char *type = "", *activation = "unknown";
    if (!config)
        return activation;
    nib_config_string_or(config, "model_type", "", &type, NULL);
    nib_config_string_or(config, "hidden_act", "unknown", &activation, NULL);
    if (strncmp(type, "gpt_oss", 7) == 0)
        return "swiglu_oai";
    bool clamped = nib_config_has(config, "swiglu_limit") || nib_config_has(config, "swiglu_limits");
    return strcmp(activation, "silu") == 0 && clamped ? "silu_clamp" : activation;
}

static bool list_has(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncmp(p, word, length) == 0 && (p[length] == ',' || p[length] == 0))
            return true;
    return false;
}

static nib_status check_activation(const struct nib_convert_options *options, const struct nib_source *source,
                                   struct nib_error *err)
{
    if (options->form != NIB_FORM_INT4_G32)
        return NIB_OK;
    const char *known = options->consumer_activations ? options->consumer_activations : "silu";
    const char *activation = activation_of(nib_checkpoint_config(source->checkpoint));
    if (list_has(known, activation))
        return NIB_OK;
    return nib_fail(err, NIB_ERR_UNSUPPORTED,
                    "%s: its experts compute %s, the consumer of int4 is said to compute only %s "
                    "(--consumer-activations)",
                    nib_checkpoint_path(source->checkpoint), activation, known);
}

static nib_status open_source(const char *path, const struct nib_convert_options *options,
                              struct nib_source *source, struct nib_error *err)
{
    nib_status status = check_options(options, err);
    if (status != NIB_OK)
        return status;
    status = nib_source_open(path, options->form == NIB_FORM_MXFP4, options->source_interleaved, source, err);
    if (status != NIB_OK)
        return status;
    status = check_activation(options, source, err);
    if (status == NIB_OK && source->n_groups == 0)
        status = nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: no layer with experts in it", path);
    if (status != NIB_OK)
        nib_source_close(source);
    return status;
}

// ---- Public ----

static nib_status run(const char *source_path, const char *destination, const struct nib_convert_options *options,
                      struct nib_plan *plan, struct nib_error *err)
{
    plan->fp8_row = nib_fp8_row_pick();
    nib_status status = nib_destination_prepare(plan, source_path, destination, err);
    if (status == NIB_OK)
        status = nib_destination_fill(plan, destination, err);
    if (status == NIB_OK && options->shards == 0)
        status = nib_write_side_files(plan, destination, err);
    if (status == NIB_OK && options->shards == 0)
        nib_destination_finish(destination);
    return status;
}

nib_status nib_convert(const char *source, const char *destination, const struct nib_convert_options *options,
                       struct nib_convert_report *report, struct nib_error *err)
{
    struct nib_source opened;
    struct nib_plan plan = {0};
    if (report)
        *report = (struct nib_convert_report){0};
    nib_status status = open_source(source, options, &opened, err);
    if (status != NIB_OK)
        return status;
    status = nib_plan_make(&opened, options, &plan, err);
    if (status == NIB_OK)
        status = run(source, destination, options, &plan, err);
    if (report) {
        *report = plan.report;
        plan.report = (struct nib_convert_report){0};
    }
    nib_plan_free(&plan);
    nib_source_close(&opened);
    return status;
}

nib_status nib_convert_dry_run(const char *source, const struct nib_convert_options *options,
                               struct nib_convert_report *report, struct nib_error *err)
{
    struct nib_source opened;
    struct nib_plan plan = {0};
    *report = (struct nib_convert_report){0};
    nib_status status = open_source(source, options, &opened, err);
    if (status != NIB_OK)
        return status;
    status = nib_plan_make(&opened, options, &plan, err);
    plan.report.buffer_bytes =
        nib_stream_memory(&plan, options->threads > 0 ? options->threads : nib_thread_limit());
    *report = plan.report;
    plan.report = (struct nib_convert_report){0};
    nib_plan_free(&plan);
    nib_source_close(&opened);
    return status;
}
