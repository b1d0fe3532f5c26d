// Experts in bf16, fp16, fp32 or FP8: per expert and projection, or stacked as fine-tunes of gpt-oss have them.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/experts.h"
#include "convert/source.h"

// ---- Stacked: gate_up_proj and down_proj of three dimensions ----

static const struct nib_tensor *find(struct nib_checkpoint *checkpoint, const char *prefix, const char *name)
{
    char text[NIB_NAME_CAPACITY];
    return nib_name_join(text, prefix, name) ? nib_checkpoint_find(checkpoint, text) : NULL;
}

// [E, K, 2I] with [E, I, K] is multiplied from the left, as gpt-oss is trained; [E, 2I, K] with [E, K, I] as linear
// layers are. No pair of shapes fits both.
static bool stacked_shapes(const struct nib_tensor *gate_up, const struct nib_tensor *down, bool *transposed)
{
    if (gate_up->rank != 3 || down->rank != 3 || gate_up->shape[0] != down->shape[0])
        return false;
    int64_t a = gate_up->shape[1], b = gate_up->shape[2];
    *transposed = b % 2 == 0 && down->shape[1] == b / 2 && down->shape[2] == a;
    return *transposed || (a % 2 == 0 && down->shape[1] == b && down->shape[2] == a / 2);
}

static nib_status check_stacked(const struct nib_tensor *gate_up, const struct nib_tensor *down,
                                const struct nib_tensor *gate_up_bias, const struct nib_tensor *down_bias,
                                bool *transposed, struct nib_error *err)
{
    char one[200], other[200];
    nib_tensor_describe(gate_up, one, sizeof one);
    nib_tensor_describe(down, other, sizeof other);
    if (!nib_dtype_is_plain(gate_up->dtype) || down->dtype != gate_up->dtype)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: %s: %s and %s: %s: not experts of BF16, F16 or F32",
                        gate_up->file, gate_up->name, one, down->name, other);
    if (gate_up->bytes == 0 || !stacked_shapes(gate_up, down, transposed))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s does not fit %s: %s", down->file, down->name, other,
                        gate_up->name, one);
    int64_t experts = gate_up->shape[0], rows = gate_up->shape[*transposed ? 2 : 1],
            hidden = gate_up->shape[*transposed ? 1 : 2];
    if (!gate_up_bias && !down_bias)
        return NIB_OK;
    if (!gate_up_bias || !down_bias || gate_up_bias->dtype != down_bias->dtype ||
        !nib_dtype_is_plain(gate_up_bias->dtype) || gate_up_bias->rank != 2 || gate_up_bias->shape[0] != experts ||
        gate_up_bias->shape[1] != rows || down_bias->rank != 2 || down_bias->shape[0] != experts ||
        down_bias->shape[1] != hidden)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: its biases do not fit", gate_up->file, gate_up->name);
    return NIB_OK;
}

static const uint8_t *offset_of(const struct nib_tensor *tensor, int64_t element)
{
    return tensor ? (const uint8_t *)tensor->data + element * (int64_t)nib_dtype_size(tensor->dtype) : NULL;
}

// Rows first, first + step, … of expert e's matrix.
static struct nib_matrix stacked_matrix(const struct nib_tensor *weight, const struct nib_tensor *bias,
                                        bool transposed, int64_t e, int64_t first, int64_t step, int64_t rows)
{
    int64_t size = (int64_t)nib_dtype_size(weight->dtype), width = weight->shape[2];
    int64_t all = weight->shape[1] * width, total_rows = transposed ? width : weight->shape[1];
    return (struct nib_matrix){
        .rows = rows,
        .cols = transposed ? weight->shape[1] : width,
        .dtype = weight->dtype,
        .data = offset_of(weight, e * all + first * (transposed ? 1 : width)),
        .row_stride = step * (transposed ? 1 : width) * size,
        .col_stride = (transposed ? width : 1) * size,
        .bias = offset_of(bias, e * total_rows + first),
        .bias_stride = bias ? step * (int64_t)nib_dtype_size(bias->dtype) : 0,
    };
}

static nib_status read_stacked(struct nib_checkpoint *checkpoint, const struct nib_tensor *gate_up,
                               const char *prefix, struct nib_group *group, struct nib_error *err)
{
    const struct nib_tensor *down = find(checkpoint, prefix, "down_proj");
    const struct nib_tensor *gate_up_bias = find(checkpoint, prefix, "gate_up_proj_bias");
    const struct nib_tensor *down_bias = find(checkpoint, prefix, "down_proj_bias");
    const char *stated = nib_checkpoint_metadata(checkpoint, "gate_up_layout");
    bool transposed = false;
    if (!down)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: %s has no down_proj beside it", gate_up->file, gate_up->name);
    nib_status status = check_stacked(gate_up, down, gate_up_bias, down_bias, &transposed, err);
    if (status != NIB_OK)
        return status;
    bool interleaved = stated ? strcmp(stated, "interleaved") == 0 : transposed;
    *group = (struct nib_group){
        .hidden = gate_up->shape[transposed ? 1 : 2],
        .intermediate = gate_up->shape[transposed ? 2 : 1] / 2,
        .n_experts = gate_up->shape[0],
        .fused = true,
        .interleaved = interleaved,
        .has_bias = gate_up_bias != NULL,
        .bias_dtype = gate_up_bias ? gate_up_bias->dtype : NIB_F32,
        .first = gate_up,
        .bytes = gate_up->bytes + down->bytes + (gate_up_bias ? gate_up_bias->bytes + down_bias->bytes : 0),
    };
    size_t bytes = (size_t)group->n_experts * sizeof *group->experts;
    group->experts = nib_checkpoint_allocate(checkpoint, bytes);
    if (!group->experts)
        return nib_fail_memory(err, bytes, "a layer's experts");
    int64_t step = interleaved ? 2 : 1, up = interleaved ? 1 : group->intermediate;
    for (int64_t e = 0; e < group->n_experts; e++) {
        struct nib_matrix *parts = group->experts[e];
        parts[NIB_PART_GATE] = stacked_matrix(gate_up, gate_up_bias, transposed, e, 0, step, group->intermediate);
        parts[NIB_PART_UP] = stacked_matrix(gate_up, gate_up_bias, transposed, e, up, step, group->intermediate);
        parts[NIB_PART_DOWN] = stacked_matrix(down, down_bias, transposed, e, 0, 1, group->hidden);
    }
    return NIB_OK;
}

// ---- Per expert ----

static const char *const spellings[][NIB_PART_COUNT] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};

static bool expert_name(char *text /* [NIB_NAME_CAPACITY] */, const char *prefix, int64_t expert,
                        const char *projection)
{
    char name[64];
    snprintf(name, sizeof name, "%lld.%s", (long long)expert, projection);
    return nib_name_join(text, prefix, name);
}

static nib_status read_part(struct nib_checkpoint *checkpoint, const char *prefix, int64_t e,
                            const char *projection, struct nib_group *group, enum nib_part part,
                            struct nib_error *err)
{
    char name[NIB_NAME_CAPACITY], text[200];
    struct nib_linear_view view;
    if (!expert_name(name, prefix, e, projection))
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: too long for a tensor's name", prefix);
    nib_status status = nib_checkpoint_linear(checkpoint, name, &view, err);
    if (status != NIB_OK)
        return status;
    if (e == 0 && part == NIB_PART_GATE) {
        group->hidden = view.cols;
        group->intermediate = view.rows;
        group->first = view.weight;
        group->has_bias = view.bias != NULL;
        group->bias_dtype = view.bias ? view.bias->dtype : NIB_F32;
    }
    bool down = part == NIB_PART_DOWN;
    if (view.rows != (down ? group->hidden : group->intermediate) ||
        view.cols != (down ? group->intermediate : group->hidden) || !view.bias != !group->has_bias ||
        (view.bias && view.bias->dtype != group->bias_dtype))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s does not fit the layer's other experts",
                        view.weight->file, view.weight->name, nib_tensor_describe(view.weight, text, sizeof text));
    struct nib_matrix *matrix = &group->experts[e][part];
    *matrix = nib_source_linear(&view);
    if (view.bias) {
        matrix->bias = view.bias->data;
        matrix->bias_stride = (int64_t)nib_dtype_size(view.bias->dtype);
    }
    group->bytes += view.weight->bytes + (view.scale ? view.scale->bytes : 0) + (view.bias ? view.bias->bytes : 0);
    return NIB_OK;
}

static int64_t count_experts(const struct nib_checkpoint *checkpoint, const char *prefix, const char *projection)
{
    char name[NIB_NAME_CAPACITY], weight[32];
    int64_t count = 0;
    snprintf(weight, sizeof weight, "%s.weight", projection);
    for (;; count++) {
        if (!expert_name(name, prefix, count, weight) || !nib_checkpoint_peek(checkpoint, name))
            return count;
    }
}

static nib_status read_separate(struct nib_checkpoint *checkpoint, const char *prefix, struct nib_group *group,
                                struct nib_error *err)
{
    const char *const *projections = spellings[0];
    int64_t count = count_experts(checkpoint, prefix, projections[0]);
    if (count == 0) {
        projections = spellings[1];
        count = count_experts(checkpoint, prefix, projections[0]);
    }
    if (count == 0)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: %s: no experts in a layout that is known here",
                        nib_checkpoint_path(checkpoint), prefix);
    size_t bytes = (size_t)count * sizeof *group->experts;
    *group = (struct nib_group){.n_experts = count, .experts = nib_checkpoint_allocate(checkpoint, bytes)};
    if (!group->experts)
        return nib_fail_memory(err, bytes, "a layer's experts");
    nib_status status = NIB_OK;
    for (int64_t e = 0; status == NIB_OK && e < count; e++)
        for (int part = 0; status == NIB_OK && part < NIB_PART_COUNT; part++)
            status = read_part(checkpoint, prefix, e, projections[part], group, (enum nib_part)part, err);
    return status;
}

nib_status nib_source_float_group(struct nib_checkpoint *checkpoint, const char *prefix, struct nib_group *group,
                                  struct nib_error *err)
{
    const struct nib_tensor *gate_up = find(checkpoint, prefix, "gate_up_proj");
    nib_status status = gate_up ? read_stacked(checkpoint, gate_up, prefix, group, err)
                                : read_separate(checkpoint, prefix, group, err);
    if (status != NIB_OK)
        return status;
    if (group->hidden % NIB_MX_BLOCK || group->intermediate % NIB_MX_BLOCK)
        return nib_fail(
            err, NIB_ERR_FORMAT, "%s: %s: hidden size %lld and intermediate size %lld are not multiples of 32",
            group->first->file, group->first->name, (long long)group->hidden, (long long)group->intermediate);
    group->prefix = prefix;
    return NIB_OK;
}
