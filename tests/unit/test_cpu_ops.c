// The cpu device's small operations, its scratch and its refusals.
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_features.h"
#include "support/devices.h"

enum { TOKENS = 70, WIDTH = 101 };

static const struct nib_scratch_query query = {
    .max_width = 128, .n_experts = 8, .top_k = 2, .hidden = 64, .intermediate = 96, .n_heads = 4, .head_dim = 48};

struct pair {
    struct test_device cpu, ref;
    struct test_step step;
};

static struct pair open_pair(int threads)
{
    const int32_t first[] = {0, 5000, 77}, count[] = {40, 1, 29};
    return (struct pair){test_device_open(nib_cpu_ops(), threads, TOKENS, &query),
                         test_device_open(nib_ref_ops(), threads, TOKENS, &query),
                         test_step_make(16, 3, first, count)};
}

static void close_pair(struct pair *pair)
{
    test_device_close(&pair->cpu);
    test_device_close(&pair->ref);
    test_step_free(&pair->step);
}

// Runs `operate` on both devices with a buffer that holds `x` and compares what it leaves in it.
static void compare(struct pair *pair, const float *x, int64_t width, double bound,
                    void (*operate)(const struct test_device *d, struct nib_buffer x))
{
    float *out[2];
    const struct test_device *devices[2] = {&pair->cpu, &pair->ref};
    for (int i = 0; i < 2; i++) {
        struct nib_buffer buffer = test_buffer(devices[i], TOKENS, width, x);
        out[i] = malloc((size_t)(TOKENS * width) * sizeof(float));
        assert_non_null(out[i]);
        devices[i]->ops->begin(devices[i]->device, &pair->step.step);
        operate(devices[i], buffer);
        devices[i]->ops->read(devices[i]->device, TOKENS, buffer, out[i]);
        assert_int_equal(devices[i]->ops->end(devices[i]->device, NULL), NIB_OK);
        devices[i]->ops->free_buffer(devices[i]->device, &buffer);
    }
    double error = test_rel_l2(out[0], out[1], TOKENS * width);
    if (!(error <= bound))
        print_error("rel_l2 %g\n", error);
    assert_true(error <= bound);
    free(out[0]);
    free(out[1]);
}

static uint16_t bf16_values[TOKENS * WIDTH], f16_values[TOKENS * WIDTH];
static float f32_values[TOKENS * WIDTH];
static struct nib_weight weight; // what the operation at hand uses

static struct nib_weight weight_of(enum nib_dtype dtype, int64_t rows, int64_t cols)
{
    const void *data = dtype == NIB_F32 ? (void *)f32_values : dtype == NIB_BF16 ? bf16_values : f16_values;
    return (struct nib_weight){.data = data, .dtype = dtype, .rows = rows, .cols = cols};
}

static int fill_values(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        f32_values[i] = test_random(&seed);
        bf16_values[i] = nib_bf16_from_f32(f32_values[i]);
        f16_values[i] = (uint16_t)(0x2000 + (seed >> 40) % 0x2000);
    }
    return 0;
}

static void norm_in_place(const struct test_device *d, struct nib_buffer x)
{
    d->ops->rms_norm(d->device, TOKENS, x, x, &weight, 1e-5f);
}

static void take_embedding(const struct test_device *d, struct nib_buffer x)
{
    d->ops->embed(d->device, x, &weight);
}

static void norm_heads(const struct test_device *d, struct nib_buffer x)
{
    d->ops->head_norm(d->device, x, 3, 33, &weight, 1e-5f);
}

static void gate_itself(const struct test_device *d, struct nib_buffer x)
{
    d->ops->silu_mul(d->device, x, x);
}

static void add_to_itself(const struct test_device *d, struct nib_buffer x)
{
    d->ops->add(d->device, x, x);
}

static void gather_outputs(const struct test_device *d, struct nib_buffer x)
{
    struct nib_buffer y = test_buffer(d, 3, x.width, NULL);
    d->ops->gather(d->device, y, x);
    memcpy(x.data, y.data, (size_t)(3 * x.width) * sizeof(float));
    d->ops->free_buffer(d->device, &y);
}

static void small_operations_agree_with_ref(void **state)
{
    (void)state;
    float *x = test_random_values(TOKENS * WIDTH, 4, false, 2);
    for (int threads = 1; threads <= 3; threads++) {
        struct pair pair = open_pair(threads);
        for (int i = 0; i < 3; i++) {
            enum nib_dtype dtype = (const enum nib_dtype[]){NIB_BF16, NIB_F32, NIB_F16}[i];
            weight = weight_of(dtype, 1, WIDTH);
            compare(&pair, x, WIDTH, 1e-6, norm_in_place);
            weight = weight_of(dtype, 1, 29); // three heads of 33, of which 29 elements are normed
            compare(&pair, x, 99, 1e-6, norm_heads);
            weight = weight_of(dtype, TOKENS, WIDTH);
            compare(&pair, x, WIDTH, 0, take_embedding);
        }
        compare(&pair, x, WIDTH, 0, add_to_itself);
        compare(&pair, x, WIDTH, 1e-6, gate_itself);
        compare(&pair, x, WIDTH, 0, gather_outputs);
        close_pair(&pair);
    }
    free(x);
}

static struct nib_rope rope;
static float inv_freq[80];

static void rotate(const struct test_device *d, struct nib_buffer x)
{
    int64_t head_dim = rope.dims > 48 ? 176 : 48;
    d->ops->rope(d->device, x, x.width / head_dim, head_dim, &rope);
}

static void rope_agrees_with_ref(void **state)
{
    (void)state;
    for (int i = 0; i < 80; i++)
        inv_freq[i] = powf(150000, -(float)i / 80);
    float *x = test_random_values(TOKENS * 3 * 176, 1, false, 3);
    struct pair pair = open_pair(2);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        rope = (struct nib_rope){.inv_freq = inv_freq, .dims = 48, .scale = 1.3465f, .interleaved = interleaved};
        compare(&pair, x, 3 * 48, 1e-6, rotate);
        rope.dims = 20; // the rest of each head stays
        compare(&pair, x, 3 * 48, 1e-6, rotate);
        rope.first = 28; // nor does it begin at the front
        compare(&pair, x, 3 * 48, 1e-6, rotate);
        rope.first = 0;
        rope.dims = 160; // more pairs than are kept at a time
        compare(&pair, x, 3 * 176, 1e-6, rotate);
    }
    close_pair(&pair);
    free(x);
}

static void routing_agrees_with_ref(void **state)
{
    (void)state;
    struct pair pair = open_pair(2);
    float *x = test_random_values(TOKENS * WIDTH, 3, false, 4);
    for (int i = 0; i < TOKENS * WIDTH; i += 3) // equal logits: the lower index wins
        x[i] = 2.5f;
    for (int i = 0; i < WIDTH; i++)
        x[i] = 1;
    for (int64_t top_k = 1; top_k <= 8; top_k += 3) {
        struct nib_router router = {
            .kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = WIDTH, .top_k = top_k, .scale = 1};
        struct nib_routes routes[2];
        const struct test_device *devices[2] = {&pair.cpu, &pair.ref};
        for (int i = 0; i < 2; i++) {
            const struct test_device *d = devices[i];
            struct nib_buffer logits = test_buffer(d, TOKENS, WIDTH, x);
            assert_int_equal(d->ops->alloc_routes(d->device, TOKENS, top_k, &routes[i], NULL), NIB_OK);
            d->ops->begin(d->device, &pair.step.step);
            d->ops->route(d->device, routes[i], logits, &router);
            assert_int_equal(d->ops->end(d->device, NULL), NIB_OK);
            d->ops->free_buffer(d->device, &logits);
        }
        assert_memory_equal(routes[0].expert_ids, routes[1].expert_ids, (size_t)(TOKENS * top_k) * 4);
        assert_true(test_rel_l2(routes[0].weights, routes[1].weights, TOKENS * top_k) < 1e-6);
        for (int64_t j = 0; j < top_k; j++)
            assert_int_equal(routes[0].expert_ids[j], j);
        for (int i = 0; i < 2; i++)
            devices[i]->ops->free_routes(devices[i]->device, &routes[i]);
    }
    free(x);
    close_pair(&pair);
}

static void not_a_number_still_routes_to_experts(void **state)
{
    (void)state;
    struct pair pair = open_pair(1);
    float *x = test_random_values(TOKENS * WIDTH, 3, false, 4);
    x[0] = NAN;
    for (int i = 0; i < WIDTH; i++)
        x[WIDTH + i] = NAN;
    struct nib_router router = {.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = WIDTH, .top_k = 4, .scale = 1};
    struct nib_routes routes;
    struct nib_buffer logits = test_buffer(&pair.cpu, TOKENS, WIDTH, x);
    assert_int_equal(pair.cpu.ops->alloc_routes(pair.cpu.device, TOKENS, 4, &routes, NULL), NIB_OK);
    pair.cpu.ops->begin(pair.cpu.device, &pair.step.step);
    pair.cpu.ops->route(pair.cpu.device, routes, logits, &router);
    for (int i = 0; i < TOKENS * 4; i++)
        assert_in_range(routes.expert_ids[i], 0, WIDTH - 1);
    pair.cpu.ops->free_routes(pair.cpu.device, &routes);
    pair.cpu.ops->free_buffer(pair.cpu.device, &logits);
    free(x);
    close_pair(&pair);
}

enum { EXPERTS = 8, HIDDEN = 64, INTERMEDIATE = 96, TOP_K = 2 };

// Eight experts of random codes, separate tensors, scales near one.
static void fill_experts(uint8_t *codes /* [EXPERTS, 3, HIDDEN * INTERMEDIATE / 2] */,
                         uint8_t *scales /* [EXPERTS, 3, HIDDEN * INTERMEDIATE / 32] */,
                         struct nib_expert *experts)
{
    const int64_t n_codes = HIDDEN * INTERMEDIATE / 2, n_scales = HIDDEN * INTERMEDIATE / 32;
    uint64_t seed = 6;
    for (int64_t i = 0; i < EXPERTS * 3 * n_codes; i++)
        codes[i] = (uint8_t)(128 * (1 + test_random(&seed)));
    for (int64_t i = 0; i < EXPERTS * 3 * n_scales; i++)
        scales[i] = (uint8_t)(124 + (int)(2 * test_random(&seed)));
    for (int64_t e = 0; e < EXPERTS; e++)
        experts[e] = (struct nib_expert){
            .gate = codes + 3 * e * n_codes,
            .up = codes + (3 * e + 1) * n_codes,
            .down = codes + (3 * e + 2) * n_codes,
            .gate_scales = scales + 3 * e * n_scales,
            .up_scales = scales + (3 * e + 1) * n_scales,
            .down_scales = scales + (3 * e + 2) * n_scales,
        };
}

static struct nib_moe_weights moe_weights;
static struct nib_router moe_router = {.kind = NIB_ROUTER_TOPK_SOFTMAX, .n_experts = EXPERTS, .top_k = TOP_K};

// x becomes the MoE layer of x, routed by its own first columns.
static void run_experts(const struct test_device *d, struct nib_buffer x)
{
    const struct nib_moe_config config = {.activation = {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7}};
    struct nib_moe *moe;
    struct nib_routes routes;
    struct nib_buffer y = test_buffer(d, TOKENS, HIDDEN, NULL), logits = test_buffer(d, TOKENS, EXPERTS, NULL);
    for (int64_t t = 0; t < TOKENS; t++)
        memcpy((float *)logits.data + t * EXPERTS, (float *)x.data + t * HIDDEN, EXPERTS * sizeof(float));
    assert_int_equal(d->ops->bind_moe(d->device, &moe_weights, &config, TOP_K, &moe, NULL), NIB_OK);
    assert_int_equal(d->ops->alloc_routes(d->device, TOKENS, TOP_K, &routes, NULL), NIB_OK);
    d->ops->route(d->device, routes, logits, &moe_router);
    d->ops->moe(d->device, y, x, routes, moe);
    memcpy(x.data, y.data, TOKENS * HIDDEN * sizeof(float));
    d->ops->free_moe(d->device, moe);
    d->ops->free_routes(d->device, &routes);
    d->ops->free_buffer(d->device, &y);
    d->ops->free_buffer(d->device, &logits);
}

static void moe_agrees_with_ref(void **state)
{
    (void)state;
    static uint8_t codes[EXPERTS * 3 * HIDDEN * INTERMEDIATE / 2],
        scales[EXPERTS * 3 * HIDDEN * INTERMEDIATE / 32];
    static struct nib_expert experts[EXPERTS];
    fill_experts(codes, scales, experts);
    moe_weights = (struct nib_moe_weights){
        .hidden = HIDDEN,
        .intermediate = INTERMEDIATE,
        .n_experts = EXPERTS,
        .gate_up_row_stride = 1,
        .bias_dtype = NIB_F32,
        .experts = experts,
    };
    float *x = test_random_values(TOKENS * HIDDEN, 1, true, 8);
    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!nib_cpu_has(tier))
            continue;
        setenv("NIBBLE_CPU", nib_cpu_tier_name(tier), 1);
        struct pair pair = open_pair(2);
        compare(&pair, x, HIDDEN, 3e-3, run_experts);
        close_pair(&pair);
    }
    unsetenv("NIBBLE_CPU");
    free(x);
}

static void scratch_is_what_is_allocated(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct nib_device_options options = {.threads = threads, .max_tokens = 512, .max_sequences = 8};
        struct nib_scratch_query big = {.max_width = 4096, .hidden = 2880, .n_heads = 64, .head_dim = 64};
        size_t stated = nib_cpu_ops()->scratch_bytes(&options, &big);
        struct mallinfo2 before = mallinfo2();
        struct nib_device *device;
        assert_int_equal(nib_cpu_ops()->open(&options, &big, &device, NULL), NIB_OK);
        struct mallinfo2 after = mallinfo2();
        size_t taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        nib_cpu_ops()->close(device);
        if (taken) // an allocator that does not count (a sanitizer's) says nothing
            assert_in_range(taken, stated, stated + 32768);
    }
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    struct test_device cpu = test_device_open(nib_cpu_ops(), 1, 4, &query);
    struct nib_cache cache;
    struct nib_buffer buffer;
    struct nib_error err;
    assert_int_equal(cpu.ops->alloc_cache(cpu.device, INT64_MAX / 2, 64, 1024, 0, &cache, &err), NIB_ERR_LIMIT);
    assert_int_equal(cpu.ops->alloc_buffer(cpu.device, -1, 64, &buffer, &err), NIB_ERR_LIMIT);
    assert_int_equal(cpu.ops->alloc_buffer(cpu.device, INT64_MAX / 4, 1, &buffer, &err), NIB_ERR_LIMIT);
    struct nib_weight bound;
    struct nib_weight_view view = {.dtype = NIB_I64, .rows = 1, .cols = 1, .name = "model.odd"};
    assert_int_equal(cpu.ops->bind(cpu.device, &view, &bound, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "model.odd"));
    test_device_close(&cpu);

    struct nib_device_options options = {.threads = 1, .max_tokens = 4, .max_sequences = 1};
    struct nib_device *device;
    setenv("NIBBLE_CPU", "ref", 1);
    assert_int_equal(nib_cpu_ops()->open(&options, &query, &device, &err), NIB_ERR_UNSUPPORTED);
    setenv("NIBBLE_CPU", "sse9", 1);
    assert_int_equal(nib_cpu_ops()->open(&options, &query, &device, &err), NIB_ERR_ARGUMENT);
    unsetenv("NIBBLE_CPU");
}

static void kernels_are_named(void **state)
{
    (void)state;
    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!nib_cpu_has(tier))
            continue;
        setenv("NIBBLE_CPU", nib_cpu_tier_name(tier), 1);
        struct test_device cpu = test_device_open(nib_cpu_ops(), 1, 4, &query);
        const char *reason = NULL;
        struct nib_weight bf16 = weight_of(NIB_BF16, 2, 2), f32 = weight_of(NIB_F32, 2, 2);
        const char *name = cpu.ops->linear_kernel(cpu.device, &bf16, &reason);
        const char *expected = tier == NIB_CPU_AVX2         ? "linear_wide_avx2"
                               : tier <= NIB_CPU_AVX512VNNI ? "linear_wide_avx512"
                                                            : "linear_avx512bf16";
        assert_string_equal(name, expected);
        assert_non_null(reason);
        name = cpu.ops->linear_kernel(cpu.device, &f32, &reason);
        assert_string_equal(name, tier == NIB_CPU_AVX2 ? "linear_wide_avx2" : "linear_wide_avx512");
        test_device_close(&cpu);
    }
    unsetenv("NIBBLE_CPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_operations_agree_with_ref),
        cmocka_unit_test(rope_agrees_with_ref),
        cmocka_unit_test(routing_agrees_with_ref),
        cmocka_unit_test(not_a_number_still_routes_to_experts),
        cmocka_unit_test(scratch_is_what_is_allocated),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(kernels_are_named),
        cmocka_unit_test(moe_agrees_with_ref),
    };
    return cmocka_run_group_tests_name("cpu ops", tests, fill_values, NULL);
}
