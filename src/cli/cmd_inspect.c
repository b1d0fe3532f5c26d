// nibble inspect: what a checkpoint holds, how nibble would run it, and what that takes.
#include <stdio.h>

#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/inspect.h"
#include "cli/session.h"

static json_t *bytes_json(uint64_t bytes)
{
    return json_integer((json_int_t)bytes);
}

static json_t *layer_json(const struct nib_engine *engine, int64_t l)
{
    struct nib_layer_summary layer;
    nib_engine_describe_layer(engine, l, &layer);
    json_t *json = json_object();
    json_object_set_new(json, "layer", json_integer(l));
    json_object_set_new(json, "attention", json_string(layer.attention));
    const struct {
        const char *key, *value;
    } texts[] = {
        {"expert_layout", layer.expert_layout}, {"moe_kernel", layer.moe_kernel},
        {"moe_reason", layer.moe_reason},       {"linear_kernel", layer.linear_kernel},
        {"linear_reason", layer.linear_reason},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].value)
            json_object_set_new(json, texts[i].key, json_string(texts[i].value));
    json_object_set_new(json, "expert_bytes", bytes_json(layer.expert_bytes));
    json_object_set_new(json, "dense_bytes", bytes_json(layer.dense_bytes));
    return json;
}

// The model itself, bound as for running but with next to no cache.
static nib_status add_model(const char *path, const struct session_options *session, json_t *report,
                            struct nib_error *err)
{
    struct nib_engine_options options = {
        .device = session->device, .threads = (int)session->threads, .context = (int32_t)session->context};
    struct nib_memory_plan plan;
    nib_status status = nib_engine_plan(path, &options, &plan, err);
    if (status)
        return status;
    inspect_add_plan(&plan, report);
    options.context = options.max_sequences = options.max_step_tokens = 1;
    options.force = true;
    struct nib_engine *engine;
    if ((status = nib_engine_open(path, &options, &engine, err)))
        return status;
    json_object_set_new(report, "device", json_string(nib_engine_device(engine)));
    json_object_set_new(report, "threads", json_integer(nib_engine_threads(engine)));
    json_object_set_new(report, "weight_bytes_per_token", bytes_json(nib_engine_token_bytes(engine)));
    json_t *layers = json_array(), *unused = json_array();
    for (int64_t l = 0; l < nib_engine_layers(engine); l++)
        json_array_append_new(layers, layer_json(engine, l));
    const struct nib_checkpoint *checkpoint = nib_engine_checkpoint(engine);
    for (const struct nib_tensor *t = NULL; (t = nib_checkpoint_next_unused(checkpoint, t));)
        json_array_append_new(unused, json_string(t->name));
    json_object_set_new(report, "layers", layers);
    json_object_set_new(report, "unused", unused);
    nib_engine_close(engine);
    return NIB_OK;
}

int cmd_inspect(int argc, char **argv)
{
    const char *path = NULL;
    const char *form = NULL;
    bool json = false, scales = false;
    struct session_options session = session_defaults();
    const struct nib_option options[] = {
        option_json(&json),
        {"--check-scales", NIB_OPTION_FLAG, &scales, NULL, "read all expert scales and refuse NaN", 0, 0},
        {"--dry-run-convert", NIB_OPTION_CHOICE, &form, "fused|per-expert|fp8-channel|int4-g32|mxfp4",
         "instead say what nibble convert --to would do", 0, 0},
        option_device(&session.device),
        option_threads(&session.threads),
        {"--context", NIB_OPTION_INT, &session.context, "N", "tokens to plan for, 0: the model's own", 0, 1 << 30},
    };
    const struct nib_usage usage = {
        .command = "nibble inspect",
        .arguments = "MODEL",
        .summary =
            "Files, tensors and expert layouts of a checkpoint (a folder or one .safetensors file), the kernels\n"
            "each layer would run and why, and the memory it would take. Reads headers only. Of a folder that "
            "holds but a\n"
            "config.json, with an index or without: what the whole model would need, and the speed that the read\n"
            "bandwidth of this machine allows.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = &path,
        .min_positionals = 1,
        .n_positionals = 1,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    if (form)
        return inspect_conversion(path, form, (int)session.threads, json);
    struct nib_checkpoint *checkpoint;
    struct nib_error err;
    if (nib_checkpoint_open(path, &checkpoint, &err))
        return inspect_absent(path, &session, json, &err);
    json_t *report = json_object();
    bool sound = inspect_files(checkpoint, scales, report);
    nib_status status = add_model(path, &session, report, &err);
    json_object_set_new(report, "runs", json_boolean(!status));
    if (status)
        json_object_set_new(report, "runs_not_because", json_string(err.message));
    if (json) {
        json_dumpf(report, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
    } else
        inspect_print(report);
    json_decref(report);
    nib_checkpoint_close(checkpoint);
    return sound ? 0 : 1;
}
