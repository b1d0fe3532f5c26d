#include "convert/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"

const char *const nib_part_names[NIB_PART_COUNT] = {"gate", "up", "down"};

// ---- Packed experts ----

static struct nib_matrix packed_matrix(int64_t rows, int64_t cols, int64_t stride, const uint8_t *codes,
                                       const uint8_t *scales, const void *bias, int64_t bias_bytes)
{
    return (struct nib_matrix){
        .rows = rows,
        .cols = cols,
        .dtype = NIB_U8,
        .data = codes,
        .row_stride = stride * (cols / 2),
        .scales = scales,
        .scale_stride = stride * (cols / NIB_MX_BLOCK),
        .scale_dtype = NIB_U8,
        .block_rows = 1,
        .block_cols = NIB_MX_BLOCK,
        .bias = bias,
        .bias_stride = stride * bias_bytes,
    };
}

static bool is_fused(enum nib_expert_layout layout)
{
    return layout == NIB_EXPERTS_GPT_OSS || layout == NIB_EXPERTS_GPT_OSS_ORIGINAL || layout == NIB_EXPERTS_FUSED;
}

static nib_status packed_group(struct nib_checkpoint *checkpoint, const struct nib_experts *experts,
                               struct nib_group *group, struct nib_error *err)
{
    const struct nib_moe_weights *weights = &experts->weights;
    size_t bytes = (size_t)weights->n_experts * sizeof *group->experts;
    *group = (struct nib_group){
        .prefix = experts->prefix,
        .hidden = weights->hidden,
        .intermediate = weights->intermediate,
        .n_experts = weights->n_experts,
        .packed = true,
        .fused = is_fused(experts->layout),
        .interleaved = experts->interleaved,
        .has_bias = weights->experts[0].gate_bias != NULL,
        .bias_dtype = weights->bias_dtype,
        .experts = nib_checkpoint_allocate(checkpoint, bytes),
        .first = experts->weight,
        .bytes = experts->bytes,
    };
    if (!group->experts)
        return nib_fail_memory(err, bytes, "a layer's experts");
    int64_t hidden = group->hidden, intermediate = group->intermediate, stride = weights->gate_up_row_stride;
    int64_t bias_bytes = (int64_t)nib_dtype_size(group->bias_dtype);
    for (int64_t e = 0; e < group->n_experts; e++) {
        const struct nib_expert *x = &weights->experts[e];
        struct nib_matrix *parts = group->experts[e];
        parts[NIB_PART_GATE] =
            packed_matrix(intermediate, hidden, stride, x->gate, x->gate_scales, x->gate_bias, bias_bytes);
        parts[NIB_PART_UP] =
            packed_matrix(intermediate, hidden, stride, x->up, x->up_scales, x->up_bias, bias_bytes);
        parts[NIB_PART_DOWN] =
            packed_matrix(hidden, intermediate, 1, x->down, x->down_scales, x->down_bias, bias_bytes);
    }
    return NIB_OK;
}

// ---- Opening ----

static nib_status read_group(struct nib_checkpoint *checkpoint, const char *prefix, bool floats, bool interleaved,
                             struct nib_group *group, struct nib_error *err)
{
    struct nib_experts experts;
    struct nib_error own;
    nib_status status = nib_checkpoint_experts(checkpoint, prefix, interleaved, &experts, &own);
    if (status == NIB_OK)
        return packed_group(checkpoint, &experts, group, err);
    if (floats && (status == NIB_ERR_UNSUPPORTED || status == NIB_ERR_NOT_FOUND))
        return nib_source_float_group(checkpoint, prefix, group, err);
    return nib_fail(err, status, "%s", own.message);
}

static nib_status read_groups(struct nib_source *source, bool floats, bool interleaved, struct nib_error *err)
{
    const char *const *prefixes;
    size_t count;
    nib_status status = nib_checkpoint_expert_prefixes(source->checkpoint, &prefixes, &count, err);
    if (status != NIB_OK)
        return status;
    source->groups = calloc(count + 1, sizeof *source->groups);
    if (!source->groups)
        return nib_fail_memory(err, (count + 1) * sizeof *source->groups, "a list of layers");
    for (size_t i = 0; status == NIB_OK && i < count; i++) {
        status = read_group(source->checkpoint, prefixes[i], floats, interleaved, &source->groups[i], err);
        if (status == NIB_OK)
            source->n_groups++;
    }
    return status;
}

static nib_status read_order(struct nib_source *source, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = source->checkpoint;
    source->order = calloc(checkpoint->count + 1, sizeof *source->order);
    if (!source->order)
        return nib_fail_memory(err, (checkpoint->count + 1) * sizeof *source->order, "a list of tensors");
    size_t next = 0;
    for (size_t f = 0; f < checkpoint->file_count; f++)
        for (size_t i = 0; i < checkpoint->files[f].count; i++)
            source->order[next++] = nib_checkpoint_lower_bound(checkpoint, checkpoint->files[f].tensors[i].name);
    return NIB_OK;
}

nib_status nib_source_open(const char *path, bool floats, bool interleaved, struct nib_source *source,
                           struct nib_error *err)
{
    *source = (struct nib_source){0};
    nib_status status = nib_checkpoint_open(path, &source->checkpoint, err);
    if (status == NIB_OK)
        status = read_order(source, err);
    if (status == NIB_OK)
        status = read_groups(source, floats, interleaved, err);
    if (status != NIB_OK)
        nib_source_close(source);
    return status;
}

void nib_source_close(struct nib_source *source)
{
    free(source->order);
    free(source->groups);
    nib_checkpoint_close(source->checkpoint);
    *source = (struct nib_source){0};
}

// ---- Dense matrices and values ----

struct nib_matrix nib_source_linear(const struct nib_linear_view *view)
{
    int64_t element = view->kind == NIB_LINEAR_MXFP4 ? 0 : (int64_t)nib_dtype_size(view->weight->dtype);
    enum nib_dtype scale = view->scale ? view->scale->dtype : NIB_U8;
    if (scale == NIB_F8_E8M0)
        scale = NIB_U8;
    return (struct nib_matrix){
        .rows = view->rows,
        .cols = view->cols,
        .dtype = view->kind == NIB_LINEAR_MXFP4 ? NIB_U8 : view->weight->dtype,
        .data = view->weight->data,
        .row_stride = element ? view->cols * element : view->cols / 2,
        .col_stride = element,
        .scales = view->scale ? view->scale->data : NULL,
        .scale_stride = view->scale_cols * (int64_t)nib_dtype_size(scale),
        .scale_dtype = scale,
        .block_rows = view->block_rows,
        .block_cols = view->block_cols,
    };
}

static float scale_value(const struct nib_matrix *matrix, int64_t r, int64_t c)
{
    const uint8_t *row = matrix->scales + r / matrix->block_rows * matrix->scale_stride;
    int64_t block = c / matrix->block_cols;
    uint16_t half;
    float value;
    switch (matrix->scale_dtype) {
    case NIB_F32:
        memcpy(&value, row + block * 4, sizeof value);
        return value;
    case NIB_BF16:
        memcpy(&half, row + block * 2, sizeof half);
        return nib_bf16_to_f32(half);
    default:
        return nib_e8m0_to_f32(row[block]);
    }
}

static float element_value(const uint8_t *at, enum nib_dtype dtype)
{
    return nib_dtype_is_plain(dtype) ? nib_float_at(at, dtype, 0) : nib_e4m3_to_f32(*at);
}

void nib_matrix_values(const struct nib_matrix *matrix, int64_t r, int64_t c, int64_t count, double *values)
{
    const uint8_t *row = matrix->data + r * matrix->row_stride;
    for (int64_t i = 0; i < count; i++) {
        int64_t col = c + i;
        if (matrix->dtype == NIB_U8)
            values[i] = (double)nib_e2m1_to_f32((uint8_t)(row[col / 2] >> (col % 2 * 4)));
        else
            values[i] = (double)element_value(row + col * matrix->col_stride, matrix->dtype);
        if (matrix->scales)
            values[i] *= (double)scale_value(matrix, r, col);
    }
}

// ---- Fingerprint ----

static uint64_t mix(uint64_t hash, const void *bytes, size_t size) // FNV-1a
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t mix_number(uint64_t hash, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
    return mix(hash, bytes, sizeof bytes);
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    return mix(hash, text, strlen(text) + 1);
}

uint64_t nib_source_fingerprint(const struct nib_source *source)
{
    enum { SAMPLES = 256, SAMPLE_BYTES = 64 };
    const struct nib_checkpoint *checkpoint = source->checkpoint;
    uint64_t hash = 0xcbf29ce484222325u;
    size_t step = checkpoint->count / SAMPLES + 1;
    for (size_t i = 0; i < checkpoint->count; i++) {
        const struct nib_tensor *tensor = &checkpoint->tensors[i];
        hash = mix_text(hash, tensor->name);
        hash = mix_number(hash, tensor->dtype);
        hash = mix_number(hash, (uint64_t)tensor->rank);
        for (int d = 0; d < tensor->rank; d++)
            hash = mix_number(hash, (uint64_t)tensor->shape[d]);
        // Fine-tunes of one model differ in nothing but their weights.
        if (i % step == 0)
            hash = mix(hash, tensor->data, tensor->bytes < SAMPLE_BYTES ? (size_t)tensor->bytes : SAMPLE_BYTES);
    }
    char *config = checkpoint->config ? json_dumps(nib_config_json(checkpoint->config), JSON_COMPACT) : NULL;
    hash = mix_text(hash, config ? config : "");
    free(config);
    return hash;
}

// ---- Pages and places ----

void nib_prefetch(const struct nib_checkpoint *checkpoint, const void *address, uint64_t bytes)
{
    for (size_t f = 0; f < checkpoint->file_count; f++) {
        const struct nib_map *map = &checkpoint->files[f].map;
        uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)map->data);
        if (offset < map->size)
            nib_map_advise(map, offset, bytes, NIB_MAP_WILL_NEED);
    }
}

void nib_release_pages(const struct nib_checkpoint *checkpoint)
{
    for (size_t f = 0; f < checkpoint->file_count; f++)
        nib_map_advise(&checkpoint->files[f].map, 0, checkpoint->files[f].map.size, NIB_MAP_DONT_NEED);
}

nib_status nib_source_fail_row(const struct nib_source *source, const void *address, nib_status status,
                               const char *what, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = source->checkpoint;
    for (size_t i = 0; i < checkpoint->count; i++) {
        const struct nib_tensor *tensor = &checkpoint->tensors[i];
        uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)tensor->data);
        if (offset >= tensor->bytes)
            continue;
        // Rows are the second dimension of what is stacked by experts, the first of a matrix.
        int rows_at = tensor->rank >= 3 ? 1 : 0;
        uint64_t rows = tensor->rank ? (uint64_t)tensor->shape[rows_at] : 1;
        uint64_t experts = rows_at ? (uint64_t)tensor->shape[0] : 1;
        uint64_t row = offset / (tensor->bytes / (rows * experts));
        char expert[40] = "";
        if (rows_at)
            snprintf(expert, sizeof expert, "expert %llu, ", (unsigned long long)(row / rows));
        return nib_fail(err, status, "%s: %s: %srow %llu: %s", tensor->file, tensor->name, expert,
                        (unsigned long long)(row % rows), what);
    }
    return nib_fail(err, status, "%s: %s", checkpoint->path, what);
}
