// Operations on rows of activations: embedding, norms, sums, copies.
#include <cuda_bf16.h>

#include "cuda/block_sum.cuh"
#include "cuda/branch.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr unsigned row_threads = 512;
constexpr int row_values = 4; // elements, or fours of them, that a thread keeps in registers

__device__ __forceinline__ uint16_t to_bf16(float value)
{
    __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    return reinterpret_cast<uint16_t &>(rounded);
}

__device__ __forceinline__ float element_at(const void *data, nib_cuda_element element, int64_t i)
{
    return element == NIB_CUDA_BF16 ? __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[i])
                                    : static_cast<const float *>(data)[i];
}

__global__ void embed(float *y, const int32_t *tokens, const nib_cuda_matrix table)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int64_t row = blockIdx.x, from = static_cast<int64_t>(tokens[row]) * table.cols;
    for (int64_t i = threadIdx.x; i < table.cols; i += blockDim.x)
        y[row * table.cols + i] = element_at(table.data, table.element, from + i);
}

// Element i of a row in fours, where rows are a multiple of four wide; and alone.
struct four_wide {
    static constexpr int each = 4;
    using type = float4;
    __device__ static float4 sum(float4 a, float4 b)
    {
        return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    __device__ static float square(float4 a)
    {
        return a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
    }
    __device__ static float4 scaled(float4 a, float factor, float4 w)
    {
        return make_float4(a.x * factor * w.x, a.y * factor * w.y, a.z * factor * w.z, a.w * factor * w.w);
    }
    __device__ static void store_half(uint16_t *to, float4 a)
    {
        __nv_bfloat162 low = __floats2bfloat162_rn(a.x, a.y), high = __floats2bfloat162_rn(a.z, a.w);
        *reinterpret_cast<uint2 *>(to) =
            make_uint2(reinterpret_cast<uint32_t &>(low), reinterpret_cast<uint32_t &>(high));
    }
};

struct one_wide {
    static constexpr int each = 1;
    using type = float;
    __device__ static float sum(float a, float b)
    {
        return a + b;
    }
    __device__ static float square(float a)
    {
        return a * a;
    }
    __device__ static float scaled(float a, float factor, float w)
    {
        return a * factor * w;
    }
    __device__ static void store_half(uint16_t *to, float a)
    {
        *to = to_bf16(a);
    }
};

template <typename W> __device__ __forceinline__ typename W::type at(const float *row, int i)
{
    return reinterpret_cast<const typename W::type *>(row)[i];
}

// A row a block. A thread keeps the first row_values of its elements in registers.
template <typename W> __global__ void __launch_bounds__(row_threads) rms_norm(const nib_cuda_norm n)
{
    __shared__ float partial[row_threads / 32];
    constexpr int step = static_cast<int>(row_threads);
    int width = n.width / W::each, thread = static_cast<int>(threadIdx.x);
    typename W::type kept[row_values] = {};
    float square = 0;
    wait_for_previous_kernel();
    allow_next_kernel();
    int64_t row = blockIdx.x, from = n.from ? n.from[row] : row;
    float *x = n.x + from * n.width;
    branch_row<typename W::type> branch(n.branch, row, width);
    auto read = [&](int i) { return branch.values ? W::sum(at<W>(x, i), branch.at(i)) : at<W>(x, i); };
    auto note = [&](int i, typename W::type value) {
        if (branch.values)
            reinterpret_cast<typename W::type *>(x)[i] = value;
        square += W::square(value);
    };
#pragma unroll
    for (int j = 0; j < row_values; j++)
        if (j * step + thread < width)
            kept[j] = read(j * step + thread);
#pragma unroll
    for (int j = 0; j < row_values; j++) // only now: what is stored might be what is read next
        if (j * step + thread < width)
            note(j * step + thread, kept[j]);
    for (int i = row_values * step + thread; i < width; i += step)
        note(i, read(i));
    float inverse = 1.0f / sqrtf(block_sum(square, partial) / static_cast<float>(n.width) + n.eps);
    auto write = [&](int i, typename W::type value) {
        value = W::scaled(value, inverse, at<W>(n.weight, i));
        if (n.y)
            reinterpret_cast<typename W::type *>(n.y + row * n.width)[i] = value;
        if (n.y_half)
            W::store_half(n.y_half + row * n.width + i * W::each, value);
    };
#pragma unroll
    for (int j = 0; j < row_values; j++)
        if (j * step + thread < width)
            write(j * step + thread, kept[j]);
    for (int i = row_values * step + thread; i < width; i += step)
        write(i, at<W>(x, i));
}

// A head a warp.
__global__ void head_norm(float *x, int heads, int head_dim, const float *weight, int normed, float eps)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int head = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
    if (head >= heads)
        return;
    float *row = x + static_cast<int64_t>(head) * head_dim, square = 0;
    for (int i = lane; i < normed; i += 32)
        square += row[i] * row[i];
    float inverse = 1.0f / sqrtf(warp_sum(square) / static_cast<float>(normed) + eps);
    for (int i = lane; i < normed; i += 32)
        row[i] = row[i] * inverse * weight[i];
}

__global__ void add(float *x, const float *y, int64_t n)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        x[i] += y[i];
}

__global__ void silu_mul(float *gate, uint16_t *gate_half, const float *up, int64_t n)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        float g = gate[i], value = g / (1.0f + expf(-g)) * up[i];
        gate[i] = value;
        if (gate_half)
            gate_half[i] = to_bf16(value);
    }
}

__global__ void gather(float *y, const float *x, const int32_t *rows, int width)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int64_t row = blockIdx.x, from = rows[row];
    for (int i = static_cast<int>(threadIdx.x); i < width; i += static_cast<int>(blockDim.x))
        y[row * width + i] = x[from * width + i];
}

__global__ void round_rows(uint16_t *y, const float *x, int64_t n)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * blockDim.x)
        y[i] = to_bf16(x[i]);
}

unsigned blocks_for(int64_t n)
{
    int64_t blocks = (n + 255) / 256;
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 2048 ? 2048 : blocks);
}

} // namespace

cudaError_t nib_cuda_embed(cudaStream_t stream, const nib_cuda_step *step, float *y, const nib_cuda_matrix *table)
{
    return nib_launch(embed, dim3(static_cast<unsigned>(step->n_tokens)), 256, 0, stream, y, step->tokens, *table);
}

cudaError_t nib_cuda_rms_norm(cudaStream_t stream, const nib_cuda_norm *norm)
{
    return nib_launch(norm->width % 4 ? rms_norm<one_wide> : rms_norm<four_wide>,
                      dim3(static_cast<unsigned>(norm->rows)), row_threads, 0, stream, *norm);
}

cudaError_t nib_cuda_head_norm(cudaStream_t stream, float *x, int32_t rows, int32_t n_heads, int32_t head_dim,
                               const float *weight, int32_t normed, float eps)
{
    int heads = rows * n_heads;
    return nib_launch(head_norm, dim3(static_cast<unsigned>((heads + 3) / 4)), 128, 0, stream, x, heads, head_dim,
                      weight, normed, eps);
}

cudaError_t nib_cuda_add(cudaStream_t stream, float *x, const float *y, int64_t n)
{
    return nib_launch(add, dim3(blocks_for(n)), 256, 0, stream, x, y, n);
}

cudaError_t nib_cuda_silu_mul(cudaStream_t stream, float *gate, uint16_t *gate_half, const float *up, int64_t n)
{
    return nib_launch(silu_mul, dim3(blocks_for(n)), 256, 0, stream, gate, gate_half, up, n);
}

cudaError_t nib_cuda_gather(cudaStream_t stream, float *y, const float *x, const int32_t *rows, int32_t n,
                            int32_t width)
{
    return nib_launch(gather, dim3(static_cast<unsigned>(n)), 256, 0, stream, y, x, rows, width);
}

cudaError_t nib_cuda_to_bf16(cudaStream_t stream, uint16_t *y, const float *x, int64_t n)
{
    return nib_launch(round_rows, dim3(blocks_for(n)), 256, 0, stream, y, x, n);
}
