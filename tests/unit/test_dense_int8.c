// Dense matrices narrowed to 8 bits: the rounding rule, and the same products on every tier as on the reference device.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_features.h"
#include "ops/dense_int8.h"
#include "support/devices.h"

static void rows_round_to_nearest_even_with_their_own_scale(void **state)
{
    (void)state;
    const float rows[4][4] = {{254, -1, 3, 5}, {0, -0.0f, 0, 0}, {-12.7f, 6.35f, 0.05f, -0.05f}, {1, NAN, 2, 3}};
    const int8_t expected[3][4] = {{127, 0, 2, 2}, {1, 1, 1, 1}, {-127, 64, 0, 0}};
    const struct nib_weight_view view = {
        .data = rows, .dtype = NIB_F32, .rows = 4, .cols = 4, .name = "w", .may_narrow = true};
    struct nib_narrowed *list = NULL;
    struct nib_weight weight;
    assert_int_equal(nib_narrow_matrix(&view, 2, &list, &weight, NULL), NIB_OK);
    assert_int_equal(weight.dtype, NIB_I8);
    assert_true(weight.scales[0] == 2.0f); // so -1 and 5 lie halfway, and go to 0 and 2
    assert_true(weight.scales[1] == 0.0f);
    assert_true(isnan(weight.scales[3])); // NaN stays visible
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 4; c++) {
            int8_t q = ((const int8_t *)weight.data)[r * 4 + c];
            if (r != 2 || c == 0)
                assert_int_equal(q, expected[r][c]);
            else // the quotient of two rounded decimals: at most half a step off
                assert_true(fabsf((float)q * weight.scales[r] - rows[r][c]) <= weight.scales[r] * 0.5001f);
        }
    nib_free_narrowed(list);
}

enum { TOKENS = 13, ROWS = 203 };

// The products of one device that was opened to narrow.
static void project(const struct nib_ops *ops, int64_t cols, const uint16_t *weights, const float *x,
                    int64_t tokens, float *y)
{
    const struct nib_scratch_query query = {.max_width = cols, .hidden = 32, .n_heads = 1, .head_dim = 64};
    const struct nib_device_options options = {
        .threads = 2, .max_tokens = TOKENS, .max_sequences = 1, .dense_int8 = true};
    const struct nib_weight_view view = {
        .data = weights, .dtype = NIB_BF16, .rows = ROWS, .cols = cols, .name = "w", .may_narrow = true};
    struct nib_device *device;
    struct nib_weight weight;
    struct nib_buffer in, out;
    assert_int_equal(ops->open(&options, &query, &device, NULL), NIB_OK);
    assert_int_equal(ops->bind(device, &view, &weight, NULL), NIB_OK);
    assert_int_equal(weight.dtype, NIB_I8);
    assert_int_equal(ops->alloc_buffer(device, TOKENS, cols, &in, NULL), NIB_OK);
    assert_int_equal(ops->alloc_buffer(device, TOKENS, ROWS, &out, NULL), NIB_OK);
    memcpy(in.data, x, (size_t)(tokens * cols) * sizeof *x);
    const struct nib_projection projection = {.y = out, .weight = &weight};
    ops->begin(device, &(struct nib_step){0});
    ops->linear(device, tokens, in, &projection, 1);
    ops->read(device, tokens, out, y);
    assert_int_equal(ops->end(device, NULL), NIB_OK);
    ops->free_buffer(device, &in);
    ops->free_buffer(device, &out);
    ops->close(device);
}

static void every_tier_agrees_with_ref(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 31, 33, 96, 160, 2880};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        int64_t cols = widths[i];
        float *values = test_random_values(ROWS * cols, 1, true, 7),
              *x = test_random_values(TOKENS * cols, 2, true, 8);
        uint16_t *weights = malloc((size_t)(ROWS * cols) * sizeof *weights);
        for (int64_t k = 0; k < ROWS * cols; k++)
            weights[k] = nib_bf16_from_f32(values[k]);
        float expected[TOKENS * ROWS], y[TOKENS * ROWS], alone[ROWS];
        project(nib_ref_ops(), cols, weights, x, TOKENS, expected);
        for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
            setenv("NIBBLE_CPU", nib_cpu_tier_name(tier), 1);
            if (!nib_cpu_has(tier))
                continue;
            project(nib_cpu_ops(), cols, weights, x, TOKENS, y);
            double error = test_rms_difference(y, expected, TOKENS * ROWS) / sqrt((double)cols);
            if (!(error <= 1e-6))
                fail_msg("%s, %d columns: error %g", nib_cpu_tier_name(tier), (int)cols, error);
            project(nib_cpu_ops(), cols, weights, x, 1, alone);
            assert_memory_equal(alone, y, sizeof alone); // a token's bits do not depend on its neighbours
        }
        free(values);
        free(weights);
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_round_to_nearest_even_with_their_own_scale),
        cmocka_unit_test(every_tier_agrees_with_ref),
    };
    return cmocka_run_group_tests_name("dense_int8", tests, NULL, NULL);
}
