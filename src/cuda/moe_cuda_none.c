// nibble/moe_cuda.h in a build without CUDA.
#include "nibble/moe_cuda.h"

#include "base/error.h"

static nib_status refuse(struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_UNSUPPORTED,
                    "moe on cuda: this build has no CUDA (configure with -DNIB_CUDA=ON)");
}

nib_status nib_moe_cuda_plan_create(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                                    struct nib_moe_cuda_plan **plan, struct nib_error *err)
{
    (void)weights, (void)config;
    *plan = NULL;
    return refuse(err);
}

void nib_moe_cuda_plan_free(struct nib_moe_cuda_plan *plan)
{
    (void)plan;
}

const char *nib_moe_cuda_plan_kernel(const struct nib_moe_cuda_plan *plan)
{
    (void)plan;
    return "none";
}

const char *nib_moe_cuda_plan_reason(const struct nib_moe_cuda_plan *plan)
{
    (void)plan;
    return "this build has no CUDA";
}

size_t nib_moe_cuda_scratch_bytes(const struct nib_moe_cuda_plan *plan, int64_t tokens, int64_t top_k)
{
    (void)plan, (void)tokens, (void)top_k;
    return 0;
}

nib_status nib_moe_cuda_run(const struct nib_moe_cuda_plan *plan, const struct nib_moe_call *call, void *stream,
                            int *launches, struct nib_error *err)
{
    (void)plan, (void)call, (void)stream;
    if (launches)
        *launches = 0;
    return refuse(err);
}
