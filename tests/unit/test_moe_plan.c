// What a MoE plan and a call refuse, and how the tier is chosen.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_features.h"
#include "nibble/moe.h"

static uint8_t rows[64 * 32];
static struct nib_expert experts[2];

static struct nib_moe_weights good_weights(void)
{
    for (int i = 0; i < 2; i++)
        experts[i] = (struct nib_expert){
            .gate = rows, .up = rows, .gate_scales = rows, .up_scales = rows, .down = rows, .down_scales = rows};
    return (struct nib_moe_weights){.hidden = 64,
                                    .intermediate = 32,
                                    .n_experts = 2,
                                    .gate_up_row_stride = 1,
                                    .bias_dtype = NIB_BF16,
                                    .experts = experts};
}

static nib_status create(const struct nib_moe_weights *weights, struct nib_activation activation,
                         const char *kernel)
{
    struct nib_moe_config config = {.activation = activation, .kernel = kernel};
    struct nib_moe_plan *plan;
    struct nib_error err = {.message = ""};
    nib_status status = nib_moe_plan_create(weights, &config, &plan, &err);
    if (status)
        assert_true(!plan && strncmp(err.message, "moe: ", 5) == 0);
    nib_moe_plan_free(plan);
    return status;
}

static const struct nib_activation silu = {.kind = NIB_ACT_SILU};

static void impossible_weights_are_refused(void **state)
{
    (void)state;
    struct nib_moe_weights w = good_weights();
    assert_int_equal(create(&w, silu, "ref"), NIB_OK);
    const int64_t bad_sizes[] = {0, -32, 48, 33};
    for (size_t i = 0; i < sizeof bad_sizes / sizeof *bad_sizes; i++) {
        w = good_weights();
        w.hidden = bad_sizes[i];
        assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
        w = good_weights();
        w.intermediate = bad_sizes[i];
        assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
    }
    w = good_weights();
    w.hidden = INT64_MAX / 64 * 32;
    assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
    w = good_weights();
    w.n_experts = 0;
    assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
    w = good_weights();
    w.gate_up_row_stride = 0;
    assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
    w = good_weights();
    experts[1].down_scales = NULL;
    assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
    w = good_weights();
    experts[1].up_bias = rows; // and no other
    assert_int_equal(create(&w, silu, "ref"), NIB_ERR_ARGUMENT);
    w = good_weights();
    w.bias_dtype = NIB_F8_E4M3;
    for (int i = 0; i < 2; i++)
        experts[i].gate_bias = experts[i].up_bias = experts[i].down_bias = rows;
    assert_int_equal(create(&w, silu, "ref"), NIB_ERR_UNSUPPORTED);
}

static void impossible_activations_and_kernels_are_refused(void **state)
{
    (void)state;
    struct nib_moe_weights w = good_weights();
    assert_int_equal(create(&w, (struct nib_activation){.kind = NIB_ACT_SILU_CLAMP}, "ref"), NIB_ERR_ARGUMENT);
    assert_int_equal(create(&w, (struct nib_activation){.kind = NIB_ACT_SITU, .beta = 4}, "ref"),
                     NIB_ERR_ARGUMENT);
    assert_int_equal(create(&w, (struct nib_activation){.kind = (enum nib_activation_kind)77}, "ref"),
                     NIB_ERR_ARGUMENT);
    assert_int_equal(create(&w, silu, "avx1024"), NIB_ERR_UNSUPPORTED);
}

static void impossible_calls_are_refused(void **state)
{
    (void)state;
    struct nib_moe_weights w = good_weights();
    struct nib_moe_config config = {.activation = silu};
    struct nib_moe_plan *plan;
    assert_int_equal(nib_moe_plan_create(&w, &config, &plan, NULL), NIB_OK);
    assert_non_null(nib_moe_plan_reason(plan));
    uint16_t x[64] = {0};
    int32_t ids[2] = {0, 1};
    float weights[2] = {1, 1}, y[64];
    size_t bytes = (nib_moe_scratch_bytes(plan, 1, 2, 1) + 63) & ~(size_t)63;
    uint8_t *scratch = aligned_alloc(64, bytes);
    assert_non_null(scratch);
    const struct nib_moe_call good = {.tokens = 1,
                                      .top_k = 2,
                                      .threads = 1,
                                      .x_dtype = NIB_BF16,
                                      .x = x,
                                      .expert_ids = ids,
                                      .routing_weights = weights,
                                      .y_dtype = NIB_F32,
                                      .y = y,
                                      .scratch = scratch,
                                      .scratch_bytes = bytes};
    assert_int_equal(nib_moe_run(plan, &good, NULL), NIB_OK);
    struct nib_moe_call bad[11];
    for (int i = 0; i < 11; i++)
        bad[i] = good;
    bad[0].tokens = -1;
    bad[1].top_k = 0;
    bad[2].tokens = INT64_MAX / 2;
    bad[3].threads = 0;
    bad[4].x_dtype = NIB_F16;
    bad[5].y_dtype = NIB_F16;
    bad[6].y = NULL;
    bad[7].expert_ids = NULL;
    bad[8].routing_weights = NULL;
    bad[9].scratch = scratch + 1;
    bad[10].scratch_bytes = 1;
    for (int i = 0; i < 11; i++) {
        struct nib_error err = {.message = ""};
        assert_int_equal(nib_moe_run(plan, &bad[i], &err), NIB_ERR_ARGUMENT);
        assert_true(strncmp(err.message, "moe: ", 5) == 0);
    }
    free(scratch);
    nib_moe_plan_free(plan);
}

static void the_environment_forces_a_tier_or_fails(void **state)
{
    (void)state;
    struct nib_moe_weights w = good_weights();
    struct nib_moe_config config = {.activation = silu};
    const char *before = getenv("NIBBLE_CPU");
    char *kept = before ? strdup(before) : NULL;
    for (int tier = 0; tier < NIB_CPU_TIER_COUNT; tier++) {
        const char *name = nib_cpu_tier_name((enum nib_cpu_tier)tier);
        struct nib_moe_plan *plan;
        struct nib_error err;
        setenv("NIBBLE_CPU", name, 1);
        nib_status status = nib_moe_plan_create(&w, &config, &plan, &err);
        if (!nib_cpu_has((enum nib_cpu_tier)tier)) {
            assert_int_equal(status, NIB_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.message, name));
            continue;
        }
        assert_int_equal(status, NIB_OK);
        assert_string_equal(nib_moe_plan_kernel(plan), name);
        nib_moe_plan_free(plan);
    }
    struct nib_moe_plan *plan;
    setenv("NIBBLE_CPU", "z80", 1);
    assert_int_equal(nib_moe_plan_create(&w, &config, &plan, NULL), NIB_ERR_ARGUMENT);
    if (kept)
        setenv("NIBBLE_CPU", kept, 1);
    else
        unsetenv("NIBBLE_CPU");
    free(kept);
}

// Left to itself a plan takes the highest tier, but integers where bf16 products are the slower ones; named, bf16 is taken.
static void integers_are_preferred_where_they_are_faster(void **state)
{
    (void)state;
    struct nib_moe_weights w = good_weights();
    struct nib_moe_config config = {.activation = silu};
    struct nib_moe_plan *plan;
    const char *before = getenv("NIBBLE_CPU");
    char *kept = before ? strdup(before) : NULL;
    unsetenv("NIBBLE_CPU");
    enum nib_cpu_tier highest = NIB_CPU_REF;
    for (int tier = 0; tier < NIB_CPU_TIER_COUNT; tier++)
        if (nib_cpu_has((enum nib_cpu_tier)tier))
            highest = (enum nib_cpu_tier)tier;
    bool integers = highest == NIB_CPU_AVX512BF16 && nib_cpu_prefers_integers();
    assert_int_equal(nib_moe_plan_create(&w, &config, &plan, NULL), NIB_OK);
    assert_string_equal(nib_moe_plan_kernel(plan), integers ? "avx512vnni" : nib_cpu_tier_name(highest));
    nib_moe_plan_free(plan);
    setenv("NIBBLE_CPU", nib_cpu_tier_name(highest), 1);
    assert_int_equal(nib_moe_plan_create(&w, &config, &plan, NULL), NIB_OK);
    assert_string_equal(nib_moe_plan_kernel(plan), nib_cpu_tier_name(highest));
    nib_moe_plan_free(plan);
    if (kept)
        setenv("NIBBLE_CPU", kept, 1);
    else
        unsetenv("NIBBLE_CPU");
    free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_weights_are_refused),
        cmocka_unit_test(impossible_activations_and_kernels_are_refused),
        cmocka_unit_test(impossible_calls_are_refused),
        cmocka_unit_test(the_environment_forces_a_tier_or_fails),
        cmocka_unit_test(integers_are_preferred_where_they_are_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
