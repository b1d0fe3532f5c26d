// Measuring: the time of each kind of operation, and how fast the memory can be read.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_device.h"

enum { MARKS = 2048, KINDS = 32 };

#define QUEUE_NANOSECONDS 6000000 // a step's launches take the host about half of this
#define READ_BYTES ((size_t)4 << 30)
#define READ_REPEATS 7

struct nib_cuda_profile {
    cudaEvent_t events[MARKS + 1]; // an event before the first launch and behind each
    struct {
        const char *name;
        int launches;
    } marks[MARKS];
    int n_marks;
    bool running;
    struct nib_op_time times[KINDS];
    int n_times;
};

static void free_profile(struct nib_cuda_profile *profile)
{
    if (!profile)
        return;
    for (int i = 0; i <= MARKS; i++)
        if (profile->events[i])
            cudaEventDestroy(profile->events[i]);
    free(profile);
}

void nib_cuda_set_profile(struct nib_device *device, bool on)
{
    if (!on || device->profile) {
        if (!on) {
            free_profile(device->profile);
            device->profile = NULL;
        }
        return;
    }
    struct nib_cuda_profile *profile = calloc(1, sizeof *profile);
    for (int i = 0; profile && i <= MARKS; i++)
        if (cudaEventCreate(&profile->events[i]) != cudaSuccess) {
            free_profile(profile);
            profile = NULL;
        }
    device->profile = profile;
}

// The stream waits first, so that the launches are all queued when they begin and no gap of the host's is measured.
void nib_cuda_profile_begin(struct nib_device *device)
{
    struct nib_cuda_profile *profile = device->profile;
    if (!profile)
        return;
    profile->n_marks = 0;
    profile->running = nib_cuda_delay(device->stream, QUEUE_NANOSECONDS) == cudaSuccess &&
                       cudaEventRecord(profile->events[0], device->stream) == cudaSuccess;
}

void nib_cuda_profile_mark(struct nib_device *device, const char *name, int launches)
{
    struct nib_cuda_profile *profile = device->profile;
    if (!profile || !profile->running || profile->n_marks == MARKS)
        return;
    profile->marks[profile->n_marks].name = name;
    profile->marks[profile->n_marks].launches = launches;
    profile->n_marks++;
    profile->running = cudaEventRecord(profile->events[profile->n_marks], device->stream) == cudaSuccess;
}

static struct nib_op_time *time_of(struct nib_cuda_profile *profile, const char *name)
{
    for (int i = 0; i < profile->n_times; i++)
        if (strcmp(profile->times[i].name, name) == 0)
            return &profile->times[i];
    if (profile->n_times == KINDS)
        return &profile->times[KINDS - 1];
    profile->times[profile->n_times] = (struct nib_op_time){.name = name};
    return &profile->times[profile->n_times++];
}

void nib_cuda_profile_finish(struct nib_device *device)
{
    struct nib_cuda_profile *profile = device->profile;
    if (!profile || !nib_cuda_ok(device, cudaStreamSynchronize(device->stream), "running a step"))
        return;
    profile->running = false;
    profile->n_times = 0;
    for (int i = 0; i < profile->n_marks; i++) {
        float milliseconds = 0;
        struct nib_op_time *time = time_of(profile, profile->marks[i].name);
        if (cudaEventElapsedTime(&milliseconds, profile->events[i], profile->events[i + 1]) == cudaSuccess)
            time->seconds += (double)milliseconds / 1e3;
        time->launches += profile->marks[i].launches;
    }
}

int nib_cuda_op_times(const struct nib_device *device, const struct nib_op_time **times)
{
    *times = device->profile ? device->profile->times : NULL;
    return device->profile ? device->profile->n_times : 0;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

nib_status nib_cuda_read_bandwidth(struct nib_device *device, double *bytes_per_second, struct nib_error *err)
{
    void *memory = NULL;
    uint32_t *sink = NULL;
    cudaEvent_t events[READ_REPEATS + 2] = {NULL};
    float times[READ_REPEATS] = {0};
    nib_status status = nib_cuda_alloc(&memory, READ_BYTES, "measuring the memory", err);
    if (!status)
        status = nib_cuda_alloc(&sink, sizeof *sink, "measuring the memory", err);
    cudaError_t error =
        status ? cudaSuccess : nib_cuda_fill_bytes(device->stream, memory, (int64_t)READ_BYTES, 0, 256, 1);
    for (int i = 0; !status && !error && i < READ_REPEATS + 2; i++) {
        error = cudaEventCreate(&events[i]);
        if (!error && i)
            error = nib_cuda_stream_read(device->stream, memory, (int64_t)READ_BYTES, sink);
        if (!error)
            error = cudaEventRecord(events[i], device->stream);
    }
    if (!status && !error)
        error = cudaStreamSynchronize(device->stream);
    for (int i = 0; !status && !error && i < READ_REPEATS; i++) // the first reading warms up
        error = cudaEventElapsedTime(&times[i], events[i + 1], events[i + 2]);
    for (int i = 0; i < READ_REPEATS + 2; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    cudaFree(memory);
    cudaFree(sink);
    if (!status && error)
        status = nib_cuda_fail(err, error, "measuring the memory");
    if (!status) {
        qsort(times, READ_REPEATS, sizeof *times, compare_floats);
        *bytes_per_second = (double)READ_BYTES / ((double)times[READ_REPEATS / 2] / 1e3);
    }
    return status;
}
