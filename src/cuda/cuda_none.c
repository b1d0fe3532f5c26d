// The cuda device in a build without CUDA.
#include "ops/ops.h"

const struct nib_ops *nib_cuda_ops(void)
{
    return NULL;
}
