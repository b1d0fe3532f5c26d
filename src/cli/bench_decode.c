#include "cli/bench_decode.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "cli/plot.h"

static double tok_per_s(const struct bench_row *row)
{
    return 1e3 * (double)row->streams / row->ms_per_step;
}

static double bytes_per_s(const struct bench_row *row)
{
    return 1e3 * row->bytes_per_step / row->ms_per_step;
}

// The time that the step's bytes take at the speed of a plain read.
static double floor_ms(const struct bench_row *row)
{
    return 1e3 * row->bytes_per_step / row->ceiling;
}

// Kinds of operations in the order they first appear in any row; how many there are.
static int kinds_of(const struct bench_decode *bench, const char *kinds[BENCH_KINDS])
{
    int count = 0;
    for (int r = 0; r < bench->n_rows; r++)
        for (int i = 0; i < bench->rows[r].n_times; i++) {
            bool known = false;
            for (int k = 0; k < count; k++)
                known |= strcmp(kinds[k], bench->rows[r].times[i].name) == 0;
            if (!known && count < BENCH_KINDS)
                kinds[count++] = bench->rows[r].times[i].name;
        }
    return count;
}

static struct nib_op_time time_of(const struct bench_row *row, const char *kind)
{
    for (int i = 0; i < row->n_times; i++)
        if (strcmp(row->times[i].name, kind) == 0)
            return row->times[i];
    return (struct nib_op_time){.name = kind};
}

static void print_times(const struct bench_decode *bench)
{
    const char *kinds[BENCH_KINDS];
    int count = kinds_of(bench, kinds);
    if (count == 0)
        return;
    printf("time by operation, launches one by one: µs a step (launches)\n%-22s", "streams");
    for (int r = 0; r < bench->n_rows; r++)
        printf(" %14lld", (long long)bench->rows[r].streams);
    printf("\n");
    for (int k = 0; k < count; k++) {
        printf("%-22s", kinds[k]);
        for (int r = 0; r < bench->n_rows; r++) {
            struct nib_op_time time = time_of(&bench->rows[r], kinds[k]);
            printf(" %8.1f (%3d)", 1e6 * time.seconds, time.launches);
        }
        printf("\n");
    }
}

void bench_decode_print_table(const struct bench_decode *bench)
{
    printf("%s, %s device, context %lld, %lld steps a row (medians)\n", bench->model,
           nib_engine_device(bench->engine), (long long)bench->context, (long long)bench->steps);
    if (bench->prefill)
        printf("prefill of %lld tokens: %.3f s, %.1f tok/s\n", (long long)bench->prefill, bench->prefill_seconds,
               (double)bench->prefill / bench->prefill_seconds);
    printf("%7s %10s %10s %9s %9s %9s %8s %8s %6s %8s\n", "streams", "tok/s each", "tok/s all", "ms/step",
           "floor ms", "MB/step", "GB/s", "read", "share", "launches");
    for (int i = 0; i < bench->n_rows; i++) {
        const struct bench_row *row = &bench->rows[i];
        printf("%7lld %10.2f %10.2f %9.3f %9.3f %9.1f %8.1f %8.1f %6.2f %8d\n", (long long)row->streams,
               tok_per_s(row) / (double)row->streams, tok_per_s(row), row->ms_per_step, floor_ms(row),
               row->bytes_per_step / 1e6, bytes_per_s(row) / 1e9, row->ceiling / 1e9,
               floor_ms(row) / row->ms_per_step, row->launches);
    }
    print_times(bench);
    printf("resident %.2f GiB, of which %.3f GiB are not the mapped weights\n",
           (double)nib_memory_resident() / 0x1p30, (double)nib_memory_anonymous() / 0x1p30);
}

void bench_decode_print_csv(const struct bench_decode *bench)
{
    printf(
        "model,device,context,streams,tok_per_s,ms_per_step,floor_ms,bytes_per_step,read_bytes_per_s,launches\n");
    for (int i = 0; i < bench->n_rows; i++) {
        const struct bench_row *row = &bench->rows[i];
        printf("%s,%s,%lld,%lld,%.3f,%.5f,%.5f,%.0f,%.0f,%d\n", bench->model, nib_engine_device(bench->engine),
               (long long)bench->context, (long long)row->streams, tok_per_s(row), row->ms_per_step, floor_ms(row),
               row->bytes_per_step, row->ceiling, row->launches);
    }
}

static json_t *times_json(const struct bench_row *row)
{
    json_t *times = json_object();
    for (int i = 0; i < row->n_times; i++)
        json_object_set_new(
            times, row->times[i].name,
            json_pack("{s:f, s:i}", "seconds", row->times[i].seconds, "launches", row->times[i].launches));
    return times;
}

static json_t *row_json(const struct bench_row *row)
{
    json_t *object =
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "sequences", (json_int_t)row->streams, "tok_per_s",
                  tok_per_s(row), "ms_per_step", row->ms_per_step, "floor_ms", floor_ms(row), "bytes_per_token",
                  row->bytes_per_step / (double)row->streams, "gb_per_s", bytes_per_s(row) / 1e9, "read_gb_per_s",
                  row->ceiling / 1e9, "share_of_read_ceiling", floor_ms(row) / row->ms_per_step);
    if (row->launches)
        json_object_set_new(object, "launches", json_integer(row->launches));
    if (row->n_times)
        json_object_set_new(object, "operations", times_json(row));
    return object;
}

void bench_decode_print_json(const struct bench_decode *bench)
{
    json_t *rows = json_array();
    for (int i = 0; i < bench->n_rows; i++)
        json_array_append_new(rows, row_json(&bench->rows[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:I, s:o, s:I, s:I}", "model", bench->model, "device",
                  nib_engine_device(bench->engine), "threads", nib_engine_threads(bench->engine), "context",
                  (json_int_t)bench->context, "rows", rows, "resident_bytes", (json_int_t)nib_memory_resident(),
                  "anonymous_bytes", (json_int_t)nib_memory_anonymous());
    if (bench->prefill)
        json_object_set_new(root, "prefill",
                            json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)bench->prefill, "seconds",
                                      bench->prefill_seconds, "tok_per_s",
                                      (double)bench->prefill / bench->prefill_seconds));
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    printf("\n");
    json_decref(root);
}

nib_status bench_decode_plot(const struct bench_decode *bench, const char *path, struct nib_error *err)
{
    double streams[BENCH_ROWS], reached[BENCH_ROWS], floor[BENCH_ROWS];
    char title[160];
    for (int i = 0; i < bench->n_rows; i++) {
        const struct bench_row *row = &bench->rows[i];
        streams[i] = (double)row->streams;
        reached[i] = tok_per_s(row);
        floor[i] = 1e3 * (double)row->streams / floor_ms(row);
    }
    snprintf(title, sizeof title, "%s, %s, context %lld", bench->model, nib_engine_device(bench->engine),
             (long long)bench->context);
    const struct plot_line lines[] = {{"at the speed of a plain read", floor, true}, {"reached", reached, false}};
    return plot_write(path, title, "streams", "tokens a second", streams, bench->n_rows, lines, 2, err);
}
