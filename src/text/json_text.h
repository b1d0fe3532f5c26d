// JSON as text for models to read.
#ifndef NIB_TEXT_JSON_TEXT_H
#define NIB_TEXT_JSON_TEXT_H

#include <jansson.h>

#include "text/writer.h"

// As json_dumps with these flags, but any value may stand alone, and each real number has as few digits as tell it from
// others: 0.1, not 0.10000000000000001.
void nib_write_json(struct nib_writer *out, const json_t *json, size_t flags);

#endif
