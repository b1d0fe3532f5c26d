// What lies between the MoE calls of two layers, for steps of few single rows, in one launch: the residual sum, its norm, the
// queries, keys and values, rotation and cache, attention, its output and the residual again, the next norm, the router's
// product and the choice. Every multiprocessor has one block. Barriers over the grid part the stages; the weights do not
// wait at them: one warp of a block streams what the block will need through shared memory from the launch on, so the memory
// is busy while the other warps wait, attend and choose.
#ifndef NIB_CUDA_LAYER_DECODE_H
#define NIB_CUDA_LAYER_DECODE_H

#include "cuda/attend.h"
#include "cuda/kernels.h"
#include "cuda/skinny_linear.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NIB_CUDA_LAYER_ROWS 8

struct nib_cuda_layer {
    float *x; /* [T, width] the residual stream: branch and o are added to it */
    struct nib_cuda_branch branch;
    const float *norm_weight; /* [width] */
    float eps;
    struct nib_cuda_skinny_linear qkv; // of the normed x: `x` and `x_wide` are not looked at
    struct nib_cuda_rotate_append fresh;
    struct nib_cuda_attention attention; // `y` is not written
    struct nib_cuda_skinny_linear o;     // one output, of attention.y_half
    struct nib_cuda_norm_route route;    // of x; its counters are not used
    float *partial;                      /* [nib_cuda_layer_scratch bytes] */
    unsigned *counters;                  /* [NIB_CUDA_LAYER_COUNTERS] zero before the first call */
};

enum { NIB_CUDA_LAYER_COUNTERS = 512 };
size_t nib_cuda_layer_scratch(int multiprocessors);

bool nib_cuda_layer_takes(const struct nib_cuda_layer *layer, int multiprocessors);
// Nothing else that holds a multiprocessor for ever may run beside it: the barriers need all blocks at once.
cudaError_t nib_cuda_run_layer(cudaStream_t stream, const struct nib_cuda_step *step,
                               const struct nib_cuda_layer *layer, int multiprocessors);

#ifdef __cplusplus
}
#endif
#endif
