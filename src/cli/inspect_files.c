#include "cli/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// "model.layers.11.mlp" becomes "model.layers.*.mlp".
static void generalise(const char *name, char *pattern, size_t capacity)
{
    size_t used = 0;
    while (*name && used + 1 < capacity) {
        size_t part = strcspn(name, "."), digits = strspn(name, "0123456789");
        bool number = digits == part && digits > 0;
        for (size_t i = 0; i < (number ? 1 : part) && used + 1 < capacity; i++)
            pattern[used++] = number ? '*' : name[i];
        name += part;
        if (*name == '.' && used + 1 < capacity)
            pattern[used++] = *name++;
    }
    pattern[used] = 0;
}

static json_t *shape_json(const struct nib_tensor *tensor)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return shape;
}

// One entry for tensors of the same generalised name, type and shape; in the order of the first of them.
static json_t *tensor_groups(const struct nib_checkpoint *checkpoint)
{
    json_t *groups = json_object(), *list = json_array();
    for (size_t i = 0; i < nib_checkpoint_count(checkpoint); i++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(checkpoint, i);
        char pattern[256], described[128], key[400];
        generalise(tensor->name, pattern, sizeof pattern);
        nib_tensor_describe(tensor, described, sizeof described);
        snprintf(key, sizeof key, "%s %s", pattern, described);
        json_t *group = json_object_get(groups, key);
        if (!group) {
            group = json_object();
            json_object_set_new(group, "name", json_string(pattern));
            json_object_set_new(group, "dtype", json_string(nib_dtype_name(tensor->dtype)));
            json_object_set_new(group, "shape", shape_json(tensor));
            json_object_set_new(groups, key, group);
            json_array_append(list, group);
        }
        json_int_t count = json_integer_value(json_object_get(group, "count"));
        json_int_t bytes = json_integer_value(json_object_get(group, "bytes"));
        json_object_set_new(group, "count", json_integer(count + 1));
        json_object_set_new(group, "bytes", json_integer(bytes + (json_int_t)tensor->bytes));
    }
    json_decref(groups);
    return list;
}

// How gate and up lie: nothing in fused tensors shows it, only the file's metadata may say.
static const char *gate_up_rows(const struct nib_checkpoint *checkpoint, const struct nib_experts *experts)
{
    switch (experts->layout) {
    case NIB_EXPERTS_QUARK:
    case NIB_EXPERTS_COMPRESSED_TENSORS:
    case NIB_EXPERTS_DEEPSEEK:
        return "in separate tensors";
    case NIB_EXPERTS_FUSED:
        if (!nib_checkpoint_metadata(checkpoint, "gate_up_layout"))
            return "in an order that the file does not say";
        break;
    default:
        break;
    }
    return experts->interleaved ? "interleaved" : "concatenated";
}

static json_t *experts_json(struct nib_checkpoint *checkpoint, const char *prefix, bool scales, bool *sound)
{
    struct nib_experts experts;
    struct nib_error err;
    json_t *json = json_object();
    json_object_set_new(json, "prefix", json_string(prefix));
    if (nib_checkpoint_experts(checkpoint, prefix, false, &experts, &err)) {
        json_object_set_new(json, "error", json_string(err.message));
        return json;
    }
    json_object_set_new(json, "layout", json_string(nib_expert_layout_name(experts.layout)));
    json_object_set_new(json, "gate_up_rows", json_string(gate_up_rows(checkpoint, &experts)));
    json_object_set_new(json, "experts", json_integer(experts.weights.n_experts));
    json_object_set_new(json, "hidden", json_integer(experts.weights.hidden));
    json_object_set_new(json, "intermediate", json_integer(experts.weights.intermediate));
    json_object_set_new(json, "biases",
                        json_boolean(experts.weights.n_experts && experts.weights.experts[0].gate_bias));
    json_object_set_new(json, "bytes", json_integer((json_int_t)experts.bytes));
    if (scales && nib_checkpoint_check_scales(checkpoint, &experts, &err)) {
        json_object_set_new(json, "scales", json_string(err.message));
        *sound = false;
    } else if (scales)
        json_object_set_new(json, "scales", json_string("no NaN"));
    return json;
}

void inspect_add_family(const struct nib_config *config, json_t *report)
{
    const char *type = NULL, *architecture = NULL;
    if (!config)
        return;
    if (nib_config_string_or(config, "model_type", NULL, &type, NULL) == NIB_OK && type)
        json_object_set_new(report, "model_type", json_string(type));
    if (nib_config_string_at(config, "architectures", 0, &architecture, NULL) == NIB_OK)
        json_object_set_new(report, "architecture", json_string(architecture));
}

bool inspect_files(struct nib_checkpoint *checkpoint, bool scales, json_t *report)
{
    bool sound = true;
    json_object_set_new(report, "path", json_string(nib_checkpoint_path(checkpoint)));
    inspect_add_family(nib_checkpoint_config(checkpoint), report);
    json_t *files = json_array(), *experts = json_array();
    for (size_t i = 0; i < nib_checkpoint_file_count(checkpoint); i++)
        json_array_append_new(files, json_string(nib_checkpoint_file(checkpoint, i)));
    json_object_set_new(report, "files", files);
    json_object_set_new(report, "tensors", json_integer((json_int_t)nib_checkpoint_count(checkpoint)));
    json_object_set_new(report, "bytes", json_integer((json_int_t)nib_checkpoint_bytes(checkpoint)));
    json_object_set_new(report, "copied_bytes", json_integer((json_int_t)nib_checkpoint_copied_bytes(checkpoint)));
    json_object_set_new(report, "groups", tensor_groups(checkpoint));
    const char *const *prefixes;
    size_t count;
    struct nib_error err;
    if (nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, &err))
        json_object_set_new(report, "experts_error", json_string(err.message));
    else
        for (size_t i = 0; i < count; i++)
            json_array_append_new(experts, experts_json(checkpoint, prefixes[i], scales, &sound));
    json_object_set_new(report, "experts", experts);
    return sound;
}
