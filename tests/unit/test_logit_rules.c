// What a request may change about the logits.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/logit_rules.h"

enum { VOCAB = 40 };

static const float logits[VOCAB] = {[3] = 1, [5] = 2, [39] = 3};
static float changed[VOCAB];

static struct nib_logit_rules rules_of(const struct nib_request *request)
{
    struct nib_logit_rules rules;
    assert_int_equal(nib_logit_rules_init(&rules, request, VOCAB, NULL), NIB_OK);
    return rules;
}

static void without_rules_nothing_is_copied(void **state)
{
    (void)state;
    struct nib_request request = {0};
    struct nib_logit_rules rules = rules_of(&request);
    assert_int_equal(nib_logit_rules_accept(&rules, 3, NULL), NIB_OK);
    assert_ptr_equal(nib_logit_rules_apply(&rules, logits, changed, VOCAB), logits);
    nib_logit_rules_free(&rules);
}

static void biases_are_added_and_penalties_grow(void **state)
{
    (void)state;
    struct nib_logit_bias bias[] = {{5, -100}, {0, 1.5f}};
    struct nib_request request = {.bias = bias, .n_bias = 2, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
    struct nib_logit_rules rules = rules_of(&request);
    bias[0].bias = 0; // it has been copied
    const int32_t said[] = {3, 39, 3, 3};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(nib_logit_rules_accept(&rules, said[i], NULL), NIB_OK);
    const float *allowed = nib_logit_rules_apply(&rules, logits, changed, VOCAB);
    assert_true(allowed[5] == -98 && allowed[0] == 1.5f && allowed[1] == 0);
    assert_true(allowed[3] == 1 - 0.5f - 3 * 0.25f);
    assert_true(allowed[39] == 3 - 0.5f - 0.25f);
    nib_logit_rules_free(&rules);
}

static void repetition_is_of_prompt_and_answer(void **state)
{
    (void)state;
    const float own[VOCAB] = {[3] = 1, [5] = 2, [7] = -2, [31] = 4, [32] = 6, [39] = 3};
    const int32_t prompt[] = {5, 7, 5, 31};
    struct nib_request request = {.prompt = prompt, .n_prompt = 4, .repetition_penalty = 2};
    struct nib_logit_rules rules = rules_of(&request);
    assert_false(nib_logit_rules_none(&rules));
    const float *allowed = nib_logit_rules_apply(&rules, own, changed, VOCAB);
    assert_true(allowed[5] == 1 && allowed[7] == -4 && allowed[31] == 2);
    assert_true(allowed[3] == 1 && allowed[32] == 6 && allowed[39] == 3);
    assert_int_equal(nib_logit_rules_accept(&rules, 32, NULL), NIB_OK);
    assert_int_equal(nib_logit_rules_accept(&rules, 39, NULL), NIB_OK);
    allowed = nib_logit_rules_apply(&rules, own, changed, VOCAB);
    assert_true(allowed[32] == 3 && allowed[39] == 1.5f && allowed[5] == 1);
    nib_logit_rules_free(&rules);
    request.repetition_penalty = 1;
    rules = rules_of(&request);
    assert_true(nib_logit_rules_none(&rules));
    nib_logit_rules_free(&rules);
}

struct masked {
    uint32_t bits[2];
    int32_t accepted;
};

static const uint32_t *mask_of(void *self)
{
    return ((struct masked *)self)->bits;
}

static void accept(void *self, int32_t token)
{
    ((struct masked *)self)->accepted = token;
}

static void a_mask_leaves_its_own_tokens_only(void **state)
{
    (void)state;
    struct masked masked = {.bits = {1u << 3, 1u << 7}};
    struct nib_request request = {.constraint = {&masked, mask_of, accept}};
    struct nib_logit_rules rules = rules_of(&request);
    const float *allowed = nib_logit_rules_apply(&rules, logits, changed, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        assert_true(i == 3 || i == 39 ? allowed[i] == logits[i] : allowed[i] == -INFINITY);
    nib_logit_rules_accept(&rules, 39, NULL);
    assert_int_equal(masked.accepted, 39);
    memset(masked.bits, 0, sizeof masked.bits);
    assert_null(nib_logit_rules_apply(&rules, logits, changed, VOCAB));
    nib_logit_rules_free(&rules);
}

static void impossible_rules_are_refused(void **state)
{
    (void)state;
    struct nib_logit_bias bias[] = {{VOCAB, 1}, {-1, 1}, {0, NAN}, {0, 1001}};
    struct nib_logit_rules rules;
    for (int i = 0; i < 4; i++) {
        struct nib_request request = {.bias = &bias[i], .n_bias = 1};
        assert_int_equal(nib_logit_rules_init(&rules, &request, VOCAB, NULL), NIB_ERR_ARGUMENT);
    }
    struct nib_request request = {.presence_penalty = INFINITY};
    assert_int_equal(nib_logit_rules_init(&rules, &request, VOCAB, NULL), NIB_ERR_ARGUMENT);
    const float repetition[] = {-1, 0.001f, 1000, NAN};
    for (int i = 0; i < 4; i++) {
        request = (struct nib_request){.repetition_penalty = repetition[i]};
        assert_int_equal(nib_logit_rules_init(&rules, &request, VOCAB, NULL), NIB_ERR_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_rules_nothing_is_copied),
        cmocka_unit_test(biases_are_added_and_penalties_grow),
        cmocka_unit_test(repetition_is_of_prompt_and_answer),
        cmocka_unit_test(a_mask_leaves_its_own_tokens_only),
        cmocka_unit_test(impossible_rules_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
