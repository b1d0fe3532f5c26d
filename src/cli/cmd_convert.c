// nibble convert: a checkpoint in another form.
#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "cli/bus_error.h"
#include "cli/commands.h"
#include "cli/convert_options.h"
#include "cli/progress.h"
#include "cli/units.h"
#include "nibble/convert.h"

static void print_spans(const struct nib_convert_report *report)
{
    uint64_t rows = 0;
    for (int span = 0; span < 256; span++)
        rows += report->span_rows[span];
    if (!rows)
        return;
    printf("spread of the scales in a row, in binades (every row is exact):\n");
    for (int span = 0; span < 256; span++)
        if (report->span_rows[span])
            printf("  %3d  %12llu rows  %8.4f %%\n", span, (unsigned long long)report->span_rows[span],
                   100.0 * (double)report->span_rows[span] / (double)rows);
}

static double relative(double squared_error, double squared_norm)
{
    return squared_norm > 0 ? sqrt(squared_error / squared_norm) : 0;
}

static void print_errors(const struct nib_convert_report *report)
{
    if (report->n_errors)
        printf("%-44s %-5s %12s %12s  worst group\n", "relative L2 error", "", "of all", "worst");
    for (size_t i = 0; i < report->n_errors; i++) {
        const struct nib_convert_error *error = &report->errors[i];
        printf("%-44s %-5s %12.6f %12.6f  expert %lld, row %lld, group %lld\n", error->prefix, error->projection,
               relative(error->squared_error, error->squared_norm), error->worst, (long long)error->worst_expert,
               (long long)error->worst_row, (long long)error->worst_group);
    }
    double squared_error = 0, squared_norm = 0;
    for (size_t i = 0; i < report->n_errors; i++) {
        squared_error += report->errors[i].squared_error;
        squared_norm += report->errors[i].squared_norm;
    }
    if (report->n_errors)
        printf("%-44s %-5s %12.6f\n", "all", "", relative(squared_error, squared_norm));
}

static void print_report(const struct nib_convert_report *report, double seconds)
{
    printf("%llu tensors in %llu files, %llu experts in %llu layers: %s to %s\n",
           (unsigned long long)report->tensors, (unsigned long long)report->files,
           (unsigned long long)report->experts, (unsigned long long)report->layers,
           size_text(report->source_bytes).text, size_text(report->output_bytes).text);
    if (report->dense_converted)
        printf("%llu dense matrices became bf16\n", (unsigned long long)report->dense_converted);
    if (report->files_kept)
        printf("%llu files of an earlier run were kept; the figures below are without them\n",
               (unsigned long long)report->files_kept);
    print_spans(report);
    print_errors(report);
    printf("%.1f s\n", seconds);
}

int cmd_convert(int argc, char **argv)
{
    const char *paths[2] = {NULL, NULL};
    struct convert_arguments arguments = convert_defaults();
    struct nib_option options[CONVERT_OPTIONS];
    int n_options = convert_option_table(&arguments, options);
    const struct nib_usage usage = {
        .command = "nibble convert",
        .arguments = "SRC DST",
        .summary =
            "Writes the checkpoint SRC (a folder or one .safetensors file) to the new folder DST in another "
            "form:\n"
            "  fused        MXFP4 experts in one tensor per layer and projection, as gpt-oss has them; exact\n"
            "  per-expert   MXFP4 experts in tensors of their own; exact\n"
            "  fp8-channel  E4M3 experts with a power of two per row; exact, or refused by tensor and row\n"
            "  int4-g32     4-bit integers with a bf16 scale per 32; lossy, only with --lossy\n"
            "  mxfp4        bf16, fp16, fp32 or FP8 experts to MXFP4; lossy by nature\n"
            "Everything else is passed through byte for byte. nibble verify proves the result.",
        .options = options,
        .n_options = n_options,
        .positionals = paths,
        .min_positionals = 2,
        .n_positionals = 2,
    };
    int code = 0;
    struct nib_convert_options wanted;
    if (!nib_parse_options(&usage, argc, argv, &code) || !convert_read_arguments(&arguments, &wanted, &code))
        return code;
    struct nib_progress progress = {.label = "converting"};
    wanted.on_progress = nib_progress_of_bytes;
    wanted.user = &progress;
    if (wanted.form == NIB_FORM_INT4_G32 && wanted.lossy)
        fprintf(stderr, "nibble: int4-g32 is lossy: most values change\n");
    explain_bus_errors();
    signal(SIGXFSZ, SIG_IGN); // a file larger than the limit is an error like a full disk
    struct nib_convert_report report;
    struct nib_error err;
    double started = nib_seconds();
    nib_status status = nib_convert(paths[0], paths[1], &wanted, &report, &err);
    nib_progress_end(&progress);
    if (status == NIB_OK)
        print_report(&report, nib_seconds() - started);
    nib_convert_report_free(&report);
    return status == NIB_OK ? 0 : report_error(&err);
}
