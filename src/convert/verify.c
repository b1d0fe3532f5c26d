#include "convert/verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"

enum { MAX_MESSAGES = 20, ITEM_BYTES = 1 << 19 };
#define CHUNK_BYTES (UINT64_C(256) << 20)

void nib_verify_problem(struct nib_verifier *v, const char *format, ...)
{
    struct nib_verify_report *report = v->report;
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
#pragma omp critical(nib_verify_problems)
    {
        report->problems++;
        char *copy = report->n_messages < MAX_MESSAGES ? strdup(text) : NULL;
        if (copy)
            report->messages[report->n_messages++] = copy;
    }
}

void nib_verify_report_free(struct nib_verify_report *report)
{
    for (size_t i = 0; i < report->n_messages; i++)
        free(report->messages[i]);
    free(report->messages);
    *report = (struct nib_verify_report){0};
}

// ---- What the destination says it is ----

static nib_status read_form(struct nib_verifier *v, struct nib_error *err)
{
    const char *form = nib_checkpoint_metadata(v->destination, "nibble_form"),
               *rule = nib_checkpoint_metadata(v->destination, "nibble_scale_rule"),
               *rows = nib_checkpoint_metadata(v->destination, "gate_up_layout");
    static const char *const rules[] = {"ocp", "even", "rceil", "search"};
    v->form = v->options->form;
    v->rule = v->options->scale_rule;
    if (!v->options->has_form && (!form || !nib_form_find(form, &v->form)))
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: does not say which form it is in (--to)",
                        nib_checkpoint_path(v->destination));
    for (int r = 0; r < 4 && !v->options->has_scale_rule; r++)
        if (rule && strcmp(rule, rules[r]) == 0)
            v->rule = (enum nib_mx_scale_rule)r;
    v->fused = v->form == NIB_FORM_FUSED || (v->form == NIB_FORM_MXFP4 && rows);
    v->concatenated = rows && strcmp(rows, "concatenated") == 0;
    return NIB_OK;
}

// ---- Comparing ----

struct item {
    const struct nib_check *check;
    int64_t first, count;
};

struct cursor {
    size_t check;
    int64_t row;
};

static uint64_t row_bytes(const struct nib_check *check)
{
    if (check->kind == NIB_CHECK_BYTES)
        return 1;
    // Scales of FP8 have a stride too; strides of interleaved rows count double, which is near enough.
    return (uint64_t)(check->weight_stride + check->scale_stride);
}

static size_t fill_items(const struct nib_verifier *v, struct cursor *cursor, struct item *items, size_t capacity,
                         uint64_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    while (cursor->check < v->n_checks && count < capacity && *bytes < CHUNK_BYTES) {
        const struct nib_check *check = &v->checks[cursor->check];
        uint64_t each = row_bytes(check);
        int64_t rows = each < ITEM_BYTES ? (int64_t)(ITEM_BYTES / each) : 1,
                left = check->source.rows - cursor->row;
        int64_t taken = rows < left ? rows : left;
        items[count++] = (struct item){check, cursor->row, taken};
        *bytes += (uint64_t)taken * each;
        cursor->row += taken;
        if (cursor->row >= check->source.rows) {
            cursor->check++;
            cursor->row = 0;
        }
    }
    return count;
}

static void report_difference(struct nib_verifier *v, const struct nib_check *check, int64_t row, const char *why)
{
    if (check->kind == NIB_CHECK_BYTES)
        nib_verify_problem(v, "%s: %s: byte %lld on: %s", check->weight->file, check->weight->name, (long long)row,
                           why);
    else if (check->expert >= 0)
        nib_verify_problem(v, "%s: %s: expert %lld, row %lld of the source's matrix: %s", check->weight->file,
                           check->weight->name, (long long)check->expert, (long long)row, why);
    else
        nib_verify_problem(v, "%s: %s: row %lld: %s", check->weight->file, check->weight->name, (long long)row,
                           why);
}

static void compare_items(struct nib_verifier *v, const struct item *items, size_t count, int threads)
{
    uint64_t elements = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(+ : elements)
    for (size_t i = 0; i < count; i++) {
        const char *why = NULL;
        uint64_t compared = 0;
        int64_t row = nib_verify_rows(v, items[i].check, items[i].first, items[i].count, &compared, &why);
        elements += compared;
        if (row >= 0)
            report_difference(v, items[i].check, row, why);
    }
    v->report->elements += elements;
}

static void prefetch_item(const struct nib_verifier *v, const struct item *item)
{
    const struct nib_check *check = item->check;
    const struct nib_matrix *source = &check->source;
    if (check->kind == NIB_CHECK_BYTES) {
        nib_prefetch(v->source.checkpoint, source->data + item->first, (uint64_t)item->count);
        nib_prefetch(v->destination, check->weight_rows + item->first, (uint64_t)item->count);
        return;
    }
    uint64_t count = (uint64_t)item->count;
    nib_prefetch(v->source.checkpoint, source->data + item->first * source->row_stride,
                 count * (uint64_t)source->row_stride);
    nib_prefetch(v->destination, check->weight_rows + item->first * check->weight_stride,
                 count * (uint64_t)check->weight_stride);
    if (item->first > 0)
        return;
    if (source->scales)
        nib_prefetch(v->source.checkpoint, source->scales, (uint64_t)(source->rows * source->scale_stride));
    if (check->scale)
        nib_prefetch(v->destination, check->scale_rows, (uint64_t)(source->rows * check->scale_stride));
}

enum { CAPACITY = 4096 };

struct batch {
    struct item items[CAPACITY];
    size_t count;
    uint64_t bytes;
};

// The next items, which the disk begins to read.
static void fill_batch(const struct nib_verifier *v, struct cursor *cursor, struct batch *batch)
{
    batch->count = fill_items(v, cursor, batch->items, CAPACITY, &batch->bytes);
    bool all = !(v->options->sample > 0 && v->options->sample < 1);
    for (size_t i = 0; all && i < batch->count; i++)
        prefetch_item(v, &batch->items[i]);
}

static nib_status compare(struct nib_verifier *v, struct nib_error *err)
{
    int threads = v->options->threads > 0 ? v->options->threads : nib_thread_limit();
    uint64_t total = nib_checkpoint_bytes(v->destination), done = 0;
    struct batch *batches = malloc(2 * sizeof *batches), *batch = batches;
    if (!batches)
        return nib_fail_memory(err, 2 * sizeof *batches, "a list of rows");
    struct batch *next = batches + 1;
    nib_status status = NIB_OK;
    struct cursor cursor = {0};
    fill_batch(v, &cursor, batch);
    while (status == NIB_OK && batch->count > 0) {
        fill_batch(v, &cursor, next);
        compare_items(v, batch->items, batch->count, threads);
        nib_release_pages(v->source.checkpoint);
        nib_release_pages(v->destination);
        done += batch->bytes;
        if (v->options->on_progress &&
            !v->options->on_progress(v->options->user, done < total ? done : total, total))
            status = nib_fail(err, NIB_ERR_CANCELLED, "stopped before everything was compared");
        struct batch *worked = batch;
        batch = next;
        next = worked;
    }
    free(batches);
    return status;
}

// ---- Public ----

static nib_status run(struct nib_verifier *v, struct nib_error *err)
{
    v->claimed = calloc(nib_checkpoint_count(v->destination) + 1, sizeof *v->claimed);
    v->report->messages = calloc(MAX_MESSAGES, sizeof *v->report->messages);
    if (!v->claimed || !v->report->messages)
        return nib_fail_memory(err, nib_checkpoint_count(v->destination), "a list of tensors");
    v->report->form = v->form;
    v->report->tensors = nib_checkpoint_count(v->destination);
    v->report->bytes = nib_checkpoint_bytes(v->destination);
    nib_status status = nib_verify_side(v, err);
    if (status == NIB_OK)
        status = nib_verify_claims(v, err);
    if (status == NIB_OK)
        status = compare(v, err);
    bool all = !(v->options->sample > 0 && v->options->sample < 1);
    v->report->proven = status == NIB_OK && all && v->report->problems == 0;
    return status;
}

nib_status nib_verify(const char *source, const char *destination, const struct nib_verify_options *options,
                      struct nib_verify_report *report, struct nib_error *err)
{
    static const struct nib_verify_options defaults;
    struct nib_verifier v = {.options = options ? options : &defaults, .report = report};
    *report = (struct nib_verify_report){0};
    nib_status status = nib_checkpoint_open(destination, &v.destination, err);
    if (status == NIB_OK)
        status = read_form(&v, err);
    if (status == NIB_OK)
        status = nib_source_open(source, v.form == NIB_FORM_MXFP4, v.options->source_interleaved, &v.source, err);
    if (status == NIB_OK)
        status = run(&v, err);
    free(v.checks);
    free(v.claimed);
    nib_source_close(&v.source);
    nib_checkpoint_close(v.destination);
    return status;
}
