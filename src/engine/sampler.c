#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

#define MOST_NATS 60.0f         // a token so much less likely than the likeliest is never drawn
#define LEAST_TEMPERATURE 1e-6f // below it, the likeliest is taken

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

double nib_sampler_unit(struct nib_sampler *sampler)
{
    return sampler->options.temperature > 0 ? random_unit(&sampler->state) : 0;
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

// ---- cuts ----
//
// A vocabulary is too long to be sorted for each token. Its tokens are counted and weighed in bins of a sixteenth of a
// nat; only those of the bin in which a cut falls must be put in order.

enum { BINS = 512, BINS_A_NAT = 16 };

struct spread {
    float largest, inverse; // the likeliest logit, and 1 / temperature
    float floor;            // logits below it are cut
    int32_t counts[BINS];
    double masses[BINS];
};

static float likelihood(const struct spread *spread, float logit)
{
    return expf((logit - spread->largest) * spread->inverse);
}

static int bin_of(const struct spread *spread, float logit)
{
    float nats = (spread->largest - logit) * spread->inverse;
    return nats < (float)BINS / BINS_A_NAT ? (int)(nats * BINS_A_NAT) : BINS - 1;
}

static void fill_bins(struct spread *spread, const float *logits, int32_t vocab)
{
    for (int b = 0; b < BINS; b++) {
        spread->counts[b] = 0;
        spread->masses[b] = 0;
    }
    for (int32_t i = 0; i < vocab; i++)
        if (logits[i] >= spread->floor) {
            int b = bin_of(spread, logits[i]);
            spread->counts[b]++;
            spread->masses[b] += (double)likelihood(spread, logits[i]);
        }
}

// Appends the tokens of the bins from `low` to `high`, in the order of their ids.
static int32_t gather(const struct spread *spread, const float *logits, int32_t vocab, int low, int high,
                      struct nib_candidate *c, int32_t n)
{
    for (int32_t i = 0; i < vocab; i++)
        if (logits[i] >= spread->floor) {
            int b = bin_of(spread, logits[i]);
            if (b >= low && b <= high)
                c[n++] = (struct nib_candidate){logits[i], i};
        }
    return n;
}

// So many of the first candidates as have at least `wanted` together.
static int32_t reach(const struct spread *spread, const struct nib_candidate *c, int32_t n, double wanted)
{
    double kept = 0;
    for (int32_t i = 0; i < n; i++) {
        kept += (double)likelihood(spread, c[i].logit);
        if (kept >= wanted)
            return i + 1;
    }
    return n;
}

// The k likeliest tokens, in order; of these the fewest that reach top_p of them all.
static int32_t cut_by_count(struct spread *spread, const float *logits, int32_t vocab, int32_t k, float top_p,
                            struct nib_candidate *c)
{
    int32_t count = 0, last = 0;
    fill_bins(spread, logits, vocab);
    while (last < BINS - 1 && count + spread->counts[last] < k)
        count += spread->counts[last++];
    int32_t n = gather(spread, logits, vocab, 0, last, c, 0);
    qsort(c, (size_t)n, sizeof *c, compare_candidates);
    n = n < k ? n : k;
    double all = 0;
    for (int32_t i = 0; i < n; i++)
        all += (double)likelihood(spread, c[i].logit);
    return top_p < 1 ? reach(spread, c, n, (double)top_p * all) : n;
}

// The fewest tokens that reach top_p, the less likely ones behind.
static int32_t cut_by_mass(struct spread *spread, const float *logits, int32_t vocab, float top_p,
                           struct nib_candidate *c)
{
    double all = 0, kept = 0;
    int last = 0;
    fill_bins(spread, logits, vocab);
    for (int b = 0; b < BINS; b++)
        all += spread->masses[b];
    while (last < BINS - 1 && kept + spread->masses[last] < (double)top_p * all)
        kept += spread->masses[last++];
    int32_t whole = last ? gather(spread, logits, vocab, 0, last - 1, c, 0) : 0;
    int32_t n = gather(spread, logits, vocab, last, last, c, whole);
    qsort(c + whole, (size_t)(n - whole), sizeof *c, compare_candidates);
    return whole + reach(spread, c + whole, n - whole, (double)top_p * all - kept);
}

// ---- draws ----

static int32_t draw(const struct spread *spread, const struct nib_candidate *c, int32_t n, double random)
{
    double all = 0;
    for (int32_t i = 0; i < n; i++)
        all += (double)likelihood(spread, c[i].logit);
    double left = random * all;
    for (int32_t i = 0; i < n; i++) {
        left -= (double)likelihood(spread, c[i].logit);
        if (left < 0)
            return c[i].token;
    }
    return c[n - 1].token;
}

// The same when nothing is cut: sums of blocks show in which the token stands. -1 when rounding leaves none.
static int32_t draw_from_all(const struct spread *spread, const float *logits, int32_t vocab, double random)
{
    enum { BLOCKS = 256 };
    double sums[BLOCKS], all = 0;
    int32_t size = (vocab + BLOCKS - 1) / BLOCKS, block = 0;
    for (int32_t b = 0; b < BLOCKS; b++) {
        sums[b] = 0;
        for (int32_t i = b * size; i < (b + 1) * size && i < vocab; i++)
            sums[b] += logits[i] >= spread->floor ? (double)likelihood(spread, logits[i]) : 0;
        all += sums[b];
    }
    double left = random * all;
    while (block < BLOCKS - 1 && left >= sums[block])
        left -= sums[block++];
    for (int32_t i = block * size; i < (block + 1) * size && i < vocab; i++) {
        left -= logits[i] >= spread->floor ? (double)likelihood(spread, logits[i]) : 0;
        if (left < 0)
            return i;
    }
    return -1;
}

int32_t nib_sampler_pick(struct nib_sampler *sampler, struct nib_sampler_scratch *scratch, const float *logits,
                         int32_t vocab)
{
    const struct nib_sampling *options = &sampler->options;
    int32_t likeliest = argmax(logits, vocab), n;
    if (likeliest < 0 || options->temperature < LEAST_TEMPERATURE || !isfinite(logits[likeliest]))
        return likeliest;
    float nats = options->min_p > 0 ? fminf(-logf(options->min_p), MOST_NATS) : MOST_NATS;
    struct spread spread = {.largest = logits[likeliest], .inverse = 1 / options->temperature};
    spread.floor = spread.largest - nats * options->temperature;
    struct nib_candidate *c = scratch->candidates;
    double random = random_unit(&sampler->state);
    if (options->top_k)
        n = cut_by_count(&spread, logits, vocab, options->top_k, options->top_p, c);
    else if (options->top_p < 1)
        n = cut_by_mass(&spread, logits, vocab, options->top_p, c);
    else
        n = 0;
    int32_t token = n ? draw(&spread, c, n, random) : draw_from_all(&spread, logits, vocab, random);
    return token >= 0 ? token : likeliest;
}

// The n_top likeliest tokens, in order.
static int32_t find_likeliest(const float *logits, int32_t vocab, struct nib_candidate *c, int32_t n_top)
{
    int32_t n = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (isnan(logits[i]) || (n == n_top && !(logits[i] > c[n - 1].logit)))
            continue;
        int32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && c[at - 1].logit < logits[i]; at--)
            c[at] = c[at - 1];
        c[at] = (struct nib_candidate){logits[i], i};
    }
    return n;
}

int32_t nib_logprobs(struct nib_sampler_scratch *scratch, const float *logits, int32_t vocab, int32_t token,
                     float *logprob, struct nib_token_logprob *top, int32_t n_top)
{
    double total = nib_log_sum_exp(logits, vocab);
    *logprob = (float)((double)logits[token] - total);
    if (n_top <= 0)
        return 0;
    struct nib_candidate *c = scratch->candidates;
    int32_t n = find_likeliest(logits, vocab, c, n_top);
    for (int32_t i = 0; i < n; i++)
        top[i] = (struct nib_token_logprob){c[i].token, (float)((double)c[i].logit - total)};
    return n;
}
