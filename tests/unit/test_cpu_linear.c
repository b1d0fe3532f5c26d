// The cpu device's linear against the reference, on every tier that this machine has.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_features.h"
#include "support/devices.h"
#include "support/guard.h"

enum { MAX_TOKENS = 70, MAX_WIDTH = 2880 };

static const struct nib_scratch_query query = {.max_width = MAX_WIDTH, .hidden = 32, .n_heads = 1, .head_dim = 64};

static bool use_tier(enum nib_cpu_tier tier)
{
    setenv("NIBBLE_CPU", nib_cpu_tier_name(tier), 1);
    return nib_cpu_has(tier);
}

// A random weight that touches an inaccessible page.
struct guarded_weight {
    struct test_guarded memory;
    struct nib_weight weight;
};

static struct guarded_weight make_weight(enum nib_dtype dtype, int64_t rows, int64_t cols,
                                         enum test_guard_side side, uint64_t seed)
{
    size_t size = nib_dtype_size(dtype);
    struct test_guarded memory = test_guarded_alloc((size_t)(rows * cols) * size, side);
    for (int64_t i = 0; i < rows * cols; i++) {
        float value = test_random(&seed);
        if (dtype == NIB_F32)
            ((float *)memory.data)[i] = value;
        else if (dtype == NIB_BF16)
            ((uint16_t *)memory.data)[i] = nib_bf16_from_f32(value);
        else // some half-precision numbers between 2^-9 and 2, either sign
            ((uint16_t *)memory.data)[i] =
                (uint16_t)((value < 0 ? 0x8000 : 0) | (0x1800 + (int)(seed >> 40) % 0x2800));
    }
    return (struct guarded_weight){memory, {.data = memory.data, .dtype = dtype, .rows = rows, .cols = cols}};
}

struct shape {
    int64_t tokens, rows, cols;
    enum nib_dtype dtype;
    bool exact, rounded_input;
    double bound;
};

static void compare(const struct test_device *cpu, const struct test_device *ref, struct shape shape,
                    enum test_guard_side side)
{
    struct guarded_weight weight = make_weight(shape.dtype, shape.rows, shape.cols, side, 3);
    struct guarded_weight bias = make_weight(NIB_BF16, 1, shape.rows, side, 4);
    float *x = test_random_values(shape.tokens * shape.cols, 2, shape.rounded_input, 5);
    float *y[2];
    const struct test_device *devices[2] = {cpu, ref};
    for (int i = 0; i < 2; i++) {
        const struct test_device *d = devices[i];
        struct nib_buffer in = test_buffer(d, shape.tokens, shape.cols, x);
        struct nib_buffer out = test_buffer(d, shape.tokens, shape.rows, NULL);
        struct nib_projection projection = {
            .y = out, .weight = &weight.weight, .bias = &bias.weight, .exact = shape.exact};
        y[i] = malloc((size_t)(shape.tokens * shape.rows) * sizeof(float));
        assert_non_null(y[i]);
        d->ops->begin(d->device, &(struct nib_step){0});
        d->ops->linear(d->device, shape.tokens, in, &projection, 1);
        d->ops->read(d->device, shape.tokens, out, y[i]);
        assert_int_equal(d->ops->end(d->device, NULL), NIB_OK);
        d->ops->free_buffer(d->device, &in);
        d->ops->free_buffer(d->device, &out);
    }
    // Relative to a typical output, not to this one, which may have cancelled.
    double error = test_rms_difference(y[0], y[1], shape.tokens * shape.rows) / sqrt((double)shape.cols);
    if (!(error <= shape.bound))
        print_error("[%d, %d] x [%d] %s: error %g\n", (int)shape.rows, (int)shape.cols, (int)shape.tokens,
                    nib_dtype_name(shape.dtype), error);
    assert_true(error <= shape.bound);
    free(y[0]);
    free(y[1]);
    free(x);
    test_guarded_free(&weight.memory);
    test_guarded_free(&bias.memory);
}

static void linear_agrees_with_ref(void **state)
{
    (void)state;
    static const int64_t all_rows[] = {1, 3, 4, 5, 64, 201}, all_cols[] = {1, 7, 31, 32, 33, 96, 160, 2880};
    static const int64_t all_tokens[] = {1, 2, 3, 4, 5, 6, 7, 11, 70};
    static const enum nib_dtype dtypes[] = {NIB_BF16, NIB_F32, NIB_F16};
    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!use_tier(tier))
            continue;
        struct test_device cpu = test_device_open(nib_cpu_ops(), 2, MAX_TOKENS, &query);
        struct test_device ref = test_device_open(nib_ref_ops(), 2, MAX_TOKENS, &query);
        for (size_t r = 0; r < sizeof all_rows / sizeof *all_rows; r++)
            for (size_t c = 0; c < sizeof all_cols / sizeof *all_cols; c++)
                for (size_t t = 0; t < sizeof all_tokens / sizeof *all_tokens; t++) {
                    struct shape shape = {all_tokens[t], all_rows[r], all_cols[c], dtypes[(r + c + t) % 3],
                                          (r + t) % 2,   true,        1e-6};
                    compare(&cpu, &ref, shape, (enum test_guard_side)(c % 2));
                    shape.dtype = NIB_BF16;
                    compare(&cpu, &ref, shape, (enum test_guard_side)((c + 1) % 2));
                }
        test_device_close(&cpu);
        test_device_close(&ref);
    }
}

static void unrounded_inputs_cost_one_rounding_or_none(void **state)
{
    (void)state;
    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!use_tier(tier))
            continue;
        struct test_device cpu = test_device_open(nib_cpu_ops(), 1, MAX_TOKENS, &query);
        struct test_device ref = test_device_open(nib_ref_ops(), 1, MAX_TOKENS, &query);
        compare(&cpu, &ref, (struct shape){9, 64, 2880, NIB_BF16, false, false, 2e-3}, TEST_GUARD_BEHIND);
        compare(&cpu, &ref, (struct shape){9, 64, 2880, NIB_BF16, true, false, 1e-6}, TEST_GUARD_BEHIND);
        compare(&cpu, &ref, (struct shape){9, 64, 2880, NIB_F32, false, false, 1e-6}, TEST_GUARD_BEHIND);
        test_device_close(&cpu);
        test_device_close(&ref);
    }
}

// Three projections of `tokens` inputs from row `first` of x; the outputs go to the same rows of y.
static void project(const struct test_device *d, const float *x, int64_t first, int64_t tokens,
                    struct guarded_weight weights[3], float *y /* [MAX_TOKENS, 300] */)
{
    struct nib_buffer in = test_buffer(d, tokens, 160, x + first * 160), out[3];
    struct nib_projection projections[3];
    for (int i = 0; i < 3; i++) {
        out[i] = test_buffer(d, tokens, weights[i].weight.rows, NULL);
        projections[i] = (struct nib_projection){.y = out[i], .weight = &weights[i].weight, .exact = i == 1};
    }
    d->ops->begin(d->device, &(struct nib_step){0});
    d->ops->linear(d->device, tokens, in, projections, 3);
    assert_int_equal(d->ops->end(d->device, NULL), NIB_OK);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0, at = 0; i < 3; at += weights[i++].weight.rows)
            memcpy(y + (first + t) * 300 + at, (float *)out[i].data + t * out[i].width,
                   (size_t)out[i].width * sizeof(float));
    for (int i = 0; i < 3; i++)
        d->ops->free_buffer(d->device, &out[i]);
    d->ops->free_buffer(d->device, &in);
}

static void bits_do_not_depend_on_chunks_or_threads(void **state)
{
    (void)state;
    static float whole[MAX_TOKENS * 300], parts[MAX_TOKENS * 300];
    float *x = test_random_values(MAX_TOKENS * 160, 1, false, 7);
    struct guarded_weight weights[3] = {make_weight(NIB_BF16, 201, 160, TEST_GUARD_BEHIND, 1),
                                        make_weight(NIB_BF16, 32, 160, TEST_GUARD_BEHIND, 2),
                                        make_weight(NIB_F32, 67, 160, TEST_GUARD_BEHIND, 3)};
    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!use_tier(tier))
            continue;
        struct test_device one = test_device_open(nib_cpu_ops(), 1, MAX_TOKENS, &query);
        project(&one, x, 0, MAX_TOKENS, weights, whole);
        for (int threads = 1; threads <= 5; threads++) {
            struct test_device many = test_device_open(nib_cpu_ops(), threads, MAX_TOKENS, &query);
            for (int64_t chunk = 1; chunk <= MAX_TOKENS; chunk += chunk < 14 ? 1 : 19) {
                memset(parts, 0xff, sizeof parts);
                for (int64_t first = 0; first < MAX_TOKENS; first += chunk)
                    project(&many, x, first, chunk < MAX_TOKENS - first ? chunk : MAX_TOKENS - first, weights,
                            parts);
                assert_memory_equal(parts, whole, sizeof whole);
            }
            test_device_close(&many);
        }
        test_device_close(&one);
    }
    for (int i = 0; i < 3; i++)
        test_guarded_free(&weights[i].memory);
    free(x);
}

static void the_first_failure_is_remembered(void **state)
{
    (void)state;
    unsetenv("NIBBLE_CPU");
    struct test_device cpu = test_device_open(nib_cpu_ops(), 1, 4, &query);
    struct guarded_weight weight = make_weight(NIB_BF16, 4, MAX_WIDTH + 1, TEST_GUARD_BEHIND, 1);
    struct nib_buffer x = test_buffer(&cpu, 4, MAX_WIDTH + 1, NULL), y = test_buffer(&cpu, 4, 4, NULL);
    struct nib_projection wide = {.y = y, .weight = &weight.weight};
    struct nib_error err;
    cpu.ops->begin(cpu.device, &(struct nib_step){0});
    cpu.ops->linear(cpu.device, 1, x, &wide, 1);
    cpu.ops->linear(cpu.device, 5, x, &wide, 1);
    assert_int_equal(cpu.ops->end(cpu.device, &err), NIB_ERR_LIMIT);
    assert_non_null(strstr(err.message, "1 x 2881"));
    cpu.ops->begin(cpu.device, &(struct nib_step){0});
    assert_int_equal(cpu.ops->end(cpu.device, &err), NIB_OK);
    cpu.ops->begin(cpu.device, &(struct nib_step){.n_tokens = 5});
    assert_int_equal(cpu.ops->end(cpu.device, &err), NIB_ERR_LIMIT);
    cpu.ops->free_buffer(cpu.device, &x);
    cpu.ops->free_buffer(cpu.device, &y);
    test_guarded_free(&weight.memory);
    test_device_close(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_agrees_with_ref),
        cmocka_unit_test(unrounded_inputs_cost_one_rounding_or_none),
        cmocka_unit_test(bits_do_not_depend_on_chunks_or_threads),
        cmocka_unit_test(the_first_failure_is_remembered),
    };
    return cmocka_run_group_tests_name("cpu linear", tests, NULL, NULL);
}
