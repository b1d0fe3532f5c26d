// Sampling: cuts keep exactly the tokens their definitions keep, draws follow the probabilities, seeds repeat.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"

enum { VOCAB = 50, DRAWS = 20000 };

static float logits[VOCAB];

static void fill_logits(uint32_t seed)
{
    for (int i = 0; i < VOCAB; i++) {
        seed = seed * 1664525u + 1013904223u;
        logits[i] = (float)(seed >> 8) / 2097152.0f - 4.0f; // -4 … 4
    }
}

static int by_logit(const void *a, const void *b)
{
    float x = logits[*(const int *)a], y = logits[*(const int *)b];
    return x > y ? -1 : x < y ? 1 : *(const int *)a - *(const int *)b;
}

// Probabilities of the tokens that the options keep, by sorting everything: the definition, written plainly.
static void expected_probabilities(const struct nib_sampling *options, double *p)
{
    int order[VOCAB], n = VOCAB;
    double sum = 0, kept = 0;
    for (int i = 0; i < VOCAB; i++) {
        order[i] = i;
        p[i] = 0;
    }
    qsort(order, VOCAB, sizeof *order, by_logit);
    if (options->top_k && options->top_k < n)
        n = options->top_k;
    double t = (double)options->temperature, largest = (double)logits[order[0]];
    if (options->min_p > 0)
        while (n > 1 && exp(((double)logits[order[n - 1]] - largest) / t) < (double)options->min_p)
            n--;
    for (int i = 0; i < (options->top_k || options->min_p > 0 ? n : VOCAB); i++)
        sum += exp(((double)logits[order[i]] - largest) / t);
    for (int i = 0; i < n; i++) {
        double share = exp(((double)logits[order[i]] - largest) / t);
        p[order[i]] = share;
        kept += share;
        if (options->top_p < 1 && kept >= (double)options->top_p * sum)
            break;
    }
    for (int i = 0; i < VOCAB; i++)
        p[i] /= kept;
}

static void check_draws(struct nib_sampling options)
{
    struct nib_sampler sampler;
    struct nib_sampler_scratch scratch;
    double p[VOCAB];
    int counts[VOCAB] = {0};
    assert_int_equal(nib_sampling_check(&options, NULL), NIB_OK);
    assert_int_equal(nib_sampler_scratch_alloc(&scratch, VOCAB, NULL), NIB_OK);
    nib_sampler_init(&sampler, &options);
    for (int i = 0; i < DRAWS; i++)
        counts[nib_sampler_pick(&sampler, &scratch, logits, VOCAB)]++;
    expected_probabilities(&options, p);
    for (int i = 0; i < VOCAB; i++) {
        if (p[i] == 0)
            assert_int_equal(counts[i], 0);
        double deviation = sqrt(DRAWS * p[i] * (1 - p[i]));
        assert_true(fabs(counts[i] - DRAWS * p[i]) <= 5 * deviation + 1);
    }
    nib_sampler_scratch_free(&scratch);
}

static void draws_follow_the_definition(void **state)
{
    (void)state;
    const struct nib_sampling cases[] = {
        {1.0f, 0, 1.0f, 0, 1},      {0.7f, 5, 1.0f, 0, 2},    {1.5f, 0, 0.6f, 0, 3},   {1.0f, 0, 0.95f, 0, 4},
        {1.0f, 0, 1.0f, 0.1f, 5},   {0.8f, 7, 0.8f, 0, 6},    {1.0f, 1, 1.0f, 0, 7},   {2.0f, 0, 0.05f, 0, 8},
        {1.0f, 1000, 0.9f, 0, 9},   {0.3f, 0, 0.99f, 0, 10},  {5.0f, 20, 1.0f, 0, 11}, {1.0f, 0, 0.7f, 0.05f, 12},
        {1.0f, 30, 0.9f, 0.2f, 13}, {100.0f, 0, 0.5f, 0, 14},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill_logits((uint32_t)i + 1);
        check_draws(cases[i]);
    }
}

static void greedy_takes_the_lowest_id_among_equals(void **state)
{
    (void)state;
    struct nib_sampler sampler;
    nib_sampler_init(&sampler, &(struct nib_sampling){.top_p = 1});
    float row[5] = {1, 3, NAN, 3, 2};
    assert_int_equal(nib_sampler_pick(&sampler, NULL, row, 5), 1);
    float infinite[3] = {0, INFINITY, 1};
    sampler.options.temperature = 1;
    assert_int_equal(nib_sampler_pick(&sampler, NULL, infinite, 3), 1);
    float numberless[3] = {NAN, NAN, NAN};
    assert_int_equal(nib_sampler_pick(&sampler, NULL, numberless, 3), -1);
}

static void extreme_logits_and_temperatures_have_tokens(void **state)
{
    (void)state;
    const float rows[][5] = {{-INFINITY, 1e38f, -1e38f, NAN, 0},
                             {-INFINITY, -INFINITY, 5, -INFINITY, 5},
                             {1e-38f, 0, -1e-38f, NAN, NAN},
                             {-3e38f, -3e38f, 3e38f, 3e38f, 0}};
    const float temperatures[] = {1e-45f, 1e-6f, 1e-3f, 1, 100};
    struct nib_sampler_scratch scratch;
    assert_int_equal(nib_sampler_scratch_alloc(&scratch, 5, NULL), NIB_OK);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t t = 0; t < sizeof temperatures / sizeof *temperatures; t++)
            for (int cut = 0; cut < 4; cut++) {
                struct nib_sampler sampler;
                nib_sampler_init(&sampler, &(struct nib_sampling){temperatures[t], cut == 1 ? 3 : 0,
                                                                  cut == 2 ? 0.5f : 1, cut == 3 ? 0.1f : 0, 1});
                for (int i = 0; i < 20; i++) {
                    int32_t token = nib_sampler_pick(&sampler, &scratch, rows[r], 5);
                    assert_in_range(token, 0, 4);
                    assert_true(isfinite(rows[r][token])); // what was masked or is no number is not drawn
                }
            }
    nib_sampler_scratch_free(&scratch);
}

static void the_same_seed_repeats(void **state)
{
    (void)state;
    struct nib_sampler_scratch scratch;
    assert_int_equal(nib_sampler_scratch_alloc(&scratch, VOCAB, NULL), NIB_OK);
    int differences = 0;
    struct nib_sampler a, b, c;
    nib_sampler_init(&a, &(struct nib_sampling){1, 0, 1, 0, 42});
    nib_sampler_init(&b, &(struct nib_sampling){1, 0, 1, 0, 42});
    nib_sampler_init(&c, &(struct nib_sampling){1, 0, 1, 0, 43});
    fill_logits(3);
    for (int i = 0; i < 200; i++) {
        int32_t x = nib_sampler_pick(&a, &scratch, logits, VOCAB);
        assert_int_equal(x, nib_sampler_pick(&b, &scratch, logits, VOCAB));
        differences += x != nib_sampler_pick(&c, &scratch, logits, VOCAB);
    }
    assert_true(differences > 50);
    nib_sampler_scratch_free(&scratch);
}

static void logprobs_are_normalised_and_sorted(void **state)
{
    (void)state;
    struct nib_sampler_scratch scratch;
    struct nib_token_logprob top[VOCAB];
    float logprob;
    assert_int_equal(nib_sampler_scratch_alloc(&scratch, VOCAB, NULL), NIB_OK);
    fill_logits(9);
    logits[7] = logits[31]; // a tie
    nib_logprobs(&scratch, logits, VOCAB, 4, &logprob, top, VOCAB);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        sum += exp((double)top[i].logprob);
        assert_true(top[i].logprob <= 0);
        if (i > 0)
            assert_true(top[i - 1].logprob > top[i].logprob ||
                        (top[i - 1].logprob == top[i].logprob && top[i - 1].token < top[i].token));
        if (top[i].token == 4)
            assert_true(top[i].logprob == logprob);
    }
    assert_true(fabs(sum - 1) < 1e-5);
    struct nib_token_logprob best[3];
    assert_int_equal(nib_logprobs(&scratch, logits, VOCAB, 4, &logprob, best, 3), 3);
    assert_memory_equal(best, top, sizeof best);
    nib_sampler_scratch_free(&scratch);
}

static void impossible_options_are_named(void **state)
{
    (void)state;
    const struct {
        struct nib_sampling options;
        const char *name;
    } cases[] = {
        {{-1, 0, 1, 0, 0}, "temperature"}, {{NAN, 0, 1, 0, 0}, "temperature"}, {{1, -1, 1, 0, 0}, "top_k"},
        {{1, 0, 0, 0, 0}, "top_p"},        {{1, 0, 1.1f, 0, 0}, "top_p"},      {{1, 0, 1, -0.1f, 0}, "min_p"},
        {{1, 0, 1, 2, 0}, "min_p"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_error err;
        assert_int_equal(nib_sampling_check(&cases[i].options, &err), NIB_ERR_ARGUMENT);
        assert_non_null(strstr(err.message, cases[i].name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_definition),
        cmocka_unit_test(greedy_takes_the_lowest_id_among_equals),
        cmocka_unit_test(extreme_logits_and_temperatures_have_tokens),
        cmocka_unit_test(the_same_seed_repeats),
        cmocka_unit_test(logprobs_are_normalised_and_sorted),
        cmocka_unit_test(impossible_options_are_named),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
