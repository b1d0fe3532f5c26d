#include "convert/stream.h"

#include <stdlib.h>

#include "base/error.h"
#include "convert/file_writer.h"
#include "convert/rows.h"

enum { ITEM_BYTES = 1 << 20, DEFAULT_EXPERTS = 8 };
#define MIN_CHUNK (UINT64_C(32) << 20)
#define MAX_CHUNK (UINT64_C(1) << 30)

// Rows of one unit, few enough that a core's cache holds what they become.
struct item {
    const struct nib_unit *unit;
    int64_t first, count;
};

struct chunk {
    struct item *items; /* [capacity] */
    struct nib_row_stats *stats;
    size_t count, capacity;
    uint64_t source_bytes, output_bytes;
};

// ---- Sizes ----

uint64_t nib_stream_chunk(const struct nib_plan *plan)
{
    uint64_t largest = 0, experts = plan->options.chunk_experts > 0 ? (uint64_t)plan->options.chunk_experts
                                                                    : (uint64_t)DEFAULT_EXPERTS;
    for (size_t g = 0; g < plan->source->n_groups; g++) {
        const struct nib_group *group = &plan->source->groups[g];
        uint64_t bytes = group->bytes / (uint64_t)group->n_experts;
        largest = bytes > largest ? bytes : largest;
    }
    uint64_t chunk = largest < MAX_CHUNK / experts ? experts * largest : MAX_CHUNK;
    return chunk < MIN_CHUNK ? MIN_CHUNK : chunk;
}

static uint64_t row_bytes(const struct nib_unit *unit)
{
    uint64_t bytes = 0;
    for (int o = 0; o < unit->n_outputs; o++)
        bytes += unit->outputs[o].row_bytes;
    return bytes;
}

// What one row brings to write, besides the tensors that come whole.
static uint64_t buffer_bytes(const struct nib_plan *plan)
{
    uint64_t most = ITEM_BYTES;
    for (size_t u = 0; u < plan->n_units; u++) {
        uint64_t bytes = row_bytes(&plan->units[u]);
        most = bytes > most ? bytes : most;
    }
    return most + 64;
}

uint64_t nib_stream_memory(const struct nib_plan *plan, int threads)
{
    return nib_stream_chunk(plan) + (uint64_t)threads * buffer_bytes(plan);
}

// ---- Items ----

static nib_status add_item(struct chunk *chunk, const struct nib_unit *unit, int64_t first, int64_t count,
                           struct nib_error *err)
{
    if (chunk->count == chunk->capacity) {
        size_t capacity = chunk->capacity ? 2 * chunk->capacity : 256;
        struct item *items = realloc(chunk->items, capacity * sizeof *items);
        if (items)
            chunk->items = items;
        struct nib_row_stats *stats = items ? realloc(chunk->stats, capacity * sizeof *stats) : NULL;
        if (!stats)
            return nib_fail_memory(err, capacity * sizeof *stats, "a list of rows");
        chunk->stats = stats;
        chunk->capacity = capacity;
    }
    chunk->stats[chunk->count] = (struct nib_row_stats){0};
    chunk->items[chunk->count++] = (struct item){unit, first, count};
    return NIB_OK;
}

// Where the next chunk of a file begins.
struct cursor {
    size_t unit, end;
    int64_t row;
};

static void prefetch_matrix(const struct nib_plan *plan, const struct nib_matrix *matrix)
{
    uint64_t rows = (uint64_t)matrix->rows;
    nib_prefetch(plan->source->checkpoint, matrix->data, rows * (uint64_t)matrix->row_stride);
    if (matrix->scales)
        nib_prefetch(plan->source->checkpoint, matrix->scales,
                     rows / (uint64_t)matrix->block_rows * (uint64_t)matrix->scale_stride);
}

// Whatever the item is the first to read.
static void prefetch_item(const struct nib_plan *plan, const struct item *item)
{
    const struct nib_unit *unit = item->unit;
    if (unit->recipe == NIB_RECIPE_COPY) {
        nib_prefetch(plan->source->checkpoint, unit->bytes + item->first, (uint64_t)item->count);
    } else if (unit->stack == NIB_STACK_NONE) {
        if (item->first == 0)
            prefetch_matrix(plan, unit->matrix);
    } else {
        int64_t first = (item->first + unit->part_rows - 1) / unit->part_rows, end = item->first + item->count;
        for (int64_t e = first; e * unit->part_rows < end; e++) {
            prefetch_matrix(plan, unit->matrix + e * NIB_PART_COUNT);
            if (unit->stack != NIB_STACK_DOWN)
                prefetch_matrix(plan, unit->matrix + e * NIB_PART_COUNT + NIB_PART_UP);
        }
    }
}

static nib_status fill_chunk(const struct nib_plan *plan, struct cursor *cursor, uint64_t limit,
                             struct chunk *chunk, struct nib_error *err)
{
    chunk->count = 0;
    chunk->source_bytes = chunk->output_bytes = 0;
    nib_status status = NIB_OK;
    while (status == NIB_OK && cursor->unit < cursor->end && chunk->source_bytes < limit) {
        const struct nib_unit *unit = &plan->units[cursor->unit];
        uint64_t bytes = row_bytes(unit);
        int64_t rows = bytes && bytes < ITEM_BYTES ? (int64_t)(ITEM_BYTES / bytes) : 1,
                left = unit->rows - cursor->row;
        int64_t count = rows < left ? rows : left;
        if (count > 0) {
            status = add_item(chunk, unit, cursor->row, count, err);
            prefetch_item(plan, &(struct item){unit, cursor->row, count});
            chunk->output_bytes += (uint64_t)count * bytes;
            chunk->source_bytes += (uint64_t)((double)unit->source_bytes * (double)count / (double)unit->rows);
        }
        cursor->row += count;
        if (cursor->row >= unit->rows) {
            cursor->unit++;
            cursor->row = 0;
        }
    }
    return status;
}

static nib_status work_item(const struct nib_plan *plan, const struct item *item, struct nib_file_writer *writer,
                            uint64_t data_start, uint8_t *buffer, struct nib_row_stats *stats,
                            struct nib_error *err)
{
    const struct nib_unit *unit = item->unit;
    uint8_t *out[NIB_UNIT_OUTPUTS] = {NULL};
    size_t sizes[NIB_UNIT_OUTPUTS] = {0};
    for (int o = 0; o < unit->n_outputs; o++) {
        const struct nib_output *output = &unit->outputs[o];
        sizes[o] = (size_t)((uint64_t)item->count * output->row_bytes);
        if (output->row_bytes == 0)
            sizes[o] = item->first == 0 ? (size_t)output->bytes : 0;
        out[o] = sizes[o] ? buffer : NULL;
        buffer += sizes[o];
    }
    nib_status status = nib_make_rows(plan, unit, item->first, item->count, out, stats, err);
    for (int o = 0; status == NIB_OK && o < unit->n_outputs; o++)
        if (sizes[o])
            status = nib_file_put(
                writer, data_start + unit->outputs[o].offset + (uint64_t)item->first * unit->outputs[o].row_bytes,
                out[o], sizes[o], err);
    return status;
}

// All items on all threads. Of several failures the first item's is reported, as one thread would.
static nib_status work_chunk(const struct nib_plan *plan, struct chunk *chunk, struct nib_file_writer *writer,
                             uint64_t data_start, int threads, struct nib_error *err)
{
    size_t buffer_size = (size_t)buffer_bytes(plan), first_failed = SIZE_MAX;
    struct nib_error failure = {0};
#pragma omp parallel num_threads(threads)
    {
        uint8_t *buffer = malloc(buffer_size);
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < chunk->count; i++) {
            size_t failed;
#pragma omp atomic read
            failed = first_failed;
            if (failed < i)
                continue;
            struct nib_error own = {0};
            nib_status status =
                buffer ? work_item(plan, &chunk->items[i], writer, data_start, buffer, &chunk->stats[i], &own)
                       : nib_fail_memory(&own, buffer_size, "a buffer of rows");
            if (status == NIB_OK)
                continue;
#pragma omp critical(nib_convert_failure)
            if (i < first_failed) {
                failure = own;
#pragma omp atomic write
                first_failed = i;
            }
        }
        free(buffer);
    }
    return first_failed == SIZE_MAX ? NIB_OK : nib_fail(err, failure.status, "%s", failure.message);
}

// ---- Report ----

static void add_part(struct nib_convert_error *total, const struct nib_convert_error *part)
{
    total->squared_error += part->squared_error;
    total->squared_norm += part->squared_norm;
    if (part->worst > total->worst) {
        total->worst = part->worst;
        total->worst_expert = part->worst_expert;
        total->worst_row = part->worst_row;
        total->worst_group = part->worst_group;
    }
}

static void add_stats(struct nib_plan *plan, const struct chunk *chunk)
{
    struct nib_convert_report *report = &plan->report;
    for (size_t i = 0; i < chunk->count; i++) {
        for (int span = 0; span < 256; span++)
            report->span_rows[span] += chunk->stats[i].span_rows[span];
        int64_t entry = chunk->items[i].unit->error_entry;
        bool dense = chunk->items[i].unit->matrix == &chunk->items[i].unit->own;
        for (int part = 0; entry >= 0 && part < (dense ? 1 : NIB_PART_COUNT); part++)
            add_part(&report->errors[entry + part], &chunk->stats[i].parts[part]);
    }
}

// ---- A file ----

static nib_status write_data(struct nib_plan *plan, size_t file, struct nib_file_writer *writer,
                             uint64_t data_start, struct nib_stream *stream, struct nib_error *err)
{
    const struct nib_convert_options *options = &plan->options;
    struct cursor cursor = {.unit = plan->files[file].first,
                            .end = plan->files[file].first + plan->files[file].count};
    // While one chunk is worked on, the disk reads the next.
    struct chunk chunks[2] = {{0}}, *chunk = &chunks[0], *next = &chunks[1];
    uint64_t limit = nib_stream_chunk(plan);
    nib_status status = fill_chunk(plan, &cursor, limit, chunk, err);
    while (status == NIB_OK && chunk->count > 0) {
        status = fill_chunk(plan, &cursor, limit, next, err);
        if (status == NIB_OK)
            status = work_chunk(plan, chunk, writer, data_start, stream->threads, err);
        if (status != NIB_OK)
            break;
        add_stats(plan, chunk);
        nib_release_pages(plan->source->checkpoint);
        nib_file_flush(writer, 0, data_start + plan->files[file].data_bytes);
        stream->done += chunk->output_bytes;
        if (options->on_progress && !options->on_progress(options->user, stream->done, stream->total))
            status = nib_fail(err, NIB_ERR_CANCELLED, "stopped before %s was whole", writer->path);
        struct chunk *worked = chunk;
        chunk = next;
        next = worked;
    }
    for (int c = 0; c < 2; c++) {
        free(chunks[c].items);
        free(chunks[c].stats);
    }
    return status;
}

nib_status nib_stream_file(struct nib_plan *plan, size_t file, const char *folder, struct nib_stream *stream,
                           struct nib_error *err)
{
    uint8_t *header;
    uint64_t header_size;
    nib_status status = nib_plan_header(plan, file, &header, &header_size, err);
    if (status != NIB_OK)
        return status;
    struct nib_file_writer writer;
    uint64_t size = header_size + plan->files[file].data_bytes;
    status = nib_file_begin(&writer, folder, plan->files[file].name, size, err);
    if (status == NIB_OK) {
        status = nib_file_put(&writer, 0, header, (size_t)header_size, err);
        if (status == NIB_OK)
            status = write_data(plan, file, &writer, header_size, stream, err);
        if (status == NIB_OK)
            status = nib_file_commit(&writer, err);
        else
            nib_file_abandon(&writer);
    }
    free(header);
    return status;
}
