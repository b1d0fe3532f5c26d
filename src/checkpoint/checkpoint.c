#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/path.h"
#include "checkpoint/internal.h"

struct nib_owned {
    struct nib_owned *next;
    _Alignas(max_align_t) unsigned char bytes[];
};

void *nib_checkpoint_allocate(struct nib_checkpoint *checkpoint, size_t bytes)
{
    struct nib_owned *owned = bytes < SIZE_MAX - sizeof *owned ? calloc(1, sizeof *owned + bytes) : NULL;
    if (!owned)
        return NULL;
    owned->next = checkpoint->owned;
    checkpoint->owned = owned;
    return owned->bytes;
}

// ---- Opening and closing ----

static int compare_names(const void *a, const void *b)
{
    const struct nib_tensor *left = a, *right = b;
    return strcmp(left->name, right->name);
}

// One list of all files' tensors by name; a name in two files is refused.
static nib_status merge_tensors(struct nib_checkpoint *checkpoint, struct nib_error *err)
{
    size_t total = 0;
    for (size_t f = 0; f < checkpoint->file_count; f++)
        total += checkpoint->files[f].count;
    checkpoint->tensors = calloc(total + 1, sizeof *checkpoint->tensors);
    checkpoint->used = calloc(total + 1, sizeof *checkpoint->used);
    if (!checkpoint->tensors || !checkpoint->used)
        return nib_fail_memory(err, (total + 1) * sizeof *checkpoint->tensors, "the list of tensors");
    for (size_t f = 0; f < checkpoint->file_count; f++) {
        const struct nib_safetensors *file = &checkpoint->files[f];
        if (file->count)
            memcpy(checkpoint->tensors + checkpoint->count, file->tensors, file->count * sizeof *file->tensors);
        checkpoint->count += file->count;
    }
    qsort(checkpoint->tensors, total, sizeof *checkpoint->tensors, compare_names);
    for (size_t i = 1; i < total; i++) {
        const struct nib_tensor *one = &checkpoint->tensors[i - 1], *other = one + 1;
        if (strcmp(one->name, other->name) == 0)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: in two files, %s and %s", one->name, one->file, other->file);
    }
    return NIB_OK;
}

nib_status nib_checkpoint_open_files(struct nib_checkpoint *checkpoint, char *const *paths /* [count] */,
                                     size_t count, struct nib_error *err)
{
    checkpoint->files = calloc(count + 1, sizeof *checkpoint->files);
    if (!checkpoint->files)
        return nib_fail_memory(err, (count + 1) * sizeof *checkpoint->files, "the list of files");
    for (size_t f = 0; f < count; f++) {
        nib_status status = nib_safetensors_open(&checkpoint->files[f], paths[f], err);
        if (status != NIB_OK)
            return status;
        checkpoint->file_count++;
    }
    return merge_tensors(checkpoint, err);
}

static nib_status open_configs(struct nib_checkpoint *checkpoint, struct nib_error *err)
{
    char *path = nib_path_join(checkpoint->path, "config.json");
    char *generation = nib_path_join(checkpoint->path, "generation_config.json");
    nib_status status = NIB_OK;
    if (!path || !generation)
        status = nib_fail_memory(err, strlen(checkpoint->path), "a file name");
    if (status == NIB_OK)
        status = nib_config_load(path, &checkpoint->config, err);
    if (status == NIB_OK && nib_path_exists(generation))
        status = nib_config_load(generation, &checkpoint->generation, err);
    free(path);
    free(generation);
    return status;
}

static nib_status open_path(struct nib_checkpoint *checkpoint, struct nib_error *err)
{
    struct stat info;
    if (!*checkpoint->path)
        return nib_fail(err, NIB_ERR_ARGUMENT, "the path of the model is empty");
    if (stat(checkpoint->path, &info) != 0)
        return nib_fail(err, errno == ENOENT || errno == ENOTDIR ? NIB_ERR_NOT_FOUND : NIB_ERR_IO,
                        "%s: cannot open: %s", checkpoint->path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return nib_checkpoint_open_files(checkpoint, &checkpoint->path, 1, err);
    nib_status status = open_configs(checkpoint, err);
    return status == NIB_OK ? nib_checkpoint_open_folder(checkpoint, err) : status;
}

nib_status nib_checkpoint_open(const char *path, struct nib_checkpoint **checkpoint, struct nib_error *err)
{
    struct nib_checkpoint *made = calloc(1, sizeof *made);
    char *copy = strdup(path);
    if (!made || !copy) {
        free(made);
        free(copy);
        return nib_fail_memory(err, sizeof *made + strlen(path), "a checkpoint");
    }
    for (size_t length = strlen(copy); length > 1 && copy[length - 1] == '/'; length--)
        copy[length - 1] = 0;
    made->path = copy;
    nib_status status = open_path(made, err);
    if (status != NIB_OK) {
        nib_checkpoint_close(made);
        return status;
    }
    *checkpoint = made;
    return NIB_OK;
}

void nib_checkpoint_close(struct nib_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    while (checkpoint->owned) {
        struct nib_owned *next = checkpoint->owned->next;
        free(checkpoint->owned);
        checkpoint->owned = next;
    }
    for (size_t f = 0; f < checkpoint->file_count; f++)
        nib_safetensors_close(&checkpoint->files[f]);
    free(checkpoint->files);
    free(checkpoint->tensors);
    free(checkpoint->used);
    nib_config_free(checkpoint->config);
    nib_config_free(checkpoint->generation);
    free(checkpoint->path);
    free(checkpoint);
}

// ---- What it holds ----

const char *nib_checkpoint_path(const struct nib_checkpoint *checkpoint)
{
    return checkpoint->path;
}

const struct nib_config *nib_checkpoint_config(const struct nib_checkpoint *checkpoint)
{
    return checkpoint->config;
}

const struct nib_config *nib_checkpoint_generation(const struct nib_checkpoint *checkpoint)
{
    return checkpoint->generation;
}

const char *nib_checkpoint_metadata(const struct nib_checkpoint *checkpoint, const char *key)
{
    for (size_t f = 0; f < checkpoint->file_count; f++) {
        const char *value = nib_safetensors_metadata(&checkpoint->files[f], key);
        if (value)
            return value;
    }
    return NULL;
}

static nib_status add_eos_ids(const struct nib_config *config, int32_t *ids, int capacity, int *count,
                              struct nib_error *err)
{
    if (!config || !nib_config_has(config, "eos_token_id"))
        return NIB_OK;
    size_t length;
    nib_status status = nib_config_length(config, "eos_token_id", &length, err);
    for (size_t i = 0; status == NIB_OK && i < length; i++) {
        int64_t id;
        status = nib_config_int_at(config, "eos_token_id", i, 0, INT32_MAX, &id, err);
        if (status != NIB_OK)
            return status;
        int at = 0;
        while (at < *count && ids[at] != id)
            at++;
        if (at < *count)
            continue;
        if (*count == capacity)
            return nib_fail(err, NIB_ERR_LIMIT, "%s: more than %d different eos_token_id", nib_config_name(config),
                            capacity);
        ids[(*count)++] = (int32_t)id;
    }
    return status;
}

nib_status nib_checkpoint_eos_ids(const struct nib_checkpoint *checkpoint, int32_t *ids /* [capacity] */,
                                  int capacity, int *count, struct nib_error *err)
{
    *count = 0;
    nib_status status = add_eos_ids(checkpoint->generation, ids, capacity, count, err);
    return status == NIB_OK ? add_eos_ids(checkpoint->config, ids, capacity, count, err) : status;
}

size_t nib_checkpoint_file_count(const struct nib_checkpoint *checkpoint)
{
    return checkpoint->file_count;
}

const char *nib_checkpoint_file(const struct nib_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->file_count ? checkpoint->files[index].map.path : NULL;
}

uint64_t nib_checkpoint_bytes(const struct nib_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint->count; i++)
        bytes += checkpoint->tensors[i].bytes;
    return bytes;
}

uint64_t nib_checkpoint_copied_bytes(const struct nib_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t f = 0; f < checkpoint->file_count; f++)
        bytes += checkpoint->files[f].copied_bytes;
    return bytes;
}

// ---- Tensors by name ----

size_t nib_checkpoint_count(const struct nib_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct nib_tensor *nib_checkpoint_at(const struct nib_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->count ? &checkpoint->tensors[index] : NULL;
}

size_t nib_checkpoint_lower_bound(const struct nib_checkpoint *checkpoint, const char *name)
{
    size_t low = 0, high = checkpoint->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(checkpoint->tensors[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct nib_tensor *nib_checkpoint_peek(const struct nib_checkpoint *checkpoint, const char *name)
{
    size_t at = nib_checkpoint_lower_bound(checkpoint, name);
    if (at == checkpoint->count || strcmp(checkpoint->tensors[at].name, name) != 0)
        return NULL;
    return &checkpoint->tensors[at];
}

void nib_checkpoint_mark(struct nib_checkpoint *checkpoint, const struct nib_tensor *tensor)
{
    if (tensor)
        checkpoint->used[tensor - checkpoint->tensors] = true;
}

const struct nib_tensor *nib_checkpoint_find(struct nib_checkpoint *checkpoint, const char *name)
{
    const struct nib_tensor *tensor = nib_checkpoint_peek(checkpoint, name);
    nib_checkpoint_mark(checkpoint, tensor);
    return tensor;
}

nib_status nib_checkpoint_require(struct nib_checkpoint *checkpoint, const char *name,
                                  const struct nib_tensor **tensor, struct nib_error *err)
{
    *tensor = nib_checkpoint_find(checkpoint, name);
    if (!*tensor)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no tensor %s", checkpoint->path, name);
    return NIB_OK;
}

size_t nib_checkpoint_skip(struct nib_checkpoint *checkpoint, const char *prefix)
{
    size_t length = strlen(prefix), first = nib_checkpoint_lower_bound(checkpoint, prefix), at = first;
    while (at < checkpoint->count && strncmp(checkpoint->tensors[at].name, prefix, length) == 0)
        checkpoint->used[at++] = true;
    return at - first;
}

const struct nib_tensor *nib_checkpoint_next_unused(const struct nib_checkpoint *checkpoint,
                                                    const struct nib_tensor *after)
{
    for (size_t i = after ? (size_t)(after - checkpoint->tensors) + 1 : 0; i < checkpoint->count; i++)
        if (!checkpoint->used[i])
            return &checkpoint->tensors[i];
    return NULL;
}

void nib_checkpoint_advise(const struct nib_checkpoint *checkpoint, const struct nib_tensor *tensor,
                           enum nib_advice advice)
{
    static const enum nib_map_advice map_advice[] = {
        [NIB_ADVICE_NORMAL] = NIB_MAP_NORMAL,
        [NIB_ADVICE_SEQUENTIAL] = NIB_MAP_SEQUENTIAL,
        [NIB_ADVICE_WILL_NEED] = NIB_MAP_WILL_NEED,
        [NIB_ADVICE_DONT_NEED] = NIB_MAP_DONT_NEED,
    };
    for (size_t f = 0; f < checkpoint->file_count; f++) {
        const struct nib_map *map = &checkpoint->files[f].map;
        uintptr_t data = (uintptr_t)tensor->data, begin = (uintptr_t)map->data;
        if (data >= begin && data - begin < map->size) // not so for an unaligned tensor's copy
            nib_map_advise(map, data - begin, tensor->bytes, map_advice[advice]);
    }
}
