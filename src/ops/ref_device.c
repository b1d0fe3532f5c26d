// The reference device: host memory, fp32 everywhere.
#include "ops/ref_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ops/expert_bytes.h"

static nib_status ref_open(const struct nib_device_options *options, const struct nib_scratch_query *query,
                           struct nib_device **device, struct nib_error *err)
{
    (void)query;
    struct nib_device *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "the ref device");
    opened->options = *options;
    *device = opened;
    return NIB_OK;
}

static void ref_close(struct nib_device *device)
{
    if (!device)
        return;
    free(device->moe_scratch);
    nib_free_narrowed(device->narrowed);
    nib_free_fp8_scales(device->scales);
    free(device);
}

// Per expert call: the plan states it exactly once bound; before that, an upper estimate of the same shape.
static size_t ref_scratch_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    int64_t widest = query->hidden > query->intermediate ? query->hidden : query->intermediate;
    return (size_t)(options->max_tokens * query->top_k * (widest + query->intermediate)) * sizeof(float);
}

static nib_status ref_bind(struct nib_device *device, const struct nib_weight_view *view,
                           struct nib_weight *weight, struct nib_error *err)
{
    if (view->dtype == NIB_F8_E4M3)
        return nib_bind_fp8(view, &device->scales, weight, err);
    if (view->dtype == NIB_U8 && view->scales) {
        *weight = nib_mxfp4_weight(view);
        return NIB_OK;
    }
    if (view->dtype != NIB_BF16 && view->dtype != NIB_F32 && view->dtype != NIB_F16)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "tensor %s: the ref device has no linear for dtype %s",
                        view->name, nib_dtype_name(view->dtype));
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
    device->moe_scratch = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    device->moe_scratch_bytes = device->moe_scratch ? bytes : 0;
    return device->moe_scratch ? NIB_OK : nib_fail_memory(err, bytes, "MoE scratch");
}

static nib_status ref_bind_moe(struct nib_device *device, const struct nib_moe_weights *weights,
                               const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                               struct nib_error *err)
{
    struct nib_moe_config as_ref = *config;
    as_ref.kernel = "ref";
    struct nib_moe *bound = calloc(1, sizeof *bound);
    if (!bound)
        return nib_fail_memory(err, sizeof *bound, "a MoE layer");
    nib_status status = nib_moe_plan_create(weights, &as_ref, &bound->plan, err);
    if (status) {
        free(bound);
        return status;
    }
    status = grow_moe_scratch(
        device, nib_moe_scratch_bytes(bound->plan, device->options.max_tokens, top_k, device->options.threads),
        err);
    if (status) {
        nib_moe_plan_free(bound->plan);
        free(bound);
        return status;
    }
    bound->expert_bytes = nib_expert_bytes(weights);
    bound->first_expert = config->first_expert;
    bound->n_experts = weights->n_experts;
    *moe = bound;
    return NIB_OK;
}

static nib_status ref_bind_dense_moe(struct nib_device *device, const struct nib_dense_expert *experts,
                                     int64_t n_experts, const struct nib_activation *activation,
                                     struct nib_moe **moe, struct nib_error *err)
{
    struct nib_moe *bound = calloc(1, sizeof *bound);
    if (!bound)
        return nib_fail_memory(err, sizeof *bound, "a MoE layer");
    nib_status status = nib_dense_moe_create(experts, n_experts, activation, &bound->dense, err);
    if (!status)
        status =
            grow_moe_scratch(device, nib_dense_moe_scratch_bytes(bound->dense, device->options.max_tokens), err);
    if (status) {
        nib_dense_moe_free(bound->dense);
        free(bound);
        return status;
    }
    *moe = bound;
    return NIB_OK;
}

static void ref_free_moe(struct nib_device *device, struct nib_moe *moe)
{
    (void)device;
    if (!moe)
        return;
    nib_moe_plan_free(moe->plan);
    nib_dense_moe_free(moe->dense);
    free(moe);
}

static const char *ref_moe_kernel(const struct nib_moe *moe, const char **reason)
{
    if (moe->dense) {
        *reason = "experts that are not MXFP4: one after the other, by the kernel of dense matrices";
        return "linear";
    }
    *reason = nib_moe_plan_reason(moe->plan);
    return nib_moe_plan_kernel(moe->plan);
}

static const char *ref_linear_kernel(const struct nib_device *device, const struct nib_weight *weight,
                                     const char **reason)
{
    (void)device;
    (void)weight;
    *reason = "the ref device has one";
    return "ref";
}

static void *alloc_elements(int64_t a, int64_t b, int64_t c, size_t element, const char *what,
                            struct nib_error *err)
{
    uint64_t count, bytes;
    if (!nib_mul_u64((uint64_t)a, (uint64_t)b, &count) || !nib_mul_u64(count, (uint64_t)c, &count) ||
        !nib_mul_u64(count, element, &bytes)) {
        nib_fail(err, NIB_ERR_LIMIT, "%s: %lld x %lld x %lld elements is too many", what, (long long)a,
                 (long long)b, (long long)c);
        return NULL;
    }
    void *data = calloc(bytes ? bytes : 1, 1);
    if (!data)
        nib_fail_memory(err, bytes, what);
    return data;
}

static nib_status ref_alloc_buffer(struct nib_device *device, int64_t rows, int64_t width,
                                   struct nib_buffer *buffer, struct nib_error *err)
{
    (void)device;
    *buffer = (struct nib_buffer){alloc_elements(rows, width, 1, sizeof(float), "an activation buffer", err), rows,
                                  width};
    return buffer->data ? NIB_OK : NIB_ERR_MEMORY;
}

static void ref_free_buffer(struct nib_device *device, struct nib_buffer *buffer)
{
    (void)device;
    free(buffer->data);
    buffer->data = NULL;
}

static nib_status ref_alloc_routes(struct nib_device *device, int64_t rows, int64_t top_k,
                                   struct nib_routes *routes, struct nib_error *err)
{
    (void)device;
    routes->top_k = top_k;
    routes->expert_ids = alloc_elements(rows, top_k, 1, sizeof(int32_t), "routes", err);
    routes->weights = alloc_elements(rows, top_k, 1, sizeof(float), "routes", err);
    if (routes->expert_ids && routes->weights)
        return NIB_OK;
    free(routes->expert_ids);
    free(routes->weights);
    *routes = (struct nib_routes){0};
    return NIB_ERR_MEMORY;
}

static void ref_free_routes(struct nib_device *device, struct nib_routes *routes)
{
    (void)device;
    free(routes->expert_ids);
    free(routes->weights);
    *routes = (struct nib_routes){0};
}

static size_t ref_cache_element_bytes(const struct nib_device_options *options)
{
    (void)options;
    return sizeof(float);
}

static nib_status ref_alloc_cache(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                                  int32_t group, struct nib_cache *cache, struct nib_error *err)
{
    (void)device;
    *cache = (struct nib_cache){alloc_elements(pages, page_tokens, width, sizeof(float), "the KV cache", err),
                                width, group};
    return cache->data ? NIB_OK : NIB_ERR_MEMORY;
}

static void ref_free_cache(struct nib_device *device, struct nib_cache *cache)
{
    (void)device;
    free(cache->data);
    cache->data = NULL;
}

static void ref_begin(struct nib_device *device, const struct nib_step *step)
{
    device->step = step;
    device->error.status = NIB_OK;
    device->expert_bytes_read = 0;
}

static nib_status ref_end(struct nib_device *device, struct nib_error *err)
{
    device->step = NULL;
    if (device->error.status && err)
        *err = device->error;
    return device->error.status;
}

static void ref_all_reduce(struct nib_device *device, int64_t rows, struct nib_buffer x)
{
    (void)device;
    (void)rows;
    (void)x;
}

static uint64_t ref_expert_bytes_read(const struct nib_device *device)
{
    return device->expert_bytes_read;
}

static void ref_read(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host)
{
    (void)device;
    memcpy(host, x.data, (size_t)(rows * x.width) * sizeof(float));
}

static const struct nib_ops ref_ops = {
    .name = "ref",
    .cache_element_bytes = ref_cache_element_bytes,
    .buffer_element_bytes = sizeof(float),
    .open = ref_open,
    .close = ref_close,
    .scratch_bytes = ref_scratch_bytes,
    .bind = ref_bind,
    .bind_moe = ref_bind_moe,
    .bind_dense_moe = ref_bind_dense_moe,
    .free_moe = ref_free_moe,
    .moe_kernel = ref_moe_kernel,
    .linear_kernel = ref_linear_kernel,
    .alloc_buffer = ref_alloc_buffer,
    .free_buffer = ref_free_buffer,
    .alloc_routes = ref_alloc_routes,
    .free_routes = ref_free_routes,
    .alloc_cache = ref_alloc_cache,
    .free_cache = ref_free_cache,
    .begin = ref_begin,
    .end = ref_end,
    .embed = ref_embed,
    .rms_norm = ref_rms_norm,
    .head_norm = ref_head_norm,
    .linear = ref_linear,
    .linear_heads = ref_linear_heads,
    .rope = ref_rope,
    .append = ref_append,
    .attend = ref_attend,
    .route = ref_route,
    .moe = ref_moe,
    .silu_mul = ref_silu_mul,
    .add = ref_add,
    .gather = ref_gather,
    .all_reduce = ref_all_reduce,
    .expert_bytes_read = ref_expert_bytes_read,
    .read = ref_read,
};

const struct nib_ops *nib_ref_ops(void)
{
    return &ref_ops;
}
