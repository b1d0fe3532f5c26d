#include "text/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/json_rules.h"
#include "text/writer.h"

#define MAX_ITEMS 4096 // of minItems, maxItems, minLength, maxLength
#define MAX_BOUND 1e15 // of a number
#define MAX_SCHEMA_DEPTH 100

struct compiled {
    const json_t *schema;
    int32_t rule;
};

struct compiler {
    struct nib_json_rules json;
    const json_t *root;
    struct compiled *known; /* [n_known] schemas that have a rule, so that recursion ends */
    size_t n_known, capacity;
    int depth;
    nib_status status;
    struct nib_error *err;
};

struct place {
    char text[200]; // "#/properties/age"
};

static struct place below(const struct place *place, const char *part)
{
    struct place inner;
    snprintf(inner.text, sizeof inner.text, "%.120s/%.60s", place->text, part);
    return inner;
}

static int32_t fail(struct compiler *c, nib_status status, const struct place *place, const char *what,
                    const char *why)
{
    if (!c->status)
        c->status = nib_fail(c->err, status, "schema keyword '%s' at %s %s", what, place->text, why);
    return 0;
}

static int32_t compile(struct compiler *c, const json_t *schema, const struct place *place);

static int32_t final_state(struct compiler *c)
{
    int32_t state = nib_rules_state(c->json.rules);
    if (!c->json.rules->failed)
        c->json.rules->states[state].final = true;
    return state;
}

// ---- which keywords belong where ----

static const char *const annotations[] = {"title", "description", "default",    "examples", "$schema",
                                          "$id",   "$comment",    "deprecated", "readOnly", "writeOnly",
                                          "$defs", "definitions", "format",     "$anchor",  NULL};

static bool listed(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

// Every keyword must be in one of the lists.
static bool only(struct compiler *c, const json_t *schema, const struct place *place, const char *const *allowed)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) if (!listed(key, annotations) && !listed(key, allowed))
    {
        fail(c, NIB_ERR_UNSUPPORTED, place, key, "is not supported here");
        return false;
    }
    return true;
}

// A count from 0 to MAX_ITEMS; absent: `value` stays.
static bool read_count(struct compiler *c, const json_t *schema, const struct place *place, const char *name,
                       int32_t *value)
{
    const json_t *given = json_object_get(schema, name);
    if (!given)
        return true;
    double number = json_is_number(given) ? json_number_value(given) : -1;
    if (!(number >= 0) || number != (double)(int64_t)number) {
        fail(c, NIB_ERR_ARGUMENT, place, name, "must be a whole number from 0 on");
        return false;
    }
    if (number > MAX_ITEMS) {
        fail(c, NIB_ERR_UNSUPPORTED, place, name, "is more than 4096");
        return false;
    }
    *value = (int32_t)number;
    return true;
}

// ---- types ----

static int32_t compile_string(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const char *const allowed[] = {"type", "minLength", "maxLength", "pattern", NULL};
    const json_t *pattern = json_object_get(schema, "pattern");
    struct nib_rules *rules = c->json.rules;
    int32_t least = 0, most = -1;
    if (!only(c, schema, place, allowed) || !read_count(c, schema, place, "minLength", &least) ||
        !read_count(c, schema, place, "maxLength", &most))
        return 0;
    if (most >= 0 && least > most)
        return fail(c, NIB_ERR_ARGUMENT, place, "minLength", "is more than maxLength");
    if (!pattern)
        return least == 0 && most < 0 ? nib_json_builtin(&c->json, NIB_JSON_STRING)
                                      : nib_json_string(rules, least, most);
    if (!json_is_string(pattern))
        return fail(c, NIB_ERR_ARGUMENT, place, "pattern", "must be a string");
    if (least > 0 || most >= 0)
        return fail(c, NIB_ERR_UNSUPPORTED, place, "pattern",
                    "is not supported together with minLength or maxLength");
    int32_t start = nib_rules_state(rules), last = 0;
    nib_status status =
        nib_json_pattern(rules, json_string_value(pattern), json_string_length(pattern),
                         nib_rules_literal(rules, start, "\"", 1), &last, place->text, c->status ? NULL : c->err);
    if (status && !c->status)
        c->status = status;
    nib_rules_bytes(rules, last, '"', '"', final_state(c));
    return start;
}

static bool read_bound(struct compiler *c, const json_t *schema, const struct place *place, const char *name,
                       bool *has, double *value)
{
    const json_t *given = json_object_get(schema, name);
    if (!given)
        return true;
    if (!json_is_number(given)) {
        fail(c, NIB_ERR_ARGUMENT, place, name, "must be a number");
        return false;
    }
    *value = json_number_value(given);
    if (!(*value >= -MAX_BOUND && *value <= MAX_BOUND)) {
        fail(c, NIB_ERR_UNSUPPORTED, place, name, "is beyond 10^15");
        return false;
    }
    *has = true;
    return true;
}

static int32_t compile_number(struct compiler *c, const json_t *schema, const struct place *place, bool integer)
{
    static const char *const allowed[] = {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                          NULL};
    struct nib_number_range range = {.integer = integer};
    bool has_above = false, has_below = false;
    double above = 0, below = 0;
    if (!only(c, schema, place, allowed) || !read_bound(c, schema, place, "minimum", &range.has_low, &range.low) ||
        !read_bound(c, schema, place, "maximum", &range.has_high, &range.high) ||
        !read_bound(c, schema, place, "exclusiveMinimum", &has_above, &above) ||
        !read_bound(c, schema, place, "exclusiveMaximum", &has_below, &below))
        return 0;
    if (has_above && (!range.has_low || above >= range.low)) {
        range.has_low = range.above_low = true;
        range.low = above;
    }
    if (has_below && (!range.has_high || below <= range.high)) {
        range.has_high = range.below_high = true;
        range.high = below;
    }
    if (!range.has_low && !range.has_high)
        return nib_json_builtin(&c->json, integer ? NIB_JSON_INTEGER : NIB_JSON_NUMBER);
    int32_t rule = nib_json_number_range(c->json.rules, &range);
    return rule >= 0 ? rule
                     : fail(c, NIB_ERR_ARGUMENT, place, range.has_low ? "minimum" : "maximum", "leaves no number");
}

static int32_t compile_array(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const char *const allowed[] = {"type", "items", "minItems", "maxItems", "uniqueItems", NULL};
    int32_t least = 0, most = -1;
    if (!only(c, schema, place, allowed) || !read_count(c, schema, place, "minItems", &least) ||
        !read_count(c, schema, place, "maxItems", &most))
        return 0;
    if (json_is_true(json_object_get(schema, "uniqueItems")))
        return fail(c, NIB_ERR_UNSUPPORTED, place, "uniqueItems", "is not supported");
    if (most >= 0 && least > most)
        return fail(c, NIB_ERR_ARGUMENT, place, "minItems", "is more than maxItems");
    const json_t *items = json_object_get(schema, "items");
    struct place inner = below(place, "items");
    int32_t item = items ? compile(c, items, &inner) : nib_json_builtin(&c->json, NIB_JSON_ANY);
    return c->status ? 0 : nib_json_array(&c->json, item, least, most);
}

// ---- objects ----

static bool is_required(const json_t *required, const char *name)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)required, i,
                       item) if (json_is_string(item) && strcmp(json_string_value(item), name) == 0) return true;
    return false;
}

static bool add_property(struct compiler *c, struct nib_json_object *object, const char *name, int32_t rule,
                         bool required)
{
    json_t *key = json_string(name);
    char *quoted = json_dumps(key, JSON_ENCODE_ANY);
    json_decref(key);
    if (!quoted) {
        c->json.rules->failed = true;
        return false;
    }
    object->properties[object->count++] = (struct nib_json_property){quoted, rule, required};
    object->required += required;
    return true;
}

static void add_properties(struct compiler *c, const json_t *schema, const struct place *place,
                           struct nib_json_object *object)
{
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    const json_t *item;
    const char *name;
    json_t *value;
    size_t i;
    struct place inner = below(place, "properties");
    json_object_foreach((json_t *)properties, name, value)
    {
        struct place at = below(&inner, name);
        int32_t rule = compile(c, value, &at);
        if (c->status || !add_property(c, object, name, rule, is_required(required, name)))
            return;
    }
    json_array_foreach((json_t *)required, i, item)
    {
        name = json_string_value(item);
        if (!name) {
            fail(c, NIB_ERR_ARGUMENT, place, "required", "must be an array of strings");
            return;
        }
        if (json_object_get(properties, name))
            continue;
        if (object->others < 0) {
            fail(c, NIB_ERR_ARGUMENT, place, "required", "names a property that is not there");
            return;
        }
        if (!add_property(c, object, name, object->others, true))
            return;
    }
}

static int32_t others_of(struct compiler *c, const json_t *schema, const struct place *place)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    bool any = !others && json_object_size(json_object_get(schema, "properties")) == 0;
    struct place inner = below(place, "additionalProperties");
    if (any || json_is_true(others))
        return nib_json_builtin(&c->json, NIB_JSON_ANY);
    return json_is_object(others) ? compile(c, others, &inner) : -1;
}

static int32_t compile_object(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const char *const allowed[] = {"type", "properties", "required", "additionalProperties", NULL};
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    if (!only(c, schema, place, allowed))
        return 0;
    if (properties && !json_is_object(properties))
        return fail(c, NIB_ERR_ARGUMENT, place, "properties", "must be an object");
    if (required && !json_is_array(required))
        return fail(c, NIB_ERR_ARGUMENT, place, "required", "must be an array of strings");
    size_t most = json_object_size(properties) + json_array_size(required);
    struct nib_json_object object = {.properties = calloc(most + 1, sizeof *object.properties),
                                     .others = others_of(c, schema, place)};
    const char **names = calloc(most + 1, sizeof *names);
    int32_t rule = 0;
    c->json.rules->failed |= !object.properties || !names;
    if (object.properties && names)
        add_properties(c, schema, place, &object);
    for (size_t i = 0; names && i < object.count; i++) {
        char *key = object.properties[i].key;
        size_t size = strlen(key);
        if (object.others >= 0 && memchr(key, '\\', size))
            fail(c, NIB_ERR_UNSUPPORTED, place, "additionalProperties",
                 "is not supported beside a property that JSON escapes");
        char *name = strndup(key + 1, size - 2);
        names[i] = name;
        c->json.rules->failed |= !name;
    }
    if (!c->status && !c->json.rules->failed)
        rule = nib_json_object(&c->json, &object, names);
    for (size_t i = 0; i < object.count; i++) {
        free(object.properties[i].key);
        if (names)
            free((char *)names[i]);
    }
    free(object.properties);
    free(names);
    return rule;
}

// ---- values, references, alternatives ----

static bool has_type(const json_t *value, const char *type)
{
    if (strcmp(type, "integer") == 0)
        return json_is_integer(value);
    return (json_is_string(value) && strcmp(type, "string") == 0) ||
           (json_is_number(value) && strcmp(type, "number") == 0) ||
           (json_is_boolean(value) && strcmp(type, "boolean") == 0) ||
           (json_is_null(value) && strcmp(type, "null") == 0) ||
           (json_is_object(value) && strcmp(type, "object") == 0) ||
           (json_is_array(value) && strcmp(type, "array") == 0);
}

static bool type_allows(const json_t *type, const json_t *value)
{
    const json_t *item;
    size_t i;
    if (json_is_string(type))
        return has_type(value, json_string_value(type));
    if (!json_is_array(type))
        return true;
    json_array_foreach((json_t *)type, i,
                       item) if (json_is_string(item) && has_type(value, json_string_value(item))) return true;
    return false;
}

// The values that "const" and "enum" leave, as JSON without white space.
static int32_t compile_values(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const char *const allowed[] = {"type", "enum", "const", NULL};
    const json_t *constant = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    if (!only(c, schema, place, allowed))
        return 0;
    if (list && !json_is_array(list))
        return fail(c, NIB_ERR_ARGUMENT, place, "enum", "must be an array");
    struct nib_rules *rules = c->json.rules;
    int32_t start = nib_rules_state(rules), end = final_state(c);
    size_t count = list ? json_array_size(list) : 1, kept = 0;
    for (size_t i = 0; i < count && !rules->failed; i++) {
        const json_t *value = list ? json_array_get(list, i) : constant;
        if (!type_allows(json_object_get(schema, "type"), value) ||
            (list && constant && !json_equal(value, constant)))
            continue;
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        rules->failed |= !text;
        if (text)
            nib_rules_skip(rules, nib_rules_literal(rules, start, text, strlen(text)), end);
        free(text);
        kept++;
    }
    return kept || rules->failed ? start
                                 : fail(c, NIB_ERR_ARGUMENT, place, list ? "enum" : "const", "leaves no value");
}

// "#", "#/$defs/NAME" and other pointers into the same document.
static const json_t *resolve(const struct compiler *c, const char *reference)
{
    const json_t *at = c->root;
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

static int32_t compile_reference(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const char *const allowed[] = {"$ref", NULL};
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = reference ? resolve(c, reference) : NULL;
    if (!only(c, schema, place, allowed))
        return 0;
    if (!target)
        return fail(c, NIB_ERR_ARGUMENT, place, "$ref", "points to nothing in this schema");
    struct place at;
    snprintf(at.text, sizeof at.text, "%.180s", reference);
    return compile(c, target, &at);
}

static int32_t compile_alternatives(struct compiler *c, const json_t *schema, const struct place *place,
                                    const char *keyword)
{
    const char *const allowed[] = {keyword, NULL};
    const json_t *list = json_object_get(schema, keyword), *item;
    size_t i;
    if (!only(c, schema, place, allowed))
        return 0;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return fail(c, NIB_ERR_ARGUMENT, place, keyword, "must be an array of schemas");
    if (strcmp(keyword, "allOf") == 0 && json_array_size(list) > 1)
        return fail(c, NIB_ERR_UNSUPPORTED, place, keyword, "is not supported with more than one schema");
    int32_t start = nib_rules_state(c->json.rules), end = final_state(c);
    struct place inner = below(place, keyword);
    json_array_foreach((json_t *)list, i, item)
        nib_rules_call(c->json.rules, start, compile(c, item, &inner), end);
    return start;
}

static int32_t compile_type(struct compiler *c, const json_t *schema, const struct place *place, const char *type)
{
    static const char *const allowed[] = {"type", NULL};
    if (strcmp(type, "object") == 0)
        return compile_object(c, schema, place);
    if (strcmp(type, "array") == 0)
        return compile_array(c, schema, place);
    if (strcmp(type, "string") == 0)
        return compile_string(c, schema, place);
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0)
        return compile_number(c, schema, place, type[0] == 'i');
    bool null = strcmp(type, "null") == 0;
    if (!null && strcmp(type, "boolean") != 0)
        return fail(c, NIB_ERR_ARGUMENT, place, "type", "names no type");
    if (!only(c, schema, place, allowed))
        return 0;
    struct nib_rules *rules = c->json.rules;
    int32_t start = nib_rules_state(rules), end = final_state(c);
    static const char *const words[] = {"null", "true", "false"};
    for (int i = null ? 0 : 1; i < (null ? 1 : 3); i++)
        nib_rules_skip(rules, nib_rules_literal(rules, start, words[i], strlen(words[i])), end);
    return start;
}

// Several types: each with the keywords that are its own.
static int32_t compile_types(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const struct {
        const char *type, *keywords[6];
    } own[] = {{"object", {"properties", "required", "additionalProperties"}},
               {"array", {"items", "minItems", "maxItems", "uniqueItems"}},
               {"string", {"minLength", "maxLength", "pattern"}},
               {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
               {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}}};
    const json_t *types = json_object_get(schema, "type"), *item;
    int32_t start = nib_rules_state(c->json.rules), end = final_state(c);
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
                                            : fail(c, NIB_ERR_ARGUMENT, place, "type", "names no type");
        nib_rules_call(c->json.rules, start, rule, end);
        json_decref(narrowed);
    }
    return json_array_size(types) ? start : fail(c, NIB_ERR_ARGUMENT, place, "type", "is empty");
}

// Without "type" a schema is of the type that its keywords are about.
static const char *implied_type(const json_t *schema)
{
    static const struct {
        const char *keyword, *type;
    } hints[] = {{"properties", "object"},
                 {"required", "object"},
                 {"additionalProperties", "object"},
                 {"items", "array"},
                 {"minItems", "array"},
                 {"maxItems", "array"},
                 {"pattern", "string"},
                 {"minLength", "string"},
                 {"maxLength", "string"},
                 {"minimum", "number"},
                 {"maximum", "number"},
                 {"exclusiveMinimum", "number"},
                 {"exclusiveMaximum", "number"}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (json_object_get(schema, hints[i].keyword))
            return hints[i].type;
    return NULL;
}

static int32_t compile_new(struct compiler *c, const json_t *schema, const struct place *place)
{
    static const char *const nothing[] = {NULL};
    const json_t *type = json_object_get(schema, "type");
    if (json_object_get(schema, "$ref"))
        return compile_reference(c, schema, place);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return compile_values(c, schema, place);
    if (json_object_get(schema, "anyOf"))
        return compile_alternatives(c, schema, place, "anyOf");
    if (json_object_get(schema, "allOf"))
        return compile_alternatives(c, schema, place, "allOf");
    if (json_is_array(type))
        return compile_types(c, schema, place);
    const char *name = type ? json_string_value(type) : implied_type(schema);
    if (type && !name)
        return fail(c, NIB_ERR_ARGUMENT, place, "type", "must be a string or an array of strings");
    if (name)
        return compile_type(c, schema, place, name);
    return only(c, schema, place, nothing) ? nib_json_builtin(&c->json, NIB_JSON_ANY) : 0;
}

static bool remember(struct compiler *c, const json_t *schema, int32_t rule)
{
    void *items = c->known;
    bool grown = nib_grow(&items, &c->capacity, c->n_known, sizeof *c->known);
    c->known = items;
    c->json.rules->failed |= !grown;
    if (grown)
        c->known[c->n_known++] = (struct compiled){schema, rule};
    return grown;
}

// The rule of a schema: a state that goes on to what the schema says, so that schemas may contain themselves.
static int32_t compile(struct compiler *c, const json_t *schema, const struct place *place)
{
    struct nib_rules *rules = c->json.rules;
    if (c->status || rules->failed)
        return 0;
    if (json_is_true(schema))
        return nib_json_builtin(&c->json, NIB_JSON_ANY);
    if (!json_is_object(schema))
        return fail(c, NIB_ERR_ARGUMENT, place, "schema", "must be an object");
    for (size_t i = 0; i < c->n_known; i++)
        if (c->known[i].schema == schema)
            return c->known[i].rule;
    if (c->depth >= MAX_SCHEMA_DEPTH)
        return fail(c, NIB_ERR_UNSUPPORTED, place, "schema", "is nested too deep");
    int32_t rule = nib_rules_state(rules), end = final_state(c);
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
    struct compiler c = {.json = {.rules = rules}, .root = schema, .err = err};
    struct place root = {"#"};
    for (int i = 0; i < NIB_JSON_KINDS; i++)
        c.json.builtins[i] = -1;
    *rule = compile(&c, schema, &root);
    free(c.known);
    if (!c.status && rules->failed)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "the schema is too large");
    return c.status;
}
