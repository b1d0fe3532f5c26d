// What stands beside the weights: index, tokenizer and the like, config.json.
#ifndef NIB_CONVERT_SIDE_FILES_H
#define NIB_CONVERT_SIDE_FILES_H

#include "convert/plan.h"

// Writes the index, copies the source's other files (not its subfolders), and last of all config.json, without which a
// folder is no checkpoint.
nib_status nib_write_side_files(const struct nib_plan *plan, const char *folder, struct nib_error *err);

// Whether a file of the source folder is copied: not weights, index, configuration, hidden or half-written ones.
bool nib_is_side_file(const char *name);

// The text of a JSON file as a conversion writes it: indented, its numbers with as few digits as keep them. Free it; NULL
// without memory.
char *nib_json_text(const json_t *json);

#endif
