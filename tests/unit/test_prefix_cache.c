// The prefix cache: a hit gives the same bits as a miss, whatever was evicted, shared or begun meanwhile; pages come back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nibble/engine.h"
#include "support/paths.h"

enum { CONTEXT = 512, LIVE = 3, STEP = 96, PAGE = 32 };

static struct nib_engine *open_engine(bool prefix_cache, int64_t cache_tokens)
{
    struct nib_engine_options options = {
        .threads = 2,
        .context = CONTEXT,
        .max_sequences = LIVE,
        .max_step_tokens = STEP,
        .max_outputs = LIVE,
        .cache_tokens = cache_tokens,
        .prefix_cache = prefix_cache,
    };
    struct nib_engine *engine;
    struct nib_error err;
    if (nib_engine_open(test_source("models/tiny-gpt-oss"), &options, &engine, &err))
        fail_msg("%s", err.message);
    return engine;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

// Feeds what is not there yet in chunks; the logits of the last token are then the engine's row 0.
static void feed(struct nib_engine *engine, struct nib_sequence *sequence, const int32_t *tokens, int32_t n)
{
    for (int32_t at = nib_sequence_length(sequence); at < n;) {
        int32_t chunk = n - at < STEP ? n - at : STEP;
        struct nib_feed one = {sequence, tokens + at, chunk,
                               at + chunk == n ? NIB_OUTPUTS_LAST : NIB_OUTPUTS_NONE};
        struct nib_error err;
        if (nib_engine_step(engine, &one, 1, &err))
            fail_msg("%s", err.message);
        at += chunk;
    }
}

static struct nib_sequence *begin(struct nib_engine *engine, const int32_t *tokens, int32_t n, int32_t *reused)
{
    struct nib_sequence *sequence;
    assert_int_equal(nib_sequence_create(engine, &sequence, NULL), NIB_OK);
    *reused = nib_sequence_reuse(sequence, tokens, n);
    assert_int_equal(nib_sequence_length(sequence), *reused);
    assert_true(*reused < n && *reused % PAGE == 0);
    feed(engine, sequence, tokens, n);
    return sequence;
}

static void compare_last(struct nib_engine *engine, struct nib_engine *plain, const int32_t *tokens, int32_t n)
{
    int32_t none;
    struct nib_sequence *sequence = begin(plain, tokens, n, &none);
    assert_int_equal(none, 0);
    assert_memory_equal(nib_engine_logits(engine, 0), nib_engine_logits(plain, 0),
                        (size_t)nib_engine_vocab(engine) * sizeof(float));
    nib_sequence_free(sequence);
}

static void a_second_prompt_takes_over_what_it_shares(void **state)
{
    (void)state;
    struct nib_engine *engine = open_engine(true, 2 * CONTEXT), *plain = open_engine(false, CONTEXT);
    int64_t all = nib_engine_free_pages(engine);
    int32_t tokens[400], reused;
    uint32_t random = 1;
    for (int i = 0; i < 400; i++)
        tokens[i] = (int32_t)(next_random(&random) % 5000);
    static const struct {
        int32_t n, changed_at, reused;
    } cases[] = {
        {400, 400, 0},   {400, 400, 384}, {384, 400, 352}, {385, 400, 384}, {33, 400, 32}, {32, 400, 0},
        {400, 200, 192}, {400, 5, 0},     {400, 400, 384}, {250, 224, 224}, {1, 400, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t changed[400];
        memcpy(changed, tokens, sizeof changed);
        if (cases[c].changed_at < 400)
            changed[cases[c].changed_at] ^= 1;
        struct nib_sequence *sequence = begin(engine, changed, cases[c].n, &reused);
        // Later on, pages behind windows have made room for others.
        assert_true(reused <= cases[c].reused);
        if (c < 5)
            assert_int_equal(reused, cases[c].reused);
        compare_last(engine, plain, changed, cases[c].n);
        nib_sequence_free(sequence);
        assert_int_equal(nib_engine_free_pages(engine), all);
    }
    assert_true(nib_engine_prefix_pages(engine) > 0);
    nib_engine_close(engine);
    nib_engine_close(plain);
}

// Many sequences that begin alike in all ways, in a pool that never suffices.
static void hits_and_misses_have_the_same_bits(void **state)
{
    (void)state;
    struct nib_engine *engine = open_engine(true, CONTEXT + 64), *plain = open_engine(false, CONTEXT);
    int64_t all = nib_engine_free_pages(engine), hits = 0;
    static int32_t tokens[LIVE][CONTEXT];
    struct nib_sequence *live[LIVE] = {NULL};
    uint32_t random = 7;
    for (int round = 0; round < 60; round++) {
        int slot = (int)(next_random(&random) % LIVE);
        nib_sequence_free(live[slot]);
        live[slot] = NULL;
        int32_t n = 1 + (int32_t)(next_random(&random) % 170), reused;
        // Three stems of tokens, each sequence leaves its stem somewhere.
        uint32_t stem = next_random(&random) % 3 + 1, fork = next_random(&random) % 170;
        for (int32_t i = 0; i < n; i++) {
            next_random(&stem);
            tokens[slot][i] = (int32_t)((stem >> 8) % 5000) ^ ((uint32_t)i >= fork ? (int32_t)(fork % 2) : 0);
        }
        live[slot] = begin(engine, tokens[slot], n, &reused);
        hits += reused;
        compare_last(engine, plain, tokens[slot], n);
        for (int more = 0; more < 3; more++) { // and goes on, as answers do
            tokens[slot][n++] = (int32_t)(next_random(&random) % 5000);
            feed(engine, live[slot], tokens[slot], n);
        }
        compare_last(engine, plain, tokens[slot], n);
    }
    assert_true(hits > 1000);
    for (int slot = 0; slot < LIVE; slot++)
        nib_sequence_free(live[slot]);
    assert_int_equal(nib_engine_free_pages(engine), all);
    nib_engine_close(engine);
    nib_engine_close(plain);
}

// Two sequences hold the same pages; one ends, the other goes on.
static void a_page_stays_as_long_as_somebody_holds_it(void **state)
{
    (void)state;
    struct nib_engine *engine = open_engine(true, CONTEXT), *plain = open_engine(false, CONTEXT);
    int64_t all = nib_engine_free_pages(engine);
    int32_t tokens[200], reused;
    for (int i = 0; i < 200; i++)
        tokens[i] = i * 7 % 5000;
    struct nib_sequence *first = begin(engine, tokens, 150, &reused),
                        *second = begin(engine, tokens, 140, &reused);
    assert_int_equal(reused, 128);
    nib_sequence_free(first);
    int32_t other[CONTEXT];
    for (int i = 0; i < CONTEXT; i++)
        other[i] = i % 4999;
    first = begin(engine, other, 300, &reused); // wants the pages that are free
    nib_sequence_free(first);
    feed(engine, second, tokens, 200);
    compare_last(engine, plain, tokens, 200);
    nib_sequence_free(second);
    assert_int_equal(nib_engine_free_pages(engine), all);
    nib_engine_close(engine);
    nib_engine_close(plain);
}

struct answer {
    int32_t tokens[64], count, cached;
};

static void on_event(void *context, const struct nib_event *event)
{
    (void)context;
    struct answer *answer = event->user;
    if (event->has_token)
        answer->tokens[answer->count++] = event->token.token;
    answer->cached = event->cached_tokens;
}

static void batches_report_what_they_found(void **state)
{
    (void)state;
    struct nib_engine *engine = open_engine(true, 2 * CONTEXT);
    struct nib_batch *batch;
    struct answer answers[2] = {{.count = 0}};
    int32_t prompt[100];
    for (int i = 0; i < 100; i++)
        prompt[i] = i * 31 % 5000;
    assert_int_equal(nib_batch_create(engine, on_event, NULL, &batch, NULL), NIB_OK);
    for (int i = 0; i < 2; i++) {
        struct nib_request request = {.prompt = prompt,
                                      .n_prompt = 100,
                                      .max_tokens = 40,
                                      .sampling = {.top_p = 1},
                                      .top_logprobs = -1,
                                      .user = &answers[i]};
        int64_t id;
        assert_int_equal(nib_batch_add(batch, &request, &id, NULL), NIB_OK);
        for (bool busy = true; busy;)
            assert_int_equal(nib_batch_step(batch, &busy, NULL), NIB_OK);
    }
    assert_int_equal(answers[0].cached, 0);
    assert_int_equal(answers[1].cached, 96);
    assert_int_equal(answers[1].count, 40);
    assert_memory_equal(answers[0].tokens, answers[1].tokens, sizeof answers[0].tokens);
    nib_batch_free(batch);
    nib_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_prompt_takes_over_what_it_shares),
        cmocka_unit_test(hits_and_misses_have_the_same_bits),
        cmocka_unit_test(a_page_stays_as_long_as_somebody_holds_it),
        cmocka_unit_test(batches_report_what_they_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
