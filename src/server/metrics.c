#include "server/metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double bounds[NIB_METRIC_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                  0.25,  0.5,    1,     2.5,  5,     10,   60};

void nib_metrics_init(struct nib_metrics *metrics)
{
    memset(metrics, 0, sizeof *metrics);
    pthread_mutex_init(&metrics->mutex, NULL);
}

void nib_metrics_destroy(struct nib_metrics *metrics)
{
    pthread_mutex_destroy(&metrics->mutex);
}

static void observe(struct nib_histogram *histogram, double value)
{
    int bucket = 0;
    while (bucket < NIB_METRIC_BUCKETS && value > bounds[bucket])
        bucket++;
    histogram->counts[bucket]++;
    histogram->sum += value;
}

void nib_metrics_request(struct nib_metrics *metrics, unsigned status)
{
    pthread_mutex_lock(&metrics->mutex);
    metrics->requests[status < 600 ? status / 100 : 5]++;
    metrics->refused += status == 429;
    pthread_mutex_unlock(&metrics->mutex);
}

void nib_metrics_token(struct nib_metrics *metrics, bool first, double seconds)
{
    pthread_mutex_lock(&metrics->mutex);
    observe(first ? &metrics->first_token : &metrics->next_token, seconds);
    metrics->generated_tokens++;
    pthread_mutex_unlock(&metrics->mutex);
}

void nib_metrics_finished(struct nib_metrics *metrics, const struct nib_event *event)
{
    pthread_mutex_lock(&metrics->mutex);
    metrics->finished[event->finish]++;
    metrics->prompt_tokens += (uint64_t)event->prompt_tokens;
    metrics->cached_tokens += (uint64_t)event->cached_tokens;
    pthread_mutex_unlock(&metrics->mutex);
}

void nib_metrics_load(struct nib_metrics *metrics, const struct nib_backend_load *load, int64_t running,
                      int64_t waiting)
{
    pthread_mutex_lock(&metrics->mutex);
    metrics->load = *load;
    metrics->running = running;
    metrics->waiting = waiting;
    pthread_mutex_unlock(&metrics->mutex);
}

struct writer {
    struct nib_bytes *out;
    nib_status status;
    struct nib_error *err;
};

static void put(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct writer *writer, const char *format, ...)
{
    char line[256];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!writer->status && size > 0)
        writer->status = nib_bytes_append(writer->out, line, (size_t)size, writer->err);
}

static void put_head(struct writer *writer, const char *name, const char *type, const char *help)
{
    put(writer, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\n", name, help, name, type);
}

static void put_number(struct writer *writer, const char *name, const char *type, const char *help, double value)
{
    put_head(writer, name, type, help);
    put(writer, "nibble_%s %.17g\n", name, value);
}

static void put_histogram(struct writer *writer, const char *name, const char *help,
                          const struct nib_histogram *histogram)
{
    put_head(writer, name, "histogram", help);
    uint64_t total = 0;
    for (int b = 0; b < NIB_METRIC_BUCKETS; b++) {
        total += histogram->counts[b];
        put(writer, "nibble_%s_bucket{le=\"%g\"} %llu\n", name, bounds[b], (unsigned long long)total);
    }
    total += histogram->counts[NIB_METRIC_BUCKETS];
    put(writer, "nibble_%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)total);
    put(writer, "nibble_%s_sum %.9g\nnibble_%s_count %llu\n", name, histogram->sum, name,
        (unsigned long long)total);
}

nib_status nib_metrics_write(struct nib_metrics *metrics, struct nib_bytes *out, struct nib_error *err)
{
    static const char *const finishes[] = {NULL, "stop", "length", "cancelled", "error"};
    struct writer w = {.out = out, .err = err};
    pthread_mutex_lock(&metrics->mutex);
    put_head(&w, "requests_total", "counter", "HTTP requests answered.");
    for (int i = 2; i < 6; i++)
        put(&w, "nibble_requests_total{status=\"%dxx\"} %llu\n", i, (unsigned long long)metrics->requests[i]);
    put_number(&w, "refused_total", "counter", "Requests refused because the queue was full.",
               (double)metrics->refused);
    put_head(&w, "answers_total", "counter", "Answers by the way the model ended.");
    for (int i = 1; i < 5; i++)
        put(&w, "nibble_answers_total{finish=\"%s\"} %llu\n", finishes[i],
            (unsigned long long)metrics->finished[i]);
    put_number(&w, "prompt_tokens_total", "counter", "Tokens of the prompts answered.",
               (double)metrics->prompt_tokens);
    put_number(&w, "generated_tokens_total", "counter", "Tokens generated.", (double)metrics->generated_tokens);
    put_number(&w, "running", "gauge", "Answers under way.", (double)metrics->running);
    put_number(&w, "waiting", "gauge", "Answers in the queue.", (double)metrics->waiting);
    put_number(&w, "kv_pages", "gauge", "Pages of the KV cache.", (double)metrics->load.pages);
    put_number(&w, "kv_pages_free", "gauge", "Pages that no answer holds.", (double)metrics->load.free_pages);
    put_number(&w, "prefix_pages", "gauge", "Pages without an answer that keep a prefix.",
               (double)metrics->load.cached_pages);
    put_number(&w, "cached_tokens_total", "counter", "Prompt tokens found in the prefix cache.",
               (double)metrics->cached_tokens);
    put_histogram(&w, "time_to_first_token_seconds", "From the request to its first token.",
                  &metrics->first_token);
    put_histogram(&w, "inter_token_seconds", "Between two tokens of an answer.", &metrics->next_token);
    pthread_mutex_unlock(&metrics->mutex);
    return w.status;
}
