// JSON's own shapes as rules of a byte automaton; what schemas are compiled from.
#ifndef NIB_TEXT_JSON_RULES_H
#define NIB_TEXT_JSON_RULES_H

#include "text/byte_automaton.h"

// Rules that every schema may need, made when they are first needed.
enum nib_json_kind {
    NIB_JSON_WHITE,
    NIB_JSON_STRING,
    NIB_JSON_NUMBER,
    NIB_JSON_INTEGER,
    NIB_JSON_ANY,
    NIB_JSON_KINDS
};

struct nib_json_rules {
    struct nib_rules *rules;
    int32_t builtins[NIB_JSON_KINDS]; // -1: not yet
};

int32_t nib_json_builtin(struct nib_json_rules *c, enum nib_json_kind which);

// A string of least to most characters; most -1: any number.
int32_t nib_json_string(struct nib_rules *rules, int32_t least, int32_t most);

// Least to most (-1: any number of) items of one rule.
int32_t nib_json_array(struct nib_json_rules *c, int32_t item, int32_t least, int32_t most);

struct nib_json_property {
    char *key; // quoted, as JSON
    int32_t rule;
    bool required;
};

struct nib_json_object {
    struct nib_json_property *properties; /* [count] in the order in which they may come */
    size_t count, required;
    int32_t others; // rule of further properties; -1: there are none
};

// `names` are the keys without quotes, none of them with an escape; only needed with further properties.
int32_t nib_json_object(struct nib_json_rules *c, const struct nib_json_object *object,
                        const char *const *names /* [count] */);

#endif
