// The engine on the cuda device with a small trained model: results that depend on nothing else in a step, a thousand steps
// of requests that come, go and are cancelled, and errors that are said. Ends with one summary line. Exit code 77: no GPU
// that the kernels are for, nothing was run.
//
// usage: test_cuda_engine [--quick] [MODEL]    --quick: a short run, for compute-sanitizer
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/engine.h"
#include "ops/ops.h"

enum { REQUESTS = 48, LONGEST = 60, PROMPT = 150, SEQUENCES = 12 };

static int checks, failures;
static uint64_t seed = 1;

static void expect(bool good, const char *what)
{
    checks++;
    if (!good) {
        failures++;
        printf("FAILED: %s\n", what);
    }
}

static void must(nib_status status, const char *what, const struct nib_error *err)
{
    if (status) {
        printf("%s: %s\n", what, err->message);
        exit(1);
    }
}

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static struct nib_engine *open_engine(const char *model, bool deterministic)
{
    struct nib_engine_options options = {.device = "cuda",
                                         .context = 256,
                                         .max_sequences = SEQUENCES,
                                         .max_step_tokens = 200,
                                         .max_outputs = 200,
                                         .cache_tokens = 4096,
                                         .deterministic = deterministic};
    struct nib_engine *engine;
    struct nib_error err;
    must(nib_engine_open(model, &options, &engine, &err), "opening", &err);
    return engine;
}

// ---- requests ----

struct wish {
    int32_t prompt[PROMPT], n_prompt, said[LONGEST], n_said, expected[LONGEST], n_expected;
    struct nib_request request;
    int64_t id;
    bool running, cancelled;
};

static struct wish wishes[REQUESTS];

static void make_wish(struct wish *w, int32_t vocab, int i)
{
    w->n_prompt = 1 + (int32_t)random_below(i % 3 ? 20 : PROMPT);
    for (int32_t t = 0; t < w->n_prompt; t++)
        w->prompt[t] = (int32_t)random_below((uint32_t)vocab);
    w->request = (struct nib_request){.prompt = w->prompt,
                                      .n_prompt = w->n_prompt,
                                      .max_tokens = 1 + (int32_t)random_below(LONGEST),
                                      .sampling = {.temperature = i % 2 ? 0.8f : 0,
                                                   .top_p = i % 4 == 1 ? 0.9f : 1,
                                                   .top_k = i % 5 == 1 ? 20 : 0,
                                                   .seed = (uint64_t)i},
                                      .top_logprobs = i % 3 - 1,
                                      .user = w};
}

static void on_event(void *context, const struct nib_event *event)
{
    struct wish *w = event->user;
    (void)context;
    if (event->has_token && w->n_said < LONGEST)
        w->said[w->n_said++] = event->token.token;
    if (event->finish != NIB_FINISH_NOT_YET)
        w->running = false;
    if (event->finish == NIB_FINISH_ERROR)
        expect(false, event->error->message);
}

static void add(struct nib_batch *batch, struct wish *w)
{
    struct nib_error err;
    w->n_said = 0;
    w->running = true;
    w->cancelled = false;
    must(nib_batch_add(batch, &w->request, &w->id, &err), "adding", &err);
}

static void step(struct nib_batch *batch)
{
    struct nib_error err;
    bool busy;
    must(nib_batch_step(batch, &busy, &err), "a step", &err);
}

// What each request says when it is alone.
static void run_alone(struct nib_batch *batch, int count)
{
    for (int i = 0; i < count; i++) {
        struct wish *w = &wishes[i];
        add(batch, w);
        while (w->running)
            step(batch);
        memcpy(w->expected, w->said, sizeof w->said);
        w->n_expected = w->n_said;
    }
}

static void compare_said(const struct wish *w)
{
    bool complete = w->cancelled || w->n_said == w->n_expected;
    expect(complete && w->n_said <= w->n_expected &&
               memcmp(w->said, w->expected, (size_t)w->n_said * sizeof *w->said) == 0,
           "a request says the same among others as alone");
}

static void run_crowd(struct nib_batch *batch, int count, int steps)
{
    int finished = 0, cancelled = 0;
    for (int i = 0; i < steps; i++) {
        struct wish *w = &wishes[random_below((uint32_t)count)];
        if (!w->running && random_below(2)) {
            add(batch, w);
        } else if (w->running && random_below(6) == 0) {
            w->cancelled = true;
            nib_batch_cancel(batch, w->id);
            cancelled++;
        }
        bool before[REQUESTS];
        for (int j = 0; j < count; j++)
            before[j] = wishes[j].running;
        step(batch);
        for (int j = 0; j < count; j++)
            if (before[j] && !wishes[j].running) {
                compare_said(&wishes[j]);
                finished++;
            }
    }
    printf("%d steps: %d requests ended, %d of them cancelled\n", steps, finished, cancelled);
}

static void check_requests(const char *model, int count, int steps)
{
    struct nib_engine *engine = open_engine(model, true);
    struct nib_batch *batch;
    struct nib_error err;
    for (int i = 0; i < count; i++)
        make_wish(&wishes[i], nib_engine_vocab(engine), i);
    must(nib_batch_create(engine, on_event, NULL, &batch, &err), "a batch", &err);
    run_alone(batch, count);
    run_crowd(batch, count, steps);
    nib_batch_free(batch);
    nib_engine_close(engine);
}

// ---- bits ----

enum { BITS_TOKENS = 120 };

// The logits of a sequence's last token, fed in chunks of `chunk`, with `others` sequences beside it.
static void feed(struct nib_engine *engine, const int32_t *tokens, int32_t chunk, int others, float *logits)
{
    struct nib_sequence *sequences[SEQUENCES];
    int32_t noise[BITS_TOKENS], vocab = nib_engine_vocab(engine);
    struct nib_error err;
    for (int s = 0; s <= others; s++)
        must(nib_sequence_create(engine, &sequences[s], &err), "a sequence", &err);
    for (int32_t done = 0; done < BITS_TOKENS; done += chunk) {
        int32_t here = BITS_TOKENS - done < chunk ? BITS_TOKENS - done : chunk;
        struct nib_feed feeds[SEQUENCES];
        for (int32_t i = 0; i < BITS_TOKENS; i++)
            noise[i] = (int32_t)random_below((uint32_t)vocab);
        for (int s = 0; s < others; s++)
            feeds[s] = (struct nib_feed){sequences[s], noise, 1 + s % 2, NIB_OUTPUTS_LAST};
        feeds[others] = (struct nib_feed){sequences[others], tokens + done, here, NIB_OUTPUTS_LAST};
        must(nib_engine_step(engine, feeds, others + 1, &err), "a step", &err);
    }
    memcpy(logits, nib_engine_logits(engine, others), (size_t)vocab * sizeof *logits);
    for (int s = 0; s <= others; s++)
        nib_sequence_free(sequences[s]);
}

static void check_bits(const char *model)
{
    struct nib_engine *engine = open_engine(model, true);
    size_t bytes = (size_t)nib_engine_vocab(engine) * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    int32_t tokens[BITS_TOKENS];
    for (int i = 0; i < BITS_TOKENS; i++)
        tokens[i] = (int32_t)random_below((uint32_t)nib_engine_vocab(engine));
    feed(engine, tokens, BITS_TOKENS, 0, want);
    static const struct {
        int32_t chunk;
        int others;
    } ways[] = {{BITS_TOKENS, 0}, {1, 0}, {7, 0}, {70, 0}, {BITS_TOKENS, 5}, {1, 9}, {13, 3}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        feed(engine, tokens, ways[i].chunk, ways[i].others, got);
        expect(memcmp(want, got, bytes) == 0, "the same bits in other chunks and beside others");
    }
    free(want);
    free(got);
    nib_engine_close(engine);
}

// ---- errors ----

static void expect_refused(const char *model, struct nib_engine_options options, nib_status status,
                           const char *word)
{
    struct nib_engine *engine = NULL;
    struct nib_error err = {0};
    nib_status got = nib_engine_open(model, &options, &engine, &err);
    printf("  %s\n", err.message);
    expect(got == status && strstr(err.message, word), word);
    nib_engine_close(engine);
}

static void check_errors(const char *model)
{
    expect_refused(model, (struct nib_engine_options){.device = "cuda:77"}, NIB_ERR_ARGUMENT, "no device 77");
    expect_refused(model, (struct nib_engine_options){.device = "cuda", .precision = NIB_PRECISION_EXACT},
                   NIB_ERR_UNSUPPORTED, "exact");
    expect_refused(model, (struct nib_engine_options){.device = "cuda", .dense_int8 = true}, NIB_ERR_UNSUPPORTED,
                   "8-bit");
    struct nib_engine_options huge = {.device = "cuda", .cache_tokens = (int64_t)1 << 30};
    expect_refused(model, huge, NIB_ERR_MEMORY, "are available");
    huge.force = true;
    expect_refused(model, huge, NIB_ERR_MEMORY, "out of device memory");
    nib_engine_close(open_engine(model, false)); // and the device is still fine
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    const char *model = argc > 1 + quick ? argv[1 + quick] : NIB_SOURCE_DIR "/models/tiny-gpt-oss";
    uint64_t bytes;
    struct nib_error err;
    if (nib_cuda_ops()->memory_available(0, &bytes, &err)) {
        printf("test_cuda_engine: not run: %s\n", err.message);
        return 77;
    }
    check_requests(model, quick ? 4 : REQUESTS, quick ? 12 : 1000);
    check_bits(model);
    if (!quick)
        check_errors(model);
    printf("test_cuda_engine: %d checks, %d failed\n", checks, failures);
    return failures > 0;
}
