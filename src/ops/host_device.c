#include "ops/host_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ops/expert_bytes.h"

void *nib_host_scratch(size_t bytes, struct nib_error *err)
{
    size_t whole = (bytes + NIB_HOST_ALIGN - 1) / NIB_HOST_ALIGN * NIB_HOST_ALIGN;
    void *scratch = aligned_alloc(NIB_HOST_ALIGN, whole ? whole : NIB_HOST_ALIGN);
    if (!scratch)
        nib_fail_memory(err, whole, "a device's scratch");
    return scratch;
}

void nib_host_clear(struct nib_device *device)
{
    free(device->moe_scratch);
    nib_free_narrowed(device->narrowed);
    nib_free_fp8_scales(device->scales);
}

nib_status nib_host_bind(struct nib_device *device, const struct nib_weight_view *view, struct nib_weight *weight,
                         struct nib_error *err)
{
    if (view->dtype == NIB_F8_E4M3)
        return nib_bind_fp8(view, &device->scales, weight, err);
    if (view->dtype == NIB_U8 && view->scales) {
        *weight = nib_mxfp4_weight(view);
        return NIB_OK;
    }
    if (!nib_dtype_is_plain(view->dtype))
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "tensor %s: the %s device has no linear for dtype %s",
                        view->name, device->ops->name, nib_dtype_name(view->dtype));
    if (device->options.dense_int8 && view->may_narrow)
        return nib_narrow_matrix(view, device->options.threads, &device->narrowed, weight, err);
    *weight =
        (struct nib_weight){.data = view->data, .dtype = view->dtype, .rows = view->rows, .cols = view->cols};
    return NIB_OK;
}

static nib_status grow_moe_scratch(struct nib_device *device, size_t bytes, struct nib_error *err)
{
    if (bytes <= device->moe_scratch_bytes)
        return NIB_OK;
    free(device->moe_scratch);
    device->moe_scratch = nib_host_scratch(bytes, err);
    device->moe_scratch_bytes = device->moe_scratch ? bytes : 0;
    return device->moe_scratch ? NIB_OK : NIB_ERR_MEMORY;
}

// Hands out a copy of `layer` when there is scratch for it; else frees what it owns.
static nib_status finish_moe(struct nib_device *device, struct nib_moe layer, size_t scratch_bytes,
                             struct nib_moe **moe, struct nib_error *err)
{
    nib_status status = grow_moe_scratch(device, scratch_bytes, err);
    struct nib_moe *bound = status ? NULL : malloc(sizeof *bound);
    if (!status && !bound)
        status = nib_fail_memory(err, sizeof *bound, "a MoE layer");
    if (status) {
        nib_moe_plan_free(layer.plan);
        nib_dense_moe_free(layer.dense);
        return status;
    }
    *bound = layer;
    *moe = bound;
    return NIB_OK;
}

nib_status nib_host_adopt_plan(struct nib_device *device, struct nib_moe_plan *plan,
                               const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                               int64_t top_k, struct nib_moe **moe, struct nib_error *err)
{
    struct nib_moe layer = {.plan = plan,
                            .expert_bytes = nib_expert_bytes(weights),
                            .first_expert = config->first_expert,
                            .n_experts = weights->n_experts};
    size_t bytes = nib_moe_scratch_bytes(plan, device->options.max_tokens, top_k, device->options.threads);
    return finish_moe(device, layer, bytes, moe, err);
}

nib_status nib_host_bind_dense_moe(struct nib_device *device, const struct nib_dense_expert *experts,
                                   int64_t n_experts, const struct nib_activation *activation,
                                   struct nib_moe **moe, struct nib_error *err)
{
    struct nib_moe layer = {.n_experts = n_experts};
    nib_status status = nib_dense_moe_create(experts, n_experts, activation, &layer.dense, err);
    if (status)
        return status;
    size_t bytes = nib_dense_moe_scratch_bytes(experts->gate.cols, experts->gate.rows, device->options.max_tokens);
    return finish_moe(device, layer, bytes, moe, err);
}

size_t nib_host_dense_moe_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    if (!query->n_experts)
        return 0;
    return nib_dense_moe_scratch_bytes(query->hidden, query->intermediate, options->max_tokens);
}

void nib_host_free_moe(struct nib_device *device, struct nib_moe *moe)
{
    (void)device;
    if (!moe)
        return;
    nib_moe_plan_free(moe->plan);
    nib_dense_moe_free(moe->dense);
    free(moe);
}

const char *nib_host_moe_kernel(const struct nib_moe *moe, const char **reason)
{
    if (moe->dense) {
        *reason = "experts that are not MXFP4: one after the other, by the kernel of dense matrices";
        return "linear";
    }
    *reason = nib_moe_plan_reason(moe->plan);
    return nib_moe_plan_kernel(moe->plan);
}

void nib_host_run_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, const uint16_t *rounded,
                      struct nib_routes routes, const struct nib_moe *moe)
{
    if (moe->dense) {
        device->expert_bytes_read += nib_dense_moe_run(moe->dense, device, y, x, routes);
        return;
    }
    int64_t tokens = device->step->n_tokens;
    struct nib_moe_call call = {
        .tokens = tokens,
        .top_k = routes.top_k,
        .threads = device->options.threads,
        .x_dtype = rounded ? NIB_BF16 : NIB_F32,
        .x = rounded ? (const void *)rounded : x.data,
        .expert_ids = routes.expert_ids,
        .routing_weights = routes.weights,
        .y_dtype = NIB_F32,
        .y = y.data,
        .scratch = device->moe_scratch,
        .scratch_bytes = device->moe_scratch_bytes,
    };
    device->expert_bytes_read +=
        moe->expert_bytes * (uint64_t)nib_distinct_experts(routes.expert_ids, tokens * routes.top_k,
                                                           moe->first_expert, moe->n_experts);
    struct nib_error err;
    if (nib_moe_run(moe->plan, &call, &err) && !device->error.status)
        device->error = err;
}

// Zeroed, so that no operation can meet a stray NaN; from calloc, so that untouched pages cost nothing.
static nib_status alloc_elements(int64_t a, int64_t b, int64_t c, size_t element, const char *what, void *pointer,
                                 struct nib_error *err)
{
    uint64_t count, bytes;
    if (a < 0 || b < 0 || c < 0 || !nib_mul_u64((uint64_t)a, (uint64_t)b, &count) ||
        !nib_mul_u64(count, (uint64_t)c, &count) || !nib_mul_u64(count, element, &bytes) ||
        bytes > PTRDIFF_MAX - NIB_HOST_ALIGN)
        return nib_fail(err, NIB_ERR_LIMIT, "%s of %lld x %lld x %lld elements is impossible", what, (long long)a,
                        (long long)b, (long long)c);
    void *data = calloc(bytes ? bytes : 1, 1);
    memcpy(pointer, &data, sizeof data);
    return data ? NIB_OK : nib_fail_memory(err, bytes, what);
}

nib_status nib_host_alloc_buffer(struct nib_device *device, int64_t rows, int64_t width, struct nib_buffer *buffer,
                                 struct nib_error *err)
{
    (void)device;
    *buffer = (struct nib_buffer){NULL, rows, width};
    return alloc_elements(rows, width, 1, sizeof(float), "an activation buffer", &buffer->data, err);
}

void nib_host_free_buffer(struct nib_device *device, struct nib_buffer *buffer)
{
    (void)device;
    free(buffer->data);
    *buffer = (struct nib_buffer){0};
}

nib_status nib_host_alloc_routes(struct nib_device *device, int64_t rows, int64_t top_k, struct nib_routes *routes,
                                 struct nib_error *err)
{
    *routes = (struct nib_routes){.top_k = top_k};
    nib_status status = alloc_elements(rows, top_k, 1, sizeof(int32_t), "routes", &routes->expert_ids, err);
    if (!status)
        status = alloc_elements(rows, top_k, 1, sizeof(float), "routes", &routes->weights, err);
    if (status)
        nib_host_free_routes(device, routes);
    return status;
}

void nib_host_free_routes(struct nib_device *device, struct nib_routes *routes)
{
    (void)device;
    free(routes->expert_ids);
    free(routes->weights);
    *routes = (struct nib_routes){0};
}

nib_status nib_host_alloc_cache(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                                int32_t group, struct nib_cache *cache, struct nib_error *err)
{
    *cache = (struct nib_cache){NULL, width, group};
    return alloc_elements(pages, page_tokens, width, device->ops->cache_element_bytes(&device->options),
                          "the KV cache", &cache->data, err);
}

void nib_host_free_cache(struct nib_device *device, struct nib_cache *cache)
{
    (void)device;
    free(cache->data);
    *cache = (struct nib_cache){0};
}

void nib_host_begin(struct nib_device *device, const struct nib_step *step)
{
    device->step = step;
    device->error.status = NIB_OK;
    device->expert_bytes_read = 0;
    if (step->n_tokens > device->options.max_tokens || step->n_sequences > device->options.max_sequences)
        nib_fail(&device->error, NIB_ERR_LIMIT,
                 "a step of %d tokens and %d sequences in a device opened for %d and %d", step->n_tokens,
                 step->n_sequences, device->options.max_tokens, device->options.max_sequences);
}

nib_status nib_host_end(struct nib_device *device, struct nib_error *err)
{
    device->step = NULL;
    if (device->error.status && err)
        *err = device->error;
    return device->error.status;
}

// There is one rank.
void nib_host_all_reduce(struct nib_device *device, int64_t rows, struct nib_buffer x)
{
    (void)device;
    (void)rows;
    (void)x;
}

uint64_t nib_host_expert_bytes_read(const struct nib_device *device)
{
    return device->expert_bytes_read;
}

void nib_host_read(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host)
{
    (void)device;
    memcpy(host, x.data, (size_t)(rows * x.width) * sizeof(float));
}
