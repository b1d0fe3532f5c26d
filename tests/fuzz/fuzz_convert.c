// Any bytes as a source to convert: each form's plan is made or refused, and the rows of a plan stay within their tensors.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "convert/rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// The first rows and the last one of every unit, each output exactly as large as it may be.
static void make_some_rows(const struct nib_plan *plan)
{
    static struct nib_row_stats stats;
    struct nib_error err;
    for (size_t u = 0; u < plan->n_units; u++) {
        const struct nib_unit *unit = &plan->units[u];
        int64_t starts[2] = {0, unit->rows - 1};
        for (int s = 0; s < 2 && unit->rows > 0; s++) {
            int64_t left = unit->rows - starts[s], count = left < 40 ? left : 40;
            uint8_t *out[NIB_UNIT_OUTPUTS] = {NULL};
            for (int o = 0; o < unit->n_outputs; o++) {
                const struct nib_output *output = &unit->outputs[o];
                size_t bytes = (size_t)((uint64_t)count * output->row_bytes);
                if (output->row_bytes == 0 && starts[s] == 0)
                    bytes = (size_t)output->bytes;
                if (output->row_bytes && output->bytes != output->row_bytes * (uint64_t)unit->rows)
                    abort();
                out[o] = bytes ? malloc(bytes) : NULL;
            }
            nib_make_rows(plan, unit, starts[s], count, out, &stats, &err);
            for (int o = 0; o < unit->n_outputs; o++)
                free(out[o]);
        }
    }
}

static void plan_form(const struct nib_source *source, enum nib_form form, bool variant)
{
    static const char *const map[] = {"*.0*=mxfp4", "*=keep"};
    struct nib_convert_options options = {.form = form,
                                          .names = variant ? NIB_NAMES_DEEPSEEK : NIB_NAMES_QUARK,
                                          .gate_up_concatenated = variant,
                                          .dense_bf16 = variant,
                                          .fused = variant,
                                          .dtype_map = map,
                                          .n_dtype_map = variant ? 2 : 0,
                                          .max_file_bytes = 5000};
    struct nib_plan plan = {0};
    struct nib_error err;
    if (nib_plan_make(source, &options, &plan, &err) == NIB_OK) {
        plan.fp8_row = nib_fp8_row_pick();
        make_some_rows(&plan);
        for (size_t f = 0; f < plan.n_files; f++) {
            uint8_t *header = NULL;
            uint64_t bytes;
            nib_plan_header(&plan, f, &header, &bytes, &err);
            free(header);
        }
        json_t *json = NULL;
        nib_plan_config(&plan, &json, &err);
        json_decref(json);
        nib_plan_index(&plan, &json, &err);
        json_decref(json);
    }
    nib_plan_free(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (int form = 0; form < NIB_FORM_COUNT; form++)
        for (int variant = 0; variant < 2; variant++) {
            struct nib_source source;
            struct nib_error err;
            if (nib_source_open(path, form == NIB_FORM_MXFP4, variant, &source, &err) != NIB_OK)
                continue;
            plan_form(&source, (enum nib_form)form, variant);
            nib_source_close(&source);
        }
    close(fd);
    return 0;
}
