#include "server/scheduler.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/bandwidth.h"
#include "base/error.h"

struct nib_scheduler {
    struct nib_scheduler_options options;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    // With the mutex:
    struct nib_job *arrived; // in order
    int64_t in_flight;       // submitted and not finished
    bool stopping, hurry, failed;
    double deadline;
    // The thread's own:
    struct nib_job *running;
};

static void append(struct nib_job **list, struct nib_job *job)
{
    while (*list)
        list = &(*list)->next;
    *list = job;
}

// The job's last event; afterwards its owner may have freed it.
static void finish(struct nib_scheduler *scheduler, struct nib_job *job, const struct nib_event *event)
{
    struct nib_job **link = &scheduler->running;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    pthread_mutex_lock(&scheduler->mutex);
    scheduler->in_flight--;
    pthread_mutex_unlock(&scheduler->mutex);
    nib_metrics_finished(scheduler->options.metrics, event);
    job->on_event(job, event);
}

static void fail_job(struct nib_scheduler *scheduler, struct nib_job *job, const struct nib_error *err)
{
    struct nib_event event = {.user = job, .finish = NIB_FINISH_ERROR, .error = err};
    finish(scheduler, job, &event);
}

static void pass_event(void *context, const struct nib_event *event)
{
    struct nib_scheduler *scheduler = context;
    struct nib_job *job = event->user;
    if (event->has_token) {
        double now = nib_clock();
        nib_metrics_token(scheduler->options.metrics, !job->counted_first,
                          now - (job->counted_first ? job->last_token : job->submitted));
        job->counted_first = true;
        job->last_token = now;
    }
    if (event->finish != NIB_FINISH_NOT_YET)
        finish(scheduler, job, event);
    else if (!job->on_event(job, event))
        atomic_store(&job->cancelled, true);
}

// Moves what has arrived to the batch.
static void take_jobs(struct nib_scheduler *scheduler, struct nib_job *jobs)
{
    struct nib_backend *backend = &scheduler->options.backend;
    while (jobs) {
        struct nib_job *job = jobs;
        struct nib_error err;
        jobs = job->next;
        job->next = NULL;
        job->request.user = job;
        append(&scheduler->running, job);
        if (backend->add(backend->self, &job->request, &job->id, &err)) {
            job->id = -1;
            fail_job(scheduler, job, &err);
        }
    }
}

static void pass_cancels(struct nib_scheduler *scheduler)
{
    struct nib_backend *backend = &scheduler->options.backend;
    for (struct nib_job *job = scheduler->running; job; job = job->next)
        if (atomic_load(&job->cancelled))
            backend->cancel(backend->self, job->id);
}

static void cancel_all(struct nib_scheduler *scheduler)
{
    for (struct nib_job *job = scheduler->running; job; job = job->next)
        atomic_store(&job->cancelled, true);
}

// Sleeps until there is something to do; false when the thread is to end.
static bool await_work(struct nib_scheduler *scheduler, struct nib_job **arrived)
{
    pthread_mutex_lock(&scheduler->mutex);
    while (!scheduler->running && !scheduler->arrived && !scheduler->stopping)
        pthread_cond_wait(&scheduler->wake, &scheduler->mutex);
    *arrived = scheduler->arrived;
    scheduler->arrived = NULL;
    bool over = scheduler->stopping && !scheduler->running && !*arrived;
    bool cut = scheduler->stopping && (scheduler->hurry || nib_clock() > scheduler->deadline);
    pthread_mutex_unlock(&scheduler->mutex);
    if (over)
        return false;
    take_jobs(scheduler, *arrived);
    if (cut)
        cancel_all(scheduler);
    return true;
}

static void report_load(struct nib_scheduler *scheduler)
{
    struct nib_backend *backend = &scheduler->options.backend;
    struct nib_backend_load load;
    int64_t begun = 0;
    for (const struct nib_job *job = scheduler->running; job; job = job->next)
        begun += job->counted_first;
    pthread_mutex_lock(&scheduler->mutex);
    int64_t waiting = scheduler->in_flight - begun;
    pthread_mutex_unlock(&scheduler->mutex);
    backend->load(backend->self, &load);
    nib_metrics_load(scheduler->options.metrics, &load, begun, waiting);
}

static void *run(void *context)
{
    struct nib_scheduler *scheduler = context;
    struct nib_backend *backend = &scheduler->options.backend;
    struct nib_job *arrived;
    while (await_work(scheduler, &arrived)) {
        if (scheduler->options.between_steps)
            scheduler->options.between_steps(scheduler->options.context);
        pass_cancels(scheduler);
        struct nib_error err;
        bool busy;
        if (backend->step(backend->self, &busy, &err)) {
            pthread_mutex_lock(&scheduler->mutex);
            scheduler->failed = true;
            pthread_mutex_unlock(&scheduler->mutex);
            while (scheduler->running)
                fail_job(scheduler, scheduler->running, &err);
            // What the batch still holds is never stepped again.
        }
        report_load(scheduler);
    }
    return NULL;
}

nib_status nib_scheduler_start(const struct nib_scheduler_options *options, struct nib_scheduler **scheduler,
                               struct nib_error *err)
{
    struct nib_scheduler *started = calloc(1, sizeof *started);
    if (!started)
        return nib_fail_memory(err, sizeof *started, "the scheduler");
    started->options = *options;
    pthread_mutex_init(&started->mutex, NULL);
    pthread_cond_init(&started->wake, NULL);
    options->backend.listen(options->backend.self, pass_event, started);
    if (pthread_create(&started->thread, NULL, run, started)) {
        nib_scheduler_free(started);
        return nib_fail(err, NIB_ERR_MEMORY, "the scheduler's thread cannot be started");
    }
    *scheduler = started;
    return NIB_OK;
}

nib_status nib_scheduler_submit(struct nib_scheduler *scheduler, struct nib_job **jobs, int n,
                                struct nib_error *err)
{
    const struct nib_scheduler_options *options = &scheduler->options;
    int64_t most = options->queue + options->backend.max_sequences;
    pthread_mutex_lock(&scheduler->mutex);
    nib_status status = NIB_OK;
    if (scheduler->stopping)
        status = nib_fail(err, NIB_ERR_CANCELLED, "The server is shutting down.");
    else if (scheduler->failed)
        status = nib_fail(err, NIB_ERR_IO, "The model has failed; the server must be restarted.");
    else if (scheduler->in_flight + n > most)
        status = nib_fail(err, NIB_ERR_LIMIT, "The server is busy: %lld answers are under way or waiting.",
                          (long long)scheduler->in_flight);
    for (int i = 0; !status && i < n; i++) {
        jobs[i]->submitted = nib_clock();
        append(&scheduler->arrived, jobs[i]);
        scheduler->in_flight++;
    }
    pthread_cond_signal(&scheduler->wake);
    pthread_mutex_unlock(&scheduler->mutex);
    return status;
}

bool nib_scheduler_healthy(struct nib_scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->mutex);
    bool healthy = !scheduler->failed && !scheduler->stopping;
    pthread_mutex_unlock(&scheduler->mutex);
    return healthy;
}

void nib_scheduler_hurry(struct nib_scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->mutex);
    scheduler->hurry = true;
    pthread_cond_signal(&scheduler->wake);
    pthread_mutex_unlock(&scheduler->mutex);
}

void nib_scheduler_stop(struct nib_scheduler *scheduler, double grace)
{
    pthread_mutex_lock(&scheduler->mutex);
    scheduler->stopping = true;
    scheduler->deadline = nib_clock() + grace;
    pthread_cond_signal(&scheduler->wake);
    pthread_mutex_unlock(&scheduler->mutex);
    pthread_join(scheduler->thread, NULL);
}

void nib_scheduler_free(struct nib_scheduler *scheduler)
{
    if (!scheduler)
        return;
    pthread_cond_destroy(&scheduler->wake);
    pthread_mutex_destroy(&scheduler->mutex);
    free(scheduler);
}
