#include "ops/dense_moe.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ops/host_device.h"
#include "ops/moe_ref.h"

struct nib_dense_moe {
    const struct nib_dense_expert *experts; /* [n_experts] */
    int64_t n_experts, hidden, intermediate;
    struct nib_activation activation;
};

nib_status nib_dense_moe_create(const struct nib_dense_expert *experts, int64_t n_experts,
                                const struct nib_activation *activation, struct nib_dense_moe **moe,
                                struct nib_error *err)
{
    struct nib_dense_moe *made = calloc(1, sizeof *made);
    if (!made)
        return nib_fail_memory(err, sizeof *made, "a MoE layer");
    *made = (struct nib_dense_moe){experts, n_experts, experts[0].gate.cols, experts[0].gate.rows, *activation};
    *moe = made;
    return NIB_OK;
}

void nib_dense_moe_free(struct nib_dense_moe *moe)
{
    free(moe);
}

enum { COLUMNS = 256 }; // of a token's sum that a thread adds to at a time

// The routes to one expert that a linear takes at a time.
struct batch {
    int64_t n, most;
    struct nib_buffer x, gate, up, out; /* [most, …] */
    float *weights;                     /* [most] */
    int32_t *tokens;                    /* [most] */
};

size_t nib_dense_moe_scratch_bytes(int64_t hidden, int64_t intermediate, int64_t rows)
{
    return (size_t)(rows * (2 * hidden + 2 * intermediate + 2)) * sizeof(float);
}

static struct batch lay_out(const struct nib_dense_moe *moe, int64_t rows, float *scratch)
{
    struct batch batch = {.most = rows};
    struct nib_buffer *buffers[] = {&batch.x, &batch.out, &batch.gate, &batch.up};
    for (int i = 0; i < 4; i++) {
        int64_t width = i < 2 ? moe->hidden : moe->intermediate;
        *buffers[i] = (struct nib_buffer){scratch, rows, width};
        scratch += rows * width;
    }
    batch.weights = scratch;
    batch.tokens = (int32_t *)(void *)(scratch + rows);
    return batch;
}

static void gather(struct nib_device *device, const struct batch *batch, struct nib_buffer x)
{
#pragma omp parallel for num_threads(nib_host_threads(device, batch->n *x.width))
    for (int64_t r = 0; r < batch->n; r++)
        memcpy(nib_buffer_row(batch->x, r), nib_buffer_row(x, batch->tokens[r]), (size_t)x.width * sizeof(float));
}

// gate = act(gate, up)
static void activate(struct nib_device *device, const struct batch *batch, const struct nib_activation *activation)
{
    int64_t n = batch->n * batch->gate.width;
    float *gate = batch->gate.data;
    const float *up = batch->up.data;
#pragma omp parallel for num_threads(nib_host_threads(device, 16 * n))
    for (int64_t i = 0; i < n; i++)
        gate[i] = nib_moe_ref_activate(activation, gate[i], up[i]);
}

// Threads take columns, not rows: a token may have two routes to one expert.
static void add_weighted(struct nib_device *device, const struct batch *batch, struct nib_buffer y)
{
#pragma omp parallel for num_threads(nib_host_threads(device, batch->n *y.width))
    for (int64_t first = 0; first < y.width; first += COLUMNS) {
        int64_t end = first + COLUMNS < y.width ? first + COLUMNS : y.width;
        for (int64_t r = 0; r < batch->n; r++) {
            const float *out = nib_buffer_row(batch->out, r);
            float *sum = nib_buffer_row(y, batch->tokens[r]);
            for (int64_t i = first; i < end; i++)
                sum[i] += batch->weights[r] * out[i];
        }
    }
}

static void run_batch(const struct nib_dense_moe *moe, struct nib_device *device, int32_t e, struct batch *batch,
                      struct nib_buffer y, struct nib_buffer x)
{
    const struct nib_dense_expert *expert = &moe->experts[e];
    const struct nib_projection in[] = {{.y = batch->gate, .weight = &expert->gate, .bias = &expert->gate_bias},
                                        {.y = batch->up, .weight = &expert->up, .bias = &expert->up_bias}},
                                out = {.y = batch->out, .weight = &expert->down, .bias = &expert->down_bias};
    gather(device, batch, x);
    device->ops->linear(device, batch->n, batch->x, in, 2);
    activate(device, batch, &moe->activation);
    device->ops->linear(device, batch->n, batch->gate, &out, 1);
    add_weighted(device, batch, y);
    batch->n = 0;
}

static uint64_t bytes_of(const struct nib_weight *weight)
{
    return (uint64_t)weight->rows * nib_weight_row_bytes(weight);
}

uint64_t nib_dense_moe_run(const struct nib_dense_moe *moe, struct nib_device *device, struct nib_buffer y,
                           struct nib_buffer x, struct nib_routes routes)
{
    struct batch batch = lay_out(moe, device->options.max_tokens, device->moe_scratch);
    int64_t top_k = routes.top_k, tokens = device->step->n_tokens;
    uint64_t bytes = 0;
    memset(y.data, 0, (size_t)(tokens * y.width) * sizeof(float));
    // Experts in ascending order, so that a token's sum always runs in the same one.
    for (int32_t e = 0; e < moe->n_experts; e++) {
        bool used = false;
        for (int64_t route = 0; route < tokens * top_k; route++) {
            if (routes.expert_ids[route] != e)
                continue;
            used = true;
            batch.tokens[batch.n] = (int32_t)(route / top_k);
            batch.weights[batch.n] = routes.weights[route];
            if (++batch.n == batch.most)
                run_batch(moe, device, e, &batch, y, x);
        }
        if (batch.n)
            run_batch(moe, device, e, &batch, y, x);
        if (used)
            bytes +=
                bytes_of(&moe->experts[e].gate) + bytes_of(&moe->experts[e].up) + bytes_of(&moe->experts[e].down);
    }
    return bytes;
}
