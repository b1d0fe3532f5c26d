// What a destination has to hold, tensor by tensor: names, types, shapes, and which bytes stand for which matrix.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "convert/verify.h"

enum { NAME_BYTES = 1500 };

// ---- Tensors of the destination ----

static bool has_shape(const struct nib_tensor *tensor, int rank, const int64_t *shape)
{
    bool same = tensor->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = tensor->shape[i] == shape[i];
    return same;
}

static void describe_shape(char *text, size_t capacity, enum nib_dtype dtype, int rank, const int64_t *shape)
{
    struct nib_tensor tensor = {.dtype = dtype, .rank = rank};
    memcpy(tensor.shape, shape, (size_t)rank * sizeof *shape);
    nib_tensor_describe(&tensor, text, capacity);
}

// The tensor, if it is as wanted; otherwise NULL and a problem. Counts as claimed, once.
static const struct nib_tensor *claim(struct nib_verifier *v, const char *name, enum nib_dtype dtype, int rank,
                                      const int64_t *shape)
{
    char wanted[200], got[200];
    const struct nib_tensor *tensor = nib_checkpoint_peek(v->destination, name);
    describe_shape(wanted, sizeof wanted, dtype, rank, shape);
    if (!tensor) {
        nib_verify_problem(v, "%s: is missing (%s)", name, wanted);
        return NULL;
    }
    bool *claimed = &v->claimed[tensor - nib_checkpoint_at(v->destination, 0)];
    if (*claimed)
        nib_verify_problem(v, "%s: stands for two tensors of the source", name);
    *claimed = true;
    if (tensor->dtype == dtype && has_shape(tensor, rank, shape))
        return tensor;
    nib_verify_problem(v, "%s: is %s, not %s", name, nib_tensor_describe(tensor, got, sizeof got), wanted);
    return NULL;
}

static nib_status add_check(struct nib_verifier *v, const struct nib_check *check, struct nib_error *err)
{
    if (v->n_checks == v->capacity) {
        size_t capacity = v->capacity ? 2 * v->capacity : 256;
        struct nib_check *grown = realloc(v->checks, capacity * sizeof *grown);
        if (!grown)
            return nib_fail_memory(err, capacity * sizeof *grown, "a list of tensors");
        v->checks = grown;
        v->capacity = capacity;
    }
    v->checks[v->n_checks++] = *check;
    return NIB_OK;
}

// The prefix of the destination's experts: OpenAI's original names get a folder of their own.
static void experts_folder(char *text /* [NAME_BYTES] */, const char *prefix)
{
    const char *dot = strrchr(prefix, '.'), *last = dot ? dot + 1 : prefix;
    bool has = strcmp(last, "experts") == 0;
    snprintf(text, NAME_BYTES, "%s%s", prefix, has ? "" : *prefix ? ".experts" : "experts");
}

// ---- Fused ----

// The three tensors of a projection of all experts.
struct fused {
    const struct nib_tensor *codes, *scales, *bias;
};

static struct fused claim_fused(struct nib_verifier *v, const struct nib_group *group, const char *projection,
                                int64_t rows, int64_t cols)
{
    char folder[NAME_BYTES], name[NAME_BYTES + 64];
    struct fused fused = {0};
    experts_folder(folder, group->prefix);
    snprintf(name, sizeof name, "%s.%s_blocks", folder, projection);
    fused.codes = claim(v, name, NIB_U8, 4, (int64_t[]){group->n_experts, rows, cols / 32, 16});
    snprintf(name, sizeof name, "%s.%s_scales", folder, projection);
    fused.scales = claim(v, name, NIB_U8, 3, (int64_t[]){group->n_experts, rows, cols / 32});
    snprintf(name, sizeof name, "%s.%s_bias", folder, projection);
    if (group->has_bias)
        fused.bias = claim(v, name, group->bias_dtype, 2, (int64_t[]){group->n_experts, rows});
    return fused;
}

// Rows first, first + step, … of the fused tensors against one matrix.
static nib_status check_fused(struct nib_verifier *v, const struct nib_group *group, const struct fused *fused,
                              int64_t expert, enum nib_part part, int64_t first, int64_t step,
                              struct nib_error *err)
{
    const struct nib_matrix *source = &group->experts[expert][part];
    if (!fused->codes || !fused->scales || (group->has_bias && !fused->bias))
        return NIB_OK; // a problem already
    int64_t code_bytes = source->cols / 2, blocks = source->cols / 32;
    struct nib_check check = {
        .kind = group->packed ? NIB_CHECK_CODES : NIB_CHECK_ENCODE,
        .source = *source,
        .weight = fused->codes,
        .scale = fused->scales,
        .bias = fused->bias,
        .weight_rows = (const uint8_t *)fused->codes->data + first * code_bytes,
        .scale_rows = (const uint8_t *)fused->scales->data + first * blocks,
        .weight_stride = step * code_bytes,
        .scale_stride = step * blocks,
        .expert = expert,
    };
    if (group->has_bias) {
        check.bias_bytes = (int64_t)nib_dtype_size(group->bias_dtype);
        check.bias_rows = (const uint8_t *)fused->bias->data + first * check.bias_bytes;
        check.bias_stride = step * check.bias_bytes;
    }
    return add_check(v, &check, err);
}

static nib_status claim_fused_group(struct nib_verifier *v, const struct nib_group *group, struct nib_error *err)
{
    int64_t hidden = group->hidden, width = group->intermediate;
    struct fused gate_up = claim_fused(v, group, "gate_up_proj", 2 * width, hidden);
    struct fused down = claim_fused(v, group, "down_proj", hidden, width);
    nib_status status = NIB_OK;
    for (int64_t e = 0; status == NIB_OK && e < group->n_experts; e++) {
        int64_t row = e * 2 * width, up = v->concatenated ? row + width : row + 1, step = v->concatenated ? 1 : 2;
        status = check_fused(v, group, &gate_up, e, NIB_PART_GATE, row, step, err);
        if (status == NIB_OK)
            status = check_fused(v, group, &gate_up, e, NIB_PART_UP, up, step, err);
        if (status == NIB_OK)
            status = check_fused(v, group, &down, e, NIB_PART_DOWN, e * hidden, 1, err);
    }
    return status;
}

// ---- Per expert ----

// How the tensors of an expert are called and typed.
struct dialect {
    const char *const *projections; /* [NIB_PART_COUNT] */
    const char *weight, *scale;
    enum nib_dtype weight_dtype, scale_dtype;
    int64_t weight_pack, scale_group; // elements in one element of the tensor; 0: one scale for the row
    enum nib_check_kind kind;         // tells the forms apart too
};

static const char *const proj_names[NIB_PART_COUNT] = {"gate_proj", "up_proj", "down_proj"};
static const char *const w_names[NIB_PART_COUNT] = {"w1", "w3", "w2"};

static const struct dialect dialects[] = {
    {proj_names, "weight", "weight_scale", NIB_U8, NIB_U8, 2, 32, NIB_CHECK_CODES},
    {w_names, "weight", "weight_scale", NIB_U8, NIB_U8, 2, 32, NIB_CHECK_CODES},
    {proj_names, "weight_packed", "weight_scale", NIB_U8, NIB_U8, 2, 32, NIB_CHECK_CODES},
    {w_names, "weight_packed", "weight_scale", NIB_U8, NIB_U8, 2, 32, NIB_CHECK_CODES},
    {w_names, "weight", "scale", NIB_I8, NIB_F8_E8M0, 2, 32, NIB_CHECK_CODES},
    {proj_names, "weight", "weight_scale", NIB_F8_E4M3, NIB_F32, 1, 0, NIB_CHECK_FP8},
    {w_names, "weight", "weight_scale", NIB_F8_E4M3, NIB_F32, 1, 0, NIB_CHECK_FP8},
    {proj_names, "weight_packed", "weight_scale", NIB_I32, NIB_BF16, 8, 32, NIB_CHECK_INT4},
    {w_names, "weight_packed", "weight_scale", NIB_I32, NIB_BF16, 8, 32, NIB_CHECK_INT4},
};

static bool has_gate(const struct nib_verifier *v, const struct nib_group *group, const struct dialect *dialect,
                     const char *ending)
{
    char folder[NAME_BYTES], name[NAME_BYTES + 64];
    experts_folder(folder, group->prefix);
    snprintf(name, sizeof name, "%s.0.%s.%s", folder, dialect->projections[0], ending);
    return nib_checkpoint_peek(v->destination, name) != NULL;
}

// Which names the destination uses: those of expert 0's gate, or of its scale where the weight is missing, or else the
// form's first.
static const struct dialect *find_dialect(const struct nib_verifier *v, const struct nib_group *group)
{
    const struct dialect *first = NULL, *scaled = NULL;
    enum nib_check_kind kind = v->form == NIB_FORM_FP8_CHANNEL ? NIB_CHECK_FP8
                               : v->form == NIB_FORM_INT4_G32  ? NIB_CHECK_INT4
                                                               : NIB_CHECK_CODES;
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        const struct dialect *dialect = &dialects[i];
        if (dialect->kind != kind)
            continue;
        first = first ? first : dialect;
        if (!has_gate(v, group, dialect, dialect->scale))
            continue;
        if (has_gate(v, group, dialect, dialect->weight))
            return dialect;
        scaled = scaled ? scaled : dialect;
    }
    return scaled ? scaled : first;
}

static void check_shape_tensor(struct nib_verifier *v, const char *name, const struct nib_matrix *source)
{
    char text[NAME_BYTES + 128];
    snprintf(text, sizeof text, "%s.weight_shape", name);
    const struct nib_tensor *shape = claim(v, text, NIB_I32, 1, (int64_t[]){2});
    int32_t stated[2];
    if (!shape)
        return;
    memcpy(stated, shape->data, sizeof stated);
    if (stated[0] != source->rows || stated[1] != source->cols)
        nib_verify_problem(v, "%s: says %d x %d, not %lld x %lld", text, stated[0], stated[1],
                           (long long)source->rows, (long long)source->cols);
}

static nib_status claim_part(struct nib_verifier *v, const struct nib_group *group, const struct dialect *dialect,
                             int64_t expert, enum nib_part part, struct nib_error *err)
{
    char folder[NAME_BYTES], name[NAME_BYTES + 64], text[NAME_BYTES + 128];
    const struct nib_matrix *source = &group->experts[expert][part];
    int64_t units = source->cols / dialect->weight_pack, rows = source->rows;
    int64_t scales = dialect->scale_group ? source->cols / dialect->scale_group : 1;
    struct nib_check check = {.kind = dialect->kind, .source = *source, .expert = -1};
    if (dialect->kind == NIB_CHECK_CODES && !group->packed)
        check.kind = NIB_CHECK_ENCODE;
    experts_folder(folder, group->prefix);
    snprintf(name, sizeof name, "%s.%lld.%s", folder, (long long)expert, dialect->projections[part]);
    snprintf(text, sizeof text, "%s.%s", name, dialect->weight);
    check.weight = claim(v, text, dialect->weight_dtype, 2, (int64_t[]){rows, units});
    snprintf(text, sizeof text, "%s.%s", name, dialect->scale);
    check.scale = claim(v, text, dialect->scale_dtype, 2, (int64_t[]){rows, scales});
    if (dialect->kind == NIB_CHECK_INT4)
        check_shape_tensor(v, name, source);
    snprintf(text, sizeof text, "%s.bias", name);
    if (group->has_bias)
        check.bias = claim(v, text, group->bias_dtype, 1, (int64_t[]){rows});
    if (!check.weight || !check.scale || (group->has_bias && !check.bias))
        return NIB_OK;
    check.weight_rows = check.weight->data;
    check.weight_stride = units * (int64_t)nib_dtype_size(dialect->weight_dtype);
    check.scale_rows = check.scale->data;
    check.scale_stride = scales * (int64_t)nib_dtype_size(dialect->scale_dtype);
    if (check.bias) {
        check.bias_rows = check.bias->data;
        check.bias_stride = check.bias_bytes = (int64_t)nib_dtype_size(group->bias_dtype);
    }
    return add_check(v, &check, err);
}

static nib_status claim_separate_group(struct nib_verifier *v, const struct nib_group *group,
                                       struct nib_error *err)
{
    const struct dialect *dialect = find_dialect(v, group);
    nib_status status = NIB_OK;
    for (int64_t e = 0; status == NIB_OK && e < group->n_experts; e++)
        for (int part = 0; status == NIB_OK && part < NIB_PART_COUNT; part++)
            status = claim_part(v, group, dialect, e, (enum nib_part)part, err);
    return status;
}

// ---- Everything else ----

static nib_status claim_same(struct nib_verifier *v, const struct nib_tensor *tensor, struct nib_error *err)
{
    struct nib_check check = {.kind = NIB_CHECK_BYTES, .expert = -1};
    check.weight = claim(v, tensor->name, tensor->dtype, tensor->rank, tensor->shape);
    if (!check.weight || tensor->bytes == 0)
        return NIB_OK;
    check.source = (struct nib_matrix){.data = tensor->data, .rows = (int64_t)tensor->bytes};
    check.weight_rows = check.weight->data;
    return add_check(v, &check, err);
}

// The matrix whose weight `tensor` is, with the name of the weight in the destination.
static bool read_matrix(struct nib_verifier *v, const struct nib_tensor *tensor, struct nib_linear_view *view,
                        char *name /* [NAME_BYTES] */)
{
    const char *dot = strrchr(tensor->name, '.');
    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".weight_packed") != 0))
        return false;
    snprintf(name, NAME_BYTES, "%.*s", (int)(dot - tensor->name), tensor->name);
    return nib_checkpoint_linear(v->source.checkpoint, name, view, NULL) == NIB_OK && view->weight == tensor;
}

// How an MXFP4 matrix outside the experts may be called and typed.
struct packed_names {
    const char *weight, *scale;
    enum nib_dtype weight_dtype, scale_dtype;
};

static const struct packed_names packed_names[] = {
    {"weight", "weight_scale", NIB_U8, NIB_U8},
    {"weight_packed", "weight_scale", NIB_U8, NIB_U8},
    {"weight", "scale", NIB_I8, NIB_F8_E8M0},
};

// The names under which the destination has the matrix in MXFP4; NULL when it has not.
static const struct packed_names *find_packed(const struct nib_verifier *v, const char *name)
{
    char text[NAME_BYTES + 64];
    for (size_t i = 0; i < sizeof packed_names / sizeof *packed_names; i++) {
        snprintf(text, sizeof text, "%s.%s", name, packed_names[i].weight);
        const struct nib_tensor *weight = nib_checkpoint_peek(v->destination, text);
        if (weight && weight->dtype == packed_names[i].weight_dtype)
            return &packed_names[i];
    }
    return NULL;
}

static nib_status claim_bf16(struct nib_verifier *v, const char *name, struct nib_check *check,
                             struct nib_error *err)
{
    char text[NAME_BYTES + 64];
    snprintf(text, sizeof text, "%s.weight", name);
    check->kind = NIB_CHECK_BF16;
    check->weight = claim(v, text, NIB_BF16, 2, (int64_t[]){check->source.rows, check->source.cols});
    if (!check->weight)
        return NIB_OK;
    check->weight_rows = check->weight->data;
    check->weight_stride = 2 * check->source.cols;
    return add_check(v, check, err);
}

static nib_status claim_packed(struct nib_verifier *v, const char *name, const struct packed_names *names,
                               struct nib_check *check, struct nib_error *err)
{
    char text[NAME_BYTES + 64];
    int64_t rows = check->source.rows, cols = check->source.cols;
    check->kind = NIB_CHECK_ENCODE;
    snprintf(text, sizeof text, "%s.%s", name, names->weight);
    check->weight = claim(v, text, names->weight_dtype, 2, (int64_t[]){rows, cols / 2});
    snprintf(text, sizeof text, "%s.%s", name, names->scale);
    check->scale = claim(v, text, names->scale_dtype, 2, (int64_t[]){rows, cols / 32});
    if (!check->weight || !check->scale)
        return NIB_OK;
    check->weight_rows = check->weight->data;
    check->weight_stride = cols / 2;
    check->scale_rows = check->scale->data;
    check->scale_stride = cols / 32;
    return add_check(v, check, err);
}

// A matrix whose form changed: what the destination holds under its name shows which way. False: it is as it was.
static nib_status claim_changed(struct nib_verifier *v, const struct nib_tensor *tensor, bool *changed,
                                const struct nib_tensor **scale, struct nib_error *err)
{
    char name[NAME_BYTES], text[NAME_BYTES + 64];
    struct nib_linear_view view;
    *changed = false;
    if (!read_matrix(v, tensor, &view, name))
        return NIB_OK;
    snprintf(text, sizeof text, "%s.weight", name);
    const struct nib_tensor *now = nib_checkpoint_peek(v->destination, text);
    bool to_bf16 = now && now->dtype == NIB_BF16 && view.kind != NIB_LINEAR_PLAIN;
    const struct packed_names *names =
        v->form == NIB_FORM_MXFP4 && view.kind != NIB_LINEAR_MXFP4 ? find_packed(v, name) : NULL;
    if (!to_bf16 && !names)
        return NIB_OK;
    *changed = true;
    *scale = view.scale;
    struct nib_check check = {.source = nib_source_linear(&view), .expert = -1};
    return to_bf16 ? claim_bf16(v, name, &check, err) : claim_packed(v, name, names, &check, err);
}

// `gone` marks the scales of matrices that changed. Two passes, since a scale may stand before its weight.
static nib_status claim_others(struct nib_verifier *v, bool *gone /* [tensors of the source] */,
                               struct nib_error *err)
{
    const struct nib_tensor *first = nib_checkpoint_at(v->source.checkpoint, 0);
    size_t count = nib_checkpoint_count(v->source.checkpoint);
    nib_status status = NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < count; i++) {
        const struct nib_tensor *scale = NULL;
        bool changed = false;
        if (gone[i])
            continue;
        status = claim_changed(v, first + i, &changed, &scale, err);
        gone[i] = changed;
        if (scale)
            gone[scale - first] = true;
    }
    for (size_t i = 0; status == NIB_OK && i < count; i++)
        if (!gone[i])
            status = claim_same(v, first + i, err);
    return status;
}

// Experts that a dtype map left as they were: the first tensor of the layer is there with its own name and type. Packed ones
// that are stored as the destination stores others are compared like these.
static bool is_kept(const struct nib_verifier *v, const struct nib_group *group)
{
    const struct nib_tensor *same = nib_checkpoint_peek(v->destination, group->first->name);
    bool alike = group->packed && group->fused == v->fused;
    return v->form == NIB_FORM_MXFP4 && !alike && same && same->dtype == group->first->dtype;
}

static bool belongs_to(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 && name[length] == '.';
}

nib_status nib_verify_claims(struct nib_verifier *v, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = v->source.checkpoint;
    bool *gone = calloc(checkpoint->count + 1, sizeof *gone);
    if (!gone)
        return nib_fail_memory(err, checkpoint->count, "a list of tensors");
    memcpy(gone, checkpoint->used, checkpoint->count * sizeof *gone);
    nib_status status = NIB_OK;
    for (size_t g = 0; status == NIB_OK && g < v->source.n_groups; g++) {
        const struct nib_group *group = &v->source.groups[g];
        if (is_kept(v, group))
            for (size_t i = 0; i < checkpoint->count; i++)
                gone[i] &= !belongs_to(checkpoint->tensors[i].name, group->prefix);
        else
            status = v->fused ? claim_fused_group(v, group, err) : claim_separate_group(v, group, err);
    }
    if (status == NIB_OK)
        status = claim_others(v, gone, err);
    free(gone);
    for (size_t i = 0; status == NIB_OK && i < nib_checkpoint_count(v->destination); i++)
        if (!v->claimed[i])
            nib_verify_problem(v, "%s: stands for nothing in the source",
                               nib_checkpoint_at(v->destination, i)->name);
    return status;
}
