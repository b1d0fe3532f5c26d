// One tensor per expert and projection: Quark, compressed-tensors, DeepSeek.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/experts.h"

enum { GATE, UP, DOWN, PROJECTIONS };

static const char *const projection_names[][PROJECTIONS] = {
    {"gate_proj", "up_proj", "down_proj"},
    {"w1", "w3", "w2"},
};

static const char *const weight_endings[] = {".weight", ".weight_packed"};

const char *const nib_scale_endings[] = {".weight_scale", ".scale", ".weight_quantizer.scale", ".weight_scale_inv",
                                         NULL};

// How the tensors of this layer are called: those of expert 0 decide.
struct spelling {
    const char *const *projections;
    const char *weight, *scale;
};

static bool expert_name(char *text /* [NIB_NAME_CAPACITY] */, const char *prefix, int64_t expert,
                        const char *projection, const char *ending)
{
    char name[128];
    snprintf(name, sizeof name, "%lld.%s%s", (long long)expert, projection, ending);
    return nib_name_join(text, prefix, name);
}

static const struct nib_tensor *peek(const struct nib_checkpoint *checkpoint, const char *prefix, int64_t expert,
                                     const char *projection, const char *ending)
{
    char text[NIB_NAME_CAPACITY];
    return expert_name(text, prefix, expert, projection, ending) ? nib_checkpoint_peek(checkpoint, text) : NULL;
}

static nib_status require(struct nib_checkpoint *checkpoint, const char *prefix, int64_t expert,
                          const char *projection, const char *ending, const struct nib_tensor **tensor,
                          struct nib_error *err)
{
    char text[NIB_NAME_CAPACITY];
    if (!expert_name(text, prefix, expert, projection, ending))
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: too long for a tensor's name", prefix);
    *tensor = nib_checkpoint_find(checkpoint, text);
    if (!*tensor)
        return nib_fail(err, NIB_ERR_NOT_FOUND,
                        "%s: no tensor %s (all experts of a layer are stored the way expert 0 is)",
                        checkpoint->path, text);
    return NIB_OK;
}

// The number of experts that the names below the prefix speak of: the highest number plus one.
static nib_status count_experts(const struct nib_checkpoint *checkpoint, const char *prefix, int64_t *count,
                                struct nib_error *err)
{
    char text[NIB_NAME_CAPACITY];
    *count = 0;
    if (!nib_name_join(text, prefix, ""))
        return NIB_OK;
    size_t length = strlen(text);
    int64_t tensors = 0;
    for (size_t i = nib_checkpoint_lower_bound(checkpoint, text); i < checkpoint->count; i++) {
        const char *name = checkpoint->tensors[i].name;
        if (strncmp(name, text, length) != 0)
            break;
        const char *digits = name + length;
        size_t digit_count = strspn(digits, "0123456789");
        if (digit_count == 0 || digits[digit_count] != '.')
            continue;
        if (digit_count > 9 || (digits[0] == '0' && digit_count > 1))
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: not an expert's number", checkpoint->path, name);
        int64_t expert = 0;
        for (size_t d = 0; d < digit_count; d++)
            expert = expert * 10 + (digits[d] - '0');
        if (expert + 1 > *count)
            *count = expert + 1;
        tensors++;
    }
    if (*count > tensors)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: %s: an expert %lld is named, but there are only %lld tensors",
                        checkpoint->path, prefix, (long long)(*count - 1), (long long)tensors);
    return NIB_OK;
}

static nib_status find_scale_ending(const struct nib_checkpoint *checkpoint, const char *prefix,
                                    const struct nib_tensor *weight, struct spelling *names, struct nib_error *err)
{
    for (const char *const *ending = nib_scale_endings; *ending; ending++) {
        if (peek(checkpoint, prefix, 0, names->projections[GATE], *ending)) {
            names->scale = *ending;
            return NIB_OK;
        }
    }
    char text[200];
    nib_tensor_describe(weight, text, sizeof text);
    if (weight->dtype == NIB_U8 || weight->dtype == NIB_I8)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: %s: %s has no scale beside it", weight->file, weight->name,
                        text);
    return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: %s: %s: not MXFP4, which is U8 or I8 with a scale",
                    weight->file, weight->name, text);
}

static nib_status find_spelling(const struct nib_checkpoint *checkpoint, const char *prefix,
                                struct spelling *names, struct nib_error *err)
{
    for (size_t p = 0; p < sizeof projection_names / sizeof *projection_names; p++) {
        for (size_t w = 0; w < sizeof weight_endings / sizeof *weight_endings; w++) {
            const char *const *projections = projection_names[p];
            const struct nib_tensor *weight = peek(checkpoint, prefix, 0, projections[GATE], weight_endings[w]);
            if (!weight)
                continue;
            *names = (struct spelling){.projections = projections, .weight = weight_endings[w]};
            return find_scale_ending(checkpoint, prefix, weight, names, err);
        }
    }
    return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: %s.0: no gate_proj or w1 with a .weight or .weight_packed",
                    checkpoint->path, prefix);
}

static enum nib_expert_layout layout_of(const struct spelling *names)
{
    if (strcmp(names->weight, ".weight_packed") == 0)
        return NIB_EXPERTS_COMPRESSED_TENSORS;
    return strcmp(names->scale, ".scale") == 0 ? NIB_EXPERTS_DEEPSEEK : NIB_EXPERTS_QUARK;
}

static nib_status read_expert(struct nib_checkpoint *checkpoint, const char *prefix, int64_t expert,
                              const struct spelling *names, struct nib_packed *packed /* [PROJECTIONS] */,
                              struct nib_error *err)
{
    for (int p = 0; p < PROJECTIONS; p++) {
        const char *projection = names->projections[p];
        packed[p] = (struct nib_packed){0};
        nib_status status = require(checkpoint, prefix, expert, projection, names->weight, &packed[p].weight, err);
        if (status == NIB_OK)
            status = require(checkpoint, prefix, expert, projection, names->scale, &packed[p].scale, err);
        if (status != NIB_OK)
            return status;
        packed[p].bias = peek(checkpoint, prefix, expert, projection, ".bias");
        nib_checkpoint_mark(checkpoint, packed[p].bias);
        status = nib_packed_check(&packed[p], false, err);
        if (status != NIB_OK)
            return status;
    }
    return NIB_OK;
}

static nib_status check_matrix(const struct nib_packed *packed, int64_t rows, int64_t cols,
                               const struct nib_packed *like, struct nib_error *err)
{
    const struct nib_tensor *weight = packed->weight;
    char text[200];
    if (packed->rows != rows || packed->cols != cols)
        return nib_fail(err, NIB_ERR_FORMAT,
                        "%s: %s: %lld x %lld elements, the layer's other experts want %lld x %lld", weight->file,
                        weight->name, (long long)packed->rows, (long long)packed->cols, (long long)rows,
                        (long long)cols);
    if (weight->dtype != like->weight->dtype || packed->scale->dtype != like->scale->dtype)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s with scales of %s, unlike %s", weight->file, weight->name,
                        nib_tensor_describe(weight, text, sizeof text), nib_dtype_name(packed->scale->dtype),
                        like->weight->name);
    if (!packed->bias != !like->bias || (packed->bias && packed->bias->dtype != like->bias->dtype))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: all experts have biases of one type, or none has any",
                        weight->file, weight->name);
    return NIB_OK;
}

static nib_status check_expert(const struct nib_packed *packed /* [PROJECTIONS] */, const struct nib_packed *first,
                               struct nib_error *err)
{
    int64_t hidden = first->cols, intermediate = first->rows;
    nib_status status = check_matrix(&packed[GATE], intermediate, hidden, first, err);
    if (status == NIB_OK)
        status = check_matrix(&packed[UP], intermediate, hidden, first, err);
    if (status == NIB_OK)
        status = check_matrix(&packed[DOWN], hidden, intermediate, first, err);
    return status;
}

static struct nib_expert make_expert(const struct nib_packed *packed /* [PROJECTIONS] */)
{
    return (struct nib_expert){
        .gate = packed[GATE].codes,
        .up = packed[UP].codes,
        .gate_scales = packed[GATE].scales,
        .up_scales = packed[UP].scales,
        .down = packed[DOWN].codes,
        .down_scales = packed[DOWN].scales,
        .gate_bias = packed[GATE].bias ? packed[GATE].bias->data : NULL,
        .up_bias = packed[UP].bias ? packed[UP].bias->data : NULL,
        .down_bias = packed[DOWN].bias ? packed[DOWN].bias->data : NULL,
    };
}

static nib_status read_experts(struct nib_checkpoint *checkpoint, const char *prefix, const struct spelling *names,
                               int64_t count, struct nib_experts *experts, struct nib_error *err)
{
    struct nib_expert *list = nib_checkpoint_allocate(checkpoint, (size_t)count * sizeof *list);
    if (!list)
        return nib_fail_memory(err, (size_t)count * sizeof *list, "a layer's experts");
    struct nib_packed first = {0};
    for (int64_t e = 0; e < count; e++) {
        struct nib_packed packed[PROJECTIONS];
        nib_status status = read_expert(checkpoint, prefix, e, names, packed, err);
        if (e == 0)
            first = packed[GATE];
        if (status == NIB_OK)
            status = check_expert(packed, &first, err);
        if (status != NIB_OK)
            return status;
        list[e] = make_expert(packed);
        for (int p = 0; p < PROJECTIONS; p++)
            experts->bytes +=
                packed[p].weight->bytes + packed[p].scale->bytes + (packed[p].bias ? packed[p].bias->bytes : 0);
    }
    experts->weight = first.weight;
    experts->scale = first.scale;
    experts->weights = (struct nib_moe_weights){
        .hidden = first.cols,
        .intermediate = first.rows,
        .n_experts = count,
        .gate_up_row_stride = 1,
        .bias_dtype = first.bias ? first.bias->dtype : NIB_F32,
        .experts = list,
    };
    return NIB_OK;
}

nib_status nib_experts_separate(struct nib_checkpoint *checkpoint, const char *prefix, struct nib_experts *experts,
                                bool *found, struct nib_error *err)
{
    int64_t count;
    nib_status status = count_experts(checkpoint, prefix, &count, err);
    *found = count > 0;
    if (status != NIB_OK || !*found)
        return status;
    struct spelling names;
    status = find_spelling(checkpoint, prefix, &names, err);
    if (status == NIB_OK)
        status = read_experts(checkpoint, prefix, &names, count, experts, err);
    if (status != NIB_OK)
        return status;
    experts->layout = layout_of(&names);
    return NIB_OK;
}
