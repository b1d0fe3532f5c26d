#include "cuda/moe_scan.cuh"

#include "cuda/moe_decode.cuh"
#include "cuda/moe_prefill.cuh"

namespace
{

// What a scale asks for: bit 0 where it lies outside what the few-token kernel's fast path is good for, bit 1 where it lies
// outside what the many-token path is. Below, blocks of zeros, to which encoders give scale 0, are good.
__device__ unsigned judge_scale(uint8_t scale, const uint8_t *block)
{
    unsigned found = (scale < NIB_MOE_DECODE_MIN_SCALE || scale > NIB_MOE_DECODE_MAX_SCALE) |
                     (scale < NIB_MOE_PREFILL_MIN_SCALE || scale > NIB_MOE_PREFILL_MAX_SCALE) << 1;
    if (found == 0 || scale > NIB_MOE_PREFILL_MAX_SCALE)
        return found;
    const uint4 packed = *reinterpret_cast<const uint4 *>(block);
    return ((packed.x | packed.y | packed.z | packed.w) & 0x77777777u) ? found : 0;
}

__global__ void scan_scales(const __grid_constant__ nib_moe_args args, uint8_t *exact)
{
    const nib_expert &e = args.table.experts[blockIdx.y];
    const nib_moe_product &w13 = args.product[0], &w2 = args.product[1];
    int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
    int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned in_w13 = 0, in_w2 = 0;
    for (int64_t i = first; i < static_cast<int64_t>(w13.rows) * w13.blocks; i += stride) {
        int64_t at = i / w13.blocks * args.gate_up_row_stride * w13.blocks + i % w13.blocks;
        in_w13 |= judge_scale(e.gate_scales[at], e.gate + at * 16) | judge_scale(e.up_scales[at], e.up + at * 16);
    }
    for (int64_t i = first; i < static_cast<int64_t>(w2.rows) * w2.blocks; i += stride)
        in_w2 |= judge_scale(e.down_scales[i], e.down + i * 16);
    unsigned found = (in_w13 & 1) | (in_w2 & 1) << 1 | ((in_w13 | in_w2) & 2) << 1;
    unsigned any = __reduce_or_sync(~0u, found);
    if (any && threadIdx.x % 32 == 0) {
        // bytes have no atomics: set the bits in the word that holds this one
        uintptr_t address = reinterpret_cast<uintptr_t>(exact + blockIdx.y);
        atomicOr(reinterpret_cast<unsigned *>(address & ~uintptr_t{3}), any << address % 4 * 8);
    }
}

} // namespace

cudaError_t nib_moe_scan_scales(const nib_moe_args &args, uint8_t *exact)
{
    scan_scales<<<dim3(16, static_cast<unsigned>(args.n_experts)), 256>>>(args, exact);
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}
