// Tokens drawn on the device against the host's sampler.
#include <math.h>
#include <stdlib.h>

#include "device_pair.h"
#include "engine/sampler.h"

// ---- drawing ----

static void check_sample(int32_t rows, int64_t vocab)
{
    struct test_step step = pair_plain_step(0, rows);
    int32_t *outputs = malloc((size_t)rows * 4);
    for (int32_t i = 0; i < rows; i++)
        outputs[i] = i;
    step.step.n_outputs = rows;
    const int32_t *own = step.step.output_rows;
    step.step.output_rows = outputs;
    float *values = test_random_values(rows * vocab, 8, 0, 3);
    struct pair logits = pair_make(rows, vocab, values);
    struct nib_draw *draws = calloc((size_t)rows, sizeof *draws);
    struct nib_drawn *drawn = calloc((size_t)rows, sizeof *drawn);
    struct nib_sampler_scratch scratch;
    struct nib_error err;
    int different = 0;
    nib_sampler_scratch_alloc(&scratch, (int32_t)vocab, &err);
    for (int32_t r = 0; r < rows; r++) {
        struct nib_sampling s = {.temperature = (float)(r % 4) * 0.4f,
                                 .top_k = r % 3 * 20,
                                 .top_p = r % 5 ? 0.9f : 1,
                                 .min_p = r % 7 ? 0 : 0.02f,
                                 .seed = (uint64_t)r};
        struct nib_sampler sampler;
        nib_sampler_init(&sampler, &s);
        draws[r] = (struct nib_draw){
            nib_sampler_unit(&sampler), s.temperature, s.top_p, s.min_p, s.top_k, r % 2 ? 5 : -1};
    }
    const struct nib_ops *ops = devices[CUDA].ops;
    ops->begin(devices[CUDA].device, &step.step);
    ops->sample(devices[CUDA].device, rows, logits.on[CUDA], draws, drawn);
    if (ops->end(devices[CUDA].device, &err))
        pair_die("sample", err.message);
    for (int32_t r = 0; r < rows; r++) {
        struct nib_sampling s = {draws[r].temperature, draws[r].top_k, draws[r].top_p, draws[r].min_p,
                                 (uint64_t)r};
        struct nib_sampler sampler;
        struct nib_token_logprob top[5];
        float logprob;
        nib_sampler_init(&sampler, &s);
        const float *row = values + (int64_t)r * vocab;
        different += nib_sampler_pick(&sampler, &scratch, row, (int32_t)vocab) != drawn[r].token;
        if (draws[r].n_top < 0)
            continue;
        int32_t n = nib_logprobs(&scratch, row, (int32_t)vocab, drawn[r].token, &logprob, top, 5);
        pair_expect(fabsf(logprob - drawn[r].logprob) < 1e-4f && n == drawn[r].n_top, "sample: logprob",
                    (double)(logprob - drawn[r].logprob), 1e-4);
        for (int32_t i = 0; i < n; i++)
            pair_expect(top[i].token == drawn[r].top_tokens[i], "sample: likeliest tokens", i, 0);
    }
    // A draw at the edge between two tokens may fall on the other side.
    pair_expect(different <= rows / 50, "sample: tokens other than the host's", different, (double)(rows / 50));
    nib_sampler_scratch_free(&scratch);
    pair_drop(&logits);
    free(values), free(draws), free(drawn), free(outputs);
    step.step.output_rows = own;
    test_step_free(&step);
}

void check_drawing(void)
{
    check_sample(37, 1000);
    check_sample(4, quick ? 5000 : 201088);
}
