#include "cli/moe_unpack.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu_features.h"
#include "base/error.h"
#include "cli/unpack_kernels.h"
#include "cli/unpack_onednn.h"
#include "ops/moe_ref.h"

struct moe_unpack {
    int64_t hidden, intermediate;
    struct nib_activation activation;
    int threads;
    uint16_t *w13;     /* [2, I, K] */
    uint16_t *w2;      /* [K, I] */
    uint16_t *x;       /* [max routes to one expert, K] */
    uint16_t *gate_up; /* [2, routes, I] */
    uint16_t *h;       /* [routes, I] */
    uint16_t *out;     /* [routes, K] */
};

const char *moe_unpack_gemm_name(void)
{
#ifdef NIB_HAVE_ONEDNN
    return "oneDNN";
#else
    return "built-in";
#endif
}

static uint16_t *elements(int64_t n)
{
    return aligned_alloc(64, ((size_t)n * sizeof(uint16_t) + 63) & ~(size_t)63);
}

nib_status moe_unpack_create(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                             int threads, int64_t max_tokens, struct moe_unpack **unpack, struct nib_error *err)
{
    int64_t hidden = weights->hidden, intermediate = weights->intermediate;
    if (!nib_cpu_has(NIB_CPU_AVX2))
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "the unpack path needs AVX2");
    struct moe_unpack *made = calloc(1, sizeof *made);
    *unpack = made;
    if (!made)
        return nib_fail_memory(err, sizeof *made, "the unpack path");
    made->hidden = hidden;
    made->intermediate = intermediate;
    made->activation = *activation;
    made->threads = threads;
    made->w13 = elements(2 * intermediate * hidden);
    made->w2 = elements(hidden * intermediate);
    made->x = elements(max_tokens * hidden);
    made->gate_up = elements(2 * max_tokens * intermediate);
    made->h = elements(max_tokens * intermediate);
    made->out = elements(max_tokens * hidden);
    if (made->w13 && made->w2 && made->x && made->gate_up && made->h && made->out)
        return NIB_OK;
    moe_unpack_free(made);
    *unpack = NULL;
    return nib_fail_memory(err, (unsigned long long)(6 * hidden * intermediate), "widened experts");
}

void moe_unpack_free(struct moe_unpack *unpack)
{
    if (!unpack)
        return;
    free(unpack->w13);
    free(unpack->w2);
    free(unpack->x);
    free(unpack->gate_up);
    free(unpack->h);
    free(unpack->out);
    free(unpack);
}

static void widen_expert(struct moe_unpack *u, const struct nib_moe_weights *w, const struct nib_expert *e)
{
    int64_t hidden = u->hidden, intermediate = u->intermediate, stride = w->gate_up_row_stride;
#pragma omp parallel num_threads(u->threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < intermediate; row++) {
            int64_t packed = row * stride * (hidden / 2), scales = row * stride * (hidden / NIB_MX_BLOCK);
            unpack_row_avx2(e->gate + packed, e->gate_scales + scales, hidden, u->w13 + row * hidden);
            unpack_row_avx2(e->up + packed, e->up_scales + scales, hidden, u->w13 + (intermediate + row) * hidden);
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < hidden; row++)
            unpack_row_avx2(e->down + row * (intermediate / 2),
                            e->down_scales + row * (intermediate / NIB_MX_BLOCK), intermediate,
                            u->w2 + row * intermediate);
    }
}

static void gemm(const struct moe_unpack *u, const uint16_t *a, const uint16_t *b, uint16_t *c, int64_t m,
                 int64_t n, int64_t k)
{
    if (!onednn_gemm(a, b, c, m, n, k, u->threads))
        unpack_gemm_avx2(a, b, c, m, n, k, u->threads);
}

static float bias_at(const void *bias, enum nib_dtype dtype, int64_t i)
{
    return bias ? nib_float_at(bias, dtype, i) : 0;
}

static void activate_rows(struct moe_unpack *u, const struct nib_moe_weights *w, const struct nib_expert *e,
                          int64_t m)
{
    int64_t intermediate = u->intermediate;
#pragma omp parallel for num_threads(u->threads) schedule(static)
    for (int64_t i = 0; i < intermediate; i++) {
        float gate_bias = bias_at(e->gate_bias, w->bias_dtype, i * w->gate_up_row_stride);
        float up_bias = bias_at(e->up_bias, w->bias_dtype, i * w->gate_up_row_stride);
        for (int64_t t = 0; t < m; t++) {
            const uint16_t *row = u->gate_up + t * 2 * intermediate;
            float gate = nib_bf16_to_f32(row[i]) + gate_bias,
                  up = nib_bf16_to_f32(row[intermediate + i]) + up_bias;
            u->h[t * intermediate + i] = nib_bf16_from_f32(nib_moe_ref_activate(&u->activation, gate, up));
        }
    }
}

static void run_expert(struct moe_unpack *u, const struct nib_moe_weights *w, const struct nib_moe_call *call,
                       int64_t expert)
{
    const struct nib_expert *e = &w->experts[expert];
    int64_t hidden = u->hidden, intermediate = u->intermediate, m = 0;
    for (int64_t r = 0; r < call->tokens * call->top_k; r++)
        if (call->expert_ids[r] == expert)
            memcpy(u->x + m++ * hidden, (const uint16_t *)call->x + r / call->top_k * hidden,
                   (size_t)hidden * sizeof *u->x);
    if (m == 0)
        return;
    widen_expert(u, w, e);
    gemm(u, u->x, u->w13, u->gate_up, m, 2 * intermediate, hidden);
    activate_rows(u, w, e, m);
    gemm(u, u->h, u->w2, u->out, m, hidden, intermediate);
    m = 0;
    for (int64_t r = 0; r < call->tokens * call->top_k; r++) {
        if (call->expert_ids[r] != expert)
            continue;
        float *y = (float *)call->y + r / call->top_k * hidden;
        for (int64_t i = 0; i < hidden; i++)
            y[i] += call->routing_weights[r] *
                    (nib_bf16_to_f32(u->out[m * hidden + i]) + bias_at(e->down_bias, w->bias_dtype, i));
        m++;
    }
}

void moe_unpack_run(struct moe_unpack *unpack, const struct nib_moe_weights *weights,
                    const struct nib_moe_call *call)
{
    memset(call->y, 0, (size_t)(call->tokens * unpack->hidden) * sizeof(float));
    for (int64_t e = 0; e < weights->n_experts; e++)
        run_expert(unpack, weights, call, e);
}
