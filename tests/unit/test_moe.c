// The MoE kernels of every tier this CPU has, against the plain reference and against themselves.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "cpu/moe_tier.h"
#include "nibble/moe.h"
#include "ops/expert_biases.h"
#include "ops/moe_ref.h"
#include "support/moe_case.h"

static const struct nib_activation activations[] = {
    {.kind = NIB_ACT_SILU},
    {.kind = NIB_ACT_SILU_CLAMP, .limit = 10},
    {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7},
    {.kind = NIB_ACT_SITU, .beta = 4, .linear_beta = 25},
};

static void compare_case(const struct moe_case *c, int threads)
{
    const struct moe_shape *shape = &c->shape;
    struct moe_result want, got;
    int64_t n = shape->tokens * shape->hidden;
    assert_true(run_moe_case(c, "ref", 2, 0, &want));
    for (int k = 0; k < n_moe_kernels; k++) {
        if (!run_moe_case(c, moe_kernels[k], threads, 0, &got))
            continue;
        double error = relative_error(got.y, want.y, n);
        double route_error = relative_error(got.per_route, want.per_route, n * shape->top_k);
        if (!(error <= 1.9e-3) || !(route_error <= 1.9e-3))
            fail_msg("%s, K %lld, I %lld, T %lld, layout %d: rel_l2 %.2e, per route %.2e", moe_kernels[k],
                     (long long)shape->hidden, (long long)shape->intermediate, (long long)shape->tokens,
                     (int)shape->layout, error, route_error);
        free_moe_result(&got);
    }
    free_moe_result(&want);
}

static void compare_with_reference(const struct moe_shape *shape, uint64_t seed, bool at_start, int threads)
{
    struct moe_case c = make_moe_case(shape, seed, at_start);
    compare_case(&c, threads);
    free_moe_case(&c);
}

// vllm 47303, triton 10772 (odd K, what lies around scales), vllm 49070 and 39545 (every combination).
static void kernels_agree_with_the_reference(void **state)
{
    (void)state;
    static const int64_t sizes[] = {32, 64, 96, 128, 160, 224, 288, 416, 992, 1056, 2880};
    static const int64_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 70};
    static const uint8_t around[] = {0x00, 0xfe, 0xff};
    uint64_t random = 3;
    for (int i = 0; i < 66; i++) {
        struct moe_shape shape = {.hidden = sizes[i % 11],
                                  .intermediate = sizes[next_random(&random) % 10],
                                  .experts = 1 + next_random(&random) % 5,
                                  .tokens = tokens[next_random(&random) % 12],
                                  .top_k = 1 + next_random(&random) % 4,
                                  .layout = (enum moe_layout)(i % 3),
                                  .bias = (enum moe_bias)(next_random(&random) % 4),
                                  .activation = activations[next_random(&random) % 4],
                                  .around = around[next_random(&random) % 3]};
        compare_with_reference(&shape, (uint64_t)i, i % 2, 1 + (int)(next_random(&random) % 3));
    }
}

// The same values as F16 and as F32 give the same bits.
static void half_biases_are_what_they_stand_for(void **state)
{
    (void)state;
    struct moe_shape shape = {.hidden = 96,
                              .intermediate = 64,
                              .experts = 3,
                              .tokens = 5,
                              .top_k = 2,
                              .bias = MOE_BIAS_F16,
                              .activation = activations[2]};
    for (int layout = MOE_INTERLEAVED; layout <= MOE_SEPARATE; layout++) {
        shape.layout = (enum moe_layout)layout;
        struct moe_case c = make_moe_case(&shape, 41, layout == MOE_SEPARATE), wide = c;
        struct nib_widened_biases widened;
        assert_int_equal(nib_widen_biases(&c.weights, &widened, NULL), NIB_OK);
        wide.weights = widened.weights;
        for (int e = 0; e < 3; e++) {
            const uint16_t *down = c.experts[e].down_bias;
            assert_true(((const float *)widened.experts[e].down_bias)[95] == nib_f16_to_f32(down[95]));
        }
        for (int k = 0; k < n_moe_kernels; k++) {
            struct moe_result half, full;
            if (!run_moe_case(&c, moe_kernels[k], 2, 0, &half))
                continue;
            assert_true(run_moe_case(&wide, moe_kernels[k], 2, 0, &full));
            assert_memory_equal(half.y, full.y, sizeof(float) * 5 * 96);
            free_moe_result(&half);
            free_moe_result(&full);
        }
        nib_free_widened_biases(&widened);
        free_moe_case(&c);
    }
}

static void rows_longer_than_a_panel_agree(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{4096, 32}, {4128, 64}, {64, 4160}, {8224, 32}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct moe_shape shape = {.hidden = sizes[i][0],
                                  .intermediate = sizes[i][1],
                                  .experts = 2,
                                  .tokens = 7,
                                  .top_k = 2,
                                  .activation = activations[i % 4]};
        compare_with_reference(&shape, i, false, 2);
    }
}

static struct moe_shape odd_shape(void)
{
    return (struct moe_shape){.hidden = 352,
                              .intermediate = 608,
                              .experts = 4,
                              .tokens = 37,
                              .top_k = 3,
                              .bias = MOE_BIAS_BF16,
                              .activation = activations[2]};
}

// llama.cpp 24174, ik_llama 2467: one batch size on one instruction set.
static void any_number_of_tokens_agrees(void **state)
{
    (void)state;
    static const int64_t tokens[] = {10, 12,  15,  16,  24,  31,  32,  47,   63,  64,
                                     65, 127, 128, 129, 255, 257, 511, 1024, 2048};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct moe_shape shape = {.hidden = 96,
                                  .intermediate = i % 2 ? 32 : 160,
                                  .experts = 1 + (int64_t)i % 4,
                                  .tokens = tokens[i],
                                  .top_k = 1 + (int64_t)i % 3,
                                  .layout = (enum moe_layout)(i % 3),
                                  .bias = (enum moe_bias)(i % 3),
                                  .activation = activations[i % 4]};
        compare_with_reference(&shape, 100 + i, i % 2, 2);
    }
}

// The definition in double, beside include/nibble/moe.h.
static double activated(const struct nib_activation *a, double gate, double up)
{
    double limit = (double)a->limit, g = gate, u = up;
    if (a->kind == NIB_ACT_SILU_CLAMP || a->kind == NIB_ACT_SWIGLU_OAI) {
        g = fmin(g, limit);
        u = fmin(fmax(u, -limit), limit);
    }
    switch (a->kind) {
    case NIB_ACT_SWIGLU_OAI:
        return g / (1 + exp((double)-a->alpha * g)) * (u + 1);
    case NIB_ACT_SITU:
        return (double)a->beta * tanh(g / (double)a->beta) / (1 + exp(-g)) * (double)a->linear_beta *
               tanh(u / (double)a->linear_beta);
    default:
        return g / (1 + exp(-g)) * u;
    }
}

// onnxruntime 28738, sglang 23776: constants of one model in a kernel, a clamp that is missing; with inputs far beyond it.
static void activations_go_by_their_parameters(void **state)
{
    (void)state;
    static const struct nib_activation others[] = {
        {.kind = NIB_ACT_SILU},
        {.kind = NIB_ACT_SILU_CLAMP, .limit = 2.5f},
        {.kind = NIB_ACT_SILU_CLAMP, .limit = 1e30f},
        {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 0.75f, .limit = 3},
        {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 1e30f},
        {.kind = NIB_ACT_SITU, .beta = 1.5f, .linear_beta = 6},
    };
    static const float values[] = {-1e4f, -7.5f, -0.3f, 0, 0.6f, 2.75f, 9, 1e4f};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        for (int v = 0; v < 64; v++) {
            float gate = values[v / 8], up = values[v % 8], got = nib_moe_ref_activate(&others[i], gate, up);
            double want = activated(&others[i], (double)gate, (double)up);
            assert_true(fabs((double)got - want) <= 1e-5 * fabs(want) + 1e-30);
        }
        for (int large = 0; large < 2; large++) {
            struct moe_shape shape = odd_shape();
            shape.activation = others[i];
            struct moe_case c = make_moe_case(&shape, 60 + i, false);
            for (int64_t j = 0; large && j < shape.tokens * shape.hidden; j++)
                c.x[j] = (uint16_t)(c.x[j] + (c.x[j] & 0x7f80 ? 10 << 7 : 0)); // times 1024
            compare_case(&c, 2);
            free_moe_case(&c);
        }
    }
}

// sglang 31334: what is chosen for gpt-oss's odd width is what is chosen for a round one, and no fallback.
static void gpt_oss_widths_run_on_the_best_kernel(void **state)
{
    (void)state;
    const char *chosen[2];
    for (int i = 0; i < 2; i++) {
        struct moe_shape shape = {.hidden = i ? 2880 : 2048,
                                  .intermediate = i ? 2880 : 2048,
                                  .experts = 1,
                                  .tokens = 1,
                                  .top_k = 1,
                                  .bias = MOE_BIAS_BF16,
                                  .activation = activations[2]};
        struct moe_case c = make_moe_case(&shape, 70, false);
        struct nib_moe_plan *plan;
        struct nib_error err;
        const struct nib_moe_config config = {.activation = shape.activation};
        assert_int_equal(nib_moe_plan_create(&c.weights, &config, &plan, &err), NIB_OK);
        chosen[i] = nib_moe_plan_kernel(plan); // static text
        nib_moe_plan_free(plan);
        free_moe_case(&c);
    }
    assert_string_not_equal(chosen[0], "ref");
    assert_string_equal(chosen[0], chosen[1]);
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    struct moe_shape shape = odd_shape();
    struct moe_case c = make_moe_case(&shape, 5, false);
    size_t bytes = (size_t)(shape.tokens * shape.hidden) * sizeof(float);
    for (int k = 0; k < n_moe_kernels; k++) {
        struct moe_result one, many;
        if (!run_moe_case(&c, moe_kernels[k], 1, 0, &one))
            continue;
        for (int threads = 2; threads <= 17; threads++) {
            run_moe_case(&c, moe_kernels[k], threads, 0, &many);
            assert_memory_equal(one.y, many.y, bytes);
            assert_memory_equal(one.per_route, many.per_route, bytes * (size_t)shape.top_k);
            free_moe_result(&many);
        }
        free_moe_result(&one);
    }
    free_moe_case(&c);
}

// The tokens first … first + n - 1 of a case, as a case of their own.
static struct moe_case some_tokens(const struct moe_case *c, int64_t first, int64_t n)
{
    struct moe_case some = *c;
    some.shape.tokens = n;
    some.x += first * c->shape.hidden;
    some.ids += first * c->shape.top_k;
    some.routing += first * c->shape.top_k;
    return some;
}

// Fails unless every `stride`-th run of `size` tokens has by itself the bits it has in the whole batch.
static void compare_with_parts(const struct moe_case *c, const char *kernel, int64_t size, int64_t stride)
{
    struct moe_result all, part;
    if (!run_moe_case(c, kernel, 2, 0, &all))
        return;
    for (int64_t t = 0; t + size <= c->shape.tokens; t += stride) {
        struct moe_case some = some_tokens(c, t, size);
        run_moe_case(&some, kernel, 1, 0, &part);
        assert_memory_equal(part.y, all.y + t * c->shape.hidden, (size_t)(size * c->shape.hidden) * sizeof(float));
        free_moe_result(&part);
    }
    free_moe_result(&all);
}

// Each token's result in a batch, in a batch of fewer, and alone, has the same bits.
static void bits_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    struct moe_shape shape = odd_shape();
    struct moe_case c = make_moe_case(&shape, 6, false);
    for (int k = 0; k < n_moe_kernels; k++)
        for (int64_t size = 1; size <= 9; size += size < 3 ? 1 : 3)
            compare_with_parts(&c, moe_kernels[k], size, size);
    free_moe_case(&c);
}

// The same on one expert with many tokens, where kernels for prefill may come in.
static void bits_do_not_depend_on_the_batch_in_prefill(void **state)
{
    (void)state;
    struct moe_shape shape = odd_shape();
    shape.tokens = 300;
    shape.experts = 2;
    struct moe_case c = make_moe_case(&shape, 7, false);
    for (int k = 0; k < n_moe_kernels; k++)
        compare_with_parts(&c, moe_kernels[k], 1, 29);
    free_moe_case(&c);
}

// transformers 43730: the ranks together give what one gives.
static void routes_of_other_ranks_cost_nothing_and_count_as_zero(void **state)
{
    (void)state;
    struct moe_shape shape = odd_shape();
    struct moe_case c = make_moe_case(&shape, 8, false);
    struct moe_result all, low, high;
    int64_t n = shape.tokens * shape.hidden;
    for (int64_t r = 0; r < shape.tokens * shape.top_k; r++)
        if (r % 5 == 0)
            c.ids[r] = r % 2 ? INT32_MAX : INT32_MIN;
    for (int k = -1; k < n_moe_kernels; k++) {
        const char *kernel = k < 0 ? "ref" : moe_kernels[k];
        struct moe_case first = c, last = c;
        first.weights.n_experts = 1;
        last.weights.n_experts = 3;
        last.weights.experts = c.experts + 1;
        if (!run_moe_case(&c, kernel, 1, 0, &all))
            continue;
        run_moe_case(&first, kernel, 1, 0, &low);
        run_moe_case(&last, kernel, 1, 1, &high);
        for (int64_t i = 0; i < n * shape.top_k; i++)
            assert_true(all.per_route[i] == low.per_route[i] + high.per_route[i]);
        for (int64_t i = 0; i < n; i++)
            low.y[i] += high.y[i];
        assert_true(relative_error(low.y, all.y, n) < 1e-6);
        free_moe_result(&all);
        free_moe_result(&low);
        free_moe_result(&high);
    }
    free_moe_case(&c);
}

static void no_tokens_and_no_local_routes_are_fine(void **state)
{
    (void)state;
    struct moe_shape shape = odd_shape();
    struct moe_case c = make_moe_case(&shape, 9, false);
    for (int k = -1; k < n_moe_kernels; k++) {
        const char *kernel = k < 0 ? "ref" : moe_kernels[k];
        struct moe_result result;
        c.shape.tokens = shape.tokens;
        if (!run_moe_case(&c, kernel, 3, 1000, &result)) // all experts are elsewhere
            continue;
        for (int64_t i = 0; i < shape.tokens * shape.hidden; i++)
            assert_true(result.y[i] == 0 && result.per_route[i] == 0);
        free_moe_result(&result);
        c.shape.tokens = 0;
        assert_true(run_moe_case(&c, kernel, 2, 0, &result));
        free_moe_result(&result);
    }
    free_moe_case(&c);
}

// Fails unless exactly the outputs of expert e's routes are NaN, of those only column `row` unless that is negative.
static void check_nans(const struct moe_case *c, int32_t e, int64_t row)
{
    const struct moe_shape *shape = &c->shape;
    for (int k = -1; k < n_moe_kernels; k++) {
        struct moe_result result;
        if (!run_moe_case(c, k < 0 ? "ref" : moe_kernels[k], 2, 0, &result))
            continue;
        for (int64_t r = 0; r < shape->tokens * shape->top_k; r++)
            for (int64_t i = 0; i < shape->hidden; i++)
                assert_int_equal(isnan(result.per_route[r * shape->hidden + i]) != 0,
                                 c->ids[r] == e && (row < 0 || i == row));
        free_moe_result(&result);
    }
}

// A NaN scale in one row of down makes that output NaN for the tokens of that expert, and nothing else.
static void a_nan_scale_stays_in_its_row(void **state)
{
    (void)state;
    struct moe_shape shape = odd_shape();
    struct moe_case c = make_moe_case(&shape, 10, false);
    ((uint8_t *)(uintptr_t)c.experts[1].down_scales)[77 * (shape.intermediate / 32) + 3] = 255;
    check_nans(&c, 1, 77);
    free_moe_case(&c);
}

// And one in a row of gate or up makes every output of the expert's routes NaN, as a NaN in the intermediate must.
static void a_nan_scale_in_gate_or_up_spoils_the_route(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        struct moe_shape shape = odd_shape();
        struct moe_case c = make_moe_case(&shape, 11, false);
        const uint8_t *scales = which ? c.experts[2].up_scales : c.experts[2].gate_scales;
        ((uint8_t *)(uintptr_t)scales)[2 * (shape.hidden / 32) * 5] = 255;
        check_nans(&c, 2, -1);
        free_moe_case(&c);
    }
}

static const struct nib_moe_tier *const tiers[] = {&nib_moe_avx2, &nib_moe_avx512, &nib_moe_avx512vnni,
                                                   &nib_moe_avx512bf16, &nib_moe_amx};

enum { CODE_COLUMNS = 160 };

// A block whose row i holds code i in one column.
struct code_block {
    uint8_t packed[16][CODE_COLUMNS / 2], scales[16][CODE_COLUMNS / 32];
};

// The row's values under every scale, in multiplies of several sizes by an activation of one.
static void check_codes(const struct nib_moe_tier *tier, int column)
{
    static _Alignas(64) uint8_t rows_memory[NIB_MOE_TOKENS][256 * sizeof(float)];
    const void *rows[NIB_MOE_TOKENS];
    uint16_t x[CODE_COLUMNS] = {0};
    struct code_block codes = {{{0}}, {{0}}};
    x[column] = 0x3f80;
    for (int t = 0; t < NIB_MOE_TOKENS; t++) {
        tier->arrange(x, CODE_COLUMNS, rows_memory[t]);
        rows[t] = rows_memory[t];
    }
    for (int code = 0; code < 16; code++)
        codes.packed[code][column / 2] = (uint8_t)(column % 2 ? code << 4 : code);
    struct nib_moe_block block = {.packed = {codes.packed[0], codes.packed[8]},
                                  .scales = {codes.scales[0], codes.scales[8]},
                                  .packed_stride = CODE_COLUMNS / 2,
                                  .scales_stride = CODE_COLUMNS / 32};
    for (int scale = 0; scale < 256; scale++) {
        memset(codes.scales, 120, sizeof codes.scales);
        for (int code = 0; code < 16; code++)
            codes.scales[code][column / 32] = (uint8_t)scale;
        for (int m = 1; m <= tier->max_tokens; m += m < NIB_MOE_FEW ? 1 : 7) {
            float out[NIB_MOE_TOKENS * NIB_MOE_ROWS];
            tier->multiply(&block, NULL, CODE_COLUMNS, rows, m, out);
            for (int i = 0; i < m * NIB_MOE_ROWS; i++) {
                float want = nib_e2m1_to_f32((uint8_t)(i % 16)) * nib_e8m0_to_f32((uint8_t)scale);
                if (!(out[i] == want || (isnan(want) && isnan(out[i]))))
                    fail_msg("%s: code %d, scale %d, column %d, %d rows: %g instead of %g", tier->kernel.name,
                             i % 16, scale, column, m, (double)out[i], (double)want);
            }
        }
    }
}

// Every code with every scale, alone in its row at each of a few columns.
static void every_code_and_scale_is_exact(void **state)
{
    (void)state;
    static const int columns[] = {0, 1, 2, 3, 31, 77, 127, 128, 159};
    for (size_t k = 0; k < sizeof tiers / sizeof *tiers; k++)
        for (size_t i = 0; nib_cpu_has(tiers[k]->tier) && i < sizeof columns / sizeof *columns; i++)
            check_codes(tiers[k], columns[i]);
}

// vllm 48398. Rows far apart in a sparse map: offsets pass 2^31 and 2^32.
static void offsets_beyond_32_bits_work(void **state)
{
    (void)state;
    struct moe_shape shape = {.hidden = 4096, .intermediate = 32, .experts = 1, .tokens = 2, .top_k = 1};
    struct moe_case c = make_moe_case(&shape, 12, false);
    struct moe_result want, got;
    for (int64_t r = 0; r < 2; r++)
        c.ids[r] = 0;
    const int64_t stride = 100000, packed = shape.hidden / 2, scales = shape.hidden / 32;
    size_t bytes = (size_t)(shape.intermediate * stride * packed);
    uint8_t *map =
        mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        skip();
    struct nib_expert far = c.experts[0], near = far;
    far.gate = map;
    far.up = map + packed;
    far.gate_scales = map + bytes;
    far.up_scales = map + bytes + scales;
    for (int64_t i = 0; i < shape.intermediate; i++) {
        memcpy(map + i * stride * packed, near.gate + 2 * i * packed, (size_t)(2 * packed));
        memcpy(map + bytes + i * stride * scales, near.gate_scales + 2 * i * scales, (size_t)(2 * scales));
    }
    struct moe_case apart = c;
    apart.weights.experts = &far;
    apart.weights.gate_up_row_stride = stride;
    for (int k = 0; k < n_moe_kernels; k++) {
        if (!run_moe_case(&c, moe_kernels[k], 1, 0, &want))
            continue;
        run_moe_case(&apart, moe_kernels[k], 1, 0, &got);
        assert_memory_equal(want.y, got.y, (size_t)(shape.tokens * shape.hidden) * sizeof(float));
        free_moe_result(&want);
        free_moe_result(&got);
    }
    munmap(map, 2 * bytes);
    free_moe_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(half_biases_are_what_they_stand_for),
        cmocka_unit_test(rows_longer_than_a_panel_agree),
        cmocka_unit_test(any_number_of_tokens_agrees),
        cmocka_unit_test(activations_go_by_their_parameters),
        cmocka_unit_test(gpt_oss_widths_run_on_the_best_kernel),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(bits_do_not_depend_on_the_batch),
        cmocka_unit_test(bits_do_not_depend_on_the_batch_in_prefill),
        cmocka_unit_test(routes_of_other_ranks_cost_nothing_and_count_as_zero),
        cmocka_unit_test(no_tokens_and_no_local_routes_are_fine),
        cmocka_unit_test(a_nan_scale_stays_in_its_row),
        cmocka_unit_test(a_nan_scale_in_gate_or_up_spoils_the_route),
        cmocka_unit_test(every_code_and_scale_is_exact),
        cmocka_unit_test(offsets_beyond_32_bits_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
