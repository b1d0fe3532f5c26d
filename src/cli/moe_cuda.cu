#include "cli/moe_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <cuda_runtime.h>
#include <vector>

#include "cli/moe_unpack_cuda.cuh"
#include "nibble/moe_cuda.h"
extern "C" {
#include "base/error.h"
}

namespace
{

constexpr float warm_up_ms = 20, first_warm_up_ms = 1000;
constexpr int n_layers = 3, n_calls = 12, replays = 3,
              repeats = 15; // calls a graph, graphs a measurement, measurements

nib_status fail_cuda(struct nib_error *err, cudaError_t error, const char *doing)
{
    return nib_fail(err, error == cudaErrorMemoryAllocation ? NIB_ERR_MEMORY : NIB_ERR_IO, "cuda: %s: %s", doing,
                    cudaGetErrorString(error));
}

// Device memory that is freed with its owner. A failure is kept and found by `error`.
struct device_memory {
    std::vector<void *> pieces;
    cudaError_t error = cudaSuccess;

    device_memory() = default;
    device_memory(const device_memory &) = delete;
    ~device_memory()
    {
        for (void *piece : pieces)
            cudaFree(piece);
    }
    void *take(size_t bytes)
    {
        void *piece = nullptr;
        if (error == cudaSuccess)
            error = cudaMalloc(&piece, bytes + 16);
        if (piece)
            pieces.push_back(piece);
        return piece;
    }
    const uint8_t *copy(const void *host, size_t bytes)
    {
        void *piece = take(bytes);
        if (error == cudaSuccess)
            error = cudaMemcpy(piece, host, bytes, cudaMemcpyHostToDevice);
        return static_cast<const uint8_t *>(piece);
    }
};

// Copies the gate and the up array of an expert; alternating rows stay one array.
void copy_pair(device_memory *memory, const void *gate, const void *up, size_t bytes, const void **device_gate,
               const void **device_up)
{
    auto g = static_cast<const uint8_t *>(gate), u = static_cast<const uint8_t *>(up);
    if (u > g && static_cast<size_t>(u - g) < bytes) {
        const uint8_t *both = memory->copy(g, bytes + static_cast<size_t>(u - g));
        *device_gate = both;
        *device_up = both ? both + (u - g) : both;
    } else {
        *device_gate = memory->copy(g, bytes);
        *device_up = memory->copy(u, bytes);
    }
}

nib_expert copy_expert(device_memory *memory, const nib_moe_weights &w, const nib_expert &e)
{
    nib_expert d = {};
    size_t rows = static_cast<size_t>((w.intermediate - 1) * w.gate_up_row_stride + 1);
    size_t k = static_cast<size_t>(w.hidden), i = static_cast<size_t>(w.intermediate);
    const void *gate, *up;
    copy_pair(memory, e.gate, e.up, rows * k / 2, &gate, &up);
    d.gate = static_cast<const uint8_t *>(gate);
    d.up = static_cast<const uint8_t *>(up);
    copy_pair(memory, e.gate_scales, e.up_scales, rows * k / 32, &gate, &up);
    d.gate_scales = static_cast<const uint8_t *>(gate);
    d.up_scales = static_cast<const uint8_t *>(up);
    d.down = memory->copy(e.down, k * i / 2);
    d.down_scales = memory->copy(e.down_scales, k * i / 32);
    if (e.gate_bias) {
        size_t size = nib_dtype_size(w.bias_dtype);
        copy_pair(memory, e.gate_bias, e.up_bias, rows * size, &d.gate_bias, &d.up_bias);
        d.down_bias = memory->copy(e.down_bias, k * size);
    }
    return d;
}

// A layer on the device and its plan.
struct device_layer {
    device_memory memory;
    nib_moe_cuda_plan *plan = nullptr;
    std::vector<nib_expert> experts; // device pointers

    ~device_layer()
    {
        nib_moe_cuda_plan_free(plan);
    }
    nib_status create(const nib_moe_weights &host, const nib_activation &activation, struct nib_error *err)
    {
        for (int64_t i = 0; i < host.n_experts; i++)
            experts.push_back(copy_expert(&memory, host, host.experts[i]));
        if (memory.error != cudaSuccess)
            return fail_cuda(err, memory.error, "copying the layer");
        nib_moe_weights weights = host;
        weights.experts = experts.data();
        nib_moe_config config = {};
        config.activation = activation;
        return nib_moe_cuda_plan_create(&weights, &config, &plan, err);
    }
};

__global__ void read_stream(const uint4 *data, size_t n, uint32_t *never)
{
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    size_t step = gridDim.x * static_cast<size_t>(blockDim.x);
    uint32_t bits = 0;
    auto fold = [](const uint4 &v) { return v.x ^ v.y ^ v.z ^ v.w; };
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(data + i), b = __ldcs(data + i + step);
        uint4 c = __ldcs(data + i + 2 * step), d = __ldcs(data + i + 3 * step);
        bits ^= fold(a) ^ fold(b) ^ fold(c) ^ fold(d);
    }
    for (; i < n; i += step)
        bits ^= fold(__ldcs(data + i));
    if (bits == 0x12345678u)
        *never = bits;
}

// What is timed: a stream's captured work, replayed.
template <typename Enqueue> cudaError_t time_replays(cudaStream_t stream, double *us_per_call, Enqueue enqueue)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    std::vector<double> times;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int call = 0; call < n_calls; call++)
        enqueue(call);
    if (error == cudaSuccess)
        error = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess)
        error = cudaGraphInstantiate(&replay, graph, 0);
    if (error == cudaSuccess)
        error = cudaEventCreate(&begin);
    if (error == cudaSuccess)
        error = cudaEventCreate(&end);
    static bool cold = true; // the clock of an idle GPU rises only after a while of work
    float warm = cold ? -first_warm_up_ms : 0;
    cold = false;
    while (static_cast<int>(times.size()) < repeats && error == cudaSuccess) {
        float ms = 0;
        cudaEventRecord(begin, stream);
        for (int j = 0; j < replays; j++)
            cudaGraphLaunch(replay, stream);
        cudaEventRecord(end, stream);
        error = cudaStreamSynchronize(stream);
        if (error == cudaSuccess)
            error = cudaEventElapsedTime(&ms, begin, end);
        if (warm >= warm_up_ms)
            times.push_back(static_cast<double>(ms) * 1e3 / (replays * n_calls));
        warm += ms;
    }
    std::sort(times.begin(), times.end());
    *us_per_call = times.empty() ? 0 : times[times.size() / 2];
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    return error;
}

struct bench {
    const moe_variant *variant;
    int64_t experts;
    uint64_t random;
    bool all_on_one, with_unpack;
    nib_cuda_gemm *gemm; // null without cuBLASLt
    double gemm_tflops;
    device_layer layers[n_layers];
    uint4 *stream_data[n_layers];
    size_t stream_bytes; // of each
    cudaStream_t stream;
};

// The rate of a large bf16 product on random numbers.
cudaError_t measure_gemm(bench *b)
{
    constexpr int64_t n = 8192;
    std::vector<uint16_t> values(n * n);
    moe_random_x(&b->random, 1, n * n, values.data());
    device_memory memory;
    nib_cuda_gemm_call product = {};
    product.x = reinterpret_cast<const uint16_t *>(memory.copy(values.data(), values.size() * 2));
    moe_random_x(&b->random, 1, n * n, values.data());
    product.weight = reinterpret_cast<const uint16_t *>(memory.copy(values.data(), values.size() * 2));
    product.y = static_cast<float *>(memory.take(n * n * sizeof(float)));
    product.y_pitch = product.rows = product.cols = product.out = n;
    cudaError_t error = memory.error;
    double us = 0;
    if (error == cudaSuccess)
        error = nib_cuda_gemm_run(b->gemm, b->stream, &product); // picks the algorithm, which a capture cannot
    if (error == cudaSuccess)
        error = time_replays(b->stream, &us, [&](int) { nib_cuda_gemm_run(b->gemm, b->stream, &product); });
    b->gemm_tflops = 2.0 * n * n * n / us * 1e-6;
    return error;
}

// What the unpack path needs whatever the routes, for at most `touched` experts of a call.
unpack_call make_unpack(const moe_variant &v, const nib_moe_call &call, size_t touched, device_memory *memory)
{
    size_t k = static_cast<size_t>(v.hidden), n = static_cast<size_t>(v.intermediate);
    size_t routes = static_cast<size_t>(call.tokens * call.top_k);
    unpack_call c = {};
    c.hidden = v.hidden;
    c.intermediate = v.intermediate;
    c.gate_up_row_stride = v.interleaved ? 2 : 1;
    c.top_k = call.top_k;
    c.tokens = call.tokens;
    c.activation = v.activation;
    c.biased = v.biased;
    c.x = static_cast<const uint16_t *>(call.x);
    c.y = static_cast<uint16_t *>(call.y);
    c.w13 = static_cast<uint16_t *>(memory->take(touched * 2 * n * k * 2));
    c.w2 = static_cast<uint16_t *>(memory->take(touched * n * k * 2));
    c.gathered = static_cast<uint16_t *>(memory->take(routes * k * 2));
    c.h = static_cast<uint16_t *>(memory->take(routes * n * 2));
    c.gate_up = static_cast<float *>(memory->take(routes * 2 * n * 4));
    c.out = static_cast<float *>(memory->take(routes * k * 4));
    return c;
}

void add_routes(unpack_call *c, const unpack_routes &routes, const device_layer &layer, const float *weights,
                device_memory *memory)
{
    std::vector<nib_expert> experts;
    for (int expert : routes.experts)
        experts.push_back(layer.experts[static_cast<size_t>(expert)]);
    auto indices = [&](const std::vector<int32_t> &host) {
        return reinterpret_cast<const int32_t *>(memory->copy(host.data(), host.size() * sizeof(int32_t)));
    };
    c->experts =
        reinterpret_cast<const nib_expert *>(memory->copy(experts.data(), experts.size() * sizeof(nib_expert)));
    c->order = indices(routes.order);
    c->place = indices(routes.place);
    c->expert_of = indices(routes.expert_of);
    c->weights = weights;
}

// The same calls on the unpack path; `call` has the first one's routing weights.
cudaError_t time_unpack(bench *b, const nib_moe_call &call, const std::vector<int32_t> &ids, double *us)
{
    int64_t routes = call.tokens * call.top_k;
    std::vector<unpack_routes> sorted;
    std::vector<unpack_call> calls;
    size_t touched = 0;
    for (int i = 0; i < n_calls; i++) {
        sorted.push_back(sort_unpack_routes(ids.data() + i * routes, routes, b->experts));
        touched = std::max(touched, sorted.back().experts.size());
    }
    device_memory memory;
    unpack_call own = make_unpack(*b->variant, call, touched, &memory);
    for (int i = 0; i < n_calls; i++) {
        add_routes(&own, sorted[static_cast<size_t>(i)], b->layers[i % n_layers],
                   call.routing_weights + i * routes, &memory);
        calls.push_back(own);
    }
    cudaError_t error = memory.error;
    auto run = [&](int i) {
        size_t at = static_cast<size_t>(i);
        if (error == cudaSuccess)
            error = run_unpack(b->gemm, sorted[at], calls[at], b->stream);
    };
    for (int i = 0; i < n_calls; i++)
        run(i); // picks the products' algorithms, which a capture cannot
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(b->stream);
    if (error != cudaSuccess)
        return error;
    cudaError_t timing = time_replays(b->stream, us, run);
    return error == cudaSuccess ? timing : error;
}

// The inputs of twelve calls: x once, routes for each; and the calls, on the device.
struct cell_inputs {
    device_memory memory;
    std::vector<int32_t> ids; /* [n_calls, routes] */
    nib_moe_call call;        // the first; the others' routes follow it
};

// Adds the mean number of distinct experts of a call to the cell.
nib_status draw_inputs(bench *b, moe_cuda_cell *cell, cell_inputs *in, struct nib_error *err)
{
    const moe_variant &v = *b->variant;
    int64_t tokens = cell->tokens, routes = tokens * v.top_k, values = tokens * v.hidden;
    std::vector<uint16_t> x(static_cast<size_t>(values));
    std::vector<float> weights(static_cast<size_t>(n_calls * routes));
    in->ids.resize(static_cast<size_t>(n_calls * routes));
    moe_random_x(&b->random, 1, values, x.data());
    for (int call = 0; call < n_calls; call++) {
        int32_t *own = in->ids.data() + call * routes;
        moe_random_routes(&b->random, tokens, v.top_k, b->experts, b->all_on_one, own,
                          weights.data() + call * routes);
        std::vector<bool> seen(static_cast<size_t>(b->experts));
        for (int64_t r = 0; r < routes; r++)
            seen[static_cast<size_t>(own[r])] = true;
        cell->distinct_experts += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / n_calls;
    }
    nib_moe_call &call = in->call;
    device_memory &memory = in->memory;
    call = {};
    call.tokens = tokens;
    call.top_k = v.top_k;
    call.x_dtype = call.y_dtype = NIB_BF16;
    call.x = memory.copy(x.data(), x.size() * 2);
    call.y = memory.take(x.size() * 2);
    call.expert_ids = reinterpret_cast<const int32_t *>(memory.copy(in->ids.data(), in->ids.size() * 4));
    call.routing_weights = reinterpret_cast<const float *>(memory.copy(weights.data(), weights.size() * 4));
    call.scratch_bytes = nib_moe_cuda_scratch_bytes(b->layers[0].plan, tokens, v.top_k);
    call.scratch = memory.take(call.scratch_bytes);
    if (memory.error == cudaSuccess)
        memory.error = cudaMemset(call.scratch, 0, call.scratch_bytes);
    return memory.error == cudaSuccess ? NIB_OK : fail_cuda(err, memory.error, "allocating a call");
}

// A streaming read of `bytes`, from one array; of more than it holds, all of it, and the time in proportion.
cudaError_t time_read(bench *b, double bytes, double *us)
{
    device_memory memory;
    auto *never = static_cast<uint32_t *>(memory.take(4));
    if (memory.error != cudaSuccess)
        return memory.error;
    double read = std::min(bytes, static_cast<double>(b->stream_bytes));
    cudaError_t error = time_replays(b->stream, us, [&](int i) {
        read_stream<<<132 * 8, 256, 0, b->stream>>>(b->stream_data[i % n_layers], static_cast<size_t>(read / 16),
                                                    never);
    });
    *us *= bytes / read;
    return error;
}

// Twelve calls with routes of their own, over the layers in turn.
nib_status run_cell(bench *b, moe_cuda_cell *cell, struct nib_error *err)
{
    cell_inputs in;
    nib_status status = draw_inputs(b, cell, &in, err);
    if (status != NIB_OK)
        return status;
    int64_t routes = in.call.tokens * in.call.top_k;
    cudaError_t error = time_replays(b->stream, &cell->us_median, [&](int i) {
        nib_moe_call own = in.call;
        own.expert_ids += i * routes;
        own.routing_weights += i * routes;
        if (status == NIB_OK)
            status = nib_moe_cuda_run(b->layers[i % n_layers].plan, &own, b->stream, nullptr, err);
    });
    if (status != NIB_OK)
        return status;
    double weights = 3 * static_cast<double>(b->variant->hidden * b->variant->intermediate);
    double bytes = cell->distinct_experts * weights * 17 / 32;
    if (error == cudaSuccess)
        error = time_read(b, bytes, &cell->read_us);
    cell->gb_per_s = bytes / cell->us_median * 1e-3;
    cell->times_read = cell->us_median / cell->read_us;
    cell->tflops = 2 * weights * static_cast<double>(routes) / cell->us_median * 1e-6;
    cell->share_of_gemm = b->gemm ? cell->tflops / b->gemm_tflops : NAN;
    cell->unpack_us = NAN;
    if (error == cudaSuccess && b->gemm && b->with_unpack)
        error = time_unpack(b, in.call, in.ids, &cell->unpack_us);
    cell->unpack_ratio = cell->unpack_us / cell->us_median;
    return error == cudaSuccess ? NIB_OK : fail_cuda(err, error, "timing");
}

nib_status make_layers(bench *b, uint64_t seed, device_memory *memory, struct nib_error *err)
{
    for (int i = 0; i < n_layers; i++) {
        moe_layer host;
        nib_status status = moe_layer_create(b->variant, b->experts, seed + static_cast<uint64_t>(i), &host, err);
        if (status != NIB_OK)
            return status;
        status = b->layers[i].create(host.weights, b->variant->activation, err);
        b->stream_bytes = host.bytes / 16 * 16;
        b->stream_data[i] =
            reinterpret_cast<uint4 *>(const_cast<uint8_t *>(memory->copy(host.memory, host.bytes)));
        moe_layer_free(&host);
        if (status != NIB_OK)
            return status;
    }
    cudaError_t error = memory->error == cudaSuccess ? cudaStreamCreate(&b->stream) : memory->error;
    const char *why;
    nib_status status = error == cudaSuccess ? nib_cuda_gemm_create(&b->gemm, &why, err) : NIB_OK;
    if (status != NIB_OK)
        return status;
    if (b->gemm)
        error = measure_gemm(b);
    return error == cudaSuccess ? NIB_OK : fail_cuda(err, error, "making layers");
}

} // namespace

nib_status moe_cuda_run(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                        const struct nib_moe_call *host, float *y, struct nib_error *err)
{
    device_layer layer;
    nib_status status = layer.create(*weights, *activation, err);
    if (status != NIB_OK)
        return status;
    size_t values = static_cast<size_t>(host->tokens * weights->hidden);
    size_t routes = static_cast<size_t>(host->tokens * host->top_k);
    device_memory memory;
    nib_moe_call call = *host;
    call.scratch_bytes = nib_moe_cuda_scratch_bytes(layer.plan, call.tokens, call.top_k);
    call.scratch = memory.take(call.scratch_bytes);
    call.x = memory.copy(host->x, values * 2);
    call.expert_ids = reinterpret_cast<const int32_t *>(memory.copy(host->expert_ids, routes * 4));
    call.routing_weights = reinterpret_cast<const float *>(memory.copy(host->routing_weights, routes * 4));
    call.y_dtype = NIB_F32;
    call.y = memory.take(values * 4);
    call.y_per_route = nullptr;
    if (memory.error == cudaSuccess)
        memory.error = cudaMemset(call.scratch, 0, call.scratch_bytes);
    if (memory.error != cudaSuccess)
        return fail_cuda(err, memory.error, "copying the call");
    status = nib_moe_cuda_run(layer.plan, &call, nullptr, nullptr, err);
    if (status != NIB_OK)
        return status;
    cudaError_t error = cudaMemcpy(y, call.y, values * 4, cudaMemcpyDeviceToHost);
    return error == cudaSuccess ? NIB_OK : fail_cuda(err, error, "the MoE kernel");
}

nib_status moe_cuda_bench(const struct moe_cuda_bench *wanted, struct moe_cuda_cell *cells, int n,
                          void (*report)(const struct moe_cuda_cell *cell), struct nib_error *err)
{
    device_memory memory;
    bench b = {};
    b.variant = wanted->variant;
    b.experts = wanted->experts;
    b.random = wanted->seed;
    b.all_on_one = wanted->all_on_one;
    b.with_unpack = wanted->with_unpack;
    nib_status status = make_layers(&b, wanted->seed, &memory, err);
    for (int i = 0; status == NIB_OK && i < n; i++) {
        status = run_cell(&b, &cells[i], err);
        if (status == NIB_OK)
            report(&cells[i]);
    }
    nib_cuda_gemm_free(b.gemm);
    if (b.stream)
        cudaStreamDestroy(b.stream);
    return status;
}
