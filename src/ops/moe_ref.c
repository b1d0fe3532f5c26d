#include "ops/moe_ref.h"

#include <math.h>
#include <omp.h>
#include <string.h>

// The scratch: x and the intermediate in fp32 for all threads, then for each thread two decoded rows and one value a route.
struct ref {
    const struct nib_moe_plan *plan;
    const struct nib_moe_weights *weights;
    const struct nib_moe_call *call;
    int64_t routes;
    float *x; /* [T, K] */
    float *h; /* [routes, I] */
    float *own;
    size_t own_floats;
};

static size_t thread_floats(const struct nib_moe_weights *w, int64_t routes)
{
    int64_t longer = w->hidden > w->intermediate ? w->hidden : w->intermediate;
    return (size_t)(2 * longer + routes);
}

static size_t scratch_bytes(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads)
{
    const struct nib_moe_weights *w = &plan->weights;
    int64_t routes = tokens * top_k;
    return sizeof(float) * ((size_t)(tokens * w->hidden) + (size_t)(routes * w->intermediate) +
                            (size_t)threads * thread_floats(w, routes));
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

float nib_moe_ref_activate(const struct nib_activation *a, float gate, float up)
{
    // Comparisons, not fminf: a NaN must come through.
    float g = gate > a->limit ? a->limit : gate;
    float u = up > a->limit ? a->limit : up < -a->limit ? -a->limit : up;
    switch (a->kind) {
    case NIB_ACT_SILU:
        return gate * sigmoid(gate) * up;
    case NIB_ACT_SILU_CLAMP:
        return g * sigmoid(g) * u;
    case NIB_ACT_SWIGLU_OAI:
        return g * sigmoid(a->alpha * g) * (u + 1.0f);
    case NIB_ACT_SITU:
        return a->beta * tanhf(gate / a->beta) * sigmoid(gate) * a->linear_beta * tanhf(up / a->linear_beta);
    }
    return NAN;
}

// In 16 partial sums, so that long rows lose nothing and the compiler may use vectors.
static float dot(const float *a, const float *b, int64_t n /* a multiple of 32 */)
{
    float partial[16] = {0};
    for (int64_t k = 0; k < n; k += 16)
        for (int i = 0; i < 16; i++)
            partial[i] += a[k + i] * b[k + i];
    float sum = 0;
    for (int i = 0; i < 16; i++)
        sum += partial[i];
    return sum;
}

static float bias_at(const void *bias, enum nib_dtype dtype, int64_t i)
{
    return bias ? nib_float_at(bias, dtype, i) : 0;
}

// Row `row` of expert e's gate and up against every route to it.
static void gate_up_row(const struct ref *ref, int64_t e, int64_t row, float *gate, float *up)
{
    const struct nib_moe_weights *w = ref->weights;
    const struct nib_expert *expert = &w->experts[e];
    int64_t source = row * w->gate_up_row_stride, packed = w->hidden / 2, scales = w->hidden / NIB_MX_BLOCK;
    bool decoded = false;
    for (int64_t r = 0; r < ref->routes; r++) {
        if (ref->call->expert_ids[r] - ref->plan->first_expert != e)
            continue;
        if (!decoded) {
            nib_mxfp4_decode_row(expert->gate + source * packed, expert->gate_scales + source * scales, w->hidden,
                                 gate);
            nib_mxfp4_decode_row(expert->up + source * packed, expert->up_scales + source * scales, w->hidden, up);
            decoded = true;
        }
        const float *x = ref->x + r / ref->call->top_k * w->hidden;
        float g = dot(gate, x, w->hidden) + bias_at(expert->gate_bias, w->bias_dtype, source);
        float u = dot(up, x, w->hidden) + bias_at(expert->up_bias, w->bias_dtype, source);
        ref->h[r * w->intermediate + row] = nib_moe_ref_activate(&ref->plan->activation, g, u);
    }
}

static void down_row(const struct ref *ref, int64_t e, int64_t row, float *down, float *value /* [routes] */)
{
    const struct nib_moe_weights *w = ref->weights;
    const struct nib_expert *expert = &w->experts[e];
    bool decoded = false;
    for (int64_t r = 0; r < ref->routes; r++) {
        if (ref->call->expert_ids[r] - ref->plan->first_expert != e)
            continue;
        if (!decoded) {
            nib_mxfp4_decode_row(expert->down + row * (w->intermediate / 2),
                                 expert->down_scales + row * (w->intermediate / NIB_MX_BLOCK), w->intermediate,
                                 down);
            decoded = true;
        }
        value[r] = dot(down, ref->h + r * w->intermediate, w->intermediate) +
                   bias_at(expert->down_bias, w->bias_dtype, row);
    }
}

// y[t, row] from the values of the routes; those of foreign ones are zero.
static void sum_row(const struct ref *ref, int64_t row, const float *value)
{
    const struct nib_moe_call *call = ref->call;
    int64_t hidden = ref->weights->hidden;
    for (int64_t t = 0; t < call->tokens; t++) {
        float sum = 0;
        for (int64_t r = t * call->top_k; r < (t + 1) * call->top_k; r++) {
            int64_t e = call->expert_ids[r] - ref->plan->first_expert;
            bool local = e >= 0 && e < ref->weights->n_experts;
            if (call->y_per_route)
                call->y_per_route[r * hidden + row] = value[r];
            if (call->y && local)
                sum += call->routing_weights[r] * value[r];
        }
        if (call->y && call->y_dtype == NIB_F32)
            ((float *)call->y)[t * hidden + row] = sum;
        else if (call->y)
            ((uint16_t *)call->y)[t * hidden + row] = nib_bf16_from_f32(sum);
    }
}

// x may be bf16 or f32; the intermediate is not rounded.
static void run(const struct nib_moe_plan *plan, const struct nib_moe_call *call)
{
    const struct nib_moe_weights *weights = &plan->weights;
    struct ref ref = {.plan = plan, .weights = weights, .call = call};
    int64_t hidden = weights->hidden, intermediate = weights->intermediate;
    ref.routes = call->tokens * call->top_k;
    ref.x = call->scratch;
    ref.h = ref.x + call->tokens * hidden;
    ref.own = ref.h + ref.routes * intermediate;
    ref.own_floats = thread_floats(weights, ref.routes);

    for (int64_t i = 0; i < call->tokens * hidden; i++)
        ref.x[i] = call->x_dtype == NIB_F32 ? ((const float *)call->x)[i]
                                            : nib_bf16_to_f32(((const uint16_t *)call->x)[i]);

#pragma omp parallel for schedule(dynamic) num_threads(call->threads)
    for (int64_t row = 0; row < intermediate; row++) {
        float *gate = ref.own + (size_t)omp_get_thread_num() * ref.own_floats;
        for (int64_t e = 0; e < weights->n_experts; e++)
            gate_up_row(&ref, e, row, gate, gate + hidden);
    }
#pragma omp parallel for schedule(dynamic) num_threads(call->threads)
    for (int64_t row = 0; row < hidden; row++) {
        float *value = ref.own + (size_t)omp_get_thread_num() * ref.own_floats;
        float *down = value + ref.routes;
        memset(value, 0, (size_t)ref.routes * sizeof *value);
        for (int64_t e = 0; e < weights->n_experts; e++)
            down_row(&ref, e, row, down, value);
        sum_row(&ref, row, value);
    }
}

const struct nib_moe_kernel nib_moe_ref = {
    .name = "ref",
    .reason = "plain fp32, slow",
    .takes_f32 = true,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
