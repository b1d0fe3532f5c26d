// The cuda device: opening, closing, and its table.
#include "cuda/cuda_device.h"
#include "cuda/layer_decode.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/attend.h"

enum { CAPABILITY = 9 }; // the kernels are built for 9.0a alone

// Whether there is such a device here, and why not.
static nib_status find_device(int ordinal, struct nib_error *err)
{
    int count = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "cuda: no NVIDIA driver, or one too old for CUDA %d.%d, with which this was built",
                        CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice || (!error && count == 0))
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "cuda: this machine has no NVIDIA GPU that may be used");
    if (error)
        return nib_cuda_fail(err, error, "looking for devices");
    if (ordinal >= count)
        return nib_fail(err, NIB_ERR_ARGUMENT, "cuda: there is no device %d: this machine has %d", ordinal, count);
    if ((error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal)) ||
        (error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal)))
        return nib_cuda_fail(err, error, "looking at the device");
    if (major != CAPABILITY || minor != 0)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "cuda: device %d has compute capability %d.%d; the kernels are for 9.0 (H100, H200)",
                        ordinal, major, minor);
    if ((error = cudaSetDevice(ordinal)))
        return nib_cuda_fail(err, error, "choosing the device");
    return NIB_OK;
}

static nib_status cuda_memory_available(int ordinal, uint64_t *bytes, struct nib_error *err)
{
    size_t left = 0, all = 0;
    nib_status status = find_device(ordinal, err);
    if (status)
        return status;
    cudaError_t error = cudaMemGetInfo(&left, &all);
    *bytes = left;
    return error ? nib_cuda_fail(err, error, "asking for free memory") : NIB_OK;
}

static void cuda_close(struct nib_device *device)
{
    if (!device)
        return;
    cudaSetDevice(device->options.ordinal);
    cudaStreamSynchronize(device->stream);
    nib_cuda_set_profile(device, false);
    nib_cuda_free_step(device);
    nib_cuda_free_stages(device);
    nib_cuda_gemm_free(device->gemm);
    for (int32_t i = 0; i < device->n_weights; i++)
        cudaFree(device->weights[i]);
    free(device->weights);
    cudaFree(device->moe_scratch);
    cudaFree(device->counters);
    cudaFree(device->layer_counters);
    cudaFree(device->layer_partial);
    if (device->stream)
        cudaStreamDestroy(device->stream);
    free(device);
}

// Counters that kernels leave at zero, and find so.
static nib_status alloc_counters(struct nib_device *device, unsigned **counters, size_t count,
                                 struct nib_error *err)
{
    nib_status status = nib_cuda_alloc(counters, count * sizeof **counters, "counters", err);
    cudaError_t error;
    if (!status && (error = cudaMemsetAsync(*counters, 0, count * sizeof **counters, device->stream)))
        status = nib_cuda_fail(err, error, "opening the device");
    return status;
}

static nib_status open_parts(struct nib_device *device, struct nib_error *err)
{
    size_t answers = (size_t)device->options.max_tokens * sizeof *device->host_answers;
    cudaError_t error = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (!error)
        error = cudaMallocHost((void **)&device->host_answers, answers);
    if (!error)
        error = cudaDeviceGetAttribute(&device->multiprocessors, cudaDevAttrMultiProcessorCount,
                                       device->options.ordinal);
    if (error)
        return nib_cuda_fail(err, error, "opening the device");
    nib_status status = nib_cuda_alloc(&device->device_answers, answers, "drawn tokens", err);
    if (!status)
        status = alloc_counters(device, &device->counters, NIB_CUDA_NORM_ROUTE_GROUPS, err);
    if (!status)
        status = alloc_counters(device, &device->layer_counters, NIB_CUDA_LAYER_COUNTERS, err);
    if (!status)
        status = nib_cuda_alloc(&device->layer_partial, nib_cuda_layer_scratch(device->multiprocessors),
                                "parts of attention", err);
    return status ? status : nib_cuda_gemm_create(&device->gemm, &device->gemm_reason, err);
}

static nib_status cuda_open(const struct nib_device_options *options, const struct nib_scratch_query *query,
                            struct nib_device **device, struct nib_error *err)
{
    if (options->exact)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "the cuda device rounds activations to bf16: it has no exact precision");
    nib_status status = find_device(options->ordinal, err);
    if (status)
        return status;
    struct nib_device *opened = calloc(1, sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "the cuda device");
    opened->options = *options;
    opened->limits = *query;
    opened->seed = 1;
    status = open_parts(opened, err);
    if (status) {
        cuda_close(opened);
        return status;
    }
    *device = opened;
    return NIB_OK;
}

static size_t cuda_scratch_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query)
{
    // Of a MoE layer: each route's intermediate and its output.
    size_t routes = (size_t)options->max_tokens * (size_t)query->top_k;
    size_t experts = query->n_experts ? routes * (size_t)(query->hidden + query->intermediate) * sizeof(float) : 0;
    return experts + ((size_t)64 << 20); // cuBLASLt's, and the step's description
}

static size_t cuda_cache_element_bytes(const struct nib_device_options *options)
{
    (void)options;
    return sizeof(uint16_t);
}

static const char *cuda_linear_kernel(const struct nib_device *device, const struct nib_weight *weight,
                                      const char **reason)
{
    if (weight->dtype != NIB_BF16) {
        *reason = "weights of more than bf16's precision: fp32 throughout";
        return "plain";
    }
    *reason = device->gemm_reason;
    return device->gemm ? "skinny, cublaslt" : "skinny";
}

static int cuda_launches(const struct nib_device *device)
{
    return device->launched;
}

static const struct nib_ops cuda_ops = {
    .name = "cuda",
    .buffer_element_bytes = sizeof(float) + sizeof(uint16_t), // fp32, and a bf16 copy
    .rounds = true,
    .widens = true,
    .memory_available = cuda_memory_available,
    .cache_element_bytes = cuda_cache_element_bytes,
    .open = cuda_open,
    .close = cuda_close,
    .scratch_bytes = cuda_scratch_bytes,
    .bind = nib_cuda_bind,
    .bind_moe = nib_cuda_bind_moe,
    .bind_dense_moe = nib_cuda_bind_dense_moe,
    .free_moe = nib_cuda_free_moe,
    .moe_kernel = nib_cuda_moe_kernel,
    .linear_kernel = cuda_linear_kernel,
    .alloc_buffer = nib_cuda_alloc_buffer,
    .free_buffer = nib_cuda_free_buffer,
    .alloc_routes = nib_cuda_alloc_routes,
    .free_routes = nib_cuda_free_routes,
    .alloc_cache = nib_cuda_alloc_cache,
    .free_cache = nib_cuda_free_cache,
    .begin = nib_cuda_begin,
    .end = nib_cuda_end,
    .expert_bytes_read = nib_cuda_expert_bytes_read,
    .read = nib_cuda_read,
    .launches = cuda_launches,
    .read_bandwidth = nib_cuda_read_bandwidth,
    .profile = nib_cuda_set_profile,
    .op_times = nib_cuda_op_times,
    .embed = nib_cuda_note_embed,
    .rms_norm = nib_cuda_note_rms_norm,
    .head_norm = nib_cuda_note_head_norm,
    .linear = nib_cuda_note_linear,
    .linear_heads = nib_cuda_note_linear_heads,
    .rope = nib_cuda_note_rope,
    .append = nib_cuda_note_append,
    .attend = nib_cuda_note_attend,
    .route = nib_cuda_note_route,
    .moe = nib_cuda_note_moe,
    .silu_mul = nib_cuda_note_silu_mul,
    .add = nib_cuda_note_add,
    .gather = nib_cuda_note_gather,
    .all_reduce = nib_cuda_note_all_reduce,
    .sample = nib_cuda_note_sample,
};

const struct nib_ops *nib_cuda_ops(void)
{
    return &cuda_ops;
}
