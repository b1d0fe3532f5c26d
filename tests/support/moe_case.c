#include "support/moe_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PAGE 4096u

const char *const moe_kernels[] = {"avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
const int n_moe_kernels = 5;

uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

struct guarded make_guarded(size_t bytes, bool at_start, uint8_t around)
{
    size_t inner = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    struct guarded g = {.map_bytes = inner + 2 * PAGE};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    memset(g.map + PAGE, around, inner);
    g.data = at_start ? g.map + PAGE : g.map + PAGE + inner - bytes;
    assert_int_equal(mprotect(g.map, PAGE, PROT_NONE), 0);
    assert_int_equal(mprotect(g.map + g.map_bytes - PAGE, PAGE, PROT_NONE), 0);
    return g;
}

void free_guarded(struct guarded *guarded)
{
    munmap(guarded->map, guarded->map_bytes);
}

static float normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)(next_random(state) & 0xffff) / 65536.0f;
    return sum - 6;
}

static uint8_t *add_buffer(struct moe_case *c, size_t bytes, bool at_start)
{
    c->guards = realloc(c->guards, (size_t)(c->n_guards + 1) * sizeof *c->guards);
    assert_non_null(c->guards);
    c->guards[c->n_guards] = make_guarded(bytes, at_start, c->shape.around);
    return c->guards[c->n_guards++].data;
}

static uint8_t *random_packed(struct moe_case *c, uint64_t *state, int64_t rows, int64_t columns, bool at_start)
{
    size_t bytes = (size_t)(rows * columns / 2);
    uint8_t *data = add_buffer(c, bytes, at_start);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)next_random(state);
    return data;
}

static uint8_t *random_scales(struct moe_case *c, uint64_t *state, int64_t rows, int64_t columns, bool at_start)
{
    size_t bytes = (size_t)(rows * columns / 32);
    uint8_t *data = add_buffer(c, bytes, at_start);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(118 + next_random(state) % 6);
    return data;
}

// Cut off, not rounded; values near one only.
static uint16_t f16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int32_t exponent = (int32_t)(bits >> 23 & 255) - 112;
    uint32_t sign = bits >> 16 & 0x8000;
    return (uint16_t)(exponent <= 0 ? sign : sign | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

static enum nib_dtype bias_dtype(enum moe_bias bias)
{
    return bias == MOE_BIAS_F32 ? NIB_F32 : bias == MOE_BIAS_F16 ? NIB_F16 : NIB_BF16;
}

static void *random_bias(struct moe_case *c, uint64_t *state, int64_t n, bool at_start)
{
    bool wide = c->shape.bias == MOE_BIAS_F32;
    void *data = add_buffer(c, (size_t)n * (wide ? 4 : 2), at_start);
    for (int64_t i = 0; i < n; i++) {
        float value = normal(state);
        uint16_t half = c->shape.bias == MOE_BIAS_F16 ? f16_from_f32(value) : nib_bf16_from_f32(value);
        memcpy((uint8_t *)data + i * (wide ? 4 : 2), wide ? (void *)&value : (void *)&half, wide ? 4 : 2);
    }
    return data;
}

static void make_expert(struct moe_case *c, uint64_t *state, struct nib_expert *e, bool at_start)
{
    const struct moe_shape *s = &c->shape;
    int64_t k = s->hidden, i = s->intermediate, bias_bytes = s->bias == MOE_BIAS_F32 ? 4 : 2;
    if (s->layout == MOE_SEPARATE) {
        e->gate = random_packed(c, state, i, k, at_start);
        e->up = random_packed(c, state, i, k, at_start);
        e->gate_scales = random_scales(c, state, i, k, at_start);
        e->up_scales = random_scales(c, state, i, k, at_start);
    } else {
        int64_t up_row = s->layout == MOE_INTERLEAVED ? 1 : i;
        e->gate = random_packed(c, state, 2 * i, k, at_start);
        e->up = e->gate + up_row * (k / 2);
        e->gate_scales = random_scales(c, state, 2 * i, k, at_start);
        e->up_scales = e->gate_scales + up_row * (k / 32);
    }
    e->down = random_packed(c, state, k, i, at_start);
    e->down_scales = random_scales(c, state, k, i, at_start);
    if (s->bias == MOE_NO_BIAS)
        return;
    int64_t up_row = s->layout == MOE_INTERLEAVED ? 1 : i;
    e->gate_bias = random_bias(c, state, 2 * i, at_start);
    e->up_bias = (const uint8_t *)e->gate_bias + up_row * bias_bytes;
    e->down_bias = random_bias(c, state, k, at_start);
}

struct moe_case make_moe_case(const struct moe_shape *shape, uint64_t seed, bool at_start)
{
    struct moe_case c = {.shape = *shape};
    uint64_t state = seed;
    c.experts = calloc((size_t)shape->experts, sizeof *c.experts);
    assert_non_null(c.experts);
    for (int64_t e = 0; e < shape->experts; e++)
        make_expert(&c, &state, &c.experts[e], at_start);
    c.weights = (struct nib_moe_weights){.hidden = shape->hidden,
                                         .intermediate = shape->intermediate,
                                         .n_experts = shape->experts,
                                         .gate_up_row_stride = shape->layout == MOE_INTERLEAVED ? 2 : 1,
                                         .bias_dtype = bias_dtype(shape->bias),
                                         .experts = c.experts};
    int64_t values = shape->tokens * shape->hidden, routes = shape->tokens * shape->top_k;
    c.x = (uint16_t *)(void *)add_buffer(&c, (size_t)values * sizeof *c.x, at_start);
    c.ids = (int32_t *)(void *)add_buffer(&c, (size_t)routes * sizeof *c.ids, at_start);
    c.routing = (float *)(void *)add_buffer(&c, (size_t)routes * sizeof *c.routing, at_start);
    for (int64_t i = 0; i < values; i++)
        c.x[i] = nib_bf16_from_f32(normal(&state));
    for (int64_t r = 0; r < routes; r++) {
        c.ids[r] =
            (int32_t)(next_random(&state) % (uint32_t)(shape->experts + 1)) - (next_random(&state) % 8 == 0);
        c.routing[r] = (float)(next_random(&state) % 1000) / 1000;
    }
    return c;
}

void free_moe_case(struct moe_case *c)
{
    for (int i = 0; i < c->n_guards; i++)
        free_guarded(&c->guards[i]);
    free(c->guards);
    free(c->experts);
}

bool run_moe_case(const struct moe_case *c, const char *kernel, int threads, int64_t first_expert,
                  struct moe_result *result)
{
    const struct moe_shape *s = &c->shape;
    struct nib_moe_config config = {.activation = s->activation, .first_expert = first_expert, .kernel = kernel};
    struct nib_moe_plan *plan;
    struct nib_error err;
    nib_status status = nib_moe_plan_create(&c->weights, &config, &plan, &err);
    if (status == NIB_ERR_UNSUPPORTED)
        return false;
    assert_int_equal(status, NIB_OK);
    assert_string_equal(nib_moe_plan_kernel(plan), kernel);

    size_t y_bytes = (size_t)(s->tokens * s->hidden) * sizeof(float);
    size_t route_bytes = y_bytes * (size_t)s->top_k;
    size_t scratch_bytes = (nib_moe_scratch_bytes(plan, s->tokens, s->top_k, threads) + 63) & ~(size_t)63;
    struct guarded y = make_guarded(y_bytes, false, 0xff), per_route = make_guarded(route_bytes, true, 0xff);
    struct guarded scratch = make_guarded(scratch_bytes, false, 0xff); // NaNs: nothing may be read unwritten
    struct nib_moe_call call = {.tokens = s->tokens,
                                .top_k = s->top_k,
                                .threads = threads,
                                .x_dtype = NIB_BF16,
                                .x = c->x,
                                .expert_ids = c->ids,
                                .routing_weights = c->routing,
                                .y_dtype = NIB_F32,
                                .y = y.data,
                                .y_per_route = (float *)(void *)per_route.data,
                                .scratch = scratch.data,
                                .scratch_bytes = scratch_bytes};
    status = nib_moe_run(plan, &call, &err);
    if (status != NIB_OK)
        fail_msg("%s: %s", kernel, err.message);
    result->y = malloc(y_bytes + 1);
    result->per_route = malloc(route_bytes + 1);
    assert_true(result->y && result->per_route);
    memcpy(result->y, y.data, y_bytes);
    memcpy(result->per_route, per_route.data, route_bytes);
    free_guarded(&y);
    free_guarded(&per_route);
    free_guarded(&scratch);
    nib_moe_plan_free(plan);
    return true;
}

void free_moe_result(struct moe_result *result)
{
    free(result->y);
    free(result->per_route);
}

double relative_error(const float *got, const float *want, int64_t n)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        error += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}
