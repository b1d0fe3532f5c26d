#include "text/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/schema_compiler.h"
#include "text/writer.h"

#define MAX_SCHEMA_DEPTH 100

struct nib_schema_place nib_schema_below(const struct nib_schema_place *place, const char *part)
{
    struct nib_schema_place inner;
    snprintf(inner.text, sizeof inner.text, "%.120s/%.60s", place->text, part);
    return inner;
}

int32_t nib_schema_fail(struct nib_schema_compiler *c, nib_status status, const struct nib_schema_place *place,
                        const char *what, const char *why)
{
    if (!c->status)
        c->status = nib_fail(c->err, status, "schema keyword '%s' at %s %s", what, place->text, why);
    return 0;
}

int32_t nib_schema_end(struct nib_schema_compiler *c)
{
    int32_t state = nib_rules_state(c->json.rules);
    if (!c->json.rules->failed)
        c->json.rules->states[state].final = true;
    return state;
}

// ---- which keywords belong where ----

// They change nothing about what is accepted; "discriminator" is OpenAPI's.
static const char *const annotations[] = {
    "title",         "description",     "default",          "examples",      "$schema",     "$id",    "$comment",
    "deprecated",    "readOnly",        "writeOnly",        "$defs",         "definitions", "format", "$anchor",
    "discriminator", "contentEncoding", "contentMediaType", "contentSchema", "$vocabulary", NULL};

static bool listed(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

bool nib_schema_only(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place,
                     const char *const *allowed)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) if (!listed(key, annotations) && !listed(key, allowed))
    {
        nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, key, "is not supported here");
        return false;
    }
    return true;
}

const json_t *nib_schema_resolve(const json_t *root, const char *reference)
{
    const json_t *at = root;
    if (*reference++ != '#')
        return NULL;
    while (at && *reference == '/') {
        char name[256];
        size_t size = strcspn(++reference, "/"), out = 0;
        if (size >= sizeof name)
            return NULL;
        for (size_t i = 0; i < size; i++) {
            bool escaped = reference[i] == '~' && i + 1 < size;
            name[out++] = escaped ? (reference[++i] == '1' ? '/' : '~') : reference[i];
        }
        name[out] = 0;
        reference += size;
        at = json_is_array(at) ? json_array_get(at, strtoul(name, NULL, 10)) : json_object_get(at, name);
    }
    return *reference ? NULL : at;
}

static int32_t compile_reference(struct nib_schema_compiler *c, const json_t *schema,
                                 const struct nib_schema_place *place)
{
    static const char *const allowed[] = {"$ref", NULL};
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = reference ? nib_schema_resolve(c->root, reference) : NULL;
    if (!nib_schema_only(c, schema, place, allowed))
        return 0;
    if (!target)
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "$ref", "points to nothing in this schema");
    struct nib_schema_place at;
    snprintf(at.text, sizeof at.text, "%.180s", reference);
    return nib_schema_rule(c, target, &at);
}

static int32_t compile_alternatives(struct nib_schema_compiler *c, const json_t *schema,
                                    const struct nib_schema_place *place, const char *keyword)
{
    const char *const allowed[] = {keyword, NULL};
    const json_t *list = json_object_get(schema, keyword), *item;
    size_t i;
    if (!nib_schema_only(c, schema, place, allowed))
        return 0;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, keyword, "must be an array of schemas");
    if (strcmp(keyword, "allOf") == 0 && json_array_size(list) > 1)
        return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, keyword,
                               "is not supported with more than one schema");
    if (strcmp(keyword, "oneOf") == 0 && !nib_schemas_exclude_each_other(c->root, list))
        return nib_schema_fail(
            c, NIB_ERR_UNSUPPORTED, place, keyword,
            "is only supported for schemas that exclude each other by type, by const or enum, or by a "
            "required property");
    int32_t start = nib_rules_state(c->json.rules), end = nib_schema_end(c);
    struct nib_schema_place inner = nib_schema_below(place, keyword);
    json_array_foreach((json_t *)list, i, item)
        nib_rules_call(c->json.rules, start, nib_schema_rule(c, item, &inner), end);
    return start;
}

static int32_t compile_type(struct nib_schema_compiler *c, const json_t *schema,
                            const struct nib_schema_place *place, const char *type)
{
    static const char *const allowed[] = {"type", NULL};
    if (strcmp(type, "object") == 0)
        return nib_schema_object(c, schema, place);
    if (strcmp(type, "array") == 0)
        return nib_schema_array(c, schema, place);
    if (strcmp(type, "string") == 0)
        return nib_schema_string(c, schema, place);
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0)
        return nib_schema_number(c, schema, place, type[0] == 'i');
    bool null = strcmp(type, "null") == 0;
    if (!null && strcmp(type, "boolean") != 0)
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "type", "names no type");
    if (!nib_schema_only(c, schema, place, allowed))
        return 0;
    struct nib_rules *rules = c->json.rules;
    int32_t start = nib_rules_state(rules), end = nib_schema_end(c);
    static const char *const words[] = {"null", "true", "false"};
    for (int i = null ? 0 : 1; i < (null ? 1 : 3); i++)
        nib_rules_skip(rules, nib_rules_literal(rules, start, words[i], strlen(words[i])), end);
    return start;
}

// Several types: each with the keywords that are its own.
static int32_t compile_types(struct nib_schema_compiler *c, const json_t *schema,
                             const struct nib_schema_place *place)
{
    static const struct {
        const char *type, *keywords[6];
    } own[] = {{"object", {"properties", "required", "additionalProperties", "patternProperties"}},
               {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
               {"string", {"minLength", "maxLength", "pattern"}},
               {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
               {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
    const json_t *types = json_object_get(schema, "type"), *item;
    int32_t start = nib_rules_state(c->json.rules), end = nib_schema_end(c);
    size_t i;
    json_array_foreach((json_t *)types, i, item)
    {
        json_t *narrowed = json_copy((json_t *)schema);
        for (size_t t = 0; t < sizeof own / sizeof *own && json_is_string(item); t++) {
            bool numeric = t >= 3 && (strcmp(json_string_value(item), "number") == 0 ||
                                      strcmp(json_string_value(item), "integer") == 0);
            for (size_t k = 0; own[t].keywords[k] && !numeric && strcmp(json_string_value(item), own[t].type) != 0;
                 k++)
                json_object_del(narrowed, own[t].keywords[k]);
        }
        int32_t rule = json_is_string(item) ? compile_type(c, narrowed, place, json_string_value(item))
                                            : nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "type", "names no type");
        nib_rules_call(c->json.rules, start, rule, end);
        json_decref(narrowed);
    }
    return json_array_size(types) ? start : nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "type", "is empty");
}

// Without "type" a schema is of the type that its keywords are about.
static const char *implied_type(const json_t *schema)
{
    static const struct {
        const char *keyword, *type;
    } hints[] = {{"properties", "object"},        {"required", "object"},  {"additionalProperties", "object"},
                 {"patternProperties", "object"}, {"items", "array"},      {"prefixItems", "array"},
                 {"uniqueItems", "array"},        {"minItems", "array"},   {"maxItems", "array"},
                 {"pattern", "string"},           {"minLength", "string"}, {"maxLength", "string"},
                 {"minimum", "number"},           {"maximum", "number"},   {"exclusiveMinimum", "number"},
                 {"exclusiveMaximum", "number"},  {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (json_object_get(schema, hints[i].keyword))
            return hints[i].type;
    return NULL;
}

static int32_t compile_new(struct nib_schema_compiler *c, const json_t *schema,
                           const struct nib_schema_place *place)
{
    static const char *const nothing[] = {NULL};
    const json_t *type = json_object_get(schema, "type");
    if (json_object_get(schema, "$ref"))
        return compile_reference(c, schema, place);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return nib_schema_values(c, schema, place);
    if (json_object_get(schema, "anyOf"))
        return compile_alternatives(c, schema, place, "anyOf");
    if (json_object_get(schema, "oneOf"))
        return compile_alternatives(c, schema, place, "oneOf");
    if (json_object_get(schema, "allOf"))
        return compile_alternatives(c, schema, place, "allOf");
    if (json_is_array(type))
        return compile_types(c, schema, place);
    const char *name = type ? json_string_value(type) : implied_type(schema);
    if (type && !name)
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "type", "must be a string or an array of strings");
    if (name)
        return compile_type(c, schema, place, name);
    return nib_schema_only(c, schema, place, nothing) ? nib_json_builtin(&c->json, NIB_JSON_ANY) : 0;
}

static bool remember(struct nib_schema_compiler *c, const json_t *schema, int32_t rule)
{
    void *items = c->known;
    bool grown = nib_grow(&items, &c->capacity, c->n_known, sizeof *c->known);
    c->known = items;
    c->json.rules->failed |= !grown;
    if (grown)
        c->known[c->n_known++] = (struct nib_schema_known){schema, rule};
    return grown;
}

// A state that goes on to what the schema says, so that schemas may contain themselves.
int32_t nib_schema_rule(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    struct nib_rules *rules = c->json.rules;
    if (c->status || rules->failed)
        return 0;
    if (json_is_true(schema))
        return nib_json_builtin(&c->json, NIB_JSON_ANY);
    if (!json_is_object(schema))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "schema", "must be an object");
    for (size_t i = 0; i < c->n_known; i++)
        if (c->known[i].schema == schema)
            return c->known[i].rule;
    if (c->depth >= MAX_SCHEMA_DEPTH)
        return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "schema", "is nested too deep");
    int32_t rule = nib_rules_state(rules), end = nib_schema_end(c);
    if (!remember(c, schema, rule))
        return 0;
    c->depth++;
    int32_t inner = compile_new(c, schema, place);
    c->depth--;
    nib_rules_call(rules, rule, inner, end);
    return rule;
}

nib_status nib_json_schema_compile(const json_t *schema, struct nib_rules *rules, int32_t *rule,
                                   struct nib_error *err)
{
    struct nib_schema_compiler c = {.json = {.rules = rules}, .root = schema, .err = err};
    struct nib_schema_place root = {"#"};
    for (int i = 0; i < NIB_JSON_KINDS; i++)
        c.json.builtins[i] = -1;
    *rule = nib_schema_rule(&c, schema, &root);
    free(c.known);
    if (!c.status && rules->failed)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "the schema is too large");
    return c.status;
}
