// The cpu device: host memory, fp32 activations, bf16 caches, weights where they lie.
#include "cpu/cpu_device.h"

#include <stdlib.h>

#include "base/error.h"
#include "cpu/moe_tier.h"

enum { PARTIAL_ROWS_PER_THREAD = 1024 };

// The sizes of the device's scratch, stated and allocated from one place.
struct layout {
    size_t rounded, attend, partials;
    int64_t rounded_elements, partial_rows, partial_pitch;
};

static size_t aligned(size_t bytes)
{
    return (bytes + NIB_HOST_ALIGN - 1) / NIB_HOST_ALIGN * NIB_HOST_ALIGN;
}

static struct layout lay_out(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    int64_t widest = query->max_width > query->hidden ? query->max_width : query->hidden;
    struct layout l = {
        .rounded_elements = options->max_tokens * nib_rounded_pitch(widest),
        .partial_rows = (int64_t)options->threads * PARTIAL_ROWS_PER_THREAD,
        .partial_pitch = nib_round_up(query->head_dim, 64) + 2,
    };
    l.rounded = aligned((size_t)l.rounded_elements * sizeof(uint16_t));
    l.attend = aligned(nib_cpu_attend_scratch_bytes(query, options->exact ? 2 : 1));
    l.partials = options->threads > 1 ? aligned((size_t)(l.partial_rows * l.partial_pitch) * sizeof(float)) : 0;
    return l;
}

static void cpu_close(struct nib_device *device)
{
    if (!device)
        return;
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    free(cpu->rounded);
    free(cpu->attend_scratch);
    free(cpu->partials);
    nib_host_clear(device);
    free(device);
}

static nib_status cpu_open(const struct nib_device_options *options, const struct nib_scratch_query *query,
                           struct nib_device **device, struct nib_error *err)
{
    enum nib_cpu_tier tier;
    nib_status status = nib_cpu_pick_tier(&tier, err);
    if (status)
        return status;
    if (options->exact && tier > NIB_CPU_AVX512) // the tiers above multiply in bf16
        tier = NIB_CPU_AVX512;
    const struct nib_cpu_kernels *kernels = nib_cpu_kernels_for(tier);
    if (!kernels)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "the cpu device needs AVX2, FMA and F16C; the tier in use is %s",
                        nib_cpu_tier_name(tier));
    struct nib_cpu_device *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "the cpu device");
    struct layout l = lay_out(options, query);
    *opened = (struct nib_cpu_device){
        .host = {.ops = nib_cpu_ops(), .options = *options},
        .limits = *query,
        .cache_parts = options->exact ? 2 : 1,
        .kernels = kernels,
        .rounded = nib_host_scratch(l.rounded, err),
        .attend_scratch = nib_host_scratch(l.attend * (size_t)options->threads, err),
        .attend_scratch_bytes = l.attend,
        .partials = nib_host_scratch(l.partials, err),
        .partial_rows = l.partials ? l.partial_rows : 0,
        .partial_pitch = l.partial_pitch,
    };
    if (!opened->rounded || !opened->attend_scratch || !opened->partials) {
        cpu_close(&opened->host);
        return NIB_ERR_MEMORY;
    }
    *device = &opened->host;
    return NIB_OK;
}

static size_t moe_scratch_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    if (!query->n_experts)
        return 0;
    size_t packed = nib_moe_scratch_bound(query->hidden, query->intermediate, query->n_experts,
                                          options->max_tokens, query->top_k, options->threads),
           dense = nib_host_dense_moe_bytes(options, query);
    return packed > dense ? packed : dense;
}

static size_t cpu_scratch_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    struct layout l = lay_out(options, query);
    return l.rounded + l.attend * (size_t)options->threads + l.partials + moe_scratch_bytes(options, query);
}

static size_t cpu_cache_element_bytes(const struct nib_device_options *options)
{
    return (options->exact ? 2 : 1) * sizeof(uint16_t);
}

static nib_status cpu_bind_moe(struct nib_device *device, const struct nib_moe_weights *weights,
                               const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                               struct nib_error *err)
{
    struct nib_moe_config as_opened = *config;
    as_opened.exact = device->options.exact;
    struct nib_moe_plan *plan;
    nib_status status = nib_moe_plan_create(weights, &as_opened, &plan, err);
    return status ? status : nib_host_adopt_plan(device, plan, weights, config, top_k, moe, err);
}

static const char *cpu_linear_kernel(const struct nib_device *device, const struct nib_weight *weight,
                                     const char **reason)
{
    const struct nib_cpu_kernels *kernels = nib_cpu_of(device)->kernels;
    if (weight->dtype == NIB_I8 && kernels->linear_bf16) {
        *reason = "8-bit rows with a scale each, as asked for; widened to bf16 in registers";
        return kernels->linear_name;
    }
    if (weight->dtype == NIB_BF16) {
        *reason = kernels->linear_reason;
        return kernels->linear_name;
    }
    if (weight->dtype == NIB_F8_E4M3 || weight->dtype == NIB_U8)
        *reason = "codes are decoded in registers as they lie, with their blocks' scales";
    else
        *reason = "weights that are not bf16 are widened to fp32 in registers";
    return kernels->wide_name;
}

const struct nib_ops *nib_cpu_ops(void)
{
    static const struct nib_ops ops = {
        .name = "cpu",
        .cache_element_bytes = cpu_cache_element_bytes,
        .buffer_element_bytes = sizeof(float),
        .open = cpu_open,
        .close = cpu_close,
        .scratch_bytes = cpu_scratch_bytes,
        .bind = nib_host_bind,
        .bind_moe = cpu_bind_moe,
        .bind_dense_moe = nib_host_bind_dense_moe,
        .free_moe = nib_host_free_moe,
        .moe_kernel = nib_host_moe_kernel,
        .linear_kernel = cpu_linear_kernel,
        .alloc_buffer = nib_host_alloc_buffer,
        .free_buffer = nib_host_free_buffer,
        .alloc_routes = nib_host_alloc_routes,
        .free_routes = nib_host_free_routes,
        .alloc_cache = nib_host_alloc_cache,
        .free_cache = nib_host_free_cache,
        .begin = nib_host_begin,
        .end = nib_host_end,
        .embed = nib_cpu_embed,
        .rms_norm = nib_cpu_rms_norm,
        .head_norm = nib_cpu_head_norm,
        .linear = nib_cpu_linear,
        .linear_heads = nib_cpu_linear_heads,
        .rope = nib_cpu_rope,
        .append = nib_cpu_append,
        .attend = nib_cpu_attend,
        .route = nib_cpu_route,
        .moe = nib_cpu_moe,
        .silu_mul = nib_cpu_silu_mul,
        .add = nib_cpu_add,
        .gather = nib_cpu_gather,
        .all_reduce = nib_host_all_reduce,
        .expert_bytes_read = nib_host_expert_bytes_read,
        .read = nib_host_read,
    };
    return &ops;
}
