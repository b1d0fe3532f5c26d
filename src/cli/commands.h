// The subcommands of `nibble`. Each gets the arguments behind its own name and returns the exit code: 0 done, 1 failed
// (one line on stderr says why), 2 wrong usage.
#ifndef NIB_CLI_COMMANDS_H
#define NIB_CLI_COMMANDS_H

#include "nibble/status.h"

struct nib_command {
    const char *name;
    const char *summary; // one line of `nibble --help`
    int (*run)(int argc, char **argv);
};

int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_decode(int argc, char **argv);
int cmd_bench_moe(int argc, char **argv);
int cmd_bench_serve(int argc, char **argv);
int cmd_parity(int argc, char **argv);

// "nibble: MESSAGE" on stderr; returns 1.
int report_error(const struct nib_error *err);

// Runs the entry of `commands` that argv[0] names, or prints `usage` and the list: to stdout and 0 for --help, else to
// stderr and 2.
int dispatch(const char *usage, const struct nib_command *commands, int count, int argc, char **argv);

#endif
