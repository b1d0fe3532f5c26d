// gpt-oss: grouped-query attention with sinks and alternating windows, and a mixture of experts in every layer.
#include <string.h>

#include "base/error.h"
#include "model/decoder.h"

// OpenAI publishes the same weights under two naming schemes; in its own, q, k and v are the rows of one matrix.
static const struct nib_decoder_names openai = {
    .embedding = "embedding.weight",
    .norm = "norm.scale",
    .head = "unembedding",
    .attention_norm = "block.%lld.attn.norm.scale",
    .qkv = "block.%lld.attn.qkv",
    .q = "block.%lld.attn.q",
    .k = "block.%lld.attn.k",
    .v = "block.%lld.attn.v",
    .o = "block.%lld.attn.out",
    .sinks = "block.%lld.attn.sinks",
    .mlp_norm = "block.%lld.mlp.norm.scale",
    .router = "block.%lld.mlp.gate",
    .experts = "block.%lld.mlp",
    .converted_experts = "block.%lld.mlp.experts",
    .expert_gate = "gate_proj",
    .expert_up = "up_proj",
    .expert_down = "down_proj",
};

static bool slides_if_even(int64_t layer)
{
    return layer % 2 == 0;
}

static nib_status read_options(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    struct nib_attention *full = &model->attentions[0], *sliding = &model->attentions[1];
    double alpha, limit;
    int64_t window;
    nib_status status;
    if ((status = nib_config_real_or(config, "swiglu_alpha", 1.702, 0, 1e6, &alpha, err)) ||
        (status = nib_config_real_or(config, "swiglu_limit", 7.0, 1e-3, 1e30, &limit, err)) ||
        (status = nib_config_int_or(config, "sliding_window", 128, 1, 1 << 30, &window, err)))
        return status;
    model->activation =
        (struct nib_activation){.kind = NIB_ACT_SWIGLU_OAI, .alpha = (float)alpha, .limit = (float)limit};
    model->router.kind = NIB_ROUTER_TOPK_SOFTMAX;
    model->router_bias = true;
    model->gpt_oss_experts = true;
    full->sinks = true;
    *sliding = *full;
    sliding->window = window;
    return NIB_OK;
}

static nib_status read_rope(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    struct nib_rope_config rope;
    nib_status status = nib_config_rope(config, NULL, 150000, &rope, err);
    // A config without a word about it means the stretch of the released models.
    if (!nib_config_has(config, "rope_parameters") && !nib_config_has(config, "rope_scaling") &&
        !nib_config_has(config, "rope_scaling_factor")) {
        rope.type = "yarn";
        rope.factor = 32;
        rope.original_context = 4096;
        rope.truncate = false;
    }
    for (int i = 0; !status && i < NIB_ATTENTION_KINDS; i++)
        status = nib_decoder_set_rope(&model->attentions[i], config, &rope, model->attentions[i].head_dim, err);
    // OpenAI's own config has no max_position_embeddings; YaRN's factor says how far it was stretched.
    double stretched = rope.original_context * rope.factor;
    if (!status && !nib_config_has(config, "max_position_embeddings") && stretched >= 1 && stretched < 1e9)
        model->base.shape.context = (int64_t)stretched;
    return status;
}

static nib_status gpt_oss_create(const struct nib_config *config, struct nib_model **created,
                                 struct nib_error *err)
{
    static const struct nib_decoder_defaults absent = {
        .eps = 1e-5, .context = 131072, .n_kv_heads = 8, .head_dim = 64, .attention_bias = true};
    struct nib_decoder *model;
    nib_status status = nib_decoder_create(&nib_gpt_oss_family, config, &absent, &model, err);
    if (status)
        return status;
    model->names.router = "model.layers.%lld.mlp.router";
    static const struct nib_fixed_number numbers[] = {{"n_shared_experts", 0}, {"n_group", 1}};
    if ((status = nib_decoder_only_numbers(config, numbers, sizeof numbers / sizeof *numbers, err)) ||
        (status = nib_decoder_only_whole_rotation(config, err)) ||
        (status = nib_decoder_read_experts(model, config, "intermediate_size", err)) ||
        (status = read_options(config, model, err)) || (status = read_rope(config, model, err)) ||
        (status = nib_decoder_read_layer_types(model, config, slides_if_even, err)) ||
        (status = nib_decoder_finish(model, config, err))) {
        nib_decoder_free(&model->base);
        return status;
    }
    *created = &model->base;
    return NIB_OK;
}

static nib_status gpt_oss_bind(struct nib_model *base, struct nib_checkpoint *checkpoint, int64_t max_tokens,
                               int64_t max_outputs, struct nib_error *err)
{
    if (nib_checkpoint_peek(checkpoint, openai.embedding))
        ((struct nib_decoder *)base)->names = openai;
    return nib_decoder_bind(base, checkpoint, max_tokens, max_outputs, err);
}

const struct nib_model_family nib_gpt_oss_family = {
    .model_types = {"gpt_oss"},
    .create = gpt_oss_create,
    .free = nib_decoder_free,
    .each_tensor = nib_decoder_each_tensor,
    .bind = gpt_oss_bind,
    .forward = nib_decoder_forward,
    .describe_layer = nib_decoder_describe_layer,
};
