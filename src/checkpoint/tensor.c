#include <inttypes.h>
#include <stdio.h>

#include "nibble/checkpoint.h"

int64_t nib_tensor_elements(const struct nib_tensor *tensor)
{
    return (int64_t)(tensor->bytes / nib_dtype_size(tensor->dtype));
}

const char *nib_tensor_describe(const struct nib_tensor *tensor, char *text, size_t capacity)
{
    int at = snprintf(text, capacity, "%s [", nib_dtype_name(tensor->dtype));
    for (int i = 0; i < tensor->rank && at >= 0 && (size_t)at < capacity; i++)
        at += snprintf(text + at, capacity - (size_t)at, i ? ", %" PRId64 : "%" PRId64, tensor->shape[i]);
    if (at >= 0 && (size_t)at < capacity)
        snprintf(text + at, capacity - (size_t)at, "]");
    return text;
}
