// What the cuda device keeps; shared by the files that implement it.
//
// An operation of the table only notes itself down (cuda_record.c). When a step ends, the list of them is the step's
// program: a decode step whose program was seen before runs as a captured graph (cuda_step.c), any other is turned into
// launches, neighbours sharing one where a kernel can do both (cuda_lower.c). What changes between steps lies in device
// memory and is uploaded in one piece.
#ifndef NIB_CUDA_CUDA_DEVICE_H
#define NIB_CUDA_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "cuda/cuda_gemm.h"
#include "cuda/kernels.h"
#include "cuda/sample.h"
#include "nibble/moe_cuda.h"
#include "ops/ops.h"

enum {
    NIB_CUDA_BUFFERS = 32, // of a model at most
    NIB_CUDA_GRAPHS = 96,  // kept at a time
    NIB_CUDA_ROPES = 8,
    NIB_CUDA_STAGES = 2, // pinned buffers that weights pass through
};

// Rows of fp32 activations, and room for a bf16 copy that is made when a product wants one.
struct nib_cuda_buffer {
    float *data;         /* [rows, width] */
    uint16_t *half;      /* [rows, width] bf16 */
    int64_t fresh_width; // while a step is lowered: half holds data's values in rows of this width; 0: it does not
};

enum nib_cuda_op_kind {
    NIB_CUDA_EMBED,
    NIB_CUDA_RMS_NORM,
    NIB_CUDA_HEAD_NORM,
    NIB_CUDA_LINEAR,
    NIB_CUDA_LINEAR_HEADS,
    NIB_CUDA_ROPE,
    NIB_CUDA_APPEND,
    NIB_CUDA_ATTEND,
    NIB_CUDA_ROUTE,
    NIB_CUDA_MOE,
    NIB_CUDA_SILU_MUL,
    NIB_CUDA_ADD,
    NIB_CUDA_GATHER,
    NIB_CUDA_SAMPLE,
};

// One noted operation. Padding is zero, so that programs are compared byte by byte.
struct nib_cuda_op {
    enum nib_cuda_op_kind kind;
    int32_t rows;
    struct nib_buffer x, y; // what it reads and what it writes; an add and a silu_mul read y too
    struct nib_cuda_matrix weight;
    const float *vector; /* [columns of a row, or heads, or experts] norm weight, bias, sinks or correction */
    float eps;
    int32_t n_heads, head_dim, ordinal; // ordinal: of a route in its step
    bool exact;
    int64_t column;
    union {
        struct nib_cuda_head_product heads;
        struct nib_cuda_rotation rope;
        struct nib_cache caches[2];
        struct nib_cuda_router router;
    };
    struct nib_attend attend;
    struct nib_routes routes;
    const struct nib_moe *moe;
};

// What a step is made of beside its program; two steps alike in both run the same graph.
struct nib_cuda_key {
    int32_t n_tokens, n_sequences, n_outputs, n_groups, table_width, longest;
    const void *wanted; // the buffer that the program was started for, or NULL
};

struct nib_cuda_graph {
    struct nib_cuda_key key;
    struct nib_cuda_op *ops; /* [n_ops] */
    int32_t n_ops;
    int launches;
    uint64_t used; // when, in steps
    cudaGraphExec_t exec;
};

struct nib_moe {
    struct nib_moe_cuda_plan *plan;
    struct nib_cuda_dense_expert *dense; /* [n_experts] on the device, in place of the plan */
    struct nib_activation activation;    // of dense experts
    int64_t hidden, intermediate, first_expert, n_experts;
    uint64_t expert_bytes; // of one expert
    void *memory;          // packed rows, scales and biases
};

struct nib_cuda_profile;

struct nib_device {
    struct nib_device_options options;
    struct nib_scratch_query limits;
    cudaStream_t stream;
    struct nib_error error;     // the first failure since begin
    bool broken;                // a kernel failed: nothing on this device can be trusted any more
    struct nib_cuda_gemm *gemm; // NULL: there is none, and gemm_reason says why
    const char *gemm_reason;

    void **weights; /* [n_weights] what binding allocated */
    int32_t n_weights, weights_capacity;
    void *stages[NIB_CUDA_STAGES]; // pinned
    cudaEvent_t stage_free[NIB_CUDA_STAGES];
    int next_stage;
    uint64_t seed; // of the next made-up weight

    struct nib_cuda_buffer buffers[NIB_CUDA_BUFFERS];
    int32_t n_buffers;
    struct nib_cuda_table {
        const float *host; /* [count] */
        float *device;     /* [count] */
        int64_t count;
    } ropes[NIB_CUDA_ROPES];
    int32_t n_ropes;

    unsigned *counters; /* [NIB_CUDA_NORM_ROUTE_GROUPS] */
    int multiprocessors;
    float *layer_partial;     /* [nib_cuda_layer_scratch bytes] */
    unsigned *layer_counters; /* [NIB_CUDA_LAYER_COUNTERS] */
    void *moe_scratch;
    size_t moe_scratch_bytes;

    // The step.
    const struct nib_step *step;
    struct nib_cuda_key key;
    int32_t *host_block, *device_block; /* [block_capacity bytes] the description, pinned and on the device */
    size_t block_capacity, block_bytes;
    size_t asks_at; // where in the block the draws begin
    struct nib_cuda_step view;
    struct nib_cuda_sample_answer *host_answers, *device_answers; /* [max_tokens] */
    struct nib_drawn *drawn;                                      // where the answers go
    int32_t n_drawn;
    bool flushed; // the program has been started

    struct nib_cuda_op *ops; /* [n_ops] */
    int32_t n_ops, ops_capacity;
    int32_t n_routes;   // routes noted so far
    int32_t *route_log; /* [log_routes, max_tokens, top_k] ids of the step's routes */
    int32_t log_routes, logged_routes, logged_tokens, logged_top_k;
    const struct nib_moe **routed; /* [log_routes] whose experts they are */

    struct nib_cuda_graph graphs[NIB_CUDA_GRAPHS];
    int32_t n_graphs;
    uint64_t steps;
    int launched;                // kernels of the last step
    struct nib_cuda_branch left; // while a step is lowered: what the MoE call before has left to be added up
    struct nib_cuda_profile *profile;
};

// ---- cuda_memory.c ----

// Notes the first failure since begin. True when `error` is none.
bool nib_cuda_ok(struct nib_device *device, cudaError_t error, const char *doing);
nib_status nib_cuda_fail(struct nib_error *err, cudaError_t error, const char *doing);
// Device memory; on failure the message says how much was asked for and how much is left.
nib_status nib_cuda_alloc(void *pointer /* void ** */, size_t bytes, const char *what, struct nib_error *err);
nib_status nib_cuda_alloc_buffer(struct nib_device *device, int64_t rows, int64_t width, struct nib_buffer *buffer,
                                 struct nib_error *err);
void nib_cuda_free_buffer(struct nib_device *device, struct nib_buffer *buffer);
nib_status nib_cuda_alloc_routes(struct nib_device *device, int64_t rows, int64_t top_k, struct nib_routes *routes,
                                 struct nib_error *err);
void nib_cuda_free_routes(struct nib_device *device, struct nib_routes *routes);
nib_status nib_cuda_alloc_cache(struct nib_device *device, int64_t pages, int64_t page_tokens, int64_t width,
                                int32_t group, struct nib_cache *cache, struct nib_error *err);
void nib_cuda_free_cache(struct nib_device *device, struct nib_cache *cache);
struct nib_cuda_buffer *nib_cuda_find_buffer(struct nib_device *device, const void *data);

// ---- cuda_bind.c ----

nib_status nib_cuda_bind(struct nib_device *device, const struct nib_weight_view *view, struct nib_weight *weight,
                         struct nib_error *err);
// Memory that lives as long as the device.
nib_status nib_cuda_alloc_weight(struct nib_device *device, size_t bytes, const char *name, void *pointer,
                                 struct nib_error *err);
// Copies host memory by way of the pinned stages; the source may be changed once it returns.
nib_status nib_cuda_upload(struct nib_device *device, void *to, const void *from, size_t bytes,
                           struct nib_error *err);
void nib_cuda_free_stages(struct nib_device *device);

// ---- cuda_experts.c ----

nib_status nib_cuda_bind_moe(struct nib_device *device, const struct nib_moe_weights *weights,
                             const struct nib_moe_config *config, int64_t top_k, struct nib_moe **moe,
                             struct nib_error *err);
nib_status nib_cuda_bind_dense_moe(struct nib_device *device, const struct nib_dense_expert *experts,
                                   int64_t n_experts, const struct nib_activation *activation,
                                   struct nib_moe **moe, struct nib_error *err);
void nib_cuda_free_moe(struct nib_device *device, struct nib_moe *moe);
const char *nib_cuda_moe_kernel(const struct nib_moe *moe, const char **reason);
uint64_t nib_cuda_expert_bytes_read(const struct nib_device *device);
// With `branch`, which then says where they are, the routes' outputs are left to be added up: see
// nib_cuda_leaves_routes.
cudaError_t nib_cuda_launch_moe(struct nib_device *device, const struct nib_cuda_op *op,
                                const uint16_t *x_half /* [T, K] bf16 */, struct nib_cuda_branch *branch,
                                int *launches);
bool nib_cuda_leaves_routes(const struct nib_cuda_op *moe);

// ---- cuda_record.c: the operations of struct nib_ops ----

void nib_cuda_note_embed(struct nib_device *device, struct nib_buffer y, const struct nib_weight *table);
void nib_cuda_note_rms_norm(struct nib_device *device, int64_t rows, struct nib_buffer y, struct nib_buffer x,
                            const struct nib_weight *weight, float eps);
void nib_cuda_note_head_norm(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                             const struct nib_weight *weight, float eps);
void nib_cuda_note_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                          const struct nib_projection *projections, int n_projections);
void nib_cuda_note_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                                const struct nib_head_product *product);
void nib_cuda_note_rope(struct nib_device *device, struct nib_buffer x, int64_t n_heads, int64_t head_dim,
                        const struct nib_rope *rope);
void nib_cuda_note_append(struct nib_device *device, struct nib_cache cache, struct nib_buffer x);
void nib_cuda_note_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q,
                          struct nib_cache keys, struct nib_cache values, const struct nib_attend *attend);
void nib_cuda_note_route(struct nib_device *device, struct nib_routes routes, struct nib_buffer logits,
                         const struct nib_router *router);
void nib_cuda_note_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                       struct nib_routes routes, const struct nib_moe *moe);
void nib_cuda_note_silu_mul(struct nib_device *device, struct nib_buffer gate, struct nib_buffer up);
void nib_cuda_note_add(struct nib_device *device, struct nib_buffer x, struct nib_buffer y);
void nib_cuda_note_gather(struct nib_device *device, struct nib_buffer y, struct nib_buffer x);
void nib_cuda_note_all_reduce(struct nib_device *device, int64_t rows, struct nib_buffer x);
void nib_cuda_note_sample(struct nib_device *device, int64_t rows, struct nib_buffer logits,
                          const struct nib_draw *draws, struct nib_drawn *drawn);

// ---- cuda_lower.c ----

// Turns the program into launches on the device's stream; false, with the error noted, when one fails.
bool nib_cuda_lower(struct nib_device *device);

// ---- cuda_step.c ----

void nib_cuda_begin(struct nib_device *device, const struct nib_step *step);
nib_status nib_cuda_end(struct nib_device *device, struct nib_error *err);
void nib_cuda_read(struct nib_device *device, int64_t rows, struct nib_buffer x, float *host /* [rows, width] */);
// Where the asks of `rows` draws go in the description.
struct nib_cuda_sample_ask *nib_cuda_asks(struct nib_device *device, int64_t rows);
void nib_cuda_free_step(struct nib_device *device);

// ---- cuda_profile.c ----

void nib_cuda_set_profile(struct nib_device *device, bool on);
int nib_cuda_op_times(const struct nib_device *device, const struct nib_op_time **times);
// Around each launch of a profiled step; nothing otherwise.
void nib_cuda_profile_begin(struct nib_device *device);
void nib_cuda_profile_mark(struct nib_device *device, const char *name, int launches);
void nib_cuda_profile_finish(struct nib_device *device);
nib_status nib_cuda_read_bandwidth(struct nib_device *device, double *bytes_per_second, struct nib_error *err);

#endif
