// The one thread that runs the model: takes jobs from a bounded queue, steps the batch, hands out events.
#ifndef NIB_SERVER_SCHEDULER_H
#define NIB_SERVER_SCHEDULER_H

#include <stdatomic.h>

#include "server/backend.h"
#include "server/metrics.h"

// One answer to generate. Its owner keeps it, and what its request points to, until the event that finishes it.
struct nib_job {
    struct nib_request request; // `user` is the scheduler's
    // Called on the scheduler's thread for every event. False: that is enough, cancel the rest.
    bool (*on_event)(struct nib_job *job, const struct nib_event *event);
    atomic_bool cancelled;
    // The scheduler's own.
    struct nib_job *next;
    int64_t id;
    bool counted_first;           // its first token has been seen
    double submitted, last_token; // seconds
};

struct nib_scheduler;

struct nib_scheduler_options {
    struct nib_backend backend; // borrowed
    struct nib_metrics *metrics;
    int64_t queue;                        // jobs that may wait beyond those that run
    void (*between_steps)(void *context); // NULL, or called on the scheduler's thread before each step
    void *context;
};

nib_status nib_scheduler_start(const struct nib_scheduler_options *options, struct nib_scheduler **scheduler,
                               struct nib_error *err);

// Queues all `n` jobs or none. NIB_ERR_LIMIT when the queue is full, NIB_ERR_CANCELLED when the scheduler is stopping,
// NIB_ERR_IO when the model has failed.
nib_status nib_scheduler_submit(struct nib_scheduler *scheduler, struct nib_job **jobs /* [n] */, int n,
                                struct nib_error *err);

// Soon; the job's last event says NIB_FINISH_CANCELLED unless it was over already. Any thread, any number of times.
static inline void nib_job_cancel(struct nib_job *job)
{
    atomic_store(&job->cancelled, true); // seen before the next step
}

bool nib_scheduler_healthy(struct nib_scheduler *scheduler);

// Takes no more jobs; waits up to `grace` seconds for those there are, cancels the rest, ends the thread.
void nib_scheduler_stop(struct nib_scheduler *scheduler, double grace);
void nib_scheduler_hurry(struct nib_scheduler *scheduler); // a stop under way waits no longer
void nib_scheduler_free(struct nib_scheduler *scheduler);  // after the stop; NULL is fine

#endif
