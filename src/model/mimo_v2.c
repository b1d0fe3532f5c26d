// MiMo-V2: grouped-query attention with narrow values and rotary positions on a part of each head; most layers see a
// window only, with kv heads, sinks and a theta of their own. Sigmoid scores with a correction choose.
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"
#include "model/decoder.h"

static bool slides_unless_sixth(int64_t layer)
{
    return layer != 0 && (layer + 1) % 6 != 0;
}

// The released configs write the kinds of layers as arrays of 0 and 1.
static nib_status read_flags(const struct nib_config *config, const char *key, struct nib_decoder *model,
                             void (*set)(struct nib_decoder *model, int64_t layer, bool flag),
                             struct nib_error *err)
{
    size_t length;
    int64_t flag;
    nib_status status = nib_config_length(config, key, &length, err);
    if (!status && (int64_t)length != model->base.shape.n_layers)
        return nib_config_refuse(config, key, "its length is not num_hidden_layers", err);
    for (size_t l = 0; !status && l < length; l++) {
        status = nib_config_int_at(config, key, l, 0, 1, &flag, err);
        if (!status)
            set(model, (int64_t)l, flag == 1);
    }
    return status;
}

static void set_sliding(struct nib_decoder *model, int64_t layer, bool flag)
{
    model->layers[layer].attention = &model->attentions[flag];
}

static void set_sparse(struct nib_decoder *model, int64_t layer, bool flag)
{
    model->layers[layer].sparse = flag;
}

static nib_status read_mlp_types(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    const char *type;
    size_t length;
    nib_status status = nib_config_length(config, "mlp_layer_types", &length, err);
    if (!status && (int64_t)length != model->base.shape.n_layers)
        return nib_config_refuse(config, "mlp_layer_types", "its length is not num_hidden_layers", err);
    for (size_t l = 0; !status && l < length; l++) {
        status = nib_config_string_at(config, "mlp_layer_types", l, &type, err);
        if (!status && strcmp(type, "sparse") != 0 && strcmp(type, "dense") != 0)
            return nib_config_refuse(config, "mlp_layer_types", "only dense and sparse are known", err);
        if (!status)
            model->layers[l].sparse = strcmp(type, "sparse") == 0;
    }
    return status;
}

static nib_status read_layers(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    nib_status status = nib_config_has(config, "hybrid_layer_pattern")
                            ? read_flags(config, "hybrid_layer_pattern", model, set_sliding, err)
                            : nib_decoder_read_layer_types(model, config, slides_unless_sixth, err);
    if (status)
        return status;
    model->layers[0].sparse = false;
    if (nib_config_has(config, "moe_layer_freq"))
        return read_flags(config, "moe_layer_freq", model, set_sparse, err);
    return nib_config_has(config, "mlp_layer_types") ? read_mlp_types(config, model, err) : NIB_OK;
}

// What sliding layers have of their own; without a word about it, twice the kv heads.
static nib_status read_sliding(const struct nib_config *config, const struct nib_attention *full,
                               struct nib_attention *sliding, struct nib_error *err)
{
    int64_t before; // tokens that are seen besides the query's own
    nib_status status;
    *sliding = *full;
    if ((status = nib_config_int_or(config, "swa_num_attention_heads", full->n_heads, 1, 4096, &sliding->n_heads,
                                    err)) ||
        (status = nib_config_int_or(config, "swa_num_key_value_heads", 2 * full->n_kv_heads, 1, 4096,
                                    &sliding->n_kv_heads, err)) ||
        (status = nib_config_int_or(config, "swa_head_dim", full->head_dim, 1, 4096, &sliding->head_dim, err)) ||
        (status = nib_config_int_or(config, "swa_v_head_dim", full->v_dim, 1, 4096, &sliding->v_dim, err)) ||
        (status = nib_config_bool_or(config, "add_swa_attention_sink_bias", true, &sliding->sinks, err)) ||
        (status = nib_config_int_or(config, "sliding_window", 129, 1, 1 << 30, &sliding->window, err)) ||
        (status = nib_config_int_or(config, "sliding_window_size", sliding->window - 1, 0, 1 << 30, &before, err)))
        return status;
    sliding->window = before + 1; // whatever sliding_window says
    sliding->scale = 1.0f / sqrtf((float)sliding->head_dim);
    if (sliding->n_heads % sliding->n_kv_heads)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: sliding layers have %lld heads for %lld kv heads",
                        nib_config_name(config), (long long)sliding->n_heads, (long long)sliding->n_kv_heads);
    return NIB_OK;
}

static nib_status read_rope(const struct nib_config *config, bool slides, struct nib_attention *attention,
                            struct nib_error *err)
{
    const char *layer_type = slides ? "sliding_attention" : "full_attention";
    struct nib_rope_config rope;
    nib_status status = nib_config_rope(config, layer_type, 5000000, &rope, err);
    if (!nib_config_has_rope(config, layer_type, "partial_rotary_factor"))
        rope.partial_rotary_factor = 0.334;
    // One rope_theta for both is that of the layers that see everything.
    if (!status && slides && !nib_config_is_object(config, "rope_parameters.sliding_attention"))
        status = nib_config_real_or(config, "swa_rope_theta", 10000, 1e-6, 1e15, &rope.theta, err);
    if (!status)
        status = nib_decoder_set_rope(attention, config, &rope, nib_rotary_dims(attention->head_dim, &rope), err);
    return status;
}

static nib_status read_attention(const struct nib_config *config, struct nib_decoder *model, struct nib_error *err)
{
    struct nib_attention *full = &model->attentions[0], *sliding = &model->attentions[1];
    double value_scale;
    nib_status status;
    double unstated = nib_config_is_null(config, "attention_value_scale") ? 1 : 0.707;
    if ((status = nib_config_int_or(config, "v_head_dim", 128, 1, 4096, &full->v_dim, err)) ||
        (status = nib_config_real_or(config, "attention_value_scale", unstated, 0, 1e6, &value_scale, err)) ||
        (status = nib_config_bool_or(config, "add_full_attention_sink_bias", false, &full->sinks, err)))
        return status;
    full->value_scale = (float)value_scale;
    full->o_bias = false;
    if ((status = read_sliding(config, full, sliding, err)) || (status = read_rope(config, false, full, err)))
        return status;
    model->qkv_shards = full->n_kv_heads;
    return read_rope(config, true, sliding, err);
}

static nib_status mimo_v2_create(const struct nib_config *config, struct nib_model **created,
                                 struct nib_error *err)
{
    static const struct nib_fixed_number no_shared = {"n_shared_experts", 0};
    static const struct nib_sigmoid_defaults routing = {.n_groups = 1, .top_groups = 1, .scale = 1};
    struct nib_decoder_defaults absent = {.context = 131072, .n_kv_heads = 4, .head_dim = 192};
    struct nib_decoder *model;
    nib_status status = nib_config_real_or(config, "layernorm_epsilon", 1e-5, 0, 1, &absent.eps, err);
    if (status || (status = nib_decoder_create(&nib_mimo_v2_family, config, &absent, &model, err)))
        return status;
    model->names.sinks = "model.layers.%lld.self_attn.attention_sink_bias";
    model->names.qkv = "model.layers.%lld.self_attn.qkv_proj";
    if ((status = nib_config_int(config, "intermediate_size", 1, 1 << 24, &model->dense_intermediate, err)) ||
        (status = nib_decoder_read_experts(model, config, "moe_intermediate_size", err)) ||
        (status = nib_decoder_read_sigmoid_router(model, config, &routing, err)) ||
        (status = nib_decoder_only_numbers(config, &no_shared, 1, err)) ||
        (status = read_attention(config, model, err)) || (status = read_layers(config, model, err)) ||
        (status = nib_decoder_finish(model, config, err))) {
        nib_decoder_free(&model->base);
        return status;
    }
    *created = &model->base;
    return NIB_OK;
}

const struct nib_model_family nib_mimo_v2_family = {
    .model_types = {"mimo_v2_flash", "mimo_v2"},
    .create = mimo_v2_create,
    .free = nib_decoder_free,
    .each_tensor = nib_decoder_each_tensor,
    .bind = nib_decoder_bind,
    .forward = nib_decoder_forward,
    .describe_layer = nib_decoder_describe_layer,
};
