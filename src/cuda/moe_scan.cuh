// Which experts have scales outside the fast paths' ranges.
#ifndef NIB_CUDA_MOE_SCAN_CUH
#define NIB_CUDA_MOE_SCAN_CUH

#include <cuda_runtime.h>

#include "cuda/moe_device.cuh"

// Sets bit 0 (W13) or 1 (W2) of exact[e] where a scale of expert e lies outside what the few-token kernel's fast path can
// hold and its block is not all zeros; bit 2 where one lies outside what the many-token path can. Waits for the device.
cudaError_t nib_moe_scan_scales(const nib_moe_args &args, uint8_t *exact /* [E], zero, on the device */);

#endif
