// The operations of the table: each notes itself down. What they point to is copied or lives as long as the device, so a
// program can be compared with one of an earlier step, and run again.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_device.h"

_Static_assert((int)NIB_CUDA_TOPK_SOFTMAX == NIB_ROUTER_TOPK_SOFTMAX &&
                   (int)NIB_CUDA_SOFTMAX == NIB_ROUTER_SOFTMAX && (int)NIB_CUDA_SIGMOID == NIB_ROUTER_SIGMOID,
               "the kernels' routers are the models'");

// The next place in the program, zeroed; NULL when there is no memory for it.
static struct nib_cuda_op *note(struct nib_device *device, enum nib_cuda_op_kind kind, int64_t rows)
{
    if (device->n_ops == device->ops_capacity) {
        int32_t capacity = 2 * device->ops_capacity + 512;
        struct nib_cuda_op *grown = realloc(device->ops, (size_t)capacity * sizeof *grown);
        if (!grown) {
            if (!device->error.status)
                nib_fail_memory(&device->error, (size_t)capacity * sizeof *grown, "a step's program");
            return NULL;
        }
        device->ops = grown;
        device->ops_capacity = capacity;
    }
    struct nib_cuda_op *op = &device->ops[device->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->rows = (int32_t)rows;
    return op;
}

static struct nib_cuda_op *note_tokens(struct nib_device *device, enum nib_cuda_op_kind kind)
{
    return note(device, kind, device->step->n_tokens);
}

// Assigned member by member: a whole struct's assignment may leave padding as it was in the source.
static void set_matrix(struct nib_cuda_matrix *matrix, const struct nib_weight *weight)
{
    matrix->data = weight->data;
    matrix->element = weight->dtype == NIB_BF16 ? NIB_CUDA_BF16 : NIB_CUDA_F32;
    matrix->rows = weight->rows;
    matrix->cols = weight->cols;
}

static const float *vector_of(const struct nib_weight *weight)
{
    return weight ? weight->data : NULL;
}

void nib_cuda_note_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_EMBED);
    if (!op)
        return;
    op->y = y;
    set_matrix(&op->weight, table);
}

void nib_cuda_note_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                            const struct nib_weight *weight, float eps)
{
    struct nib_cuda_op *op = note(device, NIB_CUDA_RMS_NORM, rows);
    if (!op)
        return;
    op->y = y;
    op->x = x;
    op->vector = vector_of(weight);
    op->eps = eps;
}

void nib_cuda_note_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                             const struct nib_weight *weight, float eps)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_HEAD_NORM);
    if (!op)
        return;
    op->x = op->y = x;
    op->n_heads = (int32_t)n_heads;
    op->head_dim = (int32_t)head_dim;
    op->vector = vector_of(weight);
    op->weight.cols = weight->cols;
    op->eps = eps;
}

void nib_cuda_note_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                          const struct nib_projection *projections, int n_projections)
{
    for (int i = 0; i < n_projections; i++) {
        struct nib_cuda_op *op = note(device, NIB_CUDA_LINEAR, rows);
        if (!op)
            return;
        op->x = x;
        op->y = projections[i].y;
        set_matrix(&op->weight, projections[i].weight);
        op->vector = vector_of(projections[i].bias);
        op->exact = projections[i].exact;
        op->column = projections[i].column;
    }
}

void nib_cuda_note_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                                const struct nib_head_product *product)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_LINEAR_HEADS);
    if (!op)
        return;
    op->x = x;
    op->y = y;
    struct nib_cuda_head_product *p = &op->heads;
    p->y = y.data;
    p->x = x.data;
    p->y_width = y.width;
    p->x_width = x.width;
    set_matrix(&p->weight, product->weight);
    p->n_heads = (int32_t)product->n_heads;
    p->row_pitch = (int32_t)product->row_pitch;
    p->first_row = (int32_t)product->first_row;
    p->rows = (int32_t)product->rows;
    p->x_pitch = (int32_t)product->x_pitch;
    p->y_pitch = (int32_t)product->y_pitch;
    p->tail = (int32_t)product->tail;
    p->transposed = product->transposed;
}

// The device's copy of a table that the model owns, made the first time it is seen.
static const float *rope_table(struct nib_device *device, const struct nib_rope *rope)
{
    int64_t count = rope->dims / 2;
    for (int32_t i = 0; i < device->n_ropes; i++)
        if (device->ropes[i].host == rope->inv_freq && device->ropes[i].count >= count)
            return device->ropes[i].device;
    if (device->n_ropes == NIB_CUDA_ROPES) {
        if (!device->error.status)
            nib_fail(&device->error, NIB_ERR_LIMIT, "cuda: more than %d tables of rotary frequencies",
                     NIB_CUDA_ROPES);
        return NULL;
    }
    float *made;
    size_t bytes = (size_t)count * sizeof *made;
    struct nib_error err;
    if (nib_cuda_alloc_weight(device, bytes, "rotary frequencies", &made, &err)) {
        if (!device->error.status)
            device->error = err;
        return NULL;
    }
    nib_cuda_ok(device, cudaMemcpy(made, rope->inv_freq, bytes, cudaMemcpyHostToDevice), "rotary frequencies");
    device->ropes[device->n_ropes++] = (struct nib_cuda_table){rope->inv_freq, made, count};
    return made;
}

void nib_cuda_note_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                        const struct nib_rope *rope)
{
    const float *table = rope_table(device, rope);
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_ROPE);
    if (!op)
        return;
    op->x = op->y = x;
    op->n_heads = (int32_t)n_heads;
    op->head_dim = (int32_t)head_dim;
    op->rope.inv_freq = table;
    op->rope.first = (int32_t)rope->first;
    op->rope.dims = (int32_t)rope->dims;
    op->rope.scale = rope->scale;
    op->rope.interleaved = rope->interleaved;
}

static void set_cache(struct nib_cache *to, const struct nib_cache *from)
{
    to->data = from->data;
    to->width = from->width;
    to->group = from->group;
}

void nib_cuda_note_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_APPEND);
    if (!op)
        return;
    op->x = x;
    set_cache(&op->caches[0], &cache);
}

void nib_cuda_note_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q,
                          struct nib_cache keys, struct nib_cache values, const struct nib_attend *attend)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_ATTEND);
    if (!op)
        return;
    op->x = q;
    op->y = y;
    set_cache(&op->caches[0], &keys);
    set_cache(&op->caches[1], &values);
    op->attend = *attend;
    op->attend.sinks = NULL; // it may be the caller's own
    op->vector = vector_of(attend->sinks);
}

void nib_cuda_note_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                         const struct nib_router *router)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_ROUTE);
    if (!op)
        return;
    if (routes.top_k > device->limits.top_k && !device->error.status)
        nib_fail(&device->error, NIB_ERR_ARGUMENT, "cuda: %lld experts a token; the device was opened for %lld",
                 (long long)routes.top_k, (long long)device->limits.top_k);
    op->x = logits;
    op->routes = routes;
    op->ordinal = device->n_routes++;
    op->vector = vector_of(router->correction);
    struct nib_cuda_router *r = &op->router;
    r->kind = (enum nib_cuda_router_kind)router->kind;
    r->n_experts = (int32_t)router->n_experts;
    r->top_k = (int32_t)router->top_k;
    r->correction = op->vector;
    r->n_groups = (int32_t)router->n_groups;
    r->top_groups = (int32_t)router->top_groups;
    r->normalise = router->normalise;
    r->scale = router->scale;
}

void nib_cuda_note_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                       struct nib_routes routes, const struct nib_moe *moe)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_MOE);
    if (!op)
        return;
    op->x = x;
    op->y = y;
    op->routes = routes;
    op->moe = moe;
}

void nib_cuda_note_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_SILU_MUL);
    if (!op)
        return;
    op->y = gate;
    op->x = up;
}

void nib_cuda_note_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y)
{
    struct nib_cuda_op *op = note_tokens(device, NIB_CUDA_ADD);
    if (!op)
        return;
    op->y = x;
    op->x = y;
}

void nib_cuda_note_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x)
{
    struct nib_cuda_op *op = note(device, NIB_CUDA_GATHER, device->step->n_outputs);
    if (!op)
        return;
    op->x = x;
    op->y = y;
}

// Nothing to do on one rank.
void nib_cuda_note_all_reduce(struct nib_device *device, int64_t rows, struct nib_buffer x)
{
    (void)device;
    (void)rows;
    (void)x;
}

void nib_cuda_note_sample(struct nib_device *device, int64_t rows, struct nib_buffer logits,
                          const struct nib_draw *draws, struct nib_drawn *drawn)
{
    struct nib_cuda_op *op = note(device, NIB_CUDA_SAMPLE, rows);
    struct nib_cuda_sample_ask *asks = nib_cuda_asks(device, rows);
    if (!op || !asks)
        return;
    op->x = logits;
    device->drawn = drawn;
    device->n_drawn = (int32_t)rows;
    for (int64_t i = 0; i < rows; i++)
        asks[i] = (struct nib_cuda_sample_ask){
            .unit = draws[i].unit,
            .temperature = draws[i].temperature,
            .top_p = draws[i].top_p,
            .min_p = draws[i].min_p,
            .top_k = draws[i].top_k,
            .n_top = draws[i].n_top > 0 ? draws[i].n_top : 0,
            .logprobs = draws[i].n_top >= 0,
        };
}
