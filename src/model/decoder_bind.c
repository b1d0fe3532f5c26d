// A decoder's tensors: one list of them for each layer, from which they are bound, listed and counted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/decoder.h"

// ---- the list ----

// A vector (rows = 0) by its whole name, or a linear.
struct slot {
    const char *pattern;
    int64_t rows, cols;
    struct nib_weight *vector;
    struct nib_dense *linear;
    bool bias, may_narrow;
};

enum { MOST_SLOTS = 24 };

struct slots {
    struct slot slot[MOST_SLOTS];
    int count;
};

static void add_vector(struct slots *slots, const char *pattern, int64_t cols, struct nib_weight *vector)
{
    slots->slot[slots->count++] = (struct slot){.pattern = pattern, .cols = cols, .vector = vector};
}

static void add_linear(struct slots *slots, const char *pattern, int64_t rows, int64_t cols,
                       struct nib_dense *linear, bool bias, bool may_narrow)
{
    slots->slot[slots->count++] = (struct slot){
        .pattern = pattern, .rows = rows, .cols = cols, .linear = linear, .bias = bias, .may_narrow = may_narrow};
}

static void add_latent(struct slots *slots, const struct nib_decoder *decoder, struct nib_decoder_layer *layer)
{
    const struct nib_decoder_names *names = &decoder->names;
    const struct nib_attention *a = layer->attention;
    int64_t h = decoder->base.shape.hidden, q = nib_query_width(a);
    if (a->q_lora) {
        add_linear(slots, names->q_a, a->q_lora, h, &layer->q_a, a->bias, true);
        add_vector(slots, names->q_a_norm, a->q_lora, &layer->q_a_norm);
        add_linear(slots, names->q_b, q, a->q_lora, &layer->qkv[0], false, true);
    } else {
        add_linear(slots, names->q, q, h, &layer->qkv[0], false, true);
    }
    add_linear(slots, names->kv_a, nib_key_width(a), h, &layer->kv_a, a->bias, true);
    add_vector(slots, names->kv_a_norm, a->kv_lora, &layer->kv_a_norm);
    add_linear(slots, names->kv_b, a->n_heads * (a->nope + a->v_dim), a->kv_lora, &layer->kv_b, false, false);
}

static void add_plain(struct slots *slots, const struct nib_decoder *decoder, struct nib_decoder_layer *layer,
                      bool fused)
{
    const struct nib_decoder_names *names = &decoder->names;
    const struct nib_attention *a = layer->attention;
    int64_t h = decoder->base.shape.hidden, q = nib_query_width(a), k = nib_key_width(a);
    bool whole = a->qk_norm == NIB_QK_NORM_WHOLE;
    if (!fused) {
        add_linear(slots, names->q, q, h, &layer->qkv[0], a->bias, true);
        add_linear(slots, names->k, k, h, &layer->qkv[1], a->bias, true);
        add_linear(slots, names->v, nib_value_width(a), h, &layer->qkv[2], a->bias, true);
    }
    if (a->qk_norm != NIB_QK_NORM_NONE) {
        add_vector(slots, names->q_norm, whole ? q : a->head_dim, &layer->q_norm);
        add_vector(slots, names->k_norm, whole ? k : a->head_dim, &layer->k_norm);
    }
    if (a->sinks)
        add_vector(slots, names->sinks, a->n_heads, &layer->sinks);
}

// All tensors of a layer but its experts and, where they are fused, its q, k and v.
static void list_layer(const struct nib_decoder *decoder, struct nib_decoder_layer *layer, bool fused,
                       struct slots *slots)
{
    const struct nib_decoder_names *names = &decoder->names;
    const struct nib_model_shape *shape = &decoder->base.shape;
    const struct nib_attention *a = layer->attention;
    int64_t h = shape->hidden, mlp = layer->sparse ? decoder->shared_intermediate : decoder->dense_intermediate;
    slots->count = 0;
    add_vector(slots, names->attention_norm, h, &layer->attention_norm);
    if (a->kv_lora)
        add_latent(slots, decoder, layer);
    else
        add_plain(slots, decoder, layer, fused);
    add_linear(slots, names->o, h, nib_attended_width(a), &layer->o, a->o_bias, true);
    add_vector(slots, names->mlp_norm, h, &layer->mlp_norm);
    if (mlp) {
        add_linear(slots, layer->sparse ? names->shared_gate : names->gate, mlp, h, &layer->gate, false, true);
        add_linear(slots, layer->sparse ? names->shared_up : names->up, mlp, h, &layer->up, false, true);
        add_linear(slots, layer->sparse ? names->shared_down : names->down, h, mlp, &layer->down, false, true);
    }
    if (layer->sparse)
        add_linear(slots, names->router, shape->n_experts, h, &layer->router, decoder->router_bias, false);
    if (layer->sparse && decoder->corrected)
        add_vector(slots, names->correction, shape->n_experts, &layer->correction);
}

// ---- listing ----

struct visitor {
    nib_status (*visit)(void *user, const struct nib_tensor_spec *spec, struct nib_error *err);
    void *user;
    struct nib_error *err;
    nib_status status; // the first failure; visits after it do nothing
};

static void visit(struct visitor *v, struct nib_tensor_name name, enum nib_dtype dtype, int rank, int64_t a,
                  int64_t b, int64_t c, int64_t d)
{
    if (v->status)
        return;
    struct nib_tensor_spec spec = {.dtype = dtype, .rank = rank, .shape = {a, b, c, d}};
    snprintf(spec.name, sizeof spec.name, "%s", name.text);
    v->status = v->visit(v->user, &spec, v->err);
}

static void visit_expert(struct visitor *v, const struct nib_decoder *decoder, int64_t layer, int64_t expert)
{
    const struct nib_decoder_names *names = &decoder->names;
    const struct nib_model_shape *shape = &decoder->base.shape;
    const struct {
        const char *part;
        int64_t rows, cols;
    } parts[] = {{names->expert_gate, shape->intermediate, shape->hidden},
                 {names->expert_up, shape->intermediate, shape->hidden},
                 {names->expert_down, shape->hidden, shape->intermediate}};
    char ending[64];
    for (int i = 0; i < 3; i++) {
        snprintf(ending, sizeof ending, ".%lld.%s.weight", (long long)expert, parts[i].part);
        visit(v, nib_decoder_name(decoder, names->experts, layer, ending), NIB_U8, 2, parts[i].rows,
              parts[i].cols / 2, 0, 0);
        snprintf(ending, sizeof ending, ".%lld.%s.weight_scale", (long long)expert, parts[i].part);
        visit(v, nib_decoder_name(decoder, names->experts, layer, ending), NIB_U8, 2, parts[i].rows,
              parts[i].cols / NIB_MX_BLOCK, 0, 0);
    }
}

static void visit_gpt_oss_experts(struct visitor *v, const struct nib_decoder *decoder, int64_t l)
{
    const struct nib_model_shape *shape = &decoder->base.shape;
    const char *n = decoder->names.experts;
    int64_t h = shape->hidden, i = shape->intermediate, e = shape->n_experts;
    visit(v, nib_decoder_name(decoder, n, l, ".gate_up_proj_blocks"), NIB_U8, 4, e, 2 * i, h / 32, 16);
    visit(v, nib_decoder_name(decoder, n, l, ".gate_up_proj_scales"), NIB_U8, 3, e, 2 * i, h / 32, 0);
    visit(v, nib_decoder_name(decoder, n, l, ".gate_up_proj_bias"), NIB_BF16, 2, e, 2 * i, 0, 0);
    visit(v, nib_decoder_name(decoder, n, l, ".down_proj_blocks"), NIB_U8, 4, e, h, i / 32, 16);
    visit(v, nib_decoder_name(decoder, n, l, ".down_proj_scales"), NIB_U8, 3, e, h, i / 32, 0);
    visit(v, nib_decoder_name(decoder, n, l, ".down_proj_bias"), NIB_BF16, 2, e, h, 0, 0);
}

static void visit_layer(struct visitor *v, const struct nib_decoder *decoder, int64_t l)
{
    struct slots slots;
    list_layer(decoder, &decoder->layers[l], false, &slots);
    for (int i = 0; i < slots.count; i++) {
        const struct slot *s = &slots.slot[i];
        if (s->vector)
            visit(v, nib_decoder_name(decoder, s->pattern, l, ""), NIB_BF16, 1, s->cols, 0, 0, 0);
        else
            visit(v, nib_decoder_name(decoder, s->pattern, l, ".weight"), NIB_BF16, 2, s->rows, s->cols, 0, 0);
        if (s->bias)
            visit(v, nib_decoder_name(decoder, s->pattern, l, ".bias"), NIB_BF16, 1, s->rows, 0, 0, 0);
    }
    if (!decoder->layers[l].sparse)
        return;
    if (decoder->gpt_oss_experts)
        visit_gpt_oss_experts(v, decoder, l);
    for (int64_t e = 0; !decoder->gpt_oss_experts && e < decoder->base.shape.n_experts; e++)
        visit_expert(v, decoder, l, e);
}

nib_status nib_decoder_each_tensor(const struct nib_model *model,
                                   nib_status (*callback)(void *user, const struct nib_tensor_spec *spec,
                                                          struct nib_error *err),
                                   void *user, struct nib_error *err)
{
    const struct nib_decoder *decoder = (const struct nib_decoder *)model;
    const struct nib_model_shape *shape = &model->shape;
    struct visitor v = {callback, user, err, NIB_OK};
    visit(&v, nib_decoder_name(decoder, decoder->names.embedding, 0, ""), NIB_BF16, 2, shape->vocab, shape->hidden,
          0, 0);
    for (int64_t l = 0; l < shape->n_layers; l++)
        visit_layer(&v, decoder, l);
    visit(&v, nib_decoder_name(decoder, decoder->names.norm, 0, ""), NIB_BF16, 1, shape->hidden, 0, 0, 0);
    if (!decoder->tied)
        visit(&v, nib_decoder_name(decoder, decoder->names.head, 0, ".weight"), NIB_BF16, 2, shape->vocab,
              shape->hidden, 0, 0);
    return v.status;
}

// ---- binding ----

struct binder {
    struct nib_decoder *decoder;
    struct nib_checkpoint *checkpoint;
    struct nib_error *err;
};

static nib_status bind_linear(struct binder *b, int64_t layer, const struct slot *slot)
{
    struct nib_tensor_name name = nib_decoder_name(b->decoder, slot->pattern, layer, "");
    nib_status status = nib_bind_linear(&b->decoder->base, b->checkpoint, name.text, slot->rows, slot->cols,
                                        slot->may_narrow, &slot->linear->weight, &slot->linear->bias, b->err);
    if (!status && slot->bias && !slot->linear->bias.data)
        return nib_fail(b->err, NIB_ERR_NOT_FOUND, "%s: no tensor %s.bias", nib_checkpoint_path(b->checkpoint),
                        name.text);
    return status;
}

static nib_status bind_slot(struct binder *b, int64_t layer, const struct slot *slot)
{
    if (slot->linear)
        return bind_linear(b, layer, slot);
    return nib_bind_tensor(&b->decoder->base, b->checkpoint,
                           nib_decoder_name(b->decoder, slot->pattern, layer, "").text, 1, slot->cols, false,
                           slot->vector, b->err);
}

// `rows` rows (or elements of a vector) of a bound weight, from `first` on.
static struct nib_weight slice(struct nib_weight weight, int64_t first, int64_t rows)
{
    bool vector = weight.rows == 1;
    if (!weight.data)
        return weight;
    weight.data = (const char *)weight.data +
                  (size_t)first * (vector ? nib_dtype_size(weight.dtype) : nib_weight_row_bytes(&weight));
    weight.first_row += first;
    *(vector ? &weight.cols : &weight.rows) = rows;
    return weight;
}

static nib_status bind_fused(struct binder *b, int64_t l, struct nib_decoder_layer *layer)
{
    const struct nib_attention *a = layer->attention;
    int64_t shards = b->decoder->qkv_shards, first = 0;
    const int64_t rows[] = {nib_query_width(a), nib_key_width(a), nib_value_width(a)};
    struct nib_dense whole = {0};
    const struct slot slot = {.pattern = b->decoder->names.qkv,
                              .rows = rows[0] + rows[1] + rows[2],
                              .cols = b->decoder->base.shape.hidden,
                              .linear = &whole,
                              .bias = a->bias,
                              .may_narrow = true};
    if (a->n_kv_heads % shards || a->n_heads % shards)
        return nib_fail(b->err, NIB_ERR_UNSUPPORTED, "%s: %lld shards of qkv for %lld and %lld heads",
                        nib_checkpoint_path(b->checkpoint), (long long)shards, (long long)a->n_heads,
                        (long long)a->n_kv_heads);
    nib_status status = bind_linear(b, l, &slot);
    if (status)
        return status;
    layer->n_shards = shards;
    for (int64_t i = 0; i < 3 * shards; first += rows[i % 3] / shards, i++) {
        layer->qkv[i].weight = slice(whole.weight, first, rows[i % 3] / shards);
        layer->qkv[i].bias = slice(whole.bias, first, rows[i % 3] / shards);
    }
    return NIB_OK;
}

static void set_projections(const struct nib_decoder *decoder, struct nib_decoder_layer *layer)
{
    const struct nib_attention *a = layer->attention;
    const struct nib_buffer y[] = {nib_decoder_view(decoder, NIB_BUFFER_Q, nib_query_width(a)),
                                   nib_decoder_view(decoder, NIB_BUFFER_K, nib_key_width(a)),
                                   nib_decoder_view(decoder, NIB_BUFFER_V, nib_value_width(a))};
    for (int64_t i = 0; i < 3 * layer->n_shards; i++)
        layer->projections[i] = (struct nib_projection){
            .y = y[i % 3],
            .weight = &layer->qkv[i].weight,
            .bias = &layer->qkv[i].bias,
            .column = i / 3 * layer->qkv[i].weight.rows,
        };
}

static nib_status bind_layer(struct binder *b, int64_t l)
{
    struct nib_decoder *decoder = b->decoder;
    struct nib_decoder_layer *layer = &decoder->layers[l];
    const char *qkv = decoder->names.qkv;
    bool fused = qkv && !layer->attention->kv_lora &&
                 nib_checkpoint_peek(b->checkpoint, nib_decoder_name(decoder, qkv, l, ".weight").text);
    nib_status status = fused ? bind_fused(b, l, layer) : NIB_OK;
    struct slots slots;
    list_layer(decoder, layer, fused, &slots);
    for (int i = 0; !status && i < slots.count; i++)
        status = bind_slot(b, l, &slots.slot[i]);
    if (!status && layer->kv_b.bias.data) // it would have to be added to keys that are never formed
        status = nib_fail(b->err, NIB_ERR_UNSUPPORTED, "%s: a bias of %s is not computed here",
                          nib_checkpoint_path(b->checkpoint),
                          nib_decoder_name(decoder, decoder->names.kv_b, l, "").text);
    if (!status)
        set_projections(decoder, layer);
    if (status || !layer->sparse)
        return status;
    return nib_decoder_bind_experts(decoder, b->checkpoint, l, b->err);
}

static nib_status alloc_buffers(struct nib_decoder *decoder, int64_t max_tokens, int64_t max_outputs,
                                struct nib_error *err)
{
    struct nib_model *base = &decoder->base;
    int64_t widths[NIB_BUFFER_COUNT];
    nib_status status = NIB_OK;
    nib_decoder_widths(decoder, widths);
    for (int i = 0; !status && i < NIB_BUFFER_COUNT; i++)
        if (widths[i])
            status = base->ops->alloc_buffer(base->device, max_tokens, widths[i], &decoder->buffers[i], err);
    if (!status)
        status = base->ops->alloc_buffer(base->device, max_outputs, base->shape.hidden, &decoder->out, err);
    if (!status)
        status = base->ops->alloc_buffer(base->device, max_outputs, base->shape.vocab, &base->logits, err);
    return status ? status
                  : base->ops->alloc_routes(base->device, max_tokens, base->shape.top_k, &decoder->routes, err);
}

static void find_prefix(struct nib_decoder *decoder, const struct nib_checkpoint *checkpoint)
{
    static const char text_tower[] = "language_model.";
    decoder->prefix = text_tower;
    if (!nib_checkpoint_peek(checkpoint, nib_decoder_name(decoder, decoder->names.embedding, 0, "").text))
        decoder->prefix = "";
}

nib_status nib_decoder_bind(struct nib_model *base, struct nib_checkpoint *checkpoint, int64_t max_tokens,
                            int64_t max_outputs, struct nib_error *err)
{
    struct nib_decoder *decoder = (struct nib_decoder *)base;
    const struct nib_model_shape *shape = &base->shape;
    struct binder b = {decoder, checkpoint, err};
    struct nib_dense head = {0};
    find_prefix(decoder, checkpoint);
    nib_status status = alloc_buffers(decoder, max_tokens, max_outputs, err);
    if (!status)
        status = nib_bind_tensor(base, checkpoint, nib_decoder_name(decoder, decoder->names.embedding, 0, "").text,
                                 shape->vocab, shape->hidden, false, &decoder->embedding, err);
    for (int64_t l = 0; !status && l < shape->n_layers; l++)
        status = bind_layer(&b, l);
    if (!status)
        status = nib_bind_tensor(base, checkpoint, nib_decoder_name(decoder, decoder->names.norm, 0, "").text, 1,
                                 shape->hidden, false, &decoder->norm, err);
    if (!status && !decoder->tied)
        status = bind_linear(&b, 0,
                             &(struct slot){.pattern = decoder->names.head,
                                            .rows = shape->vocab,
                                            .cols = shape->hidden,
                                            .linear = &head,
                                            .may_narrow = true});
    if (!status)
        status = nib_decoder_set_aside(decoder, checkpoint, err);
    decoder->head = decoder->tied ? decoder->embedding : head.weight;
    decoder->head_bias = head.bias;
    base->head_bytes = nib_weight_bytes(&decoder->head) + nib_weight_bytes(&decoder->norm) +
                       (uint64_t)shape->hidden * nib_dtype_size(decoder->embedding.dtype);
    return status;
}

// ---- reports and the end ----

static void describe_attention(const struct nib_attention *a, char *text, size_t capacity)
{
    char heads[48], window[32] = "full";
    if (a->kv_lora)
        snprintf(heads, sizeof heads, "MLA %lld x (%lld + %lld)", (long long)a->n_heads, (long long)a->kv_lora,
                 (long long)a->rope.dims);
    else
        snprintf(heads, sizeof heads, "GQA %lld/%lld x %lld", (long long)a->n_heads, (long long)a->n_kv_heads,
                 (long long)a->head_dim);
    if (a->window)
        snprintf(window, sizeof window, "window %lld", (long long)a->window);
    snprintf(text, capacity, "%s, %s%s", heads, a->sinks ? "sinks, " : "", window);
}

void nib_decoder_describe_layer(const struct nib_model *base, int64_t l, struct nib_layer_summary *summary)
{
    const struct nib_decoder *decoder = (const struct nib_decoder *)base;
    struct nib_decoder_layer *layer = &decoder->layers[l];
    struct slots slots;
    *summary = (struct nib_layer_summary){0};
    describe_attention(layer->attention, summary->attention, sizeof summary->attention);
    list_layer(decoder, layer, true, &slots);
    for (int i = 0; i < slots.count; i++) {
        const struct slot *s = &slots.slot[i];
        summary->dense_bytes += s->vector
                                    ? nib_weight_bytes(s->vector)
                                    : nib_weight_bytes(&s->linear->weight) + nib_weight_bytes(&s->linear->bias);
    }
    for (int64_t i = 0; !layer->attention->kv_lora && i < 3 * layer->n_shards; i++)
        summary->dense_bytes += nib_weight_bytes(&layer->qkv[i].weight) + nib_weight_bytes(&layer->qkv[i].bias);
    if (layer->qkv[0].weight.data)
        summary->linear_kernel =
            base->ops->linear_kernel(base->device, &layer->qkv[0].weight, &summary->linear_reason);
    if (!layer->moe)
        return;
    summary->expert_layout = layer->expert_form;
    summary->expert_bytes = layer->expert_bytes;
    summary->moe_kernel = base->ops->moe_kernel(layer->moe, &summary->moe_reason);
}

void nib_decoder_free(struct nib_model *base)
{
    struct nib_decoder *decoder = (struct nib_decoder *)base;
    int64_t n_layers = decoder->layers ? base->shape.n_layers : 0;
    for (int64_t l = 0; l < n_layers; l++) {
        if (base->ops)
            base->ops->free_moe(base->device, decoder->layers[l].moe);
        free(decoder->layers[l].dense_experts);
        free(decoder->layers[l].qkv);
        free(decoder->layers[l].projections);
    }
    if (base->ops) {
        for (int i = 0; i < NIB_BUFFER_COUNT; i++)
            base->ops->free_buffer(base->device, &decoder->buffers[i]);
        base->ops->free_buffer(base->device, &decoder->out);
        base->ops->free_buffer(base->device, &base->logits);
        base->ops->free_routes(base->device, &decoder->routes);
    }
    for (int i = 0; i < NIB_ATTENTION_KINDS; i++)
        free((void *)decoder->attentions[i].rope.inv_freq);
    free(decoder->layers);
    free(decoder->caches);
    free(decoder);
}
