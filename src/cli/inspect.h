// The report of `nibble inspect`, as one JSON object that is printed as it is or as text.
#ifndef NIB_CLI_INSPECT_H
#define NIB_CLI_INSPECT_H

#include <jansson.h>
#include <stdbool.h>

#include "nibble/checkpoint.h"

// What the files hold, whether or not nibble can run the model: family, files, groups of tensors that differ only in
// the numbers of their names, and each layer's experts (with the scales scanned for NaN when `scales` says so).
// False when a scale is NaN.
bool inspect_files(struct nib_checkpoint *checkpoint, bool scales, json_t *report);

// What a conversion to `form` would do, from headers alone, on stdout. Returns the exit code: 1 when it would be refused.
int inspect_conversion(const char *path, const char *form, int threads, bool json);

// The report as text on stdout.
void inspect_print(const json_t *report);

#endif
