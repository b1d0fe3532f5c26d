// Every operation of the cuda device against the reference, over odd shapes and ragged batches. Ends with one summary line.
// Exit code 77: no GPU that the kernels are for, nothing was run.
//
// usage: test_cuda_ops [--quick]    --quick: fewer shapes, for runs under compute-sanitizer
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler.h"
#include "ops/ops.h"
#include "support/devices.h"

#define BOUND_F32 2e-5  // sums in another order
#define BOUND_HALF 6e-3 // inputs or cached rows rounded to bf16

enum { MAX_TOKENS = 192, REF, CUDA, DEVICES };

static struct test_device devices[DEVICES];
static bool quick;
static int checks, failures;
static double worst;

static const struct nib_scratch_query query = {.max_width = 8200,
                                               .n_experts = 128,
                                               .top_k = 8,
                                               .hidden = 2880,
                                               .intermediate = 2880,
                                               .n_heads = 128,
                                               .head_dim = 576};

static void die(const char *what, const char *why)
{
    printf("%s: %s\n", what, why);
    exit(1);
}

static void expect(bool good, const char *what, double value, double bound)
{
    checks++;
    if (good)
        return;
    failures++;
    printf("FAILED: %s: %.3g, at most %.3g\n", what, value, bound);
}

static void expect_close(const char *what, const float *got, const float *want, int64_t n, double bound)
{
    double error = test_rel_l2(got, want, n);
    worst = error / bound > worst ? error / bound : worst;
    expect(error <= bound, what, error, bound);
}

// ---- both devices at once ----

struct pair {
    struct nib_buffer on[DEVICES];
};

static struct pair make(int64_t rows, int64_t width, const float *values)
{
    struct pair pair;
    for (int d = REF; d < DEVICES; d++) {
        pair.on[d] = test_buffer(&devices[d], rows, width, d == REF ? values : NULL);
        if (d == CUDA && values &&
            cudaMemcpy(pair.on[d].data, values, (size_t)(rows * width) * 4, cudaMemcpyHostToDevice) != cudaSuccess)
            die("cuda", "upload");
    }
    return pair;
}

static struct pair make_random(int64_t rows, int64_t width, uint64_t seed)
{
    float *values = test_random_values(rows * width, 1, 1, seed);
    struct pair pair = make(rows, width, values);
    free(values);
    return pair;
}

static void drop(struct pair *pair)
{
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_buffer(devices[d].device, &pair->on[d]);
}

struct weights {
    struct nib_weight on[DEVICES];
    void *data, *scales;
};

static struct weights bind(struct nib_weight_view view, void *data, void *scales)
{
    struct weights w = {.data = data, .scales = scales};
    struct nib_error err;
    view.data = data;
    view.scales = scales;
    view.name = "a test's weight";
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->bind(devices[d].device, &view, &w.on[d], &err))
            die("bind", err.message);
    return w;
}

static void unbind(struct weights *w)
{
    free(w->data);
    free(w->scales);
}

static struct weights random_weights(int64_t rows, int64_t cols, enum nib_dtype dtype, float scale, uint64_t seed)
{
    int64_t n = rows * cols;
    uint16_t *half = malloc((size_t)n * 4 + 4);
    float *values = test_random_values(n, scale, 1, seed);
    if (dtype == NIB_F32)
        memcpy(half, values, (size_t)n * 4);
    for (int64_t i = 0; dtype == NIB_BF16 && i < n; i++)
        half[i] = nib_bf16_from_f32(values[i]);
    for (int64_t i = 0; dtype == NIB_F16 && i < n; i++)
        half[i] = (uint16_t)(0x2c00u + (unsigned)i % 1024 * 3 + ((unsigned)i % 3 == 0 ? 0x8000u : 0));
    free(values);
    return bind((struct nib_weight_view){.dtype = dtype, .rows = rows, .cols = cols}, half, NULL);
}

// Runs `body` in a step on each device and compares `rows` rows of `result`.
typedef void body_function(int d, void *context);

static void compare(const char *what, const struct test_step *step, body_function *body, void *context,
                    const struct pair *result, int64_t rows, double bound)
{
    int64_t n = rows * result->on[REF].width;
    float *got[DEVICES] = {NULL};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++) {
        got[d] = malloc((size_t)n * sizeof(float) + 4);
        devices[d].ops->begin(devices[d].device, &step->step);
        body(d, context);
        devices[d].ops->read(devices[d].device, rows, result->on[d], got[d]);
        if (devices[d].ops->end(devices[d].device, &err))
            die(what, err.message);
    }
    expect_close(what, got[CUDA], got[REF], n, bound);
    free(got[REF]);
    free(got[CUDA]);
}

// A step of one sequence that feeds `tokens` tokens after `first`.
static struct test_step plain_step(int32_t first, int32_t tokens)
{
    return test_step_make(16, 1, &first, &tokens);
}

// ---- rows ----

struct rows_context {
    struct pair *x, *y, *z;
    struct weights *w;
    int64_t rows, heads, dim;
    int which;
};

static void rows_body(int d, void *context)
{
    struct rows_context *c = context;
    const struct nib_ops *ops = devices[d].ops;
    struct nib_device *device = devices[d].device;
    switch (c->which) {
    case 0:
        ops->embed(device, c->y->on[d], &c->w->on[d]);
        break;
    case 1:
        ops->rms_norm(device, c->rows, c->y->on[d], c->x->on[d], &c->w->on[d], 1e-5f);
        break;
    case 2: // what the device does in one launch
        ops->add(device, c->x->on[d], c->z->on[d]);
        ops->rms_norm(device, c->rows, c->y->on[d], c->x->on[d], &c->w->on[d], 1e-5f);
        break;
    case 3:
        ops->head_norm(device, c->x->on[d], c->heads, c->dim, &c->w->on[d], 1e-6f);
        break;
    case 4:
        ops->silu_mul(device, c->x->on[d], c->z->on[d]);
        break;
    case 5:
        ops->gather(device, c->y->on[d], c->x->on[d]);
        break;
    case 6:
        ops->gather(device, c->y->on[d], c->x->on[d]);
        ops->rms_norm(device, c->rows, c->y->on[d], c->y->on[d], &c->w->on[d], 1e-5f);
        break;
    default:
        ops->add(device, c->x->on[d], c->z->on[d]);
        break;
    }
}

static void check_rows(int32_t tokens, int64_t width)
{
    struct test_step step = plain_step(0, tokens);
    struct weights norm = random_weights(1, width, NIB_BF16, 2, 7);
    struct pair x = make_random(tokens, width, 1), y = make_random(tokens, width, 2),
                z = make_random(tokens, width, 3);
    struct rows_context c = {&x, &y, &z, &norm, tokens, 0, 0, 1};
    compare("rms_norm", &step, rows_body, &c, &y, tokens, BOUND_F32);
    c.which = 2;
    compare("add, rms_norm", &step, rows_body, &c, &y, tokens, BOUND_F32);
    compare("add, rms_norm: the sum", &step, rows_body, &c, &x, tokens, BOUND_F32);
    c.which = 4;
    compare("silu_mul", &step, rows_body, &c, &x, tokens, BOUND_F32);
    c.which = 7;
    compare("add", &step, rows_body, &c, &x, tokens, BOUND_F32);
    c.which = 5;
    compare("gather", &step, rows_body, &c, &y, 1, BOUND_F32);
    c.which = 6;
    c.rows = 1;
    compare("gather, rms_norm", &step, rows_body, &c, &y, 1, BOUND_F32);
    for (int dtype = NIB_F32; dtype <= NIB_BF16; dtype++) {
        struct weights table = random_weights(MAX_TOKENS, width, (enum nib_dtype)dtype, 1, 9);
        c.which = 0;
        c.w = &table;
        compare("embed", &step, rows_body, &c, &y, tokens, BOUND_F32);
        unbind(&table);
    }
    drop(&x), drop(&y), drop(&z);
    unbind(&norm);
    test_step_free(&step);
}

static void check_head_norm(int32_t tokens, int64_t heads, int64_t dim, int64_t normed)
{
    struct test_step step = plain_step(0, tokens);
    struct weights norm = random_weights(1, normed, NIB_F32, 2, 7);
    struct pair x = make_random(tokens, heads * dim, 1);
    struct rows_context c = {&x, NULL, NULL, &norm, tokens, heads, dim, 3};
    compare("head_norm", &step, rows_body, &c, &x, tokens, BOUND_F32);
    drop(&x);
    unbind(&norm);
    test_step_free(&step);
}

// ---- products ----

enum { MOST_PRODUCTS = 3 };

struct linear_context {
    struct pair *x, *y, *residual, *normed;
    struct weights *w, *b, *norm; /* [count] */
    int64_t rows;
    int count;
    bool exact;
};

static void linear_body(int d, void *context)
{
    struct linear_context *c = context;
    const struct nib_ops *ops = devices[d].ops;
    struct nib_device *device = devices[d].device;
    struct nib_projection p[MOST_PRODUCTS];
    int64_t column = 0;
    for (int i = 0; i < c->count; i++) {
        p[i] = (struct nib_projection){.y = c->y->on[d],
                                       .weight = &c->w[i].on[d],
                                       .bias = c->b ? &c->b[i].on[d] : NULL,
                                       .exact = c->exact,
                                       .column = column};
        column += c->w[i].on[d].rows;
    }
    ops->linear(device, c->rows, c->x->on[d], p, c->count);
    if (!c->residual)
        return;
    ops->add(device, c->residual->on[d], c->y->on[d]);
    ops->rms_norm(device, c->rows, c->normed->on[d], c->residual->on[d], &c->norm->on[d], 1e-5f);
    ops->rms_norm(device, c->rows, c->y->on[d], c->normed->on[d], &c->norm->on[d],
                  1e-5f); // so that y is dead before
}

static void check_linear(int32_t rows, int64_t cols, const int64_t *outs, int count, enum nib_dtype dtype,
                         bool bias, bool exact)
{
    char what[160];
    struct test_step step = plain_step(0, rows);
    struct weights w[MOST_PRODUCTS], b[MOST_PRODUCTS];
    int64_t width = 0;
    for (int i = 0; i < count; i++) {
        w[i] = random_weights(outs[i], cols, dtype, 0.5f, 11 + (uint64_t)i);
        b[i] = random_weights(1, outs[i], NIB_BF16, 1, 21 + (uint64_t)i);
        width += outs[i];
    }
    struct pair x = make_random(rows, cols, 31), y = make(rows, width, NULL);
    struct linear_context c = {
        .x = &x, .y = &y, .w = w, .b = bias ? b : NULL, .rows = rows, .count = count, .exact = exact};
    snprintf(what, sizeof what, "linear %d x %lld -> %d of %lld, %s%s", rows, (long long)cols, count,
             (long long)outs[0], nib_dtype_name(dtype), exact ? ", exact" : "");
    compare(what, &step, linear_body, &c, &y, rows, BOUND_F32); // the inputs are bf16 numbers: only sums differ
    if (count == 1) {
        struct pair residual = make_random(rows, width, 41), normed = make(rows, width, NULL);
        struct weights norm = random_weights(1, width, NIB_BF16, 1, 43);
        c.residual = &residual, c.normed = &normed, c.norm = &norm;
        compare("linear, add", &step, linear_body, &c, &residual, rows, BOUND_F32);
        compare("linear, add, rms_norm", &step, linear_body, &c, &y, rows, BOUND_F32);
        drop(&residual), drop(&normed);
        unbind(&norm);
    }
    drop(&x), drop(&y);
    for (int i = 0; i < count; i++)
        unbind(&w[i]), unbind(&b[i]);
    test_step_free(&step);
}

// Matrices that the device widens when they are bound.
static void check_coded(bool fp8, int32_t rows, int64_t out, int64_t cols)
{
    struct test_step step = plain_step(0, rows);
    int64_t codes = fp8 ? out * cols : out * cols / 2;
    uint8_t *data = malloc((size_t)codes), *scales = malloc((size_t)(out * cols));
    uint64_t seed = 5;
    for (int64_t i = 0; i < codes; i++) {
        data[i] = (uint8_t)((test_random(&seed) + 1) * 127);
        data[i] = fp8 && (data[i] & 0x7f) == 0x7f ? 0 : data[i];
    }
    for (int64_t i = 0; i < out * cols / 32; i++)
        scales[i] = (uint8_t)(122 + i % 5);
    struct nib_weight_view view = {.dtype = NIB_U8, .rows = out, .cols = cols};
    if (fp8)
        view = (struct nib_weight_view){.dtype = NIB_F8_E4M3,
                                        .rows = out,
                                        .cols = cols,
                                        .scale_dtype = NIB_F8_E8M0,
                                        .block_rows = 128,
                                        .block_cols = 128};
    struct weights w = bind(view, data, scales);
    struct pair x = make_random(rows, cols, 31), y = make(rows, out, NULL);
    struct linear_context c = {.x = &x, .y = &y, .w = &w, .rows = rows, .count = 1};
    compare(fp8 ? "linear of FP8" : "linear of MXFP4", &step, linear_body, &c, &y, rows, BOUND_F32);
    drop(&x), drop(&y);
    unbind(&w);
    test_step_free(&step);
}

struct heads_context {
    struct pair *x, *y;
    struct weights *w;
    struct nib_head_product product;
};

static void heads_body(int d, void *context)
{
    struct heads_context *c = context;
    struct nib_head_product product = c->product;
    product.weight = &c->w->on[d];
    devices[d].ops->linear_heads(devices[d].device, c->y->on[d], c->x->on[d], &product);
}

static void check_linear_heads(int32_t tokens, bool transposed)
{
    int64_t heads = 5, nope = 24, v = 16, lora = 40, tail = transposed ? 8 : 0;
    struct test_step step = plain_step(0, tokens);
    struct weights w = random_weights(heads * (nope + v), lora, NIB_BF16, 1, 3);
    int64_t in = transposed ? nope + tail : lora, out = transposed ? lora + tail : v;
    struct pair x = make_random(tokens, heads * in, 4), y = make(tokens, heads * out, NULL);
    struct heads_context c = {&x,
                              &y,
                              &w,
                              {.n_heads = heads,
                               .row_pitch = nope + v,
                               .first_row = transposed ? 0 : nope,
                               .rows = transposed ? nope : v,
                               .transposed = transposed,
                               .x_pitch = in,
                               .y_pitch = out,
                               .tail = tail}};
    compare("linear_heads", &step, heads_body, &c, &y, tokens, BOUND_F32);
    drop(&x), drop(&y);
    unbind(&w);
    test_step_free(&step);
}

// ---- attention ----

struct attention_shape {
    int64_t heads, kv_heads, dim, v_dim, window;
    bool sinks, latent, interleaved;
    int64_t first, dims; // that are rotated
};

struct attention_context {
    const struct attention_shape *shape;
    struct pair *q, *k, *v, *y;
    struct nib_cache keys[DEVICES], values[DEVICES];
    struct weights *sinks;
    const float *inv_freq;
    bool attends;
};

static void attention_body(int d, void *context)
{
    struct attention_context *c = context;
    const struct attention_shape *s = c->shape;
    const struct nib_ops *ops = devices[d].ops;
    struct nib_device *device = devices[d].device;
    struct nib_rope rope = {c->inv_freq, s->first, s->dims, 1.2f, s->interleaved};
    ops->rope(device, c->q->on[d], s->heads, s->dim, &rope);
    ops->rope(device, c->k->on[d], s->kv_heads, s->dim, &rope);
    ops->append(device, c->keys[d], c->k->on[d]);
    if (!s->latent)
        ops->append(device, c->values[d], c->v->on[d]);
    if (!c->attends)
        return;
    struct nib_attend attend = {s->heads,  s->kv_heads, s->dim, s->v_dim,
                                s->window, 0.11f,       1.5f,   s->sinks ? &c->sinks->on[d] : NULL};
    ops->attend(device, c->y->on[d], c->q->on[d], c->keys[d], s->latent ? c->keys[d] : c->values[d], &attend);
}

// Histories of first[s] tokens, then a step of count[s] more.
static void check_attention(const struct attention_shape *s, const float *inv_freq, int32_t n,
                            const int32_t *first, const int32_t *count)
{
    char what[160];
    struct test_step step = test_step_make(32, n, first, count);
    struct weights sinks = random_weights(1, s->heads, NIB_BF16, 3, 2);
    struct pair q = make(MAX_TOKENS, s->heads * s->dim, NULL), k = make(MAX_TOKENS, s->kv_heads * s->dim, NULL),
                v = make(MAX_TOKENS, s->kv_heads * s->v_dim, NULL),
                y = make(MAX_TOKENS, s->heads * s->v_dim, NULL);
    struct attention_context c = {
        .shape = s, .q = &q, .k = &k, .v = &v, .y = &y, .sinks = &sinks, .inv_freq = inv_freq};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->alloc_cache(devices[d].device, step.pages, 32, s->kv_heads * s->dim, 0, &c.keys[d],
                                        &err) ||
            devices[d].ops->alloc_cache(devices[d].device, step.pages, 32, s->kv_heads * s->v_dim, 0, &c.values[d],
                                        &err))
            die("cache", err.message);
    // The histories are appended through the same tables, some tokens of one sequence at a time.
    for (int32_t sequence = 0; sequence < n; sequence++)
        for (int32_t done = 0; done < first[sequence];) {
            int32_t here = first[sequence] - done < 150 ? first[sequence] - done : 150, rows[2] = {0, here},
                    of[MAX_TOKENS] = {0}, at[MAX_TOKENS];
            for (int32_t i = 0; i < here; i++)
                at[i] = done + i;
            struct test_step part = step;
            part.step.n_tokens = here, part.step.n_sequences = 1, part.step.n_outputs = 0;
            part.step.positions = at, part.step.sequence_of = of, part.step.first_row = rows;
            part.step.page_tables = step.step.page_tables + sequence * step.step.table_width;
            drop(&q), drop(&k), drop(&v);
            q = make_random(MAX_TOKENS, s->heads * s->dim, 50),
            k = make_random(MAX_TOKENS, s->kv_heads * s->dim, 60 + (uint64_t)done),
            v = make_random(MAX_TOKENS, s->kv_heads * s->v_dim, 70 + (uint64_t)done);
            compare("rope, append: q", &part, attention_body, &c, &q, here, BOUND_F32);
            done += here;
        }
    drop(&q), drop(&k), drop(&v);
    q = make_random(MAX_TOKENS, s->heads * s->dim, 51), k = make_random(MAX_TOKENS, s->kv_heads * s->dim, 52),
    v = make_random(MAX_TOKENS, s->kv_heads * s->v_dim, 53);
    c.attends = true;
    snprintf(what, sizeof what, "attend %lld/%lld x %lld/%lld window %lld%s, %d sequences, %d tokens after %d",
             (long long)s->heads, (long long)s->kv_heads, (long long)s->dim, (long long)s->v_dim,
             (long long)s->window, s->sinks ? ", sinks" : "", n, count[0], first[0]);
    compare(what, &step, attention_body, &c, &y, step.step.n_tokens, BOUND_HALF);
    for (int d = REF; d < DEVICES; d++) {
        devices[d].ops->free_cache(devices[d].device, &c.keys[d]);
        devices[d].ops->free_cache(devices[d].device, &c.values[d]);
    }
    drop(&q), drop(&k), drop(&v), drop(&y);
    unbind(&sinks);
    test_step_free(&step);
}

static void check_attentions(void)
{
    static const struct attention_shape shapes[] = {
        {64, 8, 64, 64, 0, true, false, false, 0, 64},    {64, 8, 64, 64, 128, true, false, false, 0, 64},
        {8, 2, 32, 32, 7, false, false, false, 0, 32},    {4, 4, 64, 64, 0, false, false, true, 0, 32},
        {8, 1, 192, 128, 0, false, false, false, 0, 64},  {6, 2, 48, 40, 0, true, false, false, 16, 16},
        {16, 1, 576, 512, 0, false, true, true, 512, 64}, {4, 2, 128, 128, 33, false, false, false, 0, 128},
    };
    static const int32_t first[][4] = {{0, 0, 0, 0}, {1, 200, 31, 700}, {130, 0, 64, 5}},
                         count[][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}, {70, 33, 1, 9}};
    int n = (int)(sizeof shapes / sizeof *shapes);
    static float tables[8][288]; // a device keeps a copy of each by its address
    for (int i = 0; i < (quick ? 2 : n); i++) {
        for (int64_t j = 0; j < shapes[i].dims / 2; j++)
            tables[i][j] = powf(1e4f, -2.0f * (float)j / (float)shapes[i].dims);
        for (int j = 0; j < 3; j++)
            check_attention(&shapes[i], tables[i], 4, first[j], count[j]);
    }
}

// ---- experts ----

struct route_context {
    struct pair *logits, *x, *y;
    struct nib_routes routes[DEVICES];
    struct nib_router router;
    struct weights *correction;
    struct nib_moe *moe[DEVICES];
};

static void route_body(int d, void *context)
{
    struct route_context *c = context;
    struct nib_router router = c->router;
    router.correction = c->correction ? &c->correction->on[d] : NULL;
    devices[d].ops->route(devices[d].device, c->routes[d], c->logits->on[d], &router);
    if (c->moe[d])
        devices[d].ops->moe(devices[d].device, c->y->on[d], c->x->on[d], c->routes[d], c->moe[d]);
}

static void check_route(int32_t tokens, struct nib_router router, bool corrected, struct nib_moe **moe,
                        int64_t hidden)
{
    struct test_step step = plain_step(0, tokens);
    struct weights correction = random_weights(1, router.n_experts, NIB_F32, 0.5f, 8);
    struct pair logits = make_random(tokens, router.n_experts, 12), x = make_random(tokens, hidden, 13),
                y = make(tokens, hidden, NULL);
    struct route_context c = {
        .logits = &logits, .x = &x, .y = &y, .router = router, .correction = corrected ? &correction : NULL};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++) {
        c.moe[d] = moe ? moe[d] : NULL;
        if (devices[d].ops->alloc_routes(devices[d].device, tokens, router.top_k, &c.routes[d], &err))
            die("routes", err.message);
    }
    compare("route, moe", &step, route_body, &c, moe ? &y : &x, tokens, BOUND_HALF);
    int64_t n = tokens * router.top_k;
    int32_t *ids = malloc((size_t)n * 4);
    float *weights = malloc((size_t)n * 4);
    if (cudaMemcpy(ids, c.routes[CUDA].expert_ids, (size_t)n * 4, cudaMemcpyDeviceToHost) ||
        cudaMemcpy(weights, c.routes[CUDA].weights, (size_t)n * 4, cudaMemcpyDeviceToHost))
        die("routes", "cannot be read");
    expect(memcmp(ids, c.routes[REF].expert_ids, (size_t)n * 4) == 0, "route: ids", 1, 0);
    expect_close("route: weights", weights, c.routes[REF].weights, n, 1e-5);
    expect(!moe || router.kind != NIB_ROUTER_TOPK_SOFTMAX ||
               devices[CUDA].ops->expert_bytes_read(devices[CUDA].device) ==
                   devices[REF].ops->expert_bytes_read(devices[REF].device),
           "expert_bytes_read", 1, 0);
    free(ids), free(weights);
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_routes(devices[d].device, &c.routes[d]);
    drop(&logits), drop(&x), drop(&y);
    unbind(&correction);
    test_step_free(&step);
}

static void check_moe(int64_t hidden, int64_t intermediate, int64_t n_experts, bool interleaved)
{
    int64_t row = hidden / 2, w13 = 2 * intermediate * row, w2 = hidden * intermediate / 2;
    int64_t each = w13 + w13 / 16 + w2 + w2 / 16;
    uint8_t *bytes = malloc((size_t)(each * n_experts));
    float *biases = test_random_values((2 * intermediate + hidden) * n_experts, 0.3f, 0, 6);
    struct nib_expert *experts = calloc((size_t)n_experts, sizeof *experts);
    uint64_t seed = 4;
    for (int64_t e = 0; e < n_experts; e++) {
        uint8_t *p = bytes + e * each, *s = p + w13, *d = s + w13 / 16, *t = d + w2;
        for (int64_t i = 0; i < each; i++)
            p[i] = (uint8_t)((test_random(&seed) + 1) * 127);
        for (int64_t i = 0; i < w13 / 16; i++)
            s[i] = (uint8_t)(116 + s[i] % 4);
        for (int64_t i = 0; i < w2 / 16; i++)
            t[i] = (uint8_t)(116 + t[i] % 4);
        float *b = biases + e * (2 * intermediate + hidden);
        int64_t up = interleaved ? 1 : intermediate;
        experts[e] =
            (struct nib_expert){p, p + up * row, s, s + up * row / 16, d, t, b, b + up, b + 2 * intermediate};
    }
    struct nib_moe_weights weights = {hidden, intermediate, n_experts, interleaved ? 2 : 1, NIB_F32, experts};
    struct nib_moe_config config = {.activation = {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7}};
    struct nib_moe *moe[DEVICES] = {NULL};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->bind_moe(devices[d].device, &weights, &config, 4, &moe[d], &err))
            die("bind_moe", err.message);
    for (int32_t tokens = 1; tokens < MAX_TOKENS; tokens = 3 * tokens + 1)
        check_route(
            tokens,
            (struct nib_router){.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = n_experts, .top_k = 4, .scale = 1},
            false, moe, hidden);
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_moe(devices[d].device, moe[d]);
    free(bytes), free(biases), free(experts);
}

static void check_dense_moe(void)
{
    enum { EXPERTS = 6, HIDDEN = 72, INNER = 40 };
    struct weights gate[EXPERTS], up[EXPERTS], down[EXPERTS], bias[EXPERTS];
    struct nib_dense_expert experts[DEVICES][EXPERTS];
    struct nib_activation activation = {.kind = NIB_ACT_SILU};
    struct nib_moe *moe[DEVICES] = {NULL};
    struct nib_error err;
    for (int e = 0; e < EXPERTS; e++) {
        uint64_t seed = (uint64_t)e * 10;
        gate[e] = random_weights(INNER, HIDDEN, NIB_BF16, 0.3f, seed),
        up[e] = random_weights(INNER, HIDDEN, NIB_F32, 0.3f, seed + 1);
        down[e] = random_weights(HIDDEN, INNER, NIB_BF16, 0.3f, seed + 2),
        bias[e] = random_weights(1, HIDDEN, NIB_BF16, 1, seed + 3);
    }
    for (int d = REF; d < DEVICES; d++) {
        for (int e = 0; e < EXPERTS; e++)
            experts[d][e] = (struct nib_dense_expert){
                .gate = gate[e].on[d], .up = up[e].on[d], .down = down[e].on[d], .down_bias = bias[e].on[d]};
        if (devices[d].ops->bind_dense_moe(devices[d].device, experts[d], EXPERTS, &activation, &moe[d], &err))
            die("bind_dense_moe", err.message);
    }
    check_route(
        37,
        (struct nib_router){
            .kind = NIB_ROUTER_SOFTMAX, .n_experts = EXPERTS, .top_k = 2, .normalise = true, .scale = 1.5f},
        false, moe, HIDDEN);
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_moe(devices[d].device, moe[d]);
    for (int e = 0; e < EXPERTS; e++)
        unbind(&gate[e]), unbind(&up[e]), unbind(&down[e]), unbind(&bias[e]);
}

// ---- drawing ----

static void check_sample(int32_t rows, int64_t vocab)
{
    struct test_step step = plain_step(0, rows);
    int32_t *outputs = malloc((size_t)rows * 4);
    for (int32_t i = 0; i < rows; i++)
        outputs[i] = i;
    step.step.n_outputs = rows;
    const int32_t *own = step.step.output_rows;
    step.step.output_rows = outputs;
    float *values = test_random_values(rows * vocab, 8, 0, 3);
    struct pair logits = make(rows, vocab, values);
    struct nib_draw *draws = calloc((size_t)rows, sizeof *draws);
    struct nib_drawn *drawn = calloc((size_t)rows, sizeof *drawn);
    struct nib_sampler_scratch scratch;
    struct nib_error err;
    int different = 0;
    nib_sampler_scratch_alloc(&scratch, (int32_t)vocab, &err);
    for (int32_t r = 0; r < rows; r++) {
        struct nib_sampling s = {.temperature = (float)(r % 4) * 0.4f,
                                 .top_k = r % 3 * 20,
                                 .top_p = r % 5 ? 0.9f : 1,
                                 .min_p = r % 7 ? 0 : 0.02f,
                                 .seed = (uint64_t)r};
        struct nib_sampler sampler;
        nib_sampler_init(&sampler, &s);
        draws[r] = (struct nib_draw){
            nib_sampler_unit(&sampler), s.temperature, s.top_p, s.min_p, s.top_k, r % 2 ? 5 : -1};
    }
    const struct nib_ops *ops = devices[CUDA].ops;
    ops->begin(devices[CUDA].device, &step.step);
    ops->sample(devices[CUDA].device, rows, logits.on[CUDA], draws, drawn);
    if (ops->end(devices[CUDA].device, &err))
        die("sample", err.message);
    for (int32_t r = 0; r < rows; r++) {
        struct nib_sampling s = {draws[r].temperature, draws[r].top_k, draws[r].top_p, draws[r].min_p,
                                 (uint64_t)r};
        struct nib_sampler sampler;
        struct nib_token_logprob top[5];
        float logprob;
        nib_sampler_init(&sampler, &s);
        const float *row = values + (int64_t)r * vocab;
        different += nib_sampler_pick(&sampler, &scratch, row, (int32_t)vocab) != drawn[r].token;
        if (draws[r].n_top < 0)
            continue;
        int32_t n = nib_logprobs(&scratch, row, (int32_t)vocab, drawn[r].token, &logprob, top, 5);
        expect(fabsf(logprob - drawn[r].logprob) < 1e-4f && n == drawn[r].n_top, "sample: logprob",
               (double)(logprob - drawn[r].logprob), 1e-4);
        for (int32_t i = 0; i < n; i++)
            expect(top[i].token == drawn[r].top_tokens[i], "sample: likeliest tokens", i, 0);
    }
    // A draw at the edge between two tokens may fall on the other side.
    expect(different <= rows / 50, "sample: tokens other than the host's", different, rows / 50);
    nib_sampler_scratch_free(&scratch);
    drop(&logits);
    free(values), free(draws), free(drawn), free(outputs);
    step.step.output_rows = own;
    test_step_free(&step);
}

static void check_all(void)
{
    const int64_t three[] = {512, 64, 72}, one[] = {200}, odd[] = {33}, router[] = {128};
    const int32_t rows[] = {1, 2, 3, 5, 8, 17, 64, 65, 130};
    for (int32_t tokens = 1; tokens < MAX_TOKENS; tokens = 5 * tokens + 2) {
        check_rows(tokens, 2880);
        check_rows(tokens, 129);
        check_rows(tokens, quick ? 64 : 8200);
        check_head_norm(tokens, 5, 128, 128);
        check_head_norm(tokens, 3, 40, 24);
        check_linear_heads(tokens, false);
        check_linear_heads(tokens, true);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += quick ? 3 : 1) {
        check_linear(rows[i], 2880, three, 3, NIB_BF16, true, false);
        check_linear(rows[i], 64, one, 1, NIB_BF16, false, false);
        check_linear(rows[i], 72, one, 1, NIB_BF16, true, false);
        check_linear(rows[i], 33, odd, 1, NIB_BF16, true, false);
        check_linear(rows[i], 2880, router, 1, NIB_BF16, true, true);
        check_linear(rows[i], 100, one, 1, NIB_F32, true, false);
        check_linear(rows[i], 64, odd, 1, NIB_F16, true, false);
    }
    check_coded(true, 3, 130, 160);
    check_coded(false, 3, 130, 160);
    check_attentions();
    const struct nib_router routers[] = {
        {.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = 128, .top_k = 4, .scale = 1},
        {.kind = NIB_ROUTER_SOFTMAX, .n_experts = 60, .top_k = 8, .normalise = true, .scale = 1},
        {.kind = NIB_ROUTER_SIGMOID,
         .n_experts = 256,
         .top_k = 8,
         .n_groups = 8,
         .top_groups = 4,
         .normalise = true,
         .scale = 2.5f},
        {.kind = NIB_ROUTER_SIGMOID, .n_experts = 384, .top_k = 8, .normalise = true, .scale = 2.8f},
    };
    for (size_t i = 0; i < sizeof routers / sizeof *routers; i++)
        check_route(71, routers[i], routers[i].kind == NIB_ROUTER_SIGMOID, NULL, 32);
    check_moe(96, 64, 5, true);
    check_moe(160, 96, 8, false);
    check_dense_moe();
    check_sample(37, 1000);
    check_sample(4, quick ? 5000 : 201088);
}

int main(int argc, char **argv)
{
    uint64_t bytes;
    struct nib_error err;
    quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (nib_cuda_ops()->memory_available(0, &bytes, &err)) {
        printf("test_cuda_ops: not run: %s\n", err.message);
        return 77;
    }
    devices[REF] = test_device_open(nib_ref_ops(), 4, MAX_TOKENS, &query);
    devices[CUDA] = test_device_open(nib_cuda_ops(), 4, MAX_TOKENS, &query);
    check_all();
    for (int d = REF; d < DEVICES; d++)
        test_device_close(&devices[d]);
    printf("test_cuda_ops: %d checks, %d failed, worst at %.2f of its bound\n", checks, failures, worst);
    return failures > 0;
}
