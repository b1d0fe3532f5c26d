// The norm of one row by a block of 512 threads: wherever it is worked out, its sums run in the same order.
#ifndef NIB_CUDA_NORM_ROW_CUH
#define NIB_CUDA_NORM_ROW_CUH

#include <cuda_bf16.h>

#include <cstdint>

constexpr int norm_threads = 512;

__device__ __forceinline__ float warp_sum(float value)
{
    for (int step = 16; step; step /= 2)
        value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// 1 / sqrt(mean(x^2) + eps) in every thread. All threads of the block call it.
__device__ inline float block_inverse_rms(const float *x /* [cols] */, int cols, float eps,
                                          float *sums /* [16] in shared memory */)
{
    float sum = 0;
    int quads = cols % 4 ? 0 : cols / 4;
    for (int i = threadIdx.x; i < quads; i += norm_threads) {
        float4 v = reinterpret_cast<const float4 *>(x)[i];
        sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    for (int i = quads * 4 + threadIdx.x; i < cols; i += norm_threads)
        sum += x[i] * x[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = sums[0];
#pragma unroll
    for (int i = 1; i < norm_threads / 32; i++)
        sum += sums[i];
    __syncthreads(); // sums may be written again
    return 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
}

// y = x * inverse * weight; y and y_half may be null, y may be x.
__device__ inline void write_normed(const float *x, const float *weight, float inverse, int cols, float *y,
                                    uint16_t *y_half)
{
    for (int i = threadIdx.x; i < cols; i += norm_threads) {
        float value = x[i] * inverse * weight[i];
        if (y)
            y[i] = value;
        if (y_half)
            y_half[i] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    }
}

#endif
