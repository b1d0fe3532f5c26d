// Latent attention: queries taken into the latent space give what keys and values made from it give, on every device.
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

enum { HEADS = 5, NOPE = 24, ROPE = 8, VALUE = 20, LATENT = 40, TOKENS = 150, PAGE = 16 };
enum { QUERY = NOPE + ROPE, ROW = LATENT + ROPE, PAIR = NOPE + VALUE };

static const struct nib_scratch_query query = {.max_width = 256,
                                               .n_experts = 1,
                                               .top_k = 1,
                                               .hidden = 32,
                                               .intermediate = 32,
                                               .n_heads = HEADS,
                                               .head_dim = ROW};

static float *queries, *rows; /* [TOKENS, HEADS * QUERY], [TOKENS, ROW] */
static uint16_t kv_b_bits[HEADS * PAIR * LATENT];
static const struct nib_weight kv_b = {.data = kv_b_bits, .dtype = NIB_BF16, .rows = HEADS * PAIR, .cols = LATENT};

static int make_inputs(void **state)
{
    (void)state;
    queries = test_random_values((int64_t)TOKENS * HEADS * QUERY, 1, 0, 1);
    rows = test_random_values((int64_t)TOKENS * ROW, 2, 0, 2);
    uint64_t seed = 3;
    for (int i = 0; i < HEADS * PAIR * LATENT; i++)
        kv_b_bits[i] = nib_bf16_from_f32(0.3f * test_random(&seed));
    return 0;
}

static int free_inputs(void **state)
{
    (void)state;
    free(queries);
    free(rows);
    return 0;
}

static struct nib_attend attend_of(int64_t n_kv, int64_t head_dim, int64_t v_dim)
{
    return (struct nib_attend){.n_heads = HEADS,
                               .n_kv_heads = n_kv,
                               .head_dim = head_dim,
                               .v_dim = v_dim,
                               .scale = 0.3f,
                               .value_scale = 1};
}

static void absorbed(const struct test_device *d, const struct test_step *step, float *out)
{
    struct nib_buffer q = test_buffer(d, TOKENS, HEADS * QUERY, queries), row = test_buffer(d, TOKENS, ROW, rows),
                      latent_q = test_buffer(d, TOKENS, HEADS * ROW, NULL),
                      latent = test_buffer(d, TOKENS, HEADS * LATENT, NULL),
                      y = test_buffer(d, TOKENS, HEADS * VALUE, NULL);
    struct nib_cache cache;
    const struct nib_attend attend = attend_of(1, ROW, LATENT);
    const struct nib_head_product in = {.weight = &kv_b,
                                        .n_heads = HEADS,
                                        .row_pitch = PAIR,
                                        .rows = NOPE,
                                        .transposed = true,
                                        .x_pitch = QUERY,
                                        .y_pitch = ROW,
                                        .tail = ROPE},
                                  back = {.weight = &kv_b,
                                          .n_heads = HEADS,
                                          .row_pitch = PAIR,
                                          .first_row = NOPE,
                                          .rows = VALUE,
                                          .x_pitch = LATENT,
                                          .y_pitch = VALUE};
    assert_int_equal(d->ops->alloc_cache(d->device, step->pages, PAGE, ROW, 0, &cache, NULL), NIB_OK);
    d->ops->begin(d->device, &step->step);
    d->ops->append(d->device, cache, row);
    d->ops->linear_heads(d->device, latent_q, q, &in);
    d->ops->attend(d->device, latent, latent_q, cache, cache, &attend);
    d->ops->linear_heads(d->device, y, latent, &back);
    d->ops->read(d->device, TOKENS, y, out);
    assert_int_equal(d->ops->end(d->device, NULL), NIB_OK);
    struct nib_buffer *buffers[] = {&q, &row, &latent_q, &latent, &y};
    for (int i = 0; i < 5; i++)
        d->ops->free_buffer(d->device, buffers[i]);
    d->ops->free_cache(d->device, &cache);
}

// Keys [nope | rope] and values of every head from one token's row.
static void expand(const float *row, float *keys /* [HEADS * QUERY] */, float *values /* [HEADS * VALUE] */)
{
    for (int h = 0; h < HEADS; h++) {
        for (int r = 0; r < PAIR; r++) {
            float sum = 0;
            for (int c = 0; c < LATENT; c++)
                sum += nib_bf16_to_f32(kv_b_bits[(h * PAIR + r) * LATENT + c]) * row[c];
            *(r < NOPE ? &keys[h * QUERY + r] : &values[h * VALUE + r - NOPE]) = sum;
        }
        memcpy(keys + h * QUERY + NOPE, row + LATENT, ROPE * sizeof *keys);
    }
}

static void expanded(const struct test_device *d, const struct test_step *step, float *out)
{
    float *keys = calloc((size_t)TOKENS * HEADS * QUERY, sizeof *keys),
          *values = calloc((size_t)TOKENS * HEADS * VALUE, sizeof *values);
    for (int t = 0; t < TOKENS; t++)
        expand(rows + t * ROW, keys + t * HEADS * QUERY, values + t * HEADS * VALUE);
    struct nib_buffer q = test_buffer(d, TOKENS, HEADS * QUERY, queries),
                      k = test_buffer(d, TOKENS, HEADS * QUERY, keys),
                      v = test_buffer(d, TOKENS, HEADS * VALUE, values),
                      y = test_buffer(d, TOKENS, HEADS * VALUE, NULL);
    struct nib_cache key_cache, value_cache;
    const struct nib_attend attend = attend_of(HEADS, QUERY, VALUE);
    assert_int_equal(d->ops->alloc_cache(d->device, step->pages, PAGE, HEADS * QUERY, 0, &key_cache, NULL),
                     NIB_OK);
    assert_int_equal(d->ops->alloc_cache(d->device, step->pages, PAGE, HEADS * VALUE, 0, &value_cache, NULL),
                     NIB_OK);
    d->ops->begin(d->device, &step->step);
    d->ops->append(d->device, key_cache, k);
    d->ops->append(d->device, value_cache, v);
    d->ops->attend(d->device, y, q, key_cache, value_cache, &attend);
    d->ops->read(d->device, TOKENS, y, out);
    assert_int_equal(d->ops->end(d->device, NULL), NIB_OK);
    struct nib_buffer *buffers[] = {&q, &k, &v, &y};
    for (int i = 0; i < 4; i++)
        d->ops->free_buffer(d->device, buffers[i]);
    d->ops->free_cache(d->device, &key_cache);
    d->ops->free_cache(d->device, &value_cache);
    free(keys);
    free(values);
}

static void absorbed_is_expanded(void **state)
{
    (void)state;
    static float one[TOKENS * HEADS * VALUE], other[TOKENS * HEADS * VALUE], cpu[TOKENS * HEADS * VALUE];
    const int32_t first[] = {0, 0}, count[] = {TOKENS - 37, 37};
    struct test_step step = test_step_make(PAGE, 2, first, count);
    struct test_device ref = test_device_open(nib_ref_ops(), 2, TOKENS, &query);
    absorbed(&ref, &step, one);
    expanded(&ref, &step, other);
    test_device_close(&ref);
    for (int i = 0; i < TOKENS * HEADS * VALUE; i++)
        if (!(fabsf(one[i] - other[i]) <= 1e-4f))
            fail_msg("element %d: %g absorbed, %g expanded", i, (double)one[i], (double)other[i]);

    for (enum nib_cpu_tier tier = NIB_CPU_AVX2; tier < NIB_CPU_TIER_COUNT; tier++) {
        if (!nib_cpu_has(tier))
            continue;
        setenv("NIBBLE_CPU", nib_cpu_tier_name(tier), 1);
        struct test_device device = test_device_open(nib_cpu_ops(), 2, TOKENS, &query);
        absorbed(&device, &step, cpu);
        test_device_close(&device);
        double error = test_rel_l2(cpu, one, TOKENS * HEADS * VALUE);
        if (!(error <= 6e-3)) // the cache's bf16
            fail_msg("%s: rel_l2 %g", nib_cpu_tier_name(tier), error);
    }
    unsetenv("NIBBLE_CPU");
    test_step_free(&step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(absorbed_is_expanded)};
    return cmocka_run_group_tests_name("latent", tests, make_inputs, free_inputs);
}
