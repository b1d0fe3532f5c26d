// JSON schemas (2020-12, the subset in docs/server.md) as rules of a byte automaton. Every text that the rules accept is
// JSON that the schema accepts; where JSON leaves a choice the rules are narrower: an object's properties come in the
// schema's order, further ones behind them and only where the schema says so or names none, and white space stands
// only where printers put it.
#ifndef NIB_TEXT_JSON_SCHEMA_H
#define NIB_TEXT_JSON_SCHEMA_H

#include <jansson.h>

#include "text/byte_automaton.h"

// The rule of the schema. NIB_ERR_UNSUPPORTED names a keyword that is not supported, NIB_ERR_ARGUMENT what is no schema
// or cannot be satisfied, and where ("#/properties/age"). The schema is not needed afterwards.
nib_status nib_json_schema_compile(const json_t *schema, struct nib_rules *rules, int32_t *rule,
                                   struct nib_error *err);

// ---- shared by this room's schema files ----

// Reads a regular expression between the quotes of a JSON string, from state `from`; `*to` is behind its last
// character. What `where` names appears in messages.
nib_status nib_json_pattern(struct nib_rules *rules, const char *pattern, size_t size, int32_t from, int32_t *to,
                            const char *where, struct nib_error *err);

// One character of a string from low to high, as it stands in JSON: escaped where it must be.
void nib_json_characters(struct nib_rules *rules, int32_t from, uint32_t low, uint32_t high, int32_t to);

struct nib_number_range {
    bool integer;
    bool has_low, has_high, above_low, below_high; // above_low: low itself is excluded
    double low, high;
};

// A rule for the numbers of the range, without exponents; -1 when there is none.
int32_t nib_json_number_range(struct nib_rules *rules, const struct nib_number_range *range);

#endif
