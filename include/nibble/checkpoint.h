// Reading a checkpoint: safetensors files, config.json, and the layouts in which MXFP4 experts are published.
//
// Files are mapped, never read as a whole; a tensor is a view into the map and lives as long as its checkpoint. Every
// size, offset and shape that a file states is checked before a view on it is handed out, so a checkpoint that opened
// can be read without fear, whatever its bytes. Formats are decided per tensor from names, element type and shape; the
// file's labels (quant_method and the like) are never needed.
//
// Threads: opening, closing and the functions that take a non-const checkpoint belong to one thread at a time; all
// others may be called from any number of threads.
#ifndef NIBBLE_CHECKPOINT_H
#define NIBBLE_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/moe.h"
#include "nibble/mx.h"
#include "nibble/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define NIB_TENSOR_MAX_RANK 8

struct nib_tensor {
    const char *name;
    enum nib_dtype dtype;
    int rank;
    int64_t shape[NIB_TENSOR_MAX_RANK]; // every extent >= 0
    const void *data;                   // `bytes` bytes, row-major, little-endian, aligned to the element's size
    uint64_t bytes;                     // product of the shape times the element's size
    const char *file;                   // path of the file it lies in
};

// The product of the shape.
int64_t nib_tensor_elements(const struct nib_tensor *tensor);

// Writes "BF16 [201088, 2880]" into `text` (cut short if it does not fit) and returns it.
const char *nib_tensor_describe(const struct nib_tensor *tensor, char *text, size_t capacity);

struct nib_checkpoint;
struct nib_config;

// Opens a folder (config.json with model.safetensors.index.json and its shards, or model.safetensors, or any
// *.safetensors) or one .safetensors file (then there is no config). An index is checked against the shards' headers:
// each name in the shard it is said to be in, none missing, none extra; its total_size is advisory and not read.
// Holes between tensors are refused, as the safetensors format demands. Data that a file left unaligned for its element
// type is copied once (nib_checkpoint_copied_bytes says how much; packed bytes and scales never are).
// NIB_ERR_ARGUMENT for an empty path, NIB_ERR_NOT_FOUND for a missing file, NIB_ERR_IO when the system refuses,
// NIB_ERR_FORMAT for anything malformed, NIB_ERR_UNSUPPORTED for an element type that nibble does not know. Closed with
// nib_checkpoint_close.
nib_status nib_checkpoint_open(const char *path, struct nib_checkpoint **checkpoint, struct nib_error *err);
void nib_checkpoint_close(struct nib_checkpoint *checkpoint); // NULL is fine

const char *nib_checkpoint_path(const struct nib_checkpoint *checkpoint);
// NULL when a single file was opened.
const struct nib_config *nib_checkpoint_config(const struct nib_checkpoint *checkpoint);
// generation_config.json, or NULL when there is none.
const struct nib_config *nib_checkpoint_generation(const struct nib_checkpoint *checkpoint);
// The value of a key of the first file's __metadata__ that has it, or NULL.
const char *nib_checkpoint_metadata(const struct nib_checkpoint *checkpoint, const char *key);
// The ids that end a text: eos_token_id of generation_config.json and of config.json, each once, at most `capacity`.
nib_status nib_checkpoint_eos_ids(const struct nib_checkpoint *checkpoint, int32_t *ids /* [capacity] */,
                                  int capacity, int *count, struct nib_error *err);

size_t nib_checkpoint_file_count(const struct nib_checkpoint *checkpoint);
const char *nib_checkpoint_file(const struct nib_checkpoint *checkpoint, size_t index);
uint64_t nib_checkpoint_bytes(const struct nib_checkpoint *checkpoint);        // of all tensors
uint64_t nib_checkpoint_copied_bytes(const struct nib_checkpoint *checkpoint); // unaligned data, on the heap

// Tensors in the order of their names.
size_t nib_checkpoint_count(const struct nib_checkpoint *checkpoint);
const struct nib_tensor *nib_checkpoint_at(const struct nib_checkpoint *checkpoint, size_t index);
// The tensor of that name, or NULL. Does not count as use.
const struct nib_tensor *nib_checkpoint_peek(const struct nib_checkpoint *checkpoint, const char *name);

// The same for whoever is going to use the tensor: it is marked, so that what nobody asked for can be listed at the end.
const struct nib_tensor *nib_checkpoint_find(struct nib_checkpoint *checkpoint, const char *name);
// As find; NIB_ERR_NOT_FOUND names the tensor and the path.
nib_status nib_checkpoint_require(struct nib_checkpoint *checkpoint, const char *name,
                                  const struct nib_tensor **tensor, struct nib_error *err);
// Marks all tensors whose name begins with `prefix` as knowingly left aside; returns how many there are.
size_t nib_checkpoint_skip(struct nib_checkpoint *checkpoint, const char *prefix);
// The first unmarked tensor after `after` (NULL: from the start), or NULL.
const struct nib_tensor *nib_checkpoint_next_unused(const struct nib_checkpoint *checkpoint,
                                                    const struct nib_tensor *after);

enum nib_advice { NIB_ADVICE_NORMAL, NIB_ADVICE_SEQUENTIAL, NIB_ADVICE_WILL_NEED, NIB_ADVICE_DONT_NEED };

// Tells the system how the tensor's pages will be used; DONT_NEED lets go of pages that were read.
void nib_checkpoint_advise(const struct nib_checkpoint *checkpoint, const struct nib_tensor *tensor,
                           enum nib_advice advice);

// ---- Experts ----

// How a layer's experts lie in the file.
enum nib_expert_layout {
    NIB_EXPERTS_GPT_OSS,          // P.gate_up_proj_blocks [E, 2I, K/32, 16], _scales, _bias; rows alternate
    NIB_EXPERTS_GPT_OSS_ORIGINAL, // P.mlp1_weight.blocks, .scales, P.mlp1_bias, P.mlp2_…; rows alternate
    NIB_EXPERTS_FUSED,            // P.w13_weight [E, 2I, K/2], _scale [E, 2I, K/32]; P.w2_weight; or w13, s13, …
    NIB_EXPERTS_QUARK,            // P.E.gate_proj.weight U8 [I, K/2], .weight_scale U8 [I, K/32]; or w1, w3, w2
    NIB_EXPERTS_COMPRESSED_TENSORS, // P.E.w1.weight_packed U8, .weight_scale U8; or gate_proj, …
    NIB_EXPERTS_DEEPSEEK,           // P.E.w1.weight I8, .scale F8_E8M0; or gate_proj, …
    NIB_EXPERTS_LAYOUT_COUNT
};

const char *nib_expert_layout_name(enum nib_expert_layout layout); // "gpt-oss", "quark", …

// One layer's routed experts: views into the map, nothing copied. `weights.experts` belongs to the checkpoint and
// lives as long.
struct nib_experts {
    const char *prefix; // what the layer's tensor names begin with: "model.layers.0.mlp.experts"
    enum nib_expert_layout layout;
    struct nib_moe_weights weights;
    bool interleaved;                        // gate and up rows alternate
    const struct nib_tensor *weight, *scale; // the gate's of the first expert, or the fused ones: for reports
    uint64_t bytes;                          // packed weights, scales and biases
};

// Finds the experts below `prefix` and marks their tensors as used. The prefix is everything before the expert number
// or the fused tensor's own name, without the dot: "model.layers.3.mlp.experts", "layers.3.ffn.experts", "block.3.mlp".
// `gate_up_interleaved` says how the rows of NIB_EXPERTS_FUSED are ordered, which nothing in the tensors shows; the other
// layouts know. A file's metadata "gate_up_layout" (interleaved or concatenated) outweighs both for fused tensors.
// NIB_ERR_NOT_FOUND when there are none or a tensor is missing, NIB_ERR_UNSUPPORTED when they are not
// MXFP4, NIB_ERR_FORMAT when shapes or types disagree; the message names the tensor and the numbers.
nib_status nib_checkpoint_experts(struct nib_checkpoint *checkpoint, const char *prefix, bool gate_up_interleaved,
                                  struct nib_experts *experts, struct nib_error *err);

// The prefixes of all groups of routed experts, ascending by layer number. The array belongs to the checkpoint.
nib_status nib_checkpoint_expert_prefixes(struct nib_checkpoint *checkpoint, const char *const **prefixes,
                                          size_t *count, struct nib_error *err);

// Scans every scale byte of a layer for 255, which E8M0 reads as NaN. NIB_ERR_FORMAT names tensor, row and block of the
// first. Reads all scales (1/17 of the experts' bytes), so loading does not do it unasked.
nib_status nib_checkpoint_check_scales(const struct nib_checkpoint *checkpoint, const struct nib_experts *experts,
                                       struct nib_error *err);

// ---- Dense matrices ----

enum nib_linear_kind {
    NIB_LINEAR_PLAIN, // F32, F16 or BF16 as weight->dtype says
    NIB_LINEAR_FP8,   // E4M3 times the scale of its block: block_rows x block_cols elements share one
    NIB_LINEAR_MXFP4, // packed U8 or I8 [rows, cols/2], E8M0 scales [rows, cols/32]
};

// weight[r, c] = element[r, c] * scale[r / block_rows, c / block_cols], scale_cols scales in a row.
struct nib_linear_view {
    enum nib_linear_kind kind;
    int64_t rows, cols; // out and in features, in elements
    const struct nib_tensor *weight;
    const struct nib_tensor *scale; // NULL for plain; F32, BF16 or F8_E8M0 (U8 holds E8M0 too)
    const struct nib_tensor *bias;  // [rows], or NULL
    int64_t block_rows, block_cols; // 1 x cols: per channel; rows x cols: one scale for all; 0 for plain
    int64_t scale_rows, scale_cols;
};

// The matrix called `name` (without ".weight": "model.layers.0.self_attn.q_proj"), whatever form it is stored in; marks
// its tensors as used. Errors as for experts.
nib_status nib_checkpoint_linear(struct nib_checkpoint *checkpoint, const char *name, struct nib_linear_view *view,
                                 struct nib_error *err);

// "bf16", "fp8 128x128", "fp8 channel", "mxfp4", …: for reports.
const char *nib_linear_describe(const struct nib_linear_view *view, char *text, size_t capacity);

// ---- config.json ----

// A key is looked up in `text_config` first, where there is one, and then at the top. "rope_parameters.factor" is the
// key "factor" of the object "rope_parameters". A null counts as absent. An integer may be written as 64.0. On a wrong
// type or a value outside [low, high] the error (NIB_ERR_FORMAT) names file, key and value; on an absent key
// (NIB_ERR_NOT_FOUND) file and key. Strings belong to the config.
nib_status nib_config_load(const char *path, struct nib_config **config, struct nib_error *err);
nib_status nib_config_parse(const char *text, size_t size, const char *name_for_messages,
                            struct nib_config **config, struct nib_error *err);
void nib_config_free(struct nib_config *config); // NULL is fine

const char *nib_config_name(const struct nib_config *config); // the file's path
bool nib_config_has(const struct nib_config *config, const char *key);

nib_status nib_config_int(const struct nib_config *config, const char *key, int64_t low, int64_t high,
                          int64_t *value, struct nib_error *err);
nib_status nib_config_real(const struct nib_config *config, const char *key, double low, double high,
                           double *value, struct nib_error *err);
nib_status nib_config_bool(const struct nib_config *config, const char *key, bool *value, struct nib_error *err);
nib_status nib_config_string(const struct nib_config *config, const char *key, const char **value,
                             struct nib_error *err);

// With a value for when the key is absent; a value of the wrong type is still an error.
nib_status nib_config_int_or(const struct nib_config *config, const char *key, int64_t fallback, int64_t low,
                             int64_t high, int64_t *value, struct nib_error *err);
nib_status nib_config_real_or(const struct nib_config *config, const char *key, double fallback, double low,
                              double high, double *value, struct nib_error *err);
nib_status nib_config_bool_or(const struct nib_config *config, const char *key, bool fallback, bool *value,
                              struct nib_error *err);
nib_status nib_config_string_or(const struct nib_config *config, const char *key, const char *fallback,
                                const char **value, struct nib_error *err);

// Arrays. A single value counts as an array of one (eos_token_id is written both ways).
nib_status nib_config_length(const struct nib_config *config, const char *key, size_t *length,
                             struct nib_error *err);
nib_status nib_config_int_at(const struct nib_config *config, const char *key, size_t index, int64_t low,
                             int64_t high, int64_t *value, struct nib_error *err);
nib_status nib_config_string_at(const struct nib_config *config, const char *key, size_t index, const char **value,
                                struct nib_error *err);

// NIB_ERR_UNSUPPORTED that names the file, the key and its value as written, for options nothing here computes.
nib_status nib_config_refuse(const struct nib_config *config, const char *key, const char *why,
                             struct nib_error *err);

// Rotary settings in one form, from `rope_parameters`, from `rope_theta` + `rope_scaling`, or from OpenAI's original
// rope_theta + rope_scaling_factor + rope_ntk_alpha/beta + initial_context_length.
struct nib_rope_config {
    const char *type; // "default", "yarn", …: the model refuses what it does not compute
    double theta;
    double factor;                 // 1 when absent
    double original_context;       // original_max_position_embeddings; max_position_embeddings when absent
    double beta_fast, beta_slow;   // 32 and 1 when absent
    double mscale, mscale_all_dim; // 0 when absent
    double low_freq_factor, high_freq_factor; // of llama3, which needs both; else 0 when absent
    double attention_factor;                  // 0 when absent
    double partial_rotary_factor;             // 1 when absent
    bool truncate;                            // true when absent
};

// `layer_type` (such as "sliding_attention") picks that entry when rope_parameters holds one object per layer type; NULL
// and names it does not have mean the flat form. `absent_theta` is what rope_theta is where the config does not say; 0: it
// must.
nib_status nib_config_rope(const struct nib_config *config, const char *layer_type, double absent_theta,
                           struct nib_rope_config *rope, struct nib_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
