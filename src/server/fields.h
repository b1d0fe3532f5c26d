// Reading a request's JSON: every field has a type and a range, and a mistake is reported with the field's path.
// Absent and null fields leave the target as it is. All functions return false after having filled the error.
#ifndef NIB_SERVER_FIELDS_H
#define NIB_SERVER_FIELDS_H

#include <stdint.h>

#include "nibble/chat.h"
#include "server/api_error.h"

struct nib_fields {
    const json_t *object;
    char path[96]; // in front of a name: "" or "messages[2]."
    struct nib_api_error *error;
};

// The JSON value must be an object; `path` without the last dot names it.
bool nib_fields_open(struct nib_fields *fields, const json_t *value, struct nib_api_error *error, const char *path,
                     ...) __attribute__((format(printf, 4, 5)));

// Refuses a key, unless its value is null, that is in none of the NULL-terminated lists.
bool nib_fields_only(const struct nib_fields *fields, const char *const *known, const char *const *ignored);

// Reports a mistake in the field `name`.
bool nib_field_fail(const struct nib_fields *fields, const char *name, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

const json_t *nib_field(const struct nib_fields *fields, const char *name); // NULL when absent or null
bool nib_field_bool(const struct nib_fields *fields, const char *name, bool *value);
bool nib_field_int(const struct nib_fields *fields, const char *name, int64_t low, int64_t high, int64_t *value);
bool nib_field_real(const struct nib_fields *fields, const char *name, double low, double high, double *value);
// Borrowed from the object.
bool nib_field_text(const struct nib_fields *fields, const char *name, struct nib_text *value);
// One of the NULL-terminated words; its index.
bool nib_field_choice(const struct nib_fields *fields, const char *name, const char *const *words, int *value);
bool nib_field_array(const struct nib_fields *fields, const char *name, size_t most, const json_t **value);
// Fails when the field is not there.
bool nib_field_require(const struct nib_fields *fields, const char *name);

#endif
