// nibble bench decode: a whole model's decode and prefill speed beside the machine's read bandwidth.
//
// The floor of a decode step is the bytes it must read (dense weights, the experts its tokens choose, cached rows) over
// the bandwidth that a plain read reaches on the same weights, measured between the steps of the same row.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "base/limits.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/synthetic.h"
#include "nibble/engine.h"

#define MAX_ROWS 16
#define SMALLEST_READ ((size_t)16 << 20)  // of one tensor for it, where there are such large ones
#define CEILING_BYTES ((size_t)512 << 20) // read at a time for the ceiling

struct row {
    int64_t sequences;
    double ms_per_step, tok_per_s, bytes_per_token, gb_per_s, ceiling;
};

struct decode {
    struct nib_engine *engine;
    int64_t context, steps, prefill;
    uint64_t random;
    size_t next_tensor;   // of the checkpoint, to measure the ceiling on
    size_t smallest_read; // bytes of a tensor that is large enough for it
    double prefill_tok_per_s;
    struct row rows[MAX_ROWS];
    int n_rows;
};

static int32_t random_token(struct decode *d)
{
    d->random = d->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((d->random >> 33) % (uint64_t)nib_engine_vocab(d->engine));
}

// The read bandwidth over about CEILING_BYTES of the mapped weights, going on where the last measurement ended, so that
// what is read was not read for long.
static double measure_ceiling(struct decode *d)
{
    const struct nib_checkpoint *checkpoint = nib_engine_checkpoint(d->engine);
    size_t count = nib_checkpoint_count(checkpoint), read = 0;
    double seconds = 0;
    for (size_t i = 0; i < count && read < CEILING_BYTES; i++, d->next_tensor++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(checkpoint, d->next_tensor % count);
        if (tensor->bytes < d->smallest_read)
            continue;
        size_t bytes = tensor->bytes < CEILING_BYTES ? tensor->bytes : CEILING_BYTES;
        seconds += (double)bytes / nib_bandwidth_read(tensor->data, bytes, nib_engine_threads(d->engine));
        read += bytes;
    }
    return seconds > 0 ? (double)read / seconds : NAN;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static nib_status feed_random(struct decode *d, struct nib_sequence *sequence, int64_t n, struct nib_error *err)
{
    int64_t most = nib_engine_memory(d->engine)->max_step_tokens;
    int32_t *tokens = malloc((size_t)most * sizeof *tokens);
    nib_status status = tokens ? NIB_OK : nib_fail_memory(err, (unsigned long long)most * 4, "tokens");
    while (!status && n > 0) {
        int64_t chunk = n < most ? n : most;
        for (int64_t i = 0; i < chunk; i++)
            tokens[i] = random_token(d);
        struct nib_feed feed = {sequence, tokens, (int32_t)chunk,
                                n == chunk ? NIB_OUTPUTS_LAST : NIB_OUTPUTS_NONE};
        status = nib_engine_step(d->engine, &feed, 1, err);
        n -= chunk;
    }
    free(tokens);
    return status;
}

static nib_status measure_prefill(struct decode *d, struct nib_error *err)
{
    double seconds[3];
    for (int i = 0; i < 3; i++) {
        struct nib_sequence *sequence;
        nib_status status = nib_sequence_create(d->engine, &sequence, err);
        if (status)
            return status;
        double started = nib_seconds();
        status = feed_random(d, sequence, d->prefill, err);
        seconds[i] = nib_seconds() - started;
        nib_sequence_free(sequence);
        if (status)
            return status;
    }
    d->prefill_tok_per_s = (double)d->prefill / median(seconds, 3);
    return NIB_OK;
}

// Decodes d->steps tokens in each of n sequences that hold d->context tokens already.
static nib_status measure_row(struct decode *d, int64_t n, struct nib_error *err)
{
    struct nib_sequence **sequences = calloc((size_t)n, sizeof(struct nib_sequence *));
    struct nib_feed *feeds = calloc((size_t)n, sizeof *feeds);
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    double *seconds = calloc((size_t)d->steps, sizeof *seconds),
           *ceilings = calloc((size_t)d->steps, sizeof *ceilings);
    nib_status status = NIB_OK;
    double bytes = 0;
    if (!sequences || !feeds || !tokens || !seconds || !ceilings)
        status = nib_fail_memory(err, (unsigned long long)(n * 64 + d->steps * 16), "a benchmark row");
    for (int64_t s = 0; !status && s < n; s++) {
        status = nib_sequence_create(d->engine, &sequences[s], err);
        if (!status)
            status = feed_random(d, sequences[s], d->context, err);
    }
    for (int64_t i = -2; !status && i < d->steps; i++) { // two steps warm up
        for (int64_t s = 0; s < n; s++) {
            tokens[s] = random_token(d);
            feeds[s] = (struct nib_feed){sequences[s], &tokens[s], 1, NIB_OUTPUTS_LAST};
        }
        if (i >= 0)
            ceilings[i] = measure_ceiling(d);
        double started = nib_seconds();
        status = nib_engine_step(d->engine, feeds, (int)n, err);
        if (i >= 0)
            seconds[i] = nib_seconds() - started;
        if (i == d->steps / 2)
            bytes = (double)nib_engine_step_bytes(d->engine);
    }
    if (!status) {
        struct row *row = &d->rows[d->n_rows++];
        double step = median(seconds, d->steps);
        *row = (struct row){
            .sequences = n,
            .ms_per_step = 1e3 * step,
            .tok_per_s = (double)n / step,
            .bytes_per_token = bytes / (double)n,
            .gb_per_s = bytes / step / 1e9,
            .ceiling = median(ceilings, d->steps) / 1e9,
        };
    }
    for (int64_t s = 0; sequences && s < n; s++)
        nib_sequence_free(sequences[s]);
    free(sequences);
    free(feeds);
    free(tokens);
    free(seconds);
    free(ceilings);
    return status;
}

static nib_status measure(struct decode *d, const int64_t *sequences, int count, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = nib_engine_checkpoint(d->engine);
    for (size_t i = 0; i < nib_checkpoint_count(checkpoint); i++) {
        size_t bytes = nib_checkpoint_at(checkpoint, i)->bytes;
        d->smallest_read = bytes > d->smallest_read ? bytes : d->smallest_read;
    }
    d->smallest_read = d->smallest_read < SMALLEST_READ ? d->smallest_read : SMALLEST_READ;
    nib_status status = d->prefill ? measure_prefill(d, err) : NIB_OK;
    for (int i = 0; !status && i < count; i++)
        status = measure_row(d, sequences[i], err);
    return status;
}

static void print_text(const struct decode *d, const char *name)
{
    printf("%s, %s device, %d thread%s, context %lld, %lld steps a row (medians)\n", name,
           nib_engine_device(d->engine), nib_engine_threads(d->engine),
           nib_engine_threads(d->engine) == 1 ? "" : "s", (long long)d->context, (long long)d->steps);
    if (d->prefill)
        printf("prefill of %lld tokens: %.1f tok/s\n", (long long)d->prefill, d->prefill_tok_per_s);
    printf("%9s %10s %10s %12s %8s %14s %8s\n", "sequences", "tok/s", "ms/step", "MB/token", "GB/s",
           "read ceiling", "share");
    for (int i = 0; i < d->n_rows; i++) {
        const struct row *row = &d->rows[i];
        printf("%9lld %10.2f %10.2f %12.1f %8.1f %14.1f %8.2f\n", (long long)row->sequences, row->tok_per_s,
               row->ms_per_step, row->bytes_per_token / 1e6, row->gb_per_s, row->ceiling,
               row->gb_per_s / row->ceiling);
    }
    printf("resident %.2f GiB, of which %.3f GiB are not the mapped weights\n",
           (double)nib_memory_resident() / 0x1p30, (double)nib_memory_anonymous() / 0x1p30);
}

static void print_json(const struct decode *d, const char *name)
{
    json_t *rows = json_array();
    for (int i = 0; i < d->n_rows; i++) {
        const struct row *row = &d->rows[i];
        json_array_append_new(
            rows, json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "sequences", (json_int_t)row->sequences,
                            "tok_per_s", row->tok_per_s, "ms_per_step", row->ms_per_step, "bytes_per_token",
                            row->bytes_per_token, "gb_per_s", row->gb_per_s, "read_gb_per_s", row->ceiling,
                            "share_of_read_ceiling", row->gb_per_s / row->ceiling));
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:I, s:o, s:I, s:I}", "model", name, "device", nib_engine_device(d->engine), "threads",
        nib_engine_threads(d->engine), "context", (json_int_t)d->context, "rows", rows, "resident_bytes",
        (json_int_t)nib_memory_resident(), "anonymous_bytes", (json_int_t)nib_memory_anonymous());
    if (d->prefill)
        json_object_set_new(
            root, "prefill",
            json_pack("{s:I, s:f}", "tokens", (json_int_t)d->prefill, "tok_per_s", d->prefill_tok_per_s));
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    printf("\n");
    json_decref(root);
}

int cmd_bench_decode(int argc, char **argv)
{
    const char *model = NULL, *shape = NULL, *device = "cpu", *list = "1,2,4,8,16", *dense_dtype = "stored",
               *precision = "auto";
    bool random = false, json = false;
    int64_t threads = 0, numbers[MAX_ROWS];
    struct decode d = {.context = 32, .steps = 15, .prefill = 512, .random = 1};
    const struct nib_option options[] = {
        {"--shape", NIB_OPTION_CHOICE, &shape, synthetic_shapes(), "a published model's shape, with --random", 0,
         0},
        {"--random", NIB_OPTION_FLAG, &random, NULL, "random weights made in memory", 0, 0},
        {"--sequences", NIB_OPTION_STRING, &list, "N,…", "sequences decoded at the same time, one row each", 0, 0},
        {"--context", NIB_OPTION_INT, &d.context, "N", "tokens each sequence holds before", 1, 1 << 24},
        {"--steps", NIB_OPTION_INT, &d.steps, "N", "measured steps a row", 1, 10000},
        {"--prefill", NIB_OPTION_INT, &d.prefill, "N", "tokens of the measured prefill, 0: none", 0, 1 << 24},
        {"--backend", NIB_OPTION_CHOICE, &device, "ref|cpu", "the device that computes", 0, 0},
        option_threads(&threads),
        option_precision(&precision),
        option_dense_dtype(&dense_dtype),
        option_json(&json),
    };
    const struct nib_usage usage = {
        .command = "nibble bench decode",
        .arguments = "(MODEL | --shape NAME --random)",
        .summary =
            "Decode speed for several numbers of sequences, prefill speed, and the share of this machine's read\n"
            "bandwidth, which is measured between the steps. The bytes of a step are its dense weights, the "
            "distinct\n"
            "experts its tokens chose and the cached rows they saw.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = &model,
        .n_positionals = 1,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    int count = nib_parse_list(list, 4096, numbers, MAX_ROWS);
    if (count == 0 || !model == !shape || (shape && !random)) {
        fprintf(stderr, "nibble: %s\n",
                count == 0 ? "--sequences takes numbers like 1,2,4"
                           : "bench decode needs a MODEL folder, or --shape NAME --random");
        return 2;
    }
    int64_t most = 1;
    for (int i = 0; i < count; i++)
        most = numbers[i] > most ? numbers[i] : most;
    int64_t longest = d.context + d.steps + 2 > d.prefill ? d.context + d.steps + 2 : d.prefill;
    struct synthetic synthetic = {0};
    struct nib_error err;
    nib_status status = shape ? synthetic_create(&synthetic, shape, &err) : NIB_OK;
    struct nib_engine_options engine_options = {
        .device = device,
        .threads = (int)threads,
        .context = (int32_t)longest,
        .max_sequences = (int32_t)most,
        .cache_tokens = longest * most,
        .dense_int8 = strcmp(dense_dtype, "int8") == 0,
        .precision = precision_of(precision),
        .force = shape != NULL, // its weights are in memory already
    };
    if (!status)
        status = nib_engine_open(shape ? synthetic.folder : model, &engine_options, &d.engine, &err);
    if (!status)
        status = measure(&d, numbers, count, &err);
    if (status)
        code = report_error(&err);
    else
        (json ? print_json : print_text)(&d, shape ? shape : model);
    nib_engine_close(d.engine);
    synthetic_remove(&synthetic);
    return code;
}
