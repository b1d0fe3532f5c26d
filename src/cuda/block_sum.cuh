// Sums and maxima over a warp and over a block, in one fixed order.
#ifndef NIB_CUDA_BLOCK_SUM_CUH
#define NIB_CUDA_BLOCK_SUM_CUH

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        value += __shfl_xor_sync(~0u, value, distance);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
    return value;
}

// Every thread gets the sum. `partial` has room for one value a warp and is free again at the next __syncthreads.
__device__ __forceinline__ float block_sum(float value, float *partial)
{
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        sum += partial[i];
    return sum;
}

#endif
