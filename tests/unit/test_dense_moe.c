// Experts that are not MXFP4, on the devices in host memory: against plain sums, and the same bits for any number of threads.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/devices.h"

// Large enough for threads to be woken, more routes to an expert than a step has tokens, and a column block that is not full.
enum { HIDDEN = 1056, INTERMEDIATE = 96, EXPERTS = 3, TOKENS = 40, TOP_K = 3, MATRIX = HIDDEN * INTERMEDIATE };

struct layer {
    float *gate, *up, *down; /* [EXPERTS, MATRIX] */
    float *x;                /* [TOKENS, HIDDEN] */
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K];
};

static struct layer make_layer(void)
{
    struct layer l = {.gate = test_random_values(EXPERTS * MATRIX, 0.05f, 1, 1),
                      .up = test_random_values(EXPERTS * MATRIX, 0.05f, 1, 2),
                      .down = test_random_values(EXPERTS * MATRIX, 0.1f, 1, 3),
                      .x = test_random_values(TOKENS * HIDDEN, 1, 1, 4)};
    for (int r = 0; r < TOKENS * TOP_K; r++) {
        l.ids[r] = r % 7 == 0 ? EXPERTS : (r * r + r / 5) % EXPERTS; // some elsewhere, some twice in a token
        l.weights[r] = 0.125f * (float)(1 + r % 8);
    }
    return l;
}

static void free_layer(struct layer *l)
{
    free(l->gate);
    free(l->up);
    free(l->down);
    free(l->x);
}

static void add_expert(const struct layer *l, int32_t e, const float *x, double weight, double *y)
{
    double h[INTERMEDIATE];
    for (int i = 0; i < INTERMEDIATE; i++) {
        double gate = 0, up = 0;
        for (int k = 0; k < HIDDEN; k++) {
            gate += (double)l->gate[e * MATRIX + i * HIDDEN + k] * (double)x[k];
            up += (double)l->up[e * MATRIX + i * HIDDEN + k] * (double)x[k];
        }
        h[i] = gate / (1 + exp(-gate)) * up;
    }
    for (int k = 0; k < HIDDEN; k++)
        for (int i = 0; i < INTERMEDIATE; i++)
            y[k] += weight * (double)l->down[e * MATRIX + k * INTERMEDIATE + i] * h[i];
}

static struct nib_weight bind(const struct test_device *d, const float *data, int64_t rows, int64_t cols)
{
    struct nib_weight_view view = {.data = data, .dtype = NIB_F32, .rows = rows, .cols = cols, .name = "expert"};
    struct nib_weight weight;
    assert_int_equal(d->ops->bind(d->device, &view, &weight, NULL), NIB_OK);
    return weight;
}

static float *run(const struct nib_ops *ops, const struct layer *l, int threads)
{
    const struct nib_scratch_query query = {
        .max_width = HIDDEN, .n_experts = EXPERTS, .top_k = TOP_K, .hidden = HIDDEN, .intermediate = INTERMEDIATE};
    const struct nib_activation silu = {.kind = NIB_ACT_SILU};
    struct test_device d = test_device_open(ops, threads, TOKENS, &query);
    struct nib_dense_expert experts[EXPERTS] = {0};
    for (int e = 0; e < EXPERTS; e++) {
        experts[e].gate = bind(&d, l->gate + e * MATRIX, INTERMEDIATE, HIDDEN);
        experts[e].up = bind(&d, l->up + e * MATRIX, INTERMEDIATE, HIDDEN);
        experts[e].down = bind(&d, l->down + e * MATRIX, HIDDEN, INTERMEDIATE);
    }
    struct nib_moe *moe;
    struct nib_error err;
    assert_int_equal(ops->bind_dense_moe(d.device, experts, EXPERTS, &silu, &moe, &err), NIB_OK);
    struct nib_buffer x = test_buffer(&d, TOKENS, HIDDEN, l->x), y = test_buffer(&d, TOKENS, HIDDEN, NULL);
    struct nib_routes routes;
    assert_int_equal(ops->alloc_routes(d.device, TOKENS, TOP_K, &routes, &err), NIB_OK);
    memcpy(routes.expert_ids, l->ids, sizeof l->ids);
    memcpy(routes.weights, l->weights, sizeof l->weights);
    float *result = malloc(TOKENS * HIDDEN * sizeof *result);
    assert_non_null(result);
    ops->begin(d.device, &(struct nib_step){.n_tokens = TOKENS});
    ops->moe(d.device, y, x, routes, moe);
    ops->read(d.device, TOKENS, y, result);
    assert_true(ops->expert_bytes_read(d.device) == (uint64_t)EXPERTS * 3 * MATRIX * sizeof(float));
    assert_int_equal(ops->end(d.device, &err), NIB_OK);
    ops->free_routes(d.device, &routes);
    ops->free_buffer(d.device, &x);
    ops->free_buffer(d.device, &y);
    ops->free_moe(d.device, moe);
    test_device_close(&d);
    return result;
}

static void layers_agree_with_plain_sums_on_any_threads(void **state)
{
    (void)state;
    const struct nib_ops *const devices[] = {nib_ref_ops(), nib_cpu_ops()};
    struct layer l = make_layer();
    double *exact = calloc(TOKENS * HIDDEN, sizeof *exact);
    float *want = malloc(TOKENS * HIDDEN * sizeof *want);
    assert_true(exact && want);
    for (int r = 0; r < TOKENS * TOP_K; r++)
        if (l.ids[r] < EXPERTS)
            add_expert(&l, l.ids[r], l.x + r / TOP_K * HIDDEN, (double)l.weights[r], exact + r / TOP_K * HIDDEN);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        want[i] = (float)exact[i];
    for (int d = 0; d < 2; d++) {
        float *one = run(devices[d], &l, 1);
        assert_true(test_rel_l2(one, want, TOKENS * HIDDEN) < 1e-5);
        for (int threads = 2; threads <= 5; threads++) {
            float *many = run(devices[d], &l, threads);
            assert_memory_equal(one, many, TOKENS * HIDDEN * sizeof *one);
            free(many);
        }
        free(one);
    }
    free(exact);
    free(want);
    free_layer(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_agree_with_plain_sums_on_any_threads)};
    return cmocka_run_group_tests_name("dense_moe", tests, NULL, NULL);
}
