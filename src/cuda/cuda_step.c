// A step: its description to the device, its program as a graph or as launches, its results back.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_device.h"

enum {
    SMALLEST_REACH = 1024, // sequences shorter than this share one graph
    ASK_ALIGN = 16,
};

static void free_graph(struct nib_cuda_graph *graph)
{
    if (graph->exec)
        cudaGraphExecDestroy(graph->exec);
    free(graph->ops);
    memset(graph, 0, sizeof *graph);
}

static void forget_graphs(struct nib_device *device)
{
    for (int32_t i = 0; i < device->n_graphs; i++)
        free_graph(&device->graphs[i]);
    device->n_graphs = 0;
}

void nib_cuda_free_step(struct nib_device *device)
{
    forget_graphs(device);
    cudaFreeHost(device->host_block);
    cudaFree(device->device_block);
    cudaFreeHost(device->host_answers);
    cudaFree(device->device_answers);
    cudaFree(device->route_log);
    free(device->routed);
    free(device->ops);
}

// ---- the description ----

// Room for the largest description so far. Graphs hold its address, so they go when it moves.
static bool reserve_block(struct nib_device *device, size_t bytes)
{
    if (bytes <= device->block_capacity)
        return true;
    size_t capacity = 2 * bytes;
    forget_graphs(device);
    cudaFreeHost(device->host_block);
    cudaFree(device->device_block);
    device->host_block = device->device_block = NULL;
    device->block_capacity = 0;
    if (!nib_cuda_ok(device, cudaMallocHost((void **)&device->host_block, capacity), "the step's description") ||
        !nib_cuda_ok(device, cudaMalloc((void **)&device->device_block, capacity), "the step's description"))
        return false;
    device->block_capacity = capacity;
    return true;
}

// Copies an array into the block behind what is there and returns where the device will see it.
static const int32_t *put(struct nib_device *device, size_t *used, const int32_t *values, int64_t count)
{
    const int32_t *seen = device->device_block + *used;
    memcpy(device->host_block + *used, values, (size_t)count * sizeof *values);
    *used += (size_t)count;
    return seen;
}

// Tables of the pages that the step can reach, as wide for every step of the same reach.
static const int32_t *put_tables(struct nib_device *device, size_t *used, const struct nib_step *step,
                                 int32_t width)
{
    const int32_t *seen = device->device_block + *used;
    int32_t known = width < step->table_width ? width : step->table_width;
    for (int64_t row = 0; row < (int64_t)step->n_groups * step->n_sequences; row++, *used += (size_t)width) {
        int32_t *to = device->host_block + *used;
        memcpy(to, step->page_tables + row * step->table_width, (size_t)known * sizeof *to);
        for (int32_t i = known; i < width; i++)
            to[i] = -1;
    }
    return seen;
}

static int32_t shift_of(int32_t power_of_two)
{
    int32_t shift = 0;
    while (1 << shift < power_of_two)
        shift++;
    return shift;
}

static int32_t reach_of(const struct nib_step *step)
{
    int32_t last = 0, reach = SMALLEST_REACH;
    for (int32_t t = 0; t < step->n_tokens; t++)
        last = step->positions[t] > last ? step->positions[t] : last;
    while (reach <= last && reach < 1 << 30)
        reach *= 2;
    return reach;
}

static void describe(struct nib_device *device, const struct nib_step *step)
{
    int32_t reach = reach_of(step), width = reach / step->page_tokens, longest = 0;
    for (int32_t s = 0; s < step->n_sequences; s++) {
        int32_t rows = step->first_row[s + 1] - step->first_row[s];
        longest = rows > longest ? rows : longest;
    }
    device->key = (struct nib_cuda_key){
        step->n_tokens, step->n_sequences, step->n_outputs, step->n_groups, width, longest, NULL,
    };
    size_t asks = (size_t)step->n_outputs * sizeof(struct nib_cuda_sample_ask);
    size_t words = 3 * (size_t)step->n_tokens + (size_t)step->n_sequences + 1 + (size_t)step->n_outputs +
                   (size_t)step->n_groups * (size_t)step->n_sequences * (size_t)width;
    if (!reserve_block(device, words * sizeof(int32_t) + ASK_ALIGN + asks))
        return;
    size_t used = 0;
    device->view = (struct nib_cuda_step){
        .n_tokens = step->n_tokens,
        .n_sequences = step->n_sequences,
        .n_outputs = step->n_outputs,
        .page_tokens = step->page_tokens,
        .page_shift = shift_of(step->page_tokens),
        .table_width = width,
        .reach = reach,
    };
    device->view.tokens = put(device, &used, step->tokens, step->n_tokens);
    device->view.positions = put(device, &used, step->positions, step->n_tokens);
    device->view.sequence_of = put(device, &used, step->sequence_of, step->n_tokens);
    device->view.first_row = put(device, &used, step->first_row, step->n_sequences + 1);
    device->view.output_rows = put(device, &used, step->output_rows, step->n_outputs);
    device->view.page_tables = put_tables(device, &used, step, width);
    device->asks_at = (used * sizeof(int32_t) + ASK_ALIGN - 1) / ASK_ALIGN * ASK_ALIGN;
    device->block_bytes = used * sizeof(int32_t);
}

struct nib_cuda_sample_ask *nib_cuda_asks(struct nib_device *device, int64_t rows)
{
    if (device->error.status)
        return NULL;
    if (rows > device->step->n_outputs) {
        nib_fail(&device->error, NIB_ERR_ARGUMENT, "cuda: %lld draws from %d rows of logits", (long long)rows,
                 device->step->n_outputs);
        return NULL;
    }
    device->block_bytes = device->asks_at + (size_t)rows * sizeof(struct nib_cuda_sample_ask);
    return (struct nib_cuda_sample_ask *)((char *)device->host_block + device->asks_at);
}

void nib_cuda_begin(struct nib_device *device, const struct nib_step *step)
{
    device->step = step;
    device->error.status = NIB_OK;
    device->n_ops = device->n_routes = device->n_drawn = 0;
    device->flushed = false;
    device->steps++;
    if (device->broken) {
        nib_fail(&device->error, NIB_ERR_IO, "cuda: an earlier step failed: the device has to be opened anew");
        return;
    }
    if (!nib_cuda_ok(device, cudaSetDevice(device->options.ordinal), "choosing the device"))
        return;
    if (device->stages[0] && nib_cuda_ok(device, cudaStreamSynchronize(device->stream), "uploading weights"))
        nib_cuda_free_stages(device); // all weights are there
    describe(device, step);
}

// ---- the program ----

// Room for the ids of the step's routes, which name the experts that were read.
static bool reserve_log(struct nib_device *device)
{
    size_t each = (size_t)device->options.max_tokens * (size_t)device->limits.top_k * sizeof(int32_t);
    if (device->n_routes <= device->log_routes)
        return true;
    const struct nib_moe **grown =
        realloc(device->routed, (size_t)device->n_routes * sizeof(const struct nib_moe *));
    forget_graphs(device);
    cudaFree(device->route_log);
    device->route_log = NULL;
    device->log_routes = 0;
    if (!grown) {
        nib_fail_memory(&device->error, (size_t)device->n_routes * sizeof *grown, "a log of routes");
        return false;
    }
    device->routed = grown;
    if (!nib_cuda_ok(device, cudaMalloc((void **)&device->route_log, (size_t)device->n_routes * each),
                     "a log of routes"))
        return false;
    device->log_routes = device->n_routes;
    return true;
}

// Which layer's experts each route of the step chose from.
static void note_routed(struct nib_device *device)
{
    device->logged_routes = 0;
    device->logged_tokens = device->key.n_tokens;
    for (int32_t i = 0; i < device->n_ops && device->logged_routes < device->n_routes; i++)
        if (device->ops[i].kind == NIB_CUDA_MOE) {
            device->routed[device->logged_routes++] = device->ops[i].moe;
            device->logged_top_k = (int32_t)device->ops[i].routes.top_k;
        }
}

static struct nib_cuda_graph *find_graph(struct nib_device *device)
{
    size_t bytes = (size_t)device->n_ops * sizeof *device->ops;
    for (int32_t i = 0; i < device->n_graphs; i++) {
        struct nib_cuda_graph *graph = &device->graphs[i];
        if (memcmp(&graph->key, &device->key, sizeof device->key) == 0 && graph->n_ops == device->n_ops &&
            memcmp(graph->ops, device->ops, bytes) == 0)
            return graph;
    }
    return NULL;
}

// A place for a new graph: that of the one that was not used for longest, once all are taken.
static struct nib_cuda_graph *graph_place(struct nib_device *device)
{
    if (device->n_graphs < NIB_CUDA_GRAPHS)
        return &device->graphs[device->n_graphs++];
    struct nib_cuda_graph *oldest = &device->graphs[0];
    for (int32_t i = 1; i < device->n_graphs; i++)
        if (device->graphs[i].used < oldest->used)
            oldest = &device->graphs[i];
    free_graph(oldest);
    return oldest;
}

static bool capture(struct nib_device *device, cudaGraphExec_t *exec)
{
    cudaGraph_t graph = NULL;
    if (!nib_cuda_ok(device, cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal),
                     "capturing"))
        return false;
    bool fine = nib_cuda_lower(device);
    cudaError_t error = cudaStreamEndCapture(device->stream, &graph);
    fine = fine && nib_cuda_ok(device, error, "capturing a step");
    fine = fine && nib_cuda_ok(device, cudaGraphInstantiate(exec, graph, 0), "instantiating a step's graph");
    if (graph)
        cudaGraphDestroy(graph);
    return fine;
}

static struct nib_cuda_graph *new_graph(struct nib_device *device)
{
    size_t bytes = (size_t)device->n_ops * sizeof *device->ops;
    struct nib_cuda_graph made = {.key = device->key, .n_ops = device->n_ops, .ops = malloc(bytes + 1)};
    if (!made.ops) {
        nib_fail_memory(&device->error, bytes, "a step's program");
        return NULL;
    }
    memcpy(made.ops, device->ops, bytes);
    if (!capture(device, &made.exec)) {
        free_graph(&made);
        return NULL;
    }
    made.launches = device->launched;
    struct nib_cuda_graph *graph = graph_place(device);
    *graph = made;
    return graph;
}

static void run_program(struct nib_device *device)
{
    bool decodes = device->key.longest == 1 && !device->profile;
    if (!decodes) {
        nib_cuda_profile_begin(device);
        nib_cuda_lower(device);
        nib_cuda_profile_finish(device);
        return;
    }
    struct nib_cuda_graph *graph = find_graph(device);
    if (!graph)
        graph = new_graph(device);
    if (!graph)
        return;
    graph->used = device->steps;
    device->launched = graph->launches;
    nib_cuda_ok(device, cudaGraphLaunch(graph->exec, device->stream), "launching a step's graph");
}

// Starts what was noted since begin. A step has one program: operations noted after it has started would be lost.
static void flush(struct nib_device *device)
{
    if (device->flushed || device->error.status)
        return;
    device->flushed = true;
    if (!reserve_log(device) ||
        !nib_cuda_ok(device,
                     cudaMemcpyAsync(device->device_block, device->host_block, device->block_bytes,
                                     cudaMemcpyHostToDevice, device->stream),
                     "uploading a step"))
        return;
    note_routed(device);
    run_program(device);
    if (!device->error.status && device->n_drawn)
        nib_cuda_ok(device,
                    cudaMemcpyAsync(device->host_answers, device->device_answers,
                                    (size_t)device->n_drawn * sizeof *device->host_answers, cudaMemcpyDeviceToHost,
                                    device->stream),
                    "reading drawn tokens");
}

// ---- results ----

static void hand_out_draws(struct nib_device *device)
{
    for (int32_t i = 0; i < device->n_drawn; i++) {
        const struct nib_cuda_sample_answer *from = &device->host_answers[i];
        struct nib_drawn *to = &device->drawn[i];
        to->token = from->token;
        to->logprob = from->logprob;
        to->n_top = from->n_top;
        memcpy(to->top_tokens, from->top_tokens, sizeof to->top_tokens);
        memcpy(to->top_logprobs, from->top_logprobs, sizeof to->top_logprobs);
    }
}

nib_status nib_cuda_end(struct nib_device *device, struct nib_error *err)
{
    flush(device);
    cudaError_t error = device->broken ? cudaSuccess : cudaStreamSynchronize(device->stream);
    if (error) // a kernel's own failure: the context is lost
        device->broken = true;
    nib_cuda_ok(device, error, "running a step");
    if (!device->error.status)
        hand_out_draws(device);
    device->step = NULL;
    if (device->error.status && err)
        *err = device->error;
    return device->error.status;
}

void nib_cuda_read(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host)
{
    size_t values = (size_t)(rows * x.width);
    if (device->step) {
        device->key.wanted = device->flushed ? device->key.wanted : x.data;
        flush(device);
    }
    if (!device->error.status &&
        nib_cuda_ok(device,
                    cudaMemcpyAsync(host, x.data, values * sizeof *host, cudaMemcpyDeviceToHost, device->stream),
                    "reading logits") &&
        nib_cuda_ok(device, cudaStreamSynchronize(device->stream), "reading logits"))
        return;
    device->broken = device->broken || !device->step;
    for (size_t i = 0; i < values; i++) // after `end` there is no other way to say so
        host[i] = NAN;
}
