// act(gate, up) on the device, see enum nib_activation_kind.
#ifndef NIB_CUDA_MOE_ACTIVATION_CUH
#define NIB_CUDA_MOE_ACTIVATION_CUH

#include "nibble/moe.h"

// The quotient's few units in the last place are far below the rounding of h to bf16.
__device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// All kinds but SiTU are g * sigmoid(alpha * g) * (u + offset) of clamped gate and up.
__device__ __forceinline__ float activate(const nib_activation &a, float gate, float up)
{
    if (a.kind == NIB_ACT_SITU)
        return a.beta * tanhf(gate / a.beta) * sigmoid(gate) * a.linear_beta * tanhf(up / a.linear_beta);
    float limit = a.kind == NIB_ACT_SILU ? INFINITY : a.limit;
    float alpha = a.kind == NIB_ACT_SWIGLU_OAI ? a.alpha : 1.0f,
          offset = a.kind == NIB_ACT_SWIGLU_OAI ? 1.0f : 0.0f;
    // Comparisons, not fminf: a NaN must come through.
    float g = gate > limit ? limit : gate;
    float u = up > limit ? limit : up < -limit ? -limit : up;
    return g * sigmoid(alpha * g) * (u + offset);
}

#endif
