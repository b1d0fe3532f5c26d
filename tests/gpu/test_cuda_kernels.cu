// The dense CUDA kernels against double-precision references, and their times. Ends with one summary line. Exit code 77:
// no GPU that the kernels are for, nothing was run.
//
// usage: test_cuda_kernels [--time]
#include "kernel_check.h"

int checks, failures;

namespace
{

__global__ void stream_read(const uint4 *data, size_t n, uint32_t *sink)
{
    uint32_t seen = 0;
    size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i + 7 * stride < n;
         i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(data + i + j * stride);
#pragma unroll
        for (int j = 0; j < 8; j++)
            seen |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (seen == 0x9e3779b9)
        *sink = seen;
}

// GB/s of reading far more than the L2 holds.
double read_rate()
{
    size_t bytes = static_cast<size_t>(4) << 30;
    void *data;
    uint32_t *sink;
    MUST(cudaMalloc(&data, bytes));
    MUST(cudaMalloc(&sink, 4));
    MUST(cudaMemset(data, 0x3c, bytes));
    double us = time_calls(4, [&](cudaStream_t stream, int) {
        stream_read<<<132 * 4, 512, 0, stream>>>(static_cast<const uint4 *>(data), bytes / 16, sink);
        return cudaGetLastError();
    });
    MUST(cudaFree(data));
    MUST(cudaFree(sink));
    return static_cast<double>(bytes) / us * 1e-3;
}

} // namespace

int main(int argc, char **argv)
{
    cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
        printf("test_cuda_kernels: no Hopper GPU here, nothing was run\n");
        return 77;
    }
    if (argc > 1 && !strcmp(argv[1], "--time")) {
        double rate = read_rate();
        printf("streaming read: %.0f GB/s\n", rate);
        time_linears(rate);
        time_attention(rate);
        time_sampling(rate);
        time_layers(rate);
        return 0;
    }
    check_linears();
    check_attention();
    check_sampling();
    printf("test_cuda_kernels: %d checks, %d failed\n", checks, failures);
    return failures ? 1 : 0;
}
