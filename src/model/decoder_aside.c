// What a checkpoint holds beside the tensors that a decoder has bound. Some of it is knowingly left aside; the rest is
// refused where it stands in a part that is computed here, for that part would compute something else than was trained.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/decoder.h"

// Of other parts: the towers of multimodal releases, and layers that predict tokens further on.
static nib_status skip_other_parts(const struct nib_decoder *decoder, struct nib_checkpoint *checkpoint,
                                   struct nib_error *err)
{
    static const char *const parts[] = {"vision_tower.", "vision_model.",          "visual.",   "model.visual.",
                                        "mm_projector.", "multi_modal_projector.", "model.mtp."};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        nib_checkpoint_skip(checkpoint, parts[i]);
    int64_t further;
    nib_status status =
        nib_config_int_or(nib_checkpoint_config(checkpoint), "num_nextn_predict_layers", 0, 0, 64, &further, err);
    for (int64_t l = 0; !status && l < further; l++)
        nib_checkpoint_skip(
            checkpoint,
            nib_decoder_name(decoder, "model.layers.%lld", decoder->base.shape.n_layers + l, ".").text);
    return status;
}

// Of a layer, but not of its mathematics: tables that follow from the config, and the scales at which activations or
// cached keys and values would be narrowed, which they are not here.
static bool changes_nothing(const char *name)
{
    static const char *const endings[] = {
        ".rotary_emb.inv_freq",
        ".rotary_emb.cos_cached",
        ".rotary_emb.sin_cached",
        ".weight_shape",
        ".input_scale",
        ".output_scale",
        ".q_scale",
        ".k_scale",
        ".v_scale",
    };
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t tail = strlen(endings[i]);
        if (length > tail && strcmp(name + length - tail, endings[i]) == 0)
            return true;
    }
    return false;
}

// Whether `name` has the number of a layer where the family's names have it.
static bool in_a_layer(const struct nib_decoder *decoder, const char *name)
{
    const char *pattern = decoder->names.attention_norm;
    size_t prefix = strlen(decoder->prefix), before = (size_t)(strstr(pattern, "%lld") - pattern);
    if (strncmp(name, decoder->prefix, prefix) != 0 || strncmp(name + prefix, pattern, before) != 0)
        return false;
    const char *number = name + prefix + before;
    size_t digits = strspn(number, "0123456789");
    return digits && digits < 9 && number[digits] == '.' && atoll(number) < decoder->base.shape.n_layers;
}

// Whether `name` stands beside the one that `pattern` is, such as model.norm.bias beside model.norm.weight.
static bool beside(const struct nib_decoder *decoder, const char *pattern, const char *name)
{
    struct nib_tensor_name whole = nib_decoder_name(decoder, pattern, 0, "");
    const char *dot = strrchr(whole.text, '.');
    size_t stem = dot ? (size_t)(dot - whole.text) : strlen(whole.text);
    return strncmp(name, whole.text, stem) == 0 && name[stem] == '.';
}

static bool is_computed_here(const struct nib_decoder *decoder, const char *name)
{
    return in_a_layer(decoder, name) || beside(decoder, decoder->names.embedding, name) ||
           beside(decoder, decoder->names.norm, name) ||
           (!decoder->tied && beside(decoder, decoder->names.head, name));
}

nib_status nib_decoder_set_aside(const struct nib_decoder *decoder, struct nib_checkpoint *checkpoint,
                                 struct nib_error *err)
{
    nib_status status = skip_other_parts(decoder, checkpoint, err);
    const struct nib_tensor *t = NULL;
    while (!status && (t = nib_checkpoint_next_unused(checkpoint, t))) {
        if (!is_computed_here(decoder, t->name))
            continue;
        if (!changes_nothing(t->name))
            return nib_fail(err, NIB_ERR_UNSUPPORTED,
                            "%s: tensor %s belongs to a part of the model that is computed here without it",
                            t->file, t->name);
        nib_checkpoint_find(checkpoint, t->name);
    }
    return status;
}
