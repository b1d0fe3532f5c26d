// Routers and experts.
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "device_pair.h"

// ---- experts ----

struct route_context {
    struct pair *logits, *x, *y;
    struct nib_routes routes[DEVICES];
    struct nib_router router;
    struct weights *correction;
    struct nib_moe *moe[DEVICES];
};

static void route_body(int d, void *context)
{
    struct route_context *c = context;
    struct nib_router router = c->router;
    router.correction = c->correction ? &c->correction->on[d] : NULL;
    devices[d].ops->route(devices[d].device, c->routes[d], c->logits->on[d], &router);
    if (c->moe[d])
        devices[d].ops->moe(devices[d].device, c->y->on[d], c->x->on[d], c->routes[d], c->moe[d]);
}

static void check_route(int32_t tokens, struct nib_router router, bool corrected, struct nib_moe **moe,
                        int64_t hidden)
{
    struct test_step step = pair_plain_step(0, tokens);
    struct weights correction = pair_random_weights(1, router.n_experts, NIB_F32, 0.5f, 8);
    struct pair logits = pair_random(tokens, router.n_experts, 12), x = pair_random(tokens, hidden, 13),
                y = pair_make(tokens, hidden, NULL);
    struct route_context c = {
        .logits = &logits, .x = &x, .y = &y, .router = router, .correction = corrected ? &correction : NULL};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++) {
        c.moe[d] = moe ? moe[d] : NULL;
        if (devices[d].ops->alloc_routes(devices[d].device, tokens, router.top_k, &c.routes[d], &err))
            pair_die("routes", err.message);
    }
    pair_compare("route, moe", &step, route_body, &c, moe ? &y : &x, tokens, BOUND_HALF);
    int64_t n = tokens * router.top_k;
    int32_t *ids = malloc((size_t)n * 4);
    float *weights = malloc((size_t)n * 4);
    if (cudaMemcpy(ids, c.routes[CUDA].expert_ids, (size_t)n * 4, cudaMemcpyDeviceToHost) ||
        cudaMemcpy(weights, c.routes[CUDA].weights, (size_t)n * 4, cudaMemcpyDeviceToHost))
        pair_die("routes", "cannot be read");
    pair_expect(memcmp(ids, c.routes[REF].expert_ids, (size_t)n * 4) == 0, "route: ids", 1, 0);
    pair_expect_close("route: weights", weights, c.routes[REF].weights, n, 1e-5);
    pair_expect(!moe || router.kind != NIB_ROUTER_TOPK_SOFTMAX ||
                    devices[CUDA].ops->expert_bytes_read(devices[CUDA].device) ==
                        devices[REF].ops->expert_bytes_read(devices[REF].device),
                "expert_bytes_read", 1, 0);
    free(ids), free(weights);
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_routes(devices[d].device, &c.routes[d]);
    pair_drop(&logits), pair_drop(&x), pair_drop(&y);
    pair_unbind(&correction);
    test_step_free(&step);
}

static void check_moe(int64_t hidden, int64_t intermediate, int64_t n_experts, bool interleaved)
{
    int64_t row = hidden / 2, w13 = 2 * intermediate * row, w2 = hidden * intermediate / 2;
    int64_t each = w13 + w13 / 16 + w2 + w2 / 16;
    uint8_t *bytes = malloc((size_t)(each * n_experts));
    float *biases = test_random_values((2 * intermediate + hidden) * n_experts, 0.3f, 0, 6);
    struct nib_expert *experts = calloc((size_t)n_experts, sizeof *experts);
    uint64_t seed = 4;
    for (int64_t e = 0; e < n_experts; e++) {
        uint8_t *p = bytes + e * each, *s = p + w13, *d = s + w13 / 16, *t = d + w2;
        for (int64_t i = 0; i < each; i++)
            p[i] = (uint8_t)((test_random(&seed) + 1) * 127);
        for (int64_t i = 0; i < w13 / 16; i++)
            s[i] = (uint8_t)(116 + s[i] % 4);
        for (int64_t i = 0; i < w2 / 16; i++)
            t[i] = (uint8_t)(116 + t[i] % 4);
        float *b = biases + e * (2 * intermediate + hidden);
        int64_t up = interleaved ? 1 : intermediate;
        experts[e] =
            (struct nib_expert){p, p + up * row, s, s + up * row / 16, d, t, b, b + up, b + 2 * intermediate};
    }
    struct nib_moe_weights weights = {hidden, intermediate, n_experts, interleaved ? 2 : 1, NIB_F32, experts};
    struct nib_moe_config config = {.activation = {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7}};
    struct nib_moe *moe[DEVICES] = {NULL};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->bind_moe(devices[d].device, &weights, &config, 4, &moe[d], &err))
            pair_die("bind_moe", err.message);
    for (int32_t tokens = 1; tokens < MAX_TOKENS; tokens = 3 * tokens + 1)
        check_route(
            tokens,
            (struct nib_router){.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = n_experts, .top_k = 4, .scale = 1},
            false, moe, hidden);
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_moe(devices[d].device, moe[d]);
    free(bytes), free(biases), free(experts);
}

static void check_dense_moe(void)
{
    enum { EXPERTS = 6, HIDDEN = 72, INNER = 40 };
    struct weights gate[EXPERTS], up[EXPERTS], down[EXPERTS], bias[EXPERTS];
    struct nib_dense_expert experts[DEVICES][EXPERTS];
    struct nib_activation activation = {.kind = NIB_ACT_SILU};
    struct nib_moe *moe[DEVICES] = {NULL};
    struct nib_error err;
    for (int e = 0; e < EXPERTS; e++) {
        uint64_t seed = (uint64_t)e * 10;
        gate[e] = pair_random_weights(INNER, HIDDEN, NIB_BF16, 0.3f, seed),
        up[e] = pair_random_weights(INNER, HIDDEN, NIB_F32, 0.3f, seed + 1);
        down[e] = pair_random_weights(HIDDEN, INNER, NIB_BF16, 0.3f, seed + 2),
        bias[e] = pair_random_weights(1, HIDDEN, NIB_BF16, 1, seed + 3);
    }
    for (int d = REF; d < DEVICES; d++) {
        for (int e = 0; e < EXPERTS; e++)
            experts[d][e] = (struct nib_dense_expert){
                .gate = gate[e].on[d], .up = up[e].on[d], .down = down[e].on[d], .down_bias = bias[e].on[d]};
        if (devices[d].ops->bind_dense_moe(devices[d].device, experts[d], EXPERTS, &activation, &moe[d], &err))
            pair_die("bind_dense_moe", err.message);
    }
    check_route(
        37,
        (struct nib_router){
            .kind = NIB_ROUTER_SOFTMAX, .n_experts = EXPERTS, .top_k = 2, .normalise = true, .scale = 1.5f},
        false, moe, HIDDEN);
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_moe(devices[d].device, moe[d]);
    for (int e = 0; e < EXPERTS; e++)
        pair_unbind(&gate[e]), pair_unbind(&up[e]), pair_unbind(&down[e]), pair_unbind(&bias[e]);
}

void check_experts(void)
{
    const struct nib_router routers[] = {
        {.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = 128, .top_k = 4, .scale = 1},
        {.kind = NIB_ROUTER_SOFTMAX, .n_experts = 60, .top_k = 8, .normalise = true, .scale = 1},
        {.kind = NIB_ROUTER_SIGMOID,
         .n_experts = 256,
         .top_k = 8,
         .n_groups = 8,
         .top_groups = 4,
         .normalise = true,
         .scale = 2.5f},
        {.kind = NIB_ROUTER_SIGMOID, .n_experts = 384, .top_k = 8, .normalise = true, .scale = 2.8f},
    };
    for (size_t i = 0; i < sizeof routers / sizeof *routers; i++)
        check_route(71, routers[i], routers[i].kind == NIB_ROUTER_SIGMOID, NULL, 32);
    check_moe(96, 64, 5, true);
    check_moe(160, 96, 8, false);
    check_dense_moe();
}
