// A plan as JSON: each file's header, the index, and the configuration.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"
#include "convert/plan.h"

enum { HEADER_ALIGNMENT = 64 };

// ---- Headers and index ----

static json_t *entry_json(const struct nib_output *output)
{
    json_t *shape = json_array();
    for (int d = 0; d < output->rank; d++)
        json_array_append_new(shape, json_integer(output->shape[d]));
    uint64_t end = output->offset + output->bytes;
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", nib_dtype_name(output->dtype), "shape", shape,
                     "data_offsets", (json_int_t)output->offset, (json_int_t)end);
}

static char *header_text(const struct nib_plan *plan, const struct nib_plan_file *file)
{
    json_t *header = json_object();
    int failed = !header || json_object_set(header, "__metadata__", plan->metadata);
    for (size_t u = file->first; !failed && u < file->first + file->count; u++)
        for (int o = 0; !failed && o < plan->units[u].n_outputs; o++) {
            const struct nib_output *output = &plan->units[u].outputs[o];
            failed = json_object_set_new(header, output->name, entry_json(output));
        }
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(header);
    return text;
}

nib_status nib_plan_header(const struct nib_plan *plan, size_t file, uint8_t **bytes, uint64_t *size,
                           struct nib_error *err)
{
    char *text = header_text(plan, &plan->files[file]);
    size_t length = text ? strlen(text) : 0;
    size_t total = (8 + length + HEADER_ALIGNMENT - 1) / HEADER_ALIGNMENT * HEADER_ALIGNMENT;
    uint8_t *made = text ? malloc(total + 1) : NULL;
    if (!made) {
        free(text);
        return nib_fail_memory(err, total, "a safetensors header");
    }
    for (int i = 0; i < 8; i++)
        made[i] = (uint8_t)((uint64_t)(total - 8) >> 8 * i);
    memcpy(made + 8, text, length + 1);
    memset(made + 8 + length, ' ', total - 8 - length);
    free(text);
    *bytes = made;
    *size = total;
    return NIB_OK;
}

nib_status nib_plan_index(const struct nib_plan *plan, json_t **index, struct nib_error *err)
{
    *index = NULL;
    if (plan->n_files == 1)
        return NIB_OK;
    json_t *map = json_object();
    int failed = !map;
    for (size_t f = 0; !failed && f < plan->n_files; f++)
        for (size_t u = plan->files[f].first; u < plan->files[f].first + plan->files[f].count; u++)
            for (int o = 0; !failed && o < plan->units[u].n_outputs; o++)
                failed =
                    json_object_set_new(map, plan->units[u].outputs[o].name, json_string(plan->files[f].name));
    *index = failed ? NULL
                    : json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)plan->report.output_bytes,
                                "weight_map", map);
    json_decref(map);
    return *index ? NIB_OK : nib_fail_memory(err, plan->report.tensors * 100, "an index");
}

// ---- config.json ----

// "model.layers.3.mlp.gate" becomes "model.layers.*.mlp.gate".
static json_t *generalised(const char *name)
{
    char pattern[1100];
    size_t used = 0;
    for (const char *p = name; *p && used + 2 < sizeof pattern;) {
        size_t part = strcspn(p, "."), digits = strspn(p, "0123456789");
        if (part && digits == part)
            pattern[used++] = '*';
        else
            for (size_t i = 0; i < part && used + 2 < sizeof pattern; i++)
                pattern[used++] = p[i];
        p += part;
        if (*p == '.')
            pattern[used++] = *p++;
    }
    return json_stringn(pattern, used);
}

// The modules with their numbers as "*", each once.
static json_t *module_patterns(const json_t *modules)
{
    json_t *seen = json_object(), *list = json_array(), *name;
    size_t i;
    json_array_foreach(modules, i, name)
    {
        json_t *pattern = generalised(json_string_value(name));
        if (!json_object_get(seen, json_string_value(pattern))) {
            json_array_append(list, pattern);
            json_object_set_new(seen, json_string_value(pattern), json_true());
        }
        json_decref(pattern);
    }
    json_decref(seen);
    return list;
}

static json_t *fused_config(const struct nib_plan *plan)
{
    return json_pack("{s:s, s:o}", "quant_method", "mxfp4", "modules_to_not_convert",
                     module_patterns(plan->modules));
}

static json_t *quark_config(const struct nib_plan *plan)
{
    json_t *weight = json_pack("{s:s, s:s, s:i, s:s, s:i, s:b, s:n, s:s, s:s, s:s}", "dtype", "fp4", "qscheme",
                               "per_group", "group_size", NIB_MX_BLOCK, "scale_format", "e8m0", "ch_axis", -1,
                               "is_dynamic", 0, "symmetric", "round_method", "half_even", "scale_calculation_mode",
                               "even", "observer_cls", "PerBlockMXObserver");
    return json_pack("{s:s, s:{s:o, s:n, s:n, s:n}, s:O, s:{}, s:{s:s, s:s, s:s}}", "quant_method", "quark",
                     "global_quant_config", "weight", weight, "input_tensors", "output_tensors", "bias", "exclude",
                     plan->modules, "layer_quant_config", "export", "kv_cache_group", "", "pack_method", "reorder",
                     "weight_format", "real_quantized");
}

static json_t *compressed_config(const struct nib_plan *plan, const char *format, json_t *weights,
                                 json_t *activations)
{
    return json_pack("{s:{s:{s:[s], s:o, s:o, s:n}}, s:s, s:o, s:O, s:n, s:s, s:s}", "config_groups", "group_0",
                     "targets", "Linear", "weights", weights, "input_activations", activations,
                     "output_activations", "format", format, "global_compression_ratio", json_null(), "ignore",
                     plan->modules, "kv_cache_scheme", "quant_method", "compressed-tensors", "quantization_status",
                     "compressed");
}

static json_t *fp8_config(const struct nib_plan *plan)
{
    json_t *weights = json_pack("{s:i, s:s, s:s, s:b, s:b}", "num_bits", 8, "type", "float", "strategy", "channel",
                                "symmetric", 1, "dynamic", 0);
    json_t *activations = json_pack("{s:i, s:s, s:s, s:b, s:b}", "num_bits", 8, "type", "float", "strategy",
                                    "token", "symmetric", 1, "dynamic", 1);
    return compressed_config(plan, "float-quantized", weights, activations);
}

static json_t *int4_config(const struct nib_plan *plan)
{
    json_t *weights = json_pack("{s:i, s:s, s:s, s:i, s:b, s:b}", "num_bits", 4, "type", "int", "strategy",
                                "group", "group_size", NIB_MX_BLOCK, "symmetric", 1, "dynamic", 0);
    return compressed_config(plan, "pack-quantized", weights, json_null());
}

static json_t *mxfp4_compressed_config(const struct nib_plan *plan)
{
    json_t *weights =
        json_pack("{s:i, s:s, s:s, s:i, s:s, s:b, s:b}", "num_bits", 4, "type", "float", "strategy", "group",
                  "group_size", NIB_MX_BLOCK, "scale_dtype", "torch.uint8", "symmetric", 1, "dynamic", 0);
    return compressed_config(plan, "mxfp4-pack-quantized", weights, json_null());
}

static json_t *quantization_config(const struct nib_plan *plan)
{
    const struct nib_convert_options *options = &plan->options;
    switch (options->form) {
    case NIB_FORM_FP8_CHANNEL:
        return fp8_config(plan);
    case NIB_FORM_INT4_G32:
        return int4_config(plan);
    case NIB_FORM_FUSED:
        return fused_config(plan);
    default:
        break;
    }
    if (options->form == NIB_FORM_MXFP4 && options->fused)
        return fused_config(plan);
    return options->names == NIB_NAMES_QUARK ? quark_config(plan) : mxfp4_compressed_config(plan);
}

// What the source says already is kept where it is still right: a fused form of a fused source, and DeepSeek's own layout,
// which describes its dense matrices there and its experts in a key of their own.
static bool keeps_quantization(const struct nib_plan *plan, const json_t *config)
{
    const struct nib_convert_options *options = &plan->options;
    const char *method =
        json_string_value(json_object_get(json_object_get(config, "quantization_config"), "quant_method"));
    if (options->dense_bf16)
        return false;
    if (options->form == NIB_FORM_FUSED)
        return method && strcmp(method, "mxfp4") == 0;
    return nib_plan_dialect(options) == NIB_NAMES_DEEPSEEK;
}

nib_status nib_plan_config(const struct nib_plan *plan, json_t **config, struct nib_error *err)
{
    const struct nib_config *source = plan->source->checkpoint->config;
    json_t *made = source ? json_deep_copy(nib_config_json(source)) : json_object();
    json_t *text = json_object_get(made, "text_config");
    // It goes where the source has it, at the top otherwise.
    bool nested = json_object_get(text, "quantization_config") && !json_object_get(made, "quantization_config");
    json_t *home = nested ? text : made;
    bool keeps = keeps_quantization(plan, home), deepseek = nib_plan_dialect(&plan->options) == NIB_NAMES_DEEPSEEK;
    json_object_del(text, "expert_dtype");
    json_object_del(made, "expert_dtype");
    int failed = !made;
    if (deepseek)
        failed |= json_object_set_new(home, "expert_dtype", json_string("fp4"));
    if (!keeps) {
        json_object_del(text, "quantization_config");
        json_object_del(made, "quantization_config");
    }
    if (!keeps && !deepseek)
        failed |= json_object_set_new(home, "quantization_config", quantization_config(plan));
    *config = made;
    if (!failed)
        return NIB_OK;
    json_decref(made);
    *config = NULL;
    return nib_fail_memory(err, 65536, "a config");
}
