// The operations that touch each activation once. They are a small part of a step's time, so they are plain C.
#include <math.h>
#include <string.h>

#include "cpu/cpu_device.h"
#include "ops/route.h"

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
#pragma omp parallel for num_threads(nib_host_threads(device, step->n_tokens *y.width))
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

static void norm(const float *in /* [cols] */, const struct nib_weight *weight, float eps, float *out /* [cols] */)
{
    int64_t n = weight->cols;
    float inverse = 1.0f / sqrtf(sum_of_squares(in, n) / (float)n + eps);
    if (weight->dtype == NIB_BF16) {
        const uint16_t *bits = weight->data;
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i] * inverse * nib_bf16_to_f32(bits[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i] * inverse * nib_weight_element(weight, i);
    }
}

void nib_cpu_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                      const struct nib_weight *weight, float eps)
{
#pragma omp parallel for num_threads(nib_host_threads(device, rows *x.width))
    for (int64_t r = 0; r < rows; r++)
        norm(nib_buffer_row(x, r), weight, eps, nib_buffer_row(y, r));
}

void nib_cpu_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                       const struct nib_weight *weight, float eps)
{
    int64_t tokens = device->step->n_tokens;
#pragma omp parallel for num_threads(nib_host_threads(device, tokens *x.width))
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < n_heads; h++) {
            float *head = nib_buffer_row(x, t) + h * head_dim;
            norm(head, weight, eps, head);
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
            float *head = x + h * head_dim + rope->first;
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
#pragma omp parallel for num_threads(nib_host_threads(device, step->n_tokens *x.width))
    for (int64_t t = 0; t < step->n_tokens; t++)
        rope_token(nib_buffer_row(x, t), (float)step->positions[t], n_heads, head_dim, rope);
}

void nib_cpu_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x)
{
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    const struct nib_step *step = device->step;
#pragma omp parallel for num_threads(nib_host_threads(device, step->n_tokens *x.width))
    for (int64_t t = 0; t < step->n_tokens; t++) {
        const float *in = nib_buffer_row(x, t);
        uint16_t *row = nib_cached_row(device, cache, step->sequence_of[t], step->positions[t]);
        cpu->kernels->round_bf16(in, cache.width, row);
        if (cpu->cache_parts == 2)
            for (int64_t i = 0; i < cache.width; i++)
                row[cache.width + i] = nib_bf16_from_f32(in[i] - nib_bf16_to_f32(row[i]));
    }
}

void nib_cpu_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                   const struct nib_router *router)
{
    int64_t tokens = device->step->n_tokens;
#pragma omp parallel for num_threads(nib_host_threads(device, tokens * router->n_experts * router->top_k))
    for (int64_t t = 0; t < tokens; t++)
        nib_route_token(router, nib_buffer_row(logits, t), routes.expert_ids + t * routes.top_k,
                        routes.weights + t * routes.top_k);
}

void nib_cpu_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up)
{
    int64_t n = device->step->n_tokens * gate.width;
    float *g = gate.data;
    const float *u = up.data;
#pragma omp parallel for num_threads(nib_host_threads(device, 8 * n))
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
}

void nib_cpu_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y)
{
    int64_t n = device->step->n_tokens * x.width;
    float *sum = x.data;
    const float *other = y.data;
#pragma omp parallel for num_threads(nib_host_threads(device, n))
    for (int64_t i = 0; i < n; i++)
        sum[i] += other[i];
}

void nib_cpu_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x)
{
    const struct nib_step *step = device->step;
    for (int64_t r = 0; r < step->n_outputs; r++)
        memcpy(nib_buffer_row(y, r), nib_buffer_row(x, step->output_rows[r]), (size_t)x.width * sizeof(float));
}
