#include "cli/moe_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/map.h"

const struct moe_variant moe_variants[MOE_VARIANTS] = {
    {"gptoss", 32, 2880, 2880, 4, {NIB_ACT_SWIGLU_OAI, 1.702f, 7, 0, 0}, true, true, false},
    {"glm", 64, 6144, 1024, 8, {NIB_ACT_SILU, 0, 0, 0, 0}, false, false, false},
    {"dsv41", 48, 5120, 2304, 6, {NIB_ACT_SILU_CLAMP, 0, 10, 0, 0}, true, false, false},
    {"muse", 32, 4096, 1024, 8, {NIB_ACT_SILU, 0, 0, 0, 0}, false, false, true},
    {"kimi", 48, 7168, 2048, 8, {NIB_ACT_SILU, 0, 0, 0, 0}, false, false, false},
    {"mimo", 32, 4096, 2048, 8, {NIB_ACT_SILU, 0, 0, 0, 0}, false, false, false},
    {"mimo-pro", 32, 6144, 2048, 8, {NIB_ACT_SILU, 0, 0, 0, 0}, false, false, false},
    {"minimax-m3", 32, 6144, 3072, 4, {NIB_ACT_SWIGLU_OAI, 1.702f, 7, 0, 0}, false, false, false},
    {"kimi-k3", 32, 3584, 3072, 8, {NIB_ACT_SITU, 0, 0, 4, 25}, false, false, false},
};

const struct moe_variant *moe_variant_find(const char *name)
{
    for (int i = 0; i < MOE_VARIANTS; i++)
        if (strcmp(name, moe_variants[i].name) == 0)
            return &moe_variants[i];
    return NULL;
}

uint64_t moe_random(uint64_t *state)
{
    uint64_t x = *state ? *state : 0x9e3779b97f4a7c15u;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

static void fill_random(uint64_t *state, uint8_t *data, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t word = moe_random(state);
        memcpy(data, &word, 8);
    }
    uint64_t word = moe_random(state);
    memcpy(data, &word, bytes);
}

// Values have a variance of about 9 (half the codes to 6); 2^(scale-127) of n of them should come out near 1.
static void fill_scales(uint64_t *state, uint8_t *scales, size_t n, int64_t columns)
{
    int middle = 127 - (int)lrint(log2(3.0 * sqrt((double)columns)));
    fill_random(state, scales, n);
    for (size_t i = 0; i < n; i++)
        scales[i] = (uint8_t)(middle - 2 + scales[i] % 5);
}

static void fill_normal(uint64_t *state, float rms, int64_t n, uint16_t *values)
{
    for (int64_t i = 0; i < n; i++) {
        int sum = 0; // of 12 16-bit halves: nearly normal, variance 12 * 65536^2 / 12
        for (int k = 0; k < 3; k++) {
            uint64_t word = moe_random(state);
            for (int h = 0; h < 4; h++)
                sum += (int)(word >> (16 * h) & 0xffff);
        }
        values[i] = nib_bf16_from_f32(rms * ((float)sum - 6 * 65535.0f) / 65536.0f);
    }
}

void moe_random_x(uint64_t *state, float rms, int64_t n, uint16_t *x)
{
    fill_normal(state, rms, n, x);
}

nib_status moe_layer_create(const struct moe_variant *variant, int64_t experts, uint64_t seed,
                            struct moe_layer *layer, struct nib_error *err)
{
    int64_t hidden = variant->hidden, intermediate = variant->intermediate;
    size_t w13 = (size_t)(2 * intermediate * hidden / 2), s13 = w13 / 16;
    size_t w2 = w13 / 2, s2 = w2 / 16;
    size_t biases = variant->biased ? 2 * (size_t)(2 * intermediate + hidden) : 0;
    *layer = (struct moe_layer){.bytes = (size_t)experts * (w13 + s13 + w2 + s2 + biases)};
    layer->experts = calloc((size_t)experts, sizeof *layer->experts);
    layer->memory = nib_map_pages(layer->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!layer->experts || layer->memory == MAP_FAILED) {
        layer->memory = NULL;
        moe_layer_free(layer);
        return nib_fail_memory(err, layer->bytes, "a random MoE layer");
    }
    uint64_t state = seed * 2654435761u + 1;
    uint8_t *p13 = layer->memory, *q13 = p13 + (size_t)experts * w13, *p2 = q13 + (size_t)experts * s13,
            *q2 = p2 + (size_t)experts * w2, *b = q2 + (size_t)experts * s2;
    fill_random(&state, p13, (size_t)experts * w13);
    fill_scales(&state, q13, (size_t)experts * s13, hidden);
    fill_random(&state, p2, (size_t)experts * w2);
    fill_scales(&state, q2, (size_t)experts * s2, intermediate);
    if (variant->biased)
        fill_normal(&state, 0.5f, experts * (2 * intermediate + hidden), (uint16_t *)(void *)b);

    size_t up_row = variant->interleaved ? 1 : (size_t)intermediate;
    for (int64_t i = 0; i < experts; i++) {
        struct nib_expert *e = &layer->experts[i];
        e->gate = p13 + (size_t)i * w13;
        e->up = e->gate + up_row * (size_t)(hidden / 2);
        e->gate_scales = q13 + (size_t)i * s13;
        e->up_scales = e->gate_scales + up_row * (size_t)(hidden / NIB_MX_BLOCK);
        e->down = p2 + (size_t)i * w2;
        e->down_scales = q2 + (size_t)i * s2;
        if (variant->biased) {
            const uint8_t *own = b + (size_t)i * biases;
            e->gate_bias = own;
            e->up_bias = own + 2 * up_row;
            e->down_bias = own + 4 * (size_t)intermediate;
        }
    }
    layer->weights = (struct nib_moe_weights){.hidden = hidden,
                                              .intermediate = intermediate,
                                              .n_experts = experts,
                                              .gate_up_row_stride = variant->interleaved ? 2 : 1,
                                              .bias_dtype = NIB_BF16,
                                              .experts = layer->experts};
    return NIB_OK;
}

void moe_layer_free(struct moe_layer *layer)
{
    if (layer->memory)
        munmap(layer->memory, layer->bytes);
    free(layer->experts);
    *layer = (struct moe_layer){0};
}

double moe_expert_bytes(const struct nib_moe_weights *weights)
{
    return 3.0 * (double)weights->hidden * (double)weights->intermediate * 17 / 32;
}

void moe_random_routes(uint64_t *state, int64_t tokens, int64_t top_k, int64_t n_experts, bool all_on_one,
                       int32_t *expert_ids, float *weights)
{
    for (int64_t t = 0; t < tokens; t++) {
        int32_t *ids = expert_ids + t * top_k;
        for (int64_t j = 0; j < top_k; j++) {
            if (all_on_one && t > 0) {
                ids[j] = expert_ids[j];
                continue;
            }
            int64_t known;
            do {
                ids[j] = (int32_t)(moe_random(state) % (uint64_t)n_experts);
                for (known = 0; known < j && ids[known] != ids[j]; known++)
                    ;
            } while (known < j);
        }
        float sum = 0;
        for (int64_t j = 0; j < top_k; j++)
            sum += weights[t * top_k + j] = (float)(1 + moe_random(state) % 1000);
        for (int64_t j = 0; j < top_k; j++)
            weights[t * top_k + j] /= sum;
    }
}
