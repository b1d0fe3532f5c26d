// The MoE layer call of nibble/moe.h on an NVIDIA Hopper GPU: the same structs with device pointers, and a stream.
//
// A library built without CUDA has these functions too; they fail with NIB_ERR_UNSUPPORTED. Sums are in fp32, the
// intermediate is rounded once, to bf16; a route's result depends on nothing but its token, its expert and whether the
// call has more than 64 tokens: those take another path, whose sums have another order.
//
// Up to 64 tokens, activations are scaled into fp16's range, up to 640 columns of a row together: one that is less than
// 2^-31 of the largest among them may lose bits, one of less than 2^-39 counts as zero.
#ifndef NIBBLE_MOE_CUDA_H
#define NIBBLE_MOE_CUDA_H

#include "nibble/moe.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Immutable once made, and bound to the device that was current then. Any number of host threads and streams may run
// calls on it, each call in flight with its own scratch.
struct nib_moe_cuda_plan;

// As nib_moe_plan_create, for weights in device memory: packed rows and scales as served, 16-byte aligned where a row
// starts an expert's matrix. The host array weights->experts is copied; the rows are not. Reads all scales once and
// waits for that. NIB_ERR_UNSUPPORTED when this is not a Hopper GPU or the shape is outside the kernels' limits:
// hidden and intermediate at most 7680, at most 1024 experts, top_k at most 16.
nib_status nib_moe_cuda_plan_create(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                                    struct nib_moe_cuda_plan **plan, struct nib_error *err);
void nib_moe_cuda_plan_free(struct nib_moe_cuda_plan *plan);

// The kernel and a sentence that says why, both living as long as the plan.
const char *nib_moe_cuda_plan_kernel(const struct nib_moe_cuda_plan *plan);
const char *nib_moe_cuda_plan_reason(const struct nib_moe_cuda_plan *plan);

// Bytes of device memory a call needs, 256-byte aligned. The caller sets them to zero once before the first call;
// every call leaves them ready for the next of at most as many tokens on the same plan.
size_t nib_moe_cuda_scratch_bytes(const struct nib_moe_cuda_plan *plan, int64_t tokens, int64_t top_k);

// Up to 64 tokens take one launch; more take five for each 16384 routes. (Layers with an intermediate size under 512 or
// with scales outside 2^-115 to 2^17 have only the first path: 64 tokens a launch, correct and far from a GEMM's speed.)
// Enqueues the layer on `stream` (a cudaStream_t): no allocation, no wait, no look at device memory from the host, so
// the call may be captured in a graph and replayed with other routes. Pointers of `call` are device pointers, x and y
// 16-byte aligned; call->threads is ignored. `launches`, unless NULL, gets the number of kernels enqueued.
nib_status nib_moe_cuda_run(const struct nib_moe_cuda_plan *plan, const struct nib_moe_call *call, void *stream,
                            int *launches, struct nib_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
