#include "ops/dense_moe.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
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

// The routes to one expert that a linear takes at a time.
struct batch {
    int64_t n;
    struct nib_buffer x, gate, up, out; /* [rows, …] */
    int32_t *tokens;                    /* [rows] */
    float *weights;                     /* [rows] */
};

size_t nib_dense_moe_scratch_bytes(const struct nib_dense_moe *moe, int64_t rows)
{
    return (size_t)(rows * (2 * moe->hidden + 2 * moe->intermediate + 2)) * sizeof(float);
}

static struct batch lay_out(const struct nib_dense_moe *moe, int64_t rows, float *scratch)
{
    struct batch batch = {0};
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

static float *row_of(struct nib_buffer buffer, int64_t row)
{
    return (float *)buffer.data + row * buffer.width;
}

static void run_batch(const struct nib_dense_moe *moe, const struct nib_dense_moe_call *call,
                      const struct nib_dense_expert *expert, struct batch *batch)
{
    const struct nib_projection in[] = {{.y = batch->gate, .weight = &expert->gate, .bias = &expert->gate_bias},
                                        {.y = batch->up, .weight = &expert->up, .bias = &expert->up_bias}},
                                out = {.y = batch->out, .weight = &expert->down, .bias = &expert->down_bias};
    call->linear(call->device, batch->n, batch->x, in, 2);
    for (int64_t i = 0; i < batch->n * moe->intermediate; i++) {
        float *gate = (float *)batch->gate.data + i;
        *gate = nib_moe_ref_activate(&moe->activation, *gate, ((const float *)batch->up.data)[i]);
    }
    call->linear(call->device, batch->n, batch->gate, &out, 1);
    for (int64_t r = 0; r < batch->n; r++) {
        float *y = row_of(call->y, batch->tokens[r]);
        for (int64_t i = 0; i < moe->hidden; i++)
            y[i] += batch->weights[r] * row_of(batch->out, r)[i];
    }
    batch->n = 0;
}

static uint64_t bytes_of(const struct nib_weight *weight)
{
    return (uint64_t)weight->rows * nib_weight_row_bytes(weight);
}

uint64_t nib_dense_moe_run(const struct nib_dense_moe *moe, const struct nib_dense_moe_call *call)
{
    struct batch batch = lay_out(moe, call->rows, call->scratch);
    int64_t top_k = call->routes.top_k;
    uint64_t bytes = 0;
    memset(call->y.data, 0, (size_t)(call->tokens * call->y.width) * sizeof(float));
    // Experts in ascending order, so that a token's sum always runs in the same one.
    for (int32_t e = 0; e < moe->n_experts; e++) {
        bool used = false;
        for (int64_t route = 0; route < call->tokens * top_k; route++) {
            if (call->routes.expert_ids[route] != e)
                continue;
            used = true;
            batch.tokens[batch.n] = (int32_t)(route / top_k);
            batch.weights[batch.n] = call->routes.weights[route];
            memcpy(row_of(batch.x, batch.n), row_of(call->x, route / top_k), (size_t)moe->hidden * sizeof(float));
            if (++batch.n == call->rows)
                run_batch(moe, call, &moe->experts[e], &batch);
        }
        if (batch.n)
            run_batch(moe, call, &moe->experts[e], &batch);
        if (used)
            bytes +=
                bytes_of(&moe->experts[e].gate) + bytes_of(&moe->experts[e].up) + bytes_of(&moe->experts[e].down);
    }
    return bytes;
}
