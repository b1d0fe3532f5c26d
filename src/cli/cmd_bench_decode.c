// nibble bench decode: a whole model's decode and prefill speed beside the memory's read bandwidth.
//
// The floor of a decode step is the bytes it must read (dense weights, the experts its tokens choose, cached rows) over
// the bandwidth that a plain read reaches: on the host over the same weights, between the steps of the same row; on a
// device with memory of its own over that, before each row.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "base/limits.h"
#include "cli/bench_decode.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/synthetic.h"

#define SMALLEST_READ ((size_t)16 << 20)  // of one tensor for it, where there are such large ones
#define CEILING_BYTES ((size_t)512 << 20) // read at a time for the ceiling
#define LARGEST_CHUNK 8192                // tokens of a prefill step on a device that is made for many

struct decode {
    struct bench_decode bench;
    bool on_gpu;
    bool assume; // contexts are not read: the device's caches hold made-up rows
    uint64_t random;
    size_t next_tensor;   // of the checkpoint, to measure the ceiling on
    size_t smallest_read; // bytes of a tensor that is large enough for it
};

static int32_t random_token(struct decode *d)
{
    d->random = d->random * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((d->random >> 33) % (uint64_t)nib_engine_vocab(d->bench.engine));
}

// The read bandwidth over about CEILING_BYTES of the mapped weights, going on where the last measurement ended, so that
// what is read was not read for long.
static double host_ceiling(struct decode *d)
{
    const struct nib_checkpoint *checkpoint = nib_engine_checkpoint(d->bench.engine);
    size_t count = nib_checkpoint_count(checkpoint), read = 0;
    double seconds = 0;
    for (size_t i = 0; i < count && read < CEILING_BYTES; i++, d->next_tensor++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(checkpoint, d->next_tensor % count);
        if (tensor->bytes < d->smallest_read)
            continue;
        size_t bytes = tensor->bytes < CEILING_BYTES ? tensor->bytes : CEILING_BYTES;
        seconds += (double)bytes / nib_bandwidth_read(tensor->data, bytes, nib_engine_threads(d->bench.engine));
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
    int64_t most = nib_engine_memory(d->bench.engine)->max_step_tokens;
    int32_t *tokens = malloc((size_t)most * sizeof *tokens);
    nib_status status = tokens ? NIB_OK : nib_fail_memory(err, (unsigned long long)most * 4, "tokens");
    while (!status && n > 0) {
        int64_t chunk = n < most ? n : most;
        for (int64_t i = 0; i < chunk; i++)
            tokens[i] = random_token(d);
        struct nib_feed feed = {sequence, tokens, (int32_t)chunk,
                                n == chunk ? NIB_OUTPUTS_LAST : NIB_OUTPUTS_NONE};
        status = nib_engine_step(d->bench.engine, &feed, 1, err);
        n -= chunk;
    }
    free(tokens);
    return status;
}

static nib_status measure_prefill(struct decode *d, struct nib_error *err)
{
    double seconds[4];
    for (int i = 0; i < 4; i++) { // the first warms up
        struct nib_sequence *sequence;
        nib_status status = nib_sequence_create(d->bench.engine, &sequence, err);
        if (status)
            return status;
        double started = nib_seconds();
        status = feed_random(d, sequence, d->bench.prefill, err);
        seconds[i] = nib_seconds() - started;
        nib_sequence_free(sequence);
        if (status)
            return status;
    }
    d->bench.prefill_seconds = median(seconds + 1, 3);
    return NIB_OK;
}

// Sequences that decode side by side, and what a step of theirs needs.
struct streams {
    int64_t count;
    struct nib_sequence **sequences; /* [count] */
    struct nib_feed *feeds;          /* [count] */
    int32_t *tokens;                 /* [count] */
    struct nib_draw *draws;          /* [count] */
    struct nib_drawn *drawn;         /* [count] */
};

static void free_streams(struct streams *s)
{
    for (int64_t i = 0; s->sequences && i < s->count; i++)
        nib_sequence_free(s->sequences[i]);
    free(s->sequences);
    free(s->feeds);
    free(s->tokens);
    free(s->draws);
    free(s->drawn);
}

// n sequences that hold the context already.
static nib_status make_streams(struct decode *d, int64_t n, struct streams *s, struct nib_error *err)
{
    *s = (struct streams){
        .count = n,
        .sequences = calloc((size_t)n, sizeof(struct nib_sequence *)),
        .feeds = calloc((size_t)n, sizeof *s->feeds),
        .tokens = calloc((size_t)n, sizeof *s->tokens),
        .draws = calloc((size_t)n, sizeof *s->draws),
        .drawn = calloc((size_t)n, sizeof *s->drawn),
    };
    nib_status status = NIB_OK;
    if (!s->sequences || !s->feeds || !s->tokens || !s->draws || !s->drawn)
        status = nib_fail_memory(err, (unsigned long long)n * 512, "a benchmark row");
    for (int64_t i = 0; !status && i < n; i++) {
        s->draws[i] = (struct nib_draw){.top_p = 1, .n_top = -1};
        status = nib_sequence_create(d->bench.engine, &s->sequences[i], err);
        if (!status)
            status = d->assume ? nib_sequence_assume(s->sequences[i], (int32_t)d->bench.context, err)
                               : feed_random(d, s->sequences[i], d->bench.context, err);
    }
    return status;
}

// One token in each sequence, random ones: what a random model says soon repeats itself.
static nib_status step(struct decode *d, struct streams *s, struct nib_error *err)
{
    bool draws = d->bench.engine->ops->sample != NULL;
    for (int64_t i = 0; i < s->count; i++) {
        s->tokens[i] = random_token(d);
        s->feeds[i] = (struct nib_feed){s->sequences[i], &s->tokens[i], 1, NIB_OUTPUTS_LAST};
    }
    return nib_engine_step_and_draw(d->bench.engine, s->feeds, (int)s->count, draws ? s->draws : NULL, s->drawn,
                                    err);
}

// One more step, timed operation by operation where the device can.
static nib_status profile(struct decode *d, struct streams *s, struct bench_row *row, struct nib_error *err)
{
    const struct nib_ops *ops = d->bench.engine->ops;
    const struct nib_op_time *times;
    if (!ops->profile)
        return NIB_OK;
    ops->profile(d->bench.engine->device, true);
    nib_status status = step(d, s, err);
    if (!status)
        status = step(d, s, err);
    row->n_times = status ? 0 : ops->op_times(d->bench.engine->device, &times);
    row->n_times = row->n_times < BENCH_KINDS ? row->n_times : BENCH_KINDS;
    if (row->n_times)
        memcpy(row->times, times, (size_t)row->n_times * sizeof *times);
    ops->profile(d->bench.engine->device, false);
    return status;
}

static nib_status time_steps(struct decode *d, struct streams *s, struct bench_row *row, struct nib_error *err)
{
    const struct nib_engine *engine = d->bench.engine;
    int64_t steps = d->bench.steps;
    double *seconds = calloc((size_t)steps, sizeof *seconds), *ceilings = calloc((size_t)steps, sizeof *ceilings);
    nib_status status = seconds && ceilings ? NIB_OK : nib_fail_memory(err, (size_t)steps * 16, "times");
    if (!status && engine->ops->read_bandwidth)
        status = engine->ops->read_bandwidth(engine->device, &row->ceiling, err);
    for (int64_t i = -2; !status && i < steps; i++) { // two steps warm up
        if (i >= 0 && !engine->ops->read_bandwidth)
            ceilings[i] = host_ceiling(d);
        double started = nib_seconds();
        status = step(d, s, err);
        if (i >= 0)
            seconds[i] = nib_seconds() - started;
        if (i == steps / 2)
            row->bytes_per_step = (double)nib_engine_step_bytes(engine);
    }
    if (!status)
        row->ms_per_step = 1e3 * median(seconds, steps);
    if (!status && !engine->ops->read_bandwidth)
        row->ceiling = median(ceilings, steps);
    row->launches = engine->ops->launches ? engine->ops->launches(engine->device) : 0;
    free(seconds);
    free(ceilings);
    return status;
}

static nib_status measure_row(struct decode *d, int64_t n, struct nib_error *err)
{
    struct streams streams;
    struct bench_row row = {.streams = n};
    nib_status status = make_streams(d, n, &streams, err);
    if (!status)
        status = time_steps(d, &streams, &row, err);
    if (!status)
        status = profile(d, &streams, &row, err);
    if (!status)
        d->bench.rows[d->bench.n_rows++] = row;
    free_streams(&streams);
    return status;
}

static nib_status measure(struct decode *d, const int64_t *streams, int count, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = nib_engine_checkpoint(d->bench.engine);
    for (size_t i = 0; i < nib_checkpoint_count(checkpoint); i++) {
        size_t bytes = nib_checkpoint_at(checkpoint, i)->bytes;
        d->smallest_read = bytes > d->smallest_read ? bytes : d->smallest_read;
    }
    d->smallest_read = d->smallest_read < SMALLEST_READ ? d->smallest_read : SMALLEST_READ;
    nib_status status = d->bench.prefill ? measure_prefill(d, err) : NIB_OK;
    for (int i = 0; !status && i < count; i++)
        status = measure_row(d, streams[i], err);
    return status;
}

// What the command line asks for.
struct wishes {
    const char *model, *shape, *device, *list, *dense_dtype, *precision, *plot;
    bool random, json, csv, deterministic;
    int64_t threads, streams[BENCH_ROWS];
    int n_streams;
};

static bool parse(int argc, char **argv, struct wishes *w, struct bench_decode *bench, int *code)
{
    const struct nib_option options[] = {
        {"--shape", NIB_OPTION_CHOICE, &w->shape, synthetic_shapes(), "a published model's shape, with --random",
         0, 0},
        {"--random", NIB_OPTION_FLAG, &w->random, NULL, "random weights, made in memory or on the device", 0, 0},
        {"--streams", NIB_OPTION_STRING, &w->list, "N,…", "sequences decoded at the same time, one row each", 0,
         0},
        {"--context", NIB_OPTION_INT, &bench->context, "N", "tokens each sequence holds before", 1, 1 << 24},
        {"--steps", NIB_OPTION_INT, &bench->steps, "N", "measured steps a row", 1, 10000},
        {"--prefill", NIB_OPTION_INT, &bench->prefill, "N", "tokens of the measured prefill, 0: none", 0, 1 << 24},
        option_device(&w->device),
        option_threads(&w->threads),
        option_precision(&w->precision),
        option_dense_dtype(&w->dense_dtype),
        option_deterministic(&w->deterministic),
        option_json(&w->json),
        {"--csv", NIB_OPTION_FLAG, &w->csv, NULL, "print the figures as CSV", 0, 0},
        {"--plot", NIB_OPTION_STRING, &w->plot, "FILE", "draw them too, as SVG", 0, 0},
    };
    const struct nib_usage usage = {
        .command = "nibble bench decode",
        .arguments = "(MODEL | --shape NAME --random)",
        .summary =
            "Decode speed for several numbers of sequences, prefill speed, and the share of this machine's read\n"
            "bandwidth, which is measured in the same run. The bytes of a step are its dense weights, the "
            "distinct\n"
            "experts its tokens chose and the cached rows they saw.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = &w->model,
        .n_positionals = 1,
    };
    if (!nib_parse_options(&usage, argc, argv, code))
        return false;
    w->n_streams = nib_parse_list(w->list, 4096, w->streams, BENCH_ROWS);
    bool named = !w->model != !w->shape && !w->shape == !w->random;
    if (w->n_streams && named)
        return true;
    fprintf(stderr, "nibble: %s\n",
            named ? "--streams takes numbers like 1,2,4"
                  : "bench decode needs a MODEL folder, or --shape NAME --random");
    *code = 2;
    return false;
}

// Sequences hold the context and what the steps add: two warm up, two are profiled.
static struct nib_engine_options engine_options(const struct wishes *w, const struct decode *d)
{
    const struct bench_decode *bench = &d->bench;
    int64_t held = bench->context + bench->steps + 4, most = 1;
    int64_t longest = held > bench->prefill ? held : bench->prefill;
    int64_t chunk = bench->prefill < LARGEST_CHUNK ? bench->prefill : LARGEST_CHUNK;
    for (int i = 0; i < w->n_streams; i++)
        most = w->streams[i] > most ? w->streams[i] : most;
    return (struct nib_engine_options){
        .device = w->device,
        .threads = (int)w->threads,
        .context = (int32_t)longest,
        .max_sequences = (int32_t)most,
        .max_step_tokens = d->on_gpu ? (int32_t)chunk : 0,
        .cache_tokens = held * most > longest ? held * most : longest,
        .deterministic = w->deterministic,
        .random_weights = d->assume,
        .dense_int8 = strcmp(w->dense_dtype, "int8") == 0,
        .precision = precision_of(w->precision),
        .force = w->shape && !d->on_gpu, // its weights are in memory already
    };
}

int cmd_bench_decode(int argc, char **argv)
{
    struct decode d = {.bench = {.context = 32, .steps = 15, .prefill = 512}, .random = 1};
    struct bench_decode *bench = &d.bench;
    struct wishes w = {.device = "cpu", .list = "1,2,4,8,16", .dense_dtype = "stored", .precision = "auto"};
    struct synthetic synthetic = {0};
    struct nib_error err;
    int code = 0;
    if (!parse(argc, argv, &w, bench, &code))
        return code;
    d.on_gpu = strncmp(w.device, "cuda", 4) == 0;
    d.assume = d.on_gpu && w.shape;
    bench->model = w.shape ? w.shape : w.model;
    nib_status status = w.shape ? synthetic_create(&synthetic, w.shape, d.on_gpu, &err) : NIB_OK;
    struct nib_engine_options options = engine_options(&w, &d);
    if (!status)
        status = nib_engine_open(w.shape ? synthetic.folder : w.model, &options, &bench->engine, &err);
    synthetic_remove(&synthetic); // the weights stay mapped; no Ctrl-C leaves the folder behind
    if (!status)
        status = measure(&d, w.streams, w.n_streams, &err);
    if (!status)
        (w.json ? bench_decode_print_json : w.csv ? bench_decode_print_csv : bench_decode_print_table)(bench);
    if (!status && w.plot)
        status = bench_decode_plot(bench, w.plot, &err);
    if (status)
        code = report_error(&err);
    nib_engine_close(bench->engine);
    return code;
}
