// Which files a checkpoint folder consists of, and whether its index tells the truth about them.
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/path.h"
#include "checkpoint/internal.h"
#include "checkpoint/json.h"

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";
static const char suffix[] = ".safetensors";

enum {
    MAX_INDEX_BYTES = 256 << 20, // half a million tensors take about 60 MB
    MAX_INDEX_DEPTH = 8,
    MAX_SHARDS = 10000,
};

struct path_list {
    char **paths;
    size_t count, capacity;
};

static void free_paths(struct path_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->paths[i]);
    free(list->paths);
}

static nib_status add_path(struct path_list *list, const char *folder, const char *name, struct nib_error *err)
{
    if (list->count == MAX_SHARDS)
        return nib_fail(err, NIB_ERR_LIMIT, "%s: more than %d safetensors files", folder, MAX_SHARDS);
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        char **grown = realloc(list->paths, capacity * sizeof *grown);
        if (!grown)
            return nib_fail_memory(err, capacity * sizeof *grown, "a list of files");
        list->paths = grown;
        list->capacity = capacity;
    }
    char *path = nib_path_join(folder, name);
    if (!path)
        return nib_fail_memory(err, strlen(folder) + strlen(name) + 2, "a file name");
    list->paths[list->count++] = path;
    return NIB_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_paths(struct path_list *list)
{
    if (list->count)
        qsort(list->paths, list->count, sizeof *list->paths, compare_paths);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length > tail && strcmp(text + length - tail, end) == 0;
}

// ---- A folder with an index ----

// A shard is a plain file of this folder.
static nib_status check_shard_name(const char *index_path, const char *tensor, const char *shard,
                                   struct nib_error *err)
{
    if (!shard)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: its file is not a string", index_path, tensor);
    if (strpbrk(shard, "/\\") || shard[0] == '.')
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: the file name \"%s\" leaves the folder", index_path, tensor,
                        shard);
    if (!ends_with(shard, suffix))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: \"%s\" is not a .safetensors file", index_path, tensor,
                        shard);
    return NIB_OK;
}

static nib_status list_shards(const struct nib_checkpoint *checkpoint, const char *index_path, json_t *map,
                              struct path_list *list, struct nib_error *err)
{
    json_t *seen = json_object();
    if (!seen)
        return nib_fail_memory(err, sizeof(json_t), "a list of files");
    nib_status status = NIB_OK;
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const char *shard = json_string_value(value);
        status = check_shard_name(index_path, tensor, shard, err);
        if (status == NIB_OK && !json_object_get(seen, shard)) {
            status = add_path(list, checkpoint->path, shard, err);
            if (status == NIB_OK && json_object_set_new(seen, shard, json_true()) != 0)
                status = nib_fail_memory(err, strlen(shard), "a list of files");
        }
        if (status != NIB_OK)
            break;
    }
    json_decref(seen);
    if (status == NIB_OK && list->count == 0)
        status = nib_fail(err, NIB_ERR_FORMAT, "%s: \"weight_map\" is empty", index_path);
    return status;
}

// Every listed tensor is in the file it is said to be in, and every tensor of the files is listed.
static nib_status check_index(const struct nib_checkpoint *checkpoint, const char *index_path, json_t *map,
                              struct nib_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const char *shard = json_string_value(value);
        const struct nib_tensor *tensor = nib_checkpoint_peek(checkpoint, name);
        if (!tensor)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: lists %s in %s, which does not hold it", index_path, name,
                            shard);
        if (strcmp(nib_path_base(tensor->file), shard) != 0)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: lists %s in %s, but it is in %s", index_path, name, shard,
                            nib_path_base(tensor->file));
    }
    for (size_t i = 0; i < checkpoint->count; i++) {
        const struct nib_tensor *tensor = &checkpoint->tensors[i];
        if (!json_object_get(map, tensor->name))
            return nib_fail(err, NIB_ERR_FORMAT, "%s: does not list %s, which is in %s", index_path, tensor->name,
                            nib_path_base(tensor->file));
    }
    return NIB_OK;
}

static nib_status open_listed(struct nib_checkpoint *checkpoint, const char *index_path, json_t *index,
                              struct nib_error *err)
{
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: no \"weight_map\" object", index_path);
    struct path_list list = {0};
    nib_status status = list_shards(checkpoint, index_path, map, &list, err);
    if (status == NIB_OK) {
        sort_paths(&list);
        status = nib_checkpoint_open_files(checkpoint, list.paths, list.count, err);
    }
    free_paths(&list);
    return status == NIB_OK ? check_index(checkpoint, index_path, map, err) : status;
}

static nib_status open_by_index(struct nib_checkpoint *checkpoint, const char *index_path, struct nib_error *err)
{
    struct nib_map file;
    nib_status status = nib_map_open(&file, index_path, err);
    if (status != NIB_OK)
        return status;
    json_t *index = NULL;
    status = nib_json_parse((const char *)file.data, (size_t)file.size, index_path, MAX_INDEX_BYTES,
                            MAX_INDEX_DEPTH, &index, err);
    nib_map_close(&file);
    if (status == NIB_OK)
        status = open_listed(checkpoint, index_path, index, err);
    json_decref(index);
    return status;
}

// ---- A folder without one ----

// For "stem-00002-of-00005.safetensors" the length of "stem" and 5; otherwise 0.
static long shard_total(const char *name, size_t *stem)
{
    const char *of = NULL;
    for (const char *p = strstr(name, "-of-"); p; p = strstr(p + 1, "-of-"))
        of = p;
    if (!of || !isdigit((unsigned char)of[4]))
        return 0;
    const char *number = of;
    while (number > name && isdigit((unsigned char)number[-1]))
        number--;
    char *end;
    long total = strtol(of + 4, &end, 10);
    if (number == of || number == name || number[-1] != '-' || strcmp(end, suffix) != 0)
        return 0;
    *stem = (size_t)(number - 1 - name);
    return total;
}

// Without an index only the names say how many shards there should be: as many as they say, or one more where they count
// from 0 to that, as OpenAI's do.
static nib_status check_complete(const struct path_list *list, struct nib_error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        const char *name = nib_path_base(list->paths[i]);
        size_t stem = 0, other_stem = 0;
        long total = shard_total(name, &stem), present = 0;
        bool has_zero = false;
        if (!total)
            continue;
        for (size_t j = 0; j < list->count; j++) {
            const char *other = nib_path_base(list->paths[j]);
            if (shard_total(other, &other_stem) != total || other_stem != stem || strncmp(name, other, stem) != 0)
                continue;
            const char *number = other + stem + 1;
            has_zero |= number[strspn(number, "0")] == '-';
            present++;
        }
        if (present != total && !(has_zero && present - 1 == total))
            return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: %ld of its %ld shards are here", list->paths[i], present,
                            total);
    }
    return NIB_OK;
}

static nib_status list_folder(const char *folder, struct path_list *list, struct nib_error *err)
{
    DIR *stream = opendir(folder);
    if (!stream)
        return nib_fail(err, NIB_ERR_IO, "%s: cannot read the folder: %s", folder, strerror(errno));
    nib_status status = NIB_OK;
    for (struct dirent *entry; status == NIB_OK && (entry = readdir(stream));)
        if (entry->d_name[0] != '.' && ends_with(entry->d_name, suffix))
            status = add_path(list, folder, entry->d_name, err);
    closedir(stream);
    if (status == NIB_OK && list->count == 0)
        status = nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no %s, %s or other *%s in the folder", folder, index_name,
                          single_name, suffix);
    return status;
}

static nib_status open_all(struct nib_checkpoint *checkpoint, struct nib_error *err)
{
    struct path_list list = {0};
    nib_status status = list_folder(checkpoint->path, &list, err);
    if (status == NIB_OK) {
        sort_paths(&list);
        status = check_complete(&list, err);
    }
    if (status == NIB_OK)
        status = nib_checkpoint_open_files(checkpoint, list.paths, list.count, err);
    free_paths(&list);
    return status;
}

nib_status nib_checkpoint_open_folder(struct nib_checkpoint *checkpoint, struct nib_error *err)
{
    char *index = nib_path_join(checkpoint->path, index_name);
    char *single = nib_path_join(checkpoint->path, single_name);
    nib_status status;
    if (!index || !single)
        status = nib_fail_memory(err, strlen(checkpoint->path), "a file name");
    else if (nib_path_exists(index))
        status = open_by_index(checkpoint, index, err);
    else if (nib_path_exists(single))
        status = nib_checkpoint_open_files(checkpoint, &single, 1, err);
    else
        status = open_all(checkpoint, err);
    free(index);
    free(single);
    return status;
}
