// A model: from its config to a layer plan, from the plan to bound weights, and the forward pass over a ragged batch.
//
// One file per architecture implements struct nib_model_family on ops.h alone. A model is made from its config (sizes,
// caches and tensors are then known, nothing is allocated), bound to a checkpoint and a device, and from then on only
// computes. What its layers remember is declared in cache_specs and owned by the engine.
#ifndef NIB_MODEL_MODEL_H
#define NIB_MODEL_MODEL_H

#include "nibble/checkpoint.h"
#include "nibble/layer.h"
#include "ops/ops.h"

// Rows that a layer keeps, one per token. A window says how far back they are ever read.
struct nib_cache_spec {
    int64_t width;
    int64_t window; // 0: all tokens
    int64_t layer;  // that keeps them
};

// Sizes that the engine, the memory plan and the reports need.
struct nib_model_shape {
    int64_t n_layers, hidden, vocab;
    int64_t context;                        // positions the model was made for
    int64_t n_heads, head_dim;              // the most of any layer
    int64_t n_experts, top_k, intermediate; // of the MoE layers
    int64_t max_linear_width;               // widest input of a linear
    uint64_t narrowed_bytes;                // of the 8-bit copies that dense_int8 makes
    int64_t buffer_width;                   // activation elements per token of a step, all buffers together
    bool tied_head;                         // the head is the embedding
    int n_caches;
    const struct nib_cache_spec *cache_specs; /* [n_caches], in the order that forward takes the caches */
};

// A tensor that a checkpoint of the model must have.
struct nib_tensor_spec {
    char name[128];
    enum nib_dtype dtype; // as published; other plain types are accepted
    int rank;
    int64_t shape[4];
};

struct nib_model {
    const struct nib_model_family *family;
    struct nib_model_shape shape;
    const struct nib_ops *ops; // set by bind, with the device
    struct nib_device *device;
    struct nib_buffer logits; /* [max_outputs, vocab] rows of the last forward */
    uint64_t head_bytes;      // of the weights outside the layers that decoding one token reads
};

struct nib_model_family {
    const char *model_types[4]; // in config.json, NULL behind the last
    nib_status (*create)(const struct nib_config *config, struct nib_model **model, struct nib_error *err);
    void (*free)(struct nib_model *model);
    // Calls `visit` for each tensor until it fails.
    nib_status (*each_tensor)(const struct nib_model *model,
                              nib_status (*visit)(void *user, const struct nib_tensor_spec *spec,
                                                  struct nib_error *err),
                              void *user, struct nib_error *err);
    nib_status (*bind)(struct nib_model *model, struct nib_checkpoint *checkpoint, int64_t max_tokens,
                       int64_t max_outputs, struct nib_error *err);
    void (*forward)(struct nib_model *model, const struct nib_step *step, const struct nib_cache *caches);
    void (*describe_layer)(const struct nib_model *model, int64_t layer, struct nib_layer_summary *summary);
};

// Picks the family by the config's model_type and checks every number; an option that nothing here computes is
// refused with key and value.
nib_status nib_model_create(const struct nib_config *config, struct nib_model **model, struct nib_error *err);
void nib_model_free(struct nib_model *model); // before the device it is bound to is closed

// Binds every weight. Missing tensors, tensors of another shape and unknown ones in a part that is computed are refused by
// name; others that the model does not know stay unmarked in the checkpoint. The checkpoint and device must outlive the
// model.
nib_status nib_model_bind(struct nib_model *model, struct nib_checkpoint *checkpoint, const struct nib_ops *ops,
                          struct nib_device *device, int64_t max_tokens, int64_t max_outputs,
                          struct nib_error *err);

// One step, between ops->begin and ops->end: appends to the caches and leaves n_outputs rows in model->logits.
void nib_model_forward(struct nib_model *model, const struct nib_step *step,
                       const struct nib_cache *caches /* [n_caches] */);

// ---- shared by the families ----

// Binds tensor `name` as [rows, cols] (a vector: rows = 1); the header's shape must agree. `may_narrow` as in
// nib_weight_view.
nib_status nib_bind_tensor(struct nib_model *model, struct nib_checkpoint *checkpoint, const char *name,
                           int64_t rows, int64_t cols, bool may_narrow, struct nib_weight *weight,
                           struct nib_error *err);

// Binds the linear `name` (without ".weight") and its bias where it has one, in whatever form the checkpoint stores it.
nib_status nib_bind_linear(struct nib_model *model, struct nib_checkpoint *checkpoint, const char *name,
                           int64_t rows, int64_t cols, bool may_narrow, struct nib_weight *weight,
                           struct nib_weight *bias, struct nib_error *err);

// inv_freq and the multiplier of cos and sin for default, dynamic, linear, llama3 and yarn; other types are refused by
// `config`'s name. The arithmetic is fp32 in the order of the transformers library, whose results models are compared with.
nib_status nib_rope_table(const struct nib_config *config, const struct nib_rope_config *rope, int64_t dims,
                          float *inv_freq /* [dims / 2] */, float *scale, struct nib_error *err);

extern const struct nib_model_family nib_gpt_oss_family, nib_qwen3_moe_family, nib_minimax_m2_family,
    nib_mimo_v2_family, nib_deepseek_v3_family;

#endif
