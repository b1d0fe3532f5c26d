// Routers: Fedus et al., "Switch Transformers" (2021) for the softmax; DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024),
// section 2.1.2, for sigmoid scores with a correction that only chooses, and for groups.
#include "ops/route.h"

#include <math.h>

static float correction_of(const struct nib_router *router, int64_t expert)
{
    const struct nib_weight *correction = router->correction;
    if (!correction || !correction->data)
        return 0;
    return nib_float_at(correction->data, correction->dtype, expert);
}

static void softmax(float *values, int64_t n)
{
    float largest = values[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        largest = fmaxf(largest, values[i]);
    for (int64_t i = 0; i < n; i++)
        sum += values[i] = expf(values[i] - largest);
    for (int64_t i = 0; i < n; i++)
        values[i] /= sum;
}

static void score(const struct nib_router *router, float *logits)
{
    if (router->kind == NIB_ROUTER_SOFTMAX)
        softmax(logits, router->n_experts);
    else if (router->kind == NIB_ROUTER_SIGMOID)
        for (int64_t e = 0; e < router->n_experts; e++)
            logits[e] = 1.0f / (1.0f + expf(-logits[e]));
}

// The sum of the two best of a group.
static float group_score(const struct nib_router *router, const float *scores, int64_t group)
{
    int64_t size = router->n_experts / router->n_groups;
    float best = -INFINITY, second = -INFINITY;
    for (int64_t e = group * size; e < (group + 1) * size; e++) {
        float value = scores[e] + correction_of(router, e);
        if (value > best) {
            second = best;
            best = value;
        } else if (value > second) {
            second = value;
        }
    }
    return best + second;
}

// One bit for each group whose experts may be chosen.
static uint64_t choose_groups(const struct nib_router *router, const float *scores)
{
    float values[NIB_ROUTE_GROUPS];
    uint64_t chosen = 0;
    for (int64_t g = 0; g < router->n_groups; g++)
        values[g] = group_score(router, scores, g);
    for (int64_t i = 0; i < router->top_groups; i++) {
        int64_t best = -1;
        for (int64_t g = 0; g < router->n_groups; g++)
            if (!(chosen >> g & 1) && (best < 0 || values[g] > values[best]))
                best = g;
        chosen |= (uint64_t)1 << best;
    }
    return chosen;
}

// The best expert that is not yet among the first `taken` ids; the lower index of equals.
static int32_t best_expert(const struct nib_router *router, const float *scores, uint64_t groups,
                           const int32_t *ids, int64_t taken)
{
    int64_t group_size = router->n_groups > 1 ? router->n_experts / router->n_groups : router->n_experts;
    int32_t best = -1;
    float largest = 0;
    for (int32_t e = 0; e < router->n_experts; e++) {
        float value = scores[e] + correction_of(router, e);
        if (!(groups >> (e / group_size) & 1) || (best >= 0 && !(value > largest)))
            continue;
        bool is_taken = false;
        for (int64_t j = 0; j < taken; j++)
            is_taken |= ids[j] == e;
        if (!is_taken) {
            best = e;
            largest = value;
        }
    }
    return best;
}

void nib_route_token(const struct nib_router *router, float *logits, int32_t *ids, float *weights)
{
    score(router, logits);
    uint64_t groups = router->n_groups > 1 ? choose_groups(router, logits) : 1;
    for (int64_t j = 0; j < router->top_k; j++) {
        ids[j] = best_expert(router, logits, groups, ids, j);
        weights[j] = logits[ids[j]];
    }
    if (router->kind == NIB_ROUTER_TOPK_SOFTMAX)
        softmax(weights, router->top_k);
    float sum = 1e-20f; // as the published routers have it: no division by zero
    for (int64_t j = 0; j < router->top_k; j++)
        sum += weights[j];
    for (int64_t j = 0; j < router->top_k; j++)
        weights[j] = weights[j] / (router->normalise ? sum : 1.0f) * router->scale;
}
