// What nibble bench decode measures, and how it is printed.
#ifndef NIB_CLI_BENCH_DECODE_H
#define NIB_CLI_BENCH_DECODE_H

#include <stdbool.h>

#include "engine/engine_state.h"

enum { BENCH_ROWS = 16, BENCH_KINDS = 32 };

struct bench_row {
    int64_t streams;
    double ms_per_step, bytes_per_step;
    double ceiling;                        // bytes a second that a plain read reached between the steps
    int launches;                          // kernels a step; 0: the device does not say
    struct nib_op_time times[BENCH_KINDS]; // of one step, run operation by operation
    int n_times;
};

struct bench_decode {
    struct nib_engine *engine;
    const char *model;
    int64_t context, steps, prefill;
    double prefill_seconds;
    struct bench_row rows[BENCH_ROWS];
    int n_rows;
};

void bench_decode_print_table(const struct bench_decode *bench);
void bench_decode_print_csv(const struct bench_decode *bench);
void bench_decode_print_json(const struct bench_decode *bench);
// Tokens a second, and what the memory would allow, against streams.
nib_status bench_decode_plot(const struct bench_decode *bench, const char *path, struct nib_error *err);

#endif
