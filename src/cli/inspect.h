// The report of `nibble inspect`, as one JSON object that is printed as it is or as text.
#ifndef NIB_CLI_INSPECT_H
#define NIB_CLI_INSPECT_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/session.h"
#include "nibble/checkpoint.h"

// What the files hold, whether or not nibble can run the model: family, files, groups of tensors that differ only in
// the numbers of their names, and each layer's experts (with the scales scanned for NaN when `scales` says so).
// False when a scale is NaN.
bool inspect_files(struct nib_checkpoint *checkpoint, bool scales, json_t *report);

// What a conversion to `form` would do, from headers alone, on stdout. Returns the exit code: 1 when it would be refused.
int inspect_conversion(const char *path, const char *form, int threads, bool json);

// The config's model_type and architecture.
void inspect_add_family(const struct nib_config *config, json_t *report);

// Memory, and the cache by groups of layers.
void inspect_add_plan(const struct nib_memory_plan *plan, json_t *report);
void inspect_print_memory(const json_t *report);

// A folder that could not be opened: where that is for want of weights, what the whole model would need. Returns the exit
// code: 0 when none of its files is there, 1 when some are missing or it is something else, with the error on stderr.
int inspect_absent(const char *folder, const struct session_options *session, bool json,
                   const struct nib_error *unopened);

// The report as text on stdout.
void inspect_print(const json_t *report);

#endif
