#include "convert/side_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/path.h"
#include "convert/file_writer.h"

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

bool nib_is_side_file(const char *name)
{
    return name[0] != '.' && strcmp(name, "config.json") != 0 && !ends_with(name, ".safetensors") &&
           !ends_with(name, ".safetensors.index.json") && !ends_with(name, ".part");
}

static nib_status copy_file(const char *from, const char *folder, const char *name, struct nib_error *err)
{
    struct nib_map map;
    nib_status status = nib_map_open(&map, from, err);
    if (status != NIB_OK)
        return status;
    status = nib_file_write(folder, name, map.data, (size_t)map.size, err);
    nib_map_close(&map);
    return status;
}

static nib_status copy_side_files(const char *source, const char *folder, struct nib_error *err)
{
    DIR *dir = opendir(source);
    if (!dir)
        return errno == ENOTDIR ? NIB_OK
                                : nib_fail(err, NIB_ERR_IO, "%s: cannot list: %s", source, strerror(errno));
    nib_status status = NIB_OK;
    for (const struct dirent *entry; status == NIB_OK && (entry = readdir(dir));) {
        struct stat info;
        char *path = nib_path_join(source, entry->d_name);
        if (!path)
            status = nib_fail_memory(err, strlen(source), "a file name");
        else if (nib_is_side_file(entry->d_name) && stat(path, &info) == 0 && S_ISREG(info.st_mode))
            status = copy_file(path, folder, entry->d_name, err);
        free(path);
    }
    closedir(dir);
    return status;
}

char *nib_json_text(const json_t *json)
{
    for (unsigned digits = 15; digits <= 17; digits++) {
        char *text = json_dumps(json, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits));
        json_t *again = text ? json_loads(text, 0, NULL) : NULL;
        bool same = json_equal(again, json);
        json_decref(again);
        if (same || !text || digits == 17)
            return text;
        free(text);
    }
    return NULL;
}

static nib_status write_json(const char *folder, const char *name, const json_t *json, struct nib_error *err)
{
    if (!json)
        return NIB_OK;
    char *text = nib_json_text(json);
    if (!text)
        return nib_fail_memory(err, 65536, name);
    nib_status status = nib_file_write(folder, name, text, strlen(text), err);
    free(text);
    return status;
}

nib_status nib_write_side_files(const struct nib_plan *plan, const char *folder, struct nib_error *err)
{
    json_t *index, *config = NULL;
    nib_status status = nib_plan_index(plan, &index, err);
    if (status == NIB_OK)
        status = write_json(folder, "model.safetensors.index.json", index, err);
    if (status == NIB_OK)
        status = copy_side_files(nib_checkpoint_path(plan->source->checkpoint), folder, err);
    if (status == NIB_OK)
        status = nib_plan_config(plan, &config, err);
    if (status == NIB_OK)
        status = write_json(folder, "config.json", config, err);
    json_decref(index);
    json_decref(config);
    return status;
}
