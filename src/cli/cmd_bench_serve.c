// nibble bench serve: load on an OpenAI-compatible server, and how it bears it.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/load_client.h"
#include "cli/options.h"
#include "cli/plot.h"
#include "cli/progress.h"

#define MAX_STREAMS 256
#define MAX_LEVELS 16

struct load {
    struct load_server server;
    int64_t prompt, output, requests; // requests of one level
    double rate;                      // that arrive a second; 0: each stream sends when it has its answer
    double started;
    uint64_t seed;
    atomic_llong next, failed;
    struct load_result *results; /* [requests] */
    pthread_mutex_t mutex;
    struct nib_error error; // of the first that failed
};

static void wait_until(double when)
{
    double left = when - nib_seconds();
    if (left <= 0)
        return;
    struct timespec pause = {(time_t)left, (long)((left - floor(left)) * 1e9)};
    nanosleep(&pause, NULL);
}

static void *run_stream(void *context)
{
    struct load *load = context;
    for (long long i; (i = atomic_fetch_add(&load->next, 1)) < load->requests;) {
        struct nib_error err;
        double arrives = load->started + (load->rate > 0 ? (double)i / load->rate : 0);
        if (load->rate > 0)
            wait_until(arrives);
        double late = load->rate > 0 ? nib_seconds() - arrives : 0; // no stream was free: part of the wait
        if (load_request(&load->server, load->prompt, load->output, load->seed + (uint64_t)i, &load->results[i],
                         &err)) {
            pthread_mutex_lock(&load->mutex);
            if (atomic_fetch_add(&load->failed, 1) == 0)
                load->error = err;
            pthread_mutex_unlock(&load->mutex);
            load->results[i].first = -1;
            continue;
        }
        load->results[i].first += late;
        load->results[i].last += late;
    }
    return NULL;
}

// What came of one number of streams.
struct level {
    int64_t streams;
    double first[3], next[3]; // seconds: p50, p90, p99
    double per_stream, total; // tokens a second
    int64_t tokens, failed;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void percentiles(double *values /* [n] */, size_t n, double *three)
{
    static const double shares[] = {0.5, 0.9, 0.99};
    qsort(values, n, sizeof *values, compare);
    for (int i = 0; i < 3; i++)
        three[i] = n ? values[(size_t)(shares[i] * (double)(n - 1) + 0.5)] : NAN;
}

static nib_status summarise(const struct load *load, double seconds, struct level *level, struct nib_error *err)
{
    size_t n = 0, pairs = 0;
    double *first = malloc((size_t)load->requests * sizeof *first);
    double *next = malloc((size_t)load->requests * sizeof *next);
    if (!first || !next) {
        free(first);
        free(next);
        return nib_fail_memory(err, (size_t)load->requests * 16, "results");
    }
    for (int64_t i = 0; i < load->requests; i++) {
        const struct load_result *r = &load->results[i];
        if (r->first < 0)
            continue;
        first[n++] = r->first;
        level->tokens += r->tokens;
        if (r->tokens > 1)
            next[pairs++] = (r->last - r->first) / (double)(r->tokens - 1);
    }
    percentiles(first, n, level->first);
    percentiles(next, pairs, level->next);
    level->per_stream = pairs ? 1 / level->next[0] : NAN;
    level->total = (double)level->tokens / seconds;
    level->failed = load->failed;
    free(first);
    free(next);
    return NIB_OK;
}

static nib_status run_level(struct load *load, int64_t streams, struct level *level, struct nib_error *err)
{
    pthread_t threads[MAX_STREAMS];
    int64_t started = 0;
    *level = (struct level){.streams = streams};
    atomic_store(&load->next, 0);
    atomic_store(&load->failed, 0);
    load->seed += (uint64_t)load->requests; // prompts that no cache has seen
    load->started = nib_seconds();
    while (started < streams && !pthread_create(&threads[started], NULL, run_stream, load))
        started++;
    for (int64_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    double seconds = nib_seconds() - load->started;
    if (started < streams)
        return nib_fail(err, NIB_ERR_MEMORY, "only %lld threads can be started", (long long)started);
    if (load->failed == load->requests) {
        *err = load->error;
        return err->status;
    }
    return summarise(load, seconds, level, err);
}

static void print_level(const struct level *l)
{
    printf("%7lld  %8.1f %8.1f %8.1f  %8.2f %8.2f %8.2f  %10.1f %10.1f  %lld\n", (long long)l->streams,
           l->first[0] * 1e3, l->first[1] * 1e3, l->first[2] * 1e3, l->next[0] * 1e3, l->next[1] * 1e3,
           l->next[2] * 1e3, l->per_stream, l->total, (long long)l->failed);
    fflush(stdout);
}

static nib_status write_csv(const char *path, const struct level *levels /* [n] */, int n, struct nib_error *err)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return nib_fail(err, NIB_ERR_IO, "%s cannot be written", path);
    fprintf(file, "streams,ttft_p50_s,ttft_p90_s,ttft_p99_s,token_p50_s,token_p90_s,token_p99_s,per_stream_tok_s,"
                  "total_tok_s,tokens,"
                  "failed\n");
    for (int i = 0; i < n; i++) {
        const struct level *l = &levels[i];
        fprintf(file, "%lld,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.2f,%.2f,%lld,%lld\n", (long long)l->streams,
                l->first[0], l->first[1], l->first[2], l->next[0], l->next[1], l->next[2], l->per_stream, l->total,
                (long long)l->tokens, (long long)l->failed);
    }
    return fclose(file) ? nib_fail(err, NIB_ERR_IO, "%s cannot be written", path) : NIB_OK;
}

static nib_status write_plot(const char *path, const struct level *levels /* [n] */, int n, struct nib_error *err)
{
    double x[MAX_LEVELS], per_stream[MAX_LEVELS], total[MAX_LEVELS];
    for (int i = 0; i < n; i++) {
        x[i] = (double)levels[i].streams;
        per_stream[i] = levels[i].per_stream;
        total[i] = levels[i].total;
    }
    const struct plot_line lines[] = {{.name = "all streams", .y = total},
                                      {.name = "each stream", .y = per_stream, .dashed = true}};
    return plot_write(path, "Serving", "streams", "tokens/s", x, n, lines, 2, err);
}

int cmd_bench_serve(int argc, char **argv)
{
    struct load load = {.prompt = 128, .output = 64, .requests = 32, .mutex = PTHREAD_MUTEX_INITIALIZER};
    int64_t seed = 1;
    const char *url = "http://127.0.0.1:8000", *streams = "1,2,4,8", *api_key = NULL, *csv = NULL, *plot = NULL;
    const struct nib_option options[] = {
        {"--streams", NIB_OPTION_STRING, &streams, "LIST", "requests at the same time, one level each", 0, 0},
        {"--requests", NIB_OPTION_INT, &load.requests, "N", "of each level", 1, 1 << 20},
        {"--rate", NIB_OPTION_REAL, &load.rate, "X",
         "requests that arrive a second; 0: each stream sends when it has its answer", 0, 1e6},
        {"--prompt", NIB_OPTION_INT, &load.prompt, "N", "tokens; every prompt begins differently", 1, 1 << 20},
        {"--output", NIB_OPTION_INT, &load.output, "N", "tokens", 1, 1 << 20},
        {"--seed", NIB_OPTION_INT, &seed, "N", "of the prompts", 0, 1LL << 53},
        {"--api-key", NIB_OPTION_STRING, &api_key, "KEY", "that the server wants", 0, 0},
        {"--csv", NIB_OPTION_STRING, &csv, "FILE", "to write the figures to", 0, 0},
        {"--plot", NIB_OPTION_STRING, &plot, "FILE", "to draw them as SVG", 0, 0},
    };
    const struct nib_usage usage = {
        .command = "nibble bench serve",
        .arguments = "[URL]",
        .summary = "Load on a server (http://HOST:PORT, by default port 8000 here): the time to an answer's first "
                   "token, the\n"
                   "time between tokens, and tokens a second of a stream (the median) and of all together.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = &url,
        .n_positionals = 1,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    int64_t counts[MAX_LEVELS];
    struct level levels[MAX_LEVELS];
    struct nib_error err;
    int n = nib_parse_list(streams, MAX_STREAMS, counts, MAX_LEVELS);
    if (!n) {
        fprintf(stderr, "nibble: --streams takes up to %d numbers from 1 to %d, not %s\n", MAX_LEVELS, MAX_STREAMS,
                streams);
        return 2;
    }
    load.seed = (uint64_t)seed << 32;
    load.results = calloc((size_t)load.requests, sizeof *load.results);
    nib_status status = load.results ? load_server_open(&load.server, url, api_key, &err)
                                     : nib_fail_memory(&err, (size_t)load.requests * 24, "results");
    if (!status)
        printf("streams    first token (ms)p50/90/99     each next (ms) p50/90/99    stream tok/s  all tok/s  "
               "failed\n");
    for (int i = 0; i < n && !status; i++)
        if (!(status = run_level(&load, counts[i], &levels[i], &err)))
            print_level(&levels[i]);
    if (!status && csv)
        status = write_csv(csv, levels, n, &err);
    if (!status && plot)
        status = write_plot(plot, levels, n, &err);
    free(load.results);
    return status ? report_error(&err) : 0;
}
