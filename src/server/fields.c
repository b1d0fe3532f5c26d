#include "server/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array",  "a string",  "an integer",
                                        "a number",  "a boolean", "a boolean", "null"};
    return names[json_typeof(value)];
}

bool nib_fields_open(struct nib_fields *fields, const json_t *value, struct nib_api_error *error, const char *path,
                     ...)
{
    fields->object = value;
    fields->error = error;
    va_list args;
    va_start(args, path);
    int length = vsnprintf(fields->path, sizeof fields->path - 1, path, args);
    va_end(args);
    if (!json_is_object(value))
        return nib_api_fail(error, 400, "invalid_type", fields->path, "'%s' must be an object, not %s.",
                            length ? fields->path : "request body", value ? type_name(value) : "missing");
    if (length)
        snprintf(fields->path + strlen(fields->path), 2, ".");
    return true;
}

static bool listed(const char *name, const char *const *list)
{
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

bool nib_fields_only(const struct nib_fields *fields, const char *const *known, const char *const *ignored)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields->object, key,
                        value) if (!json_is_null(value) && !listed(key, known) &&
                                   !listed(key, ignored)) return nib_field_fail(fields, key, "unknown_parameter",
                                                                                "Unknown parameter: '%s%s'.",
                                                                                fields->path, key);
    return true;
}

bool nib_field_fail(const struct nib_fields *fields, const char *name, const char *code, const char *format, ...)
{
    char param[160], message[400];
    snprintf(param, sizeof param, "%s%s", fields->path, name);
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return nib_api_fail(fields->error, 400, code, param, "%s", message);
}

static bool wrong_type(const struct nib_fields *fields, const char *name, const char *wanted)
{
    return nib_field_fail(fields, name, "invalid_type", "'%s%s' must be %s, not %s.", fields->path, name, wanted,
                          type_name(nib_field(fields, name)));
}

const json_t *nib_field(const struct nib_fields *fields, const char *name)
{
    const json_t *value = json_object_get(fields->object, name);
    return json_is_null(value) ? NULL : value;
}

bool nib_field_require(const struct nib_fields *fields, const char *name)
{
    if (nib_field(fields, name))
        return true;
    return nib_field_fail(fields, name, "missing_required_parameter", "Missing required parameter: '%s%s'.",
                          fields->path, name);
}

bool nib_field_bool(const struct nib_fields *fields, const char *name, bool *value)
{
    const json_t *given = nib_field(fields, name);
    if (!given)
        return true;
    if (!json_is_boolean(given))
        return wrong_type(fields, name, "a boolean");
    *value = json_is_true(given);
    return true;
}

bool nib_field_int(const struct nib_fields *fields, const char *name, int64_t low, int64_t high, int64_t *value)
{
    const json_t *given = nib_field(fields, name);
    if (!given)
        return true;
    double real = json_number_value(given);
    bool whole = json_is_integer(given) || (json_is_real(given) && real == floor(real) && fabs(real) < 0x1p53);
    if (!whole)
        return wrong_type(fields, name, "an integer");
    int64_t number = json_is_integer(given) ? json_integer_value(given) : (int64_t)real;
    if (number < low || number > high)
        return nib_field_fail(fields, name, "invalid_value", "'%s%s' is %lld; it must be from %lld to %lld.",
                              fields->path, name, (long long)number, (long long)low, (long long)high);
    *value = number;
    return true;
}

bool nib_field_real(const struct nib_fields *fields, const char *name, double low, double high, double *value)
{
    const json_t *given = nib_field(fields, name);
    if (!given)
        return true;
    if (!json_is_number(given))
        return wrong_type(fields, name, "a number");
    double number = json_number_value(given);
    if (!(number >= low && number <= high))
        return nib_field_fail(fields, name, "invalid_value", "'%s%s' is %g; it must be from %g to %g.",
                              fields->path, name, number, low, high);
    *value = number;
    return true;
}

bool nib_field_text(const struct nib_fields *fields, const char *name, struct nib_text *value)
{
    const json_t *given = nib_field(fields, name);
    if (!given)
        return true;
    if (!json_is_string(given))
        return wrong_type(fields, name, "a string");
    *value = (struct nib_text){json_string_value(given), json_string_length(given)};
    return true;
}

bool nib_field_choice(const struct nib_fields *fields, const char *name, const char *const *words, int *value)
{
    struct nib_text given = {0};
    if (!nib_field(fields, name))
        return true;
    if (!nib_field_text(fields, name, &given))
        return false;
    char list[200] = "";
    for (int i = 0; words[i]; i++) {
        if (nib_text_equal(given, nib_text_of(words[i]))) {
            *value = i;
            return true;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s'%s'", i ? ", " : "", words[i]);
    }
    return nib_field_fail(fields, name, "invalid_value", "'%s%s' is '%.60s'; it must be one of %s.", fields->path,
                          name, given.bytes, list);
}

bool nib_field_array(const struct nib_fields *fields, const char *name, size_t most, const json_t **value)
{
    const json_t *given = nib_field(fields, name);
    if (!given)
        return true;
    if (!json_is_array(given))
        return wrong_type(fields, name, "an array");
    if (json_array_size(given) > most)
        return nib_field_fail(fields, name, "array_above_max_length", "'%s%s' has %zu items; %zu are allowed.",
                              fields->path, name, json_array_size(given), most);
    *value = given;
    return true;
}
