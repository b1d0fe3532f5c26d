#include "cuda/moe_scan.cuh"

namespace
{

// The fast path is good for scales in [96, 254] and, below, for blocks of zeros, which encoders give scale 0.
__device__ bool needs_exact(uint8_t scale, const uint8_t *block)
{
    if (scale == 255)
        return true;
    if (scale >= 96)
        return false;
    const uint4 packed = *reinterpret_cast<const uint4 *>(block);
    return ((packed.x | packed.y | packed.z | packed.w) & 0x77777777u) != 0;
}

__global__ void scan_scales(const __grid_constant__ nib_moe_args args, uint8_t *exact)
{
    const nib_expert &e = args.table.experts[blockIdx.y];
    const nib_moe_product &w13 = args.product[0], &w2 = args.product[1];
    int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    int found = 0;
    for (int64_t i = first; i < static_cast<int64_t>(w13.rows) * w13.blocks; i += stride) {
        int64_t at = i / w13.blocks * args.gate_up_row_stride * w13.blocks + i % w13.blocks;
        if (needs_exact(e.gate_scales[at], e.gate + at * 16) || needs_exact(e.up_scales[at], e.up + at * 16))
            found |= 1;
    }
    for (int64_t i = first; i < static_cast<int64_t>(w2.rows) * w2.blocks; i += stride)
        if (needs_exact(e.down_scales[i], e.down + i * 16))
            found |= 2;
    int any = __reduce_or_sync(~0u, static_cast<unsigned>(found));
    if (any && threadIdx.x % 32 == 0) {
        // bytes have no atomics: set the bits in the word that holds this one
        uintptr_t address = reinterpret_cast<uintptr_t>(exact + blockIdx.y);
        atomicOr(reinterpret_cast<unsigned *>(address & ~uintptr_t{3}), static_cast<unsigned>(any)
                                                                            << address % 4 * 8);
    }
}

} // namespace

cudaError_t nib_moe_scan_scales(const nib_moe_args &args, uint8_t *exact)
{
    scan_scales<<<dim3(16, static_cast<unsigned>(args.n_experts)), 256>>>(args, exact);
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}
