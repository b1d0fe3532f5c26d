// The MoE layer call: plans, checks, and the choice of the kernel.
#include "nibble/moe.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "cpu/moe_plan.h"
#include "ops/moe_check.h"
#include "ops/moe_ref.h"

// Best first.
static const struct nib_moe_kernel *const kernels[] = {&nib_moe_amx, &nib_moe_avx512bf16, &nib_moe_avx512,
                                                       &nib_moe_avx2};
#define N_KERNELS (sizeof kernels / sizeof *kernels)

// The kernel of that name, or without a name the best one of the tier in use.
static nib_status pick_kernel(struct nib_moe_plan *plan, const char *name, bool exact, struct nib_error *err)
{
    enum nib_cpu_tier tier;
    if (!name) {
        nib_status status = nib_cpu_pick_tier(&tier, err);
        if (status != NIB_OK)
            return status;
    }
    for (size_t i = 0; i < N_KERNELS; i++) {
        const struct nib_moe_kernel *kernel = kernels[i];
        if (name ? strcmp(name, kernel->name) != 0 : kernel->tier > tier || (exact && !kernel->arrange_f32))
            continue;
        if (exact && !kernel->arrange_f32)
            return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: kernel %s rounds activations to bf16", name);
        if (!nib_cpu_has(kernel->tier))
            return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: kernel %s cannot run on this CPU", name);
        plan->kernel = kernel;
        const char *why = name    ? "asked for by name"
                          : exact ? "the best with fp32 activations"
                                  : "the best for this CPU";
        snprintf(plan->reason, sizeof plan->reason, "%s: %s", why, kernel->reason);
        return NIB_OK;
    }
    if (name && strcmp(name, "ref") != 0)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: there is no kernel %s", name);
    snprintf(plan->reason, sizeof plan->reason, "%s: plain fp32, slow",
             name ? "asked for by name" : "no faster kernel runs on this CPU, or NIBBLE_CPU=ref");
    return NIB_OK;
}

nib_status nib_moe_plan_create(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                               struct nib_moe_plan **plan, struct nib_error *err)
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
    status = pick_kernel(made, config->kernel, config->exact, err);
    if (status != NIB_OK) {
        free(made);
        return status;
    }
    *plan = made;
    return NIB_OK;
}

void nib_moe_plan_free(struct nib_moe_plan *plan)
{
    free(plan);
}

const char *nib_moe_plan_kernel(const struct nib_moe_plan *plan)
{
    return plan->kernel ? plan->kernel->name : "ref";
}

const char *nib_moe_plan_reason(const struct nib_moe_plan *plan)
{
    return plan->reason;
}

size_t nib_moe_scratch_bytes(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads)
{
    return plan->kernel ? nib_moe_packed_scratch_bytes(plan, tokens, top_k)
                        : nib_moe_ref_scratch_bytes(&plan->weights, tokens, top_k, threads);
}

size_t nib_moe_scratch_bound(int64_t hidden, int64_t intermediate, int64_t n_experts, int64_t tokens,
                             int64_t top_k, int threads)
{
    struct nib_moe_plan shape = {
        .weights = {.hidden = hidden, .intermediate = intermediate, .n_experts = n_experts}};
    size_t most = nib_moe_scratch_bytes(&shape, tokens, top_k, threads);
    for (size_t i = 0; i < N_KERNELS; i++) {
        shape.kernel = kernels[i];
        size_t bytes = nib_moe_scratch_bytes(&shape, tokens, top_k, threads);
        if (nib_cpu_has(kernels[i]->tier) && bytes > most)
            most = bytes;
    }
    return most;
}

static nib_status check_call(const struct nib_moe_plan *plan, const struct nib_moe_call *call,
                             struct nib_error *err)
{
    if (call->tokens < 0 || call->top_k < 1 || call->tokens > INT32_MAX / call->top_k)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: %lld tokens with top_k %lld", (long long)call->tokens,
                        (long long)call->top_k);
    if (call->threads < 1)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: %d threads", call->threads);
    bool takes_f32 = !plan->kernel || plan->kernel->arrange_f32;
    if (call->x_dtype != NIB_BF16 && !(call->x_dtype == NIB_F32 && takes_f32))
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: x of type %s with kernel %s", nib_dtype_name(call->x_dtype),
                        nib_moe_plan_kernel(plan));
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
    if (status != NIB_OK || call->tokens == 0)
        return status;
    if (plan->kernel)
        nib_moe_packed_run(plan, call);
    else
        nib_moe_ref_run(&plan->weights, &plan->activation, plan->first_expert, call);
    return NIB_OK;
}
