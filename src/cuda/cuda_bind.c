// Dense weights to the device: bf16 as stored, vectors as fp32, anything else widened on the way.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cuda/cuda_device.h"

#define STAGE_BYTES ((size_t)32 << 20)
#define SLICE_BYTES ((size_t)1 << 20) // that a thread copies at a time

nib_status nib_cuda_alloc_weight(struct nib_device *device, size_t bytes, const char *name, void *pointer,
                                 struct nib_error *err)
{
    if (device->n_weights == device->weights_capacity) {
        int32_t capacity = 2 * device->weights_capacity + 256;
        void **grown = realloc(device->weights, (size_t)capacity * sizeof *grown);
        if (!grown)
            return nib_fail_memory(err, (size_t)capacity * sizeof *grown, "a list of weights");
        device->weights = grown;
        device->weights_capacity = capacity;
    }
    void *memory;
    nib_status status = nib_cuda_alloc(&memory, bytes, name, err);
    if (!status)
        device->weights[device->n_weights++] = memory;
    memcpy(pointer, &memory, sizeof memory);
    return status;
}

static nib_status alloc_stages(struct nib_device *device, struct nib_error *err)
{
    for (int i = 0; i < NIB_CUDA_STAGES; i++) {
        cudaError_t error = cudaMallocHost(&device->stages[i], STAGE_BYTES);
        if (!error)
            error = cudaEventCreateWithFlags(&device->stage_free[i], cudaEventDisableTiming);
        if (error)
            return nib_cuda_fail(err, error, "pinned memory for the upload of weights");
    }
    return NIB_OK;
}

void nib_cuda_free_stages(struct nib_device *device)
{
    for (int i = 0; i < NIB_CUDA_STAGES; i++) {
        cudaFreeHost(device->stages[i]);
        if (device->stage_free[i])
            cudaEventDestroy(device->stage_free[i]);
        device->stages[i] = NULL;
        device->stage_free[i] = NULL;
    }
}

// Threads fault the file's pages in side by side: one alone is slower than the bus.
static void copy_slices(char *to, const char *from, size_t bytes, int threads)
{
    size_t slices = (bytes + SLICE_BYTES - 1) / SLICE_BYTES;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (slices > 1)
    for (size_t i = 0; i < slices; i++) {
        size_t begin = i * SLICE_BYTES, left = bytes - begin;
        memcpy(to + begin, from + begin, left < SLICE_BYTES ? left : SLICE_BYTES);
    }
}

nib_status nib_cuda_upload(struct nib_device *device, void *to, const void *from, size_t bytes,
                           struct nib_error *err)
{
    if (!device->stages[0]) {
        nib_status status = alloc_stages(device, err);
        if (status)
            return status;
    }
    for (size_t done = 0; done < bytes;) {
        size_t chunk = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
        int stage = device->next_stage;
        device->next_stage = (stage + 1) % NIB_CUDA_STAGES;
        cudaError_t error = cudaEventSynchronize(device->stage_free[stage]);
        if (!error) {
            copy_slices(device->stages[stage], (const char *)from + done, chunk, device->options.threads);
            error = cudaMemcpyAsync((char *)to + done, device->stages[stage], chunk, cudaMemcpyHostToDevice,
                                    device->stream);
        }
        if (!error)
            error = cudaEventRecord(device->stage_free[stage], device->stream);
        if (error)
            return nib_cuda_fail(err, error, "uploading weights");
        done += chunk;
        if (device->options.on_upload)
            device->options.on_upload(device->options.user, chunk);
    }
    return NIB_OK;
}

// ---- vectors ----

static float element(const struct nib_weight_view *view, int64_t i)
{
    return nib_float_at(view->data, view->dtype, i);
}

// Biases and sinks are small, norms near one, so that made-up activations stay of order one.
static nib_status fill_vector(struct nib_device *device, float *to, const struct nib_weight_view *view,
                              struct nib_error *err)
{
    bool near_one = strstr(view->name, "norm") != NULL;
    cudaError_t error = nib_cuda_fill_normal(device->stream, to, NIB_CUDA_F32, view->cols, near_one ? 1 : 0, 0.05f,
                                             device->seed++ << 40);
    return error ? nib_cuda_fail(err, error, view->name) : NIB_OK;
}

static nib_status bind_vector(struct nib_device *device, const struct nib_weight_view *view,
                              struct nib_weight *weight, struct nib_error *err)
{
    float *to, *wide;
    nib_status status = nib_cuda_alloc_weight(device, (size_t)view->cols * sizeof *to, view->name, &to, err);
    if (status)
        return status;
    *weight = (struct nib_weight){.data = to, .dtype = NIB_F32, .rows = 1, .cols = view->cols};
    if (device->options.random_weights)
        return fill_vector(device, to, view, err);
    wide = malloc((size_t)view->cols * sizeof *wide + 1);
    if (!wide)
        return nib_fail_memory(err, (size_t)view->cols * sizeof *wide, view->name);
    for (int64_t i = 0; i < view->cols; i++)
        wide[i] = element(view, i);
    status = nib_cuda_upload(device, to, wide, (size_t)view->cols * sizeof *wide, err);
    free(wide);
    return status;
}

// ---- matrices ----

static nib_status refuse(const struct nib_weight_view *view, struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_UNSUPPORTED, "tensor %s: the cuda device has no linear for dtype %s", view->name,
                    nib_dtype_name(view->dtype));
}

static float scale_at(const struct nib_weight_view *view, int64_t i)
{
    switch (view->scale_dtype) {
    case NIB_F32:
        return ((const float *)view->scales)[i];
    case NIB_BF16:
        return nib_bf16_to_f32(((const uint16_t *)view->scales)[i]);
    default:
        return nib_e8m0_to_f32(((const uint8_t *)view->scales)[i]);
    }
}

// The scales as the widening kernel reads them, in temporary device memory.
static nib_status upload_scales(struct nib_device *device, const struct nib_weight_view *view, void **scales,
                                struct nib_error *err)
{
    if (view->dtype == NIB_U8) {
        size_t bytes = (size_t)(view->rows * view->cols / NIB_MX_BLOCK);
        nib_status status = nib_cuda_alloc(scales, bytes, view->name, err);
        return status ? status : nib_cuda_upload(device, *scales, view->scales, bytes, err);
    }
    int64_t n = (view->rows + view->block_rows - 1) / view->block_rows *
                ((view->cols + view->block_cols - 1) / view->block_cols);
    float *wide = malloc((size_t)n * sizeof *wide + 1);
    if (!wide)
        return nib_fail_memory(err, (size_t)n * sizeof *wide, view->name);
    for (int64_t i = 0; i < n; i++)
        wide[i] = scale_at(view, i);
    nib_status status = nib_cuda_alloc(scales, (size_t)n * sizeof *wide, view->name, err);
    if (!status)
        status = nib_cuda_upload(device, *scales, wide, (size_t)n * sizeof *wide, err);
    free(wide);
    return status;
}

static nib_status widen(struct nib_device *device, const struct nib_weight_view *view, void *to,
                        enum nib_cuda_element as, struct nib_error *err)
{
    void *raw = NULL, *scales = NULL;
    size_t bytes = (size_t)(view->rows * view->cols) * nib_dtype_size(view->dtype);
    if (view->dtype == NIB_U8)
        bytes /= 2;
    nib_status status = nib_cuda_alloc(&raw, bytes, view->name, err);
    if (!status)
        status = nib_cuda_upload(device, raw, view->data, bytes, err);
    if (!status && view->scales)
        status = upload_scales(device, view, &scales, err);
    if (!status) {
        const struct nib_cuda_stored stored = {.data = raw,
                                               .dtype = (int32_t)view->dtype,
                                               .rows = view->rows,
                                               .cols = view->cols,
                                               .scales = scales,
                                               .block_rows = view->block_rows,
                                               .block_cols = view->block_cols};
        cudaError_t error = nib_cuda_widen(device->stream, to, as, &stored);
        if (!error)
            error = cudaStreamSynchronize(device->stream);
        if (error)
            status = nib_cuda_fail(err, error, view->name);
    }
    cudaFree(raw);
    cudaFree(scales);
    return status;
}

nib_status nib_cuda_bind(struct nib_device *device, const struct nib_weight_view *view, struct nib_weight *weight,
                         struct nib_error *err)
{
    bool plain = nib_dtype_is_plain(view->dtype);
    bool scaled = (view->dtype == NIB_F8_E4M3 || view->dtype == NIB_U8) && view->scales;
    if (!plain && !scaled)
        return refuse(view, err);
    if (device->options.dense_int8 && view->may_narrow)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "tensor %s: the cuda device has no 8-bit dense matrices",
                        view->name);
    if (view->rows == 1 && plain)
        return bind_vector(device, view, weight, err);
    // fp32 and fp16 hold more than bf16 does; codes with scales were made from bf16.
    enum nib_cuda_element as = plain && view->dtype != NIB_BF16 ? NIB_CUDA_F32 : NIB_CUDA_BF16;
    size_t bytes = (size_t)(view->rows * view->cols) * (as == NIB_CUDA_BF16 ? 2 : 4);
    void *to;
    nib_status status = nib_cuda_alloc_weight(device, bytes, view->name, &to, err);
    if (status)
        return status;
    *weight = (struct nib_weight){
        .data = to, .dtype = as == NIB_CUDA_BF16 ? NIB_BF16 : NIB_F32, .rows = view->rows, .cols = view->cols};
    if (device->options.random_weights) {
        // Small enough for branches to stay of order one, large enough for routers to tell tokens apart.
        cudaError_t error =
            nib_cuda_fill_normal(device->stream, to, as, view->rows * view->cols, 0, 0.02f, device->seed++ << 40);
        return error ? nib_cuda_fail(err, error, view->name) : NIB_OK;
    }
    return view->dtype == NIB_BF16 ? nib_cuda_upload(device, to, view->data, bytes, err)
                                   : widen(device, view, to, as, err);
}
