// All experts of a layer in one tensor per projection, gate and up rows together.
#include <string.h>

#include "base/error.h"
#include "checkpoint/experts.h"

struct fused_names {
    enum nib_expert_layout layout;
    const char *gate_up, *gate_up_scale, *gate_up_bias;
    const char *down, *down_scale, *down_bias;
};

static const struct fused_names spellings[] = {
    {NIB_EXPERTS_GPT_OSS, "gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias", "down_proj_blocks",
     "down_proj_scales", "down_proj_bias"},
    {NIB_EXPERTS_GPT_OSS_ORIGINAL, "mlp1_weight.blocks", "mlp1_weight.scales", "mlp1_bias", "mlp2_weight.blocks",
     "mlp2_weight.scales", "mlp2_bias"},
    {NIB_EXPERTS_FUSED, "w13_weight", "w13_weight_scale", "w13_bias", "w2_weight", "w2_weight_scale", "w2_bias"},
    {NIB_EXPERTS_FUSED, "w13", "s13", "b13", "w2", "s2", "b2"},
};

static const struct nib_tensor *peek(const struct nib_checkpoint *checkpoint, const char *prefix, const char *name)
{
    char text[NIB_NAME_CAPACITY];
    return nib_name_join(text, prefix, name) ? nib_checkpoint_peek(checkpoint, text) : NULL;
}

static nib_status require(struct nib_checkpoint *checkpoint, const char *prefix, const char *name,
                          const struct nib_tensor **tensor, struct nib_error *err)
{
    char text[NIB_NAME_CAPACITY];
    if (!nib_name_join(text, prefix, name))
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: too long for a tensor's name", prefix);
    return nib_checkpoint_require(checkpoint, text, tensor, err);
}

static nib_status find_spelling(const struct nib_checkpoint *checkpoint, const char *prefix,
                                const struct fused_names **names, struct nib_error *err)
{
    *names = NULL;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (!peek(checkpoint, prefix, spellings[i].gate_up) && !peek(checkpoint, prefix, spellings[i].down))
            continue;
        if (*names)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: experts in two layouts, %s and %s", checkpoint->path,
                            prefix, (*names)->gate_up, spellings[i].gate_up);
        *names = &spellings[i];
    }
    return NIB_OK;
}

// A weight, its scale, and its bias if there is one.
static nib_status read_packed(struct nib_checkpoint *checkpoint, const char *prefix, const char *weight,
                              const char *scale, const char *bias, struct nib_packed *packed,
                              struct nib_error *err)
{
    nib_status status = require(checkpoint, prefix, weight, &packed->weight, err);
    if (status == NIB_OK)
        status = require(checkpoint, prefix, scale, &packed->scale, err);
    if (status != NIB_OK)
        return status;
    packed->bias = peek(checkpoint, prefix, bias);
    nib_checkpoint_mark(checkpoint, packed->bias);
    return nib_packed_check(packed, true, err);
}

static nib_status check_pair(const struct nib_packed *gate_up, const struct nib_packed *down,
                             struct nib_error *err)
{
    char one[200], other[200];
    nib_tensor_describe(gate_up->weight, one, sizeof one);
    nib_tensor_describe(down->weight, other, sizeof other);
    if (gate_up->rows % (2 * NIB_MX_BLOCK) != 0)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s: gate and up rows are not 2 x a multiple of 32",
                        gate_up->weight->file, gate_up->weight->name, one);
    if (down->experts != gate_up->experts || down->cols != gate_up->rows / 2 || down->rows != gate_up->cols)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s does not fit %s: %s", down->weight->file,
                        down->weight->name, other, gate_up->weight->name, one);
    if (!gate_up->bias != !down->bias || (down->bias && down->bias->dtype != gate_up->bias->dtype))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s and %s: both have a bias of one type, or neither has one",
                        down->weight->file, gate_up->weight->name, down->weight->name);
    return NIB_OK;
}

static nib_status row_order(const struct nib_checkpoint *checkpoint, enum nib_expert_layout layout,
                            bool *interleaved, struct nib_error *err)
{
    const char *stated = nib_checkpoint_metadata(checkpoint, "gate_up_layout");
    if (layout != NIB_EXPERTS_FUSED)
        *interleaved = true;
    if (!stated)
        return NIB_OK;
    *interleaved = strcmp(stated, "interleaved") == 0;
    if (!*interleaved && strcmp(stated, "concatenated") != 0)
        return nib_fail(err, NIB_ERR_FORMAT,
                        "%s: metadata gate_up_layout is \"%.40s\", not interleaved or concatenated",
                        checkpoint->path, stated);
    return NIB_OK;
}

static const void *bias_at(const struct nib_packed *packed, int64_t element)
{
    if (!packed->bias)
        return NULL;
    return (const uint8_t *)packed->bias->data + element * (int64_t)nib_dtype_size(packed->bias->dtype);
}

static nib_status fill_experts(struct nib_checkpoint *checkpoint, const struct nib_packed *gate_up,
                               const struct nib_packed *down, struct nib_experts *experts, struct nib_error *err)
{
    int64_t count = gate_up->experts, hidden = gate_up->cols, rows = gate_up->rows, intermediate = rows / 2;
    int64_t up_row = experts->interleaved ? 1 : intermediate; // of an expert's gate and up rows, the first up row
    struct nib_expert *list = nib_checkpoint_allocate(checkpoint, (size_t)count * sizeof *list);
    if (!list)
        return nib_fail_memory(err, (size_t)count * sizeof *list, "a layer's experts");
    for (int64_t e = 0; e < count; e++) {
        int64_t gate = e * rows, up = gate + up_row;
        list[e] = (struct nib_expert){
            .gate = gate_up->codes + gate * (hidden / 2),
            .up = gate_up->codes + up * (hidden / 2),
            .gate_scales = gate_up->scales + gate * (hidden / NIB_MX_BLOCK),
            .up_scales = gate_up->scales + up * (hidden / NIB_MX_BLOCK),
            .down = down->codes + e * hidden * (intermediate / 2),
            .down_scales = down->scales + e * hidden * (intermediate / NIB_MX_BLOCK),
            .gate_bias = bias_at(gate_up, gate),
            .up_bias = bias_at(gate_up, up),
            .down_bias = bias_at(down, e * hidden),
        };
    }
    experts->weights = (struct nib_moe_weights){
        .hidden = hidden,
        .intermediate = intermediate,
        .n_experts = count,
        .gate_up_row_stride = experts->interleaved ? 2 : 1,
        .bias_dtype = gate_up->bias ? gate_up->bias->dtype : NIB_F32,
        .experts = list,
    };
    return NIB_OK;
}

static uint64_t packed_bytes(const struct nib_packed *packed)
{
    return packed->weight->bytes + packed->scale->bytes + (packed->bias ? packed->bias->bytes : 0);
}

nib_status nib_experts_fused(struct nib_checkpoint *checkpoint, const char *prefix, bool interleaved,
                             struct nib_experts *experts, bool *found, struct nib_error *err)
{
    const struct fused_names *names;
    nib_status status = find_spelling(checkpoint, prefix, &names, err);
    *found = names != NULL;
    if (status != NIB_OK || !names)
        return status;
    struct nib_packed gate_up = {0}, down = {0};
    status =
        read_packed(checkpoint, prefix, names->gate_up, names->gate_up_scale, names->gate_up_bias, &gate_up, err);
    if (status == NIB_OK)
        status = read_packed(checkpoint, prefix, names->down, names->down_scale, names->down_bias, &down, err);
    if (status == NIB_OK)
        status = check_pair(&gate_up, &down, err);
    if (status == NIB_OK)
        status = row_order(checkpoint, names->layout, &interleaved, err);
    if (status != NIB_OK)
        return status;
    experts->layout = names->layout;
    experts->interleaved = interleaved;
    experts->weight = gate_up.weight;
    experts->scale = gate_up.scale;
    experts->bytes = packed_bytes(&gate_up) + packed_bytes(&down);
    return fill_experts(checkpoint, &gate_up, &down, experts, err);
}
