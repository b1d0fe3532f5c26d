// act(gate, up) on the device, see enum nib_activation_kind.
#ifndef NIB_CUDA_MOE_ACTIVATION_CUH
#define NIB_CUDA_MOE_ACTIVATION_CUH

#include "nibble/moe.h"

__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}

__device__ __forceinline__ float activate(const nib_activation &a, float gate, float up)
{
    // Comparisons, not fminf: a NaN must come through.
    float g = gate > a.limit ? a.limit : gate;
    float u = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
    switch (a.kind) {
    case NIB_ACT_SILU:
        return gate * sigmoid(gate) * up;
    case NIB_ACT_SILU_CLAMP:
        return g * sigmoid(g) * u;
    case NIB_ACT_SWIGLU_OAI:
        return g * sigmoid(a.alpha * g) * (u + 1.0f);
    default: // NIB_ACT_SITU
        return a.beta * tanhf(gate / a.beta) * sigmoid(gate) * a.linear_beta * tanhf(up / a.linear_beta);
    }
}

#endif
