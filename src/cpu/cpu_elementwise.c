// The operations that touch each activation once. They are a small part of a step's time, so they are plain C.
#include <math.h>
#include <string.h>

#include "cpu/cpu_device.h"

static void widen_row(const struct nib_weight *weight, int64_t row, float *out /* [cols] */)
{
    int64_t at = row * weight->cols;
    if (weight->dtype == NIB_F32) {
        memcpy(out, (const float *)weight->data + at, (size_t)weight->cols * sizeof *out);
    } else if (weight->dtype == NIB_BF16) {
        const uint16_t *bits = (const uint16_t *)weight->data + at;
        for (int64_t i = 0; i < weight->cols; i++)
            out[i] = nib_bf16_to_f32(bits[i]);
    } else {
        for (int64_t i = 0; i < weight->cols; i++)
            out[i] = nib_weight_element(weight, at + i);
    }
}

void nib_cpu_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table)
{
    const struct nib_step *step = device->step;
#pragma omp parallel for num_threads(nib_cpu_threads(device, step->n_tokens *y.width))
    for (int64_t t = 0; t < step->n_tokens; t++)
        widen_row(table, step->tokens[t], nib_buffer_row(y, t));
}

static float sum_of_squares(const float *x /* [n] */, int64_t n)
{
    float lanes[16] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int64_t lane = 0; lane < 16; lane++)
            lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < n; i++)
        lanes[i % 16] += x[i] * x[i];
    for (int64_t lane = 0; lane < 16; lane++)
        sum += lanes[lane];
    return sum;
}

void nib_cpu_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                      const struct nib_weight *weight, float eps)
{
    int64_t width = x.width;
#pragma omp parallel for num_threads(nib_cpu_threads(device, rows *width))
    for (int64_t r = 0; r < rows; r++) {
        const float *in = nib_buffer_row(x, r);
        float *out = nib_buffer_row(y, r);
        float inverse = 1.0f / sqrtf(sum_of_squares(in, width) / (float)width + eps);
        if (weight->dtype == NIB_BF16) {
            const uint16_t *bits = weight->data;
            for (int64_t i = 0; i < width; i++)
                out[i] = in[i] * inverse * nib_bf16_to_f32(bits[i]);
        } else {
            for (int64_t i = 0; i < width; i++)
                out[i] = in[i] * inverse * nib_weight_element(weight, i);
        }
    }
}

enum { ROPE_PAIRS = 64 }; // pairs whose cosines are kept at a time

static void rotate_half_split(float *a /* [n] */, float *b /* [n] */, const float *cosines, const float *sines,
                              int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float first = a[i], second = b[i];
        a[i] = first * cosines[i] - second * sines[i];
        b[i] = second * cosines[i] + first * sines[i];
    }
}

static void rotate_interleaved(float *pairs /* [2n] */, const float *cosines, const float *sines, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float first = pairs[2 * i], second = pairs[2 * i + 1];
        pairs[2 * i] = first * cosines[i] - second * sines[i];
        pairs[2 * i + 1] = second * cosines[i] + first * sines[i];
    }
}

static void rope_token(float *x /* [n_heads * head_dim] */, float position, int64_t n_heads, int64_t head_dim,
                       const struct nib_rope *rope)
{
    int64_t half = rope->dims / 2;
    for (int64_t first = 0; first < half; first += ROPE_PAIRS) {
        float cosines[ROPE_PAIRS], sines[ROPE_PAIRS];
        int64_t n = half - first < ROPE_PAIRS ? half - first : ROPE_PAIRS;
        for (int64_t i = 0; i < n; i++) {
            float angle = position * rope->inv_freq[first + i];
            cosines[i] = cosf(angle) * rope->scale;
            sines[i] = sinf(angle) * rope->scale;
        }
        for (int64_t h = 0; h < n_heads; h++) {
            float *head = x + h * head_dim;
            if (rope->interleaved)
                rotate_interleaved(head + 2 * first, cosines, sines, n);
            else
                rotate_half_split(head + first, head + first + half, cosines, sines, n);
        }
    }
}

void nib_cpu_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                  const struct nib_rope *rope)
{
    const struct nib_step *step = device->step;
#pragma omp parallel for num_threads(nib_cpu_threads(device, step->n_tokens *x.width))
    for (int64_t t = 0; t < step->n_tokens; t++)
        rope_token(nib_buffer_row(x, t), (float)step->positions[t], n_heads, head_dim, rope);
}

void nib_cpu_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x)
{
    const struct nib_step *step = device->step;
#pragma omp parallel for num_threads(nib_cpu_threads(device, step->n_tokens *x.width))
    for (int64_t t = 0; t < step->n_tokens; t++)
        device->kernels->round_bf16(nib_buffer_row(x, t), cache.width,
                                    nib_cached_row(step, cache, step->sequence_of[t], step->positions[t]));
}

// The best logit that is not yet among the first `taken` ids; the lower index of equals.
static int32_t best_expert(const float *logits, int64_t n_experts, const int32_t *ids, int64_t taken)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n_experts; e++) {
        if (best >= 0 && !(logits[e] > logits[best]))
            continue;
        bool is_taken = false;
        for (int64_t j = 0; j < taken; j++)
            is_taken |= ids[j] == e;
        if (!is_taken)
            best = e;
    }
    return best;
}

void nib_cpu_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                   const struct nib_router *router)
{
    int64_t tokens = device->step->n_tokens, top_k = router->top_k;
#pragma omp parallel for num_threads(nib_cpu_threads(device, tokens * router->n_experts * top_k))
    for (int64_t t = 0; t < tokens; t++) {
        const float *row = nib_buffer_row(logits, t);
        int32_t *ids = routes.expert_ids + t * routes.top_k;
        float *weights = routes.weights + t * routes.top_k, sum = 0;
        for (int64_t j = 0; j < top_k; j++) {
            ids[j] = best_expert(row, router->n_experts, ids, j);
            sum += weights[j] = expf(row[ids[j]] - row[ids[0]]);
        }
        for (int64_t j = 0; j < top_k; j++)
            weights[j] /= sum;
    }
}

void nib_cpu_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y)
{
    int64_t n = device->step->n_tokens * x.width;
    float *sum = x.data;
    const float *other = y.data;
#pragma omp parallel for num_threads(nib_cpu_threads(device, n))
    for (int64_t i = 0; i < n; i++)
        sum[i] += other[i];
}

void nib_cpu_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x)
{
    const struct nib_step *step = device->step;
    for (int64_t r = 0; r < step->n_outputs; r++)
        memcpy(nib_buffer_row(y, r), nib_buffer_row(x, step->output_rows[r]), (size_t)x.width * sizeof(float));
}
