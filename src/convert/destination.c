#include "convert/destination.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/path.h"
#include "convert/file_writer.h"
#include "convert/stream.h"

// ---- The folder ----

static bool same_place(const char *one, const char *other)
{
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool is_empty(const char *folder)
{
    DIR *dir = opendir(folder);
    bool empty = true;
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        empty &= entry->d_name[0] == '.' && (!entry->d_name[1] || strcmp(entry->d_name, "..") == 0);
    if (dir)
        closedir(dir);
    return empty;
}

static nib_status check_folder(const char *source, const char *destination,
                               const struct nib_convert_options *options, struct nib_error *err)
{
    if (!*destination)
        return nib_fail(err, NIB_ERR_ARGUMENT, "the path of the destination is empty");
    if (mkdir(destination, 0777) != 0 && errno != EEXIST)
        return nib_fail(err, NIB_ERR_IO, "%s: cannot make the folder: %s", destination, strerror(errno));
    struct stat info;
    if (stat(destination, &info) != 0 || !S_ISDIR(info.st_mode))
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: is not a folder", destination);
    char *copy = strdup(source);
    if (!copy)
        return nib_fail_memory(err, strlen(source), "a file name");
    bool same = same_place(source, destination);
    if (stat(source, &info) == 0 && !S_ISDIR(info.st_mode)) {
        char *slash = strrchr(copy, '/');
        if (slash)
            slash[slash == copy] = 0;
        same |= same_place(slash ? copy : ".", destination);
    }
    free(copy);
    if (same)
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: the destination is the source", destination);
    if (!options->resume && !options->merge && options->shards == 0 && !is_empty(destination))
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "%s: not empty; --resume goes on with an interrupted conversion, nothing else is touched",
                        destination);
    return NIB_OK;
}

// ---- Whose conversion it is ----

// While a conversion is unfinished its folder holds this file, which says of what source and with what options. Runs that
// go on with it, and shards on other machines, have to agree.
static const char claim_name[] = ".nibble-conversion";

static void describe(const struct nib_plan *plan, char *text, size_t capacity)
{
    const struct nib_convert_options *o = &plan->options;
    int used = snprintf(text, capacity,
                        "%s of %016llx: names %d, row order %d%d, dense %d, rule %d, fused %d, files %llu",
                        nib_form_name(o->form), (unsigned long long)nib_source_fingerprint(plan->source), o->names,
                        o->gate_up_concatenated, o->source_interleaved, o->dense_bf16, o->scale_rule, o->fused,
                        (unsigned long long)o->max_file_bytes);
    for (size_t i = 0; i < o->n_dtype_map && used >= 0 && (size_t)used < capacity; i++)
        used += snprintf(text + used, capacity - (size_t)used, " %s", o->dtype_map[i]);
}

// Shards that start together write the same words, each into a file of its own first.
static nib_status write_claim(const char *folder, const char *path, const char *text, struct nib_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "%s-%ld", claim_name, (long)getpid());
    nib_status status = nib_file_write(folder, name, text, strlen(text), err);
    char *own = status == NIB_OK ? nib_path_join(folder, name) : NULL;
    if (status == NIB_OK && (!own || rename(own, path) != 0))
        status = nib_fail(err, NIB_ERR_IO, "%s: cannot rename: %s", name, strerror(errno));
    free(own);
    return status;
}

static nib_status claim_folder(const struct nib_plan *plan, const char *folder, struct nib_error *err)
{
    char text[8192];
    describe(plan, text, sizeof text);
    char *path = nib_path_join(folder, claim_name);
    if (!path)
        return nib_fail_memory(err, strlen(folder), "a file name");
    struct nib_map map = {0};
    nib_status status = nib_path_exists(path) ? NIB_OK : write_claim(folder, path, text, err);
    if (status == NIB_OK)
        status = nib_map_open(&map, path, err);
    if (status == NIB_OK && (map.size != strlen(text) || memcmp(map.data, text, map.size) != 0))
        status = nib_fail(err, NIB_ERR_ARGUMENT,
                          "%s: a conversion of another source or with other options was begun here", folder);
    nib_map_close(&map);
    free(path);
    return status;
}

nib_status nib_destination_prepare(const struct nib_plan *plan, const char *source, const char *destination,
                                   struct nib_error *err)
{
    nib_status status = check_folder(source, destination, &plan->options, err);
    return status == NIB_OK ? claim_folder(plan, destination, err) : status;
}

void nib_destination_finish(const char *folder)
{
    // Those of runs that were killed before they had renamed theirs too.
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, claim_name, strlen(claim_name)) == 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
}

// ---- Files of an earlier run ----

// A file has its name only when it is whole, so its header and size tell whether it is this plan's.
static nib_status is_finished(const struct nib_plan *plan, size_t file, const char *folder, bool *finished,
                              struct nib_error *err)
{
    *finished = false;
    uint8_t *header = NULL;
    uint64_t size;
    char *path = nib_path_join(folder, plan->files[file].name);
    if (!path)
        return nib_fail_memory(err, strlen(folder), "a file name");
    struct nib_map map = {0};
    nib_status status = NIB_OK;
    if (nib_path_exists(path)) {
        status = nib_plan_header(plan, file, &header, &size, err);
        if (status == NIB_OK)
            status = nib_map_open(&map, path, err);
        if (status == NIB_OK)
            *finished = map.size == size + plan->files[file].data_bytes && memcmp(map.data, header, size) == 0;
        if (status == NIB_OK && !*finished)
            status = nib_fail(err, NIB_ERR_ARGUMENT,
                              "%s: is there, but of another source or with other options; nothing is overwritten",
                              path);
    }
    nib_map_close(&map);
    free(header);
    free(path);
    return status;
}

static bool is_mine(const struct nib_convert_options *options, size_t file)
{
    if (options->shards == 0)
        return true;
    return (int64_t)(file % (size_t)options->shards) == options->shard - 1;
}

static nib_status write_file(struct nib_plan *plan, size_t file, const char *folder, struct nib_stream *stream,
                             struct nib_error *err)
{
    const struct nib_convert_options *options = &plan->options;
    bool finished;
    nib_status status = is_finished(plan, file, folder, &finished, err);
    if (status != NIB_OK)
        return status;
    if (finished && !options->resume && !options->merge)
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s/%s: is there already; --resume keeps it", folder,
                        plan->files[file].name);
    if (!finished && options->merge)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s/%s: is missing: its shard has not been converted", folder,
                        plan->files[file].name);
    if (!finished)
        return nib_stream_file(plan, file, folder, stream, err);
    plan->report.files_kept++;
    stream->done += plan->files[file].data_bytes;
    return NIB_OK;
}

nib_status nib_destination_fill(struct nib_plan *plan, const char *folder, struct nib_error *err)
{
    struct nib_stream stream = {.threads = plan->options.threads > 0 ? plan->options.threads : nib_thread_limit()};
    plan->report.buffer_bytes = nib_stream_memory(plan, stream.threads);
    for (size_t f = 0; f < plan->n_files; f++)
        stream.total += is_mine(&plan->options, f) ? plan->files[f].data_bytes : 0;
    nib_status status = NIB_OK;
    for (size_t f = 0; status == NIB_OK && f < plan->n_files; f++)
        if (is_mine(&plan->options, f))
            status = write_file(plan, f, folder, &stream, err);
    return status;
}
