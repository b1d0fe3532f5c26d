// Norms, sums, copies and products.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_pair.h"

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
    struct test_step step = pair_plain_step(0, tokens);
    struct weights norm = pair_random_weights(1, width, NIB_BF16, 2, 7);
    struct pair x = pair_random(tokens, width, 1), y = pair_random(tokens, width, 2),
                z = pair_random(tokens, width, 3);
    struct rows_context c = {&x, &y, &z, &norm, tokens, 0, 0, 1};
    pair_compare("rms_norm", &step, rows_body, &c, &y, tokens, BOUND_F32);
    c.which = 2;
    pair_compare("add, rms_norm", &step, rows_body, &c, &y, tokens, BOUND_F32);
    pair_compare("add, rms_norm: the sum", &step, rows_body, &c, &x, tokens, BOUND_F32);
    c.which = 4;
    pair_compare("silu_mul", &step, rows_body, &c, &x, tokens, BOUND_F32);
    c.which = 7;
    pair_compare("add", &step, rows_body, &c, &x, tokens, BOUND_F32);
    c.which = 5;
    pair_compare("gather", &step, rows_body, &c, &y, 1, BOUND_F32);
    c.which = 6;
    c.rows = 1;
    pair_compare("gather, rms_norm", &step, rows_body, &c, &y, 1, BOUND_F32);
    for (int dtype = NIB_F32; dtype <= NIB_BF16; dtype++) {
        struct weights table = pair_random_weights(MAX_TOKENS, width, (enum nib_dtype)dtype, 1, 9);
        c.which = 0;
        c.w = &table;
        pair_compare("embed", &step, rows_body, &c, &y, tokens, BOUND_F32);
        pair_unbind(&table);
    }
    pair_drop(&x), pair_drop(&y), pair_drop(&z);
    pair_unbind(&norm);
    test_step_free(&step);
}

static void check_head_norm(int32_t tokens, int64_t heads, int64_t dim, int64_t normed)
{
    struct test_step step = pair_plain_step(0, tokens);
    struct weights norm = pair_random_weights(1, normed, NIB_F32, 2, 7);
    struct pair x = pair_random(tokens, heads * dim, 1);
    struct rows_context c = {&x, NULL, NULL, &norm, tokens, heads, dim, 3};
    pair_compare("head_norm", &step, rows_body, &c, &x, tokens, BOUND_F32);
    pair_drop(&x);
    pair_unbind(&norm);
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
    struct test_step step = pair_plain_step(0, rows);
    struct weights w[MOST_PRODUCTS], b[MOST_PRODUCTS];
    int64_t width = 0;
    for (int i = 0; i < count; i++) {
        w[i] = pair_random_weights(outs[i], cols, dtype, 0.5f, 11 + (uint64_t)i);
        b[i] = pair_random_weights(1, outs[i], NIB_BF16, 1, 21 + (uint64_t)i);
        width += outs[i];
    }
    struct pair x = pair_random(rows, cols, 31), y = pair_make(rows, width, NULL);
    struct linear_context c = {
        .x = &x, .y = &y, .w = w, .b = bias ? b : NULL, .rows = rows, .count = count, .exact = exact};
    snprintf(what, sizeof what, "linear %d x %lld -> %d of %lld, %s%s", rows, (long long)cols, count,
             (long long)outs[0], nib_dtype_name(dtype), exact ? ", exact" : "");
    pair_compare(what, &step, linear_body, &c, &y, rows,
                 BOUND_F32); // the inputs are bf16 numbers: only sums differ
    if (count == 1) {
        struct pair residual = pair_random(rows, width, 41), normed = pair_make(rows, width, NULL);
        struct weights norm = pair_random_weights(1, width, NIB_BF16, 1, 43);
        c.residual = &residual, c.normed = &normed, c.norm = &norm;
        pair_compare("linear, add", &step, linear_body, &c, &residual, rows, BOUND_F32);
        pair_compare("linear, add, rms_norm", &step, linear_body, &c, &y, rows, BOUND_F32);
        pair_drop(&residual), pair_drop(&normed);
        pair_unbind(&norm);
    }
    pair_drop(&x), pair_drop(&y);
    for (int i = 0; i < count; i++)
        pair_unbind(&w[i]), pair_unbind(&b[i]);
    test_step_free(&step);
}

// Matrices that the device widens when they are bound.
static void check_coded(bool fp8, int32_t rows, int64_t out, int64_t cols)
{
    struct test_step step = pair_plain_step(0, rows);
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
    struct weights w = pair_bind(view, data, scales);
    struct pair x = pair_random(rows, cols, 31), y = pair_make(rows, out, NULL);
    struct linear_context c = {.x = &x, .y = &y, .w = &w, .rows = rows, .count = 1};
    pair_compare(fp8 ? "linear of FP8" : "linear of MXFP4", &step, linear_body, &c, &y, rows, BOUND_F32);
    pair_drop(&x), pair_drop(&y);
    pair_unbind(&w);
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
    struct test_step step = pair_plain_step(0, tokens);
    struct weights w = pair_random_weights(heads * (nope + v), lora, NIB_BF16, 1, 3);
    int64_t in = transposed ? nope + tail : lora, out = transposed ? lora + tail : v;
    struct pair x = pair_random(tokens, heads * in, 4), y = pair_make(tokens, heads * out, NULL);
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
    pair_compare("linear_heads", &step, heads_body, &c, &y, tokens, BOUND_F32);
    pair_drop(&x), pair_drop(&y);
    pair_unbind(&w);
    test_step_free(&step);
}

void check_rows_and_products(void)
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
}
