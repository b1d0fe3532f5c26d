#include "gpu_layer.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 256
#define POISON 0xd5

void gpu_check(int cuda_error, const char *doing)
{
    if (cuda_error) {
        printf("FAILED: %s: %s\n", doing, cudaGetErrorString((cudaError_t)cuda_error));
        exit(1);
    }
}

static void *need(void *pointer)
{
    if (!pointer) {
        printf("FAILED: out of memory\n");
        exit(1);
    }
    return pointer;
}

static void *on_device(size_t bytes)
{
    void *pointer;
    gpu_check((int)cudaMalloc(&pointer, bytes), "cudaMalloc");
    return pointer;
}

uint32_t gpu_random(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1du) >> 32);
}

float gpu_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)(gpu_random() >> 8) * 0x1p-24f;
    return sum - 6.0f;
}

// Where each part of a layer's bytes begins.
struct parts {
    int64_t rows13; // rows of W13 an expert, junk rows included
    size_t w13, s13, w2, s2, b13, b2, end, bias_bytes;
};

static struct parts parts_of(const struct gpu_shape *s)
{
    struct parts p = {.rows13 = s->intermediate * (s->rows == GPU_EVERY_THIRD ? 3 : 2)};
    size_t e = (size_t)s->experts, k = (size_t)s->hidden, i = (size_t)s->intermediate, r = (size_t)p.rows13;
    p.bias_bytes = s->bias == GPU_NO_BIAS ? 0 : s->bias == GPU_BIAS_F32 ? 4 : 2;
    p.s13 = e * r * k / 2;
    p.w2 = p.s13 + (e * r * k / 32 + 255) / 256 * 256;
    p.s2 = p.w2 + e * k * i / 2;
    p.b13 = p.s2 + (e * k * i / 32 + 255) / 256 * 256;
    p.b2 = p.b13 + e * r * p.bias_bytes;
    p.end = p.b2 + e * k * p.bias_bytes;
    return p;
}

static struct nib_expert *experts_of(const struct gpu_shape *s, uint8_t *base)
{
    struct parts p = parts_of(s);
    struct nib_expert *experts = need(calloc((size_t)s->experts, sizeof *experts));
    int64_t k = s->hidden, i = s->intermediate, up = s->rows == GPU_CONCATENATED ? i : 1;
    for (int64_t e = 0; e < s->experts; e++) {
        int64_t row = e * p.rows13;
        experts[e] = (struct nib_expert){.gate = base + p.w13 + row * (k / 2),
                                         .up = base + p.w13 + (row + up) * (k / 2),
                                         .gate_scales = base + p.s13 + row * (k / 32),
                                         .up_scales = base + p.s13 + (row + up) * (k / 32),
                                         .down = base + p.w2 + e * k * (i / 2),
                                         .down_scales = base + p.s2 + e * k * (i / 32)};
        if (s->bias == GPU_NO_BIAS)
            continue;
        experts[e].gate_bias = base + p.b13 + (size_t)row * p.bias_bytes;
        experts[e].up_bias = base + p.b13 + (size_t)(row + up) * p.bias_bytes;
        experts[e].down_bias = base + p.b2 + (size_t)(e * k) * p.bias_bytes;
    }
    return experts;
}

static struct gpu_layer allocate(const struct gpu_shape *shape)
{
    struct gpu_layer layer = {.shape = *shape, .bytes = parts_of(shape).end};
    layer.host = need(malloc(layer.bytes));
    layer.device = on_device(layer.bytes);
    layer.host_experts = experts_of(shape, layer.host);
    layer.device_experts = experts_of(shape, layer.device);
    return layer;
}

struct gpu_layer gpu_layer_create(const struct gpu_shape *shape)
{
    struct gpu_layer layer = allocate(shape);
    struct parts p = parts_of(shape);
    for (size_t i = 0; i < p.b13; i++) {
        bool scale = (i >= p.s13 && i < p.w2) || i >= p.s2;
        layer.host[i] = (uint8_t)(scale ? 118 + gpu_random() % 5 : gpu_random() >> 24);
    }
    for (size_t i = p.b13; i < p.end; i += p.bias_bytes) {
        float value = gpu_normal();
        uint16_t half = nib_bf16_from_f32(value);
        memcpy(layer.host + i, p.bias_bytes == 4 ? (void *)&value : (void *)&half, p.bias_bytes);
    }
    return layer;
}

struct gpu_layer gpu_layer_from(const struct gpu_shape *shape, const void *w13, const void *s13, const void *w2,
                                const void *s2, const void *b13, const void *b2)
{
    struct gpu_layer layer = allocate(shape);
    struct parts p = parts_of(shape);
    size_t e = (size_t)shape->experts, k = (size_t)shape->hidden, i = (size_t)shape->intermediate;
    memset(layer.host, 0, layer.bytes);
    memcpy(layer.host + p.w13, w13, e * 2 * i * k / 2);
    memcpy(layer.host + p.s13, s13, e * 2 * i * k / 32);
    memcpy(layer.host + p.w2, w2, e * k * i / 2);
    memcpy(layer.host + p.s2, s2, e * k * i / 32);
    if (b13)
        memcpy(layer.host + p.b13, b13, e * 2 * i * 4);
    if (b2)
        memcpy(layer.host + p.b2, b2, e * k * 4);
    return layer;
}

uint8_t *gpu_layer_packed2(const struct gpu_layer *layer, int64_t expert)
{
    return layer->host + (layer->host_experts[expert].down - layer->host);
}

uint8_t *gpu_layer_scales2(const struct gpu_layer *layer, int64_t expert)
{
    return layer->host + (layer->host_experts[expert].down_scales - layer->host);
}

uint8_t *gpu_layer_scales13(const struct gpu_layer *layer, int64_t expert)
{
    return layer->host + (layer->host_experts[expert].gate_scales - layer->host);
}

static struct nib_moe_weights weights_of(const struct gpu_layer *layer, const struct nib_expert *experts)
{
    const struct gpu_shape *s = &layer->shape;
    return (struct nib_moe_weights){.hidden = s->hidden,
                                    .intermediate = s->intermediate,
                                    .n_experts = s->experts,
                                    .gate_up_row_stride = s->rows == GPU_CONCATENATED  ? 1
                                                          : s->rows == GPU_INTERLEAVED ? 2
                                                                                       : 3,
                                    .bias_dtype = s->bias == GPU_BIAS_BF16 ? NIB_BF16 : NIB_F32,
                                    .experts = experts};
}

void gpu_layer_plan(struct gpu_layer *layer, int64_t first_expert)
{
    gpu_check((int)cudaMemcpy(layer->device, layer->host, layer->bytes, cudaMemcpyHostToDevice), "upload");
    struct nib_moe_weights weights = weights_of(layer, layer->device_experts);
    struct nib_moe_config config = {.activation = layer->shape.activation, .first_expert = first_expert};
    struct nib_error err;
    if (nib_moe_cuda_plan_create(&weights, &config, &layer->plan, &err) != NIB_OK) {
        printf("FAILED: plan: %s\n", err.message);
        exit(1);
    }
}

void gpu_layer_free(struct gpu_layer *layer)
{
    nib_moe_cuda_plan_free(layer->plan);
    cudaFree(layer->device);
    free(layer->host);
    free(layer->host_experts);
    free(layer->device_experts);
}

struct gpu_call gpu_call_create(const struct gpu_layer *layer, int64_t tokens, int64_t top_k, int64_t first_expert)
{
    int64_t k = layer->shape.hidden, e = layer->shape.experts;
    size_t routes = (size_t)(tokens * top_k), values = (size_t)(tokens * k);
    struct gpu_call call = {.tokens = tokens, .top_k = top_k, .hidden = k};
    call.x = need(malloc(values * sizeof *call.x + 1));
    call.ids = need(malloc(routes * sizeof *call.ids + 1));
    call.weights = need(malloc(routes * sizeof *call.weights + 1));
    for (size_t i = 0; i < values; i++)
        call.x[i] = nib_bf16_from_f32(gpu_normal());
    for (size_t i = 0; i < routes; i++) { // a tenth of the routes is foreign; an expert may come twice in a token
        call.ids[i] = (int32_t)(first_expert + (int64_t)(gpu_random() % (uint32_t)e));
        if (gpu_random() % 10 == 0)
            call.ids[i] = gpu_random() % 2 ? -1 : (int32_t)(first_expert + e);
        call.weights[i] = (float)(gpu_random() >> 8) * 0x1p-24f;
    }
    call.device_x = on_device(values * sizeof *call.x + 16);
    call.device_ids = on_device(routes * sizeof *call.ids + 16);
    call.device_weights = on_device(routes * sizeof *call.weights + 16);
    call.device_y = on_device(values * 4 + 2 * GUARD);
    call.device_per_route = on_device(routes * (size_t)k * 4 + 2 * GUARD);
    call.scratch_bytes = nib_moe_cuda_scratch_bytes(layer->plan, tokens, top_k);
    call.device_scratch = on_device(call.scratch_bytes);
    gpu_check((int)cudaMemset(call.device_scratch, 0, call.scratch_bytes), "clearing the scratch");
    gpu_call_upload(&call);
    return call;
}

void gpu_call_upload(const struct gpu_call *call)
{
    size_t routes = (size_t)(call->tokens * call->top_k), values = (size_t)(call->tokens * call->hidden);
    gpu_check((int)cudaMemcpy(call->device_x, call->x, values * 2, cudaMemcpyHostToDevice), "x");
    gpu_check((int)cudaMemcpy(call->device_ids, call->ids, routes * 4, cudaMemcpyHostToDevice), "ids");
    gpu_check((int)cudaMemcpy(call->device_weights, call->weights, routes * 4, cudaMemcpyHostToDevice), "weights");
}

void gpu_call_free(struct gpu_call *call)
{
    cudaFree(call->device_x);
    cudaFree(call->device_ids);
    cudaFree(call->device_weights);
    cudaFree(call->device_y);
    cudaFree(call->device_per_route);
    cudaFree(call->device_scratch);
    free(call->x);
    free(call->ids);
    free(call->weights);
}

// The host copy of a guarded output.
static uint8_t *fetch(const uint8_t *device, size_t bytes, const char *what)
{
    uint8_t *all = need(malloc(bytes + 2 * GUARD)), *own = need(malloc(bytes + 1));
    gpu_check((int)cudaMemcpy(all, device, bytes + 2 * GUARD, cudaMemcpyDeviceToHost), what);
    for (size_t i = 0; i < GUARD; i++)
        if (all[i] != POISON || all[GUARD + bytes + i] != POISON) {
            printf("FAILED: %s: the guard was written\n", what);
            exit(1);
        }
    memcpy(own, all + GUARD, bytes);
    free(all);
    return own;
}

static void run_call(const struct gpu_layer *layer, const struct gpu_call *call, enum nib_dtype y_dtype, void *y,
                     float *y_per_route, int *launches)
{
    struct nib_moe_call args = {.tokens = call->tokens,
                                .top_k = call->top_k,
                                .x_dtype = NIB_BF16,
                                .x = call->device_x,
                                .expert_ids = call->device_ids,
                                .routing_weights = call->device_weights,
                                .y_dtype = y_dtype,
                                .y = y,
                                .y_per_route = y_per_route,
                                .scratch = call->device_scratch,
                                .scratch_bytes = call->scratch_bytes};
    struct nib_error err;
    if (nib_moe_cuda_run(layer->plan, &args, NULL, launches, &err) != NIB_OK) {
        printf("FAILED: run: %s\n", err.message);
        exit(1);
    }
    gpu_check((int)cudaDeviceSynchronize(), "the MoE kernel");
}

float *gpu_call_run(const struct gpu_layer *layer, const struct gpu_call *call, enum nib_dtype y_dtype,
                    float **per_route, int *launches)
{
    size_t values = (size_t)(call->tokens * call->hidden), routes = (size_t)(call->tokens * call->top_k);
    size_t y_bytes = values * nib_dtype_size(y_dtype), route_bytes = routes * (size_t)call->hidden * 4;
    gpu_check((int)cudaMemset(call->device_y, POISON, y_bytes + 2 * GUARD), "poison");
    gpu_check((int)cudaMemset(call->device_per_route, POISON, route_bytes + 2 * GUARD), "poison");
    run_call(layer, call, y_dtype, call->device_y + GUARD,
             per_route ? (float *)(void *)(call->device_per_route + GUARD) : NULL, launches);
    uint8_t *raw = fetch(call->device_y, y_bytes, "y");
    if (per_route)
        *per_route = (float *)(void *)fetch(call->device_per_route, route_bytes, "y_per_route");
    if (y_dtype == NIB_F32)
        return (float *)(void *)raw;
    float *y = need(malloc(values * sizeof *y + 1));
    for (size_t i = 0; i < values; i++)
        y[i] = nib_bf16_to_f32(((uint16_t *)(void *)raw)[i]);
    free(raw);
    return y;
}

float *gpu_call_run_routes(const struct gpu_layer *layer, const struct gpu_call *call)
{
    size_t bytes = (size_t)(call->tokens * call->top_k * call->hidden) * 4;
    gpu_check((int)cudaMemset(call->device_per_route, POISON, bytes + 2 * GUARD), "poison");
    run_call(layer, call, NIB_F32, NULL, (float *)(void *)(call->device_per_route + GUARD), NULL);
    return (float *)(void *)fetch(call->device_per_route, bytes, "y_per_route");
}

float *gpu_call_ref(const struct gpu_layer *layer, const struct gpu_call *call, int64_t first_expert,
                    float **per_route)
{
    struct nib_moe_weights weights = weights_of(layer, layer->host_experts);
    struct nib_moe_config config = {
        .activation = layer->shape.activation, .first_expert = first_expert, .kernel = "ref"};
    struct nib_moe_plan *plan;
    struct nib_error err;
    if (nib_moe_plan_create(&weights, &config, &plan, &err) != NIB_OK) {
        printf("FAILED: ref: %s\n", err.message);
        exit(1);
    }
    int threads = omp_get_max_threads();
    size_t bytes = (nib_moe_scratch_bytes(plan, call->tokens, call->top_k, threads) + 63) & ~(size_t)63;
    float *y = need(malloc((size_t)(call->tokens * call->hidden) * sizeof *y + 1));
    *per_route = need(malloc((size_t)(call->tokens * call->top_k * call->hidden) * sizeof *y + 1));
    struct nib_moe_call args = {.tokens = call->tokens,
                                .top_k = call->top_k,
                                .threads = threads,
                                .x_dtype = NIB_BF16,
                                .x = call->x,
                                .expert_ids = call->ids,
                                .routing_weights = call->weights,
                                .y_dtype = NIB_F32,
                                .y = y,
                                .y_per_route = *per_route,
                                .scratch = need(aligned_alloc(64, bytes + 64)),
                                .scratch_bytes = bytes + 64};
    if (nib_moe_run(plan, &args, &err) != NIB_OK) {
        printf("FAILED: ref: %s\n", err.message);
        exit(1);
    }
    free(args.scratch);
    nib_moe_plan_free(plan);
    return y;
}
