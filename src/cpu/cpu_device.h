// What the cpu device keeps, and the small helpers that its operations share.
#ifndef NIB_CPU_CPU_DEVICE_H
#define NIB_CPU_CPU_DEVICE_H

#include "cpu/cpu_kernels.h"
#include "ops/host_device.h"

struct nib_cpu_device {
    struct nib_device host; // first, so that a device leads here
    struct nib_scratch_query limits;
    int cache_parts; // bf16 parts whose sum is a cached element: 1, or 2 with options.exact
    const struct nib_cpu_kernels *kernels;
    uint16_t *rounded;    /* [max_tokens, nib_rounded_pitch(widest)] inputs of linears and MoE layers as bf16 */
    void *attend_scratch; /* [threads] of attend_scratch_bytes */
    size_t attend_scratch_bytes;
    float *partials; /* [partial_rows, partial_pitch]: output, largest, sum of a row over one range */
    int64_t partial_rows, partial_pitch;
};

static inline const struct nib_cpu_device *nib_cpu_of(const struct nib_device *device)
{
    return (const struct nib_cpu_device *)device;
}

static inline int64_t nib_round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

// Elements from one row of rounded inputs to the next: whole 64-byte vectors, and never a multiple of 2 KiB, which would
// put the tokens of a tile into the same few sets of the first-level cache.
static inline int64_t nib_rounded_pitch(int64_t cols)
{
    int64_t pitch = nib_round_up(cols, 32);
    return pitch % 1024 ? pitch : pitch + 32;
}

// One element of a bound weight as fp32.
static inline float nib_weight_element(const struct nib_weight *weight, int64_t index)
{
    return nib_float_at(weight->data, weight->dtype, index);
}

// The cached row of a position, or NULL where its page is freed: `width` bf16, and as many with what the rounding of
// those took away when the cache has two parts.
static inline uint16_t *nib_cached_row(const struct nib_device *device, struct nib_cache cache, int64_t sequence,
                                       int64_t position)
{
    const struct nib_step *step = device->step;
    const int32_t *table = step->page_tables + (cache.group * step->n_sequences + sequence) * step->table_width;
    int64_t page = table[position / step->page_tokens];
    if (page < 0)
        return NULL;
    int64_t row = page * step->page_tokens + position % step->page_tokens;
    return (uint16_t *)cache.data + row * cache.width * nib_cpu_of(device)->cache_parts;
}

// Bytes of one thread's scratch for attention.
size_t nib_cpu_attend_scratch_bytes(const struct nib_scratch_query *query, int cache_parts);

void nib_cpu_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table);
void nib_cpu_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                      const struct nib_weight *weight, float eps);
void nib_cpu_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                       const struct nib_weight *weight, float eps);
void nib_cpu_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                          const struct nib_head_product *product);
void nib_cpu_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up);
void nib_cpu_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                    const struct nib_projection *projections, int n_projections);
void nib_cpu_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                  const struct nib_rope *rope);
void nib_cpu_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x);
void nib_cpu_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                    struct nib_cache values, const struct nib_attend *attend);
void nib_cpu_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                   const struct nib_router *router);
void nib_cpu_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
                 const struct nib_moe *moe);
void nib_cpu_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y);
void nib_cpu_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x);

#endif
