// The elementwise function between the two products, written once for every tier: each includes it, and the compiler
// turns the loops of 8 into that tier's vectors.
#ifndef NIB_CPU_MOE_ACTIVATION_H
#define NIB_CPU_MOE_ACTIVATION_H

#include <stdint.h>
#include <string.h>

#include "nibble/moe.h"

// e^x to about 2 ulp for |x| <= 87, clamped beyond: 2^n * p(r), x = n ln 2 + r, with the first terms of the series of
// e^r for |r| <= ln 2 / 2. NaN comes out as NaN.
static inline float moe_exp(float x)
{
    float clamped = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    float shifted = clamped * 1.44269504f + 12582912.0f; // 1.5 * 2^23: the integer part lands in the low bits
    float n = shifted - 12582912.0f;
    float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static inline float moe_sigmoid(float x)
{
    return 1.0f / (1.0f + moe_exp(-x));
}

static inline float moe_tanh(float x)
{
    return 2.0f * moe_sigmoid(2.0f * x) - 1.0f;
}

// NaN passes through both, as it must.
static inline float moe_at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

static inline float moe_clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static inline void moe_activate_8(const struct nib_activation *a, const float *gate_up /* [2, 8] */,
                                  float *value /* [8] */)
{
    const float *gate = gate_up, *up = gate_up + 8;
    switch (a->kind) {
    case NIB_ACT_SILU:
        for (int i = 0; i < 8; i++)
            value[i] = gate[i] * moe_sigmoid(gate[i]) * up[i];
        break;
    case NIB_ACT_SILU_CLAMP:
        for (int i = 0; i < 8; i++) {
            float g = moe_at_most(gate[i], a->limit);
            value[i] = g * moe_sigmoid(g) * moe_clamp(up[i], a->limit);
        }
        break;
    case NIB_ACT_SWIGLU_OAI:
        for (int i = 0; i < 8; i++) {
            float g = moe_at_most(gate[i], a->limit);
            value[i] = g * moe_sigmoid(a->alpha * g) * (moe_clamp(up[i], a->limit) + 1.0f);
        }
        break;
    case NIB_ACT_SITU:
        for (int i = 0; i < 8; i++)
            value[i] = a->beta * moe_tanh(gate[i] / a->beta) * moe_sigmoid(gate[i]) * a->linear_beta *
                       moe_tanh(up[i] / a->linear_beta);
        break;
    }
}

#endif
