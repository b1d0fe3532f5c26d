// MoE plans and calls, whichever kernel computes them.
#include "ops/moe_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ops/moe_check.h"

nib_status nib_moe_plan_make(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                             const struct nib_moe_kernel *kernel, const char *why, struct nib_moe_plan **plan,
                             struct nib_error *err)
{
    *plan = NULL;
    nib_status status = nib_moe_check_weights(weights, err);
    if (status == NIB_OK)
        status = nib_moe_check_activation(&config->activation, err);
    if (status != NIB_OK)
        return status;
    size_t expert_bytes = (size_t)weights->n_experts * sizeof(struct nib_expert);
    struct nib_moe_plan *made = calloc(1, sizeof *made + expert_bytes);
    if (!made)
        return nib_fail_memory(err, sizeof *made + expert_bytes, "a MoE plan");
    memcpy(made->experts, weights->experts, expert_bytes);
    made->weights = *weights;
    made->weights.experts = made->experts;
    made->activation = config->activation;
    made->first_expert = config->first_expert;
    made->kernel = kernel;
    snprintf(made->reason, sizeof made->reason, "%s: %s", why, kernel->reason);
    *plan = made;
    return NIB_OK;
}

void nib_moe_plan_free(struct nib_moe_plan *plan)
{
    free(plan);
}

const char *nib_moe_plan_kernel(const struct nib_moe_plan *plan)
{
    return plan->kernel->name;
}

const char *nib_moe_plan_reason(const struct nib_moe_plan *plan)
{
    return plan->reason;
}

size_t nib_moe_scratch_bytes(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads)
{
    return plan->kernel->scratch_bytes(plan, tokens, top_k, threads);
}

static nib_status check_call(const struct nib_moe_plan *plan, const struct nib_moe_call *call,
                             struct nib_error *err)
{
    if (call->tokens < 0 || call->top_k < 1 || call->tokens > INT32_MAX / call->top_k)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: %lld tokens with top_k %lld", (long long)call->tokens,
                        (long long)call->top_k);
    if (call->threads < 1)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: %d threads", call->threads);
    if (call->x_dtype != NIB_BF16 && !(call->x_dtype == NIB_F32 && plan->kernel->takes_f32))
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: x of type %s with kernel %s", nib_dtype_name(call->x_dtype),
                        plan->kernel->name);
    if (call->y_dtype != NIB_F32 && call->y_dtype != NIB_BF16)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: y of type %s", nib_dtype_name(call->y_dtype));
    if (!call->y && !call->y_per_route)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: neither y nor y_per_route is wanted");
    if (call->tokens > 0 && (!call->x || !call->expert_ids || (call->y && !call->routing_weights)))
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: x, expert_ids or routing_weights is missing");
    size_t needed = nib_moe_scratch_bytes(plan, call->tokens, call->top_k, call->threads);
    if (!call->scratch || call->scratch_bytes < needed || (uintptr_t)call->scratch % 64)
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "moe: scratch of %zu bytes at %p; %zu bytes, 64-byte aligned, are needed",
                        call->scratch_bytes, call->scratch, needed);
    return NIB_OK;
}

nib_status nib_moe_run(const struct nib_moe_plan *plan, const struct nib_moe_call *call, struct nib_error *err)
{
    nib_status status = check_call(plan, call, err);
    if (status == NIB_OK && call->tokens > 0)
        plan->kernel->run(plan, call);
    return status;
}
