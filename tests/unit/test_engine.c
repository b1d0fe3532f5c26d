// The engine on real checkpoints: results do not depend on company, chunks or threads; errors change nothing; batches
// give every request what it would get alone, and every page comes back.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/widened.h"
#include "nibble/engine.h"
#include "support/converted.h"
#include "support/files.h"
#include "support/paths.h"

#define FIXTURE "tests/data/models/gpt_oss"
#define TINY "models/tiny-gpt-oss"

static struct nib_engine *open_engine(const char *folder, const char *device, enum nib_precision precision,
                                      int threads, int32_t sequences, int32_t outputs)
{
    struct nib_engine_options options = {
        .device = device,
        .precision = precision,
        .threads = threads,
        .context = 512,
        .max_sequences = sequences,
        .max_step_tokens = 512,
        .max_outputs = outputs,
        .cache_tokens = 512 * sequences,
    };
    struct nib_engine *engine;
    struct nib_error err;
    if (nib_engine_open(test_source(folder), &options, &engine, &err))
        fail_msg("%s", err.message);
    return engine;
}

static void random_tokens(int32_t *tokens, int32_t n, int32_t vocab, uint32_t seed)
{
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((seed >> 8) % (uint32_t)vocab);
    }
}

static struct nib_sequence *new_sequence(struct nib_engine *engine)
{
    struct nib_sequence *sequence;
    assert_int_equal(nib_sequence_create(engine, &sequence, NULL), NIB_OK);
    return sequence;
}

// The logits of all n positions of one sequence, fed in chunks, beside `others` that are prefilled and decoded meanwhile.
static float *run_sequence(struct nib_engine *engine, const int32_t *tokens, int32_t n, int32_t chunk, int others)
{
    int32_t vocab = nib_engine_vocab(engine), noise[8][64];
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    struct nib_sequence *sequence = new_sequence(engine), *company[8];
    for (int o = 0; o < others; o++) {
        company[o] = new_sequence(engine);
        random_tokens(noise[o], 64, vocab, (uint32_t)o + 77);
    }
    int step = 0;
    for (int32_t done = 0; done < n; done += chunk, step++) {
        int32_t size = n - done < chunk ? n - done : chunk;
        struct nib_feed feeds[9];
        int count = 0;
        // Half of the company stands before, half behind; ragged sizes that change from step to step.
        for (int o = 0; o < others; o++) {
            if (o == others / 2)
                feeds[count++] = (struct nib_feed){sequence, tokens + done, size, NIB_OUTPUTS_ALL};
            int32_t extra = 1 + (o * 5 + step * 3) % 4;
            if (nib_sequence_length(company[o]) + extra <= 64)
                feeds[count++] = (struct nib_feed){company[o], noise[o] + nib_sequence_length(company[o]), extra,
                                                   NIB_OUTPUTS_NONE};
        }
        if (others == 0)
            feeds[count++] = (struct nib_feed){sequence, tokens + done, size, NIB_OUTPUTS_ALL};
        struct nib_error err;
        if (nib_engine_step(engine, feeds, count, &err))
            fail_msg("%s", err.message);
        for (int32_t i = 0; i < size; i++)
            memcpy(logits + (size_t)(done + i) * (size_t)vocab, nib_engine_logits(engine, i),
                   (size_t)vocab * sizeof *logits);
    }
    for (int o = 0; o < others; o++)
        nib_sequence_free(company[o]);
    nib_sequence_free(sequence);
    return logits;
}

static void check_invariance(const char *folder, const char *device, enum nib_precision precision, int32_t n)
{
    const struct {
        int32_t chunk;
        int others, threads;
    } ways[] = {{512, 0, 1}, {512, 0, 2}, {7, 0, 1}, {1, 0, 2}, {512, 7, 2}, {7, 7, 1}, {1, 7, 2}, {33, 3, 2}};
    int32_t tokens[512];
    float *expected = NULL;
    size_t bytes = 0;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct nib_engine *engine = open_engine(folder, device, precision, ways[w].threads, 8, n);
        if (!expected) {
            random_tokens(tokens, n, nib_engine_vocab(engine), 5);
            bytes = (size_t)n * (size_t)nib_engine_vocab(engine) * sizeof(float);
        }
        float *logits = run_sequence(engine, tokens, n, ways[w].chunk, ways[w].others);
        if (expected) {
            if (memcmp(expected, logits, bytes) != 0)
                fail_msg("%s on %s: other bits in chunks of %d beside %d others with %d threads", folder, device,
                         ways[w].chunk, ways[w].others, ways[w].threads);
            free(logits);
        } else {
            expected = logits;
        }
        nib_engine_close(engine);
    }
    free(expected);
}

static void logits_do_not_depend_on_company_chunks_or_threads(void **state)
{
    (void)state;
    check_invariance(FIXTURE, "ref", NIB_PRECISION_AUTO, 90);
    check_invariance(FIXTURE, "cpu", NIB_PRECISION_FAST, 90);
    check_invariance(FIXTURE, "cpu", NIB_PRECISION_EXACT, 90);
    check_invariance(TINY, "cpu", NIB_PRECISION_FAST, 170); // beyond its window of 128
    const char *const families[] = {"qwen3_moe", "minimax_m2", "mimo_v2", "kimi_k2", "deepseek_v3_grouped"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char folder[128];
        snprintf(folder, sizeof folder, "tests/data/models/%s", families[i]);
        check_invariance(folder, "ref", NIB_PRECISION_AUTO, 60);
        check_invariance(folder, "cpu", NIB_PRECISION_FAST, 90);
        check_invariance(folder, "cpu", NIB_PRECISION_EXACT, 90);
    }
}

static void a_failed_step_changes_nothing(void **state)
{
    (void)state;
    struct nib_engine_options options = {.device = "cpu",
                                         .threads = 1,
                                         .context = 128,
                                         .max_sequences = 2,
                                         .max_step_tokens = 100,
                                         .max_outputs = 4,
                                         .cache_tokens = 96};
    struct nib_engine *engine;
    struct nib_error err;
    assert_int_equal(nib_engine_open(test_source(FIXTURE), &options, &engine, &err), NIB_OK);
    int32_t tokens[128], vocab = nib_engine_vocab(engine), bad = vocab, negative = -1;
    random_tokens(tokens, 128, vocab, 3);
    struct nib_sequence *a = new_sequence(engine), *b = new_sequence(engine), *c;
    assert_int_equal(nib_sequence_create(engine, &c, &err), NIB_ERR_LIMIT);
    struct nib_feed fine = {a, tokens, 60, NIB_OUTPUTS_LAST};
    assert_int_equal(nib_engine_step(engine, &fine, 1, &err), NIB_OK);
    int64_t pages = nib_engine_free_pages(engine);
    const struct {
        struct nib_feed feeds[2];
        int n;
        nib_status status;
        const char *message;
    } cases[] = {
        {{{a, &bad, 1, NIB_OUTPUTS_LAST}}, 1, NIB_ERR_ARGUMENT, "token id 160"},
        {{{a, &negative, 1, NIB_OUTPUTS_LAST}}, 1, NIB_ERR_ARGUMENT, "token id -1"},
        {{{a, tokens, 0, NIB_OUTPUTS_LAST}}, 1, NIB_ERR_ARGUMENT, "0 tokens"},
        {{{a, tokens, 69, NIB_OUTPUTS_NONE}}, 1, NIB_ERR_LIMIT, "context of 128"},
        {{{b, tokens, 101, NIB_OUTPUTS_NONE}}, 1, NIB_ERR_LIMIT, "opened for 100"},
        {{{b, tokens, 5, NIB_OUTPUTS_ALL}}, 1, NIB_ERR_LIMIT, "5 rows"},
        {{{a, tokens, 1, NIB_OUTPUTS_LAST}, {a, tokens, 1, NIB_OUTPUTS_LAST}},
         2,
         NIB_ERR_ARGUMENT,
         "same sequence"},
        {{{a, tokens, 1, NIB_OUTPUTS_LAST}, {b, tokens, 99, NIB_OUTPUTS_NONE}}, 2, NIB_ERR_LIMIT, "cache of 96"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(nib_engine_step(engine, cases[i].feeds, cases[i].n, &err), cases[i].status);
        if (!strstr(err.message, cases[i].message))
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].message);
        assert_int_equal(nib_sequence_length(a), 60);
        assert_int_equal(nib_sequence_length(b), 0);
        assert_int_equal(nib_engine_free_pages(engine), pages);
    }
    nib_sequence_free(a);
    nib_sequence_free(b);
    nib_engine_close(engine);
}

// ---- batches ----

enum { REQUESTS = 24, LONGEST = 40 };

struct answer {
    int32_t tokens[LONGEST];
    int32_t count;
    enum nib_finish finish;
    int ends;
};

static void on_event(void *context, const struct nib_event *event)
{
    (void)context;
    struct answer *answer = event->user;
    assert_int_equal(answer->ends, 0); // nothing comes after the end
    if (event->has_token) {
        assert_true(answer->count < LONGEST);
        answer->tokens[answer->count++] = event->token.token;
        assert_int_equal(event->generated_tokens, answer->count);
    }
    if (event->finish != NIB_FINISH_NOT_YET) {
        answer->finish = event->finish;
        answer->ends++;
    }
}

static struct nib_request make_request(const int32_t *prompt, int i, const int32_t *stop, struct answer *answer)
{
    return (struct nib_request){
        .prompt = prompt,
        .n_prompt = 1 + (i * 13) % 70,
        .max_tokens = 1 + (i * 7) % LONGEST,
        .sampling = {i % 3 ? 0 : 0.8f, 0, 1, 0, (uint64_t)i},
        .stop_tokens = stop,
        .n_stop_tokens = i % 2,
        .top_logprobs = i % 4 - 1,
        .user = answer,
    };
}

static void run_batch(struct nib_engine *engine, struct answer *answers, int first, int last, bool cancel_some)
{
    static int32_t prompts[REQUESTS][70];
    int32_t stop = 17;
    struct nib_batch *batch;
    int64_t ids[REQUESTS];
    bool busy = true;
    assert_int_equal(nib_batch_create(engine, on_event, NULL, &batch, NULL), NIB_OK);
    for (int i = first; i < last; i++) {
        random_tokens(prompts[i], 70, nib_engine_vocab(engine), (uint32_t)i + 1);
        struct nib_request request = make_request(prompts[i], i, &stop, &answers[i]);
        assert_int_equal(nib_batch_add(batch, &request, &ids[i], NULL), NIB_OK);
    }
    for (int step = 0; busy; step++) {
        assert_int_equal(nib_batch_step(batch, &busy, NULL), NIB_OK);
        if (cancel_some && step % 3 == 1)
            nib_batch_cancel(batch, ids[(step * 5) % REQUESTS]);
        assert_true(step < 2000);
    }
    nib_batch_free(batch);
}

static void requests_get_together_what_they_get_alone(void **state)
{
    (void)state;
    static struct answer alone[REQUESTS], together[REQUESTS], cancelled[REQUESTS];
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    memset(cancelled, 0, sizeof cancelled);
    struct nib_engine *engine = open_engine(FIXTURE, "cpu", NIB_PRECISION_FAST, 2, 5, 5);
    int64_t pages = nib_engine_free_pages(engine);
    for (int i = 0; i < REQUESTS; i++)
        run_batch(engine, alone, i, i + 1, false);
    run_batch(engine, together, 0, REQUESTS, false);
    run_batch(engine, cancelled, 0, REQUESTS, true);
    int cut = 0;
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(together[i].ends, 1);
        assert_int_equal(cancelled[i].ends, 1);
        assert_int_equal(together[i].count, alone[i].count);
        assert_memory_equal(together[i].tokens, alone[i].tokens, sizeof alone[i].tokens);
        assert_int_equal(together[i].finish, alone[i].finish);
        // A cancelled answer is the beginning of the whole one.
        cut += cancelled[i].finish == NIB_FINISH_CANCELLED;
        assert_true(cancelled[i].count <= alone[i].count);
        assert_memory_equal(cancelled[i].tokens, alone[i].tokens, (size_t)cancelled[i].count * sizeof(int32_t));
    }
    assert_true(cut > 0);
    assert_int_equal(nib_engine_free_pages(engine), pages);
    nib_engine_close(engine);
}

static void a_full_cache_ends_a_request_and_frees_the_others(void **state)
{
    (void)state;
    static struct answer answers[3];
    memset(answers, 0, sizeof answers);
    struct nib_engine_options options = {
        .device = "cpu", .threads = 1, .context = 512, .max_sequences = 3, .cache_tokens = 96};
    struct nib_engine *engine;
    assert_int_equal(nib_engine_open(test_source(FIXTURE), &options, &engine, NULL), NIB_OK);
    int64_t pages = nib_engine_free_pages(engine);
    int32_t prompt[60];
    int64_t id;
    bool busy = true;
    random_tokens(prompt, 60, nib_engine_vocab(engine), 1);
    struct nib_batch *batch;
    assert_int_equal(nib_batch_create(engine, on_event, NULL, &batch, NULL), NIB_OK);
    for (int i = 0; i < 3; i++) {
        struct nib_request request = {.prompt = prompt,
                                      .n_prompt = 60,
                                      .max_tokens = LONGEST,
                                      .sampling = {.top_p = 1},
                                      .top_logprobs = -1,
                                      .user = &answers[i]};
        assert_int_equal(nib_batch_add(batch, &request, &id, NULL), NIB_OK);
    }
    for (int step = 0; busy; step++) {
        assert_int_equal(nib_batch_step(batch, &busy, NULL), NIB_OK);
        assert_true(step < 500);
    }
    int complete = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(answers[i].ends, 1);
        complete += answers[i].finish == NIB_FINISH_LENGTH && answers[i].count == LONGEST;
    }
    assert_true(complete >= 1);
    nib_batch_free(batch);
    assert_int_equal(nib_engine_free_pages(engine), pages);
    nib_engine_close(engine);
}

// Two answers fill the cache; a third request, which then holds no page, must wait for them and not fail in their stead.
static void a_waiting_request_does_not_pay_for_a_full_cache(void **state)
{
    (void)state;
    static struct answer answers[3];
    memset(answers, 0, sizeof answers);
    struct nib_engine_options options = {
        .device = "cpu", .threads = 1, .context = 512, .max_sequences = 3, .cache_tokens = 96};
    struct nib_engine *engine;
    assert_int_equal(nib_engine_open(test_source(FIXTURE), &options, &engine, NULL), NIB_OK);
    int32_t prompt[90];
    int64_t id;
    bool busy = true;
    random_tokens(prompt, 90, nib_engine_vocab(engine), 1);
    struct nib_batch *batch;
    assert_int_equal(nib_batch_create(engine, on_event, NULL, &batch, NULL), NIB_OK);
    for (int i = 0; i < 3; i++) {
        struct nib_request request = {.prompt = prompt,
                                      .n_prompt = i == 2 ? 90 : 60 + i,
                                      .max_tokens = i == 2 ? 3 : LONGEST,
                                      .sampling = {.top_p = 1},
                                      .top_logprobs = -1,
                                      .user = &answers[i]};
        assert_int_equal(nib_batch_add(batch, &request, &id, NULL), NIB_OK);
    }
    for (int step = 0; busy; step++) {
        assert_int_equal(nib_batch_step(batch, &busy, NULL), NIB_OK);
        assert_true(step < 500);
    }
    assert_int_equal(answers[0].finish, NIB_FINISH_LENGTH);
    assert_int_equal(answers[0].count, LONGEST);
    assert_int_equal(answers[2].finish, NIB_FINISH_LENGTH);
    assert_int_equal(answers[2].count, 3);
    nib_batch_free(batch);
    nib_engine_close(engine);
}

// ---- opening ----

static struct nib_memory_plan seen_plan;

static void see_plan(void *user, const struct nib_memory_plan *plan)
{
    (void)user;
    seen_plan = *plan;
}

static void the_plan_comes_before_the_memory(void **state)
{
    (void)state;
    struct nib_engine_options options = {.device = "cpu", .max_sequences = 2, .on_plan = see_plan};
    struct nib_engine *engine;
    struct nib_error err;
    struct nib_memory_plan plan;
    assert_int_equal(nib_engine_plan(test_source(TINY), &options, &plan, &err), NIB_OK);
    assert_int_equal(nib_engine_open(test_source(TINY), &options, &engine, &err), NIB_OK);
    // Without a step the available memory differs a little, nothing else.
    seen_plan.available_bytes = plan.available_bytes;
    assert_memory_equal(&plan, &seen_plan, sizeof plan);
    assert_int_equal(plan.weights_bytes, 24142720);
    assert_int_equal(plan.context, 8192);
    assert_true(plan.exact);                                     // it is small
    assert_int_equal(plan.cache_row_bytes, 2 * 4 * 2 * 128 * 2); // 4 full layers, keys and values of 2 heads of 64
    options.precision = NIB_PRECISION_FAST;
    struct nib_memory_plan fast;
    assert_int_equal(nib_engine_plan(test_source(TINY), &options, &fast, &err), NIB_OK);
    assert_int_equal(fast.cache_bytes * 2, plan.cache_bytes);
    assert_int_equal(plan.total_bytes, plan.narrowed_bytes + plan.weights_bytes + plan.cache_bytes +
                                           plan.buffer_bytes + plan.scratch_bytes);
    nib_engine_close(engine);

    options.max_sequences = 5; // memory is left for all of them
    options.cache_tokens = NIB_CACHE_ALL;
    assert_int_equal(nib_engine_plan(test_source(TINY), &options, &plan, &err), NIB_OK);
    assert_int_equal(plan.cache_tokens, 5 * 8192);
    options.max_sequences = 4096; // and for some of these
    options.max_outputs = 1;
    assert_int_equal(nib_engine_plan(test_source(TINY), &options, &plan, &err), NIB_OK);
    assert_true(plan.cache_tokens > 5 * 8192 && plan.cache_tokens < (int64_t)4096 * 8192);
    assert_true(plan.total_bytes <= plan.available_bytes &&
                plan.total_bytes > plan.available_bytes - plan.available_bytes / 16);
    options.max_sequences = 2;
    options.max_outputs = 0;

    options.cache_tokens = (int64_t)1 << 35;
    options.context = 8192;
    assert_int_equal(nib_engine_open(test_source(TINY), &options, &engine, &err), NIB_ERR_MEMORY);
    assert_non_null(strstr(err.message, "GiB are available"));
    options.cache_tokens = 0;
    options.context = 8193;
    assert_int_equal(nib_engine_open(test_source(TINY), &options, &engine, &err), NIB_ERR_ARGUMENT);
    options.context = -1;
    assert_int_equal(nib_engine_open(test_source(TINY), &options, &engine, &err), NIB_ERR_ARGUMENT);
    options.context = 0;
    options.device = "abacus";
    assert_int_equal(nib_engine_open(test_source(TINY), &options, &engine, &err), NIB_ERR_UNSUPPORTED);
    options.device = NULL;
    assert_int_equal(nib_engine_open(test_source("no/such/model"), &options, &engine, &err), NIB_ERR_NOT_FOUND);
}

// A device that widens needs room for what matrices grow by; packed experts do not.
static void what_widening_adds_is_counted(void **state)
{
    (void)state;
    static const uint8_t zeros[4096];
    struct test_safetensors file = {0};
    test_safetensors_add(&file, "model.layers.0.self_attn.q_proj.weight", "F8_E4M3", "[32, 64]", zeros, 2048);
    test_safetensors_add(&file, "model.layers.0.self_attn.q_proj.weight_scale_inv", "F32", "[1, 1]", zeros, 4);
    test_safetensors_add(&file, "model.layers.0.self_attn.o_proj.weight_packed", "U8", "[32, 32]", zeros, 1024);
    test_safetensors_add(&file, "model.layers.0.self_attn.o_proj.weight_scale", "U8", "[32, 2]", zeros, 64);
    test_safetensors_add(&file, "model.layers.1.self_attn.o_proj.weight", "F8_E4M3", "[32, 64]", zeros, 2048);
    test_safetensors_add(&file, "model.layers.1.self_attn.o_proj.weight_scale_inv", "U8", "[1, 2]", zeros, 2);
    test_safetensors_add(&file, "model.layers.0.mlp.gate.weight", "F16", "[2, 64]", zeros, 256);
    test_safetensors_add(&file, "model.layers.0.input_layernorm.weight", "F16", "[64]", zeros, 128);
    test_safetensors_add(&file, "model.norm.weight", "BF16", "[64]", zeros, 128);
    test_safetensors_add(&file, "lm_head.weight", "BF16", "[16, 64]", zeros, 2048);
    for (int e = 0; e < 2; e++)
        for (int part = 1; part < 4; part++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.w%d.weight_packed", e, part);
            test_safetensors_add(&file, name, "U8", "[64, 32]", zeros, 2048);
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.w%d.weight_scale", e, part);
            test_safetensors_add(&file, name, "U8", "[64, 2]", zeros, 128);
        }
    const char *path = test_fresh("widened.safetensors");
    test_safetensors_write(&file, path);
    struct nib_checkpoint *checkpoint;
    struct nib_error err;
    uint64_t bytes;
    assert_int_equal(nib_checkpoint_open(path, &checkpoint, &err), NIB_OK);
    assert_int_equal(nib_widened_bytes(checkpoint, &bytes, &err), NIB_OK);
    assert_int_equal(bytes, 2 * 2048 + 3 * 1024 + 256);
    nib_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_company_chunks_or_threads),
        cmocka_unit_test(a_failed_step_changes_nothing),
        cmocka_unit_test(requests_get_together_what_they_get_alone),
        cmocka_unit_test(a_full_cache_ends_a_request_and_frees_the_others),
        cmocka_unit_test(a_waiting_request_does_not_pay_for_a_full_cache),
        cmocka_unit_test(the_plan_comes_before_the_memory),
        cmocka_unit_test(what_widening_adds_is_counted),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
