#include "ops/moe_check.h"

#include <math.h>

#include "base/checked.h"
#include "base/error.h"

nib_status nib_moe_check_weights(const struct nib_moe_weights *w, struct nib_error *err)
{
    int64_t rows, elements;
    if (w->hidden <= 0 || w->hidden % NIB_MX_BLOCK || w->intermediate <= 0 || w->intermediate % NIB_MX_BLOCK)
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "moe: hidden %lld and intermediate %lld must be positive multiples of %d",
                        (long long)w->hidden, (long long)w->intermediate, NIB_MX_BLOCK);
    if (w->n_experts < 1 || w->n_experts > INT32_MAX / 4 || !w->experts)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: %lld experts", (long long)w->n_experts);
    if (w->gate_up_row_stride < 1)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe: gate_up_row_stride %lld", (long long)w->gate_up_row_stride);
    if (!nib_mul_i64(w->intermediate, w->gate_up_row_stride, &rows) || !nib_mul_i64(rows, w->hidden, &elements))
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "moe: %lld x %lld weights with stride %lld are more than can be addressed",
                        (long long)w->intermediate, (long long)w->hidden, (long long)w->gate_up_row_stride);
    bool biased = w->experts[0].gate_bias != NULL;
    if (biased && !nib_dtype_is_plain(w->bias_dtype))
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: biases of type %s", nib_dtype_name(w->bias_dtype));
    for (int64_t i = 0; i < w->n_experts; i++) {
        const struct nib_expert *e = &w->experts[i];
        if (!e->gate || !e->up || !e->down || !e->gate_scales || !e->up_scales || !e->down_scales)
            return nib_fail(err, NIB_ERR_ARGUMENT, "moe: expert %lld lacks weights or scales", (long long)i);
        if (!e->gate_bias == biased || !e->up_bias == biased || !e->down_bias == biased)
            return nib_fail(err, NIB_ERR_ARGUMENT, "moe: expert %lld has some biases and lacks others",
                            (long long)i);
    }
    return NIB_OK;
}

nib_status nib_moe_check_activation(const struct nib_activation *a, struct nib_error *err)
{
    switch (a->kind) {
    case NIB_ACT_SILU:
        return NIB_OK;
    case NIB_ACT_SWIGLU_OAI:
        if (!isfinite(a->alpha))
            return nib_fail(err, NIB_ERR_ARGUMENT, "moe: activation alpha %g", (double)a->alpha);
        __attribute__((fallthrough)); // it has a limit too
    case NIB_ACT_SILU_CLAMP:
        if (!(a->limit > 0))
            return nib_fail(err, NIB_ERR_ARGUMENT, "moe: activation limit %g", (double)a->limit);
        return NIB_OK;
    case NIB_ACT_SITU:
        if (!(a->beta > 0) || !(a->linear_beta > 0))
            return nib_fail(err, NIB_ERR_ARGUMENT, "moe: activation beta %g, linear_beta %g", (double)a->beta,
                            (double)a->linear_beta);
        return NIB_OK;
    }
    return nib_fail(err, NIB_ERR_ARGUMENT, "moe: activation %d is unknown", (int)a->kind);
}
