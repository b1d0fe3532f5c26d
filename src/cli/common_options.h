// Options that several commands have, worded once.
#ifndef NIB_CLI_COMMON_OPTIONS_H
#define NIB_CLI_COMMON_OPTIONS_H

#include "cli/options.h"

struct nib_option option_device(const char **device);
struct nib_option option_threads(int64_t *threads);
struct nib_option option_context(int64_t *tokens);
struct nib_option option_precision(const char **precision);
struct nib_option option_dense_dtype(const char **dtype);
struct nib_option option_deterministic(bool *deterministic);
struct nib_option option_json(bool *json);

#endif
