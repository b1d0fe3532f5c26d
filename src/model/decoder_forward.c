// A decoder's forward pass.
#include "model/decoder.h"

struct nib_buffer nib_decoder_view(const struct nib_decoder *decoder, enum nib_decoder_buffer which, int64_t width)
{
    struct nib_buffer view = decoder->buffers[which];
    view.width = width;
    return view;
}

static void norm(const struct nib_decoder *decoder, const struct nib_step *step, const struct nib_weight *weight)
{
    decoder->base.ops->rms_norm(decoder->base.device, step->n_tokens, decoder->buffers[NIB_BUFFER_NORMED],
                                decoder->buffers[NIB_BUFFER_X], weight, decoder->eps);
}

static struct nib_projection projection(struct nib_buffer y, const struct nib_dense *dense)
{
    return (struct nib_projection){.y = y, .weight = &dense->weight, .bias = &dense->bias};
}

// x += branch, summed over the ranks.
static void add_branch(const struct nib_decoder *decoder, const struct nib_step *step)
{
    const struct nib_ops *ops = decoder->base.ops;
    ops->all_reduce(decoder->base.device, step->n_tokens, decoder->buffers[NIB_BUFFER_BRANCH]);
    ops->add(decoder->base.device, decoder->buffers[NIB_BUFFER_X], decoder->buffers[NIB_BUFFER_BRANCH]);
}

static struct nib_attend attend_of(const struct nib_attention *a, const struct nib_decoder_layer *layer)
{
    return (struct nib_attend){
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .v_dim = a->v_dim,
        .window = a->window,
        .scale = a->scale,
        .value_scale = a->value_scale,
        .sinks = a->sinks ? &layer->sinks : NULL,
    };
}

static void norm_heads(const struct nib_decoder *decoder, const struct nib_step *step,
                       const struct nib_attention *a, struct nib_buffer x, int64_t n_heads,
                       const struct nib_weight *weight)
{
    const struct nib_ops *ops = decoder->base.ops;
    if (a->qk_norm == NIB_QK_NORM_HEAD)
        ops->head_norm(decoder->base.device, x, n_heads, a->head_dim, weight, decoder->eps);
    else if (a->qk_norm == NIB_QK_NORM_WHOLE)
        ops->rms_norm(decoder->base.device, step->n_tokens, x, x, weight, decoder->eps);
}

static void plain_attention(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer,
                            const struct nib_step *step, const struct nib_cache *caches /* keys, values */)
{
    const struct nib_ops *ops = decoder->base.ops;
    struct nib_device *device = decoder->base.device;
    const struct nib_attention *a = layer->attention;
    const struct nib_attend attend = attend_of(a, layer);
    struct nib_buffer q = nib_decoder_view(decoder, NIB_BUFFER_Q, nib_query_width(a)),
                      k = nib_decoder_view(decoder, NIB_BUFFER_K, nib_key_width(a)),
                      v = nib_decoder_view(decoder, NIB_BUFFER_V, nib_value_width(a));
    ops->linear(device, step->n_tokens, decoder->buffers[NIB_BUFFER_NORMED], layer->projections,
                (int)(3 * layer->n_shards));
    norm_heads(decoder, step, a, q, a->n_heads, &layer->q_norm);
    norm_heads(decoder, step, a, k, a->n_kv_heads, &layer->k_norm);
    ops->rope(device, q, a->n_heads, a->head_dim, &a->rope);
    ops->rope(device, k, a->n_kv_heads, a->head_dim, &a->rope);
    ops->append(device, caches[0], k);
    ops->append(device, caches[1], v);
    ops->attend(device, nib_decoder_view(decoder, NIB_BUFFER_ATTENDED, nib_attended_width(a)), q, caches[0],
                caches[1], &attend);
}

// Queries, and the token's latent row with its rotated part, normed.
static void latent_inputs(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer,
                          const struct nib_step *step, struct nib_buffer q, struct nib_buffer row)
{
    const struct nib_ops *ops = decoder->base.ops;
    struct nib_device *device = decoder->base.device;
    const struct nib_attention *a = layer->attention;
    struct nib_buffer q_a = nib_decoder_view(decoder, NIB_BUFFER_Q_A, a->q_lora);
    const struct nib_projection first[] = {
        projection(a->q_lora ? q_a : q, a->q_lora ? &layer->q_a : &layer->qkv[0]),
        projection(row, &layer->kv_a),
    };
    ops->linear(device, step->n_tokens, decoder->buffers[NIB_BUFFER_NORMED], first, 2);
    if (a->q_lora) {
        const struct nib_projection second = projection(q, &layer->qkv[0]);
        ops->rms_norm(device, step->n_tokens, q_a, q_a, &layer->q_a_norm, decoder->inner_eps);
        ops->linear(device, step->n_tokens, q_a, &second, 1);
    }
    ops->head_norm(device, row, 1, row.width, &layer->kv_a_norm, decoder->inner_eps);
    struct nib_rope rope = a->rope;
    rope.first = a->nope;
    ops->rope(device, q, a->n_heads, a->head_dim, &rope);
    rope.first = a->kv_lora;
    ops->rope(device, row, 1, row.width, &rope);
}

static void latent_attention(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer,
                             const struct nib_step *step, const struct nib_cache *cache)
{
    const struct nib_ops *ops = decoder->base.ops;
    struct nib_device *device = decoder->base.device;
    const struct nib_attention *a = layer->attention;
    int64_t row_width = nib_key_width(a);
    struct nib_buffer q = nib_decoder_view(decoder, NIB_BUFFER_Q, nib_query_width(a)),
                      row = nib_decoder_view(decoder, NIB_BUFFER_K, row_width),
                      latent_q = nib_decoder_view(decoder, NIB_BUFFER_LATENT_Q, a->n_heads * row_width),
                      latent = nib_decoder_view(decoder, NIB_BUFFER_LATENT_ATTENDED, a->n_heads * a->kv_lora);
    const struct nib_head_product to_latent = {.weight = &layer->kv_b.weight,
                                               .n_heads = a->n_heads,
                                               .row_pitch = a->nope + a->v_dim,
                                               .rows = a->nope,
                                               .transposed = true,
                                               .x_pitch = a->head_dim,
                                               .y_pitch = row_width,
                                               .tail = a->rope.dims};
    const struct nib_head_product to_values = {.weight = &layer->kv_b.weight,
                                               .n_heads = a->n_heads,
                                               .row_pitch = a->nope + a->v_dim,
                                               .first_row = a->nope,
                                               .rows = a->v_dim,
                                               .x_pitch = a->kv_lora,
                                               .y_pitch = a->v_dim};
    struct nib_attend attend = attend_of(a, layer);
    attend.n_kv_heads = 1;
    attend.head_dim = row_width;
    attend.v_dim = a->kv_lora;
    latent_inputs(decoder, layer, step, q, row);
    ops->append(device, *cache, row);
    ops->linear_heads(device, latent_q, q, &to_latent);
    ops->attend(device, latent, latent_q, *cache, *cache, &attend);
    ops->linear_heads(device, nib_decoder_view(decoder, NIB_BUFFER_ATTENDED, nib_attended_width(a)), latent,
                      &to_values);
}

static void attention(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer,
                      const struct nib_step *step, const struct nib_cache *caches)
{
    const struct nib_projection o = projection(decoder->buffers[NIB_BUFFER_BRANCH], &layer->o);
    norm(decoder, step, &layer->attention_norm);
    if (layer->attention->kv_lora)
        latent_attention(decoder, layer, step, caches + layer->first_cache);
    else
        plain_attention(decoder, layer, step, caches + layer->first_cache);
    decoder->base.ops->linear(decoder->base.device, step->n_tokens,
                              nib_decoder_view(decoder, NIB_BUFFER_ATTENDED, nib_attended_width(layer->attention)),
                              &o, 1);
    add_branch(decoder, step);
}

// y = down * (silu(gate * x) * (up * x)) of a dense layer or a shared expert.
static void gated(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer,
                  const struct nib_step *step, struct nib_buffer y)
{
    const struct nib_ops *ops = decoder->base.ops;
    struct nib_device *device = decoder->base.device;
    int64_t width = layer->gate.weight.rows;
    struct nib_buffer gate = nib_decoder_view(decoder, NIB_BUFFER_GATE, width),
                      up = nib_decoder_view(decoder, NIB_BUFFER_UP, width);
    const struct nib_projection in[] = {projection(gate, &layer->gate), projection(up, &layer->up)},
                                out = projection(y, &layer->down);
    ops->linear(device, step->n_tokens, decoder->buffers[NIB_BUFFER_NORMED], in, 2);
    ops->silu_mul(device, gate, up);
    ops->linear(device, step->n_tokens, gate, &out, 1);
}

static void mixture(const struct nib_decoder *decoder, const struct nib_decoder_layer *layer,
                    const struct nib_step *step)
{
    const struct nib_ops *ops = decoder->base.ops;
    struct nib_device *device = decoder->base.device;
    const struct nib_buffer *b = decoder->buffers;
    struct nib_projection logits = projection(b[NIB_BUFFER_ROUTER], &layer->router);
    struct nib_router router = decoder->router;
    logits.exact = true;
    router.correction = decoder->corrected ? &layer->correction : NULL;
    ops->linear(device, step->n_tokens, b[NIB_BUFFER_NORMED], &logits, 1);
    ops->route(device, decoder->routes, b[NIB_BUFFER_ROUTER], &router);
    ops->moe(device, b[NIB_BUFFER_BRANCH], b[NIB_BUFFER_NORMED], decoder->routes, layer->moe);
    if (decoder->shared_intermediate) {
        gated(decoder, layer, step, b[NIB_BUFFER_SHARED]);
        ops->add(device, b[NIB_BUFFER_BRANCH], b[NIB_BUFFER_SHARED]);
    }
}

void nib_decoder_forward(struct nib_model *base, const struct nib_step *step, const struct nib_cache *caches)
{
    const struct nib_decoder *decoder = (const struct nib_decoder *)base;
    const struct nib_ops *ops = base->ops;
    ops->embed(base->device, decoder->buffers[NIB_BUFFER_X], &decoder->embedding);
    for (int64_t l = 0; l < base->shape.n_layers; l++) {
        const struct nib_decoder_layer *layer = &decoder->layers[l];
        attention(decoder, layer, step, caches);
        norm(decoder, step, &layer->mlp_norm);
        if (layer->sparse)
            mixture(decoder, layer, step);
        else
            gated(decoder, layer, step, decoder->buffers[NIB_BUFFER_BRANCH]);
        add_branch(decoder, step);
    }
    if (step->n_outputs == 0)
        return;
    const struct nib_projection head = {.y = base->logits, .weight = &decoder->head, .bias = &decoder->head_bias};
    ops->gather(base->device, decoder->out, decoder->buffers[NIB_BUFFER_X]);
    ops->rms_norm(base->device, step->n_outputs, decoder->out, decoder->out, &decoder->norm, decoder->eps);
    ops->linear(base->device, step->n_outputs, decoder->out, &head, 1);
}
