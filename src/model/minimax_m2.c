// MiniMax-M2: grouped-query attention with one norm over all heads of q and of k, rotary positions on a part of each
// head; sigmoid scores with a correction choose.
#include "base/error.h"
#include "checkpoint/config.h"
#include "model/decoder.h"

static nib_status read_attention(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    struct nib_attention *attention = &model->attentions[0];
    struct nib_rope_config rope;
    bool normed;
    int64_t dims, partial;
    nib_status status;
    if ((status = nib_config_rope(config, NULL, 5000000, &rope, err)))
        return status;
    // rotary_dim is the older spelling; a factor beside it has the last word.
    partial = nib_rotary_dims(attention->head_dim, &rope);
    if ((status = nib_config_int_or(config, "rotary_dim", partial, 2, attention->head_dim, &dims, err)) ||
        (status = nib_config_bool_or(config, "use_qk_norm", true, &normed, err)) ||
        (status = nib_decoder_only(config, "qk_norm_type", "per_layer", err)))
        return status;
    if (nib_config_has_rope(config, NULL, "partial_rotary_factor"))
        dims = partial;
    attention->qk_norm = normed ? NIB_QK_NORM_WHOLE : NIB_QK_NORM_NONE;
    return nib_decoder_set_rope(attention, config, &rope, dims, err);
}

static nib_status read_router(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    static const struct nib_sigmoid_defaults absent = {.n_groups = 1, .top_groups = 1, .scale = 1};
    int64_t shared;
    nib_status status;
    if ((status = nib_decoder_read_sigmoid_router(model, config, &absent, err)) ||
        (status = nib_config_bool_or(config, "use_routing_bias", true, &model->corrected, err)) ||
        (status = nib_config_int_or(config, "shared_intermediate_size", 0, 0, 1 << 24, &shared, err)))
        return status;
    return shared ? nib_config_refuse(config, "shared_intermediate_size", "no release has a shared expert", err)
                  : NIB_OK;
}

// Softmax attention in every layer: 1 in attn_type_list.
static nib_status check_layers(const struct nib_config *config, struct nib_error *err)
{
    size_t n = 0;
    int64_t type;
    nib_status status =
        nib_config_has(config, "attn_type_list") ? nib_config_length(config, "attn_type_list", &n, err) : NIB_OK;
    for (size_t i = 0; !status && i < n; i++) {
        status = nib_config_int_at(config, "attn_type_list", i, 0, 100, &type, err);
        if (!status && type != 1)
            status =
                nib_config_refuse(config, "attn_type_list", "only softmax attention (1) is computed here", err);
    }
    return status;
}

static nib_status minimax_m2_create(const struct nib_config *config, struct nib_model **created,
                                    struct nib_error *err)
{
    static const struct nib_decoder_defaults absent = {
        .eps = 1e-6, .context = 196608, .n_kv_heads = 8, .head_dim = 128};
    struct nib_decoder *model;
    nib_status status = nib_decoder_create(&nib_minimax_m2_family, config, &absent, &model, err);
    if (status)
        return status;
    model->names.router = "model.layers.%lld.block_sparse_moe.gate";
    model->names.correction = "model.layers.%lld.block_sparse_moe.e_score_correction_bias";
    model->names.experts = "model.layers.%lld.block_sparse_moe.experts";
    model->names.expert_gate = "w1";
    model->names.expert_up = "w3";
    model->names.expert_down = "w2";
    // Of its predecessors, which scale their residual streams.
    static const struct nib_fixed_number numbers[] = {{"layernorm_full_attention_alpha", 1},
                                                      {"layernorm_full_attention_beta", 1},
                                                      {"layernorm_mlp_alpha", 1},
                                                      {"layernorm_mlp_beta", 1}};
    if ((status = nib_decoder_only_numbers(config, numbers, sizeof numbers / sizeof *numbers, err)) ||
        (status = nib_decoder_only_full_attention(config, err)) ||
        (status = nib_decoder_read_experts(model, config, "intermediate_size", err)) ||
        (status = read_router(config, model, err)) || (status = read_attention(config, model, err)) ||
        (status = check_layers(config, err)) || (status = nib_decoder_finish(model, config, err))) {
        nib_decoder_free(&model->base);
        return status;
    }
    *created = &model->base;
    return NIB_OK;
}

const struct nib_model_family nib_minimax_m2_family = {
    .model_types = {"minimax_m2"},
    .create = minimax_m2_create,
    .free = nib_decoder_free,
    .each_tensor = nib_decoder_each_tensor,
    .bind = nib_decoder_bind,
    .forward = nib_decoder_forward,
    .describe_layer = nib_decoder_describe_layer,
};
