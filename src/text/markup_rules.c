// Arguments as mark-up as rules of a byte automaton. What the rules accept, nib_markup_read reads as arguments that the
// schema accepts. Text between tags is bare, so the rules are made with the reader in mind: text of a string never holds
// the end tag, and a value that would be read as one of another type is not offered.
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/chat_turns.h"
#include "text/json_schema.h"
#include "text/schema_compiler.h"
#include "text/tool_markup.h"

enum { MAX_REFERENCES = 16, MAX_ALTERNATIVES = 2000 };

struct compiler {
    struct nib_schema_compiler schema;
    const struct nib_tool_markup *markup;
    int32_t character; // rule of one character beyond ASCII
    int alternatives;  // looked at: schemas may contain themselves
};

// The schema that a reference, or "allOf" with one member, stands for.
static const json_t *follow(struct compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    static const char *const keywords[] = {"$ref", "allOf"};
    for (int i = 0; i < MAX_REFERENCES; i++) {
        const json_t *next = nib_markup_follow(c->schema.root, schema);
        if (next == schema && !json_object_get(schema, "$ref")) // one may point to itself
            return schema;
        const char *const allowed[] = {keywords[!json_object_get(schema, "$ref")], NULL};
        if (!nib_schema_only(&c->schema, schema, place, allowed))
            return NULL;
        if (!next)
            break;
        schema = next;
    }
    nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, "$ref", "points to no schema");
    return NULL;
}

// ---- bare text

// Where in a text the automaton is: `count` characters that are counted have come, and behind them `tag` bytes of what may
// become the end tag.
struct text_states {
    int32_t *states; /* [(limit + 1) * size] */
    const char *end;
    size_t size;          // of the end tag
    int32_t least, limit; // characters; without a most, `limit` stands for that many or more
    bool bounded;
};

// The state with `count` characters; -1 when they are too many.
static int32_t at_count(const struct text_states *t, int64_t count, size_t tag)
{
    if (count > t->limit && t->bounded)
        return -1;
    return t->states[(size_t)(count < t->limit ? count : t->limit) * t->size + tag];
}

// A character other than the tag's next; it and what had come of the tag are text. The reader drops line breaks at either
// side, so they count for nothing, and where that could be too little or too much there are none.
static void put_other_characters(struct compiler *c, const struct text_states *t, int32_t count, size_t tag)
{
    struct nib_rules *rules = c->schema.json.rules;
    int32_t from = t->states[(size_t)count * t->size + tag],
            next = at_count(t, (int64_t)count + (int64_t)tag + 1, 0),
            break_to = t->bounded ? -1 : at_count(t, (int64_t)count + (int64_t)tag, 0),
            again = tag ? at_count(t, (int64_t)count + (int64_t)tag, 1) : -1;
    if (next >= 0) {
        nib_rules_bytes(rules, from, '\t', '\t', next);
        for (int low = 0x20, b = low; b <= 0x80; b++) {
            if (b != 0x80 && b != '<' && b != t->end[tag])
                continue;
            if (low < b)
                nib_rules_bytes(rules, from, low, b - 1, next);
            low = b + 1;
        }
        nib_rules_call(rules, from, c->character, next);
    }
    if (break_to >= 0)
        nib_rules_bytes(rules, from, '\n', '\n', break_to);
    if (again >= 0)
        nib_rules_bytes(rules, from, '<', '<', again);
}

// Any text of least to most characters (most -1: any number) and the end tag, to `behind`.
static void put_text(struct compiler *c, int32_t from, int64_t least, int64_t most, int32_t behind)
{
    struct nib_rules *rules = c->schema.json.rules;
    struct text_states t = {.end = c->markup->argument_end, .size = strlen(c->markup->argument_end)};
    int64_t limit = most >= 0 ? most : least, states = (limit + 1) * (int64_t)t.size;
    t.states = states <= NIB_MAX_RULE_STATES ? malloc((size_t)states * sizeof *t.states) : NULL;
    if (!t.states) {
        rules->failed = true;
        return;
    }
    t.least = (int32_t)least;
    t.limit = (int32_t)limit;
    t.bounded = most >= 0;
    for (int64_t i = 0; i < states; i++)
        t.states[i] = nib_rules_state(rules);
    nib_rules_skip(rules, from, t.states[0]);
    for (int32_t count = 0; count <= t.limit && !rules->failed; count++)
        for (size_t tag = 0; tag < t.size; tag++) {
            bool last = tag + 1 == t.size;
            int32_t state = t.states[(size_t)count * t.size + tag];
            if (!last || count >= t.least)
                nib_rules_bytes(rules, state, t.end[tag], t.end[tag],
                                last ? behind : at_count(&t, count, tag + 1));
            put_other_characters(c, &t, count, tag);
        }
    free(t.states);
}

static bool read_length(struct compiler *c, const json_t *schema, const struct nib_schema_place *place,
                        const char *keyword, int64_t *length)
{
    const json_t *given = json_object_get(schema, keyword);
    if (!given)
        return true;
    *length = json_integer_value(given);
    if (!json_is_integer(given) || *length < 0 || *length > NIB_MAX_RULE_STATES)
        nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, keyword, "must be a small whole number");
    return !c->schema.status;
}

static void put_string(struct compiler *c, int32_t from, const json_t *schema,
                       const struct nib_schema_place *place, int32_t behind)
{
    static const char *const allowed[] = {"type", "minLength", "maxLength", NULL};
    int64_t least = 0, most = -1;
    if (nib_schema_only(&c->schema, schema, place, allowed) &&
        read_length(c, schema, place, "minLength", &least) && read_length(c, schema, place, "maxLength", &most)) {
        if (most >= 0 && most < least)
            nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, "maxLength", "is less than minLength");
        else
            put_text(c, from, least, most, behind);
    }
}

// ---- other values

static void put_literal(struct compiler *c, int32_t from, struct nib_text text, int32_t behind)
{
    struct nib_rules *rules = c->schema.json.rules;
    int32_t at = nib_rules_literal(rules, from, text.bytes, text.size);
    nib_rules_skip(rules, nib_rules_literal(rules, at, c->markup->argument_end, strlen(c->markup->argument_end)),
                   behind);
}

// A value in one of its spellings, if it is read back as itself.
static bool put_spelling(struct compiler *c, int32_t from, struct nib_writer *spelling, unsigned types,
                         const json_t *value, int32_t behind)
{
    struct nib_text text = nib_writer_text(spelling);
    bool reads = nib_markup_reads_as(c->markup, text, types, value);
    c->schema.json.rules->failed |= spelling->failed;
    if (reads)
        put_literal(c, from, text, behind);
    nib_bytes_free(&spelling->buffer);
    return reads;
}

// The format's spelling, and JSON's of what is no string.
static void put_values(struct compiler *c, int32_t from, const json_t *values, unsigned types,
                       const struct nib_schema_place *place, int32_t behind)
{
    const json_t *value;
    size_t i, kept = 0;
    json_array_foreach((json_t *)values, i, value)
    {
        struct nib_writer own = {0}, json = {0};
        nib_markup_write_value(&own, c->markup, value);
        kept += put_spelling(c, from, &own, types, value, behind);
        if (json_is_string(value))
            continue;
        nib_write_json(&json, value, JSON_COMPACT);
        kept += put_spelling(c, from, &json, types, value, behind);
    }
    if (!kept)
        nib_schema_fail(&c->schema, NIB_ERR_UNSUPPORTED, place, json_array_size(values) > 1 ? "enum" : "const",
                        "has no value that this chat format can write");
}

static void put_json(struct compiler *c, int32_t from, const json_t *schema, const struct nib_schema_place *place,
                     int32_t behind)
{
    int32_t at = nib_rules_state(c->schema.json.rules);
    nib_rules_call(c->schema.json.rules, from, nib_schema_rule(&c->schema, schema, place), at);
    put_literal(c, at, (struct nib_text){0}, behind);
}

// ---- unions

// Alternatives within alternatives, without an end or far too many.
static bool is_endless(struct compiler *c)
{
    c->schema.json.rules->failed |= ++c->alternatives > MAX_ALTERNATIVES;
    return c->schema.json.rules->failed;
}

static const json_t *alternatives_of(const json_t *schema)
{
    const json_t *any = json_object_get(schema, "anyOf");
    return any ? any : json_object_get(schema, "oneOf");
}

// Whether a schema asks for nothing but types: then any text is read as a value of one of them, if strings are among them.
static bool is_plain(struct compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    static const char *const types[] = {"type", "anyOf", "oneOf", NULL};
    struct nib_error ignored;
    struct nib_schema_compiler probe = {.err = &ignored};
    const json_t *list, *item;
    size_t i;
    schema = follow(c, schema, place);
    if (!json_is_object(schema) || is_endless(c))
        return json_is_true(schema);
    if (!nib_schema_only(&probe, schema, place, types))
        return false;
    list = json_object_get(schema, "oneOf");
    bool plain = !list || nib_schemas_exclude_each_other(c->schema.root, list);
    json_array_foreach((json_t *)alternatives_of(schema), i, item) plain = plain && is_plain(c, item, place);
    return plain;
}

static bool is_about_strings(const json_t *schema)
{
    return json_object_get(schema, "minLength") || json_object_get(schema, "maxLength") ||
           json_object_get(schema, "pattern");
}

// One of the alternatives of an argument whose text is read as one of `types`.
static void put_alternative(struct compiler *c, int32_t from, const json_t *schema, unsigned types,
                            const struct nib_schema_place *place, int32_t behind)
{
    static const char *const unions[] = {"anyOf", "oneOf", NULL};
    schema = follow(c, schema, place);
    if (c->schema.status || is_endless(c))
        return;
    json_t *values = nib_schema_list_values(c->schema.root, schema);
    unsigned own = nib_markup_types(c->schema.root, schema);
    const json_t *list = alternatives_of(schema), *item;
    const char *type = json_string_value(json_object_get(schema, "type"));
    size_t i;
    if (values) {
        put_values(c, from, values, types, place, behind);
    } else if (own && !(own & NIB_MARKUP_STRINGS)) {
        put_json(c, from, schema, place, behind);
    } else if (list && nib_schema_only(&c->schema, schema, place, unions)) {
        if (json_object_get(schema, "oneOf") && !nib_schemas_exclude_each_other(c->schema.root, list))
            nib_schema_fail(&c->schema, NIB_ERR_UNSUPPORTED, place, "oneOf",
                            "is only supported for schemas that exclude each other");
        json_array_foreach((json_t *)list, i, item) put_alternative(c, from, item, types, place, behind);
    } else if (type && types == NIB_MARKUP_STRINGS) {
        put_string(c, from, schema, place, behind);
    } else if (!types && !is_about_strings(schema)) {
        put_json(c, from, schema, place, behind);
    } else {
        nib_schema_fail(
            &c->schema, NIB_ERR_UNSUPPORTED, place, "type",
            "allows strings beside others with conditions: this chat format, which writes strings bare, "
            "could not tell them apart");
    }
    json_decref(values);
}

static void put_value(struct compiler *c, int32_t from, const json_t *schema, const struct nib_schema_place *place,
                      int32_t behind)
{
    unsigned types = nib_markup_types(c->schema.root, schema);
    if (!json_is_object(schema) && !json_is_true(schema))
        nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, "schema", "must be an object");
    else if (json_object_get(schema, "type") && !types)
        nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, "type", "names no type");
    else if ((!types || (types & NIB_MARKUP_STRINGS)) && is_plain(c, schema, place))
        put_text(c, from, 0, -1, behind);
    else
        put_alternative(c, from, schema, types, place, behind);
}

// ---- arguments

static bool is_required(const json_t *schema, const char *name)
{
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

static bool check_object(struct compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    static const char *const allowed[] = {"type", "properties", "required", "additionalProperties", NULL};
    const json_t *type = json_object_get(schema, "type"), *properties = json_object_get(schema, "properties"),
                 *item;
    size_t i;
    if (c->schema.status || !nib_schema_only(&c->schema, schema, place, allowed))
        return false;
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0))
        nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, "type", "must be \"object\" for a call's arguments");
    if (properties && !json_is_object(properties))
        nib_schema_fail(&c->schema, NIB_ERR_ARGUMENT, place, "properties", "must be an object");
    json_array_foreach(json_object_get(schema, "required"), i, item)
    {
        if (!json_is_string(item) || !json_object_get(properties, json_string_value(item)))
            nib_schema_fail(&c->schema, NIB_ERR_UNSUPPORTED, place, "required",
                            "names an argument that is not among the properties");
    }
    return !c->schema.status;
}

// The arguments in the schema's order, each at most once, then the call's end. Further ones, which a schema may allow,
// are not offered.
static int32_t put_arguments(struct compiler *c, const json_t *schema, const struct nib_schema_place *place)
{
    struct nib_rules *rules = c->schema.json.rules;
    const struct nib_tool_markup *m = c->markup;
    struct nib_schema_place properties = nib_schema_below(place, "properties");
    int32_t start = nib_rules_state(rules), at = start;
    const char *name;
    json_t *of_name;
    json_object_foreach(json_object_get(schema, "properties"), name, of_name)
    {
        struct nib_schema_place inner = nib_schema_below(&properties, name);
        int32_t next = nib_rules_state(rules), behind = nib_rules_state(rules);
        if (!*name || strpbrk(name, "<>\"'\n"))
            return nib_schema_fail(&c->schema, NIB_ERR_UNSUPPORTED, &inner, "properties",
                                   "has a name that this chat format cannot write");
        int32_t tag = nib_rules_literal(rules, at, m->argument, strlen(m->argument));
        tag = nib_rules_literal(rules, tag, m->before_name, strlen(m->before_name));
        tag = nib_rules_literal(rules, tag, name, strlen(name));
        tag = nib_rules_literal(rules, tag, m->behind_name, strlen(m->behind_name));
        put_value(c, tag, of_name, &inner, behind);
        nib_rules_bytes(rules, behind, '\n', '\n', next);
        if (!is_required(schema, name))
            nib_rules_skip(rules, at, next);
        at = next;
    }
    at = nib_rules_literal(rules, at, m->call_end, strlen(m->call_end));
    nib_rules_bytes(rules, at, '\n', '\n', nib_schema_end(&c->schema));
    return start;
}

nib_status nib_markup_compile(const struct nib_tool_markup *markup, const json_t *parameters,
                              struct nib_rules *rules, int32_t *rule, struct nib_error *err)
{
    struct compiler c = {.schema = {.json = {.rules = rules}, .root = parameters, .err = err}, .markup = markup};
    struct nib_schema_place root = {"#"};
    for (int i = 0; i < NIB_JSON_KINDS; i++)
        c.schema.json.builtins[i] = -1;
    c.character = nib_rules_state(rules);
    nib_json_characters(rules, c.character, 0x80, 0x10ffff, nib_schema_end(&c.schema));
    const json_t *schema = follow(&c, parameters, &root);
    if (check_object(&c, schema, &root))
        *rule = put_arguments(&c, schema, &root);
    free(c.schema.known);
    if (!c.schema.status && rules->failed)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "the schema is too large");
    return c.schema.status;
}
