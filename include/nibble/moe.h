// One mixture-of-experts layer, straight from the packed MXFP4 weights of a checkpoint:
//
//     y[t] = sum over j of  w[t,j] * ( W2[e] * act( W13[e] * x[t] + b13[e] ) + b2[e] ),   e = expert_ids[t,j]
//
// The weights are read where they lie (normally in a mapped file): no second copy is ever made. Sums are in fp32, bias
// and activation in fp32, and the intermediate is rounded at most once, to bf16. A route's result does not depend on
// the other tokens of the call, on the thread count, or on which other experts are present: the same inputs give the same
// bits. The routes of a token are added in ascending order of their experts (kernel "ref": in the order given). Kernels of
// different names differ in their last bits.
#ifndef NIBBLE_MOE_H
#define NIBBLE_MOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/mx.h"
#include "nibble/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// The elementwise function between the two products; g and u are the gate and up values with their biases.
enum nib_activation_kind {
    NIB_ACT_SILU,       // silu(g) * u
    NIB_ACT_SILU_CLAMP, // g = min(g, limit), u = clamp(u, -limit, limit); silu(g) * u
    NIB_ACT_SWIGLU_OAI, // g = min(g, limit), u = clamp(u, -limit, limit); g * sigmoid(alpha * g) * (u + 1)
    NIB_ACT_SITU,       // beta * tanh(g / beta) * sigmoid(g) * linear_beta * tanh(u / linear_beta)
};

struct nib_activation {
    enum nib_activation_kind kind;
    float alpha;       // swiglu_oai
    float limit;       // silu_clamp, swiglu_oai
    float beta;        // situ
    float linear_beta; // situ
};

// Where one expert's rows lie. Row r of the gate is at gate + r * stride * (K/2), its scales at
// gate_scales + r * stride * (K/32), its bias at element r * stride, with `stride` the layer's gate_up_row_stride; the
// same for up. Down rows are contiguous. Interleaved (stride 2, up = gate + one row), concatenated and separate tensors
// are all the same thing here. No alignment is assumed of any pointer.
struct nib_expert {
    const uint8_t *gate, *up;               /* I rows of K/2 bytes each */
    const uint8_t *gate_scales, *up_scales; /* I rows of K/32 bytes each */
    const uint8_t *down, *down_scales;      /* [K, I/2], [K, I/32] */
    const void *gate_bias, *up_bias;        /* I elements of bias_dtype, or NULL */
    const void *down_bias;                  /* [K] bias_dtype, or NULL */
};

// A layer's experts. The struct and the array it points to are copied by nib_moe_plan_create; the rows are not.
struct nib_moe_weights {
    int64_t hidden;             // K, a multiple of 32
    int64_t intermediate;       // I, a multiple of 32
    int64_t n_experts;          // E experts held here
    int64_t gate_up_row_stride; // in rows: 2 when gate and up rows alternate, else 1
    enum nib_dtype bias_dtype;  // NIB_F32, NIB_BF16, or NIB_F16; all experts have all three biases or none has any
    const struct nib_expert *experts; /* [E] */
};

struct nib_moe_config {
    struct nib_activation activation;
    int64_t
        first_expert; // expert_ids outside [first_expert, first_expert + E) belong to another rank and cost nothing
    bool exact; // only kernels whose activations are fp32: x may be fp32, and the intermediate is not rounded
    const char *kernel; // NULL: the best for this CPU (see NIBBLE_CPU); or a kernel's name, "ref" among them
};

struct nib_moe_plan; // immutable once made: any number of threads may run calls on it, each with its own scratch

// Checks the weights' shapes and the activation, picks the kernel. The rows must outlive the plan. `*plan` is freed with
// nib_moe_plan_free. NIB_ERR_ARGUMENT for impossible shapes, NIB_ERR_UNSUPPORTED when the named kernel cannot do them.
nib_status nib_moe_plan_create(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                               struct nib_moe_plan **plan, struct nib_error *err);
void nib_moe_plan_free(struct nib_moe_plan *plan);

// The kernel chosen ("avx512bf16", "avx2", …) and a sentence that says why, both living as long as the plan.
const char *nib_moe_plan_kernel(const struct nib_moe_plan *plan);
const char *nib_moe_plan_reason(const struct nib_moe_plan *plan);

struct nib_moe_call {
    int64_t tokens;               // T >= 0
    int64_t top_k;                // routes per token; the same expert may stand in several routes of a token
    int threads;                  // OpenMP threads to use, >= 1
    enum nib_dtype x_dtype;       // NIB_BF16; NIB_F32 too with fp32 kernels (ref, avx2, avx512)
    const void *x;                /* [T, K] */
    const int32_t *expert_ids;    /* [T, top_k] */
    const float *routing_weights; /* [T, top_k] */
    enum nib_dtype y_dtype;       // NIB_F32 or NIB_BF16
    void *y; /* [T, K], or NULL when only y_per_route is wanted; fully written, zero without local routes */
    float *y_per_route; /* [T, top_k, K] before the routing weight, or NULL; zero for foreign routes */
    void *scratch;      // at least nib_moe_scratch_bytes(plan, tokens, top_k, threads), 64-byte aligned
    size_t scratch_bytes;
};

size_t nib_moe_scratch_bytes(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads);

// Computes the layer. Allocates nothing. Two parallel regions at most. NIB_ERR_ARGUMENT with the offending field otherwise.
nib_status nib_moe_run(const struct nib_moe_plan *plan, const struct nib_moe_call *call, struct nib_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
