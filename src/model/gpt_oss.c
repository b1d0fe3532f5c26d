// gpt-oss: grouped-query attention with sinks and alternating windows, and a mixture of experts in every layer.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/model.h"
#include "ops/dense_int8.h"

struct layer {
    int64_t window; // 0: full attention
    struct nib_weight attention_norm, mlp_norm;
    struct nib_weight q, k, v, o, q_bias, k_bias, v_bias, o_bias, sinks;
    struct nib_weight router, router_bias;
    struct nib_experts experts;
    struct nib_moe *moe;
};

struct gpt_oss {
    struct nib_model base;
    int64_t window; // of the sliding layers
    float eps;
    struct nib_activation activation;
    bool tied; // the head is the embedding
    struct nib_rope rope;
    float *inv_freq;               /* [head_dim / 2] */
    struct nib_cache_spec *caches; /* [2 * n_layers] keys and values of each layer */
    struct layer *layers;          /* [n_layers] */
    struct nib_weight embedding, norm, head;
    // x: the residual stream; normed: input of a branch; branch: its output; out: rows whose logits are wanted
    struct nib_buffer x, normed, branch, q, k, v, attended, router_logits, out;
    struct nib_routes routes;
};

static int64_t q_width(const struct nib_model_shape *shape)
{
    return shape->n_heads * shape->head_dim;
}

static int64_t kv_width(const struct nib_model_shape *shape)
{
    return shape->n_kv_heads * shape->head_dim;
}

// ---- config ----

static nib_status read_sizes(const struct nib_config *config, struct nib_model_shape *shape, struct nib_error *err)
{
    const int64_t most = 1 << 24;
    const char *experts = nib_config_has(config, "num_local_experts") ? "num_local_experts" : "num_experts";
    const char *top_k =
        nib_config_has(config, "num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
    nib_status status;
    if ((status = nib_config_int(config, "hidden_size", 32, most, &shape->hidden, err)) ||
        (status = nib_config_int(config, "num_hidden_layers", 1, 1024, &shape->n_layers, err)) ||
        (status = nib_config_int(config, "vocab_size", 1, most, &shape->vocab, err)) ||
        (status = nib_config_int(config, "intermediate_size", 32, most, &shape->intermediate, err)) ||
        (status = nib_config_int(config, "num_attention_heads", 1, 4096, &shape->n_heads, err)) ||
        (status =
             nib_config_int_or(config, "num_key_value_heads", shape->n_heads, 1, 4096, &shape->n_kv_heads, err)) ||
        (status = nib_config_int_or(config, "head_dim", shape->hidden / shape->n_heads, 2, 4096, &shape->head_dim,
                                    err)) ||
        (status = nib_config_int(config, experts, 1, 65536, &shape->n_experts, err)) ||
        (status = nib_config_int(config, top_k, 1, 256, &shape->top_k, err)))
        return status;
    if (shape->n_heads % shape->n_kv_heads)
        return nib_config_refuse(config, "num_key_value_heads", "it does not divide num_attention_heads", err);
    if (shape->head_dim % 2)
        return nib_config_refuse(config, "head_dim", "rotary positions need an even one", err);
    if (shape->top_k > shape->n_experts)
        return nib_config_refuse(config, top_k, "there are fewer experts", err);
    if (shape->hidden % NIB_MX_BLOCK)
        return nib_config_refuse(config, "hidden_size", "MXFP4 rows are multiples of 32", err);
    if (shape->intermediate % NIB_MX_BLOCK)
        return nib_config_refuse(config, "intermediate_size", "MXFP4 rows are multiples of 32", err);
    return NIB_OK;
}

static nib_status read_options(const struct nib_config *config, struct gpt_oss *model, struct nib_error *err)
{
    const char *act;
    double eps, limit;
    nib_status status;
    if ((status = nib_config_string_or(config, "hidden_act", "silu", &act, err)) ||
        (status = nib_config_real_or(config, "rms_norm_eps", 1e-5, 0, 1, &eps, err)) ||
        (status = nib_config_real_or(config, "swiglu_limit", 7.0, 1e-3, 1e30, &limit, err)) ||
        (status = nib_config_bool_or(config, "tie_word_embeddings", false, &model->tied, err)) ||
        (status = nib_config_int_or(config, "sliding_window", 128, 1, 1 << 30, &model->window, err)))
        return status;
    if (strcmp(act, "silu") != 0)
        return nib_config_refuse(config, "hidden_act", "gpt-oss experts compute a clamped silu", err);
    model->eps = (float)eps;
    // alpha is a constant of the architecture; no released config states it.
    model->activation =
        (struct nib_activation){.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = (float)limit};
    return NIB_OK;
}

// Sliding and full layers as the config lists them; without a list they alternate, sliding first.
static nib_status read_layer_types(const struct nib_config *config, struct gpt_oss *model, struct nib_error *err)
{
    int64_t n_layers = model->base.shape.n_layers;
    bool listed = nib_config_has(config, "layer_types");
    nib_status status;
    size_t length = 0;
    if (listed && (status = nib_config_length(config, "layer_types", &length, err)))
        return status;
    if (listed && (int64_t)length != n_layers)
        return nib_config_refuse(config, "layer_types", "its length is not num_hidden_layers", err);
    for (int64_t l = 0; l < n_layers; l++) {
        const char *type = l % 2 ? "full_attention" : "sliding_attention";
        if (listed && (status = nib_config_string_at(config, "layer_types", (size_t)l, &type, err)))
            return status;
        if (strcmp(type, "sliding_attention") == 0)
            model->layers[l].window = model->window;
        else if (strcmp(type, "full_attention") != 0)
            return nib_config_refuse(config, "layer_types", "only sliding_attention and full_attention are known",
                                     err);
        for (int i = 0; i < 2; i++)
            model->caches[2 * l + i] =
                (struct nib_cache_spec){kv_width(&model->base.shape), model->layers[l].window};
    }
    return NIB_OK;
}

static nib_status read_rope(const struct nib_config *config, struct gpt_oss *model, struct nib_error *err)
{
    struct nib_rope_config rope;
    nib_status status = nib_config_rope(config, NULL, &rope, err);
    if (status)
        return status;
    int64_t dims = model->base.shape.head_dim;
    status = nib_rope_table(config, &rope, dims, model->inv_freq, &model->rope.scale, err);
    model->rope.inv_freq = model->inv_freq;
    model->rope.dims = dims;
    // OpenAI's own config has no max_position_embeddings; YaRN's factor says how far it was stretched.
    double stretched = rope.original_context * rope.factor;
    int64_t fallback = stretched >= 1 && stretched < 1e9 ? (int64_t)stretched : 131072;
    return status ? status
                  : nib_config_int_or(config, "max_position_embeddings", fallback, 1, 1 << 30,
                                      &model->base.shape.context, err);
}

static void gpt_oss_free(struct nib_model *base)
{
    struct gpt_oss *model = (struct gpt_oss *)base;
    if (base->ops) {
        for (int64_t l = 0; model->layers && l < base->shape.n_layers; l++)
            base->ops->free_moe(base->device, model->layers[l].moe);
        struct nib_buffer *buffers[] = {&model->x,     &model->normed,  &model->branch,        &model->q,
                                        &model->k,     &model->v,       &model->router_logits, &model->out,
                                        &base->logits, &model->attended};
        for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
            base->ops->free_buffer(base->device, buffers[i]);
        base->ops->free_routes(base->device, &model->routes);
    }
    free(model->inv_freq);
    free(model->caches);
    free(model->layers);
    free(model);
}

static nib_status gpt_oss_create(const struct nib_config *config, struct nib_model **created,
                                 struct nib_error *err)
{
    struct gpt_oss *model = calloc(1, sizeof *model);
    if (!model)
        return nib_fail_memory(err, sizeof *model, "the model");
    model->base.family = &nib_gpt_oss_family;
    struct nib_model_shape *shape = &model->base.shape;
    shape->architecture = nib_gpt_oss_family.model_type;
    nib_status status = read_sizes(config, shape, err);
    if (status)
        goto failed;
    model->layers = calloc((size_t)shape->n_layers, sizeof *model->layers);
    model->caches = calloc((size_t)(2 * shape->n_layers), sizeof *model->caches);
    model->inv_freq = calloc((size_t)shape->head_dim, sizeof *model->inv_freq);
    if (!model->layers || !model->caches || !model->inv_freq) {
        status =
            nib_fail_memory(err, (unsigned long long)shape->n_layers * sizeof *model->layers, "the layer plan");
        goto failed;
    }
    if ((status = read_options(config, model, err)) || (status = read_layer_types(config, model, err)) ||
        (status = read_rope(config, model, err)))
        goto failed;
    shape->max_linear_width = q_width(shape) > shape->hidden ? q_width(shape) : shape->hidden;
    shape->buffer_width =
        3 * shape->hidden + 2 * q_width(shape) + 2 * kv_width(shape) + shape->n_experts + 2 * shape->top_k;
    int64_t q = q_width(shape), kv = kv_width(shape), h = shape->hidden;
    shape->narrowed_bytes =
        (uint64_t)shape->n_layers * (nib_narrowed_bytes(q + 2 * kv, h) + nib_narrowed_bytes(h, q)) +
        (model->tied ? 0 : nib_narrowed_bytes(shape->vocab, h));
    shape->n_caches = (int)(2 * shape->n_layers);
    shape->cache_specs = model->caches;
    *created = &model->base;
    return NIB_OK;
failed:
    gpt_oss_free(&model->base);
    return status;
}

// ---- tensors ----

// OpenAI publishes the same weights under two naming schemes; in its own, q, k and v are the rows of one matrix.
struct naming {
    const char *embedding, *head, *norm;
    const char *attention_norm, *mlp_norm, *q, *k, *v, *qkv, *o, *sinks, *router, *experts;
};

static const struct naming hugging_face = {
    .embedding = "model.embed_tokens.weight",
    .head = "lm_head.weight",
    .norm = "model.norm.weight",
    .attention_norm = "model.layers.%lld.input_layernorm.weight",
    .mlp_norm = "model.layers.%lld.post_attention_layernorm.weight",
    .q = "model.layers.%lld.self_attn.q_proj",
    .k = "model.layers.%lld.self_attn.k_proj",
    .v = "model.layers.%lld.self_attn.v_proj",
    .o = "model.layers.%lld.self_attn.o_proj",
    .sinks = "model.layers.%lld.self_attn.sinks",
    .router = "model.layers.%lld.mlp.router",
    .experts = "model.layers.%lld.mlp.experts",
};

static const struct naming openai = {
    .embedding = "embedding.weight",
    .head = "unembedding.weight",
    .norm = "norm.scale",
    .attention_norm = "block.%lld.attn.norm.scale",
    .mlp_norm = "block.%lld.mlp.norm.scale",
    .qkv = "block.%lld.attn.qkv",
    .o = "block.%lld.attn.out",
    .sinks = "block.%lld.attn.sinks",
    .router = "block.%lld.mlp.gate",
    .experts = "block.%lld.mlp",
};

struct tensor_name {
    char text[128];
};

static struct tensor_name layer_name(const char *pattern, int64_t layer, const char *suffix)
{
    struct tensor_name name, stem;
    const char *number = strstr(pattern, "%lld");
    snprintf(stem.text, sizeof stem.text, "%.*s%lld%s", (int)(number - pattern), pattern, (long long)layer,
             number + 4);
    snprintf(name.text, sizeof name.text, "%.100s%s", stem.text, suffix);
    return name;
}

typedef nib_status visit_tensor(void *user, const struct nib_tensor_spec *spec, struct nib_error *err);

struct visitor {
    visit_tensor *visit;
    void *user;
    struct nib_error *err;
    nib_status status; // the first failure; visits after it do nothing
};

static void visit(struct visitor *v, const char *name, enum nib_dtype dtype, int rank, int64_t a, int64_t b,
                  int64_t c, int64_t d)
{
    if (v->status)
        return;
    struct nib_tensor_spec spec = {.dtype = dtype, .rank = rank, .shape = {a, b, c, d}};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    v->status = v->visit(v->user, &spec, v->err);
}

static void visit_layer(struct visitor *v, const struct nib_model_shape *shape, int64_t l)
{
    const struct naming *n = &hugging_face;
    int64_t h = shape->hidden, i = shape->intermediate, e = shape->n_experts, q = q_width(shape),
            kv = kv_width(shape);
    const struct {
        const char *pattern;
        int64_t out, in;
    } linears[] = {{n->q, q, h}, {n->k, kv, h}, {n->v, kv, h}, {n->o, h, q}, {n->router, e, h}};
    visit(v, layer_name(n->attention_norm, l, "").text, NIB_BF16, 1, h, 0, 0, 0);
    visit(v, layer_name(n->mlp_norm, l, "").text, NIB_BF16, 1, h, 0, 0, 0);
    visit(v, layer_name(n->sinks, l, "").text, NIB_BF16, 1, shape->n_heads, 0, 0, 0);
    for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) {
        visit(v, layer_name(linears[j].pattern, l, ".weight").text, NIB_BF16, 2, linears[j].out, linears[j].in, 0,
              0);
        visit(v, layer_name(linears[j].pattern, l, ".bias").text, NIB_BF16, 1, linears[j].out, 0, 0, 0);
    }
    visit(v, layer_name(n->experts, l, ".gate_up_proj_blocks").text, NIB_U8, 4, e, 2 * i, h / 32, 16);
    visit(v, layer_name(n->experts, l, ".gate_up_proj_scales").text, NIB_U8, 3, e, 2 * i, h / 32, 0);
    visit(v, layer_name(n->experts, l, ".gate_up_proj_bias").text, NIB_BF16, 2, e, 2 * i, 0, 0);
    visit(v, layer_name(n->experts, l, ".down_proj_blocks").text, NIB_U8, 4, e, h, i / 32, 16);
    visit(v, layer_name(n->experts, l, ".down_proj_scales").text, NIB_U8, 3, e, h, i / 32, 0);
    visit(v, layer_name(n->experts, l, ".down_proj_bias").text, NIB_BF16, 2, e, h, 0, 0);
}

static nib_status gpt_oss_each_tensor(const struct nib_model *base, visit_tensor *callback, void *user,
                                      struct nib_error *err)
{
    const struct nib_model_shape *shape = &base->shape;
    struct visitor v = {callback, user, err, NIB_OK};
    visit(&v, hugging_face.embedding, NIB_BF16, 2, shape->vocab, shape->hidden, 0, 0);
    for (int64_t l = 0; l < shape->n_layers; l++)
        visit_layer(&v, shape, l);
    visit(&v, hugging_face.norm, NIB_BF16, 1, shape->hidden, 0, 0, 0);
    if (!((const struct gpt_oss *)base)->tied)
        visit(&v, hugging_face.head, NIB_BF16, 2, shape->vocab, shape->hidden, 0, 0);
    return v.status;
}

// ---- binding ----

struct binder {
    struct nib_model *model;
    struct nib_checkpoint *checkpoint;
    struct nib_error *err;
};

static nib_status bind_matrix(struct binder *b, const char *pattern, int64_t layer, int64_t out, int64_t in,
                              bool may_narrow, struct nib_weight *weight, struct nib_weight *bias)
{
    nib_status status = nib_bind_tensor(b->model, b->checkpoint, layer_name(pattern, layer, ".weight").text, out,
                                        in, may_narrow, weight, b->err);
    struct tensor_name bias_name = layer_name(pattern, layer, ".bias");
    if (status || !nib_checkpoint_peek(b->checkpoint, bias_name.text)) // attention_bias: false has none
        return status;
    return nib_bind_tensor(b->model, b->checkpoint, bias_name.text, 1, out, false, bias, b->err);
}

// `rows` rows (or elements of a vector) of a bound weight, from `first` on.
static struct nib_weight slice(struct nib_weight weight, int64_t first, int64_t rows)
{
    bool vector = weight.rows == 1;
    if (!weight.data)
        return weight;
    weight.data =
        (const char *)weight.data + (size_t)(first * (vector ? 1 : weight.cols)) * nib_dtype_size(weight.dtype);
    if (weight.scales)
        weight.scales += first;
    *(vector ? &weight.cols : &weight.rows) = rows;
    return weight;
}

static nib_status bind_qkv(struct binder *b, const struct naming *names, int64_t l, struct layer *layer)
{
    const struct nib_model_shape *shape = &b->model->shape;
    int64_t h = shape->hidden, q = q_width(shape), kv = kv_width(shape);
    nib_status status;
    if (!names->qkv) {
        if ((status = bind_matrix(b, names->q, l, q, h, true, &layer->q, &layer->q_bias)) ||
            (status = bind_matrix(b, names->k, l, kv, h, true, &layer->k, &layer->k_bias)))
            return status;
        return bind_matrix(b, names->v, l, kv, h, true, &layer->v, &layer->v_bias);
    }
    struct nib_weight qkv, bias = {0};
    if ((status = bind_matrix(b, names->qkv, l, q + 2 * kv, h, true, &qkv, &bias)))
        return status;
    layer->q = slice(qkv, 0, q);
    layer->k = slice(qkv, q, kv);
    layer->v = slice(qkv, q + kv, kv);
    layer->q_bias = slice(bias, 0, q);
    layer->k_bias = slice(bias, q, kv);
    layer->v_bias = slice(bias, q + kv, kv);
    return NIB_OK;
}

static nib_status bind_experts(struct binder *b, const struct naming *names, int64_t l, struct layer *layer)
{
    const struct nib_model_shape *shape = &b->model->shape;
    struct tensor_name prefix = layer_name(names->experts, l, "");
    nib_status status = nib_checkpoint_experts(b->checkpoint, prefix.text, true, &layer->experts, b->err);
    if (status)
        return status;
    const struct nib_moe_weights *w = &layer->experts.weights;
    if (w->hidden != shape->hidden || w->intermediate != shape->intermediate || w->n_experts != shape->n_experts)
        return nib_fail(
            b->err, NIB_ERR_FORMAT,
            "%s: %s holds %lld experts of hidden %lld, intermediate %lld; the config asks for %lld, %lld, %lld",
            nib_checkpoint_path(b->checkpoint), prefix.text, (long long)w->n_experts, (long long)w->hidden,
            (long long)w->intermediate, (long long)shape->n_experts, (long long)shape->hidden,
            (long long)shape->intermediate);
    struct nib_moe_config config = {.activation = ((struct gpt_oss *)b->model)->activation};
    return b->model->ops->bind_moe(b->model->device, w, &config, shape->top_k, &layer->moe, b->err);
}

static nib_status bind_layer(struct binder *b, const struct naming *names, int64_t l, struct layer *layer)
{
    const struct nib_model_shape *shape = &b->model->shape;
    int64_t h = shape->hidden, q = q_width(shape);
    nib_status status;
    if ((status = nib_bind_tensor(b->model, b->checkpoint, layer_name(names->attention_norm, l, "").text, 1, h,
                                  false, &layer->attention_norm, b->err)) ||
        (status = nib_bind_tensor(b->model, b->checkpoint, layer_name(names->mlp_norm, l, "").text, 1, h, false,
                                  &layer->mlp_norm, b->err)) ||
        (status = nib_bind_tensor(b->model, b->checkpoint, layer_name(names->sinks, l, "").text, 1, shape->n_heads,
                                  false, &layer->sinks, b->err)) ||
        (status = bind_qkv(b, names, l, layer)) ||
        (status = bind_matrix(b, names->o, l, h, q, true, &layer->o, &layer->o_bias)) ||
        (status =
             bind_matrix(b, names->router, l, shape->n_experts, h, false, &layer->router, &layer->router_bias)))
        return status;
    return bind_experts(b, names, l, layer);
}

static nib_status alloc_buffers(struct gpt_oss *model, int64_t max_tokens, int64_t max_outputs,
                                struct nib_error *err)
{
    struct nib_model *base = &model->base;
    const struct nib_model_shape *shape = &base->shape;
    const struct {
        struct nib_buffer *buffer;
        int64_t rows, width;
    } wanted[] = {
        {&model->x, max_tokens, shape->hidden},         {&model->normed, max_tokens, shape->hidden},
        {&model->branch, max_tokens, shape->hidden},    {&model->q, max_tokens, q_width(shape)},
        {&model->k, max_tokens, kv_width(shape)},       {&model->v, max_tokens, kv_width(shape)},
        {&model->attended, max_tokens, q_width(shape)}, {&model->router_logits, max_tokens, shape->n_experts},
        {&model->out, max_outputs, shape->hidden},      {&base->logits, max_outputs, shape->vocab},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        nib_status status =
            base->ops->alloc_buffer(base->device, wanted[i].rows, wanted[i].width, wanted[i].buffer, err);
        if (status)
            return status;
    }
    return base->ops->alloc_routes(base->device, max_tokens, shape->top_k, &model->routes, err);
}

static uint64_t weight_bytes(const struct nib_weight *weight)
{
    uint64_t scales = weight->scales ? (uint64_t)weight->rows * sizeof(float) : 0;
    return weight->data ? (uint64_t)(weight->rows * weight->cols) * nib_dtype_size(weight->dtype) + scales : 0;
}

static nib_status gpt_oss_bind(struct nib_model *base, struct nib_checkpoint *checkpoint, int64_t max_tokens,
                               int64_t max_outputs, struct nib_error *err)
{
    struct gpt_oss *model = (struct gpt_oss *)base;
    const struct nib_model_shape *shape = &base->shape;
    struct binder b = {base, checkpoint, err};
    const struct naming *names = nib_checkpoint_peek(checkpoint, openai.embedding) ? &openai : &hugging_face;
    nib_status status = nib_bind_tensor(base, checkpoint, names->embedding, shape->vocab, shape->hidden, false,
                                        &model->embedding, err);
    for (int64_t l = 0; !status && l < shape->n_layers; l++)
        status = bind_layer(&b, names, l, &model->layers[l]);
    if (status ||
        (status = nib_bind_tensor(base, checkpoint, names->norm, 1, shape->hidden, false, &model->norm, err)))
        return status;
    if (model->tied)
        model->head = model->embedding;
    else if ((status = nib_bind_tensor(base, checkpoint, names->head, shape->vocab, shape->hidden, true,
                                       &model->head, err)))
        return status;
    base->head_bytes = weight_bytes(&model->head) + weight_bytes(&model->norm) +
                       (uint64_t)shape->hidden * nib_dtype_size(model->embedding.dtype);
    return alloc_buffers(model, max_tokens, max_outputs, err);
}

// ---- the forward pass ----

static void attention(struct gpt_oss *model, const struct layer *layer, const struct nib_step *step,
                      const struct nib_cache *caches /* keys, values */)
{
    const struct nib_ops *ops = model->base.ops;
    struct nib_device *device = model->base.device;
    const struct nib_model_shape *shape = &model->base.shape;
    const struct nib_projection qkv[] = {
        {model->q, &layer->q, &layer->q_bias, false},
        {model->k, &layer->k, &layer->k_bias, false},
        {model->v, &layer->v, &layer->v_bias, false},
    };
    const struct nib_projection o = {model->branch, &layer->o, &layer->o_bias, false};
    const struct nib_attend attend = {
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .v_dim = shape->head_dim,
        .window = layer->window,
        .scale = 1.0f / __builtin_sqrtf((float)shape->head_dim),
        .sinks = &layer->sinks,
    };
    ops->rms_norm(device, step->n_tokens, model->normed, model->x, &layer->attention_norm, model->eps);
    ops->linear(device, step->n_tokens, model->normed, qkv, 3);
    ops->rope(device, model->q, shape->n_heads, shape->head_dim, &model->rope);
    ops->rope(device, model->k, shape->n_kv_heads, shape->head_dim, &model->rope);
    ops->append(device, caches[0], model->k);
    ops->append(device, caches[1], model->v);
    ops->attend(device, model->attended, model->q, caches[0], caches[1], &attend);
    ops->linear(device, step->n_tokens, model->attended, &o, 1);
    ops->all_reduce(device, step->n_tokens, model->branch);
    ops->add(device, model->x, model->branch);
}

static void mixture(struct gpt_oss *model, const struct layer *layer, const struct nib_step *step)
{
    const struct nib_ops *ops = model->base.ops;
    struct nib_device *device = model->base.device;
    const struct nib_model_shape *shape = &model->base.shape;
    const struct nib_projection router = {model->router_logits, &layer->router, &layer->router_bias, true};
    const struct nib_router choose = {NIB_ROUTER_TOPK_SOFTMAX, shape->n_experts, shape->top_k};
    ops->rms_norm(device, step->n_tokens, model->normed, model->x, &layer->mlp_norm, model->eps);
    ops->linear(device, step->n_tokens, model->normed, &router, 1);
    ops->route(device, model->routes, model->router_logits, &choose);
    ops->moe(device, model->branch, model->normed, model->routes, layer->moe);
    ops->all_reduce(device, step->n_tokens, model->branch);
    ops->add(device, model->x, model->branch);
}

static void gpt_oss_forward(struct nib_model *base, const struct nib_step *step, const struct nib_cache *caches)
{
    struct gpt_oss *model = (struct gpt_oss *)base;
    const struct nib_ops *ops = base->ops;
    ops->embed(base->device, model->x, &model->embedding);
    for (int64_t l = 0; l < base->shape.n_layers; l++) {
        attention(model, &model->layers[l], step, caches + 2 * l);
        mixture(model, &model->layers[l], step);
    }
    if (step->n_outputs == 0)
        return;
    const struct nib_projection head = {base->logits, &model->head, NULL, false};
    ops->gather(base->device, model->out, model->x);
    ops->rms_norm(base->device, step->n_outputs, model->out, model->out, &model->norm, model->eps);
    ops->linear(base->device, step->n_outputs, model->out, &head, 1);
}

static void gpt_oss_describe_layer(const struct nib_model *base, int64_t l, struct nib_layer_summary *summary)
{
    const struct gpt_oss *model = (const struct gpt_oss *)base;
    const struct nib_model_shape *shape = &base->shape;
    const struct layer *layer = &model->layers[l];
    *summary = (struct nib_layer_summary){0};
    int used = snprintf(summary->attention, sizeof summary->attention, "GQA %lld/%lld x %lld, sinks, ",
                        (long long)shape->n_heads, (long long)shape->n_kv_heads, (long long)shape->head_dim);
    char *rest = summary->attention + used;
    if (layer->window)
        snprintf(rest, sizeof summary->attention - (size_t)used, "window %lld", (long long)layer->window);
    else
        snprintf(rest, sizeof summary->attention - (size_t)used, "full");
    const struct nib_weight *dense[] = {&layer->q,           &layer->k,      &layer->v,
                                        &layer->o,           &layer->q_bias, &layer->k_bias,
                                        &layer->v_bias,      &layer->o_bias, &layer->router,
                                        &layer->router_bias, &layer->sinks,  &layer->attention_norm,
                                        &layer->mlp_norm};
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        summary->dense_bytes += weight_bytes(dense[i]);
    if (!layer->moe)
        return;
    summary->expert_layout = nib_expert_layout_name(layer->experts.layout);
    summary->expert_bytes = layer->experts.bytes;
    summary->moe_kernel = base->ops->moe_kernel(layer->moe, &summary->moe_reason);
    summary->linear_kernel = base->ops->linear_kernel(base->device, &layer->q, &summary->linear_reason);
}

const struct nib_model_family nib_gpt_oss_family = {
    .model_type = "gpt_oss",
    .create = gpt_oss_create,
    .free = gpt_oss_free,
    .each_tensor = gpt_oss_each_tensor,
    .bind = gpt_oss_bind,
    .forward = gpt_oss_forward,
    .describe_layer = gpt_oss_describe_layer,
};
