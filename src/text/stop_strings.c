// The matching of Knuth, Morris and Pratt, for each string by itself: the longest state is what must be held back.
#include "text/stop_strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

nib_status nib_stop_strings_add(struct nib_stop_strings *stop, const char *bytes, size_t size,
                                struct nib_error *err)
{
    if (size < 1 || size > NIB_MAX_STOP_BYTES)
        return nib_fail(err, NIB_ERR_ARGUMENT, "a stop string of %zu bytes is not one of 1 to %d", size,
                        NIB_MAX_STOP_BYTES);
    if (stop->count == NIB_MAX_STOP_STRINGS)
        return nib_fail(err, NIB_ERR_ARGUMENT, "more than %d stop strings", NIB_MAX_STOP_STRINGS);
    struct nib_stop_string added = {
        .bytes = malloc(size), .failure = malloc(size * sizeof *added.failure), .size = size};
    if (!added.bytes || !added.failure) {
        free(added.bytes);
        free(added.failure);
        return nib_fail_memory(err, 3 * size, "a stop string");
    }
    memcpy(added.bytes, bytes, size);
    added.failure[0] = 0;
    for (size_t i = 1, border = 0; i < size; i++) {
        while (border && bytes[i] != bytes[border])
            border = added.failure[border - 1];
        border += bytes[i] == bytes[border];
        added.failure[i] = (uint16_t)border;
    }
    stop->items[stop->count++] = added;
    return NIB_OK;
}

// Takes one more byte of the text; true when the string is complete.
static bool advance(struct nib_stop_string *string, char byte)
{
    while (string->matched && string->bytes[string->matched] != byte)
        string->matched = string->failure[string->matched - 1];
    string->matched += string->bytes[string->matched] == byte;
    return string->matched == string->size;
}

// Moves all but the last `keep` held bytes to `out`.
static nib_status release(struct nib_stop_strings *stop, size_t keep, struct nib_bytes *out, struct nib_error *err)
{
    size_t size = stop->held.size - keep;
    if (size == 0)
        return NIB_OK;
    nib_status status = nib_bytes_append(out, stop->held.data, size, err);
    if (status)
        return status;
    memmove(stop->held.data, stop->held.data + size, keep);
    stop->held.size = keep;
    return NIB_OK;
}

nib_status nib_stop_strings_push(struct nib_stop_strings *stop, const char *bytes, size_t size,
                                 struct nib_bytes *out, bool *stopped, struct nib_error *err)
{
    *stopped = false;
    nib_status status = nib_bytes_append(&stop->held, bytes, size, err);
    if (status)
        return status;
    for (size_t i = 0; i < size; i++) {
        size_t longest = 0;
        for (size_t s = 0; s < stop->count; s++)
            if (advance(&stop->items[s], bytes[i]) && stop->items[s].size > longest)
                longest = stop->items[s].size;
        if (longest) {
            *stopped = true;
            status = release(stop, longest + (size - 1 - i), out, err);
            nib_stop_strings_reset(stop);
            return status;
        }
    }
    size_t keep = 0;
    for (size_t s = 0; s < stop->count; s++)
        if (stop->items[s].matched > keep)
            keep = stop->items[s].matched;
    return release(stop, keep, out, err);
}

nib_status nib_stop_strings_flush(struct nib_stop_strings *stop, struct nib_bytes *out, struct nib_error *err)
{
    nib_status status = release(stop, 0, out, err);
    nib_stop_strings_reset(stop);
    return status;
}

void nib_stop_strings_reset(struct nib_stop_strings *stop)
{
    stop->held.size = 0;
    for (size_t s = 0; s < stop->count; s++)
        stop->items[s].matched = 0;
}

void nib_stop_strings_free(struct nib_stop_strings *stop)
{
    for (size_t s = 0; s < stop->count; s++) {
        free(stop->items[s].bytes);
        free(stop->items[s].failure);
    }
    nib_bytes_free(&stop->held);
    memset(stop, 0, sizeof *stop);
}
