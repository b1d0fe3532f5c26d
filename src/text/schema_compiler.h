// What the files that compile JSON schemas share: the compiler's state, and a function for each type.
#ifndef NIB_TEXT_SCHEMA_COMPILER_H
#define NIB_TEXT_SCHEMA_COMPILER_H

#include <jansson.h>

#include "text/json_rules.h"

struct nib_schema_compiler {
    struct nib_json_rules json;
    const json_t *root;
    struct nib_schema_known {
        const json_t *schema;
        int32_t rule;
    } * known; /* [n_known] schemas that have a rule, so that recursion ends */
    size_t n_known, capacity;
    int depth;
    nib_status status;
    struct nib_error *err;
};

struct nib_schema_place {
    char text[200]; // "#/properties/age"
};

struct nib_schema_place nib_schema_below(const struct nib_schema_place *place, const char *part);

// Notes the first failure: keyword `what` at `place` `why`. 0, in place of a rule.
int32_t nib_schema_fail(struct nib_schema_compiler *c, nib_status status, const struct nib_schema_place *place,
                        const char *what, const char *why);

// Every keyword must be an annotation or in the NULL-terminated list.
bool nib_schema_only(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place,
                     const char *const *allowed);

// A new state at which a rule may end.
int32_t nib_schema_end(struct nib_schema_compiler *c);

// The rule of a schema.
int32_t nib_schema_rule(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place);

// What "#", "#/$defs/NAME" and other pointers into the same document name; NULL: nothing.
const json_t *nib_schema_resolve(const json_t *root, const char *reference);

// Rules of schemas of one type, and of "enum" and "const".
int32_t nib_schema_string(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place);
int32_t nib_schema_number(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place, bool integer);
int32_t nib_schema_array(struct nib_schema_compiler *c, const json_t *schema,
                         const struct nib_schema_place *place);
int32_t nib_schema_object(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place);
int32_t nib_schema_values(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place);

// Whether a value is of the type, or of one of the types; NULL: any.
bool nib_schema_type_allows(const json_t *type, const json_t *value);

// The values that a schema of "enum", "const" or booleans leaves, as they are listed, a new array; NULL when there may be
// others.
json_t *nib_schema_list_values(const json_t *root, const json_t *schema);

// Whether two values are the same as JSON Schema counts: 1 and 1.0 are.
bool nib_schema_same(const json_t *a, const json_t *b);

// Whether no JSON satisfies two of the listed schemas, as far as their types, values and properties show it; false also
// when finding out would take too long.
bool nib_schemas_exclude_each_other(const json_t *root, const json_t *list);

#endif
