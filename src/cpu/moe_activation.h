// The elementwise function between the two products, eight elements at a time, which every tier can do.
#ifndef NIB_CPU_MOE_ACTIVATION_H
#define NIB_CPU_MOE_ACTIVATION_H

#include <immintrin.h>

#include "nibble/moe.h"

// NaN passes through both, as it must: it is the second operand.
static inline __m256 moe_at_most(__m256 x, float limit)
{
    return _mm256_min_ps(_mm256_set1_ps(limit), x);
}

static inline __m256 moe_clamp(__m256 x, float limit)
{
    return _mm256_max_ps(_mm256_set1_ps(-limit), moe_at_most(x, limit));
}

// e^x to about 2 ulp for |x| <= 87, clamped beyond: 2^n * p(r), x = n ln 2 + r, with the first terms of the series of
// e^r for |r| <= ln 2 / 2. NaN comes out as NaN.
static inline __m256 moe_exp(__m256 x)
{
    static const float terms[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    const __m256 shift = _mm256_set1_ps(12582912.0f); // 1.5 * 2^23: the integer part lands in the low bits
    __m256 clamped = moe_clamp(x, 87.0f);
    __m256 shifted = _mm256_fmadd_ps(clamped, _mm256_set1_ps(1.44269504f), shift);
    __m256 n = _mm256_sub_ps(shifted, shift);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), clamped);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(terms[i]));
    __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    power = _mm256_add_epi32(power, _mm256_castps_si256(_mm256_set1_ps(1.0f)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

static inline __m256 moe_sigmoid(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(one, _mm256_add_ps(one, moe_exp(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

static inline __m256 moe_tanh(__m256 x)
{
    return _mm256_fmsub_ps(_mm256_set1_ps(2.0f), moe_sigmoid(_mm256_add_ps(x, x)), _mm256_set1_ps(1.0f));
}

// beta * tanh(x / beta)
static inline __m256 moe_soft_limit(__m256 x, float beta)
{
    __m256 b = _mm256_set1_ps(beta);
    return _mm256_mul_ps(b, moe_tanh(_mm256_div_ps(x, b)));
}

static inline __m256 moe_activate_8(const struct nib_activation *a, const float *gate_up /* [2, 8] */)
{
    __m256 gate = _mm256_loadu_ps(gate_up), up = _mm256_loadu_ps(gate_up + 8);
    switch (a->kind) {
    case NIB_ACT_SILU:
        break;
    case NIB_ACT_SILU_CLAMP:
        gate = moe_at_most(gate, a->limit);
        up = moe_clamp(up, a->limit);
        break;
    case NIB_ACT_SWIGLU_OAI:
        gate = moe_at_most(gate, a->limit);
        up = _mm256_add_ps(moe_clamp(up, a->limit), _mm256_set1_ps(1.0f));
        return _mm256_mul_ps(_mm256_mul_ps(gate, moe_sigmoid(_mm256_mul_ps(_mm256_set1_ps(a->alpha), gate))), up);
    case NIB_ACT_SITU:
        return _mm256_mul_ps(_mm256_mul_ps(moe_soft_limit(gate, a->beta), moe_sigmoid(gate)),
                             moe_soft_limit(up, a->linear_beta));
    }
    return _mm256_mul_ps(_mm256_mul_ps(gate, moe_sigmoid(gate)), up);
}

#endif
