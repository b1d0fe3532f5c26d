#include "checkpoint/json.h"

#include <stdbool.h>

#include "base/error.h"

// The deepest nesting of brackets outside strings. jansson recurses, so this is asked before it sees the text.
static int nesting_depth(const char *text, size_t size)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest)
                deepest = depth;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return deepest;
}

nib_status nib_json_parse(const char *text, size_t size, const char *name, size_t max_size, int max_depth,
                          json_t **object, struct nib_error *err)
{
    if (size > max_size)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %zu bytes of JSON, at most %zu are accepted", name, size,
                        max_size);
    int depth = nesting_depth(text, size);
    if (depth > max_depth)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: JSON nested %d deep, at most %d is accepted", name, depth,
                        max_depth);
    json_error_t where;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: not valid JSON at line %d, column %d: %s", name, where.line,
                        where.column, where.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return nib_fail(err, NIB_ERR_FORMAT, "%s: the JSON is not an object", name);
    }
    *object = root;
    return NIB_OK;
}
