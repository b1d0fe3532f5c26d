// From a config to a decoder's plan: what the families' configs have in common.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"
#include "model/decoder.h"
#include "ops/dense_int8.h"
#include "ops/route.h"

static const int64_t most = 1 << 24; // of any size

static nib_status refuse_unless(bool fine, const struct nib_config *config, const char *key, const char *why,
                                struct nib_error *err)
{
    return fine ? NIB_OK : nib_config_refuse(config, key, why, err);
}

// A family's own size where the config says nothing of it; where it says null, or the family has none, the derived one.
static int64_t or_if_null(const struct nib_config *config, const char *key, int64_t absent, int64_t derived)
{
    return absent && !nib_config_is_null(config, key) ? absent : derived;
}

static nib_status read_sizes(struct nib_decoder *decoder, const struct nib_config *config,
                             const struct nib_decoder_defaults *absent, struct nib_error *err)
{
    struct nib_model_shape *shape = &decoder->base.shape;
    struct nib_attention *attention = &decoder->attentions[0];
    double eps;
    nib_status status;
    if ((status = nib_config_int(config, "hidden_size", 32, most, &shape->hidden, err)) ||
        (status = nib_config_int(config, "num_hidden_layers", 1, 1024, &shape->n_layers, err)) ||
        (status = nib_config_int(config, "vocab_size", 1, most, &shape->vocab, err)) ||
        (status = nib_config_int(config, "num_attention_heads", 1, 4096, &attention->n_heads, err)) ||
        (status =
             nib_config_int_or(config, "num_key_value_heads",
                               or_if_null(config, "num_key_value_heads", absent->n_kv_heads, attention->n_heads),
                               1, 4096, &attention->n_kv_heads, err)) ||
        (status = nib_config_int_or(
             config, "head_dim",
             or_if_null(config, "head_dim", absent->head_dim, shape->hidden / attention->n_heads), 1, 4096,
             &attention->head_dim, err)) ||
        (status = nib_config_int_or(config, "max_position_embeddings", absent->context, 1, 1 << 30,
                                    &shape->context, err)) ||
        (status = nib_config_real_or(config, "rms_norm_eps", absent->eps, 0, 1, &eps, err)) ||
        (status = nib_config_bool_or(config, "attention_bias", absent->attention_bias, &attention->bias, err)) ||
        (status = nib_config_bool_or(config, "tie_word_embeddings", false, &decoder->tied, err)) ||
        (status = nib_decoder_only(config, "hidden_act", "silu", err)) ||
        (status = nib_decoder_refuse_others(config, err)) ||
        (status = refuse_unless(attention->n_heads % attention->n_kv_heads == 0, config, "num_key_value_heads",
                                "it does not divide num_attention_heads", err)) ||
        (status = refuse_unless(shape->hidden % NIB_MX_BLOCK == 0, config, "hidden_size",
                                "MXFP4 rows are multiples of 32", err)))
        return status;
    attention->o_bias = attention->bias;
    decoder->eps = decoder->inner_eps = (float)eps;
    attention->v_dim = attention->head_dim;
    attention->scale = 1.0f / sqrtf((float)attention->head_dim);
    attention->value_scale = 1.0f;
    return NIB_OK;
}

nib_status nib_decoder_create(const struct nib_model_family *family, const struct nib_config *config,
                              const struct nib_decoder_defaults *absent, struct nib_decoder **created,
                              struct nib_error *err)
{
    struct nib_decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return nib_fail_memory(err, sizeof *decoder, "the model");
    decoder->base.family = family;
    decoder->names = nib_usual_names;
    decoder->prefix = "";
    decoder->qkv_shards = 1;
    decoder->activation.kind = NIB_ACT_SILU;
    decoder->router = (struct nib_router){.scale = 1.0f};
    nib_status status = read_sizes(decoder, config, absent, err);
    if (!status) {
        size_t layers = (size_t)decoder->base.shape.n_layers;
        decoder->layers = calloc(layers, sizeof *decoder->layers);
        if (!decoder->layers)
            status = nib_fail_memory(err, layers * sizeof *decoder->layers, "the layer plan");
        for (size_t l = 0; decoder->layers && l < layers; l++)
            decoder->layers[l] = (struct nib_decoder_layer){.attention = &decoder->attentions[0], .sparse = true};
    }
    if (status) {
        nib_decoder_free(&decoder->base);
        return status;
    }
    *created = decoder;
    return NIB_OK;
}

nib_status nib_decoder_read_experts(struct nib_decoder *decoder, const struct nib_config *config,
                                    const char *intermediate, struct nib_error *err)
{
    struct nib_model_shape *shape = &decoder->base.shape;
    const char *experts = nib_config_has(config, "num_local_experts")  ? "num_local_experts"
                          : nib_config_has(config, "n_routed_experts") ? "n_routed_experts"
                                                                       : "num_experts";
    const char *top_k =
        nib_config_has(config, "num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
    nib_status status;
    if ((status = nib_config_int(config, experts, 1, 65536, &shape->n_experts, err)) ||
        (status = nib_config_int(config, top_k, 1, 256, &shape->top_k, err)) ||
        (status = nib_config_int(config, intermediate, 32, most, &shape->intermediate, err)) ||
        (status =
             refuse_unless(shape->top_k <= shape->n_experts, config, top_k, "there are fewer experts", err)) ||
        (status = refuse_unless(shape->intermediate % NIB_MX_BLOCK == 0, config, intermediate,
                                "MXFP4 rows are multiples of 32", err)))
        return status;
    decoder->router.n_experts = shape->n_experts;
    decoder->router.top_k = shape->top_k;
    return NIB_OK;
}

nib_status nib_decoder_read_sigmoid_router(struct nib_decoder *decoder, const struct nib_config *config,
                                           const struct nib_sigmoid_defaults *absent, struct nib_error *err)
{
    struct nib_router *router = &decoder->router;
    // A null is none of it: no groups, no normalising, no scale.
    int64_t n_groups = nib_config_is_null(config, "n_group") ? 1 : absent->n_groups;
    bool normalise = !nib_config_is_null(config, "norm_topk_prob");
    double scale = nib_config_is_null(config, "routed_scaling_factor") ? 1 : absent->scale;
    nib_status status;
    router->kind = NIB_ROUTER_SIGMOID;
    decoder->corrected = true;
    if ((status = nib_decoder_only(config, "scoring_func", "sigmoid", err)) ||
        (status = nib_decoder_only(config, "topk_method", "noaux_tc", err)) ||
        (status = nib_config_int_or(config, "n_group", n_groups, 1, NIB_ROUTE_GROUPS, &router->n_groups, err)) ||
        (status = nib_config_int_or(config, "topk_group", router->n_groups == 1 ? 1 : absent->top_groups, 1,
                                    router->n_groups, &router->top_groups, err)) ||
        (status = nib_config_bool_or(config, "norm_topk_prob", normalise, &router->normalise, err)) ||
        (status = nib_config_real_or(config, "routed_scaling_factor", scale, 0, 1e6, &scale, err)))
        return status;
    router->scale = (float)scale;
    if (router->n_groups == 1)
        return NIB_OK;
    if (router->n_experts % router->n_groups || router->n_experts / router->n_groups < 2)
        return nib_config_refuse(config, "n_group", "groups are equal and have at least two experts", err);
    if (nib_config_is_null(config, "topk_group"))
        return nib_config_refuse(config, "topk_group", "how many groups are chosen has to be said", err);
    if (router->top_groups > router->n_groups)
        return nib_config_refuse(config, "topk_group", "there are fewer groups than are chosen without it", err);
    return refuse_unless(router->n_experts / router->n_groups * router->top_groups >= router->top_k, config,
                         "topk_group", "the groups chosen have fewer experts than num_experts_per_tok", err);
}

nib_status nib_decoder_read_layer_types(struct nib_decoder *decoder, const struct nib_config *config,
                                        bool (*slides)(int64_t layer), struct nib_error *err)
{
    int64_t n_layers = decoder->base.shape.n_layers;
    bool listed = nib_config_has(config, "layer_types");
    nib_status status;
    size_t length = 0;
    if (listed && (status = nib_config_length(config, "layer_types", &length, err)))
        return status;
    if (listed && (int64_t)length != n_layers)
        return nib_config_refuse(config, "layer_types", "its length is not num_hidden_layers", err);
    for (int64_t l = 0; l < n_layers; l++) {
        const char *type = slides(l) ? "sliding_attention" : "full_attention";
        if (listed && (status = nib_config_string_at(config, "layer_types", (size_t)l, &type, err)))
            return status;
        bool sliding = strcmp(type, "sliding_attention") == 0;
        if (!sliding && strcmp(type, "full_attention") != 0)
            return nib_config_refuse(config, "layer_types", "only sliding_attention and full_attention are known",
                                     err);
        decoder->layers[l].attention = &decoder->attentions[sliding];
    }
    return NIB_OK;
}

nib_status nib_decoder_set_rope(struct nib_attention *attention, const struct nib_config *config,
                                const struct nib_rope_config *rope, int64_t dims, struct nib_error *err)
{
    if (dims < 2 || dims % 2 || dims > attention->head_dim)
        return nib_fail(
            err, NIB_ERR_UNSUPPORTED,
            "%s: rotary positions over %lld of a head's %lld elements: an even number of them is needed",
            nib_config_name(config), (long long)dims, (long long)attention->head_dim);
    float *inv_freq = calloc((size_t)dims / 2, sizeof *inv_freq);
    if (!inv_freq)
        return nib_fail_memory(err, (unsigned long long)dims, "rotary frequencies");
    attention->rope.inv_freq = inv_freq;
    attention->rope.dims = dims;
    return nib_rope_table(config, rope, dims, inv_freq, &attention->rope.scale, err);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static nib_status plan_caches(struct nib_decoder *decoder, struct nib_error *err)
{
    struct nib_model_shape *shape = &decoder->base.shape;
    decoder->caches = calloc((size_t)(2 * shape->n_layers), sizeof *decoder->caches);
    if (!decoder->caches)
        return nib_fail_memory(err, (unsigned long long)shape->n_layers * 2 * sizeof *decoder->caches,
                               "the caches");
    for (int64_t l = 0; l < shape->n_layers; l++) {
        const struct nib_attention *a = decoder->layers[l].attention;
        decoder->layers[l].first_cache = shape->n_caches;
        decoder->caches[shape->n_caches++] = (struct nib_cache_spec){nib_key_width(a), a->window, l};
        if (!a->kv_lora)
            decoder->caches[shape->n_caches++] = (struct nib_cache_spec){nib_value_width(a), a->window, l};
    }
    shape->cache_specs = decoder->caches;
    return NIB_OK;
}

static nib_status plan_shards(struct nib_decoder *decoder, struct nib_error *err)
{
    for (int64_t l = 0; l < decoder->base.shape.n_layers; l++) {
        struct nib_decoder_layer *layer = &decoder->layers[l];
        layer->n_shards = 1;
        layer->qkv = calloc((size_t)(3 * decoder->qkv_shards), sizeof *layer->qkv);
        layer->projections = calloc((size_t)(3 * decoder->qkv_shards), sizeof *layer->projections);
        if (!layer->qkv || !layer->projections)
            return nib_fail_memory(err, (unsigned long long)(3 * decoder->qkv_shards) * sizeof *layer->qkv,
                                   "the layer plan");
    }
    return NIB_OK;
}

// Of the matrices that dense_int8 narrows in one layer.
static uint64_t narrowed_bytes(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer)
{
    const struct nib_attention *a = layer->attention;
    int64_t h = decoder->base.shape.hidden, q = nib_query_width(a),
            mlp = layer->sparse ? decoder->shared_intermediate : decoder->dense_intermediate;
    uint64_t bytes = nib_narrowed_bytes(h, nib_attended_width(a)) + nib_narrowed_bytes(2 * mlp, h) +
                     (mlp ? nib_narrowed_bytes(h, mlp) : 0);
    if (!a->kv_lora)
        return bytes + nib_narrowed_bytes(q + nib_key_width(a) + nib_value_width(a), h);
    bytes += nib_narrowed_bytes(nib_key_width(a), h);
    return bytes + (a->q_lora ? nib_narrowed_bytes(a->q_lora, h) + nib_narrowed_bytes(q, a->q_lora)
                              : nib_narrowed_bytes(q, h));
}

nib_status nib_decoder_finish(struct nib_decoder *decoder, const struct nib_config *config, struct nib_error *err)
{
    struct nib_model_shape *shape = &decoder->base.shape;
    int64_t widths[NIB_BUFFER_COUNT];
    bool any_sparse = false;
    nib_status status = plan_caches(decoder, err);
    if (status || (status = plan_shards(decoder, err)))
        return status;
    shape->tied_head = decoder->tied;
    shape->narrowed_bytes = decoder->tied ? 0 : nib_narrowed_bytes(shape->vocab, shape->hidden);
    shape->max_linear_width = larger(shape->hidden, shape->intermediate); // of dense experts
    for (int64_t l = 0; l < shape->n_layers; l++) {
        const struct nib_decoder_layer *layer = &decoder->layers[l];
        const struct nib_attention *a = layer->attention;
        any_sparse |= layer->sparse;
        shape->narrowed_bytes += narrowed_bytes(decoder, layer);
        shape->n_heads = larger(shape->n_heads, a->n_heads);
        shape->head_dim = larger(shape->head_dim, a->kv_lora ? nib_key_width(a) : larger(a->head_dim, a->v_dim));
        shape->max_linear_width =
            larger(larger(shape->max_linear_width, a->q_lora),
                   larger(nib_attended_width(a),
                          layer->sparse ? decoder->shared_intermediate : decoder->dense_intermediate));
    }
    if (!any_sparse)
        return nib_config_refuse(config, "num_hidden_layers", "no layer has experts", err);
    nib_decoder_widths(decoder, widths);
    shape->buffer_width = 2 * shape->top_k;
    for (int i = 0; i < NIB_BUFFER_COUNT; i++)
        shape->buffer_width += widths[i];
    return NIB_OK;
}

void nib_decoder_widths(const struct nib_decoder *decoder, int64_t *widths)
{
    const struct nib_model_shape *shape = &decoder->base.shape;
    for (int i = 0; i < NIB_BUFFER_COUNT; i++)
        widths[i] = 0;
    for (int64_t l = 0; l < shape->n_layers; l++) {
        const struct nib_decoder_layer *layer = &decoder->layers[l];
        const struct nib_attention *a = layer->attention;
        int64_t mlp = layer->sparse ? decoder->shared_intermediate : decoder->dense_intermediate;
        const int64_t wanted[NIB_BUFFER_COUNT] = {
            [NIB_BUFFER_X] = shape->hidden,
            [NIB_BUFFER_NORMED] = shape->hidden,
            [NIB_BUFFER_BRANCH] = shape->hidden,
            [NIB_BUFFER_Q] = nib_query_width(a),
            [NIB_BUFFER_K] = nib_key_width(a),
            [NIB_BUFFER_V] = a->kv_lora ? 0 : nib_value_width(a),
            [NIB_BUFFER_ATTENDED] = nib_attended_width(a),
            [NIB_BUFFER_Q_A] = a->q_lora,
            [NIB_BUFFER_LATENT_Q] = a->kv_lora ? a->n_heads * nib_key_width(a) : 0,
            [NIB_BUFFER_LATENT_ATTENDED] = a->n_heads * a->kv_lora,
            [NIB_BUFFER_ROUTER] = layer->sparse ? shape->n_experts : 0,
            [NIB_BUFFER_GATE] = mlp,
            [NIB_BUFFER_UP] = mlp,
            [NIB_BUFFER_SHARED] = layer->sparse && mlp ? shape->hidden : 0,
        };
        for (int i = 0; i < NIB_BUFFER_COUNT; i++)
            widths[i] = larger(widths[i], wanted[i]);
    }
}
