// What the devices in host memory share: fp32 buffers, weights that stay where they lie, MoE layers by plan, and the
// entries of struct nib_ops that deal with those. A device that keeps more begins its own struct with this one.
#ifndef NIB_OPS_HOST_DEVICE_H
#define NIB_OPS_HOST_DEVICE_H

#include "ops/dense_fp8.h"
#include "ops/dense_int8.h"
#include "ops/dense_moe.h"
#include "ops/ops.h"

enum { NIB_HOST_ALIGN = 64 }; // bytes, of scratch

struct nib_device {
    const struct nib_ops *ops; // its own table
    struct nib_device_options options;
    const struct nib_step *step; // between begin and end
    struct nib_error error;      // the first failure since begin
    void *moe_scratch;           // grown when a layer is bound
    size_t moe_scratch_bytes;
    uint64_t expert_bytes_read;    // since begin
    struct nib_narrowed *narrowed; // 8-bit copies of dense matrices, with dense_int8
    struct nib_fp8_scales *scales; // of dense matrices in FP8
};

struct nib_moe {
    struct nib_moe_plan *plan;
    struct nib_dense_moe *dense; // in place of the plan
    uint64_t expert_bytes;       // of one expert
    int64_t first_expert, n_experts;
};

static inline float *nib_buffer_row(struct nib_buffer buffer, int64_t row)
{
    return (float *)buffer.data + row * buffer.width;
}

// Threads worth waking for `work` elementary operations: one for what a single thread does in a few microseconds.
static inline int nib_host_threads(const struct nib_device *device, int64_t work)
{
    return work < 32768 ? 1 : device->options.threads;
}

// Aligned scratch of at least one byte, for free; NULL with an error.
void *nib_host_scratch(size_t bytes, struct nib_error *err);

// Frees what binding has left in the device, not the device itself.
void nib_host_clear(struct nib_device *device);

// Bytes of the scratch of a MoE layer whose experts are not MXFP4, zero when the model has no experts.
size_t nib_host_dense_moe_bytes(const struct nib_device_options *options, const struct nib_scratch_query *query);

// A bound layer for experts in MXFP4, around a plan that it takes over, also on failure.
nib_status nib_host_adopt_plan(struct nib_device *device, struct nib_moe_plan *plan,
                               const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                               int64_t top_k, struct nib_moe **moe, struct nib_error *err);

// The layer of x; `rounded` is x in bf16 for plans that want that, or NULL.
void nib_host_run_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                      const uint16_t *rounded /* [T, width] bf16 */, struct nib_routes routes,
                      const struct nib_moe *moe);

// Entries of struct nib_ops.
nib_status nib_host_bind(struct nib_device *device, const struct nib_weight_view *view, struct nib_weight *weight,
                         struct nib_error *err);
nib_status nib_host_bind_dense_moe(struct nib_device *device,
                                   const struct nib_dense_expert *experts, /* [n_experts] */
                                   int64_t n_experts, const struct nib_activation *activation,
                                   struct nib_moe **moe, struct nib_error *err);
void nib_host_free_moe(struct nib_device *device, struct nib_moe *moe);
const char *nib_host_moe_kernel(const struct nib_moe *moe, const char **reason);
nib_status nib_host_alloc_buffer(struct nib_device *device, int64_t rows, int64_t width, struct nib_buffer *buffer,
                                 struct nib_error *err);
void nib_host_free_buffer(struct nib_device *device, struct nib_buffer *buffer);
nib_status nib_host_alloc_routes(struct nib_device *device, int64_t rows, int64_t top_k, struct nib_routes *routes,
                                 struct nib_error *err);
void nib_host_free_routes(struct nib_device *device, struct nib_routes *routes);
nib_status nib_host_alloc_cache(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                                int32_t group, struct nib_cache *cache, struct nib_error *err);
void nib_host_free_cache(struct nib_device *device, struct nib_cache *cache);
void nib_host_begin(struct nib_device *device, const struct nib_step *step);
nib_status nib_host_end(struct nib_device *device, struct nib_error *err);
void nib_host_all_reduce(struct nib_device *device, int64_t rows, struct nib_buffer x);
uint64_t nib_host_expert_bytes_read(const struct nib_device *device);
void nib_host_read(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host /* [rows, width] */);

#endif
