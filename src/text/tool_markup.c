#include "text/tool_markup.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text/json_text.h"
#include "text/schema_compiler.h"

// ---- types

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"null", NIB_MARKUP_NULLS},       {"boolean", NIB_MARKUP_BOOLEANS},
                 {"integer", NIB_MARKUP_INTEGERS}, {"number", NIB_MARKUP_INTEGERS | NIB_MARKUP_NUMBERS},
                 {"object", NIB_MARKUP_OBJECTS},   {"array", NIB_MARKUP_ARRAYS},
                 {"string", NIB_MARKUP_STRINGS}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    return 0;
}

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return NIB_MARKUP_NULLS;
    case JSON_TRUE:
    case JSON_FALSE:
        return NIB_MARKUP_BOOLEANS;
    case JSON_INTEGER:
        return NIB_MARKUP_INTEGERS;
    case JSON_REAL:
        return NIB_MARKUP_NUMBERS;
    case JSON_OBJECT:
        return NIB_MARKUP_OBJECTS;
    case JSON_ARRAY:
        return NIB_MARKUP_ARRAYS;
    case JSON_STRING:
        break;
    }
    return NIB_MARKUP_STRINGS;
}

const json_t *nib_markup_follow(const json_t *root, const json_t *schema)
{
    const json_t *reference = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    if (reference)
        return json_is_string(reference) ? nib_schema_resolve(root, json_string_value(reference)) : NULL;
    return json_array_size(all) == 1 ? json_array_get(all, 0) : schema;
}

enum { SCHEMA_DEPTH = 16, SCHEMA_WORK = 4000 }; // schemas may refer to themselves

// `left`: how many more schemas are looked at.
static unsigned types_of(const json_t *root, const json_t *schema, int depth, int *left)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    if (depth == SCHEMA_DEPTH || (*left)-- <= 0)
        return 0;
    const json_t *next = nib_markup_follow(root, schema);
    if (next != schema)
        return types_of(root, next, depth + 1, left);
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const"), *other;
    unsigned types = 0;
    size_t i;
    if (json_is_string(type))
        return type_named(json_string_value(type));
    json_array_foreach((json_t *)type, i, other) types |=
        json_is_string(other) ? type_named(json_string_value(other)) : 0;
    if (types)
        return types;
    json_array_foreach((json_t *)values, i, other) types |= type_of(other);
    if (constant)
        types |= type_of(constant);
    for (size_t u = 0; u < sizeof unions / sizeof *unions; u++)
        json_array_foreach(json_object_get(schema, unions[u]), i, other) types |=
            types_of(root, other, depth + 1, left);
    return types;
}

unsigned nib_markup_types(const json_t *root, const json_t *schema)
{
    int left = SCHEMA_WORK;
    return types_of(root, schema, 0, &left);
}

static bool is_word(struct nib_text text, const char *word)
{
    return text.size == strlen(word) && strncasecmp(text.bytes, word, text.size) == 0;
}

// False if the bytes are no UTF-8.
static bool write_string(struct nib_writer *out, struct nib_text text)
{
    json_t *string = json_stringn(text.bytes ? text.bytes : "", text.size);
    char *dumped = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    if (dumped)
        nib_write_string(out, dumped);
    free(dumped);
    json_decref(string);
    return dumped != NULL;
}

// The type that the text has as JSON; 0: it is none. Whole numbers may be larger than jansson's.
static unsigned type_as_json(struct nib_text text)
{
    static const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    const char *bytes = text.bytes ? text.bytes : "";
    json_error_t error;
    json_t *read = json_loadb(bytes, text.size, flags, &error);
    bool large = !read && json_error_code(&error) == json_error_numeric_overflow;
    if (large)
        read = json_loadb(bytes, text.size, flags | JSON_DECODE_INT_AS_REAL, NULL);
    unsigned type = !read ? 0 : large && json_is_real(read) ? NIB_MARKUP_INTEGERS : type_of(read);
    json_decref(read);
    return type;
}

// As JSON of one of `types`, in the words of the text where it is that already; a string when it can be nothing else.
static bool write_value_of(struct nib_writer *out, const struct nib_tool_markup *markup, struct nib_text text,
                           unsigned types)
{
    struct nib_text word = nib_text_trimmed(text);
    bool null = is_word(word, "null") || nib_text_equal(word, nib_text_of(markup->null));
    const char *constant = (types & NIB_MARKUP_NULLS) && null                        ? "null"
                           : (types & NIB_MARKUP_BOOLEANS) && is_word(word, "true")  ? "true"
                           : (types & NIB_MARKUP_BOOLEANS) && is_word(word, "false") ? "false"
                                                                                     : NULL;
    if (constant) {
        nib_write_string(out, constant);
        return true;
    }
    unsigned parsed = types & (NIB_MARKUP_INTEGERS | NIB_MARKUP_NUMBERS | NIB_MARKUP_OBJECTS | NIB_MARKUP_ARRAYS);
    if (!parsed || !(type_as_json(word) & parsed))
        return write_string(out, text);
    nib_write_text(out, word);
    return true;
}

// What the arguments' schema stands for; it may be a reference into itself.
static const json_t *follow_all(const json_t *root)
{
    const json_t *schema = root, *next = nib_markup_follow(root, root);
    for (int depth = 0; next && next != schema && depth < SCHEMA_DEPTH; depth++) {
        schema = next;
        next = nib_markup_follow(root, schema);
    }
    return schema;
}

static unsigned argument_types(const json_t *parameters, const char *name)
{
    const json_t *object = follow_all(parameters), *schema = json_object_get(object, "properties");
    schema = json_object_get(schema, name);
    if (!schema)
        schema = json_object_get(object, "additionalProperties");
    unsigned types = nib_markup_types(parameters, schema);
    if (types)
        return types;
    bool unsaid = json_is_object(schema) || json_is_true(schema); // there is a schema, but it takes anything
    return unsaid ? NIB_MARKUP_NULLS | NIB_MARKUP_BOOLEANS | NIB_MARKUP_INTEGERS | NIB_MARKUP_NUMBERS |
                        NIB_MARKUP_OBJECTS | NIB_MARKUP_ARRAYS
                  : NIB_MARKUP_STRINGS;
}

// ---- reading

static void skip(struct nib_text *text, size_t count)
{
    text->bytes += count;
    text->size -= count;
}

static void skip_space(struct nib_text *text)
{
    while (text->size && nib_is_space(*text->bytes))
        skip(text, 1);
}

static bool begins(struct nib_text text, const char *tag)
{
    size_t size = strlen(tag);
    return text.size >= size && memcmp(text.bytes, tag, size) == 0;
}

static bool take(struct nib_text *text, const char *tag)
{
    if (!begins(*text, tag))
        return false;
    skip(text, strlen(tag));
    return true;
}

// Up to ">", which is passed; without quotes.
static bool take_name(struct nib_text *text, struct nib_text *name)
{
    const char *end = memchr(text->bytes, '>', text->size);
    if (!end)
        return false;
    *name = (struct nib_text){text->bytes, (size_t)(end - text->bytes)};
    skip(text, name->size + 1);
    if (name->size >= 2 && (*name->bytes == '"' || *name->bytes == '\'') &&
        name->bytes[name->size - 1] == *name->bytes) {
        name->bytes++;
        name->size -= 2;
    }
    return name->size > 0;
}

// Whether an argument ends here: a value may have such a tag in it, but behind the last one the call goes on as it must.
static bool argument_ends(struct nib_text text, const struct nib_tool_markup *markup)
{
    if (!take(&text, markup->argument_end))
        return false;
    skip_space(&text);
    return begins(text, markup->argument) || begins(text, markup->call_end);
}

// Up to the end tag, which it passes.
static bool take_value(struct nib_text *text, const struct nib_tool_markup *markup, struct nib_text *value)
{
    *value = (struct nib_text){text->bytes, 0};
    while (text->size) {
        if (argument_ends(*text, markup))
            return take(text, markup->argument_end);
        skip(text, 1);
        value->size++;
    }
    return false;
}

// A line break on either side belongs to the tags.
static struct nib_text without_breaks(struct nib_text value)
{
    if (value.size && *value.bytes == '\n')
        skip(&value, 1);
    if (value.size && value.bytes[value.size - 1] == '\n')
        value.size--;
    return value;
}

// What is known of a call while its arguments are read.
struct arguments {
    const struct nib_tool_markup *markup;
    json_t *parameters; // its tool's schema, or NULL
    json_t *names;      // an object: those that have been read
    struct nib_writer out;
};

// False for a name that is taken or bytes that are no UTF-8.
static bool write_argument(struct arguments *arguments, struct nib_text name, struct nib_text value)
{
    json_t *string = json_stringn(name.bytes, name.size);
    const char *key = json_string_value(string);
    bool fine = key && strlen(key) == name.size && !json_object_get(arguments->names, key);
    if (fine && json_object_size(arguments->names))
        nib_write_string(&arguments->out, ", ");
    fine = fine && json_object_set_new(arguments->names, key, json_true()) == 0 &&
           write_string(&arguments->out, name);
    if (fine) {
        nib_write_string(&arguments->out, ": ");
        fine = write_value_of(&arguments->out, arguments->markup, without_breaks(value),
                              argument_types(arguments->parameters, key));
    }
    json_decref(string);
    return fine;
}

static bool read_arguments(struct nib_text *text, struct arguments *arguments)
{
    const struct nib_tool_markup *markup = arguments->markup;
    for (;;) {
        struct nib_text name, value;
        skip_space(text);
        if (take(text, markup->call_end))
            return true;
        if (!take(text, markup->argument) || !take_name(text, &name) || !take_value(text, markup, &value) ||
            !write_argument(arguments, name, value))
            return false;
    }
}

static json_t *parameters_of(struct nib_text name, const struct nib_tool *tools, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (nib_text_equal(tools[i].name, name))
            return json_loadb(tools[i].parameters.bytes ? tools[i].parameters.bytes : "", tools[i].parameters.size,
                              JSON_ALLOW_NUL, NULL);
    return NULL;
}

// Appends one call; false if none begins here.
static bool read_call(struct nib_text *text, const struct nib_tool_markup *markup, const struct nib_tool *tools,
                      size_t count, json_t *calls)
{
    struct nib_text name;
    if (!take(text, markup->call) || !take_name(text, &name))
        return false;
    json_t *spelled = json_stringn(name.bytes, name.size);
    struct arguments arguments = {
        .markup = markup, .parameters = parameters_of(name, tools, count), .names = json_object()};
    nib_write_string(&arguments.out, "{");
    bool read = spelled && arguments.names && read_arguments(text, &arguments);
    nib_write_string(&arguments.out, "}");
    struct nib_text written = nib_writer_text(&arguments.out);
    if (read && !arguments.out.failed)
        read = json_array_append_new(calls, json_pack("{s:O, s:s%}", "name", spelled, "arguments", written.bytes,
                                                      written.size)) == 0;
    nib_bytes_free(&arguments.out.buffer);
    json_decref(arguments.parameters);
    json_decref(arguments.names);
    json_decref(spelled);
    return read;
}

json_t *nib_markup_read(const struct nib_tool_markup *markup, struct nib_text text, const struct nib_tool *tools,
                        size_t count)
{
    json_t *calls = json_array();
    bool read = calls != NULL;
    skip_space(&text);
    while (read && text.size) {
        read = read_call(&text, markup, tools, count, calls);
        skip_space(&text);
    }
    if (read && json_array_size(calls))
        return calls;
    json_decref(calls);
    return NULL;
}

bool nib_markup_in_argument(const struct nib_tool_markup *markup, struct nib_text text)
{
    bool within = false;
    text = nib_text_trimmed(text);
    for (; text.size; skip(&text, 1))
        if (!within)
            within = begins(text, markup->argument);
        else if (argument_ends(text, markup) || nib_text_equal(text, nib_text_of(markup->argument_end)))
            within = false; // the last end tag ends an argument whatever follows
    return within;
}

bool nib_markup_reads_as(const struct nib_tool_markup *markup, struct nib_text text, unsigned types,
                         const json_t *value)
{
    struct nib_writer out = {0};
    bool whole = !text.size || !memmem(text.bytes, text.size, markup->argument_end, strlen(markup->argument_end));
    bool read = whole && write_value_of(&out, markup, without_breaks(text), types) && !out.failed;
    json_t *back =
        read ? json_loadb(out.buffer.data, out.buffer.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    bool same = back && nib_schema_same(back, value);
    json_decref(back);
    nib_bytes_free(&out.buffer);
    return same;
}

// ---- writing

void nib_markup_write_value(struct nib_writer *out, const struct nib_tool_markup *markup, const json_t *value)
{
    if (json_is_string(value)) {
        nib_write(out, json_string_value(value), json_string_length(value));
    } else if (json_is_null(value)) {
        nib_write_string(out, markup->null);
    } else if (json_is_boolean(value)) {
        nib_write_string(out, json_is_true(value) ? markup->yes : markup->no);
    } else {
        nib_write_json(out, value, 0);
    }
}

void nib_markup_write_arguments(struct nib_writer *out, const struct nib_tool_markup *markup,
                                struct nib_text arguments)
{
    json_t *read = arguments.size ? json_loadb(arguments.bytes, arguments.size, JSON_ALLOW_NUL, NULL) : NULL,
           *value;
    const char *key;
    if (arguments.size && !json_is_object(read)) {
        nib_write_text(out, arguments);
        nib_write_string(out, "\n");
    }
    json_object_foreach(read, key, value)
    {
        nib_write_string(out, markup->argument);
        nib_write_string(out, markup->before_name);
        nib_write_string(out, key);
        nib_write_string(out, markup->behind_name);
        nib_markup_write_value(out, markup, value);
        nib_write_string(out, markup->argument_end);
        nib_write_string(out, "\n");
    }
    json_decref(read);
}
