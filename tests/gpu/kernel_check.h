// What the kernel tests share: device memory with guards around it, random numbers, comparisons, a count of failures.
#ifndef NIB_TESTS_KERNEL_CHECK_H
#define NIB_TESTS_KERNEL_CHECK_H

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "nibble/mx.h"

extern int checks, failures;

inline void expect(bool good, const char *what, double value = 0)
{
    checks++;
    if (good)
        return;
    failures++;
    printf("FAILED: %s (%g)\n", what, value);
}

inline void must(cudaError_t error, const char *doing)
{
    if (error == cudaSuccess)
        return;
    printf("FAILED: %s: %s\n", doing, cudaGetErrorString(error));
    exit(1);
}

#define MUST(call) must(call, #call)

struct random_numbers {
    uint64_t state;

    explicit random_numbers(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1)
    {
    }

    uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 0x2545f4914f6cdd1du;
    }

    int below(int n)
    {
        return static_cast<int>((next() >> 33) % static_cast<uint64_t>(n));
    }

    double unit()
    {
        return static_cast<double>(next() >> 11) * 0x1p-53;
    }

    float normal()
    {
        return static_cast<float>(sqrt(-2 * log(unit() + 1e-300)) * cos(6.283185307179586 * unit()));
    }

    std::vector<float> normals(size_t n, float deviation = 1)
    {
        std::vector<float> v(n);
        for (float &x : v)
            x = normal() * deviation;
        return v;
    }

    std::vector<uint16_t> normals_bf16(size_t n, float deviation = 1)
    {
        std::vector<uint16_t> v(n);
        for (uint16_t &x : v)
            x = nib_bf16_from_f32(normal() * deviation);
        return v;
    }
};

// n elements between two guards; starts poisoned, or as a copy.
template <typename T> struct device_array {
    static constexpr size_t guard = 512;
    uint8_t *base = nullptr;
    size_t n;

    explicit device_array(size_t n) : n(n)
    {
        MUST(cudaMalloc(&base, bytes() + 2 * guard));
        MUST(cudaMemset(base, 0xa5, bytes() + 2 * guard));
    }

    explicit device_array(const std::vector<T> &from) : device_array(from.size())
    {
        write(from);
    }

    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;

    ~device_array()
    {
        cudaFree(base);
    }

    size_t bytes() const
    {
        return n * sizeof(T);
    }

    T *data() const
    {
        return reinterpret_cast<T *>(base + guard);
    }

    void write(const std::vector<T> &from)
    {
        MUST(cudaMemcpy(data(), from.data(), bytes(), cudaMemcpyHostToDevice));
    }

    void poison()
    {
        MUST(cudaMemset(data(), 0xff, bytes())); // NaN as fp32 and as bf16
    }

    std::vector<T> read(const char *what) const
    {
        std::vector<uint8_t> all(bytes() + 2 * guard);
        MUST(cudaMemcpy(all.data(), base, all.size(), cudaMemcpyDeviceToHost));
        bool whole = true;
        for (size_t i = 0; i < guard; i++)
            whole &= all[i] == 0xa5 && all[all.size() - 1 - i] == 0xa5;
        if (!whole)
            printf("%s: ", what);
        expect(whole, "memory beside an array was written");
        std::vector<T> v(n);
        memcpy(v.data(), all.data() + guard, bytes());
        return v;
    }
};

// NaN where exactly one of the two is NaN.
inline double rel_l2(const std::vector<float> &got, const std::vector<double> &want)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
        if (std::isnan(want[i]) && std::isnan(got[i]))
            continue;
        double d = static_cast<double>(got[i]) - want[i];
        error += d * d;
        norm += want[i] * want[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

inline void expect_close(const char *what, double error, double bound)
{
    expect(error <= bound, what, error);
}

template <typename T> bool same_bits(const T *a, const T *b, size_t n)
{
    return memcmp(a, b, n * sizeof(T)) == 0;
}

// Runs a graph of `launches` calls of `enqueue(stream, i)` and returns µs a call: the median of some replays.
template <typename Enqueue> double time_calls(int launches, Enqueue enqueue)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++)
        MUST(enqueue(stream, i));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 9; i++) {
        float ms;
        MUST(cudaEventRecord(begin, stream));
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaEventRecord(end, stream));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2)
            times.push_back(ms);
    }
    for (size_t i = 1; i < times.size(); i++) // few: by insertion
        for (size_t j = i; j && times[j] < times[j - 1]; j--)
            std::swap(times[j], times[j - 1]);
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    return static_cast<double>(times[times.size() / 2]) * 1e3 / launches;
}

void check_linears();
void check_attention();
void check_sampling();
void time_linears(double read_rate);
void time_attention(double read_rate);
void time_sampling(double read_rate);
void time_layers(double read_rate);

#endif
