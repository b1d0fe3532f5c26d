// The one seam between models and devices: what a device can do, as one table of functions over device buffers.
//
// Models call the table and never ask which device it is. ref_ops() gives every operation its meaning in plain fp32;
// every other device agrees with it within stated bounds. Three rules make the seam hold for a GPU and for several ranks:
// a weight is bound once and is opaque from then on; a step is described once (begin) and the operations enqueue on that
// description in order, reading nothing on the host that changes between steps; all_reduce is an operation.
//
// Operations return nothing: a device remembers its first failure and reports it from `end`.
#ifndef NIB_OPS_OPS_H
#define NIB_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/moe.h"
#include "nibble/mx.h"
#include "nibble/status.h"

struct nib_device; // one opened device: its threads or streams, its scratch

struct nib_device_options {
    int threads;           // CPU threads, >= 1
    int32_t max_tokens;    // tokens in one step at most
    int32_t max_sequences; // sequences in one step at most
    bool dense_int8;       // narrow the matrices that allow it to 8 bits: lossy, so only when asked for
    bool exact;            // round no activation and no cached row to bf16
    int ordinal;           // which of several devices of a kind
    bool deterministic;    // a row's bits depend on nothing else in the step, nor on how its prompt was cut
    bool random_weights;   // for benchmarks: bytes of weights are made up, not read; caches hold random rows
    // Called while weights are copied to the device, with the bytes just copied; may be NULL.
    void (*on_upload)(void *user, uint64_t bytes);
    void *user;
};

// A dense matrix or vector as it lies in the checkpoint (a vector has rows = 1).
struct nib_weight_view {
    const void *data;     /* [rows, cols] */
    enum nib_dtype dtype; // NIB_BF16, NIB_F32, NIB_F16; NIB_F8_E4M3 with scales; NIB_U8: MXFP4, with E8M0 scales
    int64_t rows, cols;
    const char *name;           // for messages; lives as long as the checkpoint
    bool may_narrow;            // a matrix that is only ever multiplied with, and whose result chooses no expert
    const void *scales;         /* [ceil(rows / block_rows), ceil(cols / block_cols)] of NIB_F8_E4M3; else NULL */
    enum nib_dtype scale_dtype; // NIB_F32, NIB_BF16, or NIB_F8_E8M0 (also written NIB_U8)
    int64_t block_rows, block_cols;
};

// The same, bound to a device. `data` is null when the weight is absent (an optional bias).
struct nib_weight {
    const void *data;
    enum nib_dtype dtype; // NIB_I8: narrowed by the device, one scale a row
    int64_t rows, cols;
    // An element of NIB_I8 and NIB_F8_E4M3 is its code times the scale of its block; NULL otherwise. A weight that is cut
    // out of a taller one keeps that one's scales, among which its own begin at row first_row.
    const float *scales; /* [blocks of rows, ceil(cols / block_cols)] */
    int64_t block_rows, block_cols, first_row;
    // NIB_U8 is MXFP4, data being [rows, cols / 2] packed codes.
    const uint8_t *exponents; /* [rows, cols / 32] E8M0 */
};

static inline size_t nib_weight_row_bytes(const struct nib_weight *weight)
{
    size_t cols = (size_t)weight->cols;
    return weight->dtype == NIB_U8 ? cols / 2 : cols * nib_dtype_size(weight->dtype);
}

// Binds a view in MXFP4, for devices that read it where it lies.
static inline struct nib_weight nib_mxfp4_weight(const struct nib_weight_view *view)
{
    return (struct nib_weight){.data = view->data,
                               .dtype = NIB_U8,
                               .rows = view->rows,
                               .cols = view->cols,
                               .exponents = (const uint8_t *)view->scales};
}

// One expert of matrices that are not MXFP4, bound one by one.
struct nib_dense_expert {
    struct nib_weight gate, up, down;                /* [intermediate, hidden] twice, [hidden, intermediate] */
    struct nib_weight gate_bias, up_bias, down_bias; // data = NULL: none
};

// Activations on a device: [rows, width], row-major, element type of the device's choosing (fp32 on ref and cpu).
struct nib_buffer {
    void *data;
    int64_t rows, width;
};

// Experts chosen for each token of a step.
struct nib_routes {
    int32_t *expert_ids; /* [max_tokens, top_k] */
    float *weights;      /* [max_tokens, top_k] */
    int64_t top_k;
};

// Rows that a layer remembers, in pages of `page_tokens` tokens. Caches of one group share their page tables.
struct nib_cache {
    void *data; /* [pages, page_tokens, width], element type of the device's choosing */
    int64_t width;
    int32_t group;
};

// One step: a flat batch of T tokens, the tokens of a sequence being consecutive rows with consecutive positions.
// Everything is owned by the engine and stays valid until `end`.
struct nib_step {
    int32_t n_tokens;           // T
    int32_t n_sequences;        // S
    int32_t n_outputs;          // R
    int32_t page_tokens;        // tokens a page, a power of two
    int32_t n_groups;           // cache groups
    int32_t table_width;        // pages in one row of a page table
    const int32_t *tokens;      /* [T] token ids */
    const int32_t *positions;   /* [T] */
    const int32_t *sequence_of; /* [T] in [0, S) */
    const int32_t *first_row;   /* [S + 1] rows of sequence s are first_row[s] .. first_row[s+1] - 1 */
    const int32_t
        *page_tables; /* [n_groups, S, table_width] page of tokens p*page_tokens…, -1 where freed or unused */
    const int32_t *output_rows; /* [R] rows whose logits are wanted, ascending */
};

// One product of a `linear` call.
struct nib_projection {
    struct nib_buffer y;             /* [rows, width]: columns column … column + weight rows - 1 are written */
    const struct nib_weight *weight; /* [out, in] */
    const struct nib_weight *bias;   /* [out] or data = NULL */
    bool exact;                      // inputs stay fp32 (routers: a rounded input would choose other experts)
    int64_t column;
};

// A product for each head, with rows of its own out of one matrix: head h has the `rows` rows from
// h * row_pitch + first_row on. y_h = x_h * W_h^T, or x_h * W_h when transposed. Heads lie x_pitch and y_pitch elements
// apart; `tail` elements of x that follow x_h are copied behind y_h.
struct nib_head_product {
    const struct nib_weight *weight; /* [n_heads * row_pitch, cols] */
    int64_t n_heads, row_pitch, first_row, rows;
    bool transposed;
    int64_t x_pitch, y_pitch, tail;
};

// Rotary positions: element pairs (i, i + d/2), or (2i, 2i + 1) when interleaved, of the `dims` elements of each head
// from `first` on.
struct nib_rope {
    const float *inv_freq; /* [dims / 2], owned by the model */
    int64_t first, dims;
    float scale; // cos and sin are multiplied by it
    bool interleaved;
};

struct nib_attend {
    int64_t n_heads, n_kv_heads; // query heads h share kv head h / (n_heads / n_kv_heads)
    int64_t head_dim, v_dim;
    int64_t window;    // a query at position p sees keys at p - window + 1 … p; 0: all up to p
    float scale;       // of the logits
    float value_scale; // of the result
    const struct nib_weight
        *sinks; /* [n_heads] an extra logit per head that takes probability and adds no value; or NULL */
};

enum nib_router_kind {
    NIB_ROUTER_TOPK_SOFTMAX, // the top_k largest logits, softmax over those (gpt-oss)
    NIB_ROUTER_SOFTMAX,      // scores are the softmax over all experts
    NIB_ROUTER_SIGMOID,      // scores are sigmoids
};

// The top_k experts with the largest score + correction; their weights are the bare scores. With n_groups > 1 a group of
// neighbouring experts counts as much as its two best together, and only the top_groups best groups are chosen from.
struct nib_router {
    enum nib_router_kind kind;
    int64_t n_experts, top_k;
    const struct nib_weight *correction; /* [n_experts], or NULL */
    int64_t n_groups, top_groups;        // groups of at least two experts; 0 or 1: none
    bool normalise;                      // weights are divided by their sum
    float scale;                         // and multiplied by this
};

struct nib_moe; // a bound MoE layer

// The model's sizes that a device's scratch depends on: known before anything is allocated, bound or opened.
struct nib_scratch_query {
    int64_t max_width; // the widest input of a linear
    int64_t n_experts, top_k, hidden, intermediate;
    int64_t n_heads, head_dim; // head_dim: the larger of head_dim and v_dim
};

// What one row of logits is to be drawn with; fields as in struct nib_sampling.
struct nib_draw {
    double unit; // the uniform random number in [0, 1) to draw with
    float temperature, top_p, min_p;
    int32_t top_k;
    int32_t n_top; // likeliest tokens to report, at most NIB_DRAW_TOP; -1: not even the drawn token's logprob
};

#define NIB_DRAW_TOP 20

struct nib_drawn {
    int32_t token; // -1: no logit is a number
    float logprob;
    int32_t n_top;
    int32_t top_tokens[NIB_DRAW_TOP]; // likeliest first, of equals the lower id
    float top_logprobs[NIB_DRAW_TOP];
};

// Time that one kind of operation took in a profiled step.
struct nib_op_time {
    const char *name;
    int launches;
    double seconds;
};

struct nib_ops {
    const char *name;
    size_t buffer_element_bytes;
    bool rounds; // activations are always rounded to bf16 for products: there is no `exact`
    bool widens; // bind keeps dense matrices in bf16 or fp32, whatever they are stored in
    // Memory that a device has left; NULL: the host's. Fails where there is no such device, with the reason.
    nib_status (*memory_available)(int ordinal, uint64_t *bytes, struct nib_error *err);
    size_t (*cache_element_bytes)(const struct nib_device_options *options); // of nib_cache.data

    // Allocates the scratch that scratch_bytes states, or leaves what a MoE layer needs of it to bind_moe.
    nib_status (*open)(const struct nib_device_options *options, const struct nib_scratch_query *query,
                       struct nib_device **device, struct nib_error *err);
    void (*close)(struct nib_device *device);
    size_t (*scratch_bytes)(const struct nib_device_options *options, const struct nib_scratch_query *query);

    // Binding: once, at load. The view's bytes must outlive the device.
    nib_status (*bind)(struct nib_device *device, const struct nib_weight_view *view, struct nib_weight *weight,
                       struct nib_error *err);
    nib_status (*bind_moe)(struct nib_device *device, const struct nib_moe_weights *weights,
                           const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                           struct nib_error *err);
    // The same of experts that are not MXFP4, all of one size; the array must outlive the layer.
    nib_status (*bind_dense_moe)(struct nib_device *device,
                                 const struct nib_dense_expert *experts, /* [n_experts] */
                                 int64_t n_experts, const struct nib_activation *activation, struct nib_moe **moe,
                                 struct nib_error *err);
    void (*free_moe)(struct nib_device *device, struct nib_moe *moe);
    // The kernel that a bound MoE layer, or a linear of this weight, will run, and why (static or as old as the device).
    const char *(*moe_kernel)(const struct nib_moe *moe, const char **reason);
    const char *(*linear_kernel)(const struct nib_device *device, const struct nib_weight *weight,
                                 const char **reason);

    nib_status (*alloc_buffer)(struct nib_device *device, int64_t rows, int64_t width, struct nib_buffer *buffer,
                               struct nib_error *err);
    void (*free_buffer)(struct nib_device *device, struct nib_buffer *buffer);
    nib_status (*alloc_routes)(struct nib_device *device, int64_t rows, int64_t top_k, struct nib_routes *routes,
                               struct nib_error *err);
    void (*free_routes)(struct nib_device *device, struct nib_routes *routes);
    // Pages are not touched until rows are appended, so a large pool costs only what is used.
    nib_status (*alloc_cache)(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                              int32_t group, struct nib_cache *cache, struct nib_error *err);
    void (*free_cache)(struct nib_device *device, struct nib_cache *cache);

    // A step. Between begin and end the operations below run in the order they are called.
    void (*begin)(struct nib_device *device, const struct nib_step *step);
    nib_status (*end)(struct nib_device *device, struct nib_error *err);

    // y[t] = table[tokens[t]]
    void (*embed)(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table);
    // y = x / sqrt(mean(x^2) + eps) * weight, over `rows` rows; y may be x
    void (*rms_norm)(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                     const struct nib_weight *weight, float eps);
    // the same in place for each of the n_heads heads of x, [T, n_heads * head_dim]: of a head's first weight->cols elements
    void (*head_norm)(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                      const struct nib_weight *weight, float eps);
    // y_i = x * weight_i^T + bias_i for each projection of one input
    void (*linear)(struct nib_device *device, int64_t rows, struct nib_buffer x,
                   const struct nib_projection *projections, int n_projections);
    // y = the product of each head of x, the step's T rows
    void (*linear_heads)(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                         const struct nib_head_product *product);
    // rotates the heads of x in place at the step's positions; x is [T, n_heads * head_dim]
    void (*rope)(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                 const struct nib_rope *rope);
    // writes the step's T rows of x into their pages
    void (*append)(struct nib_device *device, struct nib_cache cache, struct nib_buffer x);
    // y[t, h] = softmax(q[t, h] * K^T * scale with the sink) * V * value_scale over the sequence's cached rows that t may
    // see. The values may be the first v_dim columns of the keys' own cache (latent attention: one kv head).
    void (*attend)(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                   struct nib_cache values, const struct nib_attend *attend);
    void (*route)(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                  const struct nib_router *router);
    // y = the MoE layer of x (see nibble/moe.h)
    void (*moe)(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
                const struct nib_moe *moe);
    // gate = silu(gate) * up, the step's T rows
    void (*silu_mul)(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up);
    // x += y, the step's T rows
    void (*add)(struct nib_device *device, struct nib_buffer x, struct nib_buffer y);
    // y[r] = x[output_rows[r]]
    void (*gather)(struct nib_device *device, struct nib_buffer y, struct nib_buffer x);
    // sums x over the ranks; nothing to do on one
    void (*all_reduce)(struct nib_device *device, int64_t rows, struct nib_buffer x);
    // packed bytes of the distinct experts that the MoE layers of the last step read, for benchmarks
    uint64_t (*expert_bytes_read)(const struct nib_device *device);
    // waits for the step's operations and copies `rows` rows to the host as fp32; also after `end`. A device may leave out
    // what neither a later operation nor the step's first read takes up: other buffers then hold anything
    void (*read)(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host /* [rows, width] */);

    // ---- optional: NULL where a device has nothing of its own ----

    // Draws a token from each of `rows` rows of logits; `drawn` is filled when `end` returns.
    void (*sample)(struct nib_device *device, int64_t rows, struct nib_buffer logits,
                   const struct nib_draw *draws /* [rows] */, struct nib_drawn *drawn /* [rows] */);
    // Kernels launched by the last step.
    int (*launches)(const struct nib_device *device);
    // Bytes a second that a plain read of the device's memory reaches.
    nib_status (*read_bandwidth)(struct nib_device *device, double *bytes_per_second, struct nib_error *err);
    // From now on steps are timed operation by operation (and are slower for it), or no longer.
    void (*profile)(struct nib_device *device, bool on);
    // The times of the last profiled step, by kind; how many kinds there are.
    int (*op_times)(const struct nib_device *device, const struct nib_op_time **times);
};

const struct nib_ops *nib_ref_ops(void);
const struct nib_ops *nib_cpu_ops(void);
const struct nib_ops *nib_cuda_ops(void); // NULL in a build without CUDA

#endif
