#include "checkpoint/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/json.h"

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER = 100000000, // the reference reader's limit
    MAX_DEPTH = 4,          // header, tensor, shape: and one to spare
    MAX_NAME = 1024,
};

static uint64_t read_u64(const uint8_t *bytes /* [8] little-endian */)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static bool find_dtype(const char *name, enum nib_dtype *dtype)
{
    for (int d = 0; d < NIB_DTYPE_COUNT; d++) {
        if (strcmp(name, nib_dtype_name((enum nib_dtype)d)) == 0) {
            *dtype = (enum nib_dtype)d;
            return true;
        }
    }
    return false;
}

static nib_status check_name(const char *name, const char *path, struct nib_error *err)
{
    size_t length = strlen(name);
    if (length == 0 || length > MAX_NAME)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: a tensor name of %zu bytes (1 to %d are accepted)", path, length,
                        MAX_NAME);
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor name \"%s\" contains the control byte 0x%02x", path,
                            name, (unsigned)(unsigned char)*p);
    return NIB_OK;
}

static nib_status read_shape(struct nib_tensor *tensor, const json_t *shape, struct nib_error *err)
{
    if (!json_is_array(shape))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: no \"shape\" array", tensor->file, tensor->name);
    size_t rank = json_array_size(shape);
    if (rank > NIB_TENSOR_MAX_RANK)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %zu dimensions, at most %d are accepted", tensor->file,
                        tensor->name, rank, NIB_TENSOR_MAX_RANK);
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent))
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: shape[%zu] is not an integer", tensor->file,
                            tensor->name, i);
        tensor->shape[i] = json_integer_value(extent);
        if (tensor->shape[i] < 0)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: shape[%zu] is %lld", tensor->file, tensor->name, i,
                            (long long)tensor->shape[i]);
    }
    return NIB_OK;
}

// Elements are counted with every extent at least 1, so that [0, 2^62, 2^62] overflows like its neighbours and any
// product of some of the extents is safe later on.
static nib_status shape_bytes(const struct nib_tensor *tensor, uint64_t *bytes, struct nib_error *err)
{
    uint64_t product = nib_dtype_size(tensor->dtype);
    bool empty = false;
    for (int i = 0; i < tensor->rank; i++) {
        uint64_t extent = (uint64_t)tensor->shape[i];
        empty = empty || extent == 0;
        if (!nib_mul_u64(product, extent ? extent : 1, &product) || product > INT64_MAX)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: the shape's size in bytes overflows", tensor->file,
                            tensor->name);
    }
    *bytes = empty ? 0 : product;
    return NIB_OK;
}

static nib_status read_offsets(const struct nib_tensor *tensor, const json_t *offsets, uint64_t data_size,
                               uint64_t *begin, uint64_t *end, struct nib_error *err)
{
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: \"data_offsets\" is not two integers", tensor->file,
                        tensor->name);
    long long low = json_integer_value(first), high = json_integer_value(second);
    if (low < 0 || high < low)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: data_offsets [%lld, %lld] are not a range", tensor->file,
                        tensor->name, low, high);
    if ((uint64_t)high > data_size)
        return nib_fail(err, NIB_ERR_FORMAT,
                        "%s: %s: data_offsets [%lld, %lld] reach past the %llu bytes of data in the file (is it "
                        "truncated?)",
                        tensor->file, tensor->name, low, high, (unsigned long long)data_size);
    *begin = (uint64_t)low;
    *end = (uint64_t)high;
    return NIB_OK;
}

static nib_status read_tensor(struct nib_tensor *tensor, const json_t *entry, const uint8_t *data,
                              uint64_t data_size, struct nib_error *err)
{
    if (!json_is_object(entry))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: its header entry is not an object", tensor->file,
                        tensor->name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: no \"dtype\" string", tensor->file, tensor->name);
    if (!find_dtype(dtype, &tensor->dtype))
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: %s: unknown element type \"%.40s\"", tensor->file,
                        tensor->name, dtype);
    nib_status status = read_shape(tensor, json_object_get(entry, "shape"), err);
    if (status == NIB_OK)
        status = shape_bytes(tensor, &tensor->bytes, err);
    uint64_t begin = 0, end = 0;
    if (status == NIB_OK)
        status = read_offsets(tensor, json_object_get(entry, "data_offsets"), data_size, &begin, &end, err);
    if (status != NIB_OK)
        return status;
    if (end - begin != tensor->bytes) {
        char text[200];
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s is %llu bytes but data_offsets [%llu, %llu] span %llu",
                        tensor->file, tensor->name, nib_tensor_describe(tensor, text, sizeof text),
                        (unsigned long long)tensor->bytes, (unsigned long long)begin, (unsigned long long)end,
                        (unsigned long long)(end - begin));
    }
    tensor->data = data + begin;
    return NIB_OK;
}

static int compare_position(const void *a, const void *b)
{
    const struct nib_tensor *left = a, *right = b;
    if (left->data != right->data)
        return left->data < right->data ? -1 : 1;
    // An empty tensor lies before the one that begins where it ends.
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

// Sorts by position; then each tensor has to begin where the one before ended.
static nib_status check_tiling(struct nib_safetensors *file, const uint8_t *data, uint64_t data_size,
                               struct nib_error *err)
{
    if (file->count)
        qsort(file->tensors, file->count, sizeof *file->tensors, compare_position);
    uint64_t end = 0;
    const char *before = "the header";
    for (size_t i = 0; i < file->count; i++) {
        const struct nib_tensor *tensor = &file->tensors[i];
        uint64_t begin = (uint64_t)((const uint8_t *)tensor->data - data);
        if (begin < end)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s begins at %llu and overlaps %s, which ends at %llu",
                            tensor->file, tensor->name, (unsigned long long)begin, before,
                            (unsigned long long)end);
        if (begin > end)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: a hole of %llu bytes between %s and %s", tensor->file,
                            (unsigned long long)(begin - end), before, tensor->name);
        end = begin + tensor->bytes;
        before = tensor->name;
    }
    if (end != data_size)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %llu bytes after the last tensor", file->map.path,
                        (unsigned long long)(data_size - end));
    return NIB_OK;
}

static nib_status check_metadata(const json_t *metadata, const char *path, struct nib_error *err)
{
    if (!metadata)
        return NIB_OK;
    if (!json_is_object(metadata))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: __metadata__ is not an object", path);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) if (!json_is_string(value)) return nib_fail(
        err, NIB_ERR_FORMAT, "%s: __metadata__ value \"%.100s\" is not a string", path, key);
    return NIB_OK;
}

// The parsed header is a hundred times what is kept of it, so the names move into one block and it can go.
static nib_status allocate_tensors(struct nib_safetensors *file, json_t *header, struct nib_error *err)
{
    size_t name_bytes = 1;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) name_bytes += strlen(name) + 1;
    size_t entries = json_object_size(header) + 1;
    file->tensors = calloc(entries, sizeof *file->tensors);
    file->names = malloc(name_bytes);
    if (!file->tensors || !file->names)
        return nib_fail_memory(err, entries * sizeof *file->tensors + name_bytes, "the list of tensors");
    return NIB_OK;
}

static nib_status read_tensors(struct nib_safetensors *file, json_t *header, uint64_t data_offset,
                               struct nib_error *err)
{
    const uint8_t *data = file->map.data + data_offset;
    uint64_t data_size = file->map.size - data_offset;
    file->metadata = json_incref(json_object_get(header, "__metadata__"));
    nib_status status = check_metadata(file->metadata, file->map.path, err);
    if (status == NIB_OK)
        status = allocate_tensors(file, header, err);
    if (status != NIB_OK)
        return status;
    char *next_name = file->names;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (entry == file->metadata)
            continue;
        status = check_name(name, file->map.path, err);
        if (status != NIB_OK)
            return status;
        struct nib_tensor *tensor = &file->tensors[file->count];
        *tensor = (struct nib_tensor){.name = next_name, .file = file->map.path};
        next_name = stpcpy(next_name, name) + 1;
        status = read_tensor(tensor, entry, data, data_size, err);
        if (status != NIB_OK)
            return status;
        file->count++;
    }
    return check_tiling(file, data, data_size, err);
}

// Well-formed files may begin a tensor at any byte; the rest of the library wants elements on their own boundary.
static nib_status align_tensors(struct nib_safetensors *file, struct nib_error *err)
{
    for (size_t i = 0; i < file->count; i++) {
        struct nib_tensor *tensor = &file->tensors[i];
        if (!tensor->bytes || (uintptr_t)tensor->data % nib_dtype_size(tensor->dtype) == 0)
            continue;
        if (!file->copies)
            file->copies = calloc(file->count, sizeof *file->copies);
        void *copy = file->copies ? malloc((size_t)tensor->bytes) : NULL;
        if (!copy)
            return nib_fail_memory(err, tensor->bytes, tensor->name);
        memcpy(copy, tensor->data, (size_t)tensor->bytes);
        file->copies[i] = copy;
        file->copied_bytes += tensor->bytes;
        tensor->data = copy;
    }
    return NIB_OK;
}

static nib_status read_file(struct nib_safetensors *file, struct nib_error *err)
{
    const char *path = file->map.path;
    if (file->map.size < LENGTH_BYTES)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %llu bytes are too few for a safetensors file", path,
                        (unsigned long long)file->map.size);
    uint64_t header = read_u64(file->map.data), room = file->map.size - LENGTH_BYTES;
    if (header > room)
        return nib_fail(err, NIB_ERR_FORMAT,
                        "%s: a header of %llu bytes does not fit a file of %llu (truncated, or not safetensors)",
                        path, (unsigned long long)header, (unsigned long long)file->map.size);
    if (header == 0 || file->map.data[LENGTH_BYTES] != '{')
        return nib_fail(err, NIB_ERR_FORMAT, "%s: not a safetensors file (the header does not begin with '{')",
                        path);
    json_t *json = NULL;
    nib_status status = nib_json_parse((const char *)file->map.data + LENGTH_BYTES, (size_t)header, path,
                                       MAX_HEADER, MAX_DEPTH, &json, err);
    if (status == NIB_OK)
        status = read_tensors(file, json, LENGTH_BYTES + header, err);
    json_decref(json);
    if (status == NIB_OK)
        status = align_tensors(file, err);
    return status;
}

nib_status nib_safetensors_open(struct nib_safetensors *file, const char *path, struct nib_error *err)
{
    *file = (struct nib_safetensors){0};
    nib_status status = nib_map_open(&file->map, path, err);
    if (status == NIB_OK)
        status = read_file(file, err);
    if (status != NIB_OK)
        nib_safetensors_close(file);
    return status;
}

void nib_safetensors_close(struct nib_safetensors *file)
{
    for (size_t i = 0; file->copies && i < file->count; i++)
        free(file->copies[i]);
    free(file->copies);
    free(file->tensors);
    free(file->names);
    json_decref(file->metadata);
    nib_map_close(&file->map);
    *file = (struct nib_safetensors){0};
}

const char *nib_safetensors_metadata(const struct nib_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}
