#include "nibble/tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/map.h"
#include "base/path.h"
#include "text/tokenizer_parts.h"

#define FILE_LIMIT ((size_t)1 << 30) // offsets into the pool are 32 bits wide; files in use have at most 40 MB

nib_status nib_tokenizer_open_memory(struct nib_tokenizer **tokenizer, const void *bytes, size_t size,
                                     const char *name, const struct nib_tokenizer_preset *preset,
                                     struct nib_error *err)
{
    *tokenizer = NULL;
    struct nib_error unwanted;
    if (!err) // the readers below add context to what is in it
        err = &unwanted;
    if (size > FILE_LIMIT)
        return nib_fail(err, NIB_ERR_LIMIT, "%s: %zu bytes, the limit is %zu", name, size, FILE_LIMIT);
    struct nib_tokenizer *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "a tokenizer");
    nib_status status = preset ? nib_tokenizer_read_ranks(opened, bytes, size, preset, err)
                               : nib_tokenizer_read_json(opened, bytes, size, err);
    for (size_t i = 0; status == NIB_OK && i < 2; i++)
        status = nib_added_set_sort(&opened->added[i], &opened->vocab, err);
    if (status != NIB_OK) {
        nib_tokenizer_close(opened);
        nib_fail_context(err, "%s", name);
        return status;
    }
    *tokenizer = opened;
    return NIB_OK;
}

void nib_tokenizer_close(struct nib_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    nib_vocab_free(&tokenizer->vocab);
    for (size_t i = 0; i < 2; i++)
        free(tokenizer->added[i].tokens);
    for (size_t i = 0; i < tokenizer->stage_count; i++)
        pcre2_code_free(tokenizer->stages[i].code);
    free(tokenizer);
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), tail = strlen(suffix);
    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

static bool is_rank_file(const char *path)
{
    return has_suffix(path, ".tiktoken") || strcmp(nib_path_base(path), "tiktoken.model") == 0;
}

// The name of the one *.tiktoken in the folder; empty when there is none, NIB_ERR_ARGUMENT when there are several.
static nib_status find_rank_file(const char *folder, char name[static NAME_MAX + 1], struct nib_error *err)
{
    name[0] = '\0';
    DIR *entries = opendir(folder);
    if (!entries)
        return nib_fail(err, NIB_ERR_IO, "%s: %s", folder, strerror(errno));
    nib_status status = NIB_OK;
    for (struct dirent *entry; status == NIB_OK && (entry = readdir(entries));) {
        if (!has_suffix(entry->d_name, ".tiktoken"))
            continue;
        if (name[0])
            status = nib_fail(err, NIB_ERR_ARGUMENT, "%s: both %s and %s are rank files, name one of them", folder,
                              name, entry->d_name);
        else
            snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    closedir(entries);
    return status;
}

// The tokenizer's file at `path`, in new memory.
static nib_status find_file(const char *path, char **file, struct nib_error *err)
{
    struct stat status;
    char name[NAME_MAX + 1];
    if (stat(path, &status) != 0)
        return nib_fail(err, errno == ENOENT || errno == ENOTDIR ? NIB_ERR_NOT_FOUND : NIB_ERR_IO, "%s: %s", path,
                        strerror(errno));
    *file = S_ISDIR(status.st_mode) ? nib_path_join(path, "tokenizer.json") : strdup(path);
    if (!*file)
        return nib_fail_memory(err, strlen(path), "a path");
    if (!S_ISDIR(status.st_mode) || nib_path_exists(*file))
        return NIB_OK;
    free(*file);
    *file = NULL;
    nib_status found = find_rank_file(path, name, err);
    if (found != NIB_OK)
        return found;
    *file = nib_path_join(path, name[0] ? name : "tiktoken.model");
    if (!*file)
        return nib_fail_memory(err, strlen(path), "a path");
    return nib_path_exists(*file)
               ? NIB_OK
               : nib_fail(err, NIB_ERR_NOT_FOUND,
                          "%s: no tokenizer.json, *.tiktoken or tiktoken.model in this folder", path);
}

// Kimi's preset with the special tokens that a tokenizer_config.json beside the rank file names; `specials` is for the
// caller to free.
static nib_status kimi_preset(const char *file, struct nib_tokenizer_preset *preset,
                              struct nib_named_token **specials, struct nib_error *err)
{
    struct nib_map map = {0};
    size_t count = 0, folder = strlen(file) - strlen(nib_path_base(file));
    char *config = malloc(folder + sizeof "tokenizer_config.json");
    *preset = *nib_tokenizer_preset_find("kimi_k2");
    if (!config)
        return nib_fail_memory(err, folder, "a path");
    memcpy(config, file, folder);
    strcpy(config + folder, "tokenizer_config.json");
    nib_status status = nib_path_exists(config) ? nib_map_open(&map, config, err) : NIB_OK;
    if (status == NIB_OK && map.data)
        status =
            nib_tokenizer_read_specials((const char *)map.data, (size_t)map.size, config, specials, &count, err);
    if (*specials) {
        preset->specials = *specials;
        preset->special_count = count;
    }
    nib_map_close(&map);
    free(config);
    return status;
}

// A rank file without a preset: by its name.
static nib_status choose_preset(const char *file, struct nib_tokenizer_preset *preset,
                                struct nib_named_token **specials, struct nib_error *err)
{
    if (strcmp(nib_path_base(file), "tiktoken.model") == 0)
        return kimi_preset(file, preset, specials, err);
    if (strncmp(nib_path_base(file), "o200k", 5) != 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: a rank file has no split pattern, it needs a preset", file);
    *preset = *nib_tokenizer_preset_find("o200k_harmony");
    return NIB_OK;
}

nib_status nib_tokenizer_open(struct nib_tokenizer **tokenizer, const char *path,
                              const struct nib_tokenizer_preset *preset, struct nib_error *err)
{
    *tokenizer = NULL;
    char *file = NULL;
    struct nib_map map = {0};
    struct nib_tokenizer_preset chosen;
    struct nib_named_token *specials = NULL;
    nib_status status = find_file(path, &file, err);
    bool ranks = file && is_rank_file(file);
    if (status == NIB_OK && ranks && !preset) {
        status = choose_preset(file, &chosen, &specials, err);
        preset = &chosen;
    }
    if (status == NIB_OK)
        status = nib_map_open(&map, file, err);
    if (status == NIB_OK)
        status =
            nib_tokenizer_open_memory(tokenizer, map.data, (size_t)map.size, file, ranks ? preset : NULL, err);
    nib_map_close(&map);
    free(specials);
    free(file);
    return status;
}

static bool is_used(const struct nib_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->vocab.size && tokenizer->vocab.tokens[id].flags != 0;
}

int32_t nib_tokenizer_vocab_size(const struct nib_tokenizer *tokenizer)
{
    return tokenizer->vocab.size;
}

const uint8_t *nib_tokenizer_token_bytes(const struct nib_tokenizer *tokenizer, int32_t id, size_t *size)
{
    bool used = is_used(tokenizer, id);
    *size = used ? tokenizer->vocab.tokens[id].size : 0;
    return used ? nib_vocab_bytes(&tokenizer->vocab, id) : NULL;
}

int32_t nib_tokenizer_find_added(const struct nib_tokenizer *tokenizer, const char *text)
{
    size_t size = strlen(text);
    for (size_t i = 0; i < 2; i++) {
        const struct nib_added_token *token =
            nib_added_set_match(&tokenizer->added[i], &tokenizer->vocab, (const uint8_t *)text, size);
        if (token && token->size == size)
            return token->id;
    }
    return -1;
}

bool nib_tokenizer_is_special(const struct nib_tokenizer *tokenizer, int32_t id)
{
    return is_used(tokenizer, id) && (tokenizer->vocab.tokens[id].flags & NIB_TOKEN_SPECIAL);
}

static nib_status fail_unused(const struct nib_tokenizer *tokenizer, int32_t id, struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_ARGUMENT, "no token has the id %d (the vocabulary ends at %d)", id,
                    tokenizer->vocab.size);
}

nib_status nib_tokenizer_decode(const struct nib_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                struct nib_bytes *out, struct nib_error *err)
{
    size_t before = out->size, size;
    nib_status status = NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < count; i++) {
        const uint8_t *bytes = nib_tokenizer_token_bytes(tokenizer, ids[i], &size);
        status = bytes ? nib_bytes_append(out, bytes, size, err) : fail_unused(tokenizer, ids[i], err);
    }
    if (status != NIB_OK) {
        out->size = before;
        if (out->data)
            out->data[before] = '\0';
    }
    return status;
}

nib_status nib_utf8_stream_push_token(struct nib_utf8_stream *stream, const struct nib_tokenizer *tokenizer,
                                      int32_t id, struct nib_bytes *out, struct nib_error *err)
{
    size_t size;
    const uint8_t *bytes = nib_tokenizer_token_bytes(tokenizer, id, &size);
    return bytes ? nib_utf8_stream_push(stream, bytes, size, out, err) : fail_unused(tokenizer, id, err);
}
