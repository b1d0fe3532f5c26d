// The meaning of every operation, in plain fp32 C. Clarity first: the only concession to speed is that sums run in 16
// lanes (in one fixed order) and rows are shared among threads.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ops/ref_device.h"
#include "ops/route.h"

static float block_scale(const struct nib_weight *weight, int64_t index)
{
    int64_t row = (weight->first_row + index / weight->cols) / weight->block_rows,
            column = index % weight->cols / weight->block_cols,
            pitch = (weight->cols + weight->block_cols - 1) / weight->block_cols;
    return weight->scales[row * pitch + column];
}

static float mxfp4_element(const struct nib_weight *weight, int64_t index)
{
    uint8_t codes = ((const uint8_t *)weight->data)[index / 2], code = index % 2 ? codes >> 4 : codes & 15;
    return nib_e2m1_to_f32(code) *
           nib_e8m0_to_f32(weight->exponents[(weight->first_row * weight->cols + index) / NIB_MX_BLOCK]);
}

static float element(const struct nib_weight *weight, int64_t index)
{
    switch (weight->dtype) {
    case NIB_I8:
        return (float)((const int8_t *)weight->data)[index] * block_scale(weight, index);
    case NIB_F8_E4M3:
        return nib_e4m3_to_f32(((const uint8_t *)weight->data)[index]) * block_scale(weight, index);
    case NIB_U8:
        return mxfp4_element(weight, index);
    default:
        return nib_float_at(weight->data, weight->dtype, index);
    }
}

static float dot(const float *a, const float *b, int64_t n)
{
    float lanes[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int lane = 0; lane < 16; lane++)
            lanes[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++)
        lanes[i & 15] += a[i] * b[i];
    float sum = 0;
    for (int lane = 0; lane < 16; lane++)
        sum += lanes[lane];
    return sum;
}

void nib_ref_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table)
{
    const struct nib_step *step = device->step;
    for (int64_t t = 0; t < step->n_tokens; t++)
        for (int64_t i = 0; i < y.width; i++)
            nib_buffer_row(y, t)[i] = element(table, (int64_t)step->tokens[t] * table->cols + i);
}

static void norm(float *out, const float *in, int64_t n, const struct nib_weight *weight, float eps)
{
    float inverse = 1.0f / sqrtf(dot(in, in, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = in[i] * inverse * element(weight, i);
}

void nib_ref_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                      const struct nib_weight *weight, float eps)
{
    (void)device;
    for (int64_t r = 0; r < rows; r++)
        norm(nib_buffer_row(y, r), nib_buffer_row(x, r), x.width, weight, eps);
}

void nib_ref_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                       const struct nib_weight *weight, float eps)
{
    for (int64_t t = 0; t < device->step->n_tokens; t++)
        for (int64_t h = 0; h < n_heads; h++) {
            float *head = nib_buffer_row(x, t) + h * head_dim;
            norm(head, head, weight->cols, weight, eps);
        }
}

// One output row of the weight, widened once and multiplied with every input row.
static void linear_row(int64_t rows, struct nib_buffer x, const struct nib_projection *p, int64_t out, float *wide)
{
    for (int64_t i = 0; i < p->weight->cols; i++)
        wide[i] = element(p->weight, out * p->weight->cols + i);
    float bias = p->bias && p->bias->data ? element(p->bias, out) : 0.0f;
    for (int64_t r = 0; r < rows; r++)
        nib_buffer_row(p->y, r)[p->column + out] = dot(nib_buffer_row(x, r), wide, p->weight->cols) + bias;
}

void nib_ref_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                    const struct nib_projection *projections, int n_projections)
{
    bool failed = false;
#pragma omp parallel num_threads(device->options.threads)
    {
        float *wide = malloc((size_t)x.width * sizeof *wide);
        if (!wide) {
#pragma omp atomic write
            failed = true;
        }
        for (int i = 0; i < n_projections; i++) {
#pragma omp for schedule(static) nowait
            for (int64_t out = 0; out < projections[i].weight->rows; out++)
                if (wide)
                    linear_row(rows, x, &projections[i], out, wide);
        }
        free(wide);
    }
    if (failed && !device->error.status)
        nib_fail_memory(&device->error, (unsigned long long)x.width * sizeof(float), "a row of a linear");
}

// Row by row of the head's matrix: each is an output, or weighs one input into all outputs.
static void head_product(float *y, const float *x, const struct nib_head_product *p, int64_t head)
{
    int64_t cols = p->weight->cols, in = p->transposed ? p->rows : cols, out = p->transposed ? cols : p->rows;
    memset(y, 0, (size_t)out * sizeof *y);
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t at = (head * p->row_pitch + p->first_row + r) * cols;
        for (int64_t c = 0; c < cols; c++)
            if (p->transposed)
                y[c] += x[r] * element(p->weight, at + c);
            else
                y[r] += x[c] * element(p->weight, at + c);
    }
    memcpy(y + out, x + in, (size_t)p->tail * sizeof *y);
}

void nib_ref_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                          const struct nib_head_product *product)
{
#pragma omp parallel for collapse(2) num_threads(device->options.threads)
    for (int64_t t = 0; t < device->step->n_tokens; t++)
        for (int64_t h = 0; h < product->n_heads; h++)
            head_product(nib_buffer_row(y, t) + h * product->y_pitch, nib_buffer_row(x, t) + h * product->x_pitch,
                         product, h);
}

void nib_ref_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                  const struct nib_rope *rope)
{
    const struct nib_step *step = device->step;
    int64_t half = rope->dims / 2;
#pragma omp parallel for num_threads(device->options.threads)
    for (int64_t t = 0; t < step->n_tokens; t++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)step->positions[t] * rope->inv_freq[i];
            float c = cosf(angle) * rope->scale, s = sinf(angle) * rope->scale;
            for (int64_t h = 0; h < n_heads; h++) {
                float *head = nib_buffer_row(x, t) + h * head_dim + rope->first;
                float *a = rope->interleaved ? head + 2 * i : head + i;
                float *b = rope->interleaved ? a + 1 : a + half;
                float first = *a, second = *b;
                *a = first * c - second * s;
                *b = second * c + first * s;
            }
        }
}

// The cached row of a sequence's position, or NULL when its page has been freed.
static float *cached_row(const struct nib_step *step, struct nib_cache cache, int32_t sequence, int64_t position)
{
    const int32_t *table =
        step->page_tables + ((int64_t)cache.group * step->n_sequences + sequence) * step->table_width;
    int64_t page = table[position / step->page_tokens];
    if (page < 0)
        return NULL;
    return (float *)cache.data + (page * step->page_tokens + position % step->page_tokens) * cache.width;
}

void nib_ref_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x)
{
    const struct nib_step *step = device->step;
    for (int64_t t = 0; t < step->n_tokens; t++)
        memcpy(cached_row(step, cache, step->sequence_of[t], step->positions[t]), nib_buffer_row(x, t),
               (size_t)cache.width * sizeof(float));
}

// softmax over `scores` in place; `sink` is one more logit whose probability is dropped (-INFINITY for none).
static void softmax(float *scores, int64_t n, float sink)
{
    float largest = sink, sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, scores[i]);
    for (int64_t i = 0; i < n; i++)
        sum += scores[i] = expf(scores[i] - largest);
    sum += expf(sink - largest);
    for (int64_t i = 0; i < n; i++)
        scores[i] /= sum;
}

static void attend_head(const struct nib_step *step, int64_t t, int64_t head, float *out, const float *q,
                        struct nib_cache keys, struct nib_cache values, const struct nib_attend *attend,
                        float *scores)
{
    int64_t position = step->positions[t], kv_head = head / (attend->n_heads / attend->n_kv_heads);
    int64_t first = attend->window && position >= attend->window ? position - attend->window + 1 : 0;
    int64_t n = position - first + 1;
    for (int64_t i = 0; i < n; i++) {
        const float *key = cached_row(step, keys, step->sequence_of[t], first + i) + kv_head * attend->head_dim;
        scores[i] = dot(q, key, attend->head_dim) * attend->scale;
    }
    softmax(scores, n, attend->sinks ? element(attend->sinks, head) : -INFINITY);
    memset(out, 0, (size_t)attend->v_dim * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        const float *value = cached_row(step, values, step->sequence_of[t], first + i) + kv_head * attend->v_dim;
        for (int64_t d = 0; d < attend->v_dim; d++)
            out[d] += scores[i] * value[d];
    }
    for (int64_t d = 0; d < attend->v_dim; d++)
        out[d] *= attend->value_scale;
}

void nib_ref_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                    struct nib_cache values, const struct nib_attend *attend)
{
    const struct nib_step *step = device->step;
    int64_t longest = 0;
    for (int64_t t = 0; t < step->n_tokens; t++)
        longest = step->positions[t] >= longest ? step->positions[t] + 1 : longest;
    bool failed = false;
#pragma omp parallel num_threads(device->options.threads)
    {
        float *scores = malloc((size_t)longest * sizeof *scores);
        if (!scores) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for collapse(2) schedule(dynamic, 8)
        for (int64_t t = 0; t < step->n_tokens; t++)
            for (int64_t h = 0; h < attend->n_heads; h++)
                if (scores)
                    attend_head(step, t, h, nib_buffer_row(y, t) + h * attend->v_dim,
                                nib_buffer_row(q, t) + h * attend->head_dim, keys, values, attend, scores);
        free(scores);
    }
    if (failed && !device->error.status)
        nib_fail_memory(&device->error, (unsigned long long)longest * sizeof(float), "attention scores");
}

void nib_ref_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                   const struct nib_router *router)
{
    for (int64_t t = 0; t < device->step->n_tokens; t++)
        nib_route_token(router, nib_buffer_row(logits, t), routes.expert_ids + t * routes.top_k,
                        routes.weights + t * routes.top_k);
}

void nib_ref_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
                 const struct nib_moe *moe)
{
    nib_host_run_moe(device, y, x, NULL, routes, moe);
}

void nib_ref_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up)
{
    float *g = gate.data;
    const float *u = up.data;
    for (int64_t i = 0; i < device->step->n_tokens * gate.width; i++)
        g[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
}

void nib_ref_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y)
{
    for (int64_t i = 0; i < device->step->n_tokens * x.width; i++)
        ((float *)x.data)[i] += ((const float *)y.data)[i];
}

void nib_ref_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x)
{
    for (int64_t r = 0; r < device->step->n_outputs; r++)
        memcpy(nib_buffer_row(y, r), nib_buffer_row(x, device->step->output_rows[r]),
               (size_t)x.width * sizeof(float));
}
