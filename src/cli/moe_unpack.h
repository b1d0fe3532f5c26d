// The unpack path, what stock stacks do: widen the packed weights of every expert that is touched to bf16 in memory, then
// multiply with an ordinary bf16 GEMM. It exists to be measured against; nothing else uses it.
#ifndef NIB_CLI_MOE_UNPACK_H
#define NIB_CLI_MOE_UNPACK_H

#include "nibble/moe.h"

struct moe_unpack;

// For layers of these shapes; `weights` may be freed afterwards.
nib_status moe_unpack_create(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                             int threads, int64_t max_tokens, struct moe_unpack **unpack, struct nib_error *err);
void moe_unpack_free(struct moe_unpack *unpack);

// Computes call->y, which must be fp32; y_per_route is not written.
void moe_unpack_run(struct moe_unpack *unpack, const struct nib_moe_weights *weights,
                    const struct nib_moe_call *call);

// The GEMM in use: "oneDNN" or "built-in".
const char *moe_unpack_gemm_name(void);

#endif
