#include "cuda/sample.h"
#include "kernel_check.h"
extern "C" {
#include "engine/sampler.h"
}

namespace
{

enum row_kind { wide, flat, equal, ties, with_nan, all_nan, infinite, all_cut, kinds };

std::vector<float> make_row(row_kind kind, int vocab, random_numbers &random)
{
    std::vector<float> row = random.normals(vocab, kind == flat ? 0.05f : 3);
    for (int i = 0; i < vocab; i++) {
        if (kind == equal)
            row[i] = 1.5f;
        if (kind == ties)
            row[i] = std::round(row[i] * 2) / 2;
        if (kind == all_nan || (kind == with_nan && i % 3 == 0))
            row[i] = NAN;
        if (kind == infinite && i == vocab / 2)
            row[i] = INFINITY;
        if (kind == all_cut || (kind == with_nan && i % 7 == 1))
            row[i] = -INFINITY;
    }
    return row;
}

// The number that the host's sampler draws next (splitmix64).
double next_unit(uint64_t state)
{
    uint64_t z = state + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

struct sampling_case {
    float temperature, top_p, min_p;
    int32_t top_k;
};

const sampling_case cases[] = {
    {0, 1, 0, 0},        {1, 1, 0, 0},         {0.7f, 0.9f, 0, 0},    {1, 0.5f, 0, 0},
    {1, 1, 0, 1},        {1.3f, 1, 0, 40},     {1, 0.95f, 0, 1000},   {0.8f, 1, 0.05f, 0},
    {1, 0.8f, 0.01f, 0}, {2, 0.9f, 0.02f, 20}, {100, 1, 0, 0},        {0.01f, 0.999f, 0, 0},
    {1, 1e-6f, 0, 0},    {1, 1, 1, 0},         {1, 0.99f, 0, 500000}, {1e-7f, 1, 0, 0}};

void check_logprobs(const nib_cuda_sample_answer &got, const std::vector<float> &row, nib_sampler_scratch *scratch,
                    int32_t n_top)
{
    float logprob;
    nib_token_logprob top[NIB_CUDA_SAMPLE_TOP];
    int32_t n =
        nib_logprobs(scratch, row.data(), static_cast<int32_t>(row.size()), got.token, &logprob, top, n_top);
    auto near = [](float a, float b) {
        return a == b || std::fabs(a - b) < 2e-6f + 1e-6f * std::fabs(b) || (std::isnan(a) && std::isnan(b));
    };
    expect(near(got.logprob, logprob), "the token's log-probability", got.logprob - logprob);
    expect(got.n_top == n, "number of alternatives", got.n_top);
    bool same = got.n_top == n;
    for (int32_t i = 0; same && i < n; i++)
        same &= got.top_tokens[i] == top[i].token && near(got.top_logprobs[i], top[i].logprob);
    expect(same, "the likeliest tokens and their log-probabilities");
}

void check_vocab(int vocab)
{
    random_numbers random(static_cast<uint64_t>(vocab));
    std::vector<std::vector<float>> rows;
    std::vector<nib_cuda_sample_ask> asks;
    std::vector<nib_sampler> samplers;
    for (int kind = 0; kind < kinds; kind++)
        for (const sampling_case &c : cases) {
            if (vocab > 100000 && kind > with_nan && c.top_p < 1)
                continue;
            rows.push_back(make_row(static_cast<row_kind>(kind), vocab, random));
            nib_sampling options = {};
            options.temperature = c.temperature;
            options.top_p = c.top_p;
            options.min_p = c.min_p;
            options.top_k = c.top_k;
            options.seed = random.next();
            nib_sampler sampler;
            nib_sampler_init(&sampler, &options);
            samplers.push_back(sampler);
            asks.push_back({next_unit(options.seed), c.temperature, c.top_p, c.min_p, c.top_k,
                            static_cast<int32_t>(asks.size() % 21), 1});
        }
    std::vector<float> logits;
    for (const std::vector<float> &row : rows)
        logits.insert(logits.end(), row.begin(), row.end());
    device_array<float> logits_there(logits);
    device_array<nib_cuda_sample_ask> asks_there(asks);
    device_array<nib_cuda_sample_answer> answers(rows.size());
    device_array<int32_t> tokens(rows.size());
    std::vector<nib_cuda_sample_answer> got, before;
    for (int repeat = 0; repeat < 2; repeat++) {
        answers.poison();
        tokens.poison();
        MUST(nib_cuda_sample(nullptr, static_cast<int32_t>(rows.size()), vocab, logits_there.data(),
                             asks_there.data(), answers.data(), tokens.data()));
        MUST(cudaDeviceSynchronize());
        before = got;
        got = answers.read("sampled tokens");
    }
    expect(same_bits(got.data(), before.data(), got.size()), "sampling repeats its bits");
    std::vector<int32_t> ids = tokens.read("token ids");
    nib_sampler_scratch scratch;
    nib_error err;
    if (nib_sampler_scratch_alloc(&scratch, vocab, &err))
        exit(1);
    for (size_t i = 0; i < rows.size(); i++) {
        int32_t want = nib_sampler_pick(&samplers[i], &scratch, rows[i].data(), vocab);
        if (got[i].token != want)
            printf("vocabulary of %d, row %zu (temperature %g, top_p %g, min_p %g, top_k %d): token %d, the "
                   "host's is %d\n",
                   vocab, i, static_cast<double>(asks[i].temperature), static_cast<double>(asks[i].top_p),
                   static_cast<double>(asks[i].min_p), asks[i].top_k, got[i].token, want);
        expect(got[i].token == want && ids[i] == want, "the token that the host draws", got[i].token);
        if (want >= 0 && got[i].token == want)
            check_logprobs(got[i], rows[i], &scratch, asks[i].n_top);
    }
    nib_sampler_scratch_free(&scratch);
}

void time_case(const char *name, int rows, const sampling_case &c, int n_top)
{
    constexpr int vocab = 201088;
    random_numbers random(1);
    std::vector<float> row = random.normals(vocab, 3);
    device_array<float> logits(static_cast<size_t>(rows) * vocab);
    for (int r = 0; r < rows; r++)
        MUST(cudaMemcpy(logits.data() + static_cast<size_t>(r) * vocab, row.data(), vocab * 4,
                        cudaMemcpyHostToDevice));
    std::vector<nib_cuda_sample_ask> asks(rows,
                                          {0.6, c.temperature, c.top_p, c.min_p, c.top_k, n_top, n_top >= 0});
    device_array<nib_cuda_sample_ask> asks_there(asks);
    device_array<nib_cuda_sample_answer> answers(rows);
    double us = time_calls(10, [&](cudaStream_t stream, int) {
        return nib_cuda_sample(stream, rows, vocab, logits.data(), asks_there.data(), answers.data(), nullptr);
    });
    printf("sample %-28s rows %2d: %8.2f us\n", name, rows, us);
}

} // namespace

void check_sampling()
{
    for (int vocab : {1, 2, 31, 1000, 4099, 201088, 262144})
        check_vocab(vocab);
}

void time_sampling(double)
{
    for (int rows : {1, 8, 64}) {
        time_case("greedy", rows, {0, 1, 0, 0}, -1);
        time_case("temperature 1", rows, {1, 1, 0, 0}, -1);
        time_case("top_p 0.9", rows, {1, 0.9f, 0, 0}, -1);
        time_case("top_k 40, top_p 0.9", rows, {1, 0.9f, 0, 40}, -1);
        time_case("temperature 1, 5 logprobs", rows, {1, 1, 0, 0}, 5);
    }
}
