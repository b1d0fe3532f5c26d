// What stands beside the weights: metadata, index, configuration, side files.
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/path.h"
#include "checkpoint/config.h"
#include "checkpoint/json.h"
#include "convert/side_files.h"
#include "convert/verify.h"

enum { MAX_JSON = 256 << 20, MAX_DEPTH = 64 };

// ---- Metadata ----

static bool is_own_key(const char *key)
{
    static const char *const own[] = {"gate_up_layout", "nibble_form", "nibble_scale_rule"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(key, own[i]) == 0)
            return true;
    return false;
}

// The source's own entries, of several files the first's.
static json_t *inherited_metadata(const struct nib_checkpoint *source)
{
    json_t *metadata = json_object();
    for (size_t f = 0; f < source->file_count; f++) {
        const char *key;
        json_t *value;
        if (!source->files[f].metadata)
            continue;
        json_object_foreach(source->files[f].metadata, key,
                            value) if (!is_own_key(key) && !json_object_get(metadata, key))
            json_object_set(metadata, key, value);
    }
    return metadata;
}

static void check_metadata(struct nib_verifier *v)
{
    static const char *const rules[] = {"ocp", "even", "rceil", "search"};
    json_t *wanted = inherited_metadata(v->source.checkpoint);
    json_object_set_new(wanted, "nibble_form", json_string(nib_form_name(v->form)));
    if (v->fused)
        json_object_set_new(wanted, "gate_up_layout",
                            json_string(v->concatenated ? "concatenated" : "interleaved"));
    if (v->form == NIB_FORM_MXFP4)
        json_object_set_new(wanted, "nibble_scale_rule", json_string(rules[v->rule]));
    for (size_t f = 0; f < v->destination->file_count; f++) {
        const struct nib_safetensors *file = &v->destination->files[f];
        char *got = json_dumps(file->metadata, JSON_COMPACT), *want = json_dumps(wanted, JSON_COMPACT);
        if (!json_equal(file->metadata, wanted))
            nib_verify_problem(v, "%s: its metadata are %s, not %s", file->map.path, got ? got : "absent",
                               want ? want : "?");
        free(got);
        free(want);
    }
    json_decref(wanted);
}

// ---- JSON files ----

// Reads "folder/name"; NULL when there is none. A file that is not byte for byte what its content is written as counts
// as a problem: somebody touched it.
static json_t *read_json(struct nib_verifier *v, const char *name)
{
    char *path = nib_path_join(nib_checkpoint_path(v->destination), name), *text = NULL;
    struct nib_map map = {0};
    json_t *json = NULL;
    struct nib_error err;
    if (path && nib_path_exists(path) && nib_map_open(&map, path, NULL) == NIB_OK) {
        if (nib_json_parse((const char *)map.data, (size_t)map.size, path, MAX_JSON, MAX_DEPTH, &json, &err))
            nib_verify_problem(v, "%s", err.message);
        else
            text = nib_json_text(json);
        if (text && (strlen(text) != map.size || memcmp(text, map.data, map.size) != 0))
            nib_verify_problem(v, "%s: is not written as a conversion writes it", path);
    }
    nib_map_close(&map);
    free(text);
    free(path);
    return json;
}

static void check_index(struct nib_verifier *v)
{
    static const char name[] = "model.safetensors.index.json";
    json_t *index = read_json(v, name), *map = json_object();
    for (size_t i = 0; i < nib_checkpoint_count(v->destination); i++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(v->destination, i);
        json_object_set_new(map, tensor->name, json_string(nib_path_base(tensor->file)));
    }
    json_t *wanted = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
                               (json_int_t)nib_checkpoint_bytes(v->destination), "weight_map", map);
    bool many = nib_checkpoint_file_count(v->destination) > 1;
    if (many && !index)
        nib_verify_problem(v, "%s: is missing", name);
    if (index && (!many || !json_equal(index, wanted)))
        nib_verify_problem(v, "%s: does not describe the files", name);
    json_decref(wanted);
    json_decref(map);
    json_decref(index);
}

// ---- Configuration ----

static const char fp8_text[] =
    "{\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": "
    "\"float\", \"strategy\": \"channel\", \"symmetric\": true, \"dynamic\": false}, \"input_activations\": "
    "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"token\", \"symmetric\": true, \"dynamic\": true}, "
    "\"output_activations\": null}}, \"format\": \"float-quantized\", \"global_compression_ratio\": null, "
    "\"kv_cache_scheme\": null, \"quant_method\": \"compressed-tensors\", \"quantization_status\": "
    "\"compressed\"}";
static const char int4_text[] =
    "{\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": "
    "\"int\", "
    "\"strategy\": \"group\", \"group_size\": 32, \"symmetric\": true, \"dynamic\": false}, "
    "\"input_activations\": "
    "null, \"output_activations\": null}}, \"format\": \"pack-quantized\", \"global_compression_ratio\": null, "
    "\"kv_cache_scheme\": null, \"quant_method\": \"compressed-tensors\", \"quantization_status\": "
    "\"compressed\"}";
static const char mxfp4_packed_text[] =
    "{\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": "
    "\"float\", \"strategy\": \"group\", \"group_size\": 32, \"scale_dtype\": \"torch.uint8\", \"symmetric\": "
    "true, "
    "\"dynamic\": false}, \"input_activations\": null, \"output_activations\": null}}, \"format\": "
    "\"mxfp4-pack-quantized\", \"global_compression_ratio\": null, \"kv_cache_scheme\": null, \"quant_method\": "
    "\"compressed-tensors\", \"quantization_status\": \"compressed\"}";
static const char quark_text[] =
    "{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"fp4\", \"qscheme\": "
    "\"per_group\", \"group_size\": 32, \"scale_format\": \"e8m0\", \"ch_axis\": -1, \"is_dynamic\": false, "
    "\"symmetric\": null, \"round_method\": \"half_even\", \"scale_calculation_mode\": \"even\", "
    "\"observer_cls\": "
    "\"PerBlockMXObserver\"}, \"input_tensors\": null, \"output_tensors\": null, \"bias\": null}, "
    "\"layer_quant_config\": {}, \"export\": {\"kv_cache_group\": \"\", \"pack_method\": \"reorder\", "
    "\"weight_format\": \"real_quantized\"}}";
static const char fused_text[] = "{\"quant_method\": \"mxfp4\"}";

// The text, and the key of the list of modules that stay as they were.
static const char *wanted_text(const struct nib_verifier *v, const char **list)
{
    *list = "ignore";
    if (v->form == NIB_FORM_FP8_CHANNEL)
        return fp8_text;
    if (v->form == NIB_FORM_INT4_G32)
        return int4_text;
    *list = "modules_to_not_convert";
    if (v->fused)
        return fused_text;
    for (size_t i = 0; i < nib_checkpoint_count(v->destination); i++) {
        const char *name = nib_checkpoint_at(v->destination, i)->name; // expert 0 has a number before its gate
        if (strstr(name, ".0.w1.weight_packed") || strstr(name, ".0.gate_proj.weight_packed")) {
            *list = "ignore";
            return mxfp4_packed_text;
        }
    }
    *list = "exclude";
    return quark_text;
}

static bool is_plain_matrix(const struct nib_tensor *tensor)
{
    size_t length = strlen(tensor->name), tail = strlen(".weight");
    return tensor->rank == 2 && length > tail && strcmp(tensor->name + length - tail, ".weight") == 0 &&
           nib_dtype_is_plain(tensor->dtype);
}

// "a.3.b" as "a.*.b", where numbers stand for any.
static void star_numbers(char *name)
{
    char *to = name;
    for (const char *p = name; *p;) {
        size_t part = strcspn(p, ".");
        if (part && strspn(p, "0123456789") == part)
            *to++ = '*';
        else
            for (size_t i = 0; i < part; i++)
                *to++ = p[i];
        p += part;
        if (*p)
            *to++ = *p++;
    }
    *to = 0;
}

// The list names each plain matrix of the destination once, and nothing else.
static bool lists_plain_matrices(const struct nib_verifier *v, const json_t *list, bool stars)
{
    json_t *wanted = json_object(), *name;
    for (size_t i = 0; i < nib_checkpoint_count(v->destination); i++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(v->destination, i);
        char *copy = is_plain_matrix(tensor) ? strdup(tensor->name) : NULL;
        if (!copy)
            continue;
        copy[strlen(copy) - strlen(".weight")] = 0;
        if (stars)
            star_numbers(copy);
        json_object_set_new(wanted, copy, json_true());
        free(copy);
    }
    bool same = json_is_array(list) && json_array_size(list) == json_object_size(wanted);
    size_t i;
    json_array_foreach(list, i, name) same =
        same && json_is_string(name) && json_object_del(wanted, json_string_value(name)) == 0;
    json_decref(wanted);
    return same;
}

static json_t *quantization_home(json_t *config)
{
    json_t *text = json_object_get(config, "text_config");
    bool nested = json_object_get(text, "quantization_config") || json_object_get(text, "expert_dtype");
    return nested && !json_object_get(config, "quantization_config") ? text : config;
}

// In DeepSeek's layout experts are I8, so that E4M3 is a matrix outside them.
static bool has_fp8(const struct nib_verifier *v)
{
    for (size_t i = 0; i < nib_checkpoint_count(v->destination); i++)
        if (nib_checkpoint_at(v->destination, i)->dtype == NIB_F8_E4M3)
            return true;
    return false;
}

// Fused forms of fused sources, and DeepSeek's own layout, may say what the source says; the latter nothing where no FP8
// is left.
static bool may_be_kept(const struct nib_verifier *v, json_t *home, const json_t *source_quantization)
{
    const json_t *got = json_object_get(home, "quantization_config");
    const char *method = json_string_value(json_object_get(source_quantization, "quant_method"));
    const char *expert_dtype = json_string_value(json_object_get(home, "expert_dtype"));
    bool fused = v->form == NIB_FORM_FUSED && method && strcmp(method, "mxfp4") == 0;
    bool per_expert = v->form == NIB_FORM_PER_EXPERT || (v->form == NIB_FORM_MXFP4 && !v->fused);
    bool deepseek = per_expert && expert_dtype && strcmp(expert_dtype, "fp4") == 0;
    if (!fused && !deepseek)
        return false;
    if (deepseek && !got)
        return !source_quantization || !has_fp8(v);
    return source_quantization ? json_equal(got, source_quantization) : got == NULL;
}

static void check_quantization(struct nib_verifier *v, json_t *config, const json_t *source_quantization)
{
    json_t *home = quantization_home(config);
    if (may_be_kept(v, home, source_quantization)) {
        json_object_del(home, "expert_dtype");
        return;
    }
    const char *key;
    json_t *wanted = json_loads(wanted_text(v, &key), 0, NULL);
    json_t *got = json_copy(json_object_get(home, "quantization_config"));
    json_t *list = json_incref(json_object_get(got, key));
    json_object_del(got, key);
    if (!wanted || !json_equal(got, wanted))
        nib_verify_problem(v, "config.json: quantization_config is not that of %s", nib_form_name(v->form));
    if (!lists_plain_matrices(v, list, v->fused))
        nib_verify_problem(v, "config.json: \"%s\" does not name the matrices that are not quantized", key);
    json_decref(list);
    json_decref(got);
    json_decref(wanted);
}

static void drop_quantization(json_t *config)
{
    static const char *const keys[] = {"quantization_config", "expert_dtype"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_object_del(config, keys[i]);
        json_object_del(json_object_get(config, "text_config"), keys[i]);
    }
}

static void check_config(struct nib_verifier *v)
{
    const struct nib_config *of_source = nib_checkpoint_config(v->source.checkpoint);
    json_t *source = of_source ? json_deep_copy(nib_config_json(of_source)) : json_object();
    json_t *config = read_json(v, "config.json");
    if (!config) {
        nib_verify_problem(v, "config.json: is missing or no JSON");
        json_decref(source);
        return;
    }
    check_quantization(v, config, json_object_get(quantization_home(source), "quantization_config"));
    drop_quantization(config);
    drop_quantization(source);
    if (!json_equal(config, source))
        nib_verify_problem(v, "config.json: differs from the source's beyond its quantization_config");
    json_decref(config);
    json_decref(source);
}

// ---- Side files ----

static bool same_content(const char *one, const char *other)
{
    struct nib_map a = {0}, b = {0};
    bool same = nib_map_open(&a, one, NULL) == NIB_OK && nib_map_open(&b, other, NULL) == NIB_OK &&
                a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
    nib_map_close(&a);
    nib_map_close(&b);
    return same;
}

static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

// Every side file of `from` is in `to` too; with `compare`, byte for byte.
static void check_files(struct nib_verifier *v, const char *from, const char *to, bool compare)
{
    DIR *dir = opendir(from);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char *one = nib_path_join(from, entry->d_name), *other = nib_path_join(to, entry->d_name);
        if (one && other && nib_is_side_file(entry->d_name) && is_file(one)) {
            if (!is_file(other))
                nib_verify_problem(v, "%s: is not in %s", one, to);
            else if (compare && !same_content(one, other))
                nib_verify_problem(v, "%s: differs from %s", other, one);
        } else if (one && !compare && is_file(one) && entry->d_name[0] != '.' && strstr(entry->d_name, ".part")) {
            nib_verify_problem(v, "%s: is left over from an interrupted conversion", one);
        }
        free(one);
        free(other);
    }
    if (dir)
        closedir(dir);
}

// Loaders that read every file of weights in a folder would find more than the checkpoint.
static void check_strays(struct nib_verifier *v, const char *folder)
{
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *ending = strrchr(entry->d_name, '.');
        bool stray = entry->d_name[0] != '.' && ending && strcmp(ending, ".safetensors") == 0;
        for (size_t f = 0; stray && f < nib_checkpoint_file_count(v->destination); f++)
            stray = strcmp(entry->d_name, nib_path_base(nib_checkpoint_file(v->destination, f))) != 0;
        if (stray)
            nib_verify_problem(v, "%s/%s: is no part of the checkpoint", folder, entry->d_name);
    }
    if (dir)
        closedir(dir);
}

nib_status nib_verify_side(struct nib_verifier *v, struct nib_error *err)
{
    (void)err;
    const char *source = nib_checkpoint_path(v->source.checkpoint);
    const char *destination = nib_checkpoint_path(v->destination);
    check_metadata(v);
    check_config(v);
    check_index(v);
    check_strays(v, destination);
    if (!is_file(source)) {
        check_files(v, source, destination, true);
        check_files(v, destination, source, false);
    }
    return NIB_OK;
}
