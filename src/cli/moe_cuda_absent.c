// cli/moe_cuda.h in a build without CUDA.
#include "cli/moe_cuda.h"

#include "base/error.h"

static nib_status refuse(struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_UNSUPPORTED,
                    "--device cuda: this build has no CUDA (configure with -DNIB_CUDA=ON)");
}

nib_status moe_cuda_run(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                        const struct nib_moe_call *call, float *y, struct nib_error *err)
{
    (void)weights, (void)activation, (void)call, (void)y;
    return refuse(err);
}

nib_status moe_cuda_bench(const struct moe_cuda_bench *bench, struct moe_cuda_cell *cells, int n,
                          void (*report)(const struct moe_cuda_cell *cell), struct nib_error *err)
{
    (void)bench, (void)cells, (void)n, (void)report;
    return refuse(err);
}
