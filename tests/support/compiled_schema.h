// A JSON schema as an automaton, for tests. Include cmocka.h first.
#ifndef NIB_TEST_COMPILED_SCHEMA_H
#define NIB_TEST_COMPILED_SCHEMA_H

#include <string.h>

#include "text/json_schema.h"

struct compiled {
    struct nib_rules rules;
    struct nib_automaton automaton;
};

static inline void compile(struct compiled *c, const char *schema)
{
    struct nib_error err = {0};
    json_t *json = json_loads(schema, JSON_DECODE_ANY, NULL);
    int32_t rule;
    assert_non_null(json);
    memset(c, 0, sizeof *c);
    nib_status status = nib_json_schema_compile(json, &c->rules, &rule, &err);
    if (status)
        fail_msg("%s: %s", schema, err.message);
    json_decref(json);
    assert_int_equal(nib_automaton_init(&c->automaton, &c->rules, rule, &err), NIB_OK);
}

static inline void release(struct compiled *c)
{
    nib_automaton_free(&c->automaton);
    nib_rules_free(&c->rules);
}

#endif
