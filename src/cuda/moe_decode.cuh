// The few-token kernel's launch and limits.
#ifndef NIB_CUDA_MOE_DECODE_CUH
#define NIB_CUDA_MOE_DECODE_CUH

#include <cuda_runtime.h>

#include "cuda/moe_device.cuh"

#define NIB_MOE_PRODUCER_WARPS 2
#define NIB_MOE_FINISH_WARPS 2
#define NIB_MOE_DECODE_THREADS (32 * (NIB_MOE_MULTIPLY_WARPS + NIB_MOE_PRODUCER_WARPS + NIB_MOE_FINISH_WARPS))
#define NIB_MOE_REGISTERS 128 // a thread at launch; then the others give some to those that multiply
#define NIB_MOE_MULTIPLY_REGISTERS 144
#define NIB_MOE_OTHER_REGISTERS 80
#define NIB_MOE_MAX_STAGES 16
#define NIB_MOE_MAX_SLOTS 4           // of a tile's sums; as many as finishing warps, or twice
#define NIB_MOE_SUM_BYTES 512         // of a warp in a slot: a float4 a lane, or half as much
#define NIB_MOE_TALL_TILE_BYTES 40000 // most bytes of packed rows in a tile of more than 16 of them
// Up to so many routes all warps share a tile, and the ring has no more than so many bytes, or three stages.
#define NIB_MOE_FEW_ROUTES 32
#define NIB_MOE_FEW_BYTES (75 * 1024)
#define NIB_MOE_LANE_ROUTES 32 // so many are sorted by one warp, a lane each
static_assert(NIB_MOE_LANE_ROUTES <= 32 && NIB_MOE_LANE_ROUTES <= NIB_MOE_FEW_ROUTES,
              "their tiles all weigh the same");
#define NIB_MOE_MAX_PAIRS 10 // pairs of blocks whose activations a warp holds in registers
#define NIB_MOE_MAX_COLUMNS (NIB_MOE_MULTIPLY_WARPS * NIB_MOE_MAX_PAIRS * 64)
#define NIB_MOE_MAX_EXPERTS 1024
#define NIB_MOE_KEEP_REST 512  // below this intermediate size h is kept in two bf16 parts
#define NIB_MOE_MAX_BLOCKS 144 // an H100 or H200 has 132
// Scales that the products in f16 are good for: 2^-95 to 2^111.
#define NIB_MOE_DECODE_MIN_SCALE 32
#define NIB_MOE_DECODE_MAX_SCALE 238
#define NIB_MOE_DECODE_TOKENS 64
#define NIB_MOE_DECODE_ROUTES 1024
static_assert(NIB_MOE_DECODE_ROUTES * (NIB_MOE_DECODE_ROUTES / NIB_MOE_DECODE_TOKENS) <= 1 << 16,
              "top_k_inverse gives the token of every route");

cudaError_t nib_moe_decode_prepare(int shared_bytes);
cudaError_t nib_moe_decode_launch(const nib_moe_args &args, int blocks, int shared_bytes, cudaStream_t stream);

#endif
