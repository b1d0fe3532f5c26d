#include "server/api_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

enum { MAX_KEYS = 4096, LINE_BYTES = 8192 };

static nib_status add_key(struct nib_api_keys *keys, const char *key, struct nib_error *err)
{
    char **items = realloc(keys->items, (keys->count + 1) * sizeof *items);
    if (items)
        keys->items = items;
    char *copy = items ? strdup(key) : NULL;
    if (!copy)
        return nib_fail_memory(err, strlen(key), "an API key");
    keys->items[keys->count++] = copy;
    return NIB_OK;
}

nib_status nib_api_keys_read(struct nib_api_keys *keys, const char *path, struct nib_error *err)
{
    *keys = (struct nib_api_keys){0};
    FILE *file = fopen(path, "r");
    if (!file)
        return nib_fail(err, NIB_ERR_IO, "%s: the API keys cannot be read", path);
    char line[LINE_BYTES];
    nib_status status = NIB_OK;
    while (!status && fgets(line, sizeof line, file)) {
        char *key = line + strspn(line, " \t");
        bool whole = strchr(line, '\n') || feof(file);
        key[strcspn(key, " \t\r\n")] = 0;
        if (!whole)
            status = nib_fail(err, NIB_ERR_FORMAT, "%s: a line is longer than %d bytes, or no text", path,
                              LINE_BYTES - 2);
        else if (keys->count == MAX_KEYS)
            status = nib_fail(err, NIB_ERR_LIMIT, "%s: more than %d API keys", path, MAX_KEYS);
        else if (*key && *key != '#')
            status = add_key(keys, key, err);
    }
    if (!status && ferror(file))
        status = nib_fail(err, NIB_ERR_IO, "%s: the API keys cannot be read", path);
    if (!status && !keys->count)
        status = nib_fail(err, NIB_ERR_FORMAT, "%s: has no API key", path);
    fclose(file);
    if (status)
        nib_api_keys_free(keys);
    return status;
}

void nib_api_keys_free(struct nib_api_keys *keys)
{
    for (size_t i = 0; i < keys->count; i++)
        free(keys->items[i]);
    free(keys->items);
    *keys = (struct nib_api_keys){0};
}

// Depends on the lengths only.
static unsigned difference(const char *given, const char *key)
{
    size_t size = strlen(given), key_size = strlen(key);
    unsigned different = size != key_size;
    for (size_t i = 0; i < size; i++)
        different |= (unsigned)(unsigned char)given[i] ^ (unsigned)(unsigned char)key[i % key_size];
    return different;
}

bool nib_api_keys_accept(const struct nib_api_keys *keys, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    if (!keys->count)
        return true;
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    unsigned matches = 0;
    for (size_t i = 0; i < keys->count; i++)
        matches |= difference(authorization + sizeof scheme - 1, keys->items[i]) == 0;
    return matches != 0;
}
