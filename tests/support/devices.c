#include "support/devices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void *checked_alloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    if (!p)
        die("test", "out of memory");
    return p;
}

struct test_device test_device_open(const struct nib_ops *ops, int threads, int32_t max_tokens,
                                    const struct nib_scratch_query *query)
{
    struct nib_device_options options = {.threads = threads, .max_tokens = max_tokens, .max_sequences = 64};
    struct test_device opened = {.ops = ops};
    struct nib_error err;
    if (ops->open(&options, query, &opened.device, &err))
        die(ops->name, err.message);
    return opened;
}

void test_device_close(struct test_device *device)
{
    device->ops->close(device->device);
    device->device = NULL;
}

struct nib_buffer test_buffer(const struct test_device *device, int64_t rows, int64_t width, const float *values)
{
    struct nib_buffer buffer;
    struct nib_error err;
    if (device->ops->alloc_buffer(device->device, rows, width, &buffer, &err))
        die(device->ops->name, err.message);
    if (values)
        memcpy(buffer.data, values, (size_t)(rows * width) * sizeof *values);
    return buffer;
}

float test_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*seed >> 32) / 2147483648.0f;
}

float *test_random_values(int64_t n, float scale, int bf16, uint64_t seed)
{
    float *values = checked_alloc((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        values[i] = test_random(&seed) * scale;
        if (bf16)
            values[i] = nib_bf16_to_f32(nib_bf16_from_f32(values[i]));
    }
    return values;
}

double test_rms_difference(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) != isnan(b[i]))
            return INFINITY;
        if (!isnan(b[i]))
            sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum / (double)n);
}

double test_rel_l2(const float *a, const float *b, int64_t n)
{
    double size = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(b[i]))
            size += (double)b[i] * (double)b[i];
    return test_rms_difference(a, b, n) / sqrt(size > 0 ? size / (double)n : 1);
}

struct test_step test_step_make(int32_t page_tokens, int32_t n_sequences, const int32_t *first,
                                const int32_t *count)
{
    int32_t tokens = 0, width = 1;
    for (int32_t s = 0; s < n_sequences; s++) {
        int32_t pages = (first[s] + count[s] + page_tokens - 1) / page_tokens;
        tokens += count[s];
        width = pages > width ? pages : width;
    }
    int32_t *token_ids = checked_alloc((size_t)tokens, 4), *positions = checked_alloc((size_t)tokens, 4);
    int32_t *sequence_of = checked_alloc((size_t)tokens, 4), *rows = checked_alloc((size_t)n_sequences + 1, 4);
    int32_t *tables = checked_alloc((size_t)(n_sequences * width), 4),
            *outputs = checked_alloc((size_t)n_sequences, 4);
    for (int32_t s = 0, t = 0; s < n_sequences; s++) {
        for (int32_t i = 0; i < count[s]; i++, t++) {
            token_ids[t] = t;
            positions[t] = first[s] + i;
            sequence_of[t] = s;
        }
        rows[s + 1] = t;
        outputs[s] = t - 1;
    }
    // Page p of sequence s lies at a place that jumps about, and no two share one: columns in reverse, sequences between.
    for (int32_t s = 0; s < n_sequences; s++)
        for (int32_t p = 0; p < width; p++)
            tables[s * width + p] = (width - 1 - p) * n_sequences + s;
    struct nib_step step = {
        .n_tokens = tokens,
        .n_sequences = n_sequences,
        .n_outputs = n_sequences,
        .page_tokens = page_tokens,
        .n_groups = 1,
        .table_width = width,
        .tokens = token_ids,
        .positions = positions,
        .sequence_of = sequence_of,
        .first_row = rows,
        .page_tables = tables,
        .output_rows = outputs,
    };
    return (struct test_step){step, (int64_t)width * n_sequences};
}

void test_step_free_pages(struct test_step *step, int32_t sequence, int32_t position)
{
    int32_t *table = (int32_t *)step->step.page_tables + sequence * step->step.table_width;
    for (int32_t p = 0; (p + 1) * step->step.page_tokens <= position; p++)
        table[p] = -1;
}

void test_step_free(struct test_step *step)
{
    free((void *)step->step.tokens);
    free((void *)step->step.positions);
    free((void *)step->step.sequence_of);
    free((void *)step->step.first_row);
    free((void *)step->step.page_tables);
    free((void *)step->step.output_rows);
}
