#include "checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "checkpoint/json.h"

enum {
    MAX_CONFIG_BYTES = 16 << 20, // Quark lists every excluded module by name
    MAX_CONFIG_DEPTH = 64,
    SHOWN_VALUE = 80, // bytes of a value that a message quotes
};

struct nib_config {
    char *name;
    json_t *root;
    const json_t *text; // root's text_config, or NULL
};

nib_status nib_config_parse(const char *text, size_t size, const char *name_for_messages,
                            struct nib_config **config, struct nib_error *err)
{
    struct nib_config *made = calloc(1, sizeof *made);
    char *name = strdup(name_for_messages);
    if (!made || !name) {
        free(made);
        free(name);
        return nib_fail_memory(err, sizeof *made, "a config");
    }
    made->name = name;
    nib_status status = nib_json_parse(text, size, name, MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, &made->root, err);
    if (status != NIB_OK) {
        nib_config_free(made);
        return status;
    }
    const json_t *nested = json_object_get(made->root, "text_config");
    made->text = json_is_object(nested) ? nested : NULL;
    *config = made;
    return NIB_OK;
}

nib_status nib_config_load(const char *path, struct nib_config **config, struct nib_error *err)
{
    struct nib_map map;
    nib_status status = nib_map_open(&map, path, err);
    if (status != NIB_OK)
        return status;
    status = nib_config_parse((const char *)map.data, (size_t)map.size, path, config, err);
    nib_map_close(&map);
    return status;
}

void nib_config_free(struct nib_config *config)
{
    if (!config)
        return;
    json_decref(config->root);
    free(config->name);
    free(config);
}

const char *nib_config_name(const struct nib_config *config)
{
    return config->name;
}

const json_t *nib_config_json(const struct nib_config *config)
{
    return config->root;
}

// The member of `object` called by the first `length` bytes of `name`; NULL for null.
static const json_t *member(const json_t *object, const char *name, size_t length)
{
    const json_t *value = json_object_getn(object, name, length);
    return json_is_null(value) ? NULL : value;
}

static const json_t *find(const struct nib_config *config, const char *key)
{
    size_t length = strcspn(key, ".");
    const json_t *value = config->text ? member(config->text, key, length) : NULL;
    if (!value)
        value = member(config->root, key, length);
    while (value && key[length] == '.') {
        key += length + 1;
        length = strcspn(key, ".");
        value = member(value, key, length);
    }
    return value;
}

bool nib_config_has(const struct nib_config *config, const char *key)
{
    return find(config, key) != NULL;
}

bool nib_config_is_object(const struct nib_config *config, const char *key)
{
    return json_is_object(find(config, key));
}

bool nib_config_has_members(const struct nib_config *config, const char *key)
{
    return json_object_size(find(config, key)) > 0; // 0 for all that is no object
}

bool nib_config_is_null(const struct nib_config *config, const char *key)
{
    const json_t *nested = config->text ? json_object_get(config->text, key) : NULL;
    return !find(config, key) && json_is_null(nested ? nested : json_object_get(config->root, key));
}

static nib_status fail_absent(const struct nib_config *config, const char *key, struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no \"%s\"", config->name, key);
}

static nib_status fail_value(const struct nib_config *config, const char *key, const json_t *value,
                             nib_status status, const char *what, struct nib_error *err)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    nib_fail(err, status, "%s: \"%s\" is %.*s%s: %s", config->name, key, SHOWN_VALUE, text ? text : "?",
             text && strlen(text) > SHOWN_VALUE ? "…" : "", what);
    free(text);
    return status;
}

nib_status nib_config_refuse(const struct nib_config *config, const char *key, const char *why,
                             struct nib_error *err)
{
    const json_t *value = find(config, key);
    if (!value)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: \"%s\" is absent: %s", config->name, key, why);
    return fail_value(config, key, value, NIB_ERR_UNSUPPORTED, why, err);
}

// ---- A value found, checked against what is wanted ----

static nib_status read_int(const struct nib_config *config, const char *key, const json_t *value, int64_t low,
                           int64_t high, int64_t *out, struct nib_error *err)
{
    int64_t number = 0;
    double real = json_number_value(value);
    if (json_is_integer(value))
        number = json_integer_value(value);
    else if (json_is_real(value) && fabs(real) <= 0x1p53 && real == floor(real))
        number = (int64_t)real;
    else
        return fail_value(config, key, value, NIB_ERR_FORMAT, "not an integer", err);
    if (number < low || number > high) {
        char text[96];
        snprintf(text, sizeof text, "outside %lld to %lld", (long long)low, (long long)high);
        return fail_value(config, key, value, NIB_ERR_FORMAT, text, err);
    }
    *out = number;
    return NIB_OK;
}

static nib_status read_real(const struct nib_config *config, const char *key, const json_t *value, double low,
                            double high, double *out, struct nib_error *err)
{
    if (!json_is_number(value))
        return fail_value(config, key, value, NIB_ERR_FORMAT, "not a number", err);
    double number = json_number_value(value);
    if (!(number >= low && number <= high)) {
        char text[96];
        snprintf(text, sizeof text, "outside %g to %g", low, high);
        return fail_value(config, key, value, NIB_ERR_FORMAT, text, err);
    }
    *out = number;
    return NIB_OK;
}

static nib_status read_bool(const struct nib_config *config, const char *key, const json_t *value, bool *out,
                            struct nib_error *err)
{
    if (!json_is_boolean(value))
        return fail_value(config, key, value, NIB_ERR_FORMAT, "not true or false", err);
    *out = json_is_true(value);
    return NIB_OK;
}

static nib_status read_string(const struct nib_config *config, const char *key, const json_t *value,
                              const char **out, struct nib_error *err)
{
    if (!json_is_string(value))
        return fail_value(config, key, value, NIB_ERR_FORMAT, "not a string", err);
    *out = json_string_value(value);
    return NIB_OK;
}

// ---- Required ----

nib_status nib_config_int(const struct nib_config *config, const char *key, int64_t low, int64_t high,
                          int64_t *value, struct nib_error *err)
{
    const json_t *found = find(config, key);
    return found ? read_int(config, key, found, low, high, value, err) : fail_absent(config, key, err);
}

nib_status nib_config_real(const struct nib_config *config, const char *key, double low, double high,
                           double *value, struct nib_error *err)
{
    const json_t *found = find(config, key);
    return found ? read_real(config, key, found, low, high, value, err) : fail_absent(config, key, err);
}

nib_status nib_config_bool(const struct nib_config *config, const char *key, bool *value, struct nib_error *err)
{
    const json_t *found = find(config, key);
    return found ? read_bool(config, key, found, value, err) : fail_absent(config, key, err);
}

nib_status nib_config_string(const struct nib_config *config, const char *key, const char **value,
                             struct nib_error *err)
{
    const json_t *found = find(config, key);
    return found ? read_string(config, key, found, value, err) : fail_absent(config, key, err);
}

// ---- With a fallback ----

nib_status nib_config_int_or(const struct nib_config *config, const char *key, int64_t fallback, int64_t low,
                             int64_t high, int64_t *value, struct nib_error *err)
{
    *value = fallback;
    return nib_config_has(config, key) ? nib_config_int(config, key, low, high, value, err) : NIB_OK;
}

nib_status nib_config_real_or(const struct nib_config *config, const char *key, double fallback, double low,
                              double high, double *value, struct nib_error *err)
{
    *value = fallback;
    return nib_config_has(config, key) ? nib_config_real(config, key, low, high, value, err) : NIB_OK;
}

nib_status nib_config_bool_or(const struct nib_config *config, const char *key, bool fallback, bool *value,
                              struct nib_error *err)
{
    *value = fallback;
    return nib_config_has(config, key) ? nib_config_bool(config, key, value, err) : NIB_OK;
}

nib_status nib_config_string_or(const struct nib_config *config, const char *key, const char *fallback,
                                const char **value, struct nib_error *err)
{
    *value = fallback;
    return nib_config_has(config, key) ? nib_config_string(config, key, value, err) : NIB_OK;
}

// ---- Arrays ----

nib_status nib_config_length(const struct nib_config *config, const char *key, size_t *length,
                             struct nib_error *err)
{
    const json_t *found = find(config, key);
    if (!found)
        return fail_absent(config, key, err);
    *length = json_is_array(found) ? json_array_size(found) : 1;
    return NIB_OK;
}

// The element, and the key with its index for messages.
static nib_status find_element(const struct nib_config *config, const char *key, size_t index, char *label,
                               size_t capacity, const json_t **element, struct nib_error *err)
{
    const json_t *found = find(config, key);
    if (!found)
        return fail_absent(config, key, err);
    size_t length = json_is_array(found) ? json_array_size(found) : 1;
    if (index >= length)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: \"%s\" has %zu entries, number %zu is wanted", config->name,
                        key, length, index);
    if (json_is_array(found))
        snprintf(label, capacity, "%s[%zu]", key, index);
    else
        snprintf(label, capacity, "%s", key);
    *element = json_is_array(found) ? json_array_get(found, index) : found;
    return NIB_OK;
}

nib_status nib_config_int_at(const struct nib_config *config, const char *key, size_t index, int64_t low,
                             int64_t high, int64_t *value, struct nib_error *err)
{
    char label[256];
    const json_t *element = NULL;
    nib_status status = find_element(config, key, index, label, sizeof label, &element, err);
    return status == NIB_OK ? read_int(config, label, element, low, high, value, err) : status;
}

nib_status nib_config_string_at(const struct nib_config *config, const char *key, size_t index, const char **value,
                                struct nib_error *err)
{
    char label[256];
    const json_t *element = NULL;
    nib_status status = find_element(config, key, index, label, sizeof label, &element, err);
    return status == NIB_OK ? read_string(config, label, element, value, err) : status;
}
