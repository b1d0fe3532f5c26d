// A decoder's experts: packed MXFP4, or one by one in any form that a dense matrix may have.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/decoder.h"

// What the three matrices of an expert are called.
struct part_names {
    const char *gate, *up, *down;
};

// Of the names before the expert's number or the fused tensor's own.
static const char *expert_pattern(const struct nib_decoder *decoder, struct nib_checkpoint *checkpoint, int64_t l)
{
    const char *const *prefixes, *converted = decoder->names.converted_experts;
    size_t count = 0;
    if (converted && !nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, NULL)) {
        struct nib_tensor_name name = nib_decoder_name(decoder, converted, l, "");
        for (size_t i = 0; i < count; i++)
            if (strcmp(prefixes[i], name.text) == 0)
                return converted;
    }
    return decoder->names.experts;
}

// The names in which this layer has experts that are not packed, if it has.
static bool find_dense(const struct nib_decoder *decoder, const struct nib_checkpoint *checkpoint,
                       const char *pattern, int64_t layer, struct part_names *names)
{
    const struct part_names candidates[] = {
        {decoder->names.expert_gate, decoder->names.expert_up, decoder->names.expert_down},
        {"gate_proj", "up_proj", "down_proj"},
        {"w1", "w3", "w2"},
    };
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        char ending[64];
        snprintf(ending, sizeof ending, ".0.%s.weight", candidates[i].gate);
        const struct nib_tensor *tensor =
            nib_checkpoint_peek(checkpoint, nib_decoder_name(decoder, pattern, layer, ending).text);
        *names = candidates[i];
        if (tensor)
            return tensor->dtype != NIB_U8 && tensor->dtype != NIB_I8;
    }
    return false;
}

static nib_status bind_dense_expert(struct nib_decoder *decoder, struct nib_checkpoint *checkpoint,
                                    const char *pattern, int64_t l, int64_t e, const struct part_names *names,
                                    struct nib_error *err)
{
    const struct nib_model_shape *shape = &decoder->base.shape;
    struct nib_decoder_layer *layer = &decoder->layers[l];
    struct nib_dense_expert *expert = &layer->dense_experts[e];
    const struct {
        const char *name;
        int64_t rows, cols;
        struct nib_weight *weight, *bias;
    } parts[] = {
        {names->gate, shape->intermediate, shape->hidden, &expert->gate, &expert->gate_bias},
        {names->up, shape->intermediate, shape->hidden, &expert->up, &expert->up_bias},
        {names->down, shape->hidden, shape->intermediate, &expert->down, &expert->down_bias},
    };
    nib_status status = NIB_OK;
    for (int i = 0; !status && i < 3; i++) {
        char ending[64];
        snprintf(ending, sizeof ending, ".%lld.%s", (long long)e, parts[i].name);
        status = nib_bind_linear(&decoder->base, checkpoint, nib_decoder_name(decoder, pattern, l, ending).text,
                                 parts[i].rows, parts[i].cols, false, parts[i].weight, parts[i].bias, err);
        layer->expert_bytes += nib_weight_bytes(parts[i].weight) + nib_weight_bytes(parts[i].bias);
    }
    return status;
}

static nib_status bind_dense(struct nib_decoder *decoder, struct nib_checkpoint *checkpoint, const char *pattern,
                             int64_t l, const struct part_names *names, struct nib_error *err)
{
    struct nib_decoder_layer *layer = &decoder->layers[l];
    int64_t n = decoder->base.shape.n_experts;
    layer->dense_experts = calloc((size_t)n, sizeof *layer->dense_experts);
    if (!layer->dense_experts)
        return nib_fail_memory(err, (unsigned long long)n * sizeof *layer->dense_experts, "experts");
    nib_status status = NIB_OK;
    for (int64_t e = 0; !status && e < n; e++)
        status = bind_dense_expert(decoder, checkpoint, pattern, l, e, names, err);
    if (status)
        return status;
    snprintf(layer->expert_form, sizeof layer->expert_form, "%s, one by one",
             nib_dtype_name(layer->dense_experts[0].gate.dtype));
    return decoder->base.ops->bind_dense_moe(decoder->base.device, layer->dense_experts, n, &decoder->activation,
                                             &layer->moe, err);
}

nib_status nib_decoder_bind_experts(struct nib_decoder *decoder, struct nib_checkpoint *checkpoint, int64_t l,
                                    struct nib_error *err)
{
    const struct nib_model_shape *shape = &decoder->base.shape;
    struct nib_decoder_layer *layer = &decoder->layers[l];
    struct part_names names;
    const char *pattern = expert_pattern(decoder, checkpoint, l);
    if (find_dense(decoder, checkpoint, pattern, l, &names))
        return bind_dense(decoder, checkpoint, pattern, l, &names, err);
    struct nib_tensor_name prefix = nib_decoder_name(decoder, pattern, l, "");
    nib_status status =
        nib_checkpoint_experts(checkpoint, prefix.text, decoder->gpt_oss_experts, &layer->experts, err);
    if (status)
        return status;
    const struct nib_moe_weights *w = &layer->experts.weights;
    if (w->hidden != shape->hidden || w->intermediate != shape->intermediate || w->n_experts != shape->n_experts)
        return nib_fail(
            err, NIB_ERR_FORMAT,
            "%s: %s holds %lld experts of hidden %lld, intermediate %lld; the config asks for %lld, %lld, %lld",
            nib_checkpoint_path(checkpoint), prefix.text, (long long)w->n_experts, (long long)w->hidden,
            (long long)w->intermediate, (long long)shape->n_experts, (long long)shape->hidden,
            (long long)shape->intermediate);
    snprintf(layer->expert_form, sizeof layer->expert_form, "%s", nib_expert_layout_name(layer->experts.layout));
    layer->expert_bytes = layer->experts.bytes;
    struct nib_moe_config config = {.activation = decoder->activation};
    return decoder->base.ops->bind_moe(decoder->base.device, w, &config, shape->top_k, &layer->moe, err);
}
