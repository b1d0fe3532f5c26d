// A tool's parameters as the TypeScript-like types gpt-oss was trained on. The notation, with its oddities (comments
// between a name and its type, a union as array element without parentheses, anyOf shown as any), follows the
// output of the official renderer, openai-harmony 0.0.8; tests/data/harmony holds what it wrote.
#include "text/harmony.h"

#include "base/error.h"
#include "text/json_text.h"

#include <stdlib.h>

enum { DEEPEST = 64 };

struct type_writer {
    struct nib_writer *out;
    bool too_deep;
};

static void put_type(struct type_writer *to, const json_t *schema, size_t indent, int depth);

static void put(struct type_writer *to, const char *string)
{
    nib_write_string(to->out, string);
}

static void put_indent(struct type_writer *to, size_t indent)
{
    while (indent-- > 0)
        put(to, " ");
}

static void put_string(struct type_writer *to, const json_t *string)
{
    nib_write(to->out, json_string_value(string), json_string_length(string));
}

static void put_comment(struct type_writer *to, const json_t *string, size_t indent)
{
    if (!json_is_string(string))
        return;
    put_indent(to, indent);
    put(to, "// ");
    put_string(to, string);
    put(to, "\n");
}

static bool is_enum(const json_t *schema)
{
    return json_array_size(json_object_get(schema, "enum")) > 0;
}

// "default: …": a plain string in quotes; one of an enum bare, or as JSON where a union's variant has it.
static void put_default(struct type_writer *to, const json_t *schema, bool bare_enum)
{
    const json_t *value = json_object_get(schema, "default");
    put(to, "default: ");
    if (!json_is_string(value) || (is_enum(schema) && !bare_enum)) {
        nib_write_json(to->out, value, JSON_COMPACT);
        return;
    }
    const char *quote = is_enum(schema) ? "" : "\"";
    put(to, quote);
    put_string(to, value);
    put(to, quote);
}

static void put_nullable_type(struct type_writer *to, const json_t *schema, size_t indent, int depth)
{
    size_t from = to->out->buffer.size;
    put_type(to, schema, indent, depth);
    if (!json_is_true(json_object_get(schema, "nullable")) || to->out->failed)
        return;
    struct nib_text all = nib_writer_text(to->out);
    if (all.size == from || !memmem(all.bytes + from, all.size - from, "null", 4))
        put(to, " | null");
}

// Behind a variant's type.
static void put_variant_comment(struct type_writer *to, const json_t *variant, const json_t *description,
                                bool bare_enum)
{
    bool described = json_is_string(description), defaulted = json_object_get(variant, "default") != NULL;
    if (!described && !defaulted)
        return;
    put(to, " // ");
    if (described)
        put_string(to, description);
    if (described && defaulted)
        put(to, " ");
    if (defaulted)
        put_default(to, variant, bare_enum);
}

static void put_union(struct type_writer *to, const json_t *variants, size_t indent, int depth)
{
    size_t i;
    json_t *variant;
    json_array_foreach(variants, i, variant)
    {
        put(to, "\n");
        put_indent(to, indent);
        put(to, " | ");
        put_nullable_type(to, variant, indent + 3, depth);
        put_variant_comment(to, variant, json_object_get(variant, "description"), false);
    }
}

// The names in an object's "required" as the keys of another: lists from the network may be long.
static json_t *required_names(struct type_writer *to, const json_t *object)
{
    json_t *names = json_object();
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(object, "required"), i, name)
    {
        const char *string = json_string_value(name);
        if (string && strlen(string) == json_string_length(name))
            to->out->failed |= json_object_set_new(names, string, json_true()) != 0;
    }
    to->out->failed |= !names;
    return names;
}

struct property {
    const char *key;
    const json_t *schema;
    bool required;
};

static void put_key(struct type_writer *to, const struct property *property, size_t indent)
{
    put_indent(to, indent);
    put(to, property->key);
    put(to, property->required ? ":" : "?:");
}

static void put_examples(struct type_writer *to, const json_t *examples, size_t indent)
{
    if (json_array_size(examples) == 0)
        return;
    put_indent(to, indent);
    put(to, "// Examples:\n");
    size_t i;
    json_t *example;
    json_array_foreach(examples, i, example)
    {
        if (!json_is_string(example))
            continue;
        put_indent(to, indent);
        put(to, "// - \"");
        put_string(to, example);
        put(to, "\"\n");
    }
}

static void put_leading_comments(struct type_writer *to, const json_t *schema, size_t indent)
{
    const json_t *title = json_object_get(schema, "title");
    put_comment(to, title, indent);
    if (json_is_string(title)) {
        put_indent(to, indent);
        put(to, "//\n");
    }
    if (!json_object_get(schema, "oneOf"))
        put_comment(to, json_object_get(schema, "description"), indent);
    put_examples(to, json_object_get(schema, "examples"), indent);
}

static bool same_string(const json_t *a, const json_t *b)
{
    return json_is_string(a) && json_is_string(b) && json_equal(a, b);
}

// A property that is a union: its description above it, unless the first variant says the same. A description above
// stands in for the first variant's own.
static void put_union_property(struct type_writer *to, const struct property *property, size_t indent, int depth)
{
    const json_t *variants = json_object_get(property->schema, "oneOf");
    const json_t *description = json_object_get(property->schema, "description");
    const json_t *first = json_object_get(json_array_get(variants, 0), "description");
    bool above = json_is_string(description) && !same_string(description, first);
    if (above)
        put_comment(to, description, indent);
    if (json_object_get(property->schema, "default")) {
        put_indent(to, indent);
        put(to, "// ");
        put_default(to, property->schema, true);
        put(to, "\n");
    }
    put_key(to, property, indent);
    put(to, "\n");
    size_t i;
    json_t *variant;
    json_array_foreach(variants, i, variant)
    {
        const json_t *own = json_object_get(variant, "description");
        bool hidden = (i == 0 && above) || same_string(own, description);
        put_indent(to, indent);
        put(to, " | ");
        put_nullable_type(to, variant, indent + 3, depth);
        put_variant_comment(to, variant, hidden ? NULL : own, true);
        put(to, "\n");
    }
    put_indent(to, indent);
    put(to, ",\n");
}

static void put_property(struct type_writer *to, const struct property *property, size_t indent, int depth)
{
    put_leading_comments(to, property->schema, indent);
    const json_t *variants = json_object_get(property->schema, "oneOf");
    if (json_is_array(variants)) {
        put_union_property(to, property, indent, depth);
        return;
    }
    put_key(to, property, indent);
    put(to, " ");
    put_nullable_type(to, property->schema, indent + 4, depth);
    put(to, ",");
    if (!variants && json_object_get(property->schema, "default")) {
        put(to, " // ");
        put_default(to, property->schema, true);
    }
    put(to, "\n");
}

static void put_object(struct type_writer *to, const json_t *schema, size_t indent, int depth)
{
    put_comment(to, json_object_get(schema, "description"), indent);
    put(to, "{\n");
    json_t *properties = json_object_get(schema, "properties"), *required = required_names(to, schema);
    for (void *at = json_object_iter(properties); at; at = json_object_iter_next(properties, at)) {
        const char *key = json_object_iter_key(at);
        struct property property = {key, json_object_iter_value(at), json_object_get(required, key) != NULL};
        put_property(to, &property, indent, depth);
    }
    json_decref(required);
    put_indent(to, indent);
    put(to, "}");
}

// The strings of an array between bars, each in `quote`; false if it has none.
static bool put_choice(struct type_writer *to, const json_t *strings, const char *quote)
{
    bool any = false;
    size_t i;
    json_t *string;
    json_array_foreach(strings, i, string)
    {
        if (!json_is_string(string))
            continue;
        bool integer = *quote == '\0' && strcmp(json_string_value(string), "integer") == 0;
        put(to, any ? " | " : "");
        put(to, quote);
        if (integer)
            put(to, "number");
        else
            put_string(to, string);
        put(to, quote);
        any = true;
    }
    return any;
}

static void put_named_type(struct type_writer *to, const json_t *schema, const char *name, size_t indent,
                           int depth)
{
    if (strcmp(name, "object") == 0) {
        put_object(to, schema, indent, depth);
    } else if (strcmp(name, "string") == 0) {
        if (!put_choice(to, json_object_get(schema, "enum"), "\""))
            put(to, "string");
    } else if (strcmp(name, "number") == 0 || strcmp(name, "integer") == 0) {
        put(to, "number");
    } else if (strcmp(name, "boolean") == 0) {
        put(to, "boolean");
    } else if (strcmp(name, "array") == 0 && json_object_get(schema, "items")) {
        put_type(to, json_object_get(schema, "items"), indent, depth);
        put(to, "[]");
    } else {
        put(to, strcmp(name, "array") == 0 ? "Array<any>" : "any");
    }
}

static void put_type(struct type_writer *to, const json_t *schema, size_t indent, int depth)
{
    if (depth >= DEEPEST) {
        to->too_deep = true;
        return;
    }
    const json_t *variants = json_object_get(schema, "oneOf"), *type = json_object_get(schema, "type");
    if (json_is_array(variants))
        put_union(to, variants, indent, depth + 1);
    else if (json_is_string(type))
        put_named_type(to, schema, json_string_value(type), indent, depth + 1);
    else if (!put_choice(to, type, ""))
        put(to, "any");
}

nib_status nib_harmony_put_type(struct nib_writer *out, struct nib_text schema, struct nib_text what,
                                struct nib_error *err)
{
    json_error_t problem;
    json_t *root = json_loadb(schema.bytes, schema.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    int name_size = what.size < 100 ? (int)what.size : 100;
    const char *name = name_size ? what.bytes : "";
    if (!root)
        return nib_fail(err, NIB_ERR_ARGUMENT, "parameters of tool %.*s are not JSON: %s at byte %d", name_size,
                        name, problem.text, problem.position);
    struct type_writer to = {.out = out};
    put_type(&to, root, 0, 0);
    json_decref(root);
    if (to.too_deep)
        return nib_fail(err, NIB_ERR_LIMIT, "parameters of tool %.*s are nested more than %d deep", name_size,
                        name, DEEPEST);
    return NIB_OK;
}
