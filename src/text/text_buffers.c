#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nibble/tokenizer.h"

void nib_bytes_free(struct nib_bytes *out)
{
    free(out->data);
    *out = (struct nib_bytes){0};
}

nib_status nib_bytes_append(struct nib_bytes *out, const void *bytes, size_t size, struct nib_error *err)
{
    if (size >= SIZE_MAX / 4 - out->size)
        return nib_fail_memory(err, size, "text");
    size_t needed = out->size + size + 1;
    if (needed > out->capacity) {
        size_t capacity = needed < 64 ? 64 : needed + needed / 2;
        char *data = realloc(out->data, capacity);
        if (!data)
            return nib_fail_memory(err, capacity, "text");
        out->data = data;
        out->capacity = capacity;
    }
    if (size > 0)
        memcpy(out->data + out->size, bytes, size);
    out->size += size;
    out->data[out->size] = '\0';
    return NIB_OK;
}

void nib_token_list_free(struct nib_token_list *list)
{
    free(list->ids);
    *list = (struct nib_token_list){0};
}

nib_status nib_token_list_add(struct nib_token_list *list, int32_t id, struct nib_error *err)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity < 64 ? 64 : list->capacity + list->capacity / 2;
        int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (!ids)
            return nib_fail_memory(err, capacity * sizeof *ids, "token ids");
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->count++] = id;
    return NIB_OK;
}
