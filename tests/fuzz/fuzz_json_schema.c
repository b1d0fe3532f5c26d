// A schema, a NUL, and a text: compiles the one and feeds the other to the automaton as far as it goes.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text/json_schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t schema_size = end ? (size_t)(end - data) : size;
    json_t *schema = json_loadb((const char *)data, schema_size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    struct nib_rules rules = {0};
    struct nib_automaton automaton = {0};
    int32_t rule;
    if (schema && !nib_json_schema_compile(schema, &rules, &rule, NULL) &&
        !nib_automaton_init(&automaton, &rules, rule, NULL)) {
        int32_t config = automaton.first;
        for (size_t i = schema_size + 1; i < size && config >= 0; i++)
            config = nib_automaton_step(&automaton, config, data[i]);
    }
    nib_automaton_free(&automaton);
    nib_rules_free(&rules);
    json_decref(schema);
    return 0;
}
