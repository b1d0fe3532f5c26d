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

struct nib_json_items {
    int32_t *first; /* [n_first] rules of the first items */
    int32_t n_first;
    int32_t rest;        // rule of those behind them; -1: there are none
    int32_t least, most; // most -1: any number
};

int32_t nib_json_array(struct nib_json_rules *c, const struct nib_json_items *items);

// Arrays of least to most of the values, in any order, each at most once.
int32_t nib_json_unique_array(struct nib_json_rules *c, const char *const *values /* [count] JSON */,
                              int32_t count, int32_t least, int32_t most);

struct nib_json_property {
    char *key; // quoted, as JSON
    int32_t rule;
    bool required;
};

struct nib_json_object {
    struct nib_json_property *properties; /* [count] in the order in which they may come */
    size_t count, required;
    int32_t others;    // rule of further properties; -1: there are none
    int32_t other_key; // rule of their keys with quotes; -1: any string that is not the key of a property
};

// `names` are the keys without quotes, none of them with an escape; only needed with further properties.
int32_t nib_json_object(struct nib_json_rules *c, const struct nib_json_object *object,
                        const char *const *names /* [count] */);

#endif
