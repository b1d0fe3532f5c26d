// A MoE call whose routes the next kernel adds up: it then ends without a barrier of the grid, and the blocks of the next
// kernel begin where its own have ended.
#ifndef NIB_CUDA_MOE_OUTPUTS_H
#define NIB_CUDA_MOE_OUTPUTS_H

#include "nibble/moe_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_MOE_OPEN_TOKENS 64 // of such a call at most

// Room for the routes' outputs in a call's scratch, for its y_per_route: they stay until the next call.
float *nib_moe_cuda_own_outputs(const struct nib_moe_cuda_plan *plan, const struct nib_moe_call *call);

#ifdef __cplusplus
}
#endif
#endif
