// The few-token kernel's launch and limits.
#ifndef NIB_CUDA_MOE_DECODE_CUH
#define NIB_CUDA_MOE_DECODE_CUH

#include <cuda_runtime.h>

#include "cuda/moe_device.cuh"

#define NIB_MOE_MULTIPLY_WARPS 12
#define NIB_MOE_PRODUCER_WARPS 2
#define NIB_MOE_FINISH_WARPS 2
#define NIB_MOE_DECODE_THREADS (32 * (NIB_MOE_MULTIPLY_WARPS + NIB_MOE_PRODUCER_WARPS + NIB_MOE_FINISH_WARPS))
#define NIB_MOE_MAX_ROW_GROUPS 4
#define NIB_MOE_MAX_STAGES 16
#define NIB_MOE_FEW_ROUTES 32 // up to so many the ring has no more than
#define NIB_MOE_FEW_BYTES (75 * 1024)
#define NIB_MOE_MAX_PAIRS 10 // pairs of blocks whose activations a warp holds in registers
#define NIB_MOE_MAX_COLUMNS (NIB_MOE_MULTIPLY_WARPS * NIB_MOE_MAX_PAIRS * 64)
#define NIB_MOE_MAX_EXPERTS 1024
#define NIB_MOE_KEEP_REST 512 // below this intermediate size h is kept in two bf16 parts
#define NIB_MOE_DECODE_TOKENS 64
#define NIB_MOE_DECODE_ROUTES 1024

cudaError_t nib_moe_decode_prepare(int shared_bytes);
cudaError_t nib_moe_decode_launch(const nib_moe_args &args, int blocks, int shared_bytes, cudaStream_t stream);

#endif
