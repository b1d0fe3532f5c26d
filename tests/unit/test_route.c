// Routers, worked by hand.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/route.h"

// The logit whose sigmoid is p.
static float logit(float p)
{
    return logf(p / (1 - p));
}

static void expect(const struct nib_router *router, const float *logits, const int32_t *ids, const float *weights)
{
    float row[16], got[4];
    int32_t chosen[4];
    memcpy(row, logits, (size_t)router->n_experts * sizeof *row);
    nib_route_token(router, row, chosen, got);
    for (int64_t j = 0; j < router->top_k; j++) {
        assert_int_equal(chosen[j], ids[j]);
        assert_true(fabsf(got[j] - weights[j]) < 1e-6f);
    }
}

static void softmax_before_and_after_the_choice(void **state)
{
    (void)state;
    const float logits[] = {logf(1), logf(4), logf(2), logf(3)}; // a softmax of tenths
    const int32_t ids[] = {1, 3};
    struct nib_router router = {.kind = NIB_ROUTER_SOFTMAX, .n_experts = 4, .top_k = 2, .scale = 1};
    expect(&router, logits, ids, (const float[]){0.4f, 0.3f});
    router.normalise = true;
    expect(&router, logits, ids, (const float[]){4.0f / 7, 3.0f / 7});
    router.scale = 2.5f;
    expect(&router, logits, ids, (const float[]){10.0f / 7, 7.5f / 7});
    router = (struct nib_router){.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = 4, .top_k = 2, .scale = 1};
    expect(&router, logits, ids, (const float[]){4.0f / 7, 3.0f / 7});
}

static void a_correction_chooses_and_does_not_weigh(void **state)
{
    (void)state;
    const float logits[] = {logit(0.9f), logit(0.5f), logit(0.6f), logit(0.2f)};
    const float bias[] = {-1, 0, 0, 0.5f};
    const struct nib_weight correction = {.data = bias, .dtype = NIB_F32, .rows = 1, .cols = 4};
    struct nib_router router = {
        .kind = NIB_ROUTER_SIGMOID, .n_experts = 4, .top_k = 2, .scale = 1, .correction = &correction};
    expect(&router, logits, (const int32_t[]){3, 2}, (const float[]){0.2f, 0.6f});
    router.normalise = true;
    expect(&router, logits, (const int32_t[]){3, 2}, (const float[]){0.25f, 0.75f});
    router.correction = NULL;
    router.normalise = false;
    expect(&router, logits, (const int32_t[]){0, 2}, (const float[]){0.9f, 0.6f});
}

static void groups_count_as_much_as_their_two_best(void **state)
{
    (void)state;
    // Pairs of 0.9 + 0.1, 0.6 + 0.5, 0.55 + 0.5: the first has the best expert and comes last.
    const float logits[] = {logit(0.9f), logit(0.1f), logit(0.6f), logit(0.5f), logit(0.55f), logit(0.5f)};
    struct nib_router router = {
        .kind = NIB_ROUTER_SIGMOID, .n_experts = 6, .top_k = 3, .scale = 1, .n_groups = 3, .top_groups = 2};
    expect(&router, logits, (const int32_t[]){2, 4, 3}, (const float[]){0.6f, 0.55f, 0.5f});
    // Experts of the chosen groups are taken even where their corrected scores are negative.
    const float bias[] = {-3, -3, -1, -1, -1, -1};
    const struct nib_weight correction = {.data = bias, .dtype = NIB_F32, .rows = 1, .cols = 6};
    router.correction = &correction;
    expect(&router, logits, (const int32_t[]){2, 4, 3}, (const float[]){0.6f, 0.55f, 0.5f});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_before_and_after_the_choice),
        cmocka_unit_test(a_correction_chooses_and_does_not_weigh),
        cmocka_unit_test(groups_count_as_much_as_their_two_best),
    };
    return cmocka_run_group_tests_name("route", tests, NULL, NULL);
}
