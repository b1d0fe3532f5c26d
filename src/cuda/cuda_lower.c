// From a step's program to launches. Each function below takes the operation at `i`, and those behind it that its kernel
// does as well, and returns how many it took.
#include "cuda/cuda_lower.h"

#include "base/error.h"
#include "cuda/attend.h"
#include "cuda/layer_decode.h"

static const struct nib_cuda_branch no_branch = {.rows = NULL};

bool nib_cuda_launched(struct nib_device *device, cudaError_t error, const char *name, int launches)
{
    device->launched += launches;
    nib_cuda_profile_mark(device, name, launches);
    return nib_cuda_ok(device, error, name);
}

// ---- bf16 copies ----

void nib_cuda_set_half(struct nib_device *device, struct nib_buffer buffer, bool fresh)
{
    struct nib_cuda_buffer *known = nib_cuda_find_buffer(device, buffer.data);
    if (known)
        known->fresh_width = fresh ? buffer.width : 0;
}

static uint16_t *half_room(struct nib_device *device, struct nib_buffer buffer)
{
    struct nib_cuda_buffer *known = nib_cuda_find_buffer(device, buffer.data);
    return known ? known->half : NULL;
}

const uint16_t *nib_cuda_half_of(struct nib_device *device, struct nib_buffer buffer, int64_t rows)
{
    struct nib_cuda_buffer *known = nib_cuda_find_buffer(device, buffer.data);
    if (!known)
        return NULL;
    if (known->fresh_width != buffer.width) {
        nib_cuda_launched(device, nib_cuda_to_bf16(device->stream, known->half, buffer.data, rows * buffer.width),
                          "round", 1);
        known->fresh_width = buffer.width;
    }
    return known->half;
}

// ---- looking ahead ----

const struct nib_cuda_op *nib_cuda_op_at(const struct nib_device *device, int32_t i, enum nib_cuda_op_kind kind)
{
    return i < device->n_ops && device->ops[i].kind == kind ? &device->ops[i] : NULL;
}

bool nib_cuda_whole_rows(const struct nib_cuda_op *linear)
{
    return linear->column == 0 && linear->weight.rows == linear->y.width;
}

bool nib_cuda_is_dead(const struct nib_device *device, int32_t i, const void *data)
{
    for (; i < device->n_ops; i++) {
        const struct nib_cuda_op *op = &device->ops[i];
        bool in_place = op->kind == NIB_CUDA_SILU_MUL || op->kind == NIB_CUDA_ADD;
        if (op->x.data == data || (in_place && op->y.data == data))
            return false;
        if (op->y.data == data && (op->kind != NIB_CUDA_LINEAR || nib_cuda_whole_rows(op)))
            return true;
    }
    return data != device->key.wanted;
}

static int32_t lower_layer(struct nib_device *device, int32_t i, struct nib_cuda_branch branch);

// ---- rows ----

static int32_t lower_embed(struct nib_device *device, const struct nib_cuda_op *op)
{
    nib_cuda_launched(device, nib_cuda_embed(device->stream, &device->view, op->y.data, &op->weight), "embed", 1);
    nib_cuda_set_half(device, op->y, false);
    return 1;
}

static int32_t launch_norm(struct nib_device *device, const struct nib_cuda_op *op, struct nib_buffer x,
                           struct nib_cuda_branch branch, const int32_t *from)
{
    const struct nib_cuda_norm norm = {
        .x = x.data,
        .branch = branch,
        .y = op->y.data,
        .y_half = half_room(device, op->y),
        .weight = op->vector,
        .from = from,
        .rows = op->rows,
        .width = (int32_t)x.width,
        .eps = op->eps,
    };
    nib_cuda_launched(device, nib_cuda_rms_norm(device->stream, &norm), "norm", 1);
    if (branch.rows)
        nib_cuda_set_half(device, x, false);
    nib_cuda_set_half(device, op->y, true);
    return 1;
}

static int32_t lower_head_norm(struct nib_device *device, const struct nib_cuda_op *op)
{
    nib_cuda_launched(device,
                      nib_cuda_head_norm(device->stream, op->x.data, op->rows, op->n_heads, op->head_dim,
                                         op->vector, (int32_t)op->weight.cols, op->eps),
                      "head norm", 1);
    nib_cuda_set_half(device, op->y, false);
    return 1;
}

// The norm behind the addition at `i` if one launch does both, or NULL.
static const struct nib_cuda_op *norm_behind(const struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *add = nib_cuda_op_at(device, i, NIB_CUDA_ADD),
                             *norm = nib_cuda_op_at(device, i + 1, NIB_CUDA_RMS_NORM);
    return add && norm && norm->x.data == add->y.data && norm->y.data != add->y.data &&
                   norm->y.data != add->x.data && norm->rows == add->rows
               ? norm
               : NULL;
}

static int32_t lower_add(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = &device->ops[i], *norm = norm_behind(device, i);
    if (norm) {
        struct nib_cuda_branch branch = {.rows = op->x.data};
        if (device->left.rows)
            branch = device->left;
        device->left = no_branch;
        int32_t taken = lower_layer(device, i + 1, branch);
        return 1 + (taken ? taken : launch_norm(device, norm, norm->x, branch, NULL));
    }
    nib_cuda_launched(device, nib_cuda_add(device->stream, op->y.data, op->x.data, op->rows * op->y.width), "add",
                      1);
    nib_cuda_set_half(device, op->y, false);
    return 1;
}

static int32_t lower_gather(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = &device->ops[i], *norm = nib_cuda_op_at(device, i + 1, NIB_CUDA_RMS_NORM);
    if (norm && norm->x.data == op->y.data && norm->y.data == op->y.data && norm->rows == op->rows)
        return 1 + launch_norm(device, norm, op->x, no_branch, device->view.output_rows);
    nib_cuda_launched(device,
                      nib_cuda_gather(device->stream, op->y.data, op->x.data, device->view.output_rows, op->rows,
                                      (int32_t)op->x.width),
                      "gather", 1);
    nib_cuda_set_half(device, op->y, false);
    return 1;
}

static int32_t lower_silu_mul(struct nib_device *device, const struct nib_cuda_op *op)
{
    nib_cuda_launched(device,
                      nib_cuda_silu_mul(device->stream, op->y.data, half_room(device, op->y), op->x.data,
                                        op->rows * op->y.width),
                      "silu", 1);
    nib_cuda_set_half(device, op->y, true);
    return 1;
}

// ---- attention ----

static struct nib_cuda_cache cache_of(const struct nib_device *device, const struct nib_cache *cache)
{
    return (struct nib_cuda_cache){
        .data = cache->data,
        .width = cache->width,
        .tables =
            device->view.page_tables + (int64_t)cache->group * device->key.n_sequences * device->key.table_width,
    };
}

static struct nib_cuda_attention attention_of(struct nib_device *device, const struct nib_cuda_op *op)
{
    const struct nib_attend *a = &op->attend;
    return (struct nib_cuda_attention){
        .y = op->y.data,
        .y_half = half_room(device, op->y),
        .q = op->x.data,
        .keys = cache_of(device, &op->caches[0]),
        .values = cache_of(device, &op->caches[1]),
        .n_heads = (int32_t)a->n_heads,
        .n_kv_heads = (int32_t)a->n_kv_heads,
        .head_dim = (int32_t)a->head_dim,
        .v_dim = (int32_t)a->v_dim,
        .window = (int32_t)a->window,
        .scale = a->scale,
        .value_scale = a->value_scale,
        .sinks = op->vector,
        .longest = device->key.longest,
        .by_row = device->options.deterministic,
    };
}

// Whether the paged kernels take the call.
static bool is_paged(const struct nib_cuda_op *op, const struct nib_cuda_attention *call)
{
    return nib_cuda_attend_takes(call->head_dim, call->v_dim) && call->keys.width % 8 == 0 &&
           call->values.width % 8 == 0 && op->caches[0].group == op->caches[1].group;
}

static void attended(struct nib_device *device, const struct nib_cuda_op *op, cudaError_t error)
{
    nib_cuda_launched(device, error, op->attend.window ? "attend, window" : "attend", 1);
    nib_cuda_set_half(device, op->y, true);
}

// The attention behind the rotations and appends, in their launch, where each sequence has one row.
static bool attend_fresh(struct nib_device *device, int32_t i, const struct nib_cuda_op *q,
                         const struct nib_cuda_rotate_append *fresh)
{
    const struct nib_cuda_op *op = nib_cuda_op_at(device, i, NIB_CUDA_ATTEND);
    if (!op || op->x.data != q->x.data || device->options.deterministic ||
        !nib_cuda_is_dead(device, i + 1, op->x.data) || !nib_cuda_is_dead(device, i + 1, fresh->k))
        return false;
    const struct nib_cuda_attention call = attention_of(device, op);
    if (call.keys.data != fresh->keys.data || call.values.data != fresh->values.data || !is_paged(op, &call) ||
        !nib_cuda_attend_fresh_takes(&call, fresh))
        return false;
    attended(device, op, nib_cuda_attend_fresh(device->stream, &device->view, &call, fresh));
    return true;
}

// The rotation of an input at `i`, and of another one and the appends behind them, as far as they follow one another.
// Returns how many operations the call stands for.
static int32_t rotations_at(const struct nib_device *device, int32_t i, struct nib_cuda_rotate_append *call)
{
    const struct nib_cuda_op *q = &device->ops[i], *k = nib_cuda_op_at(device, i + 1, NIB_CUDA_ROPE),
                             *keys = nib_cuda_op_at(device, i + 2, NIB_CUDA_APPEND),
                             *values = nib_cuda_op_at(device, i + 3, NIB_CUDA_APPEND);
    *call = (struct nib_cuda_rotate_append){
        .q = q->x.data,
        .q_heads = q->n_heads,
        .head_dim = q->head_dim,
        .q_turn = q->rope,
    };
    if (!k || !keys || keys->x.data != k->x.data || k->x.data == q->x.data)
        return 1;
    call->k = k->x.data;
    call->k_heads = k->n_heads;
    call->k_dim = k->head_dim;
    call->k_turn = k->rope;
    call->keys = cache_of(device, &keys->caches[0]);
    if (!values || values->x.data == k->x.data)
        return 3;
    call->v = values->x.data;
    call->values = cache_of(device, &values->caches[0]);
    return 4;
}

static int32_t lower_rope(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *q = &device->ops[i];
    struct nib_cuda_rotate_append call;
    int32_t taken = rotations_at(device, i, &call);
    if (taken == 4 && attend_fresh(device, i + 4, q, &call))
        return 5;
    if (taken == 1) {
        nib_cuda_launched(
            device, nib_cuda_rotate(device->stream, &device->view, q->x.data, q->n_heads, q->head_dim, &q->rope),
            "rope", 1);
    } else {
        nib_cuda_launched(device, nib_cuda_rotate_and_append(device->stream, &device->view, &call), "rope, append",
                          1);
        nib_cuda_set_half(device, q[1].y, false);
    }
    nib_cuda_set_half(device, q->y, false);
    return taken;
}

static int32_t lower_append(struct nib_device *device, const struct nib_cuda_op *op)
{
    const struct nib_cuda_cache cache = cache_of(device, &op->caches[0]);
    nib_cuda_launched(device, nib_cuda_append(device->stream, &device->view, &cache, op->x.data), "append", 1);
    return 1;
}

static int32_t lower_attend(struct nib_device *device, const struct nib_cuda_op *op)
{
    const struct nib_cuda_attention call = attention_of(device, op);
    attended(device, op,
             is_paged(op, &call) ? nib_cuda_attend_paged(device->stream, &device->view, &call)
                                 : nib_cuda_attend_plain(device->stream, &device->view, &call));
    return 1;
}

static int32_t lower_linear_heads(struct nib_device *device, const struct nib_cuda_op *op)
{
    nib_cuda_launched(device, nib_cuda_linear_heads(device->stream, op->rows, &op->heads), "linear of heads", 1);
    nib_cuda_set_half(device, op->y, false);
    return 1;
}

// ---- experts ----

static int32_t *log_of(const struct nib_device *device, const struct nib_cuda_op *route)
{
    return device->route_log + route->ordinal * (int64_t)device->options.max_tokens * route->routes.top_k;
}

static int32_t lower_route(struct nib_device *device, const struct nib_cuda_op *op)
{
    nib_cuda_launched(device,
                      nib_cuda_route(device->stream, op->rows, op->x.data, &op->router, op->routes.expert_ids,
                                     op->routes.weights, log_of(device, op)),
                      "route", 1);
    return 1;
}

// Where nothing but the next addition reads the sum over routes, it is left to the launch of that.
static int32_t lower_moe(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = &device->ops[i], *add = norm_behind(device, i + 1) ? op + 1 : NULL;
    bool leaves = add && add->x.data == op->y.data && add->y.data != op->y.data && add->rows == op->rows &&
                  nib_cuda_leaves_routes(op) && nib_cuda_is_dead(device, i + 2, op->y.data);
    int launches = 0;
    cudaError_t error =
        nib_cuda_launch_moe(device, op, op->moe->plan ? nib_cuda_half_of(device, op->x, op->rows) : NULL,
                            leaves ? &device->left : NULL, &launches);
    nib_cuda_launched(device, error, "moe", launches);
    nib_cuda_set_half(device, op->y, false);
    return 1;
}

static int32_t lower_sample(struct nib_device *device, const struct nib_cuda_op *op)
{
    const struct nib_cuda_sample_ask *asks =
        (const struct nib_cuda_sample_ask *)((const char *)device->device_block + device->asks_at);
    nib_cuda_launched(device,
                      nib_cuda_sample(device->stream, op->rows, (int32_t)op->x.width, op->x.data, asks,
                                      device->device_answers, NULL),
                      "sample", 1);
    return 1;
}

// The norm at `i`, the router's product and the choice, where the three follow one another.
static bool norm_route_at(struct nib_device *device, int32_t i, struct nib_cuda_norm_route *call)
{
    const struct nib_cuda_op *norm = nib_cuda_op_at(device, i, NIB_CUDA_RMS_NORM),
                             *linear = nib_cuda_op_at(device, i + 1, NIB_CUDA_LINEAR),
                             *route = nib_cuda_op_at(device, i + 2, NIB_CUDA_ROUTE);
    if (device->options.deterministic || !norm || !linear || !route || !half_room(device, norm->y) ||
        norm->y.data == norm->x.data || !linear->exact || linear->x.data != norm->y.data ||
        linear->weight.element != NIB_CUDA_BF16 || linear->weight.cols != norm->x.width ||
        !nib_cuda_whole_rows(linear) || route->x.data != linear->y.data || linear->rows != norm->rows ||
        route->rows != norm->rows)
        return false;
    *call = (struct nib_cuda_norm_route){
        .x = norm->x.data,
        .y = norm->y.data,
        .y_half = half_room(device, norm->y),
        .norm_weight = norm->vector,
        .eps = norm->eps,
        .tokens = norm->rows,
        .width = (int32_t)norm->x.width,
        .weight = linear->weight.data,
        .bias = linear->vector,
        .logits = linear->y.data,
        .router = route->router,
        .ids = route->routes.expert_ids,
        .weights = route->routes.weights,
        .log = log_of(device, route),
        .counters = device->counters,
    };
    return true;
}

static int32_t norm_routed(struct nib_device *device, int32_t i, cudaError_t error, const char *name)
{
    nib_cuda_launched(device, error, name, 1);
    nib_cuda_set_half(device, device->ops[i].y, true);
    nib_cuda_set_half(device, device->ops[i + 1].y, false);
    return 3;
}

// ---- whole layers ----

// What lies between two MoE calls, from the norm at `i` on: how many operations, or 0 where anything else follows.
static int32_t layer_at(struct nib_device *device, int32_t i, struct nib_cuda_layer *layer)
{
    const struct nib_cuda_op *ops = device->ops, *norm = &ops[i];
    int32_t at = i + 1, n = nib_cuda_linears_at(device, at);
    if (n == 0 || ops[at].x.data != norm->y.data || norm->y.data == norm->x.data || ops[at].rows != norm->rows)
        return 0;
    layer->norm_weight = norm->vector;
    layer->eps = norm->eps;
    layer->x = norm->x.data;
    layer->qkv = nib_cuda_skinny_of(&ops[at], n, NULL, NULL, 0, norm->rows);
    at += n;
    if (!nib_cuda_op_at(device, at, NIB_CUDA_ROPE) || rotations_at(device, at, &layer->fresh) != 4)
        return 0;
    at += 4;
    const struct nib_cuda_op *attend = nib_cuda_op_at(device, at, NIB_CUDA_ATTEND),
                             *o = nib_cuda_op_at(device, at + 1, NIB_CUDA_LINEAR),
                             *add = nib_cuda_op_at(device, at + 2, NIB_CUDA_ADD);
    if (!attend || !o || !add || attend->x.data != layer->fresh.q || o->x.data != attend->y.data ||
        !nib_cuda_takes_bf16(o) || add->x.data != o->y.data || add->y.data != norm->x.data ||
        !nib_cuda_whole_rows(o) || o->rows != norm->rows || !norm_route_at(device, at + 3, &layer->route) ||
        layer->route.x != norm->x.data || layer->route.y != norm->y.data || layer->route.tokens != norm->rows)
        return 0;
    layer->attention = attention_of(device, attend);
    layer->o = nib_cuda_skinny_of(o, 1, add, NULL, 0, o->rows);
    if (!is_paged(attend, &layer->attention) || layer->attention.keys.data != layer->fresh.keys.data ||
        layer->attention.values.data != layer->fresh.values.data ||
        !nib_cuda_is_dead(device, at + 6, attend->x.data) || !nib_cuda_is_dead(device, at + 6, layer->fresh.k) ||
        !nib_cuda_is_dead(device, at + 6, attend->y.data) || !nib_cuda_is_dead(device, at + 6, o->y.data))
        return 0;
    return at + 6 - i;
}

// The norm at `i` and all that follows up to the choice of experts in one launch; 0 where that cannot be.
static int32_t lower_layer(struct nib_device *device, int32_t i, struct nib_cuda_branch branch)
{
    struct nib_cuda_layer layer = {
        .branch = branch,
        .partial = device->layer_partial,
        .counters = device->layer_counters,
    };
    if (device->key.longest != 1 || device->ops[i].rows > NIB_CUDA_LAYER_ROWS || device->options.deterministic)
        return 0;
    int32_t taken = layer_at(device, i, &layer);
    if (!taken || !nib_cuda_layer_takes(&layer, device->multiprocessors))
        return 0;
    norm_routed(device, i + taken - 3,
                nib_cuda_run_layer(device->stream, &device->view, &layer, device->multiprocessors),
                "layer up to its experts");
    nib_cuda_set_half(device, device->ops[i].x, false);
    return taken;
}

static int32_t lower_norm(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = &device->ops[i];
    struct nib_cuda_norm_route call;
    int32_t taken = lower_layer(device, i, no_branch);
    if (taken)
        return taken;
    if (norm_route_at(device, i, &call) && nib_cuda_norm_route_takes(op->rows, (int32_t)op->x.width, &call.router))
        return norm_routed(device, i, nib_cuda_norm_and_route(device->stream, &call), "norm, router, route");
    return launch_norm(device, op, op->x, no_branch, NULL);
}

static int32_t lower_one(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = &device->ops[i];
    switch (op->kind) {
    case NIB_CUDA_EMBED:
        return lower_embed(device, op);
    case NIB_CUDA_RMS_NORM:
        return lower_norm(device, i);
    case NIB_CUDA_HEAD_NORM:
        return lower_head_norm(device, op);
    case NIB_CUDA_LINEAR:
        return nib_cuda_lower_linear(device, i);
    case NIB_CUDA_LINEAR_HEADS:
        return lower_linear_heads(device, op);
    case NIB_CUDA_ROPE:
        return lower_rope(device, i);
    case NIB_CUDA_APPEND:
        return lower_append(device, op);
    case NIB_CUDA_ATTEND:
        return lower_attend(device, op);
    case NIB_CUDA_ROUTE:
        return lower_route(device, op);
    case NIB_CUDA_MOE:
        return lower_moe(device, i);
    case NIB_CUDA_SILU_MUL:
        return lower_silu_mul(device, op);
    case NIB_CUDA_ADD:
        return lower_add(device, i);
    case NIB_CUDA_GATHER:
        return lower_gather(device, i);
    case NIB_CUDA_SAMPLE:
        return lower_sample(device, op);
    }
    return 1;
}

bool nib_cuda_lower(struct nib_device *device)
{
    device->launched = 0;
    device->left = no_branch;
    for (int32_t i = 0; i < device->n_buffers; i++)
        device->buffers[i].fresh_width = 0;
    for (int32_t i = 0; i < device->n_ops && !device->error.status;)
        i += lower_one(device, i);
    return !device->error.status;
}
