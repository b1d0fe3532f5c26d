// The reference device: host memory, fp32 everywhere.
#include "ops/ref_device.h"

#include <stdlib.h>

#include "base/error.h"
#include "ops/moe_ref.h"

static nib_status ref_open(const struct nib_device_options *options, const struct nib_scratch_query *query,
                           struct nib_device **device, struct nib_error *err)
{
    (void)query;
    struct nib_device *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "the ref device");
    opened->ops = nib_ref_ops();
    opened->options = *options;
    *device = opened;
    return NIB_OK;
}

static void ref_close(struct nib_device *device)
{
    if (!device)
        return;
    nib_host_clear(device);
    free(device);
}

static size_t ref_scratch_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    if (!query->n_experts)
        return 0;
    struct nib_moe_plan shape = {.weights = {.hidden = query->hidden, .intermediate = query->intermediate}};
    size_t packed = nib_moe_ref.scratch_bytes(&shape, options->max_tokens, query->top_k, options->threads),
           dense = nib_host_dense_moe_bytes(options, query);
    return packed > dense ? packed : dense;
}

static size_t ref_cache_element_bytes(const struct nib_device_options *options)
{
    (void)options;
    return sizeof(float);
}

static nib_status ref_bind_moe(struct nib_device *device, const struct nib_moe_weights *weights,
                               const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                               struct nib_error *err)
{
    struct nib_moe_plan *plan;
    nib_status status = nib_moe_plan_make(weights, config, &nib_moe_ref, "the ref device has one", &plan, err);
    return status ? status : nib_host_adopt_plan(device, plan, weights, config, top_k, moe, err);
}

static const char *ref_linear_kernel(const struct nib_device *device, const struct nib_weight *weight,
                                     const char **reason)
{
    (void)device;
    (void)weight;
    *reason = "the ref device has one";
    return "ref";
}

const struct nib_ops *nib_ref_ops(void)
{
    static const struct nib_ops ops = {
        .name = "ref",
        .cache_element_bytes = ref_cache_element_bytes,
        .buffer_element_bytes = sizeof(float),
        .open = ref_open,
        .close = ref_close,
        .scratch_bytes = ref_scratch_bytes,
        .bind = nib_host_bind,
        .bind_moe = ref_bind_moe,
        .bind_dense_moe = nib_host_bind_dense_moe,
        .free_moe = nib_host_free_moe,
        .moe_kernel = nib_host_moe_kernel,
        .linear_kernel = ref_linear_kernel,
        .alloc_buffer = nib_host_alloc_buffer,
        .free_buffer = nib_host_free_buffer,
        .alloc_routes = nib_host_alloc_routes,
        .free_routes = nib_host_free_routes,
        .alloc_cache = nib_host_alloc_cache,
        .free_cache = nib_host_free_cache,
        .begin = nib_host_begin,
        .end = nib_host_end,
        .embed = nib_ref_embed,
        .rms_norm = nib_ref_rms_norm,
        .head_norm = nib_ref_head_norm,
        .linear = nib_ref_linear,
        .linear_heads = nib_ref_linear_heads,
        .rope = nib_ref_rope,
        .append = nib_ref_append,
        .attend = nib_ref_attend,
        .route = nib_ref_route,
        .moe = nib_ref_moe,
        .silu_mul = nib_ref_silu_mul,
        .add = nib_ref_add,
        .gather = nib_ref_gather,
        .all_reduce = nib_host_all_reduce,
        .expert_bytes_read = nib_host_expert_bytes_read,
        .read = nib_host_read,
    };
    return &ops;
}
