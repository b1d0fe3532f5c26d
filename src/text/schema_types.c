// Schemas of one type each, and lists of values, as rules.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/json_schema.h"
#include "text/schema_compiler.h"

#define MAX_ITEMS 4096  // of minItems, maxItems, minLength, maxLength; multiples between two bounds
#define MAX_BOUND 1e15  // of a number
#define MAX_DIVISOR 256 // of multipleOf without bounds
#define MAX_UNIQUE 8    // values of which an array has each at most once

// A count from 0 to MAX_ITEMS; absent: `value` stays.
static bool read_count(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place,
                       const char *name, int32_t *value)
{
    const json_t *given = json_object_get(schema, name);
    if (!given)
        return true;
    double number = json_is_number(given) ? json_number_value(given) : -1;
    if (!(number >= 0) || number != (double)(int64_t)number) {
        nib_schema_fail(c, NIB_ERR_ARGUMENT, place, name, "must be a whole number from 0 on");
        return false;
    }
    if (number > MAX_ITEMS) {
        nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, name, "is more than 4096");
        return false;
    }
    *value = (int32_t)number;
    return true;
}

// ---- types ----

// A string that matches a pattern, with its quotes.
static int32_t pattern_rule(struct nib_schema_compiler *c, const struct nib_schema_place *place,
                            const char *pattern, size_t size)
{
    struct nib_rules *rules = c->json.rules;
    int32_t start = nib_rules_state(rules), last = 0;
    nib_status status = nib_json_pattern(rules, pattern, size, nib_rules_literal(rules, start, "\"", 1), &last,
                                         place->text, c->status ? NULL : c->err);
    if (status && !c->status)
        c->status = status;
    nib_rules_bytes(rules, last, '"', '"', nib_schema_end(c));
    return start;
}

int32_t nib_schema_string(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place)
{
    static const char *const allowed[] = {"type", "minLength", "maxLength", "pattern", NULL};
    const json_t *pattern = json_object_get(schema, "pattern");
    struct nib_rules *rules = c->json.rules;
    int32_t least = 0, most = -1;
    if (!nib_schema_only(c, schema, place, allowed) || !read_count(c, schema, place, "minLength", &least) ||
        !read_count(c, schema, place, "maxLength", &most))
        return 0;
    if (most >= 0 && least > most)
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "minLength", "is more than maxLength");
    if (!pattern)
        return least == 0 && most < 0 ? nib_json_builtin(&c->json, NIB_JSON_STRING)
                                      : nib_json_string(rules, least, most);
    if (!json_is_string(pattern))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "pattern", "must be a string");
    if (least > 0 || most >= 0)
        return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "pattern",
                               "is not supported together with minLength or maxLength");
    return pattern_rule(c, place, json_string_value(pattern), json_string_length(pattern));
}

static bool read_bound(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place,
                       const char *name, bool *has, double *value)
{
    const json_t *given = json_object_get(schema, name);
    if (!given)
        return true;
    if (!json_is_number(given)) {
        nib_schema_fail(c, NIB_ERR_ARGUMENT, place, name, "must be a number");
        return false;
    }
    *value = json_number_value(given);
    if (!(*value >= -MAX_BOUND && *value <= MAX_BOUND)) {
        nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, name, "is beyond 10^15");
        return false;
    }
    *has = true;
    return true;
}

// Whether so many more digits can make a multiple of a number that leaves `rest`.
static bool can_become_multiple(int64_t rest, int64_t divisor, int digits)
{
    int64_t scale = 1;
    while (digits-- > 0 && scale < divisor)
        scale *= 10;
    int64_t missing = (divisor - rest * scale % divisor) % divisor;
    return missing < scale;
}

// Multiples digit by digit: a state is how many digits there are, and what they leave when divided.
static int32_t multiples_rule(struct nib_schema_compiler *c, int64_t divisor, bool negative, bool zero)
{
    enum { DIGITS = 16 };
    struct nib_rules *rules = c->json.rules;
    int32_t start = nib_rules_state(rules), first = nib_rules_state(rules), end = nib_schema_end(c);
    int32_t now[MAX_DIVISOR], later[MAX_DIVISOR];
    nib_rules_skip(rules, start, first);
    if (negative)
        nib_rules_bytes(rules, start, '-', '-', first);
    if (zero)
        nib_rules_bytes(rules, start, '0', '0', end);
    for (int length = 0; length < DIGITS && !rules->failed; length++) {
        for (int64_t r = 0; r < divisor; r++)
            later[r] = can_become_multiple(r, divisor, DIGITS - length - 1) ? nib_rules_state(rules) : -1;
        for (int64_t r = 0; r < (length ? divisor : 1); r++)
            for (int d = length ? 0 : 1; d < 10 && (length == 0 || now[r] >= 0); d++)
                if (later[(10 * r + d) % divisor] >= 0)
                    nib_rules_bytes(rules, length ? now[r] : first, '0' + d, '0' + d,
                                    later[(10 * r + d) % divisor]);
        memcpy(now, later, sizeof now);
        nib_rules_skip(rules, now[0], end);
    }
    return start;
}

// "multipleOf" a whole number: the multiples between two bounds one by one, without bounds all of them. Numbers that need
// not be integers are integers here.
static int32_t compile_multiples(struct nib_schema_compiler *c, const json_t *schema,
                                 const struct nib_schema_place *place, const struct nib_number_range *range)
{
    struct nib_rules *rules = c->json.rules;
    double divisor = json_number_value(json_object_get(schema, "multipleOf"));
    if (!(divisor > 0))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "multipleOf", "must be a number above 0");
    if (divisor != floor(divisor) || divisor > MAX_BOUND)
        return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "multipleOf", "is not supported unless it is whole");
    double low = ceil(range->low / divisor), high = floor(range->high / divisor);
    low += range->above_low && low * divisor == range->low;
    high -= range->below_high && high * divisor == range->high;
    if (range->has_low && range->has_high) {
        if (low > high)
            return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "multipleOf", "leaves no number");
        if (high - low >= MAX_ITEMS)
            return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "multipleOf", "leaves more than 4096 numbers");
        int32_t start = nib_rules_state(rules), end = nib_schema_end(c);
        for (double n = low; n <= high && !rules->failed; n++) {
            char digits[32];
            int size = snprintf(digits, sizeof digits, "%.0f", n * divisor + 0.0);
            nib_rules_skip(rules, nib_rules_literal(rules, start, digits, (size_t)size), end);
        }
        return start;
    }
    bool from_zero = range->has_low && (low == 0 || low == 1);
    if (range->has_high || (range->has_low && !from_zero) || divisor > MAX_DIVISOR)
        return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "multipleOf",
                               "is not supported with one bound other than 0, or above 256 without two");
    return multiples_rule(c, (int64_t)divisor, !range->has_low, !range->has_low || low == 0);
}

int32_t nib_schema_number(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place, bool integer)
{
    static const char *const allowed[] = {
        "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL};
    struct nib_number_range range = {.integer = integer};
    bool has_above = false, has_below = false;
    double above = 0, below = 0;
    if (!nib_schema_only(c, schema, place, allowed) ||
        !read_bound(c, schema, place, "minimum", &range.has_low, &range.low) ||
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
    if (json_object_get(schema, "multipleOf"))
        return compile_multiples(c, schema, place, &range);
    if (!range.has_low && !range.has_high)
        return nib_json_builtin(&c->json, integer ? NIB_JSON_INTEGER : NIB_JSON_NUMBER);
    int32_t rule = nib_json_number_range(c->json.rules, &range);
    return rule >= 0 ? rule
                     : nib_schema_fail(c, NIB_ERR_ARGUMENT, place, range.has_low ? "minimum" : "maximum",
                                       "leaves no number");
}

// The rules of "prefixItems", and behind them of "items".
static bool read_items(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place,
                       struct nib_json_items *items)
{
    const json_t *first = json_object_get(schema, "prefixItems"), *rest = json_object_get(schema, "items");
    struct nib_schema_place inner = nib_schema_below(place, "items");
    items->rest = json_is_false(rest) ? -1
                  : rest              ? nib_schema_rule(c, rest, &inner)
                                      : nib_json_builtin(&c->json, NIB_JSON_ANY);
    if (!first)
        return !c->status;
    if (!json_is_array(first) || json_array_size(first) == 0) {
        nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "prefixItems", "must be an array of schemas");
        return false;
    }
    if (json_array_size(first) > MAX_ITEMS) {
        nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "prefixItems", "has more than 4096 schemas");
        return false;
    }
    items->first = calloc(json_array_size(first), sizeof *items->first);
    c->json.rules->failed |= !items->first;
    inner = nib_schema_below(place, "prefixItems");
    for (; items->first && items->n_first < (int32_t)json_array_size(first) && !c->status; items->n_first++)
        items->first[items->n_first] = nib_schema_rule(c, json_array_get(first, (size_t)items->n_first), &inner);
    return !c->status && items->first;
}

// Each of the values once; as soon as there are more than MAX_UNIQUE, no more are looked at. Takes over `values`.
static json_t *distinct(json_t *values)
{
    json_t *kept = json_array(), *value, *other;
    size_t i, j;
    json_array_foreach(values, i, value)
    {
        bool new = json_array_size(kept) <= MAX_UNIQUE;
        json_array_foreach(kept, j, other) new = new && !nib_schema_same(value, other);
        if (new)
            json_array_append(kept, value);
    }
    json_decref(values);
    return kept;
}

// A value as JSON without white space, in as few digits as tell its numbers from others: 0.1, not 0.10000000000000001.
// NULL: out of memory.
static char *value_text(const json_t *value)
{
    enum { LEAST_DIGITS = 15, MOST_DIGITS = 17 };
    for (size_t digits = LEAST_DIGITS;; digits++) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(digits));
        json_t *read = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
        bool same = read && json_equal(read, value);
        json_decref(read);
        if (same || !text || digits == MOST_DIGITS)
            return text;
        free(text);
    }
}

// Arrays that have each of a few values at most once.
static int32_t compile_unique(struct nib_schema_compiler *c, const json_t *schema,
                              const struct nib_schema_place *place, int32_t least, int32_t most)
{
    const json_t *items = json_object_get(schema, "items");
    json_t *listed = items ? nib_schema_list_values(c->root, items) : NULL;
    json_t *values = listed ? distinct(listed) : NULL, *value;
    size_t count = json_array_size(values), i;
    char *texts[MAX_UNIQUE] = {0};
    int32_t rule = 0;
    struct nib_schema_place inner = nib_schema_below(place, "items");
    if (values)
        nib_schema_rule(c, items, &inner); // refuses what else the items have
    if (!values || count > MAX_UNIQUE || json_object_get(schema, "prefixItems")) {
        nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "uniqueItems",
                        "is only supported for items of at most 8 values, from enum or const");
    } else if ((size_t)least > count) {
        nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "minItems", "is more than there are different values");
    } else {
        json_array_foreach(values, i, value)
        {
            texts[i] = value_text(value);
            c->json.rules->failed |= !texts[i];
        }
        if (!c->json.rules->failed)
            rule = nib_json_unique_array(&c->json, (const char *const *)texts, (int32_t)count, least,
                                         most < 0 || (size_t)most > count ? (int32_t)count : most);
        for (i = 0; i < count; i++)
            free(texts[i]);
    }
    json_decref(values);
    return rule;
}

int32_t nib_schema_array(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    static const char *const allowed[] = {"type",     "items",       "prefixItems", "minItems",
                                          "maxItems", "uniqueItems", NULL};
    struct nib_json_items items = {.most = -1};
    int32_t rule = 0;
    if (!nib_schema_only(c, schema, place, allowed) || !read_count(c, schema, place, "minItems", &items.least) ||
        !read_count(c, schema, place, "maxItems", &items.most))
        return 0;
    if (items.most >= 0 && items.least > items.most)
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "minItems", "is more than maxItems");
    if (json_is_true(json_object_get(schema, "uniqueItems")) && items.most != 0 && items.most != 1)
        return compile_unique(c, schema, place, items.least, items.most);
    if (read_items(c, schema, place, &items)) {
        if (items.rest < 0 && (items.most < 0 || items.most > items.n_first))
            items.most = items.n_first;
        rule = items.most < 0 || items.least <= items.most
                   ? nib_json_array(&c->json, &items)
                   : nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "minItems", "is more than there may be items");
    }
    free(items.first);
    return rule;
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

static bool add_property(struct nib_schema_compiler *c, struct nib_json_object *object, const char *name,
                         int32_t rule, bool required)
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

static void add_properties(struct nib_schema_compiler *c, const json_t *schema,
                           const struct nib_schema_place *place, struct nib_json_object *object)
{
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    const json_t *item;
    const char *name;
    json_t *value;
    size_t i;
    struct nib_schema_place inner = nib_schema_below(place, "properties");
    json_object_foreach((json_t *)properties, name, value)
    {
        struct nib_schema_place at = nib_schema_below(&inner, name);
        int32_t rule = nib_schema_rule(c, value, &at);
        if (c->status || !add_property(c, object, name, rule, is_required(required, name)))
            return;
    }
    json_array_foreach((json_t *)required, i, item)
    {
        name = json_string_value(item);
        if (!name) {
            nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "required", "must be an array of strings");
            return;
        }
        if (json_object_get(properties, name))
            continue;
        if (object->others < 0) {
            nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "required", "names a property that is not there");
            return;
        }
        if (!add_property(c, object, name, object->others, true))
            return;
    }
}

static int32_t others_of(struct nib_schema_compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    bool any = !others && json_object_size(json_object_get(schema, "properties")) == 0;
    struct nib_schema_place inner = nib_schema_below(place, "additionalProperties");
    if (any || json_is_true(others))
        return nib_json_builtin(&c->json, NIB_JSON_ANY);
    return json_is_object(others) ? nib_schema_rule(c, others, &inner) : -1;
}

// "patternProperties" of one pattern, and no other properties.
static int32_t compile_pattern_object(struct nib_schema_compiler *c, const json_t *schema,
                                      const struct nib_schema_place *place)
{
    const json_t *patterns = json_object_get(schema, "patternProperties");
    struct nib_schema_place inner = nib_schema_below(place, "patternProperties");
    struct nib_json_object object = {.others = -1};
    const char *pattern;
    json_t *value;
    if (!json_is_object(patterns))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "patternProperties", "must be an object");
    if (json_object_size(patterns) != 1 || json_object_size(json_object_get(schema, "properties")) > 0 ||
        json_array_size(json_object_get(schema, "required")) > 0)
        return nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "patternProperties",
                               "is only supported with one pattern, and without properties or required");
    json_object_foreach((json_t *)patterns, pattern, value)
    {
        struct nib_schema_place at = nib_schema_below(&inner, pattern);
        object.others = nib_schema_rule(c, value, &at);
        object.other_key = pattern_rule(c, &at, pattern, strlen(pattern));
    }
    return c->status ? 0 : nib_json_object(&c->json, &object, NULL);
}

int32_t nib_schema_object(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place)
{
    static const char *const allowed[] = {
        "type", "properties", "required", "additionalProperties", "patternProperties", NULL};
    const json_t *properties = json_object_get(schema, "properties"),
                 *required = json_object_get(schema, "required");
    if (!nib_schema_only(c, schema, place, allowed))
        return 0;
    if (properties && !json_is_object(properties))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "properties", "must be an object");
    if (required && !json_is_array(required))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "required", "must be an array of strings");
    if (json_object_get(schema, "patternProperties"))
        return compile_pattern_object(c, schema, place);
    size_t most = json_object_size(properties) + json_array_size(required);
    struct nib_json_object object = {.other_key = -1,
                                     .properties = calloc(most + 1, sizeof *object.properties),
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
            nib_schema_fail(c, NIB_ERR_UNSUPPORTED, place, "additionalProperties",
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

// ---- values ----

static bool has_type(const json_t *value, const char *type)
{
    if (strcmp(type, "integer") == 0)
        return json_is_integer(value) ||
               (json_is_real(value) && json_real_value(value) == trunc(json_real_value(value)));
    return (json_is_string(value) && strcmp(type, "string") == 0) ||
           (json_is_number(value) && strcmp(type, "number") == 0) ||
           (json_is_boolean(value) && strcmp(type, "boolean") == 0) ||
           (json_is_null(value) && strcmp(type, "null") == 0) ||
           (json_is_object(value) && strcmp(type, "object") == 0) ||
           (json_is_array(value) && strcmp(type, "array") == 0);
}

bool nib_schema_type_allows(const json_t *type, const json_t *value)
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

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

// Any of the texts, as a tree: however many there are, few places are open at once. Sorts them.
static int32_t texts_rule(struct nib_schema_compiler *c, char **texts /* [count] */, size_t count)
{
    struct nib_rules *rules = c->json.rules;
    int32_t start = nib_rules_state(rules), end = nib_schema_end(c);
    size_t longest = 0;
    for (size_t i = 0; i < count; i++)
        longest = strlen(texts[i]) > longest ? strlen(texts[i]) : longest;
    int32_t *path = malloc((longest + 1) * sizeof *path); // the state behind each byte of the last text
    if (!path) {
        rules->failed = true;
        return start;
    }
    qsort(texts, count, sizeof *texts, compare_texts);
    path[0] = start;
    for (size_t i = 0; i < count && !rules->failed; i++) {
        size_t at = 0, size = strlen(texts[i]);
        while (i > 0 && at < size && texts[i][at] == texts[i - 1][at])
            at++;
        for (; at < size; at++)
            path[at + 1] = nib_rules_literal(rules, path[at], texts[i] + at, 1);
        nib_rules_skip(rules, path[size], end);
    }
    free(path);
    return start;
}

// The values that "const" and "enum" leave, as JSON without white space.
int32_t nib_schema_values(struct nib_schema_compiler *c, const json_t *schema,
                          const struct nib_schema_place *place)
{
    static const char *const allowed[] = {"type", "enum", "const", NULL};
    const json_t *list = json_object_get(schema, "enum");
    if (!nib_schema_only(c, schema, place, allowed))
        return 0;
    if (list && !json_is_array(list))
        return nib_schema_fail(c, NIB_ERR_ARGUMENT, place, "enum", "must be an array");
    struct nib_rules *rules = c->json.rules;
    json_t *values = nib_schema_list_values(c->root, schema);
    size_t count = json_array_size(values), kept = 0;
    char **texts = calloc(count + 1, sizeof *texts);
    rules->failed |= !values || !texts;
    for (; kept < count && !rules->failed; kept++) {
        texts[kept] = value_text(json_array_get(values, kept));
        rules->failed |= !texts[kept];
    }
    json_decref(values);
    int32_t rule = 0;
    if (kept > 0 && !rules->failed)
        rule = texts_rule(c, texts, kept);
    else if (!rules->failed)
        nib_schema_fail(c, NIB_ERR_ARGUMENT, place, list ? "enum" : "const", "leaves no value");
    for (size_t i = 0; i < kept; i++)
        free(texts[i]);
    free(texts);
    return rule;
}
