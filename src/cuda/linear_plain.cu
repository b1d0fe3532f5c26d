// Products with fp32 inputs: for routers, for matrices that are not bf16, and for latent attention's heads. A row's sums
// run in one order whatever else is in the call, so that these never depend on the batch.
#include <cuda_bf16.h>

#include "cuda/block_sum.cuh"
#include "cuda/kernels.h"
#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr int few_rows = 8;    // input rows that a warp takes together
constexpr int few_outputs = 2; // outputs that it computes of each
constexpr unsigned few_warps = 8;

// Four neighbouring elements, those at and beyond `end` being zero.
__device__ __forceinline__ float4 load_weights(const nib_cuda_matrix &w, int64_t row, int column)
{
    int64_t at = row * w.cols + column;
    float4 values = make_float4(0, 0, 0, 0);
    if (w.element == NIB_CUDA_BF16) {
        const __nv_bfloat16 *data = static_cast<const __nv_bfloat16 *>(w.data);
        if (w.cols % 4 == 0) {
            uint2 packed = *reinterpret_cast<const uint2 *>(data + at);
            float2 low = __bfloat1622float2(reinterpret_cast<__nv_bfloat162 &>(packed.x));
            float2 high = __bfloat1622float2(reinterpret_cast<__nv_bfloat162 &>(packed.y));
            return make_float4(low.x, low.y, high.x, high.y);
        }
        values.x = __bfloat162float(data[at]);
        values.y = column + 1 < w.cols ? __bfloat162float(data[at + 1]) : 0;
        values.z = column + 2 < w.cols ? __bfloat162float(data[at + 2]) : 0;
        values.w = column + 3 < w.cols ? __bfloat162float(data[at + 3]) : 0;
        return values;
    }
    const float *data = static_cast<const float *>(w.data);
    if (w.cols % 4 == 0)
        return *reinterpret_cast<const float4 *>(data + at);
    values.x = data[at];
    values.y = column + 1 < w.cols ? data[at + 1] : 0;
    values.z = column + 2 < w.cols ? data[at + 2] : 0;
    values.w = column + 3 < w.cols ? data[at + 3] : 0;
    return values;
}

__device__ __forceinline__ float4 load_row(const float *x, int column, int cols)
{
    if (cols % 4 == 0)
        return *reinterpret_cast<const float4 *>(x + column);
    return make_float4(x[column], column + 1 < cols ? x[column + 1] : 0, column + 2 < cols ? x[column + 2] : 0,
                       column + 3 < cols ? x[column + 3] : 0);
}

// A warp computes few_outputs outputs of few_rows rows; its lanes share the columns.
__global__ void __launch_bounds__(few_warps * 32) linear(const nib_cuda_plain_linear p, int rows)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int lane = threadIdx.x % 32, cols = static_cast<int>(p.weight.cols);
    int64_t out = (static_cast<int64_t>(blockIdx.x) * few_warps + threadIdx.x / 32) * few_outputs;
    int first = static_cast<int>(blockIdx.y) * few_rows, here = min(few_rows, rows - first);
    if (out >= p.weight.rows)
        return;
    bool both = out + 1 < p.weight.rows;
    float sum[few_outputs][few_rows] = {};
    for (int column = lane * 4; column < cols; column += 128) {
        float4 w0 = load_weights(p.weight, out, column);
        float4 w1 = both ? load_weights(p.weight, out + 1, column) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < few_rows; r++) {
            if (r >= here)
                continue;
            float4 x = load_row(p.x + static_cast<int64_t>(first + r) * cols, column, cols);
            sum[0][r] += x.x * w0.x + x.y * w0.y + x.z * w0.z + x.w * w0.w;
            sum[1][r] += x.x * w1.x + x.y * w1.y + x.z * w1.z + x.w * w1.w;
        }
    }
#pragma unroll
    for (int i = 0; i < few_outputs; i++)
#pragma unroll
        for (int r = 0; r < few_rows; r++) {
            if (r >= here || (i && !both))
                continue;
            float all = warp_sum(sum[i][r]);
            if (lane == 0)
                p.y[static_cast<int64_t>(first + r) * p.y_pitch + out + i] =
                    all + (p.bias ? p.bias[out + i] : 0.0f);
        }
}

__device__ __forceinline__ float weight_at(const nib_cuda_matrix &w, int64_t at)
{
    return w.element == NIB_CUDA_BF16 ? __bfloat162float(static_cast<const __nv_bfloat16 *>(w.data)[at])
                                      : static_cast<const float *>(w.data)[at];
}

// A head of a token a block.
__global__ void linear_heads(const nib_cuda_head_product p)
{
    wait_for_previous_kernel();
    allow_next_kernel();
    int head = static_cast<int>(blockIdx.y), cols = static_cast<int>(p.weight.cols);
    int in = p.transposed ? p.rows : cols, out = p.transposed ? cols : p.rows;
    const float *x = p.x + blockIdx.x * p.x_width + static_cast<int64_t>(head) * p.x_pitch;
    float *y = p.y + blockIdx.x * p.y_width + static_cast<int64_t>(head) * p.y_pitch;
    int64_t first = (static_cast<int64_t>(head) * p.row_pitch + p.first_row) * cols;
    if (p.transposed) {
        for (int c = static_cast<int>(threadIdx.x); c < cols; c += static_cast<int>(blockDim.x)) {
            float sum = 0;
            for (int r = 0; r < p.rows; r++)
                sum += x[r] * weight_at(p.weight, first + static_cast<int64_t>(r) * cols + c);
            y[c] = sum;
        }
    } else {
        int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
        for (int r = warp; r < p.rows; r += static_cast<int>(blockDim.x) / 32) {
            float sum = 0;
            for (int c = lane; c < cols; c += 32)
                sum += x[c] * weight_at(p.weight, first + static_cast<int64_t>(r) * cols + c);
            sum = warp_sum(sum);
            if (lane == 0)
                y[r] = sum;
        }
    }
    for (int i = static_cast<int>(threadIdx.x); i < p.tail; i += static_cast<int>(blockDim.x))
        y[out + i] = x[in + i];
}

} // namespace

cudaError_t nib_cuda_linear(cudaStream_t stream, int32_t rows, const nib_cuda_plain_linear *linear_call)
{
    constexpr int64_t outputs = few_warps * few_outputs;
    dim3 grid(static_cast<unsigned>((linear_call->weight.rows + outputs - 1) / outputs),
              static_cast<unsigned>((rows + few_rows - 1) / few_rows));
    return nib_launch(linear, grid, few_warps * 32, 0, stream, *linear_call, rows);
}

cudaError_t nib_cuda_linear_heads(cudaStream_t stream, int32_t tokens, const nib_cuda_head_product *p)
{
    dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(p->n_heads));
    return nib_launch(linear_heads, grid, 256, 0, stream, *p);
}
