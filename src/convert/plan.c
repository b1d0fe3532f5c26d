#include "convert/plan.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/experts.h"

#define DEFAULT_FILE_BYTES 5000000000u

// ---- Forms by name ----

static const char *const form_names[NIB_FORM_COUNT] = {"fused", "per-expert", "fp8-channel", "int4-g32", "mxfp4"};

const char *nib_form_name(enum nib_form form)
{
    return (unsigned)form < NIB_FORM_COUNT ? form_names[form] : "unknown";
}

bool nib_form_find(const char *name, enum nib_form *form)
{
    for (int f = 0; f < NIB_FORM_COUNT; f++)
        if (strcmp(name, form_names[f]) == 0) {
            *form = (enum nib_form)f;
            return true;
        }
    return false;
}

// ---- Building ----

struct nib_unit *nib_plan_add(struct nib_plan *plan)
{
    if (plan->n_units == plan->capacity) {
        size_t capacity = plan->capacity ? 2 * plan->capacity : 256;
        struct nib_unit *grown = realloc(plan->units, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        plan->units = grown;
        plan->capacity = capacity;
    }
    struct nib_unit *unit = &plan->units[plan->n_units++];
    *unit = (struct nib_unit){.error_entry = -1};
    return unit;
}

nib_status nib_unit_add(struct nib_unit *unit, enum nib_dtype dtype, uint64_t row_bytes, int rank,
                        const int64_t *shape /* [rank] */, struct nib_error *err, const char *format, ...)
{
    char name[NIB_NAME_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (length < 0 || length > 1024)
        return nib_fail(err, NIB_ERR_LIMIT, "%.60s…: too long for a tensor's name", name);
    struct nib_output *output = &unit->outputs[unit->n_outputs];
    *output = (struct nib_output){.name = strdup(name), .dtype = dtype, .rank = rank, .row_bytes = row_bytes};
    if (!output->name)
        return nib_fail_memory(err, (unsigned long long)length, "a name");
    unit->n_outputs++;
    output->bytes = nib_dtype_size(dtype);
    for (int i = 0; i < rank; i++) {
        output->shape[i] = shape[i];
        output->bytes *= (uint64_t)shape[i];
    }
    return NIB_OK;
}

int64_t nib_plan_add_error(struct nib_plan *plan, const char *prefix, const char *projection)
{
    struct nib_convert_report *report = &plan->report;
    struct nib_convert_error *grown = realloc(report->errors, (report->n_errors + 1) * sizeof *grown);
    char *copy = strdup(prefix);
    if (grown)
        report->errors = grown;
    if (!grown || !copy) {
        free(copy);
        return -1;
    }
    grown[report->n_errors] = (struct nib_convert_error){.prefix = copy, .projection = projection};
    return (int64_t)report->n_errors++;
}

// ---- What becomes of each tensor ----

enum fate { FATE_COPY, FATE_GONE, FATE_BF16, FATE_MXFP4 };

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

bool nib_plan_wants_mxfp4(const struct nib_convert_options *options, const char *name, bool otherwise)
{
    for (size_t i = 0; i < options->n_dtype_map; i++) {
        const char *entry = options->dtype_map[i], *equals = strrchr(entry, '=');
        char glob[512];
        size_t length = equals ? (size_t)(equals - entry) : 0;
        if (!equals || length >= sizeof glob)
            continue;
        memcpy(glob, entry, length);
        glob[length] = 0;
        if (fnmatch(glob, name, 0) == 0)
            return strcmp(equals, "=mxfp4") == 0;
    }
    return otherwise;
}

// A tensor of experts that are left as they are.
static bool is_kept(const struct nib_plan *plan, const char *name)
{
    for (size_t g = 0; g < plan->source->n_groups; g++) {
        const char *prefix = plan->source->groups[g].prefix;
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) == 0 && name[length] == '.')
            return plan->options.form == NIB_FORM_MXFP4 && !nib_plan_wants_mxfp4(&plan->options, prefix, true);
    }
    return false;
}

// Files have one word for the order of gate and up rows: kept stacks of experts must not be read by another's.
static nib_status check_kept_order(const struct nib_plan *plan, struct nib_error *err)
{
    const struct nib_convert_options *options = &plan->options;
    bool stated = nib_checkpoint_metadata(plan->source->checkpoint, "gate_up_layout") != NULL;
    for (size_t g = 0; g < plan->source->n_groups; g++) {
        const struct nib_group *group = &plan->source->groups[g];
        bool misread = options->fused ? group->interleaved == options->gate_up_concatenated : stated;
        if (group->fused && misread && is_kept(plan, group->first->name))
            return nib_fail(
                err, NIB_ERR_UNSUPPORTED,
                "%s: %s has %s gate and up rows, which the result would not say of experts that are kept",
                group->first->file, group->first->name, group->interleaved ? "interleaved" : "concatenated");
    }
    return NIB_OK;
}

static nib_status note_unmatched(struct nib_plan *plan, const char *name, struct nib_error *err)
{
    for (size_t g = 0; g < plan->source->n_groups; g++) {
        const char *prefix = plan->source->groups[g].prefix;
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) != 0 || name[length] != '.' ||
            strspn(name + length + 1, "0123456789") == 0)
            continue;
        struct nib_convert_report *report = &plan->report;
        char **grown = realloc(report->unmatched, (report->n_unmatched + 1) * sizeof *grown);
        if (!grown)
            return nib_fail_memory(err, strlen(name), "a list of names");
        report->unmatched = grown;
        if (!(grown[report->n_unmatched] = strdup(name)))
            return nib_fail_memory(err, strlen(name), "a name");
        report->n_unmatched++;
        return NIB_OK;
    }
    return NIB_OK;
}

// The dense matrix that `tensor` is the weight of, if it is one. `name` is left without its ending.
static bool read_dense(struct nib_checkpoint *checkpoint, const struct nib_tensor *tensor,
                       char *name /* [NIB_NAME_CAPACITY] */, struct nib_linear_view *view)
{
    if (tensor->rank < 2 || (!ends_with(tensor->name, ".weight") && !ends_with(tensor->name, ".weight_packed")))
        return false;
    size_t length = (size_t)(strrchr(tensor->name, '.') - tensor->name);
    memcpy(name, tensor->name, length);
    name[length] = 0;
    return nib_checkpoint_linear(checkpoint, name, view, NULL) == NIB_OK && view->weight == tensor;
}

// Does the configuration describe this quantized matrix outside the experts? compressed-tensors' have one kind for all.
static bool is_described(const struct nib_convert_options *options, const struct nib_linear_view *view)
{
    if (options->form == NIB_FORM_INT4_G32)
        return false;
    if (options->form == NIB_FORM_FP8_CHANNEL)
        return view->kind == NIB_LINEAR_FP8 && view->block_rows == 1 && view->block_cols == view->cols;
    bool one_kind = nib_plan_dialect(options) == NIB_NAMES_COMPRESSED_TENSORS;
    return !one_kind || (view->kind == NIB_LINEAR_MXFP4 && ends_with(view->weight->name, ".weight_packed"));
}

static nib_status refuse_mixture(const struct nib_plan *plan, const struct nib_linear_view *view,
                                 struct nib_error *err)
{
    enum nib_form form = plan->options.form;
    if (view->kind == NIB_LINEAR_PLAIN || is_described(&plan->options, view))
        return NIB_OK;
    char text[64];
    return nib_fail(
        err, NIB_ERR_UNSUPPORTED, "%s: %s is %s, which has no place beside %s; as bf16 it has (--dense bf16)",
        view->weight->file, view->weight->name, nib_linear_describe(view, text, sizeof text), nib_form_name(form));
}

static nib_status decide_dense(struct nib_plan *plan, const struct nib_tensor *tensor, enum fate *fates,
                               struct nib_error *err)
{
    struct nib_checkpoint *checkpoint = plan->source->checkpoint;
    char name[NIB_NAME_CAPACITY];
    struct nib_linear_view view;
    if (!read_dense(checkpoint, tensor, name, &view))
        return NIB_OK;
    size_t at = (size_t)(tensor - checkpoint->tensors);
    if (plan->options.form == NIB_FORM_MXFP4 && view.kind != NIB_LINEAR_MXFP4 && view.cols % NIB_MX_BLOCK == 0 &&
        nib_plan_wants_mxfp4(&plan->options, tensor->name, false))
        fates[at] = FATE_MXFP4;
    else if (plan->options.dense_bf16 && view.kind != NIB_LINEAR_PLAIN)
        fates[at] = FATE_BF16;
    else
        return refuse_mixture(plan, &view, err);
    if (view.scale)
        fates[view.scale - checkpoint->tensors] = FATE_GONE;
    return NIB_OK;
}

static nib_status decide(struct nib_plan *plan, enum fate *fates /* [count] */, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = plan->source->checkpoint;
    for (size_t i = 0; i < checkpoint->count; i++)
        if (checkpoint->used[i] && !is_kept(plan, checkpoint->tensors[i].name))
            fates[i] = FATE_GONE;
    nib_status status = NIB_OK;
    for (size_t i = 0; status == NIB_OK && i < checkpoint->count; i++) {
        const struct nib_tensor *tensor = &checkpoint->tensors[i];
        if (fates[i] != FATE_COPY || is_kept(plan, tensor->name))
            continue;
        status = note_unmatched(plan, tensor->name, err);
        if (status == NIB_OK)
            status = decide_dense(plan, tensor, fates, err);
    }
    return status;
}

// ---- Units of tensors outside the experts ----

static nib_status add_copy(struct nib_plan *plan, const struct nib_tensor *tensor, struct nib_error *err)
{
    struct nib_unit *unit = nib_plan_add(plan);
    if (!unit)
        return nib_fail_memory(err, sizeof *unit, "a plan");
    unit->recipe = NIB_RECIPE_COPY;
    unit->bytes = tensor->data;
    unit->rows = (int64_t)tensor->bytes;
    unit->source_bytes = tensor->bytes;
    nib_status status = nib_unit_add(unit, tensor->dtype, 1, 0, NULL, err, "%s", tensor->name);
    if (status != NIB_OK)
        return status;
    struct nib_output *output = &unit->outputs[0];
    output->rank = tensor->rank;
    memcpy(output->shape, tensor->shape, sizeof output->shape);
    output->bytes = tensor->bytes;
    bool matrix = tensor->rank == 2 && ends_with(tensor->name, ".weight") && nib_dtype_is_plain(tensor->dtype);
    if (!matrix)
        return NIB_OK;
    size_t length = strlen(tensor->name) - strlen(".weight");
    return json_array_append_new(plan->modules, json_stringn(tensor->name, length)) == 0
               ? NIB_OK
               : nib_fail_memory(err, length, "a name");
}

static nib_status add_dense(struct nib_plan *plan, const struct nib_tensor *tensor, enum fate fate,
                            struct nib_error *err)
{
    char name[NIB_NAME_CAPACITY];
    struct nib_linear_view view = {0};
    struct nib_unit *unit = nib_plan_add(plan);
    if (!unit)
        return nib_fail_memory(err, sizeof *unit, "a plan");
    if (!read_dense(plan->source->checkpoint, tensor, name, &view))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: is no matrix any more", tensor->file, tensor->name);
    unit->own = nib_source_linear(&view);
    unit->rows = view.rows;
    unit->cols = view.cols;
    unit->source_bytes = view.weight->bytes + (view.scale ? view.scale->bytes : 0);
    if (fate == FATE_BF16) {
        unit->recipe = NIB_RECIPE_BF16;
        plan->report.dense_converted++;
        if (json_array_append_new(plan->modules, json_string(name)) != 0)
            return nib_fail_memory(err, strlen(name), "a name");
        return nib_unit_add(unit, NIB_BF16, 2 * (uint64_t)view.cols, 2, (int64_t[]){view.rows, view.cols}, err,
                            "%s.weight", name);
    }
    unit->recipe = NIB_RECIPE_ENCODE;
    unit->error_entry = nib_plan_add_error(plan, name, "");
    if (unit->error_entry < 0)
        return nib_fail_memory(err, strlen(name), "a report");
    return nib_unit_add_packed(unit, name, nib_plan_dialect(&plan->options), err);
}

// All units in the order in which the source's tensors lie in their files, so that it is read from front to back.
static nib_status add_units(struct nib_plan *plan, const enum fate *fates /* [count] */, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = plan->source->checkpoint;
    for (size_t i = 0; i < checkpoint->count; i++) {
        size_t number = plan->source->order[i];
        const struct nib_tensor *tensor = &checkpoint->tensors[number];
        enum fate fate = fates[number];
        nib_status status = NIB_OK;
        if (fate == FATE_COPY)
            status = add_copy(plan, tensor, err);
        else if (fate != FATE_GONE)
            status = add_dense(plan, tensor, fate, err);
        for (size_t g = 0; status == NIB_OK && fate == FATE_GONE && g < plan->source->n_groups; g++)
            if (plan->source->groups[g].first == tensor)
                status = nib_plan_group(plan, &plan->source->groups[g], err);
        if (status != NIB_OK)
            return status;
    }
    return NIB_OK;
}

// ---- Files ----

static uint64_t unit_bytes(const struct nib_unit *unit)
{
    uint64_t bytes = 0;
    for (int o = 0; o < unit->n_outputs; o++)
        bytes += unit->outputs[o].bytes;
    return bytes;
}

// Tensors that would leave the next ones off their elements' boundaries come last, the widest elements first.
static int alignment_class(const struct nib_unit *unit)
{
    return unit_bytes(unit) % 8 == 0 ? 0 : 8 - (int)nib_dtype_size(unit->outputs[0].dtype);
}

static void align_units(struct nib_plan *plan, const struct nib_plan_file *file, struct nib_unit *spare)
{
    size_t next = 0;
    for (int class = 0; class < 8; class ++)
        for (size_t u = file->first; u < file->first + file->count; u++)
            if (alignment_class(&plan->units[u]) == class)
                spare[next++] = plan->units[u];
    memcpy(plan->units + file->first, spare, next * sizeof *spare);
}

static void place_outputs(struct nib_plan *plan, struct nib_plan_file *file)
{
    for (size_t u = file->first; u < file->first + file->count; u++)
        for (int o = 0; o < plan->units[u].n_outputs; o++) {
            plan->units[u].outputs[o].offset = file->data_bytes;
            file->data_bytes += plan->units[u].outputs[o].bytes;
        }
}

static nib_status make_files(struct nib_plan *plan, struct nib_error *err)
{
    uint64_t limit = plan->options.max_file_bytes ? plan->options.max_file_bytes : DEFAULT_FILE_BYTES, filled = 0;
    plan->files = calloc(plan->n_units + 1, sizeof *plan->files);
    struct nib_unit *spare = malloc((plan->n_units + 1) * sizeof *spare);
    if (!plan->files || !spare) {
        free(spare);
        return nib_fail_memory(err, (plan->n_units + 1) * sizeof *spare, "a plan");
    }
    for (size_t u = 0; u < plan->n_units; u++) {
        uint64_t bytes = unit_bytes(&plan->units[u]);
        if (plan->n_files == 0 || (filled > 0 && filled + bytes > limit)) {
            plan->files[plan->n_files++].first = u;
            filled = 0;
        }
        plan->files[plan->n_files - 1].count++;
        filled += bytes;
    }
    for (size_t f = 0; f < plan->n_files; f++) {
        struct nib_plan_file *file = &plan->files[f];
        align_units(plan, file, spare);
        place_outputs(plan, file);
        if (plan->n_files == 1)
            snprintf(file->name, sizeof file->name, "model.safetensors");
        else
            snprintf(file->name, sizeof file->name, "model-%05zu-of-%05zu.safetensors", f + 1, plan->n_files);
    }
    free(spare);
    return NIB_OK;
}

static nib_status check_names(const struct nib_plan *plan, struct nib_error *err)
{
    json_t *seen = json_object();
    nib_status status = seen ? NIB_OK : nib_fail_memory(err, sizeof(json_t), "a list of names");
    for (size_t u = 0; status == NIB_OK && u < plan->n_units; u++)
        for (int o = 0; status == NIB_OK && o < plan->units[u].n_outputs; o++) {
            const char *name = plan->units[u].outputs[o].name;
            if (json_object_get(seen, name))
                status = nib_fail(err, NIB_ERR_UNSUPPORTED, "two tensors of the result would be called %s", name);
            else if (json_object_set_new(seen, name, json_true()) != 0)
                status = nib_fail_memory(err, strlen(name), "a name");
        }
    json_decref(seen);
    return status;
}

// ---- All of it ----

static void sum_report(struct nib_plan *plan)
{
    struct nib_convert_report *report = &plan->report;
    for (size_t u = 0; u < plan->n_units; u++) {
        report->source_bytes += plan->units[u].source_bytes;
        report->output_bytes += unit_bytes(&plan->units[u]);
        report->tensors += (uint64_t)plan->units[u].n_outputs;
    }
    report->files = plan->n_files;
    for (size_t g = 0; g < plan->source->n_groups; g++) {
        report->layers++;
        report->experts += (uint64_t)plan->source->groups[g].n_experts;
    }
}

static nib_status refuse_unmatched(const struct nib_plan *plan, struct nib_error *err)
{
    if (plan->report.n_unmatched == 0)
        return NIB_OK;
    return nib_fail(
        err, NIB_ERR_UNSUPPORTED, "%s: %zu tensors of experts have no place in the result, the first is %s",
        nib_checkpoint_path(plan->source->checkpoint), plan->report.n_unmatched, plan->report.unmatched[0]);
}

static nib_status make_metadata(struct nib_plan *plan, struct nib_error *err)
{
    const struct nib_checkpoint *checkpoint = plan->source->checkpoint;
    const struct nib_convert_options *options = &plan->options;
    static const char *const rules[] = {"ocp", "even", "rceil", "search"};
    json_t *metadata = plan->metadata = json_object();
    plan->modules = json_array();
    int failed = !metadata || !plan->modules;
    for (size_t f = 0; !failed && f < checkpoint->file_count; f++)
        if (checkpoint->files[f].metadata)
            failed = json_object_update_missing(metadata, checkpoint->files[f].metadata);
    json_object_del(metadata, "gate_up_layout");
    if (options->form == NIB_FORM_FUSED || (options->form == NIB_FORM_MXFP4 && options->fused))
        failed |= json_object_set_new(metadata, "gate_up_layout",
                                      json_string(options->gate_up_concatenated ? "concatenated" : "interleaved"));
    failed |= json_object_set_new(metadata, "nibble_form", json_string(nib_form_name(options->form)));
    if (options->form == NIB_FORM_MXFP4)
        failed |= json_object_set_new(metadata, "nibble_scale_rule", json_string(rules[options->scale_rule]));
    else
        json_object_del(metadata, "nibble_scale_rule");
    return failed ? nib_fail_memory(err, 4096, "a file's metadata") : NIB_OK;
}

nib_status nib_plan_make(const struct nib_source *source, const struct nib_convert_options *options,
                         struct nib_plan *plan, struct nib_error *err)
{
    *plan = (struct nib_plan){.options = *options, .source = source};
    enum fate *fates = calloc(source->checkpoint->count + 1, sizeof *fates);
    if (!fates)
        return nib_fail_memory(err, source->checkpoint->count, "a plan");
    nib_status status = make_metadata(plan, err);
    if (status == NIB_OK)
        status = check_kept_order(plan, err);
    if (status == NIB_OK)
        status = decide(plan, fates, err);
    if (status == NIB_OK)
        status = add_units(plan, fates, err);
    free(fates);
    // A dense matrix lives in its unit, whose address is only settled once all files are laid out.
    if (status == NIB_OK)
        status = make_files(plan, err);
    for (size_t u = 0; u < plan->n_units; u++)
        if (!plan->units[u].matrix)
            plan->units[u].matrix = &plan->units[u].own;
    if (status == NIB_OK)
        status = check_names(plan, err);
    if (status == NIB_OK)
        sum_report(plan);
    return status == NIB_OK ? refuse_unmatched(plan, err) : status;
}

void nib_plan_free(struct nib_plan *plan)
{
    for (size_t u = 0; u < plan->n_units; u++)
        for (int o = 0; o < plan->units[u].n_outputs; o++)
            free(plan->units[u].outputs[o].name);
    free(plan->units);
    free(plan->files);
    json_decref(plan->metadata);
    json_decref(plan->modules);
    nib_convert_report_free(&plan->report);
    *plan = (struct nib_plan){0};
}

void nib_convert_report_free(struct nib_convert_report *report)
{
    for (size_t i = 0; i < report->n_errors; i++)
        free((char *)report->errors[i].prefix);
    for (size_t i = 0; i < report->n_unmatched; i++)
        free(report->unmatched[i]);
    free(report->errors);
    free(report->unmatched);
    *report = (struct nib_convert_report){0};
}
