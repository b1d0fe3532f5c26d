// nibble inspect --dry-run-convert: sizes, memory, and tensors that a conversion would have no place for.
#include <stdio.h>

#include "cli/inspect.h"
#include "cli/units.h"
#include "nibble/convert.h"

static json_t *report_json(const char *form, const struct nib_convert_report *report, const char *refused)
{
    json_t *unmatched = json_array();
    for (size_t i = 0; i < report->n_unmatched; i++)
        json_array_append_new(unmatched, json_string(report->unmatched[i]));
    return json_pack("{s:s, s:b, s:s?, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "form", form, "possible",
                     !refused, "refused_because", refused, "source_bytes", (json_int_t)report->source_bytes,
                     "output_bytes", (json_int_t)report->output_bytes, "tensors", (json_int_t)report->tensors,
                     "files", (json_int_t)report->files, "layers", (json_int_t)report->layers, "experts",
                     (json_int_t)report->experts, "memory_bytes", (json_int_t)report->buffer_bytes, "unmatched",
                     unmatched);
}

static void print_text(const char *form, const struct nib_convert_report *report, const char *refused)
{
    if (refused)
        printf("to %s: refused: %s\n", form, refused);
    else
        printf("to %s: %s would become %s, %llu tensors in %llu files, %llu experts in %llu layers; at most %s of "
               "memory\n",
               form, size_text(report->source_bytes).text, size_text(report->output_bytes).text,
               (unsigned long long)report->tensors, (unsigned long long)report->files,
               (unsigned long long)report->experts, (unsigned long long)report->layers,
               size_text(report->buffer_bytes).text);
    for (size_t i = 0; i < report->n_unmatched; i++)
        printf("no place for %s\n", report->unmatched[i]);
}

int inspect_conversion(const char *path, const char *form, int threads, bool json)
{
    struct nib_convert_options options = {.lossy = true, .threads = threads};
    struct nib_convert_report report;
    struct nib_error err;
    nib_form_find(form, &options.form);
    const char *refused = nib_convert_dry_run(path, &options, &report, &err) ? err.message : NULL;
    if (json) {
        json_t *object = report_json(form, &report, refused);
        json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
        json_decref(object);
    } else
        print_text(form, &report, refused);
    nib_convert_report_free(&report);
    return refused ? 1 : 0;
}
