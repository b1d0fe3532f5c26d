// Whether two schemas have nothing in common, for "oneOf", and the values of schemas that list theirs.
#include <math.h>
#include <string.h>

#include "text/schema_compiler.h"

#define MAX_STEPS 16       // of references and properties that are followed
#define MAX_WORK 4000000   // values compared for one list of schemas: schemas that refer to themselves have no end
#define WORK_OF_SCHEMAS 16 // two schemas compared are as much work as so many values

enum { NULLS = 1, BOOLEANS = 2, NUMBERS = 4, STRINGS = 8, ARRAYS = 16, OBJECTS = 32, ANY = 63 };

static const json_t *follow(const json_t *root, const json_t *schema)
{
    for (int i = 0; i < MAX_STEPS && json_is_string(json_object_get(schema, "$ref")); i++)
        schema = nib_schema_resolve(root, json_string_value(json_object_get(schema, "$ref")));
    return schema;
}

json_t *nib_schema_list_values(const json_t *root, const json_t *schema)
{
    schema = follow(root, schema);
    const json_t *constant = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    const json_t *types = json_object_get(schema, "type");
    const char *type = json_string_value(types);
    json_t *values = json_array(), *value;
    size_t i;
    if (json_is_array(list)) {
        json_array_foreach((json_t *)list, i, value)
        {
            if (nib_schema_type_allows(types, value) && (!constant || nib_schema_same(value, constant)))
                json_array_append(values, value);
        }
    } else if (constant) {
        if (nib_schema_type_allows(types, constant))
            json_array_append(values, (json_t *)constant);
    } else if (type && strcmp(type, "boolean") == 0) {
        json_array_append_new(values, json_true());
        json_array_append_new(values, json_false());
    } else {
        json_decref(values);
        return NULL;
    }
    return values;
}

static bool same_number(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) == json_is_integer(b))
        return json_equal(a, b);
    double real = json_real_value(json_is_real(a) ? a : b);
    json_int_t integer = json_integer_value(json_is_real(a) ? b : a);
    return real >= -0x1p63 && real < 0x1p63 && real == trunc(real) && (json_int_t)real == integer;
}

bool nib_schema_same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *item;
    size_t i;
    bool same = true;
    if (json_is_number(a) && json_is_number(b))
        return same_number(a, b);
    if (json_is_array(a) && json_is_array(b)) {
        same = json_array_size(a) == json_array_size(b);
        json_array_foreach((json_t *)a, i, item) same = same && nib_schema_same(item, json_array_get(b, i));
        return same;
    }
    if (json_is_object(a) && json_is_object(b)) {
        same = json_object_size(a) == json_object_size(b);
        json_object_foreach((json_t *)a, key, item) same = same && nib_schema_same(item, json_object_get(b, key));
        return same;
    }
    return json_equal(a, b);
}

static int kind_of_value(const json_t *value)
{
    return json_is_null(value)      ? NULLS
           : json_is_boolean(value) ? BOOLEANS
           : json_is_number(value)  ? NUMBERS
           : json_is_string(value)  ? STRINGS
           : json_is_array(value)   ? ARRAYS
                                    : OBJECTS;
}

static int kind_of_name(const char *name)
{
    static const struct {
        const char *name;
        int kind;
    } names[] = {{"null", NULLS},     {"boolean", BOOLEANS}, {"number", NUMBERS}, {"integer", NUMBERS},
                 {"string", STRINGS}, {"array", ARRAYS},     {"object", OBJECTS}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (name && strcmp(names[i].name, name) == 0)
            return names[i].kind;
    return ANY;
}

// The types that a schema lets through, as far as it says so itself.
static int kinds_of(const json_t *root, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *item;
    json_t *values = nib_schema_list_values(root, schema);
    int kinds = 0;
    size_t i;
    if (values)
        json_array_foreach(values, i, item) kinds |= kind_of_value(item);
    else if (json_is_array(type))
        json_array_foreach((json_t *)type, i, item) kinds |= kind_of_name(json_string_value(item));
    else
        kinds = type ? kind_of_name(json_string_value(type)) : ANY;
    json_decref(values);
    return kinds;
}

// What a comparison goes by: the whole schema, and how much work is left.
struct comparison {
    const json_t *root;
    int64_t left;
};

// False when it would be too much.
static bool spend(struct comparison *c, size_t work)
{
    c->left = work < (size_t)c->left ? c->left - (int64_t)work : 0;
    return c->left > 0;
}

static bool values_exclude(struct comparison *c, const json_t *a, const json_t *b)
{
    json_t *of_a = nib_schema_list_values(c->root, a), *of_b = nib_schema_list_values(c->root, b), *x, *y;
    bool exclude =
        of_a && of_b && spend(c, json_array_size(of_a)) && spend(c, json_array_size(of_a) * json_array_size(of_b));
    size_t i, j;
    if (exclude)
        json_array_foreach(of_a, i, x) json_array_foreach(of_b, j, y) exclude &= !nib_schema_same(x, y);
    json_decref(of_a);
    json_decref(of_b);
    return exclude;
}

static bool requires(const json_t *schema, const char *name)
{
    const json_t *required = json_object_get(schema, "required"), *item;
    size_t i;
    json_array_foreach((json_t *)required, i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), name) == 0)
            return true;
    }
    return false;
}

static bool exclude(struct comparison *c, const json_t *a, const json_t *b, int steps);

// A property that one must have and the other must not, or that both must have with nothing in common.
static bool objects_exclude(struct comparison *c, const json_t *a, const json_t *b, int steps)
{
    const json_t *required = json_object_get(a, "required"), *item;
    const json_t *of_a = json_object_get(a, "properties"), *of_b = json_object_get(b, "properties");
    bool closed =
        json_is_false(json_object_get(b, "additionalProperties")) && !json_object_get(b, "patternProperties");
    size_t i;
    json_array_foreach((json_t *)required, i, item)
    {
        const char *name = json_string_value(item);
        if (!name || !spend(c, json_array_size(json_object_get(b, "required"))))
            continue;
        const json_t *x = json_object_get(of_a, name), *y = json_object_get(of_b, name);
        if ((closed && !y) || (x && y && requires(b, name) && exclude(c, x, y, steps - 1)))
            return true;
    }
    return false;
}

static bool exclude(struct comparison *c, const json_t *a, const json_t *b, int steps)
{
    a = follow(c->root, a);
    b = follow(c->root, b);
    if (!json_is_object(a) || !json_is_object(b) || steps == 0 || !spend(c, WORK_OF_SCHEMAS))
        return false;
    int common = kinds_of(c->root, a) & kinds_of(c->root, b);
    return common == 0 || values_exclude(c, a, b) ||
           (common == OBJECTS && (objects_exclude(c, a, b, steps) || objects_exclude(c, b, a, steps)));
}

bool nib_schemas_exclude_each_other(const json_t *root, const json_t *list)
{
    struct comparison c = {root, MAX_WORK};
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t j = 0; j < i; j++)
            if (!exclude(&c, json_array_get(list, i), json_array_get(list, j), MAX_STEPS))
                return false;
    return true;
}
