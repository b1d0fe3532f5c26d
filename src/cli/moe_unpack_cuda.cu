#include "cli/moe_unpack_cuda.cuh"

#include <cuda_bf16.h>

#include "cuda/moe_activation.cuh"
#include "nibble/mx.h"

namespace
{

constexpr int threads = 256, blocks = 132 * 8;

// Eight weights of a packed word.
__device__ void widen_word(uint32_t word, float scale, uint16_t *to)
{
    constexpr float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint32_t pairs[4];
    for (int i = 0; i < 4; i++) {
        float value[2];
        for (int j = 0; j < 2; j++) {
            uint32_t code = word >> (8 * i + 4 * j) & 15;
            value[j] = (code & 8 ? -scale : scale) * magnitudes[code & 7];
        }
        __nv_bfloat162 pair = __floats2bfloat162_rn(value[0], value[1]);
        pairs[i] = reinterpret_cast<uint32_t &>(pair);
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__device__ void widen_rows(const uint8_t *packed, const uint8_t *scales, int64_t rows, int64_t columns,
                           int64_t stride, uint16_t *to)
{
    int64_t words = columns / 8;
    for (int64_t i = blockIdx.x * threads + threadIdx.x; i < rows * words; i += gridDim.x * threads) {
        int64_t row = i / words * stride, word = i % words;
        uint32_t code = scales[row * (columns / 32) + word / 4];
        widen_word(reinterpret_cast<const uint32_t *>(packed + row * (columns / 2))[word],
                   exp2f(float(code) - 127), to + i * 8);
    }
}

// A touched expert for each blockIdx.y.
__global__ void widen(const __grid_constant__ unpack_call call)
{
    const nib_expert &e = call.experts[blockIdx.y];
    int64_t k = call.hidden, i = call.intermediate;
    uint16_t *w13 = call.w13 + blockIdx.y * 2 * i * k;
    widen_rows(e.gate, e.gate_scales, i, k, call.gate_up_row_stride, w13);
    widen_rows(e.up, e.up_scales, i, k, call.gate_up_row_stride, w13 + i * k);
    widen_rows(e.down, e.down_scales, k, i, 1, call.w2 + blockIdx.y * k * i);
}

__global__ void gather(const __grid_constant__ unpack_call call)
{
    int64_t pieces = call.hidden / 8, all = call.tokens * call.top_k * pieces;
    for (int64_t i = blockIdx.x * threads + threadIdx.x; i < all; i += blocks * threads) {
        int64_t token = call.order[i / pieces] / call.top_k;
        reinterpret_cast<uint4 *>(call.gathered)[i] =
            reinterpret_cast<const uint4 *>(call.x)[token * pieces + i % pieces];
    }
}

__device__ float bias_of(const void *bias, int64_t i)
{
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(bias)[i]);
}

__global__ void activate_all(const __grid_constant__ unpack_call call)
{
    int64_t n = call.intermediate, all = call.tokens * call.top_k * n;
    for (int64_t i = blockIdx.x * threads + threadIdx.x; i < all; i += blocks * threads) {
        int64_t place = i / n, column = i % n;
        const nib_expert &e = call.experts[call.expert_of[place]];
        const float *row = call.gate_up + place * 2 * n;
        float gate = row[column], up = row[n + column];
        if (call.biased) {
            gate += bias_of(e.gate_bias, column * call.gate_up_row_stride);
            up += bias_of(e.up_bias, column * call.gate_up_row_stride);
        }
        __nv_bfloat16 h = __float2bfloat16_rn(activate(call.activation, gate, up));
        call.h[i] = reinterpret_cast<uint16_t &>(h);
    }
}

__global__ void combine(const __grid_constant__ unpack_call call)
{
    int64_t k = call.hidden, all = call.tokens * k;
    for (int64_t i = blockIdx.x * threads + threadIdx.x; i < all; i += blocks * threads) {
        float sum = 0;
        for (int64_t route = i / k * call.top_k; route < (i / k + 1) * call.top_k; route++) {
            int64_t place = call.place[route];
            float value = call.out[place * k + i % k];
            if (call.biased)
                value += bias_of(call.experts[call.expert_of[place]].down_bias, i % k);
            sum += call.weights[route] * value;
        }
        __nv_bfloat16 y = __float2bfloat16_rn(sum);
        call.y[i] = reinterpret_cast<uint16_t &>(y);
    }
}

} // namespace

unpack_routes sort_unpack_routes(const int32_t *expert_ids, int64_t routes, int64_t n_experts)
{
    unpack_routes r;
    r.place.resize(static_cast<size_t>(routes));
    for (int32_t expert = 0; expert < n_experts; expert++) {
        size_t begin = r.order.size();
        for (int32_t route = 0; route < routes; route++) {
            if (expert_ids[route] != expert)
                continue;
            r.place[static_cast<size_t>(route)] = static_cast<int32_t>(r.order.size());
            r.order.push_back(route);
            r.expert_of.push_back(static_cast<int32_t>(r.experts.size()));
        }
        if (r.order.size() > begin) {
            r.experts.push_back(expert);
            r.first.push_back(static_cast<int>(begin));
        }
    }
    r.first.push_back(static_cast<int>(routes));
    return r;
}

cudaError_t run_unpack(nib_cuda_gemm *gemm, const unpack_routes &routes, const unpack_call &call,
                       cudaStream_t stream)
{
    int64_t k = call.hidden, n = call.intermediate;
    cudaError_t error = cudaSuccess;
    unsigned touched = static_cast<unsigned>(routes.experts.size());
    auto multiply_each = [&](float *y, const uint16_t *x, const uint16_t *weights, int64_t columns, int64_t out) {
        for (size_t i = 0; i < routes.experts.size() && error == cudaSuccess; i++) {
            int64_t first = routes.first[i];
            nib_cuda_gemm_call product = {};
            product.y = y + first * out;
            product.y_pitch = out;
            product.x = x + first * columns;
            product.weight = weights + static_cast<int64_t>(i) * columns * out;
            product.rows = routes.first[i + 1] - first;
            product.cols = columns;
            product.out = out;
            error = nib_cuda_gemm_run(gemm, stream, &product);
        }
    };
    widen<<<dim3(blocks / 8, touched), threads, 0, stream>>>(call);
    gather<<<blocks, threads, 0, stream>>>(call);
    multiply_each(call.gate_up, call.gathered, call.w13, k, 2 * n);
    activate_all<<<blocks, threads, 0, stream>>>(call);
    multiply_each(call.out, call.h, call.w2, n, k);
    combine<<<blocks, threads, 0, stream>>>(call);
    return error == cudaSuccess ? cudaGetLastError() : error;
}
