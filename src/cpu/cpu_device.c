// The cpu device: host memory, fp32 activations, bf16 caches, weights where they lie.
#include "cpu/cpu_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ops/expert_bytes.h"

enum { PARTIAL_ROWS_PER_THREAD = 1024 };

// The sizes of the device's scratch, stated and allocated from one place.
struct layout {
    size_t rounded, attend, partials;
    int64_t rounded_elements, partial_rows, partial_pitch;
};

static size_t aligned(size_t bytes)
{
    return (bytes + NIB_CPU_ALIGN - 1) / NIB_CPU_ALIGN * NIB_CPU_ALIGN;
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
    free(device->rounded);
    free(device->attend_scratch);
    free(device->partials);
    free(device->moe_scratch);
    nib_free_narrowed(device->narrowed);
    nib_free_fp8_scales(device->scales);
    free(device);
}

static nib_status alloc_scratch(size_t bytes, void *pointer, struct nib_error *err)
{
    void *scratch = aligned_alloc(NIB_CPU_ALIGN, bytes ? bytes : NIB_CPU_ALIGN);
    if (!scratch)
        return nib_fail_memory(err, bytes, "the cpu device's scratch");
    memcpy(pointer, &scratch, sizeof scratch);
    return NIB_OK;
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
    struct nib_device *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "the cpu device");
    struct layout l = lay_out(options, query);
    opened->options = *options;
    opened->limits = *query;
    opened->kernels = kernels;
    opened->cache_parts = options->exact ? 2 : 1;
    opened->attend_scratch_bytes = l.attend;
    opened->partial_rows = l.partials ? l.partial_rows : 0;
    opened->partial_pitch = l.partial_pitch;
    status = alloc_scratch(l.rounded, &opened->rounded, err);
    if (!status)
        status = alloc_scratch(l.attend * (size_t)options->threads, &opened->attend_scratch, err);
    if (!status)
        status = alloc_scratch(l.partials, &opened->partials, err);
    if (status) {
        cpu_close(opened);
        return status;
    }
    *device = opened;
    return NIB_OK;
}

static size_t cpu_scratch_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    struct layout l = lay_out(options, query);
    return l.rounded + l.attend * (size_t)options->threads + l.partials;
}

static nib_status cpu_bind(struct nib_device *device, const struct nib_weight_view *view,
                           struct nib_weight *weight, struct nib_error *err)
{
    if (view->dtype == NIB_F8_E4M3)
        return nib_bind_fp8(view, &device->scales, weight, err);
    if (view->dtype == NIB_U8 && view->scales) {
        *weight = nib_mxfp4_weight(view);
        return NIB_OK;
    }
    if (view->dtype != NIB_BF16 && view->dtype != NIB_F32 && view->dtype != NIB_F16)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "tensor %s: the cpu device has no linear for dtype %s",
                        view->name, nib_dtype_name(view->dtype));
    if (device->options.dense_int8 && view->may_narrow)
        return nib_narrow_matrix(view, device->options.threads, &device->narrowed, weight, err);
    *weight =
        (struct nib_weight){.data = view->data, .dtype = view->dtype, .rows = view->rows, .cols = view->cols};
    return NIB_OK;
}

static nib_status grow_moe_scratch(struct nib_device *device, size_t wanted, struct nib_error *err)
{
    size_t bytes = aligned(wanted);
    if (bytes <= device->moe_scratch_bytes)
        return NIB_OK;
    free(device->moe_scratch);
    device->moe_scratch = NULL;
    device->moe_scratch_bytes = 0;
    nib_status status = alloc_scratch(bytes, &device->moe_scratch, err);
    if (!status)
        device->moe_scratch_bytes = bytes;
    return status;
}

static nib_status cpu_bind_moe(struct nib_device *device, const struct nib_moe_weights *weights,
                               const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                               struct nib_error *err)
{
    struct nib_moe *bound = calloc(1, sizeof *bound);
    if (!bound)
        return nib_fail_memory(err, sizeof *bound, "a MoE layer");
    struct nib_moe_config as_opened = *config;
    as_opened.exact = device->options.exact;
    nib_status status = nib_moe_plan_create(weights, &as_opened, &bound->plan, err);
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

static nib_status cpu_bind_dense_moe(struct nib_device *device, const struct nib_dense_expert *experts,
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

static void cpu_free_moe(struct nib_device *device, struct nib_moe *moe)
{
    (void)device;
    if (!moe)
        return;
    nib_moe_plan_free(moe->plan);
    nib_dense_moe_free(moe->dense);
    free(moe);
}

static const char *cpu_moe_kernel(const struct nib_moe *moe, const char **reason)
{
    if (moe->dense) {
        *reason = "experts that are not MXFP4: one after the other, by the kernel of dense matrices";
        return "linear";
    }
    *reason = nib_moe_plan_reason(moe->plan);
    return nib_moe_plan_kernel(moe->plan);
}

static const char *cpu_linear_kernel(const struct nib_device *device, const struct nib_weight *weight,
                                     const char **reason)
{
    if (weight->dtype == NIB_I8 && device->kernels->linear_bf16) {
        *reason = "8-bit rows with a scale each, as asked for; widened to bf16 in registers";
        return device->kernels->linear_name;
    }
    if (weight->dtype == NIB_BF16) {
        *reason = device->kernels->linear_reason;
        return device->kernels->linear_name;
    }
    if (weight->dtype == NIB_F8_E4M3 || weight->dtype == NIB_U8)
        *reason = "codes are decoded in registers as they lie, with their blocks' scales";
    else
        *reason = "weights that are not bf16 are widened to fp32 in registers";
    return device->kernels->wide_name;
}

static nib_status count_bytes(int64_t a, int64_t b, int64_t c, size_t element, const char *what, uint64_t *bytes,
                              struct nib_error *err)
{
    uint64_t count;
    if (a < 0 || b < 0 || c < 0 || !nib_mul_u64((uint64_t)a, (uint64_t)b, &count) ||
        !nib_mul_u64(count, (uint64_t)c, &count) || !nib_mul_u64(count, element, bytes) ||
        *bytes > PTRDIFF_MAX - NIB_CPU_ALIGN)
        return nib_fail(err, NIB_ERR_LIMIT, "%s of %lld x %lld x %lld elements is impossible", what, (long long)a,
                        (long long)b, (long long)c);
    return NIB_OK;
}

// Zeroed, so that no operation can meet a stray NaN; from calloc, so that untouched pages cost nothing.
static nib_status alloc_elements(int64_t a, int64_t b, int64_t c, size_t element, const char *what, void **data,
                                 struct nib_error *err)
{
    uint64_t bytes = 0;
    nib_status status = count_bytes(a, b, c, element, what, &bytes, err);
    if (status)
        return status;
    *data = calloc(bytes ? bytes : 1, 1);
    return *data ? NIB_OK : nib_fail_memory(err, bytes, what);
}

static nib_status cpu_alloc_buffer(struct nib_device *device, int64_t rows, int64_t width,
                                   struct nib_buffer *buffer, struct nib_error *err)
{
    (void)device;
    *buffer = (struct nib_buffer){NULL, rows, width};
    return alloc_elements(rows, width, 1, sizeof(float), "an activation buffer", &buffer->data, err);
}

static void cpu_free_buffer(struct nib_device *device, struct nib_buffer *buffer)
{
    (void)device;
    free(buffer->data);
    *buffer = (struct nib_buffer){0};
}

static void cpu_free_routes(struct nib_device *device, struct nib_routes *routes)
{
    (void)device;
    free(routes->expert_ids);
    free(routes->weights);
    *routes = (struct nib_routes){0};
}

static nib_status cpu_alloc_routes(struct nib_device *device, int64_t rows, int64_t top_k,
                                   struct nib_routes *routes, struct nib_error *err)
{
    void *ids = NULL, *weights = NULL;
    nib_status status = alloc_elements(rows, top_k, 1, sizeof(int32_t), "routes", &ids, err);
    if (!status)
        status = alloc_elements(rows, top_k, 1, sizeof(float), "routes", &weights, err);
    *routes = (struct nib_routes){ids, weights, top_k};
    if (status)
        cpu_free_routes(device, routes);
    return status;
}

static size_t cpu_cache_element_bytes(const struct nib_device_options *options)
{
    return (options->exact ? 2 : 1) * sizeof(uint16_t);
}

static nib_status cpu_alloc_cache(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                                  int32_t group, struct nib_cache *cache, struct nib_error *err)
{
    *cache = (struct nib_cache){NULL, width, group};
    return alloc_elements(pages, page_tokens, width, cpu_cache_element_bytes(&device->options), "the KV cache",
                          &cache->data, err);
}

static void cpu_free_cache(struct nib_device *device, struct nib_cache *cache)
{
    (void)device;
    free(cache->data);
    *cache = (struct nib_cache){0};
}

static void cpu_begin(struct nib_device *device, const struct nib_step *step)
{
    device->step = step;
    device->error.status = NIB_OK;
    device->expert_bytes_read = 0;
    if (step->n_tokens > device->options.max_tokens || step->n_sequences > device->options.max_sequences)
        nib_fail(&device->error, NIB_ERR_LIMIT,
                 "a step of %d tokens and %d sequences in a device opened for %d and %d", step->n_tokens,
                 step->n_sequences, device->options.max_tokens, device->options.max_sequences);
}

static nib_status cpu_end(struct nib_device *device, struct nib_error *err)
{
    device->step = NULL;
    if (device->error.status && err)
        *err = device->error;
    return device->error.status;
}

static void cpu_all_reduce(struct nib_device *device, int64_t rows, struct nib_buffer x)
{
    (void)device;
    (void)rows;
    (void)x;
}

static uint64_t cpu_expert_bytes_read(const struct nib_device *device)
{
    return device->expert_bytes_read;
}

static void cpu_read(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host)
{
    (void)device;
    memcpy(host, x.data, (size_t)(rows * x.width) * sizeof(float));
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
        .bind = cpu_bind,
        .bind_moe = cpu_bind_moe,
        .bind_dense_moe = cpu_bind_dense_moe,
        .free_moe = cpu_free_moe,
        .moe_kernel = cpu_moe_kernel,
        .linear_kernel = cpu_linear_kernel,
        .alloc_buffer = cpu_alloc_buffer,
        .free_buffer = cpu_free_buffer,
        .alloc_routes = cpu_alloc_routes,
        .free_routes = cpu_free_routes,
        .alloc_cache = cpu_alloc_cache,
        .free_cache = cpu_free_cache,
        .begin = cpu_begin,
        .end = cpu_end,
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
        .all_reduce = cpu_all_reduce,
        .expert_bytes_read = cpu_expert_bytes_read,
        .read = cpu_read,
    };
    return &ops;
}
