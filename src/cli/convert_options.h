// The options of nibble convert, which nibble inspect --dry-run-convert takes as well.
#ifndef NIB_CLI_CONVERT_OPTIONS_H
#define NIB_CLI_CONVERT_OPTIONS_H

#include "cli/options.h"
#include "nibble/convert.h"

struct convert_arguments {
    const char *to, *gate_up, *source_gate_up, *dense, *names, *experts, *scale_rule, *activations, *shard;
    struct nib_option_list dtype_map;
    bool lossy, resume, merge;
    double file_gigabytes;
    int64_t chunk, threads;
};

enum { CONVERT_OPTIONS = 20 };

struct convert_arguments convert_defaults(void);

// Fills the table; returns how many entries it has.
int convert_option_table(struct convert_arguments *arguments, struct nib_option *options /* [CONVERT_OPTIONS] */);

// Arguments as the library wants them. False after a mistake, named on stderr, with *exit_code 2. `options` refers to
// `arguments`.
bool convert_read_arguments(const struct convert_arguments *arguments, struct nib_convert_options *options,
                            int *exit_code);

// "ocp", "even", …; false for other words.
bool convert_find_rule(const char *name, enum nib_mx_scale_rule *rule);

#endif
