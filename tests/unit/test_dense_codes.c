// Dense matrices in FP8 and MXFP4 as stored: every block form, from both sides, cut into slices, the same on every tier.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_features.h"
#include "ops/dense_fp8.h"
#include "support/devices.h"

enum { TOKENS = 13, ROWS = 203, MOST_COLS = 400 };

static uint8_t codes[ROWS * MOST_COLS];
static float scales[ROWS * MOST_COLS];
static uint8_t exponents[ROWS * MOST_COLS];

struct form {
    int64_t cols, block_rows, block_cols;
    bool mxfp4;
};

static const struct form forms[] = {
    {MOST_COLS, 128, 128, false},
    {MOST_COLS, 32, 32, false},
    {300, 128, 128, false},
    {261, 1, 261, false},
    {129, ROWS, 129, false},
    {33, 1, 16, false},
    {7, 64, 7, false},
    {352, 1, 32, true},
    {32, 1, 32, true},
};

static int fill(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int i = 0; i < ROWS * MOST_COLS; i++) {
        codes[i] = (uint8_t)(i % 256 == 0x7f || i % 256 == 0xff ? 1 : i % 256); // every code but NaN
        exponents[i] = (uint8_t)(115 + i * 7 % 11);
        scales[i] = ldexpf(1 + test_random(&seed) / 2, -8);
    }
    return 0;
}

static struct nib_weight_view view_of(const struct form *form)
{
    return (struct nib_weight_view){.data = codes,
                                    .dtype = form->mxfp4 ? NIB_U8 : NIB_F8_E4M3,
                                    .rows = ROWS,
                                    .cols = form->cols,
                                    .name = "w",
                                    .may_narrow = true, // it is in 8 bits already
                                    .scales = form->mxfp4 ? (const void *)exponents : scales,
                                    .scale_dtype = form->mxfp4 ? NIB_F8_E8M0 : NIB_F32,
                                    .block_rows = form->block_rows,
                                    .block_cols = form->block_cols};
}

static double weight_at(const struct form *form, int64_t r, int64_t c)
{
    int64_t pitch = (form->cols + form->block_cols - 1) / form->block_cols, at = r * form->cols + c;
    if (form->mxfp4)
        return (double)nib_e2m1_to_f32((uint8_t)(codes[at / 2] >> 4 * (at % 2)) & 15) *
               ldexp(1, exponents[r * pitch + c / 32] - 127);
    return (double)nib_e4m3_to_f32(codes[at]) *
           (double)scales[r / form->block_rows * pitch + c / form->block_cols];
}

// From the row FIRST on, in a linear whose results begin at column 3 and, from the other side, in head products.
enum { FIRST = 37, HEADS = 4, PITCH = 40, HEAD_ROWS = 30, TAIL = 2 };

struct results {
    float linear[TOKENS * ROWS], heads[TOKENS * HEADS * HEAD_ROWS], across[TOKENS * HEADS * (MOST_COLS + TAIL)];
};

static struct nib_weight slice(struct nib_weight weight)
{
    weight.data = (const uint8_t *)weight.data + FIRST * nib_weight_row_bytes(&weight);
    weight.rows -= FIRST;
    weight.first_row += FIRST;
    return weight;
}

static void run(const struct nib_ops *ops, const struct form *form, const float *x, int32_t tokens,
                struct results *out)
{
    const struct nib_scratch_query query = {.max_width = MOST_COLS, .hidden = 32, .n_heads = 1, .head_dim = 64};
    struct test_device d = test_device_open(ops, 2, TOKENS, &query);
    struct nib_weight_view view = view_of(form);
    struct nib_weight whole, part;
    assert_int_equal(ops->bind(d.device, &view, &whole, NULL), NIB_OK);
    part = slice(whole);
    struct nib_buffer in = test_buffer(&d, TOKENS, form->cols, NULL), y = test_buffer(&d, TOKENS, ROWS, NULL),
                      wide = test_buffer(&d, TOKENS, HEADS * form->cols, x),
                      heads = test_buffer(&d, TOKENS, HEADS * HEAD_ROWS, NULL),
                      narrow = test_buffer(&d, TOKENS, HEADS * (HEAD_ROWS + TAIL), x),
                      across = test_buffer(&d, TOKENS, HEADS * (form->cols + TAIL), NULL);
    memcpy(in.data, x, (size_t)(TOKENS * form->cols) * sizeof *x);
    const struct nib_projection projection = {.y = y, .weight = &part, .column = 3};
    const struct nib_head_product rows = {.weight = &whole,
                                          .n_heads = HEADS,
                                          .row_pitch = PITCH,
                                          .first_row = 7,
                                          .rows = HEAD_ROWS,
                                          .x_pitch = form->cols,
                                          .y_pitch = HEAD_ROWS};
    struct nib_head_product other = rows;
    other.transposed = true;
    other.x_pitch = HEAD_ROWS + TAIL;
    other.y_pitch = form->cols + TAIL;
    other.tail = TAIL;
    ops->begin(d.device, &(struct nib_step){.n_tokens = tokens});
    ops->linear(d.device, tokens, in, &projection, 1);
    ops->linear_heads(d.device, heads, wide, &rows);
    ops->linear_heads(d.device, across, narrow, &other);
    ops->read(d.device, tokens, y, out->linear);
    ops->read(d.device, tokens, heads, out->heads);
    ops->read(d.device, tokens, across, out->across);
    assert_int_equal(ops->end(d.device, NULL), NIB_OK);
    struct nib_buffer *buffers[] = {&in, &y, &wide, &heads, &narrow, &across};
    for (int i = 0; i < 6; i++)
        ops->free_buffer(d.device, buffers[i]);
    test_device_close(&d);
}

static void check_meaning(const struct form *form, const float *x, const struct results *got)
{
    int64_t cols = form->cols;
    for (int t = 0; t < TOKENS; t += 6) {
        for (int64_t r = FIRST; r < ROWS; r += 5) {
            double sum = 0;
            for (int64_t c = 0; c < cols; c++)
                sum += weight_at(form, r, c) * (double)x[t * cols + c];
            assert_true(fabs(sum - (double)got->linear[t * ROWS + 3 + r - FIRST]) < 1e-4 * sqrt((double)cols));
        }
        for (int64_t h = 0, c = cols - 1; h < HEADS; h++) {
            const float *in = x + t * HEADS * (HEAD_ROWS + TAIL) + h * (HEAD_ROWS + TAIL);
            const float *out = got->across + t * HEADS * (cols + TAIL) + h * (cols + TAIL);
            double sum = 0;
            for (int64_t r = 0; r < HEAD_ROWS; r++)
                sum += weight_at(form, h * PITCH + 7 + r, c) * (double)in[r];
            assert_true(fabs(sum - (double)out[c]) < 1e-3);
            assert_memory_equal(out + cols, in + HEAD_ROWS, TAIL * sizeof *in);
        }
    }
}

static void compare(const char *what, const char *tier, const float *a, const float *b, int64_t n)
{
    double error = test_rel_l2(a, b, n);
    if (!(error <= 2e-6))
        fail_msg("%s on %s: rel_l2 %g", what, tier, error);
}

static void every_form_on_every_tier(void **state)
{
    (void)state;
    static struct results ref, cpu, alone;
    float *x = test_random_values((int64_t)TOKENS * HEADS * MOST_COLS, 1, 0, 5);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct form *form = &forms[i];
        memset(&ref, 0, sizeof ref);
        run(nib_ref_ops(), form, x, TOKENS, &ref);
        check_meaning(form, x, &ref);
        for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
            const char *name = nib_cpu_tier_name(tier);
            if (!nib_cpu_has(tier))
                continue;
            setenv("NIBBLE_CPU", name, 1);
            memset(&cpu, 0, sizeof cpu);
            run(nib_cpu_ops(), form, x, TOKENS, &cpu);
            compare("linear", name, cpu.linear, ref.linear, TOKENS * ROWS);
            compare("heads", name, cpu.heads, ref.heads, TOKENS * HEADS * HEAD_ROWS);
            compare("across", name, cpu.across, ref.across, TOKENS * HEADS * (form->cols + TAIL));
            // A token's bits do not depend on its neighbours.
            run(nib_cpu_ops(), form, x, 1, &alone);
            assert_memory_equal(alone.linear, cpu.linear, (ROWS - FIRST) * sizeof(float));
            assert_memory_equal(alone.heads, cpu.heads, HEADS * HEAD_ROWS * sizeof(float));
            assert_memory_equal(alone.across, cpu.across, (size_t)(HEADS * (form->cols + TAIL)) * sizeof(float));
        }
        unsetenv("NIBBLE_CPU");
    }
    free(x);
}

static void codes_that_are_no_number_stay_none(void **state)
{
    (void)state;
    static struct results got;
    float *x = test_random_values((int64_t)TOKENS * HEADS * MOST_COLS, 1, 0, 5);
    uint8_t before = codes[50 * 261 + 3];
    codes[50 * 261 + 3] = 0xff;
    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!nib_cpu_has(tier))
            continue;
        setenv("NIBBLE_CPU", nib_cpu_tier_name(tier), 1);
        run(nib_cpu_ops(), &forms[3], x, TOKENS, &got);
        for (int r = FIRST; r < ROWS; r++)
            assert_int_equal(isnan(got.linear[3 + r - FIRST]), r == 50);
    }
    unsetenv("NIBBLE_CPU");
    codes[50 * 261 + 3] = before;
    free(x);
}

static void scales_come_in_three_types(void **state)
{
    (void)state;
    const uint16_t bf16[] = {0x3f00, 0x4000};
    const uint8_t e8m0[] = {126, 128};
    struct nib_fp8_scales *list = NULL;
    struct nib_weight weight;
    struct nib_weight_view view = {
        .data = codes, .dtype = NIB_F8_E4M3, .rows = 2, .cols = 5, .name = "w", .block_rows = 1, .block_cols = 5};
    view.scales = bf16;
    view.scale_dtype = NIB_BF16;
    assert_int_equal(nib_bind_fp8(&view, &list, &weight, NULL), NIB_OK);
    assert_true(weight.scales[0] == 0.5f && weight.scales[1] == 2.0f);
    view.scales = e8m0;
    view.scale_dtype = NIB_F8_E8M0;
    assert_int_equal(nib_bind_fp8(&view, &list, &weight, NULL), NIB_OK);
    assert_true(weight.scales[0] == 0.5f && weight.scales[1] == 2.0f);
    struct nib_error err;
    view.block_cols = 3; // narrower than a vector
    assert_int_equal(nib_bind_fp8(&view, &list, &weight, &err), NIB_ERR_UNSUPPORTED);
    nib_free_fp8_scales(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_on_every_tier),
        cmocka_unit_test(codes_that_are_no_number_stay_none),
        cmocka_unit_test(scales_come_in_three_types),
    };
    return cmocka_run_group_tests_name("dense_codes", tests, fill, NULL);
}
