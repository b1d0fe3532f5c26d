// MoE layers on the device: one copy of the packed rows and scales, as served; or dense experts bound one by one.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_device.h"
#include "cuda/moe_outputs.h"
#include "ops/expert_biases.h"
#include "ops/expert_bytes.h"

enum { ALIGN = 256, KEEP_ALIGNED = 16, SPANS = 9 }; // spans an expert: see spans_of

// A run of bytes of the checkpoint that goes to the device in one piece.
struct span {
    const uint8_t *data;
    size_t bytes, at; // at: in the layer's memory
    char kind;        // 'p' packed, 's' scales, 'b' biases
};

static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->data > y->data) - (x->data < y->data);
}

static int spans_of(const struct nib_moe_weights *w, const struct nib_expert *e, struct span *spans)
{
    size_t row = (size_t)w->hidden / 2, scales = (size_t)w->hidden / NIB_MX_BLOCK;
    size_t rows = (size_t)((w->intermediate - 1) * w->gate_up_row_stride + 1);
    size_t down = (size_t)(w->hidden * w->intermediate);
    size_t bias = nib_dtype_size(w->bias_dtype);
    const struct span all[SPANS] = {
        {e->gate, rows * row, 0, 'p'},
        {e->up, rows * row, 0, 'p'},
        {e->gate_scales, rows * scales, 0, 's'},
        {e->up_scales, rows * scales, 0, 's'},
        {e->down, down / 2, 0, 'p'},
        {e->down_scales, down / NIB_MX_BLOCK, 0, 's'},
        {e->gate_bias, rows * bias, 0, 'b'},
        {e->up_bias, rows * bias, 0, 'b'},
        {e->down_bias, (size_t)w->hidden * bias, 0, 'b'},
    };
    int count = e->down_bias ? SPANS : SPANS - 3;
    memcpy(spans, all, (size_t)count * sizeof *spans);
    return count;
}

// Sorted spans that overlap become one, and so do neighbours of a kind where both stay aligned. Places them; returns the
// bytes of all.
static size_t merge_spans(struct span *spans, int64_t *count)
{
    int64_t kept = 0;
    for (int64_t i = 1; i < *count; i++) {
        struct span *last = &spans[kept], *next = &spans[i];
        size_t offset = (size_t)(next->data - last->data), end = offset + next->bytes;
        bool overlaps = offset < last->bytes;
        bool follows = offset == last->bytes && offset % KEEP_ALIGNED == 0 && next->kind == last->kind;
        if (overlaps || follows)
            last->bytes = end > last->bytes ? end : last->bytes;
        else
            spans[++kept] = *next;
    }
    *count = kept + 1;
    size_t at = 0;
    for (int64_t i = 0; i < *count; i++) {
        spans[i].at = at;
        at += (spans[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return at + ALIGN; // kernels scan scales in words
}

static nib_status gather_spans(const struct nib_moe_weights *w, struct span **spans, int64_t *count, size_t *bytes,
                               struct nib_error *err)
{
    *spans = malloc((size_t)w->n_experts * SPANS * sizeof **spans + 1);
    if (!*spans)
        return nib_fail_memory(err, (size_t)w->n_experts * SPANS * sizeof **spans, "the upload of experts");
    *count = 0;
    for (int64_t e = 0; e < w->n_experts; e++)
        *count += spans_of(w, &w->experts[e], *spans + *count);
    qsort(*spans, (size_t)*count, sizeof **spans, compare_spans);
    *bytes = merge_spans(*spans, count);
    return NIB_OK;
}

// The device address of what lies at a host address within one of the spans.
static const void *moved(const struct span *spans, int64_t count, const char *memory, const void *host)
{
    if (!host)
        return NULL;
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if ((const void *)spans[middle].data <= host)
            low = middle;
        else
            high = middle - 1;
    }
    return memory + spans[low].at + ((const uint8_t *)host - spans[low].data);
}

static nib_status make_up_span(struct nib_device *device, void *to, const struct span *span, enum nib_dtype bias,
                               struct nib_error *err)
{
    uint64_t seed = device->seed++ << 40;
    cudaError_t error;
    if (span->kind == 'b')
        error = nib_cuda_fill_normal(device->stream, to, bias == NIB_BF16 ? NIB_CUDA_BF16 : NIB_CUDA_F32,
                                     (int64_t)(span->bytes / nib_dtype_size(bias)), 0, 0.05f, seed);
    else
        error = nib_cuda_fill_bytes(device->stream, to, (int64_t)span->bytes, span->kind == 's' ? 118 : 0,
                                    span->kind == 's' ? 5 : 256, seed);
    return error ? nib_cuda_fail(err, error, "making up experts") : NIB_OK;
}

static nib_status place_experts(struct nib_device *device, struct nib_moe *moe, const struct nib_moe_weights *w,
                                struct nib_expert *experts, struct nib_error *err)
{
    struct span *spans = NULL;
    int64_t count = 0;
    size_t bytes = 0;
    nib_status status = gather_spans(w, &spans, &count, &bytes, err);
    if (!status)
        status = nib_cuda_alloc(&moe->memory, bytes, "the experts of a layer", err);
    for (int64_t i = 0; !status && i < count; i++) {
        void *to = (char *)moe->memory + spans[i].at;
        status = device->options.random_weights ? make_up_span(device, to, &spans[i], w->bias_dtype, err)
                                                : nib_cuda_upload(device, to, spans[i].data, spans[i].bytes, err);
    }
    for (int64_t e = 0; !status && e < w->n_experts; e++) {
        const struct nib_expert *from = &w->experts[e];
        experts[e] = (struct nib_expert){
            .gate = moved(spans, count, moe->memory, from->gate),
            .up = moved(spans, count, moe->memory, from->up),
            .gate_scales = moved(spans, count, moe->memory, from->gate_scales),
            .up_scales = moved(spans, count, moe->memory, from->up_scales),
            .down = moved(spans, count, moe->memory, from->down),
            .down_scales = moved(spans, count, moe->memory, from->down_scales),
            .gate_bias = moved(spans, count, moe->memory, from->gate_bias),
            .up_bias = moved(spans, count, moe->memory, from->up_bias),
            .down_bias = moved(spans, count, moe->memory, from->down_bias),
        };
    }
    free(spans);
    return status;
}

static nib_status grow_scratch(struct nib_device *device, size_t bytes, struct nib_error *err)
{
    if (bytes <= device->moe_scratch_bytes)
        return NIB_OK;
    cudaFree(device->moe_scratch);
    device->moe_scratch = NULL;
    device->moe_scratch_bytes = 0;
    nib_status status = nib_cuda_alloc(&device->moe_scratch, bytes, "scratch of the MoE layers", err);
    cudaError_t error = status ? cudaSuccess : cudaMemsetAsync(device->moe_scratch, 0, bytes, device->stream);
    if (error)
        return nib_cuda_fail(err, error, "clearing the scratch of the MoE layers");
    device->moe_scratch_bytes = status ? 0 : bytes;
    return status;
}

nib_status nib_cuda_bind_moe(struct nib_device *device, const struct nib_moe_weights *weights,
                             const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                             struct nib_error *err)
{
    struct nib_moe *bound = calloc(1, sizeof *bound);
    struct nib_expert *experts = calloc((size_t)weights->n_experts + 1, sizeof *experts);
    struct nib_widened_biases widened = {.experts = NULL};
    nib_status status = bound && experts ? NIB_OK : nib_fail_memory(err, sizeof *bound, "a MoE layer");
    if (!status && weights->bias_dtype == NIB_F16 && weights->experts[0].down_bias) {
        status = nib_widen_biases(weights, &widened, err);
        weights = &widened.weights;
    }
    if (!status)
        status = place_experts(device, bound, weights, experts, err);
    if (!status) {
        struct nib_moe_weights moved_weights = *weights;
        moved_weights.experts = experts;
        cudaError_t error = cudaStreamSynchronize(device->stream); // the plan reads the scales on another stream
        status = error ? nib_cuda_fail(err, error, "uploading experts")
                       : nib_moe_cuda_plan_create(&moved_weights, config, &bound->plan, err);
    }
    if (!status)
        status =
            grow_scratch(device, nib_moe_cuda_scratch_bytes(bound->plan, device->options.max_tokens, top_k), err);
    if (status) {
        nib_cuda_free_moe(device, bound);
    } else {
        bound->expert_bytes = nib_expert_bytes(weights);
        bound->first_expert = config->first_expert;
        bound->n_experts = weights->n_experts;
        bound->hidden = weights->hidden;
        bound->intermediate = weights->intermediate;
        *moe = bound;
    }
    nib_free_widened_biases(&widened);
    free(experts);
    return status;
}

static struct nib_cuda_matrix matrix_of(const struct nib_weight *weight)
{
    return (struct nib_cuda_matrix){weight->data, weight->dtype == NIB_BF16 ? NIB_CUDA_BF16 : NIB_CUDA_F32,
                                    weight->rows, weight->cols};
}

nib_status nib_cuda_bind_dense_moe(struct nib_device *device, const struct nib_dense_expert *experts,
                                   int64_t n_experts, const struct nib_activation *activation,
                                   struct nib_moe **moe, struct nib_error *err)
{
    struct nib_moe *bound = calloc(1, sizeof *bound);
    struct nib_cuda_dense_expert *host = calloc((size_t)n_experts + 1, sizeof *host);
    size_t bytes = (size_t)n_experts * sizeof *host;
    nib_status status = bound && host ? NIB_OK : nib_fail_memory(err, bytes, "a MoE layer");
    for (int64_t e = 0; !status && e < n_experts; e++) {
        host[e] = (struct nib_cuda_dense_expert){
            .gate = matrix_of(&experts[e].gate),
            .up = matrix_of(&experts[e].up),
            .down = matrix_of(&experts[e].down),
            .gate_bias = experts[e].gate_bias.data,
            .up_bias = experts[e].up_bias.data,
            .down_bias = experts[e].down_bias.data,
        };
        bound->expert_bytes = (uint64_t)(3 * host[e].gate.rows * host[e].gate.cols) *
                              (host[e].gate.element == NIB_CUDA_BF16 ? 2 : 4);
        bound->hidden = host[e].gate.cols;
        bound->intermediate = host[e].gate.rows;
    }
    if (!status)
        status = nib_cuda_alloc(&bound->dense, bytes, "a MoE layer", err);
    if (!status)
        status = nib_cuda_upload(device, bound->dense, host, bytes, err);
    if (!status)
        status = grow_scratch(device,
                              (size_t)device->options.max_tokens * (size_t)device->limits.top_k *
                                  (size_t)bound->intermediate * sizeof(float),
                              err);
    free(host);
    if (status) {
        nib_cuda_free_moe(device, bound);
        return status;
    }
    bound->activation = *activation;
    bound->n_experts = n_experts;
    *moe = bound;
    return NIB_OK;
}

void nib_cuda_free_moe(struct nib_device *device, struct nib_moe *moe)
{
    (void)device;
    if (!moe)
        return;
    nib_moe_cuda_plan_free(moe->plan);
    cudaFree(moe->dense);
    cudaFree(moe->memory);
    free(moe);
}

const char *nib_cuda_moe_kernel(const struct nib_moe *moe, const char **reason)
{
    if (moe->plan) {
        *reason = nib_moe_cuda_plan_reason(moe->plan);
        return nib_moe_cuda_plan_kernel(moe->plan);
    }
    *reason = "experts that are not MXFP4: a route at a time";
    return "dense";
}

// The step's routes were kept in a log on the device: looked at only when somebody asks.
uint64_t nib_cuda_expert_bytes_read(const struct nib_device *device)
{
    int64_t each = (int64_t)device->logged_tokens * device->logged_top_k;
    uint64_t bytes = 0;
    int32_t *ids = malloc((size_t)(each * device->logged_routes) * sizeof *ids + 1);
    if (ids && device->logged_routes &&
        cudaMemcpy2D(ids, (size_t)each * sizeof *ids, device->route_log,
                     (size_t)device->options.max_tokens * (size_t)device->logged_top_k * sizeof *ids,
                     (size_t)each * sizeof *ids, (size_t)device->logged_routes,
                     cudaMemcpyDeviceToHost) == cudaSuccess)
        for (int32_t i = 0; i < device->logged_routes; i++)
            bytes += device->routed[i]->expert_bytes *
                     (uint64_t)nib_distinct_experts(ids + i * each, each, device->routed[i]->first_expert,
                                                    device->routed[i]->n_experts);
    free(ids);
    return bytes;
}

bool nib_cuda_leaves_routes(const struct nib_cuda_op *moe)
{
    return moe->moe->plan && moe->rows <= NIB_MOE_OPEN_TOKENS;
}

cudaError_t nib_cuda_launch_moe(struct nib_device *device, const struct nib_cuda_op *op, const uint16_t *x_half,
                                struct nib_cuda_branch *branch, int *launches)
{
    const struct nib_moe *moe = op->moe;
    if (!moe->plan) {
        *launches = 2;
        return nib_cuda_dense_moe(device->stream, op->rows, (int32_t)op->routes.top_k, op->y.data, op->x.data,
                                  device->moe_scratch, moe->dense, (int32_t)moe->hidden,
                                  (int32_t)moe->intermediate, &moe->activation, op->routes.expert_ids,
                                  op->routes.weights);
    }
    // A kernel for many tokens may round otherwise than the one for few.
    int64_t piece = device->options.deterministic && op->rows > 64 ? 64 : op->rows;
    *launches = 0;
    for (int64_t first = 0; first < op->rows; first += piece) {
        int64_t here = op->rows - first < piece ? op->rows - first : piece, k = op->routes.top_k;
        struct nib_moe_call call = {
            .tokens = here,
            .top_k = k,
            .threads = 1,
            .x_dtype = NIB_BF16,
            .x = x_half + first * moe->hidden,
            .expert_ids = op->routes.expert_ids + first * k,
            .routing_weights = op->routes.weights + first * k,
            .y_dtype = NIB_F32,
            .y = (float *)op->y.data + first * moe->hidden,
            .scratch = device->moe_scratch,
            .scratch_bytes = device->moe_scratch_bytes,
        };
        if (branch) {
            call.y = NULL;
            call.y_per_route = nib_moe_cuda_own_outputs(moe->plan, &call);
            branch->rows = call.y_per_route;
            branch->weights = call.routing_weights;
            branch->top_k = (int32_t)k;
            branch->sum = op->y.data;
        }
        struct nib_error err;
        int count = 0;
        if (nib_moe_cuda_run(moe->plan, &call, device->stream, &count, &err)) {
            if (!device->error.status)
                device->error = err;
            return cudaErrorLaunchFailure;
        }
        *launches += count;
    }
    return cudaSuccess;
}
