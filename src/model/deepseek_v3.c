// DeepSeek-V3 and Kimi-K2: latent attention, first layers dense, a shared expert beside the routed ones; sigmoid scores
// with a correction choose, within the best groups of experts.
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"
#include "model/decoder.h"

static nib_status read_attention_sizes(const struct nib_config *config, struct nib_attention *attention,
                                       int64_t *rope_dims, struct nib_error *err)
{
    nib_status status;
    // Null says that q comes from one matrix.
    int64_t q_lora = nib_config_is_null(config, "q_lora_rank") ? 0 : 1536;
    if ((status = nib_config_int_or(config, "q_lora_rank", q_lora, 0, 65536, &attention->q_lora, err)) ||
        (status = nib_config_int(config, "kv_lora_rank", 1, 65536, &attention->kv_lora, err)) ||
        (status = nib_config_int(config, "qk_nope_head_dim", 1, 4096, &attention->nope, err)) ||
        (status = nib_config_int(config, "qk_rope_head_dim", 2, 4096, rope_dims, err)) ||
        (status = nib_config_int(config, "v_head_dim", 1, 4096, &attention->v_dim, err)) ||
        (status = nib_config_bool_or(config, "rope_interleave", true, &attention->rope.interleaved, err)))
        return status;
    attention->head_dim = attention->nope + *rope_dims;
    attention->n_kv_heads = 1;
    return NIB_OK;
}

// YaRN's temperature stands in the scale of the logits, as m^2, once for queries and once for keys.
static float logit_scale(int64_t head_dim, const struct nib_rope_config *rope)
{
    double m = 1;
    if (strcmp(rope->type, "default") != 0 && rope->mscale_all_dim != 0 && rope->factor > 1)
        m = 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
    return (float)(m * m / sqrt((double)head_dim));
}

static nib_status read_attention(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    struct nib_attention *attention = &model->attentions[0];
    struct nib_rope_config rope;
    int64_t rope_dims;
    nib_status status;
    if ((status = read_attention_sizes(config, attention, &rope_dims, err)) ||
        (status = nib_config_rope(config, NULL, 10000, &rope, err)))
        return status;
    attention->scale = logit_scale(attention->head_dim, &rope);
    model->inner_eps = 1e-6f; // whatever rms_norm_eps says
    return nib_decoder_set_rope(attention, config, &rope, rope_dims, err);
}

static nib_status read_layers(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    int64_t n_dense, n_shared, every, unstated = nib_config_is_null(config, "n_shared_experts") ? 0 : 1;
    nib_status status;
    if ((status = nib_config_int(config, "intermediate_size", 1, 1 << 24, &model->dense_intermediate, err)) ||
        (status = nib_config_int_or(config, "first_k_dense_replace", 3, 0, 1024, &n_dense, err)) ||
        (status = nib_config_int_or(config, "n_shared_experts", unstated, 0, 1024, &n_shared, err)) ||
        (status = nib_config_int_or(config, "moe_layer_freq", 1, 1, 1024, &every, err)))
        return status;
    if (every != 1)
        return nib_config_refuse(config, "moe_layer_freq", "every layer behind the dense ones is sparse here",
                                 err);
    for (int64_t l = 0; l < n_dense && l < model->base.shape.n_layers; l++)
        model->layers[l].sparse = false;
    model->shared_intermediate = n_shared * model->base.shape.intermediate;
    return NIB_OK;
}

static nib_status deepseek_v3_create(const struct nib_config *config, struct nib_model **created,
                                     struct nib_error *err)
{
    static const struct nib_decoder_defaults absent = {.eps = 1e-6, .context = 4096};
    static const struct nib_sigmoid_defaults routing = {.n_groups = 8, .top_groups = 4, .scale = 2.5};
    struct nib_decoder *model;
    nib_status status = nib_decoder_create(&nib_deepseek_v3_family, config, &absent, &model, err);
    if (status)
        return status;
    static const struct nib_fixed_number no_norm = {"use_qk_norm", 0};
    if ((status = nib_decoder_only_numbers(config, &no_norm, 1, err)) ||
        (status = nib_decoder_only_whole_rotation(config, err)) ||
        (status = nib_decoder_only_full_attention(config, err)) ||
        (status = nib_decoder_read_experts(model, config, "moe_intermediate_size", err)) ||
        (status = nib_decoder_read_sigmoid_router(model, config, &routing, err)) ||
        (status = read_attention(config, model, err)) || (status = read_layers(config, model, err)) ||
        (status = nib_decoder_finish(model, config, err))) {
        nib_decoder_free(&model->base);
        return status;
    }
    *created = &model->base;
    return NIB_OK;
}

const struct nib_model_family nib_deepseek_v3_family = {
    .model_types = {"deepseek_v3", "kimi_k2"},
    .create = deepseek_v3_create,
    .free = nib_decoder_free,
    .each_tensor = nib_decoder_each_tensor,
    .bind = nib_decoder_bind,
    .forward = nib_decoder_forward,
    .describe_layer = nib_decoder_describe_layer,
};
