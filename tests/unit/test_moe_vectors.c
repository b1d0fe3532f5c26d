// Every kernel this CPU can run against the float64 vectors in tests/data/moe.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "nibble/moe.h"
#include "support/paths.h"

static const char *const kernels[] = {"ref", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};

static const char *const vectors[] = {
    "silu-concatenated-nobias-E3K64I32T33k3",         "silu-concatenated-nobias-E5K160I96T7k3",
    "silu-interleaved-nobias-E4K512I256T1k4",         "silu_clamp10-concatenated-nobias-E5K96I96T16k4",
    "silu_clamp10-interleaved-nobias-E5K256I224T5k2", "situ_b4_l25-concatenated-nobias-E6K224I96T6k5",
    "situ_b4_l25-interleaved-nobias-E6K96I128T9k2",   "swiglu_oai-concatenated-bias-E6K192I96T4k4",
    "swiglu_oai-concatenated-nobias-E4K128I64T3k2",   "swiglu_oai-interleaved-bias-E5K96I160T7k3",
};

static const struct nib_activation silu = {.kind = NIB_ACT_SILU};
static const struct nib_activation clamp10 = {.kind = NIB_ACT_SILU_CLAMP, .limit = 10};
static const struct nib_activation oai = {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7};
static const struct nib_activation situ = {.kind = NIB_ACT_SITU, .beta = 4, .linear_beta = 25};

static struct nib_activation activation_of(const char *name)
{
    return strncmp(name, "silu_clamp10-", 13) == 0 ? clamp10
           : strncmp(name, "silu-", 5) == 0        ? silu
           : strncmp(name, "swiglu_oai-", 11) == 0 ? oai
                                                   : situ;
}

static const struct nib_tensor *tensor(const struct nib_checkpoint *checkpoint, const char *name)
{
    const struct nib_tensor *found = nib_checkpoint_peek(checkpoint, name);
    assert_non_null(found);
    return found;
}

static struct nib_moe_plan *plan_of(const struct nib_checkpoint *file, const char *name, const char *kernel)
{
    const struct nib_tensor *w13 = tensor(file, "w13"), *w2 = tensor(file, "w2");
    const struct nib_tensor *b13 = nib_checkpoint_peek(file, "b13"), *b2 = nib_checkpoint_peek(file, "b2");
    bool interleaved = strstr(name, "-interleaved-") != NULL;
    int64_t n = w13->shape[0], hidden = w2->shape[1], intermediate = w13->shape[1] / 2;
    const uint8_t *w13_data = w13->data, *s13 = tensor(file, "s13")->data;
    const uint8_t *w2_data = w2->data, *s2 = tensor(file, "s2")->data;
    int64_t up_row = interleaved ? 1 : intermediate;
    struct nib_expert experts[8];
    assert_true(n <= 8);
    for (int64_t e = 0; e < n; e++) {
        int64_t row = e * 2 * intermediate;
        experts[e] = (struct nib_expert){
            .gate = w13_data + row * (hidden / 2),
            .up = w13_data + (row + up_row) * (hidden / 2),
            .gate_scales = s13 + row * (hidden / 32),
            .up_scales = s13 + (row + up_row) * (hidden / 32),
            .down = w2_data + e * hidden * (intermediate / 2),
            .down_scales = s2 + e * hidden * (intermediate / 32),
        };
        if (b13) {
            experts[e].gate_bias = (const float *)b13->data + row;
            experts[e].up_bias = (const float *)b13->data + row + up_row;
            experts[e].down_bias = (const float *)b2->data + e * hidden;
        }
    }
    struct nib_moe_weights weights = {.hidden = hidden,
                                      .intermediate = intermediate,
                                      .n_experts = n,
                                      .gate_up_row_stride = interleaved ? 2 : 1,
                                      .bias_dtype = NIB_F32,
                                      .experts = experts};
    struct nib_moe_config config = {.activation = activation_of(name), .kernel = kernel};
    struct nib_moe_plan *plan;
    struct nib_error err;
    nib_status status = nib_moe_plan_create(&weights, &config, &plan, &err);
    if (status == NIB_ERR_UNSUPPORTED)
        return NULL;
    assert_int_equal(status, NIB_OK);
    return plan;
}

static double rel_l2(const float *got, const double *want, int64_t n)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        error += d * d;
        norm += want[i] * want[i];
    }
    return sqrt(error / norm);
}

static void check_vector(const char *name, const char *kernel, int threads)
{
    char relative[256];
    snprintf(relative, sizeof relative, "moe/%s.safetensors", name);
    struct nib_error err;
    struct nib_checkpoint *file;
    assert_int_equal(nib_checkpoint_open(test_data(relative), &file, &err), NIB_OK);
    struct nib_moe_plan *plan = plan_of(file, name, kernel);
    if (!plan) {
        nib_checkpoint_close(file);
        return;
    }
    const struct nib_tensor *x = tensor(file, "x"), *ids = tensor(file, "expert_ids");
    int64_t tokens = x->shape[0], hidden = x->shape[1], top_k = ids->shape[1];
    size_t scratch_bytes = nib_moe_scratch_bytes(plan, tokens, top_k, threads);
    void *scratch = aligned_alloc(64, (scratch_bytes + 63) & ~(size_t)63);
    float *y = malloc((size_t)(tokens * hidden) * sizeof *y);
    uint16_t *y_bf16 = malloc((size_t)(tokens * hidden) * sizeof *y_bf16);
    float *per_route = malloc((size_t)(tokens * top_k * hidden) * sizeof *per_route);
    assert_true(scratch && y && y_bf16 && per_route);
    struct nib_moe_call call = {.tokens = tokens,
                                .top_k = top_k,
                                .threads = threads,
                                .x_dtype = NIB_BF16,
                                .x = x->data,
                                .expert_ids = ids->data,
                                .routing_weights = tensor(file, "routing_weights")->data,
                                .y_dtype = NIB_F32,
                                .y = y,
                                .y_per_route = per_route,
                                .scratch = scratch,
                                .scratch_bytes = scratch_bytes};
    assert_int_equal(nib_moe_run(plan, &call, &err), NIB_OK);
    double bound = strcmp(kernel, "ref") == 0 ? 1e-6 : 1.8e-3;
    double error = rel_l2(y, tensor(file, "y")->data, tokens * hidden);
    double route_error = rel_l2(per_route, tensor(file, "y_per_route")->data, tokens * top_k * hidden);
    if (error > bound || route_error > bound)
        fail_msg("%s on %s: rel_l2 %.2e, per route %.2e, bound %.2e", kernel, name, error, route_error, bound);

    call.y_dtype = NIB_BF16;
    call.y = y_bf16;
    call.y_per_route = NULL;
    assert_int_equal(nib_moe_run(plan, &call, &err), NIB_OK);
    for (int64_t i = 0; i < tokens * hidden; i++)
        assert_int_equal(y_bf16[i], nib_bf16_from_f32(y[i]));

    free(scratch);
    free(y);
    free(y_bf16);
    free(per_route);
    nib_moe_plan_free(plan);
    nib_checkpoint_close(file);
}

static void every_kernel_meets_the_float64_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++)
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
            for (int threads = 1; threads <= 3; threads += 2)
                check_vector(vectors[v], kernels[k], threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_meets_the_float64_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
