// Device memory: buffers, routes, caches; and what CUDA's errors become.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "cuda/cuda_device.h"

nib_status nib_cuda_fail(struct nib_error *err, cudaError_t error, const char *doing)
{
    nib_status status = error == cudaErrorMemoryAllocation ? NIB_ERR_MEMORY : NIB_ERR_IO;
    return nib_fail(err, status, "cuda: %s: %s", doing, cudaGetErrorString(error));
}

bool nib_cuda_ok(struct nib_device *device, cudaError_t error, const char *doing)
{
    if (error == cudaSuccess)
        return true;
    if (!device->error.status)
        nib_cuda_fail(&device->error, error, doing);
    return false;
}

nib_status nib_cuda_alloc(void *pointer, size_t bytes, const char *what, struct nib_error *err)
{
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 256);
    memcpy(pointer, &memory, sizeof memory);
    if (error == cudaSuccess)
        return NIB_OK;
    cudaGetLastError(); // a failed allocation leaves the device usable
    if (error != cudaErrorMemoryAllocation)
        return nib_cuda_fail(err, error, what);
    size_t left = 0, all = 0;
    cudaMemGetInfo(&left, &all);
    return nib_fail(err, NIB_ERR_MEMORY, "cuda: out of device memory: %.2f GiB for %s, %.2f of %.2f GiB are free",
                    (double)bytes / 0x1p30, what, (double)left / 0x1p30, (double)all / 0x1p30);
}

static bool count_bytes(int64_t a, int64_t b, int64_t c, size_t element, size_t *bytes)
{
    uint64_t count, all;
    if (!nib_mul_u64((uint64_t)a, (uint64_t)b, &count) || !nib_mul_u64(count, (uint64_t)c, &count) ||
        !nib_mul_u64(count, element, &all) || all > SIZE_MAX / 2)
        return false;
    *bytes = (size_t)all;
    return true;
}

static nib_status too_many(int64_t a, int64_t b, int64_t c, const char *what, struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_LIMIT, "%s: %lld x %lld x %lld elements is too many", what, (long long)a,
                    (long long)b, (long long)c);
}

// The fp32 rows, then the bf16 copy.
nib_status nib_cuda_alloc_buffer(struct nib_device *device, int64_t rows, int64_t width, struct nib_buffer *buffer,
                                 struct nib_error *err)
{
    size_t bytes;
    *buffer = (struct nib_buffer){NULL, rows, width};
    if (!count_bytes(rows, width, 1, sizeof(float) + sizeof(uint16_t), &bytes))
        return too_many(rows, width, 1, "an activation buffer", err);
    if (device->n_buffers == NIB_CUDA_BUFFERS)
        return nib_fail(err, NIB_ERR_LIMIT, "cuda: more than %d activation buffers", NIB_CUDA_BUFFERS);
    size_t wide = ((size_t)rows * (size_t)width * sizeof(float) + 255) / 256 * 256;
    nib_status status = nib_cuda_alloc(&buffer->data, wide + bytes / 3 + 256, "an activation buffer", err);
    if (status)
        return status;
    cudaError_t error = cudaMemsetAsync(buffer->data, 0, wide + bytes / 3 + 256, device->stream);
    device->buffers[device->n_buffers++] = (struct nib_cuda_buffer){
        .data = buffer->data,
        .half = (uint16_t *)((char *)buffer->data + wide),
    };
    return error ? nib_cuda_fail(err, error, "an activation buffer") : NIB_OK;
}

void nib_cuda_free_buffer(struct nib_device *device, struct nib_buffer *buffer)
{
    struct nib_cuda_buffer *known = buffer->data ? nib_cuda_find_buffer(device, buffer->data) : NULL;
    if (known)
        *known = device->buffers[--device->n_buffers];
    cudaFree(buffer->data);
    buffer->data = NULL;
}

struct nib_cuda_buffer *nib_cuda_find_buffer(struct nib_device *device, const void *data)
{
    for (int32_t i = 0; i < device->n_buffers; i++)
        if (device->buffers[i].data == data)
            return &device->buffers[i];
    return NULL;
}

nib_status nib_cuda_alloc_routes(struct nib_device *device, int64_t rows, int64_t top_k, struct nib_routes *routes,
                                 struct nib_error *err)
{
    size_t bytes;
    (void)device;
    *routes = (struct nib_routes){.top_k = top_k};
    if (!count_bytes(rows, top_k, 1, sizeof(float), &bytes))
        return too_many(rows, top_k, 1, "routes", err);
    nib_status status = nib_cuda_alloc(&routes->expert_ids, bytes, "routes", err);
    if (!status)
        status = nib_cuda_alloc(&routes->weights, bytes, "routes", err);
    if (status)
        nib_cuda_free_routes(device, routes);
    return status;
}

void nib_cuda_free_routes(struct nib_device *device, struct nib_routes *routes)
{
    (void)device;
    cudaFree(routes->expert_ids);
    cudaFree(routes->weights);
    *routes = (struct nib_routes){0};
}

nib_status nib_cuda_alloc_cache(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                                int32_t group, struct nib_cache *cache, struct nib_error *err)
{
    size_t bytes;
    *cache = (struct nib_cache){NULL, width, group};
    if (!count_bytes(pages, page_tokens, width, sizeof(uint16_t), &bytes))
        return too_many(pages, page_tokens, width, "the KV cache", err);
    nib_status status = nib_cuda_alloc(&cache->data, bytes, "the KV cache", err);
    if (status)
        return status;
    // Rows that nobody wrote are multiplied by zero weights, so they have to be numbers.
    cudaError_t error = device->options.random_weights
                            ? nib_cuda_fill_normal(device->stream, cache->data, NIB_CUDA_BF16,
                                                   pages * page_tokens * width, 0, 1, device->seed++ << 40)
                            : cudaMemsetAsync(cache->data, 0, bytes, device->stream);
    return error ? nib_cuda_fail(err, error, "the KV cache") : NIB_OK;
}

void nib_cuda_free_cache(struct nib_device *device, struct nib_cache *cache)
{
    (void)device;
    cudaFree(cache->data);
    cache->data = NULL;
}
