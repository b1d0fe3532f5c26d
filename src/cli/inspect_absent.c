// nibble inspect of a folder without its weights: what the whole model would need, from config.json and the index.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/path.h"
#include "checkpoint/json.h"
#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/units.h"
#include "model/model.h"

enum { INDEX_BYTES = 256 << 20, INDEX_DEPTH = 8, SHOWN_FILES = 4 };

// ---- how the weights will be stored, as the config says

// Bytes of a matrix are its elements' and those of its scales, one for `block` elements.
struct form {
    const char *name;
    double element_bytes, scale_bytes, block;
};

static const struct form bf16 = {"bf16", 2, 0, 1}, mxfp4 = {"MXFP4", 0.5, 1, 32},
                         fp8_blocks = {"FP8 in blocks of 128 x 128", 1, 4, 128 * 128},
                         fp8_channels = {"FP8 per channel", 1, 0, 1}, int4 = {"int4 in groups of 32", 0.5, 2, 32};

struct storage {
    struct form experts, dense;
};

static nib_status read_compressed_tensors(const struct nib_config *config, struct storage *storage,
                                          struct nib_error *err)
{
    static const char key[] = "quantization_config.format";
    const char *format;
    nib_status status = nib_config_string_or(config, key, "", &format, err);
    if (status)
        return status;
    if (strcmp(format, "mxfp4-pack-quantized") == 0)
        storage->experts = mxfp4;
    else if (strcmp(format, "pack-quantized") == 0)
        storage->experts = int4;
    else if (strcmp(format, "float-quantized") == 0)
        storage->experts = storage->dense = fp8_channels;
    else
        return nib_config_refuse(config, key, "its sizes are not known here", err);
    return NIB_OK;
}

static nib_status read_quark(const struct nib_config *config, struct storage *storage, struct nib_error *err)
{
    static const char key[] = "quantization_config.global_quant_config.weight.dtype";
    const char *dtype;
    nib_status status = nib_config_string_or(config, key, "fp4", &dtype, err);
    if (!status && strcmp(dtype, "fp4") == 0)
        storage->experts = mxfp4;
    else if (!status && strncmp(dtype, "fp8", 3) == 0)
        storage->experts = storage->dense = fp8_channels;
    else if (!status)
        return nib_config_refuse(config, key, "its sizes are not known here", err);
    return status;
}

static nib_status read_storage(const struct nib_config *config, struct storage *storage, struct nib_error *err)
{
    static const char key[] = "quantization_config.quant_method";
    const char *method, *experts;
    nib_status status;
    *storage = (struct storage){bf16, bf16};
    if ((status = nib_config_string_or(config, key, "", &method, err)) ||
        (status = nib_config_string_or(config, "expert_dtype", "", &experts, err)))
        return status;
    if (strcmp(method, "quark") == 0)
        status = read_quark(config, storage, err);
    else if (strcmp(method, "compressed-tensors") == 0)
        status = read_compressed_tensors(config, storage, err);
    else if (strcmp(method, "mxfp4") == 0)
        storage->experts = mxfp4;
    else if (strcmp(method, "fp8") == 0)
        storage->experts = storage->dense =
            nib_config_has(config, "quantization_config.weight_block_size") ? fp8_blocks : fp8_channels;
    else if (*method)
        return nib_config_refuse(config, key, "its sizes are not known here", err);
    if (strcmp(experts, "fp4") == 0 || (!*method && nib_config_has(config, "swiglu_limit"))) // OpenAI's own config
        storage->experts = mxfp4;
    return status;
}

// ---- sizes

struct weights {
    const struct storage *storage;
    double experts, dense, embedding; // bytes
};

static double bytes_as(const struct form *form, double elements)
{
    return elements * form->element_bytes + elements / form->block * form->scale_bytes;
}

static nib_status weigh(void *user, const struct nib_tensor_spec *spec, struct nib_error *err)
{
    struct weights *weights = user;
    double elements = 1;
    (void)err;
    for (int d = 0; d < spec->rank; d++)
        elements *= (double)spec->shape[d];
    bool scales = strstr(spec->name, "scale") != NULL;
    if (spec->dtype == NIB_U8) // packed codes, two in a byte; their scales are the form's business
        weights->experts += scales ? 0 : bytes_as(&weights->storage->experts, 2 * elements);
    else if (strstr(spec->name, ".experts.")) // biases
        weights->experts += 2 * elements;
    else if (strstr(spec->name, "embed_tokens"))
        weights->embedding += 2 * elements;
    else if (spec->rank == 2 && strstr(spec->name, "_proj"))
        weights->dense += bytes_as(&weights->storage->dense, elements);
    else
        weights->dense += 2 * elements;
    return NIB_OK;
}

static double read_ceiling(int threads)
{
    size_t bytes = nib_memory_available() / 8 < (size_t)1 << 30 ? nib_memory_available() / 8 : (size_t)1 << 30;
    double best = 0;
    void *memory =
        bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED)
        return 0;
    memset(memory, 1, bytes);
    for (int i = 0; i < 3; i++) {
        double speed = nib_bandwidth_read(memory, bytes, threads);
        best = speed > best ? speed : best;
    }
    munmap(memory, bytes);
    return best;
}

// The layers of each kind of attention.
static json_t *layers_json(const struct nib_model *model)
{
    json_t *kinds = json_object();
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        struct nib_layer_summary layer;
        model->family->describe_layer(model, l, &layer);
        json_int_t count = json_integer_value(json_object_get(kinds, layer.attention));
        json_object_set_new(kinds, layer.attention, json_integer(count + 1));
    }
    return kinds;
}

static void add_speed(const struct nib_model *model, const struct weights *weights, int threads, json_t *report)
{
    const struct nib_model_shape *shape = &model->shape;
    double experts = weights->experts / (double)shape->n_experts * (double)shape->top_k;
    double dense = weights->dense + 2 * (double)shape->hidden; // and one row of the embedding
    if (shape->tied_head)
        dense += weights->embedding;
    double cache = (double)json_integer_value(json_object_get(report, "cache_sequence_bytes"));
    double ceiling = read_ceiling(threads);
    json_object_set_new(report, "weight_bytes_per_token", json_integer((json_int_t)(experts + dense)));
    json_object_set_new(report, "expert_bytes_per_token", json_integer((json_int_t)experts));
    json_object_set_new(report, "dense_bytes_per_token", json_integer((json_int_t)dense));
    json_object_set_new(report, "read_bytes_per_second", json_real(ceiling));
    json_object_set_new(report, "most_tokens_per_second", json_real(ceiling / (experts + dense)));
    json_object_set_new(report, "most_tokens_per_second_full_context",
                        json_real(ceiling / (experts + dense + cache)));
}

static nib_status add_needs(const struct nib_config *config, const struct session_options *session, json_t *report,
                            struct nib_error *err)
{
    struct storage storage;
    struct weights weights = {.storage = &storage};
    struct nib_model *model = NULL;
    struct nib_memory_plan plan;
    nib_status status;
    if ((status = nib_model_create(config, &model, err)) || (status = read_storage(config, &storage, err)) ||
        (status = model->family->each_tensor(model, weigh, &weights, err))) {
        nib_model_free(model);
        return status;
    }
    double bytes = weights.experts + weights.dense + weights.embedding;
    json_int_t listed = json_integer_value(json_object_get(report, "index_bytes"));
    struct nib_engine_options options = {
        .device = session->device,
        .threads = (int)session->threads,
        .context = session->context ? (int32_t)session->context : (int32_t)model->shape.context,
    };
    status = nib_engine_plan_config(config, listed ? (uint64_t)listed : (uint64_t)bytes, &options, &plan, err);
    if (!status) {
        json_object_set_new(report, "weights",
                            json_pack("{s:I, s:I, s:I, s:s, s:s}", "expert_bytes", (json_int_t)weights.experts,
                                      "dense_bytes", (json_int_t)weights.dense, "embedding_bytes",
                                      (json_int_t)weights.embedding, "expert_form", storage.experts.name,
                                      "dense_form", storage.dense.name));
        json_object_set_new(report, "layer_kinds", layers_json(model));
        json_object_set_new(report, "experts_per_layer", json_integer(model->shape.n_experts));
        json_object_set_new(report, "experts_per_token", json_integer(model->shape.top_k));
        inspect_add_plan(&plan, report);
        add_speed(model, &weights, options.threads ? options.threads : nib_thread_limit(), report);
    }
    nib_model_free(model);
    return status;
}

// ---- files

static nib_status load_index(const char *folder, json_t **index, struct nib_error *err)
{
    struct nib_map file;
    char *path = nib_path_join(folder, "model.safetensors.index.json");
    *index = NULL;
    if (!path)
        return nib_fail_memory(err, strlen(folder), "a path");
    nib_status status = NIB_OK;
    if (nib_path_exists(path) && !(status = nib_map_open(&file, path, err))) {
        status =
            nib_json_parse((const char *)file.data, (size_t)file.size, path, INDEX_BYTES, INDEX_DEPTH, index, err);
        nib_map_close(&file);
    }
    free(path);
    return status;
}

// Files that the index names, each once, and of them those that are not there.
static void add_files(const char *folder, json_t *index, json_t *report)
{
    json_t *shard, *seen = json_object(), *missing = json_array(), *map = json_object_get(index, "weight_map");
    const char *tensor;
    json_object_foreach(map, tensor, shard)
    {
        const char *name = json_string_value(shard);
        if (!name || json_object_get(seen, name))
            continue;
        json_object_set_new(seen, name, json_true());
        char *path = strchr(name, '/') ? NULL : nib_path_join(folder, name);
        if (!path || !nib_path_exists(path))
            json_array_append(missing, shard);
        free(path);
    }
    double total = json_number_value(json_object_get(json_object_get(index, "metadata"), "total_size"));
    json_object_set_new(report, "files_named", json_integer((json_int_t)json_object_size(seen)));
    json_object_set_new(report, "files_missing", missing);
    json_object_set_new(report, "index_tensors", json_integer((json_int_t)json_object_size(map)));
    json_object_set_new(report, "index_bytes", json_integer(total > 0 && total < 0x1p60 ? (json_int_t)total : 0));
    json_decref(seen);
}

// Without an index, weights that could not be opened are shards of which some are missing, or links to what is gone.
static bool holds_weights(const char *folder)
{
    DIR *dir = opendir(folder);
    bool found = false;
    for (const struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        const char *ending = strrchr(entry->d_name, '.');
        found = ending && ending != entry->d_name && strcmp(ending, ".safetensors") == 0;
    }
    if (dir)
        closedir(dir);
    return found;
}

// ---- text

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static struct size_text size(const json_t *object, const char *key)
{
    return size_text((uint64_t)json_integer_value(json_object_get(object, key)));
}

static void print_files(const json_t *report)
{
    const json_t *missing = json_object_get(report, "files_missing");
    size_t count = json_array_size(missing);
    long long named = json_integer_value(json_object_get(report, "files_named"));
    printf("%s: %s, ", text(report, "path"), text(report, "model_type"));
    if (!named) {
        printf("config.json alone\n");
        return;
    }
    printf("%lld tensors in %lld files, %s; %zu of them are not here:",
           json_integer_value(json_object_get(report, "index_tensors")), named, size(report, "index_bytes").text,
           count);
    for (size_t i = 0; i < count && i < SHOWN_FILES; i++)
        printf("%s %s", i ? "," : "", json_string_value(json_array_get(missing, i)));
    printf(count > SHOWN_FILES ? ", …\n" : "\n");
}

static void print_needs(const json_t *report)
{
    const json_t *weights = json_object_get(report, "weights");
    const char *kind;
    json_t *count;
    printf("\nweights by the config: experts %s (%s), dense %s (%s), embedding %s\n",
           size(weights, "expert_bytes").text, text(weights, "expert_form"), size(weights, "dense_bytes").text,
           text(weights, "dense_form"), size(weights, "embedding_bytes").text);
    printf("\nlayers\n");
    json_object_foreach(json_object_get(report, "layer_kinds"), kind, count)
        printf("  %lld: %s\n", (long long)json_integer_value(count), kind);
    inspect_print_memory(report);
    double ceiling = json_real_value(json_object_get(report, "read_bytes_per_second"));
    printf("\none decoded token reads %s of weights: dense %s, %lld of %lld experts a layer %s\n",
           size(report, "weight_bytes_per_token").text, size(report, "dense_bytes_per_token").text,
           json_integer_value(json_object_get(report, "experts_per_token")),
           json_integer_value(json_object_get(report, "experts_per_layer")),
           size(report, "expert_bytes_per_token").text);
    if (ceiling > 0)
        printf("at the %.1f GB/s that a plain read reaches here, weights in memory: at most %.2f tok/s, %.2f with "
               "the context "
               "full\n",
               ceiling / 1e9, json_real_value(json_object_get(report, "most_tokens_per_second")),
               json_real_value(json_object_get(report, "most_tokens_per_second_full_context")));
}

int inspect_absent(const char *folder, const struct session_options *session, bool json,
                   const struct nib_error *unopened)
{
    struct nib_error err;
    struct nib_config *config = NULL;
    json_t *index = NULL, *report = json_object();
    char *path = nib_path_join(folder, "config.json");
    bool here = unopened->status == NIB_ERR_NOT_FOUND && path && nib_path_exists(path);
    nib_status status = unopened->status;
    if (here && !(status = load_index(folder, &index, &err)) && !index && holds_weights(folder))
        here = false;
    if (!here) {
        err = *unopened;
        status = unopened->status;
    } else if (!status && !(status = nib_config_load(path, &config, &err))) {
        json_object_set_new(report, "path", json_string(folder));
        inspect_add_family(config, report);
        add_files(folder, index, report);
        status = add_needs(config, session, report, &err);
    }
    if (!status && json) {
        json_dumpf(report, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
    } else if (!status) {
        print_files(report);
        print_needs(report);
    }
    bool some = json_array_size(json_object_get(report, "files_missing")) <
                (size_t)json_integer_value(json_object_get(report, "files_named"));
    int code = status ? report_error(&err)
               : some ? report_error(unopened)
                      : 0; // some: a download that is not complete
    json_decref(report);
    json_decref(index);
    nib_config_free(config);
    free(path);
    return code;
}
