// Qwen3-MoE: grouped-query attention with a norm for each head of q and k; a softmax over all experts chooses.
#include "base/error.h"
#include "checkpoint/config.h"
#include "model/decoder.h"

// Layers are sparse but for those of mlp_only_layers and those between every decoder_sparse_step.
static nib_status read_layers(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    int64_t step, n_layers = model->base.shape.n_layers, layer;
    size_t n_dense = 0;
    nib_status status = nib_config_int_or(config, "decoder_sparse_step", 1, 1, 1024, &step, err);
    for (int64_t l = 0; !status && l < n_layers; l++)
        model->layers[l].sparse = (l + 1) % step == 0;
    if (!status && nib_config_has(config, "mlp_only_layers"))
        status = nib_config_length(config, "mlp_only_layers", &n_dense, err);
    for (size_t i = 0; !status && i < n_dense; i++) {
        status = nib_config_int_at(config, "mlp_only_layers", i, 0, n_layers - 1, &layer, err);
        if (!status)
            model->layers[layer].sparse = false;
    }
    return status;
}

static nib_status read_options(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    struct nib_attention *attention = &model->attentions[0];
    struct nib_rope_config rope;
    bool windowed;
    nib_status status;
    if ((status = nib_config_int(config, "intermediate_size", 1, 1 << 24, &model->dense_intermediate, err)) ||
        (status = nib_config_bool_or(config, "norm_topk_prob", false, &model->router.normalise, err)) ||
        (status = nib_config_bool_or(config, "use_sliding_window", false, &windowed, err)) ||
        (windowed && !nib_config_is_null(config, "sliding_window") &&
         (status = nib_config_int_or(config, "sliding_window", 4096, 1, 1 << 30, &attention->window, err))) ||
        (status = nib_config_rope(config, NULL, 10000, &rope, err)))
        return status;
    model->router.kind = NIB_ROUTER_SOFTMAX;
    attention->qk_norm = NIB_QK_NORM_HEAD;
    return nib_decoder_set_rope(attention, config, &rope, attention->head_dim, err);
}

static nib_status qwen3_moe_create(const struct nib_config *config, struct nib_model **created,
                                   struct nib_error *err)
{
    static const struct nib_decoder_defaults absent = {.eps = 1e-6, .context = 32768, .n_kv_heads = 4};
    struct nib_decoder *model;
    nib_status status = nib_decoder_create(&nib_qwen3_moe_family, config, &absent, &model, err);
    if (status)
        return status;
    static const struct nib_fixed_number numbers[] = {{"shared_expert_intermediate_size", 0},
                                                      {"n_shared_experts", 0},
                                                      {"n_group", 1},
                                                      {"topk_group", 1},
                                                      {"routed_scaling_factor", 1}};
    if ((status = nib_decoder_only_numbers(config, numbers, sizeof numbers / sizeof *numbers, err)) ||
        (status = nib_decoder_only_whole_rotation(config, err)) ||
        (status = nib_decoder_only(config, "scoring_func", "softmax", err)) ||
        (status = nib_decoder_read_experts(model, config, "moe_intermediate_size", err)) ||
        (status = read_options(config, model, err)) || (status = read_layers(config, model, err)) ||
        (status = nib_decoder_finish(model, config, err))) {
        nib_decoder_free(&model->base);
        return status;
    }
    *created = &model->base;
    return NIB_OK;
}

const struct nib_model_family nib_qwen3_moe_family = {
    .model_types = {"qwen3_moe"},
    .create = qwen3_moe_create,
    .free = nib_decoder_free,
    .each_tensor = nib_decoder_each_tensor,
    .bind = nib_decoder_bind,
    .forward = nib_decoder_forward,
    .describe_layer = nib_decoder_describe_layer,
};
