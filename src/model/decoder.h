// Decoders with one residual stream: attention, then a dense or a mixture-of-experts layer, again and again.
//
// A family's file reads its config into the plan below and says how its tensors are called; binding, the forward pass
// and the reports are the same for all of them.
#ifndef NIB_MODEL_DECODER_H
#define NIB_MODEL_DECODER_H

#include "model/model.h"

enum nib_qk_norm {
    NIB_QK_NORM_NONE,
    NIB_QK_NORM_HEAD,  // each head of q and k
    NIB_QK_NORM_WHOLE, // all heads together, one vector
};

// One kind of attention. With kv_lora > 0 it is latent (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1): a token's cache
// row is a normed vector of kv_lora elements, from which kv_b makes every head's keys and values, and `rope.dims`
// rotated elements that all heads share. kv_b is multiplied with the queries and with the attended rows instead, so
// keys and values are never made.
struct nib_attention {
    int64_t n_heads, n_kv_heads;
    int64_t head_dim, v_dim; // of a query and of a value; latent: head_dim = nope + rope.dims
    int64_t window;          // 0: full attention
    float scale, value_scale;
    enum nib_qk_norm qk_norm;
    bool sinks;
    bool bias, o_bias; // of q, k and v; of o
    struct nib_rope rope;
    int64_t q_lora, kv_lora, nope; // latent; q_lora 0: q comes from one matrix
};

// How a family calls its tensors. "%lld" is the layer; a linear is named without ".weight". NULL: it has none.
struct nib_decoder_names {
    const char *embedding, *norm, *head;
    const char *attention_norm, *q, *k, *v, *o, *q_norm, *k_norm, *sinks;
    const char *qkv; // one matrix in place of three, where the checkpoint has it
    const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b;
    const char *mlp_norm, *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
    const char *router, *correction, *experts;
    const char *converted_experts;                     // where nibble convert puts them, if elsewhere; or NULL
    const char *expert_gate, *expert_up, *expert_down; // of one expert
};

// The names that transformers writes for most families.
extern const struct nib_decoder_names nib_usual_names;

struct nib_dense {
    struct nib_weight weight, bias;
};

struct nib_decoder_layer {
    // The plan.
    const struct nib_attention *attention;
    bool sparse;
    int first_cache;
    // Bound.
    struct nib_weight attention_norm, mlp_norm, q_norm, k_norm, sinks;
    struct nib_dense *qkv;              /* [3 * n_shards] q, k, v of each shard */
    struct nib_projection *projections; /* [3 * n_shards] */
    int64_t n_shards;
    struct nib_dense o, q_a, kv_a, kv_b, gate, up,
        down; // gate, up, down: the dense layer's or the shared expert's
    struct nib_weight q_a_norm, kv_a_norm;
    struct nib_dense router;
    struct nib_weight correction;
    struct nib_experts experts;             // of MXFP4
    struct nib_dense_expert *dense_experts; /* [n_experts] of any other form, or NULL */
    char expert_form[32];                   // how they are stored, for reports
    uint64_t expert_bytes;
    struct nib_moe *moe;
};

enum nib_decoder_buffer {
    NIB_BUFFER_X,      // the residual stream
    NIB_BUFFER_NORMED, // input of a branch
    NIB_BUFFER_BRANCH, // its output
    NIB_BUFFER_Q,
    NIB_BUFFER_K, // latent: the cache row
    NIB_BUFFER_V,
    NIB_BUFFER_ATTENDED,
    NIB_BUFFER_Q_A,
    NIB_BUFFER_LATENT_Q,
    NIB_BUFFER_LATENT_ATTENDED,
    NIB_BUFFER_ROUTER,
    NIB_BUFFER_GATE,
    NIB_BUFFER_UP,
    NIB_BUFFER_SHARED,
    NIB_BUFFER_COUNT
};

enum { NIB_ATTENTION_KINDS = 2 };

struct nib_decoder {
    struct nib_model base;
    // The plan, which a family's create fills.
    struct nib_decoder_names names;
    const char *prefix;   // of all names: "" or "language_model."
    float eps, inner_eps; // of the norms, and of those inside latent attention
    bool tied;            // the head is the embedding
    struct nib_activation activation;
    struct nib_router router;
    bool router_bias;            // its logits have a bias
    bool corrected;              // its choice has a correction
    bool gpt_oss_experts;        // fused, gate and up rows alternate, unless the checkpoint has them one by one
    int64_t dense_intermediate;  // of the dense layers
    int64_t shared_intermediate; // of the shared expert; 0: none
    int64_t qkv_shards;          // of a fused qkv matrix, each with its rows of q, k and v
    struct nib_attention attentions[NIB_ATTENTION_KINDS];
    struct nib_decoder_layer *layers; /* [n_layers] */
    // The rest follows from it.
    struct nib_cache_spec *caches;
    struct nib_weight embedding, norm, head, head_bias;
    struct nib_buffer buffers[NIB_BUFFER_COUNT], out; // out: rows whose logits are wanted
    struct nib_routes routes;
};

// ---- for a family's create ----

// A config may leave out what its family's own class fills in (transformers' configuration_*.py): the same is filled in
// here, or the key is required.
struct nib_decoder_defaults {
    double eps;         // rms_norm_eps
    int64_t context;    // max_position_embeddings
    int64_t n_kv_heads; // num_key_value_heads; 0: num_attention_heads
    int64_t head_dim;   // 0: hidden_size / num_attention_heads
    bool attention_bias;
};

// A model of `family` with the sizes that every config states: hidden_size, num_hidden_layers, vocab_size,
// num_attention_heads, num_key_value_heads, head_dim (all three in attentions[0]), tie_word_embeddings, rms_norm_eps, the
// context; layers are sparse and of kind 0. On an error nothing is left behind.
nib_status nib_decoder_create(const struct nib_model_family *family, const struct nib_config *config,
                              const struct nib_decoder_defaults *absent, struct nib_decoder **created,
                              struct nib_error *err);
// The experts: their number (the first of num_local_experts, n_routed_experts, num_experts that is there),
// num_experts_per_tok, and their intermediate size.
nib_status nib_decoder_read_experts(struct nib_decoder *decoder, const struct nib_config *config,
                                    const char *intermediate, struct nib_error *err);
// n_group, topk_group, norm_topk_prob (true if absent), routed_scaling_factor of a router with sigmoid scores.
struct nib_sigmoid_defaults {
    int64_t n_groups, top_groups;
    double scale;
};
nib_status nib_decoder_read_sigmoid_router(struct nib_decoder *decoder, const struct nib_config *config,
                                           const struct nib_sigmoid_defaults *absent, struct nib_error *err);
// Rotary positions over `dims` elements of a head, for a kind of layer as in nib_config_rope.
nib_status nib_decoder_set_rope(struct nib_attention *attention, const struct nib_config *config,
                                const struct nib_rope_config *rope, int64_t dims, struct nib_error *err);
// Elements of a head that partial_rotary_factor leaves to the rotation.
static inline int64_t nib_rotary_dims(int64_t head_dim, const struct nib_rope_config *rope)
{
    return (int64_t)((double)head_dim * rope->partial_rotary_factor);
}
// Gives sliding layers attentions[1], as layer_types says, or `slides` where the config does not.
nib_status nib_decoder_read_layer_types(struct nib_decoder *decoder, const struct nib_config *config,
                                        bool (*slides)(int64_t layer), struct nib_error *err);
// Refuses a value of `key` that is not `wanted`; absent is fine.
nib_status nib_decoder_only(const struct nib_config *config, const char *key, const char *wanted,
                            struct nib_error *err);
// The same of numbers, true being 1.
struct nib_fixed_number {
    const char *key;
    double value;
};
nib_status nib_decoder_only_numbers(const struct nib_config *config,
                                    const struct nib_fixed_number *numbers /* [count] */, size_t count,
                                    struct nib_error *err);
// Refuses rotary positions on a part of each head, of a family that rotates whole heads.
nib_status nib_decoder_only_whole_rotation(const struct nib_config *config, struct nib_error *err);
// Refuses windows, of a family whose layers have none.
nib_status nib_decoder_only_full_attention(const struct nib_config *config, struct nib_error *err);
// Refuses what no family here computes; nib_decoder_create has done so.
nib_status nib_decoder_refuse_others(const struct nib_config *config, struct nib_error *err);
// Caches and the sizes that follow from a complete plan.
nib_status nib_decoder_finish(struct nib_decoder *decoder, const struct nib_config *config, struct nib_error *err);

// ---- entries of a family's table ----

void nib_decoder_free(struct nib_model *base);
nib_status nib_decoder_each_tensor(const struct nib_model *base,
                                   nib_status (*callback)(void *user, const struct nib_tensor_spec *spec,
                                                          struct nib_error *err),
                                   void *user, struct nib_error *err);
nib_status nib_decoder_bind(struct nib_model *base, struct nib_checkpoint *checkpoint, int64_t max_tokens,
                            int64_t max_outputs, struct nib_error *err);
void nib_decoder_forward(struct nib_model *base, const struct nib_step *step, const struct nib_cache *caches);
void nib_decoder_describe_layer(const struct nib_model *base, int64_t l, struct nib_layer_summary *summary);

// ---- between the decoder's own files ----

struct nib_tensor_name {
    char text[128];
};

// The prefix, the pattern with the layer's number, and the ending.
struct nib_tensor_name nib_decoder_name(const struct nib_decoder *decoder, const char *pattern, int64_t layer,
                                        const char *ending);
// Of a bound weight with its scales; 0 for an absent one.
uint64_t nib_weight_bytes(const struct nib_weight *weight);
nib_status nib_decoder_bind_experts(struct nib_decoder *decoder, struct nib_checkpoint *checkpoint, int64_t layer,
                                    struct nib_error *err);
// Once everything is bound: marks what is knowingly left aside, and refuses by name what belongs to a layer, the embedding,
// the last norm or the head and is not part of the plan. Other tensors stay unmarked.
nib_status nib_decoder_set_aside(const struct nib_decoder *decoder, struct nib_checkpoint *checkpoint,
                                 struct nib_error *err);

// Elements per token of each buffer.
void nib_decoder_widths(const struct nib_decoder *decoder, int64_t *widths /* [NIB_BUFFER_COUNT] */);
// The first `width` elements a token of a buffer, as a buffer of that width.
struct nib_buffer nib_decoder_view(const struct nib_decoder *decoder, enum nib_decoder_buffer which,
                                   int64_t width);

static inline int64_t nib_query_width(const struct nib_attention *attention)
{
    return attention->n_heads * attention->head_dim;
}

static inline int64_t nib_key_width(const struct nib_attention *attention)
{
    return attention->kv_lora ? attention->kv_lora + attention->rope.dims
                              : attention->n_kv_heads * attention->head_dim;
}

static inline int64_t nib_value_width(const struct nib_attention *attention)
{
    return attention->n_kv_heads * attention->v_dim;
}

static inline int64_t nib_attended_width(const struct nib_attention *attention)
{
    return attention->n_heads * attention->v_dim;
}

#endif
