// Command-line options from a table: parsing, range checks and --help come from the same lines.
#ifndef NIB_CLI_OPTIONS_H
#define NIB_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nib_option_kind {
    NIB_OPTION_FLAG,   // bool *
    NIB_OPTION_INT,    // int64_t *, low .. high
    NIB_OPTION_REAL,   // double *, low .. high
    NIB_OPTION_STRING, // const char **
    NIB_OPTION_CHOICE, // const char **, one of the words in `value` ("cpu|cuda:N": N is any number)
    NIB_OPTION_LIST,   // struct nib_option_list *, one item each time the option is given
};

struct nib_option_list {
    const char *items[16]; /* [count] */
    size_t count;
};

struct nib_option {
    const char *name; // "--threads"
    enum nib_option_kind kind;
    void *target;      // holds the default before, the value after; a number below `low` is a default not to print
    const char *value; // what --help calls the value: "N"
    const char *help;
    double low, high;
};

struct nib_usage {
    const char *command;   // "nibble check"
    const char *arguments; // "MODEL EXPECTED.safetensors"
    const char *summary;   // a sentence or two
    const struct nib_option *options;
    int n_options;
    const char **positionals; /* [n_positionals] filled in order */
    int min_positionals, n_positionals;
};

// Reads the arguments into the options' targets. True to go on; false when the command is to return *exit_code: 0 after
// --help (printed to stdout), 2 after a mistake (named on stderr).
bool nib_parse_options(const struct nib_usage *usage, int argc, char **argv, int *exit_code);

// A comma-separated list of numbers from 1 to `high`, at most `capacity` of them; 0 when it is not one.
int nib_parse_list(const char *text, int64_t high, int64_t *numbers /* [capacity] */, int capacity);

#endif
