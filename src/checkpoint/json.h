// JSON from files of unknown origin, through jansson with limits.
#ifndef NIB_CHECKPOINT_JSON_H
#define NIB_CHECKPOINT_JSON_H

#include <jansson.h>
#include <stddef.h>

#include "nibble/status.h"

// Parses `size` bytes into a new reference to an object. `name` is what messages call the text. Refused: more than
// max_size bytes, nesting deeper than max_depth, duplicate keys, anything but an object, bytes after it.
nib_status nib_json_parse(const char *text, size_t size, const char *name, size_t max_size, int max_depth,
                          json_t **object, struct nib_error *err);

#endif
