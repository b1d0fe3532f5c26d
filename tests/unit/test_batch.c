// Who gets what of a step: answers under way are never held up, prompts share evenly, what two prompts have in common is
// read once, and a cancelled request leaves its place at once.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nibble/engine.h"
#include "support/paths.h"

enum { STEP_TOKENS = 64, MOST_STEPS = 1500 };

struct seen {
    int first_step, last_step; // of its tokens
    int count, ends;
    int32_t cached;
    enum nib_finish finish;
};

static int now;            // number of the step under way
static int most_apart = 1; // steps between an answer's tokens

static void on_event(void *context, const struct nib_event *event)
{
    (void)context;
    struct seen *seen = event->user;
    assert_int_equal(seen->ends, 0);
    seen->cached = event->cached_tokens;
    if (event->has_token) {
        if (seen->count++ == 0)
            seen->first_step = now;
        else
            assert_in_range(now - seen->last_step, 1, most_apart); // a token a step, whatever else goes on
        seen->last_step = now;
    }
    if (event->finish != NIB_FINISH_NOT_YET) {
        seen->finish = event->finish;
        seen->ends++;
    }
}

struct stage {
    struct nib_engine *engine;
    struct nib_batch *batch;
    int64_t pages; // free ones
    bool busy;
};

static struct stage stage_open_steps(int32_t step_tokens, int32_t sequences, int64_t cache_tokens,
                                     bool prefix_cache)
{
    struct nib_engine_options options = {
        .precision = NIB_PRECISION_FAST,
        .threads = 1,
        .context = 2048,
        .max_sequences = sequences,
        .max_step_tokens = step_tokens,
        .cache_tokens = cache_tokens,
        .prefix_cache = prefix_cache,
    };
    struct stage stage = {.busy = true};
    struct nib_error err;
    if (nib_engine_open(test_source("models/tiny-gpt-oss"), &options, &stage.engine, &err))
        fail_msg("%s", err.message);
    assert_int_equal(nib_batch_create(stage.engine, on_event, NULL, &stage.batch, NULL), NIB_OK);
    stage.pages = nib_engine_free_pages(stage.engine);
    now = 0;
    return stage;
}

static struct stage stage_open(int32_t sequences, int64_t cache_tokens, bool prefix_cache)
{
    return stage_open_steps(STEP_TOKENS, sequences, cache_tokens, prefix_cache);
}

static void stage_close(struct stage *stage)
{
    nib_batch_free(stage->batch);
    assert_int_equal(nib_engine_free_pages(stage->engine), stage->pages);
    nib_engine_close(stage->engine);
}

static int64_t add(struct stage *stage, int32_t n_prompt, uint32_t seed, int32_t max_tokens, struct seen *seen)
{
    int32_t *prompt = malloc((size_t)n_prompt * sizeof *prompt);
    for (int32_t i = 0; i < n_prompt; i++) {
        seed = seed * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((seed >> 8) % 5000);
    }
    struct nib_request request = {.prompt = prompt,
                                  .n_prompt = n_prompt,
                                  .max_tokens = max_tokens,
                                  .sampling = {.top_p = 1},
                                  .top_logprobs = -1,
                                  .user = seen};
    int64_t id;
    assert_int_equal(nib_batch_add(stage->batch, &request, &id, NULL), NIB_OK);
    free(prompt);
    return id;
}

static void step(struct stage *stage)
{
    now++;
    assert_true(now < MOST_STEPS);
    assert_int_equal(nib_batch_step(stage->batch, &stage->busy, NULL), NIB_OK);
}

static void finish(struct stage *stage)
{
    while (stage->busy)
        step(stage);
}

// An answer is under way and a prompt of 25 steps is being read when three short ones arrive.
static void a_long_prompt_starves_neither_short_ones_nor_answers(void **state)
{
    (void)state;
    struct stage stage = stage_open(8, 8192, false);
    struct seen talker = {0}, reader = {0}, late[3] = {0};
    add(&stage, 5, 1, 60, &talker);
    step(&stage);
    add(&stage, 1600, 2, 5, &reader);
    for (int i = 0; i < 4; i++)
        step(&stage);
    for (int i = 0; i < 3; i++)
        add(&stage, 10 + i, 3 + (uint32_t)i, 5, &late[i]);
    step(&stage);
    for (int i = 0; i < 3; i++)
        assert_int_equal(late[i].first_step, now);
    finish(&stage);
    assert_int_equal(talker.count, 60); // on_event has seen that no step went by without a token
    // The long one lost to them what they took: 11 + 12 + 10 prompt tokens and at most 4 decodes a step.
    assert_in_range(reader.first_step, 1 + 1600 / STEP_TOKENS, 1 + 1600 / (STEP_TOKENS - 4) + 2);
    stage_close(&stage);
}

static void long_prompts_advance_together(void **state)
{
    (void)state;
    struct stage stage = stage_open(8, 16384, false);
    struct seen seen[3] = {0};
    int64_t ids[3];
    for (int i = 0; i < 3; i++)
        ids[i] = add(&stage, 700 + 300 * i, 1 + (uint32_t)i, 3, &seen[i]);
    for (int i = 0; i < 10; i++) {
        step(&stage);
        int32_t read[3];
        for (int r = 0; r < 3; r++)
            read[r] = nib_batch_prefilled(stage.batch, ids[r]);
        assert_int_equal(read[0] + read[1] + read[2], now * STEP_TOKENS);
        for (int r = 1; r < 3; r++)
            assert_in_range(read[r] - read[0] + now, 0, 2 * now); // at most one token a step apart
    }
    finish(&stage);
    assert_true(seen[0].first_step < seen[1].first_step && seen[1].first_step < seen[2].first_step);
    stage_close(&stage);
}

// The others wait until the first has been read, and take over all of it but the last page.
static void what_prompts_share_is_read_once(void **state)
{
    (void)state;
    struct stage stage = stage_open(4, 8192, true);
    struct seen seen[4] = {0}, other = {0};
    for (int i = 0; i < 4; i++)
        add(&stage, 1000, 7, 3, &seen[i]);
    add(&stage, 20, 8, 3, &other);
    finish(&stage);
    assert_int_equal(seen[0].cached, 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(seen[i].cached, 992);
    assert_int_equal(other.first_step, 1); // who shares nothing is not held up
    assert_true(seen[3].first_step < 1000 / STEP_TOKENS + 5);
    stage_close(&stage);
}

// Together they do not fit the cache: no prompt begins that would have to give way before it is read.
static void prompts_begin_when_there_is_room_for_all_of_them(void **state)
{
    (void)state;
    for (int prefix_cache = 0; prefix_cache < 2; prefix_cache++) {
        struct stage stage = stage_open(4, 1100, prefix_cache);
        struct seen seen[4] = {0};
        int64_t ids[4];
        for (int i = 0; i < 4; i++)
            ids[i] = add(&stage, i == 3 ? 100 : 640, 1 + (uint32_t)i, 10, &seen[i]);
        step(&stage);
        assert_true(nib_batch_prefilled(stage.batch, ids[0]) > 0);
        assert_int_equal(nib_batch_prefilled(stage.batch, ids[1]), 0);
        finish(&stage);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(seen[i].finish, NIB_FINISH_LENGTH);
            assert_int_equal(seen[i].count, 10);
        }
        // Nothing was read twice: 2020 prompt tokens, and the waits for answers to end.
        assert_true(now <= 2020 / STEP_TOKENS + 4 * 10 + 4);
        stage_close(&stage);
    }
}

// The answer grows into the pages that the last of the prompt would need: the prompt gives way, though it came first.
static void a_prompt_gives_way_to_an_answer(void **state)
{
    (void)state;
    struct stage stage = stage_open_steps(16, 2, 1568, false);
    struct seen reader = {0}, talker = {0};
    int64_t id = add(&stage, 1568, 1, 2, &reader);
    most_apart = 2; // the step in which it gives way computes nothing
    step(&stage);
    add(&stage, 5, 2, 150, &talker);
    while (!talker.ends) {
        step(&stage);
        assert_int_equal(reader.count, 0);
    }
    assert_int_equal(talker.finish, NIB_FINISH_LENGTH);
    assert_int_equal(talker.count, 150);
    assert_true(nib_batch_prefilled(stage.batch, id) < 1568);
    finish(&stage);
    assert_int_equal(reader.finish, NIB_FINISH_LENGTH);
    assert_int_equal(reader.count, 2);
    most_apart = 1;
    stage_close(&stage);
}

// More than the cache holds, in any mixture: everybody's turn comes, and all pages come back.
static void crowds_come_to_an_end(void **state)
{
    (void)state;
    enum { CROWD = 30 };
    most_apart = MOST_STEPS;
    for (uint32_t seed = 1; seed <= 4; seed += 3) {
        struct stage stage = stage_open_steps(seed % 2 ? 48 : 16, 5, 400, seed > 2);
        struct seen seen[CROWD] = {0};
        uint32_t random = seed;
        int complete = 0;
        for (int i = 0; i < CROWD; i++) {
            random = random * 1664525u + 1013904223u;
            int32_t n_prompt = 1 + (int32_t)(random >> 8) % (i % 3 ? 60 : 380);
            add(&stage, n_prompt, i % 4 ? 100 + (uint32_t)i : 7, 1 + (int32_t)(random >> 20) % 40, &seen[i]);
            if (i % 5 == 0)
                step(&stage);
        }
        finish(&stage);
        for (int i = 0; i < CROWD; i++) {
            assert_int_equal(seen[i].ends, 1);
            complete += seen[i].finish == NIB_FINISH_LENGTH;
        }
        assert_true(complete >= CROWD - 3); // an answer that outgrows the cache may be cut off
        stage_close(&stage);
    }
    most_apart = 1;
}

static void a_cancelled_request_leaves_its_place_at_once(void **state)
{
    (void)state;
    struct stage stage = stage_open(2, 4096, false);
    struct seen speaking = {0}, reading = {0}, waiting = {0}, next[2] = {0}, stays = {0};
    int64_t first = add(&stage, 5, 1, 100, &speaking);
    step(&stage);
    int64_t second = add(&stage, 1000, 2, 100, &reading), third = add(&stage, 5, 3, 5, &waiting);
    add(&stage, 6, 4, 5, &next[0]);
    add(&stage, 7, 5, 5, &next[1]);
    step(&stage);
    assert_int_equal(nib_batch_prefilled(stage.batch, third), 0);
    int64_t before = nib_engine_free_pages(stage.engine);
    nib_batch_cancel(stage.batch, first);
    nib_batch_cancel(stage.batch, first);
    nib_batch_cancel(stage.batch, second);
    nib_batch_cancel(stage.batch, third);
    assert_int_equal(nib_engine_free_pages(stage.engine), stage.pages);
    assert_true(before < stage.pages);
    step(&stage);
    assert_int_equal(speaking.finish, NIB_FINISH_CANCELLED);
    assert_int_equal(reading.finish, NIB_FINISH_CANCELLED);
    assert_int_equal(waiting.finish, NIB_FINISH_CANCELLED);
    assert_int_equal(speaking.count, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(next[i].first_step, now);
    add(&stage, 9, 9, 1, &stays);
    finish(&stage);
    assert_int_equal(stays.finish, NIB_FINISH_LENGTH);
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_starves_neither_short_ones_nor_answers),
        cmocka_unit_test(long_prompts_advance_together),
        cmocka_unit_test(what_prompts_share_is_read_once),
        cmocka_unit_test(prompts_begin_when_there_is_room_for_all_of_them),
        cmocka_unit_test(a_prompt_gives_way_to_an_answer),
        cmocka_unit_test(crowds_come_to_an_end),
        cmocka_unit_test(a_cancelled_request_leaves_its_place_at_once),
    };
    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
