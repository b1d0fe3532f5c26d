// What the server counts, in the text format of Prometheus.
#ifndef NIB_SERVER_METRICS_H
#define NIB_SERVER_METRICS_H

#include <pthread.h>

#include "nibble/tokenizer.h"
#include "server/backend.h"

#define NIB_METRIC_BUCKETS 14

struct nib_histogram {
    uint64_t counts[NIB_METRIC_BUCKETS + 1]; // of the values up to each bound, and of those beyond
    double sum;
};

struct nib_metrics {
    pthread_mutex_t mutex;                                   // over everything
    uint64_t requests[6];                                    // by hundreds of their HTTP status
    uint64_t refused;                                        // of them, because the queue was full
    uint64_t finished[5];                                    // answers, by enum nib_finish
    uint64_t prompt_tokens, cached_tokens, generated_tokens; // cached: of the prompt's
    struct nib_histogram first_token, next_token;            // seconds
    int64_t running, waiting;
    struct nib_backend_load load;
};

void nib_metrics_init(struct nib_metrics *metrics);
void nib_metrics_destroy(struct nib_metrics *metrics);

void nib_metrics_request(struct nib_metrics *metrics, unsigned status);
void nib_metrics_token(struct nib_metrics *metrics, bool first, double seconds);
void nib_metrics_finished(struct nib_metrics *metrics, const struct nib_event *event);
void nib_metrics_load(struct nib_metrics *metrics, const struct nib_backend_load *load, int64_t running,
                      int64_t waiting);

// Appends all of it.
nib_status nib_metrics_write(struct nib_metrics *metrics, struct nib_bytes *out, struct nib_error *err);

#endif
