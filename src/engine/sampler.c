#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

void nib_sampler_init(struct nib_sampler *sampler, const struct nib_sampling *options)
{
    sampler->options = *options;
    sampler->state = options->seed;
}

nib_status nib_sampling_check(const struct nib_sampling *options, struct nib_error *err)
{
    if (!(options->temperature >= 0 && options->temperature <= 100))
        return nib_fail(err, NIB_ERR_ARGUMENT, "temperature %g is not in 0 .. 100", (double)options->temperature);
    if (options->top_k < 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "top_k %d is negative", options->top_k);
    if (!(options->top_p > 0 && options->top_p <= 1))
        return nib_fail(err, NIB_ERR_ARGUMENT, "top_p %g is not in (0, 1]", (double)options->top_p);
    if (!(options->min_p >= 0 && options->min_p <= 1))
        return nib_fail(err, NIB_ERR_ARGUMENT, "min_p %g is not in [0, 1]", (double)options->min_p);
    return NIB_OK;
}

nib_status nib_sampler_scratch_alloc(struct nib_sampler_scratch *scratch, int32_t vocab, struct nib_error *err)
{
    scratch->candidates = malloc((size_t)vocab * sizeof *scratch->candidates);
    return scratch->candidates ? NIB_OK : nib_fail_memory(err, (unsigned long long)vocab * 8, "sampling");
}

void nib_sampler_scratch_free(struct nib_sampler_scratch *scratch)
{
    free(scratch->candidates);
    scratch->candidates = NULL;
}

// splitmix64 (Steele, Lea, Flood 2014): a full-period step and a finaliser.
static double random_unit(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// NaN logits are never chosen: every comparison with them is false.
static int32_t argmax(const float *logits, int32_t vocab)
{
    int32_t best = -1;
    float largest = -INFINITY;
    for (int32_t i = 0; i < vocab; i++)
        if (logits[i] > largest) {
            largest = logits[i];
            best = i;
        }
    return best;
}

// Likelier first; among equals the lower id, so that the order is the same on every system.
static int compare_candidates(const void *a, const void *b)
{
    const struct nib_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

// Moves the k likeliest candidates to the front, in no order (quickselect with a median of three).
static void select_likeliest(struct nib_candidate *c, int32_t n, int32_t k)
{
    int32_t low = 0, high = n - 1;
    while (low < high) {
        struct nib_candidate a = c[low], b = c[low + (high - low) / 2], d = c[high], pivot = b;
        if ((compare_candidates(&a, &b) <= 0) == (compare_candidates(&d, &a) <= 0))
            pivot = a;
        else if ((compare_candidates(&a, &d) <= 0) == (compare_candidates(&d, &b) <= 0))
            pivot = d;
        int32_t i = low, j = high;
        while (i <= j) {
            while (compare_candidates(&c[i], &pivot) < 0)
                i++;
            while (compare_candidates(&pivot, &c[j]) < 0)
                j--;
            if (i <= j) {
                struct nib_candidate swap = c[i];
                c[i++] = c[j];
                c[j--] = swap;
            }
        }
        if (k <= j)
            high = j;
        else if (k > i)
            low = i;
        else
            return;
    }
}

// Candidates with a logit of at least `floor`, in the order of their ids.
static int32_t gather(struct nib_candidate *c, const float *logits, int32_t vocab, double floor)
{
    int32_t n = 0;
    for (int32_t i = 0; i < vocab; i++)
        if ((double)logits[i] >= floor)
            c[n++] = (struct nib_candidate){logits[i], i};
    return n;
}

double nib_log_sum_exp(const float *logits, int64_t n)
{
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, logits[i]);
    if (!isfinite(largest))
        return (double)largest;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(logits[i]))
            sum += (double)expf(logits[i] - largest);
    return (double)largest + log(sum);
}

static double likelihood(float logit, double largest, double temperature)
{
    return exp(((double)logit - largest) / temperature);
}

static double mass(const float *logits, int32_t vocab, double largest, double temperature)
{
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        if (!isnan(logits[i]))
            sum += (double)expf((float)(((double)logits[i] - largest) / temperature));
    return sum;
}

int32_t nib_sampler_pick(struct nib_sampler *sampler, struct nib_sampler_scratch *scratch, const float *logits,
                         int32_t vocab)
{
    const struct nib_sampling *options = &sampler->options;
    int32_t likeliest = argmax(logits, vocab);
    double temperature = (double)options->temperature;
    if (likeliest < 0 || temperature == 0 || !isfinite(logits[likeliest]))
        return likeliest;
    double largest = (double)logits[likeliest];

    // No cut can keep a token below `floor`: min_p says so directly, and without a top_k, tokens less likely than
    // (1 - top_p) / vocab have less than 1 - top_p together. Beyond 60 nats (times the temperature) none is ever drawn.
    bool by_mass = options->top_p < 1 && options->top_k == 0;
    double floor = largest - 60 * temperature;
    if (options->min_p > 0)
        floor = fmax(floor, largest + log((double)options->min_p) * temperature);
    double total = by_mass ? mass(logits, vocab, largest, temperature) : 0;
    if (by_mass)
        floor = fmax(floor, largest + log((1 - (double)options->top_p) * total / vocab) * temperature);
    struct nib_candidate *c = scratch->candidates;
    int32_t n = gather(c, logits, vocab, floor);
    if (options->top_k && options->top_k < n) {
        select_likeliest(c, n, options->top_k);
        n = options->top_k;
    }
    qsort(c, (size_t)n, sizeof *c, compare_candidates);

    double kept = 0;
    for (int32_t i = 0; i < n; i++)
        kept += likelihood(c[i].logit, largest, temperature);
    if (options->top_p < 1) {
        double wanted = (double)options->top_p * (by_mass ? total : kept);
        kept = 0;
        for (int32_t i = 0; i < n; i++) {
            kept += likelihood(c[i].logit, largest, temperature);
            if (kept >= wanted)
                n = i + 1;
        }
    }
    double left = random_unit(&sampler->state) * kept;
    for (int32_t i = 0; i < n; i++) {
        left -= likelihood(c[i].logit, largest, temperature);
        if (left < 0)
            return c[i].token;
    }
    return c[n - 1].token;
}

int32_t nib_logprobs(struct nib_sampler_scratch *scratch, const float *logits, int32_t vocab, int32_t token,
                     float *logprob, struct nib_token_logprob *top, int32_t n_top)
{
    double total = nib_log_sum_exp(logits, vocab);
    *logprob = (float)((double)logits[token] - total);
    if (n_top <= 0)
        return 0;
    struct nib_candidate *c = scratch->candidates;
    int32_t n = gather(c, logits, vocab, -INFINITY);
    n_top = n_top < n ? n_top : n;
    select_likeliest(c, n, n_top);
    qsort(c, (size_t)n_top, sizeof *c, compare_candidates);
    for (int32_t i = 0; i < n_top; i++)
        top[i] = (struct nib_token_logprob){c[i].token, (float)((double)c[i].logit - total)};
    return n_top;
}
