// nibble verify: proof that a checkpoint is another one in a different form.
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/bus_error.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/convert_options.h"
#include "cli/progress.h"
#include "cli/units.h"
#include "nibble/convert.h"

static void print_json(const struct nib_verify_report *report, bool sampled, double seconds)
{
    json_t *problems = json_array();
    for (size_t i = 0; i < report->n_messages; i++)
        json_array_append_new(problems, json_string(report->messages[i]));
    json_t *json = json_pack("{s:b, s:b, s:s, s:I, s:I, s:I, s:I, s:f, s:o}", "proven", report->proven, "sampled",
                             sampled, "form", nib_form_name(report->form), "tensors", (json_int_t)report->tensors,
                             "elements", (json_int_t)report->elements, "bytes", (json_int_t)report->bytes,
                             "problems", (json_int_t)report->problems, "seconds", seconds, "messages", problems);
    json_dumpf(json, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    putchar('\n');
    json_decref(json);
}

static void print_text(const struct nib_verify_report *report, bool sampled, double seconds)
{
    for (size_t i = 0; i < report->n_messages; i++)
        printf("%s\n", report->messages[i]);
    if (report->problems > report->n_messages)
        printf("… and %llu more\n", (unsigned long long)(report->problems - report->n_messages));
    printf("%s, %llu tensors, %s, %llu elements compared in %.1f s: ", nib_form_name(report->form),
           (unsigned long long)report->tensors, size_text(report->bytes).text,
           (unsigned long long)report->elements, seconds);
    if (report->problems)
        printf("NOT the same, %llu problem%s\n", (unsigned long long)report->problems,
               report->problems == 1 ? "" : "s");
    else
        printf("%s\n", sampled ? "no difference in the sample, which proves nothing about the rest" : "proven");
}

int cmd_verify(int argc, char **argv)
{
    const char *paths[2] = {NULL, NULL}, *to = NULL, *rule = NULL, *source_gate_up = "concatenated";
    bool json = false;
    struct nib_progress progress = {.label = "verifying"};
    struct nib_verify_options wanted = {.sample = 1, .on_progress = nib_progress_of_bytes, .user = &progress};
    int64_t threads = 0;
    const struct nib_option options[] = {
        {"--to", NIB_OPTION_CHOICE, &to, "fused|per-expert|fp8-channel|int4-g32|mxfp4",
         "the form it should be in; else what it says itself", 0, 0},
        {"--scale-rule", NIB_OPTION_CHOICE, &rule, "ocp|even|rceil|search", "of mxfp4; else what it says itself",
         0, 0},
        {"--source-gate-up", NIB_OPTION_CHOICE, &source_gate_up, "concatenated|interleaved",
         "order of the rows in a source with fused w13 that does not say", 0, 0},
        {"--sample", NIB_OPTION_REAL, &wanted.sample, "SHARE", "compare only this share of the rows", 1e-9, 1},
        option_threads(&threads),
        option_json(&json),
    };
    const struct nib_usage usage = {
        .command = "nibble verify",
        .arguments = "SRC DST",
        .summary =
            "Proves that the checkpoint DST is SRC in another form: every tensor once and nothing else, equal\n"
            "elements for exact forms, recomputed codes for lossy ones, everything else byte for byte. Decodes\n"
            "with code of its own. Exit code 0 only when proven; a sample proves nothing and ends with 3.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = paths,
        .min_positionals = 2,
        .n_positionals = 2,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    wanted.threads = (int)threads;
    wanted.has_form = to && nib_form_find(to, &wanted.form);
    wanted.has_scale_rule = rule && convert_find_rule(rule, &wanted.scale_rule);
    wanted.source_interleaved = strcmp(source_gate_up, "interleaved") == 0;
    explain_bus_errors();
    struct nib_verify_report report;
    struct nib_error err;
    double started = nib_seconds();
    nib_status status = nib_verify(paths[0], paths[1], &wanted, &report, &err);
    nib_progress_end(&progress);
    bool sampled = wanted.sample < 1;
    if (status == NIB_OK && json)
        print_json(&report, sampled, nib_seconds() - started);
    else if (status == NIB_OK)
        print_text(&report, sampled, nib_seconds() - started);
    code = report.proven ? 0 : report.problems ? 1 : 3;
    nib_verify_report_free(&report);
    return status == NIB_OK ? code : report_error(&err);
}
