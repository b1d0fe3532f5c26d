// What lies between two MoE calls, as one launch where a step is of few single rows.
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_pair.h"

#define BOUND_LAYER \
    (3 * BOUND_HALF) // inputs, queries, keys, values, probabilities and sums are each rounded to bf16

enum { PAGE = 32, PIECE = 150, ROUNDS = 2 };

struct layer_shape {
    int64_t hidden, heads, kv_heads, window, experts, top_k;
    bool biases, sinks, branch;
};

struct layer_context {
    const struct layer_shape *shape;
    struct pair x, branch, normed, q, k, v, attended, logits;
    struct weights norms[2], projections[4], biases[4], router, router_bias, sinks;
    struct nib_cache keys[DEVICES], values[DEVICES];
    struct nib_routes routes[DEVICES];
    int64_t rows;
};

static float inv_freq[32]; // a device keeps a copy by its address

static void append_body(int d, void *context)
{
    struct layer_context *c = context;
    devices[d].ops->append(devices[d].device, c->keys[d], c->k.on[d]);
    devices[d].ops->append(devices[d].device, c->values[d], c->v.on[d]);
}

static struct nib_projection projection(struct layer_context *c, int which, struct nib_buffer y, int d)
{
    return (struct nib_projection){
        .y = y, .weight = &c->projections[which].on[d], .bias = c->shape->biases ? &c->biases[which].on[d] : NULL};
}

static void layer_body(int d, void *context)
{
    struct layer_context *c = context;
    const struct layer_shape *s = c->shape;
    const struct nib_ops *ops = devices[d].ops;
    struct nib_device *device = devices[d].device;
    int64_t n = c->rows;
    const struct nib_rope rope = {inv_freq, 0, 64, 1.3f, false};
    const struct nib_attend attend = {s->heads,  s->kv_heads, 64, 64,
                                      s->window, 0.125f,      1,  s->sinks ? &c->sinks.on[d] : NULL};
    const struct nib_router router = {
        .kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = s->experts, .top_k = s->top_k, .scale = 1};
    const struct nib_projection qkv[] = {projection(c, 0, c->q.on[d], d), projection(c, 1, c->k.on[d], d),
                                         projection(c, 2, c->v.on[d], d)},
                                o = projection(c, 3, c->branch.on[d], d),
                                to_experts = {.y = c->logits.on[d],
                                              .weight = &c->router.on[d],
                                              .bias = s->biases ? &c->router_bias.on[d] : NULL,
                                              .exact = true};
    if (s->branch)
        ops->add(device, c->x.on[d], c->branch.on[d]);
    ops->rms_norm(device, n, c->normed.on[d], c->x.on[d], &c->norms[0].on[d], 1e-5f);
    ops->linear(device, n, c->normed.on[d], qkv, 3);
    ops->rope(device, c->q.on[d], s->heads, 64, &rope);
    ops->rope(device, c->k.on[d], s->kv_heads, 64, &rope);
    ops->append(device, c->keys[d], c->k.on[d]);
    ops->append(device, c->values[d], c->v.on[d]);
    ops->attend(device, c->attended.on[d], c->q.on[d], c->keys[d], c->values[d], &attend);
    ops->linear(device, n, c->attended.on[d], &o, 1);
    ops->add(device, c->x.on[d], c->branch.on[d]);
    ops->rms_norm(device, n, c->normed.on[d], c->x.on[d], &c->norms[1].on[d], 1e-5f);
    ops->linear(device, n, c->normed.on[d], &to_experts, 1);
    ops->route(device, c->routes[d], c->logits.on[d], &router);
}

static void make_layer(struct layer_context *c, int64_t pages)
{
    const struct layer_shape *s = c->shape;
    int64_t outs[] = {s->heads * 64, s->kv_heads * 64, s->kv_heads * 64, s->hidden};
    struct nib_error err;
    for (int i = 0; i < 4; i++) {
        int64_t cols = i < 3 ? s->hidden : s->heads * 64;
        c->projections[i] =
            pair_random_weights(outs[i], cols, NIB_BF16, 3 / sqrtf((float)cols), 100 + (uint64_t)i);
        c->biases[i] = pair_random_weights(1, outs[i], NIB_BF16, 0.5f, 110 + (uint64_t)i);
    }
    for (int i = 0; i < 2; i++)
        c->norms[i] = pair_random_weights(1, s->hidden, NIB_BF16, 2, 120 + (uint64_t)i);
    c->router = pair_random_weights(s->experts, s->hidden, NIB_BF16, 3 / sqrtf((float)s->hidden), 130);
    c->router_bias = pair_random_weights(1, s->experts, NIB_BF16, 0.5f, 131);
    c->sinks = pair_random_weights(1, s->heads, NIB_BF16, 3, 132);
    c->normed = pair_make(MAX_TOKENS, s->hidden, NULL);
    c->q = pair_make(MAX_TOKENS, outs[0], NULL);
    c->attended = pair_make(MAX_TOKENS, outs[0], NULL);
    c->logits = pair_make(MAX_TOKENS, s->experts, NULL);
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->alloc_cache(devices[d].device, pages, PAGE, outs[1], 0, &c->keys[d], &err) ||
            devices[d].ops->alloc_cache(devices[d].device, pages, PAGE, outs[2], 0, &c->values[d], &err) ||
            devices[d].ops->alloc_routes(devices[d].device, MAX_TOKENS, s->top_k, &c->routes[d], &err))
            pair_die("layer", err.message);
}

static void drop_layer(struct layer_context *c)
{
    for (int i = 0; i < 4; i++)
        pair_unbind(&c->projections[i]), pair_unbind(&c->biases[i]);
    pair_unbind(&c->norms[0]), pair_unbind(&c->norms[1]);
    pair_unbind(&c->router), pair_unbind(&c->router_bias), pair_unbind(&c->sinks);
    pair_drop(&c->normed), pair_drop(&c->q), pair_drop(&c->attended), pair_drop(&c->logits);
    for (int d = REF; d < DEVICES; d++) {
        devices[d].ops->free_cache(devices[d].device, &c->keys[d]);
        devices[d].ops->free_cache(devices[d].device, &c->values[d]);
        devices[d].ops->free_routes(devices[d].device, &c->routes[d]);
    }
}

// What the sequences hold already, some tokens of one at a time.
static void fill_caches(struct layer_context *c, const struct test_step *step, const int32_t *first)
{
    int64_t width = c->shape->kv_heads * 64;
    for (int32_t sequence = 0; sequence < step->step.n_sequences; sequence++)
        for (int32_t done = 0; done < first[sequence];) {
            int32_t here = first[sequence] - done < PIECE ? first[sequence] - done : PIECE, rows[2] = {0, here},
                    of[PIECE] = {0}, at[PIECE];
            for (int32_t i = 0; i < here; i++)
                at[i] = done + i;
            struct test_step part = *step;
            part.step.n_tokens = here, part.step.n_sequences = 1, part.step.n_outputs = 0;
            part.step.positions = at, part.step.sequence_of = of, part.step.first_row = rows;
            part.step.page_tables = step->step.page_tables + sequence * step->step.table_width;
            c->k = pair_random(PIECE, width, 200 + (uint64_t)done);
            c->v = pair_random(PIECE, width, 300 + (uint64_t)done);
            pair_compare("append", &part, append_body, c, &c->k, here, BOUND_F32);
            pair_drop(&c->k), pair_drop(&c->v);
            done += here;
        }
}

// The device's own logits choose the experts.
static void expect_choice(const struct layer_shape *s, const struct nib_routes *routes, const float *logits,
                          int64_t rows)
{
    int64_t n = rows * s->top_k;
    int32_t *ids = malloc((size_t)n * 4);
    float *weights = malloc((size_t)n * 4);
    if (cudaMemcpy(ids, routes->expert_ids, (size_t)n * 4, cudaMemcpyDeviceToHost) ||
        cudaMemcpy(weights, routes->weights, (size_t)n * 4, cudaMemcpyDeviceToHost))
        pair_die("routes", "cannot be read");
    bool right = true;
    double off = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * s->experts;
        bool taken[1024] = {false};
        double sum = 0;
        for (int64_t j = 0; j < s->top_k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < s->experts; e++)
                if (!taken[e] && (best < 0 || row[e] > row[best]))
                    best = e;
            taken[best] = true;
            right = right && ids[r * s->top_k + j] == best;
            sum += exp((double)row[best] - row[ids[r * s->top_k]]);
        }
        for (int64_t j = 0; right && j < s->top_k; j++)
            off = fmax(off, fabs(weights[r * s->top_k + j] -
                                 exp((double)row[ids[r * s->top_k + j]] - row[ids[r * s->top_k]]) / sum));
    }
    pair_expect(right, "layer: experts", 1, 0);
    pair_expect(off < 1e-5, "layer: weights of experts", off, 1e-5);
    free(ids), free(weights);
}

static void run_layer(struct layer_context *c, const struct test_step *step, const char *what)
{
    const struct layer_shape *s = c->shape;
    size_t n = (size_t)(c->rows * s->hidden);
    float *x[DEVICES], *normed[DEVICES], *logits[DEVICES];
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++) {
        const struct nib_ops *ops = devices[d].ops;
        struct nib_device *device = devices[d].device;
        x[d] = malloc(n * 4), normed[d] = malloc(n * 4), logits[d] = malloc((size_t)(c->rows * s->experts) * 4);
        ops->begin(device, &step->step);
        layer_body(d, c);
        ops->read(device, c->rows, c->x.on[d], x[d]);
        ops->read(device, c->rows, c->normed.on[d], normed[d]);
        ops->read(device, c->rows, c->logits.on[d], logits[d]);
        if (ops->end(device, &err))
            pair_die(what, err.message);
    }
    pair_expect(devices[CUDA].ops->launches(devices[CUDA].device) == 1, "layer: launches",
                devices[CUDA].ops->launches(devices[CUDA].device), 1);
    pair_expect_close(what, x[CUDA], x[REF], (int64_t)n, BOUND_LAYER);
    pair_expect_close("layer: normed", normed[CUDA], normed[REF], (int64_t)n, BOUND_LAYER);
    pair_expect_close("layer: logits", logits[CUDA], logits[REF], c->rows * s->experts, BOUND_LAYER);
    expect_choice(s, &c->routes[CUDA], logits[CUDA], c->rows);
    for (int d = REF; d < DEVICES; d++)
        free(x[d]), free(normed[d]), free(logits[d]);
}

// The second round attends to what the first has appended.
static void check_layer(const struct layer_shape *s, int32_t n, const int32_t *first)
{
    char what[128];
    int32_t counts[MAX_TOKENS], rows[MAX_TOKENS + 1], of[MAX_TOKENS], at[MAX_TOKENS];
    for (int32_t i = 0; i < n; i++)
        counts[i] = ROUNDS;
    struct test_step step = test_step_make(PAGE, n, first, counts);
    struct layer_context c = {.shape = s, .rows = n};
    make_layer(&c, step.pages);
    fill_caches(&c, &step, first);
    c.k = pair_make(MAX_TOKENS, s->kv_heads * 64, NULL);
    c.v = pair_make(MAX_TOKENS, s->kv_heads * 64, NULL);
    snprintf(what, sizeof what, "layer of %lld, heads %lld/%lld, window %lld, %d rows, the first after %d",
             (long long)s->hidden, (long long)s->heads, (long long)s->kv_heads, (long long)s->window, n, first[0]);
    for (int32_t round = 0; round < ROUNDS; round++) {
        struct test_step now = step;
        for (int32_t i = 0; i < n; i++)
            rows[i] = of[i] = i, at[i] = first[i] + round;
        rows[n] = n;
        now.step.n_tokens = n, now.step.n_outputs = 0;
        now.step.positions = at, now.step.sequence_of = of, now.step.first_row = rows;
        c.x = pair_random(MAX_TOKENS, s->hidden, 400 + (uint64_t)round);
        c.branch = pair_random(MAX_TOKENS, s->hidden, 410 + (uint64_t)round);
        run_layer(&c, &now, what);
        pair_drop(&c.x), pair_drop(&c.branch);
    }
    pair_drop(&c.k), pair_drop(&c.v);
    drop_layer(&c);
    test_step_free(&step);
}

void check_layers(void)
{
    static const struct layer_shape shapes[] = {
        {256, 8, 2, 0, 16, 4, true, true, true},      {128, 6, 3, 12, 12, 4, true, true, false},
        {2880, 64, 8, 0, 128, 4, true, true, true},   {2880, 64, 8, 128, 32, 4, true, true, true},
        {512, 5, 5, 33, 100, 8, false, false, false},
    };
    static const int32_t first[] = {700, 0, 15, 16, 1, 200, 128, 31}, far[] = {2047};
    for (int i = 0; i < 32; i++)
        inv_freq[i] = powf(1.5e5f, -(float)i / 32);
    for (size_t i = 0; i < (quick ? 2 : sizeof shapes / sizeof *shapes); i++) {
        for (int32_t n = 1; n <= 8; n += n < 3 ? 1 : 5)
            check_layer(&shapes[i], n, first);
        check_layer(&shapes[i], 1, far);
    }
}
