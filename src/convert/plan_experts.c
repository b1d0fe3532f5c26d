// The tensors that one layer's experts become, in each form.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "convert/plan.h"

// Fused tensors and numbered ones stand below "…experts"; OpenAI's original names have no such folder.
static const char *folder_of(const char *prefix)
{
    size_t length = strlen(prefix), tail = strlen("experts");
    bool has = length >= tail && strcmp(prefix + length - tail, "experts") == 0;
    return has ? "" : length ? ".experts" : "experts";
}

static nib_status no_memory(struct nib_error *err)
{
    return nib_fail_memory(err, sizeof(struct nib_unit), "a plan");
}

// ---- Fused ----

static nib_status add_stack(struct nib_plan *plan, const struct nib_group *group, enum nib_stack stack,
                            int64_t error_entry, struct nib_error *err)
{
    struct nib_unit *unit = nib_plan_add(plan);
    if (!unit)
        return no_memory(err);
    bool down = stack == NIB_STACK_DOWN;
    int64_t experts = group->n_experts, rows = down ? group->hidden : 2 * group->intermediate,
            cols = down ? group->intermediate : group->hidden;
    const char *name = down ? "down_proj" : "gate_up_proj", *folder = folder_of(group->prefix);
    unit->recipe = group->packed ? NIB_RECIPE_MXFP4 : NIB_RECIPE_ENCODE;
    unit->stack = stack;
    unit->matrix = &group->experts[0][down ? NIB_PART_DOWN : NIB_PART_GATE];
    unit->rows = experts * rows;
    unit->part_rows = rows;
    unit->cols = cols;
    unit->part = down ? NIB_PART_DOWN : NIB_PART_GATE;
    unit->error_entry = error_entry;
    int64_t blocks = cols / NIB_MX_BLOCK, bias_bytes = (int64_t)nib_dtype_size(group->bias_dtype);
    nib_status status =
        nib_unit_add(unit, NIB_U8, (uint64_t)cols / 2, 4, (int64_t[]){experts, rows, blocks, NIB_MX_BLOCK / 2},
                     err, "%s%s.%s_blocks", group->prefix, folder, name);
    if (status == NIB_OK)
        status = nib_unit_add(unit, NIB_U8, (uint64_t)blocks, 3, (int64_t[]){experts, rows, blocks}, err,
                              "%s%s.%s_scales", group->prefix, folder, name);
    if (status == NIB_OK && group->has_bias)
        status = nib_unit_add(unit, group->bias_dtype, (uint64_t)bias_bytes, 2, (int64_t[]){experts, rows}, err,
                              "%s%s.%s_bias", group->prefix, folder, name);
    return status;
}

// ---- Per expert ----

struct spelling {
    const char *weight, *scale;
    enum nib_dtype weight_dtype, scale_dtype;
};

static const struct spelling spellings[NIB_NAMES_COUNT] = {
    [NIB_NAMES_QUARK] = {"weight", "weight_scale", NIB_U8, NIB_U8},
    [NIB_NAMES_COMPRESSED_TENSORS] = {"weight_packed", "weight_scale", NIB_U8, NIB_U8},
    [NIB_NAMES_DEEPSEEK] = {"weight", "scale", NIB_I8, NIB_F8_E8M0},
};

// What a model calls an expert's matrices goes with what it calls the layer around them, whoever wrote the checkpoint;
// DeepSeek's form is that of one model.
static const char *projection_name(const struct nib_group *group, enum nib_expert_names dialect,
                                   enum nib_part part)
{
    static const char *const spelt[NIB_PART_COUNT] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const numbered[NIB_PART_COUNT] = {"w1", "w3", "w2"};
    bool deepseek = dialect == NIB_NAMES_DEEPSEEK || strstr(group->prefix, ".ffn.");
    return (deepseek || strstr(group->prefix, ".block_sparse_moe.") ? numbered : spelt)[part];
}

enum nib_expert_names nib_plan_dialect(const struct nib_convert_options *options)
{
    bool per_expert = options->form == NIB_FORM_PER_EXPERT || (options->form == NIB_FORM_MXFP4 && !options->fused);
    return per_expert ? options->names : NIB_NAMES_QUARK;
}

nib_status nib_unit_add_packed(struct nib_unit *unit, const char *name, enum nib_expert_names dialect,
                               struct nib_error *err)
{
    const struct spelling *names = &spellings[dialect];
    int64_t rows = unit->rows, bytes = unit->cols / 2, blocks = unit->cols / NIB_MX_BLOCK;
    nib_status status = nib_unit_add(unit, names->weight_dtype, (uint64_t)bytes, 2, (int64_t[]){rows, bytes}, err,
                                     "%s.%s", name, names->weight);
    if (status == NIB_OK)
        status = nib_unit_add(unit, names->scale_dtype, (uint64_t)blocks, 2, (int64_t[]){rows, blocks}, err,
                              "%s.%s", name, names->scale);
    return status;
}

static nib_status add_fp8(struct nib_unit *unit, const char *name, struct nib_error *err)
{
    nib_status status = nib_unit_add(unit, NIB_F8_E4M3, (uint64_t)unit->cols, 2,
                                     (int64_t[]){unit->rows, unit->cols}, err, "%s.weight", name);
    if (status == NIB_OK)
        status = nib_unit_add(unit, NIB_F32, 4, 2, (int64_t[]){unit->rows, 1}, err, "%s.weight_scale", name);
    return status;
}

static nib_status add_int4(struct nib_unit *unit, const char *name, struct nib_error *err)
{
    int64_t rows = unit->rows, words = unit->cols / 8, blocks = unit->cols / NIB_MX_BLOCK;
    nib_status status = nib_unit_add(unit, NIB_I32, 4 * (uint64_t)words, 2, (int64_t[]){rows, words}, err,
                                     "%s.weight_packed", name);
    if (status == NIB_OK)
        status = nib_unit_add(unit, NIB_BF16, 2 * (uint64_t)blocks, 2, (int64_t[]){rows, blocks}, err,
                              "%s.weight_scale", name);
    if (status == NIB_OK)
        status = nib_unit_add(unit, NIB_I32, 0, 1, (int64_t[]){2}, err, "%s.weight_shape", name);
    return status;
}

static nib_status add_single(struct nib_plan *plan, const struct nib_group *group, int64_t expert,
                             enum nib_part part, int64_t error_entry, struct nib_error *err)
{
    struct nib_unit *unit = nib_plan_add(plan);
    if (!unit)
        return no_memory(err);
    enum nib_form form = plan->options.form;
    bool packed = form == NIB_FORM_PER_EXPERT || form == NIB_FORM_MXFP4;
    enum nib_expert_names dialect = nib_plan_dialect(&plan->options);
    char name[1400];
    snprintf(name, sizeof name, "%s%s.%lld.%s", group->prefix, folder_of(group->prefix), (long long)expert,
             projection_name(group, dialect, part));
    unit->matrix = &group->experts[expert][part];
    unit->rows = unit->matrix->rows;
    unit->cols = unit->matrix->cols;
    unit->expert = expert;
    unit->part = part;
    unit->error_entry = error_entry;
    nib_status status;
    if (packed) {
        unit->recipe = group->packed ? NIB_RECIPE_MXFP4 : NIB_RECIPE_ENCODE;
        status = nib_unit_add_packed(unit, name, dialect, err);
    } else if (form == NIB_FORM_FP8_CHANNEL) {
        unit->recipe = NIB_RECIPE_FP8;
        status = add_fp8(unit, name, err);
    } else {
        unit->recipe = NIB_RECIPE_INT4;
        status = add_int4(unit, name, err);
    }
    if (status == NIB_OK && group->has_bias)
        status = nib_unit_add(unit, group->bias_dtype, nib_dtype_size(group->bias_dtype), 1,
                              (int64_t[]){unit->rows}, err, "%s.bias", name);
    return status;
}

// ---- One layer ----

// Three entries of the report, for gate, up and down; `*first` is -1 for what costs no precision.
static nib_status add_errors(struct nib_plan *plan, const struct nib_group *group, int64_t *first,
                             struct nib_error *err)
{
    enum nib_form form = plan->options.form;
    *first = -1;
    if (form != NIB_FORM_INT4_G32 && (form != NIB_FORM_MXFP4 || group->packed))
        return NIB_OK;
    for (int part = 0; part < NIB_PART_COUNT; part++) {
        int64_t entry = nib_plan_add_error(plan, group->prefix, nib_part_names[part]);
        if (entry < 0)
            return nib_fail_memory(err, sizeof(struct nib_convert_error), "a report");
        if (part == 0)
            *first = entry;
    }
    return NIB_OK;
}

nib_status nib_plan_group(struct nib_plan *plan, const struct nib_group *group, struct nib_error *err)
{
    const struct nib_convert_options *options = &plan->options;
    size_t before = plan->n_units;
    int64_t errors;
    nib_status status = add_errors(plan, group, &errors, err);
    if (status != NIB_OK)
        return status;
    if (options->form == NIB_FORM_FUSED || (options->form == NIB_FORM_MXFP4 && options->fused)) {
        status =
            add_stack(plan, group, options->gate_up_concatenated ? NIB_STACK_CONCATENATED : NIB_STACK_INTERLEAVED,
                      errors, err);
        if (status == NIB_OK)
            status = add_stack(plan, group, NIB_STACK_DOWN, errors, err);
    } else {
        for (int64_t e = 0; status == NIB_OK && e < group->n_experts; e++)
            for (int part = 0; status == NIB_OK && part < NIB_PART_COUNT; part++)
                status = add_single(plan, group, e, (enum nib_part)part, errors, err);
    }
    // The layer's bytes are shared out by rows times columns, which all its units have in the same proportion.
    uint64_t elements = 0;
    for (size_t u = before; u < plan->n_units; u++)
        elements += (uint64_t)(plan->units[u].rows * plan->units[u].cols);
    uint64_t left = group->bytes;
    for (size_t u = before; status == NIB_OK && u < plan->n_units; u++) {
        struct nib_unit *unit = &plan->units[u];
        double share = (double)(unit->rows * unit->cols) / (double)elements;
        unit->source_bytes = u + 1 == plan->n_units ? left : (uint64_t)((double)group->bytes * share);
        left -= unit->source_bytes;
    }
    return status;
}
