// Which experts need the exact path.
#ifndef NIB_CUDA_MOE_SCAN_CUH
#define NIB_CUDA_MOE_SCAN_CUH

#include <cuda_runtime.h>

#include "cuda/moe_device.cuh"

// Sets bit 0 (W13) or 1 (W2) of exact[e] where a scale of expert e lies outside what the fast path can hold and its
// block is not all zeros. Waits for the device.
cudaError_t nib_moe_scan_scales(const nib_moe_args &args, uint8_t *exact /* [E], zero, on the device */);

#endif
