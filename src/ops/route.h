// How a token's experts are chosen: the same plain arithmetic for every device that routes on the host.
#ifndef NIB_OPS_ROUTE_H
#define NIB_OPS_ROUTE_H

#include "ops/ops.h"

enum { NIB_ROUTE_GROUPS = 64 }; // at most

// The router's choice for one token. `logits` are replaced by the scores.
void nib_route_token(const struct nib_router *router, float *logits /* [n_experts] */, int32_t *ids /* [top_k] */,
                     float *weights /* [top_k] */);

#endif
