// Schemas as automatons: what they accept and what they refuse.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/compiled_schema.h"

// The configuration behind a text, -1 when it is refused.
static int32_t feed(struct compiled *c, const char *text)
{
    int32_t config = c->automaton.first;
    for (; *text && config >= 0; text++)
        config = nib_automaton_step(&c->automaton, config, (uint8_t)*text);
    return config;
}

static bool accepts(struct compiled *c, const char *text)
{
    int32_t config = feed(c, text);
    return config >= 0 && c->automaton.configs[config]->accepting;
}

// Texts that are accepted, then NULL, then texts that are not, then NULL.
static void check(const char *schema, const char *const *texts)
{
    struct compiled c;
    compile(&c, schema);
    bool wanted = true;
    for (int seen = 0; seen < 2; texts++) {
        if (!*texts) {
            seen++;
            wanted = false;
        } else if (accepts(&c, *texts) != wanted) {
            fail_msg("%s: %s is %s", schema, *texts, wanted ? "refused" : "accepted");
        }
    }
    release(&c);
}

#define CHECK(schema, ...) check(schema, (const char *const[]){__VA_ARGS__, NULL})

static void test_plain_types(void **state)
{
    (void)state;
    CHECK("{\"type\":\"boolean\"}", "true", "false", NULL, "tru", "null", "True", "");
    CHECK("{\"type\":\"null\"}", "null", NULL, "0");
    CHECK("{\"type\":[\"string\",\"null\"],\"maxLength\":2}", "null", "\"ab\"", NULL, "\"abc\"", "1");
    CHECK("{\"type\":\"integer\"}", "0", "-12", "123456789", NULL, "01", "1.5", "-", "1e5", "+1");
    CHECK("{\"type\":\"number\"}", "0", "-0.5", "3.25e-07", "1E9", NULL, ".5", "1.", "00", "NaN", "1e");
    CHECK("{}", "{}", "[]", "[1, \"a\", {\"b\": null}]", "\"x\"", "-1.5", NULL, "{a:1}", "[1,]", "{\"a\":1,}", "[",
          " 1");
    CHECK("true", "1", "{\"a\":[]}", NULL, "x");
}

static void test_strings(void **state)
{
    (void)state;
    CHECK("{\"type\":\"string\"}", "\"\"", "\"a b\"", "\"\\\"\\\\\\n\\u00e9\"", "\"日本 🦀\"", NULL, "\"a",
          "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"");
    CHECK("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"ab\"", "\"日本語\"", "\"a\\n\"",
          "\"\\u0041bc\"", NULL, "\"a\"", "\"abcd\"", "\"日\"", "\"\"");
    CHECK("{\"type\":\"string\",\"minLength\":1}", "\"a\"", "\"abcdefgh\"", NULL, "\"\"");
    CHECK("{\"type\":\"string\",\"maxLength\":0}", "\"\"", NULL, "\"a\"");
}

static void test_patterns(void **state)
{
    (void)state;
    CHECK("{\"type\":\"string\",\"pattern\":\"^[a-c]+$\"}", "\"abc\"", "\"a\"", NULL, "\"\"", "\"abd\"");
    CHECK("{\"pattern\":\"^\\\\d{3}-\\\\d{2,3}$\"}", "\"123-45\"", "\"123-456\"", NULL, "\"123-4\"", "\"12-45\"",
          "\"123-4567\"");
    CHECK("{\"pattern\":\"b\"}", "\"b\"", "\"abc\"", "\"日b\"", NULL, "\"ac\"", "\"\"");
    CHECK("{\"pattern\":\"^(foo|ba(r|z)?)$\"}", "\"foo\"", "\"ba\"", "\"baz\"", NULL, "\"fo\"", "\"bazz\"");
    CHECK("{\"pattern\":\"^a|b$\"}", "\"axx\"", "\"xxb\"", NULL, "\"xax\"", "\"bx\"");
    CHECK("{\"pattern\":\"^[^a]$\"}", "\"b\"", "\"é\"", "\"🦀\"", "\"\\\"\"", "\"\\n\"", NULL, "\"a\"",
          "\"\"\"");
    CHECK("{\"pattern\":\"^[à-ü]*$\"}", "\"éü\"", "\"\"", NULL, "\"a\"", "\"ÿ\"");
    CHECK("{\"pattern\":\"^\\\"\\\\\\\\$\"}", "\"\\\"\\\\\"", NULL, "\"\"\"");
    CHECK("{\"pattern\":\"^\\\\w+@\\\\w+\\\\.com$\"}", "\"a_1@b.com\"", NULL, "\"a@bxcom\"", "\"@b.com\"");
    CHECK("{\"pattern\":\"^.{0,2}$\"}", "\"\"", "\"ab\"", NULL, "\"abc\"", "\"\\n\"", "\"\u2028\"");
    CHECK("{\"pattern\":\"^\\\\S+$\"}", "\"文\"", NULL, "\"文\u3000字\"", "\"\u00a0\"", "\"\u2009\"");
    CHECK("{\"pattern\":\"^[^\\\\s]+$\"}", "\"文\"", NULL, "\"\u3000\"", "\"\\t\"");
    CHECK("{\"pattern\":\"^a\\\\sb$\"}", "\"a b\"", "\"a\u3000b\"", "\"a\\tb\"", NULL, "\"ab\"");
}

static void test_bounds_of_numbers(void **state)
{
    (void)state;
    CHECK("{\"type\":\"integer\",\"minimum\":5,\"maximum\":120}", "5", "9", "10", "99", "100", "120", NULL, "4",
          "121", "0", "-5", "05", "1000");
    CHECK("{\"type\":\"integer\",\"minimum\":-3,\"exclusiveMaximum\":2}", "-3", "-1", "0", "1", NULL, "-4", "2",
          "-0", "10");
    CHECK("{\"type\":\"integer\",\"exclusiveMinimum\":1.5,\"maximum\":3.9}", "2", "3", NULL, "1", "4");
    CHECK("{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":2}", "0.5", "0.50", "1", "1.999", NULL,
          "0.49", "2", "2.0", "0", "3", "0.4999");
    CHECK("{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.1", "1", "123.5", NULL, "0", "0.0", "-1", "0.00");
    CHECK("{\"type\":\"number\",\"maximum\":-1.25}", "-1.25", "-2", "-1.3", NULL, "-1.24", "0", "1", "-1.2");
    CHECK("{\"type\":\"integer\",\"minimum\":7,\"maximum\":7}", "7", NULL, "6", "8", "77");
    CHECK("{\"type\":\"integer\",\"minimum\":-0.5}", "0", "7", NULL, "-7", "-0", ".5", "/3");
    CHECK("{\"type\":\"number\",\"minimum\":-0.0,\"maximum\":1}", "0", "0.5", NULL, "-0.5", ".5", "2");
    CHECK("{\"type\":\"number\",\"maximum\":-0.0}", "0", "-1", NULL, "1", "0.1");
    // Bounds that 15 digits do not write.
    CHECK("{\"type\":\"number\",\"minimum\":1e-20}", "0.000000000000001", "1", NULL, "0", "0.0");
    CHECK("{\"type\":\"number\",\"exclusiveMaximum\":1e-20}", "0", "-1", NULL, "0.000000000000001");
    CHECK("{\"type\":\"number\",\"minimum\":0.30000000000000004}", "0.300000000000001", NULL, "0.3");
    CHECK("{\"type\":\"number\",\"maximum\":123456.78901234567}", "123456.789012345669", "123456.789012345", NULL,
          "123456.7890123457");
}

static void test_numbers_against_arithmetic(void **state)
{
    (void)state;
    for (int low = -130; low <= 130; low += 37)
        for (int high = low; high <= 230; high += 61) {
            char schema[128], text[16];
            struct compiled c;
            snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", low, high);
            compile(&c, schema);
            for (int n = -250; n <= 250; n++) {
                snprintf(text, sizeof text, "%d", n);
                if (accepts(&c, text) != (n >= low && n <= high))
                    fail_msg("%s: %d", schema, n);
            }
            release(&c);
        }
}

static void test_objects(void **state)
{
    (void)state;
    CHECK("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},"
          "\"required\":[\"a\"]}",
          "{\"a\": 1, \"b\": \"x\"}", "{\"a\":1}", "{\n  \"a\": 1\n}", NULL, "{}", "{\"b\": \"x\"}",
          "{\"a\": 1, \"c\": 2}", "{\"b\": \"x\", \"a\": 1}", "{\"a\": 1,}", "{\"a\": \"1\"}");
    CHECK("{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"c\"]}", "{\"c\":1}", "{\"b\":1,\"c\":2}",
          "{\"a\":[],\"c\":2}", NULL, "{,\"c\":1}", "{\"a\":1}", "{\"a\":1 \"c\":2}");
    CHECK("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"properties\":{\"ab\":{\"type\":"
          "\"string\"}}}",
          "{}", "{\"ab\": \"x\"}", "{\"ab\": \"x\", \"a\": 1, \"abc\": 2, \"b\": 3}", "{\"x\": 1}", NULL,
          "{\"ab\": 1}", "{\"x\": \"y\"}", "{\"x\": 1, \"ab\": 2}");
    CHECK("{\"properties\":{\"名\":{},\"é\":{},\"日本\":{},\"a\":{}},\"additionalProperties\":{\"type\":"
          "\"integer\"}}",
          "{\"年\":1}", "{\"ê\":1,\"吏\":2}", "{\"日\":1}", "{\"日月\":1}", "{\"日本語\":1}", "{\"aé\":1}",
          "{\"🦀\":1}", "{\"é\":null,\"éa\":1}", "{\"名\":null}", NULL, "{\"年\":null}", "{\"é\":null,\"é\":1}",
          "{\"日本\":1,\"日本\":1}", "{\"\xe5\":1}", "{\"\xed\xa0\x80\":1}");
    CHECK("{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", "{}", NULL, "{\"a\": 1}");
    CHECK("{\"type\":\"object\",\"required\":[\"k\"]}", "{\"k\": 1}", "{\"k\": 1, \"l\": 2}", NULL, "{}");
    CHECK("{\"type\":\"object\",\"properties\":{\"q\\\"t\":{\"const\":1}},\"required\":[\"q\\\"t\"]}",
          "{\"q\\\"t\":1}", NULL, "{}");
}

static void test_arrays(void **state)
{
    (void)state;
    CHECK("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[]", "[1]", "[1, 2,3]", "[\n  1,\n  2\n]",
          NULL, "[1,]", "[,1]", "[\"a\"]", "[1 2]");
    CHECK("{\"type\":\"array\",\"minItems\":2,\"maxItems\":3}", "[1,2]", "[1,2,3]", NULL, "[]", "[1]",
          "[1,2,3,4]");
    CHECK("{\"type\":\"array\",\"maxItems\":0}", "[]", NULL, "[1]");
}

static void test_tuples_and_sets(void **state)
{
    (void)state;
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}", "[]", "[1]",
          "[1, \"a\"]", NULL, "[\"a\"]", "[1,2]", "[1,\"a\",null]");
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"minItems\":1}", "[1]",
          "[1,null]", "[1,null,null,null]", NULL, "[]", "[null]", "[1,1]", "[1,null,1]");
    CHECK("{\"prefixItems\":[{\"type\":\"integer\"},true],\"maxItems\":3,\"minItems\":2}", "[1,\"x\"]",
          "[1,[],{}]", NULL, "[1]", "[1,2,3,4]", "[\"x\",1]");
    CHECK("{\"items\":{\"enum\":[\"a\",\"b\",1]},\"uniqueItems\":true}", "[]", "[\"a\"]", "[1, \"b\",\"a\"]", NULL,
          "[\"a\",\"a\"]", "[1,\"b\",1]", "[\"a\",]", "[2]");
    CHECK("{\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":1,\"maxItems\":9}", "[true]",
          "[false,true]", NULL, "[]", "[true,true]", "[true,false,true]");
    CHECK("{\"items\":{\"type\":\"string\",\"enum\":[\"a\",1]},\"uniqueItems\":true}", "[\"a\"]", NULL, "[1]",
          "[\"a\",1]");
    CHECK("{\"uniqueItems\":true,\"maxItems\":1,\"items\":{\"type\":\"string\"}}", "[]", "[\"x\"]", NULL,
          "[\"x\",\"y\"]");
    CHECK("{\"uniqueItems\":true,\"minItems\":2,\"items\":{\"$ref\":\"#/$defs/"
          "e\"},\"$defs\":{\"e\":{\"enum\":[1,2]}}}",
          "[1,2]", "[2,1]", NULL, "[1]", "[1,1]");
}

static void test_multiples(void **state)
{
    (void)state;
    CHECK("{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":-7,\"maximum\":11}", "-5", "0", "5", "10", NULL,
          "-10", "1", "15", "-0", "05");
    CHECK("{\"type\":\"number\",\"multipleOf\":2,\"exclusiveMinimum\":0,\"exclusiveMaximum\":4}", "2", NULL, "0",
          "4", "3", "2.5");
    CHECK("{\"type\":\"integer\",\"multipleOf\":250000000,\"minimum\":0,\"maximum\":1000000000}", "0", "750000000",
          NULL, "250000001");
    static const int divisors[] = {1, 2, 3, 7, 10, 12, 64, 99, 100, 255, 256};
    for (size_t i = 0; i < sizeof divisors / sizeof *divisors; i++) {
        struct compiled any, positive;
        char schema[96], text[24];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"multipleOf\":%d}", divisors[i]);
        compile(&any, schema);
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"multipleOf\":%d,\"minimum\":1}", divisors[i]);
        compile(&positive, schema);
        for (int n = -600; n <= 600; n++) {
            snprintf(text, sizeof text, "%d", n);
            assert_int_equal(accepts(&any, text), n % divisors[i] == 0);
            assert_int_equal(accepts(&positive, text), n > 0 && n % divisors[i] == 0);
        }
        // Wherever digits lead, a multiple can be reached: no text ends in a place without a way on.
        uint32_t random = (uint32_t)divisors[i];
        for (int run = 0; run < 200; run++) {
            int32_t config = any.automaton.first, next = config;
            for (int length = 0; length < 20 && next >= 0; length++) {
                config = next;
                next = -1;
                random = random * 1664525u + 1013904223u;
                for (int d = 0; d < 10 && next < 0; d++)
                    next = nib_automaton_step(&any.automaton, config,
                                              (uint8_t)('0' + (d + (int)(random >> 16)) % 10));
            }
            assert_true(any.automaton.configs[config]->accepting);
        }
        release(&any);
        release(&positive);
    }
}

static void test_pattern_properties(void **state)
{
    (void)state;
    const char *schema = "{\"type\":\"object\",\"patternProperties\":{\"^x-[a-z]+$\":{\"type\":\"integer\"}},"
                         "\"additionalProperties\":false}";
    CHECK(schema, "{}", "{\"x-a\": 1}", "{\"x-a\":1, \"x-bc\":2}", NULL, "{\"x-\":1}", "{\"a\":1}",
          "{\"x-a\":\"1\"}");
    CHECK("{\"patternProperties\":{\"\":{\"type\":\"null\"}}}", "{}", "{\"any\": null}", NULL, "{\"a\":1}");
}

static void test_one_of_what_excludes_each_other(void **state)
{
    (void)state;
    CHECK("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":[\"string\",\"null\"]}]}", "1", "\"a\"", "null", NULL,
          "true");
    CHECK("{\"oneOf\":[{\"const\":1},{\"const\":1.5},{\"const\":[1]}]}", "1", "1.5", "[1]", NULL, "2");
    CHECK("{\"const\":1,\"enum\":[1.0,2]}", "1.0", NULL, "2");
    CHECK("{\"oneOf\":[{\"const\":1},{\"enum\":[2,\"3\"]}]}", "1", "2", "\"3\"", NULL, "3");
    CHECK(
        "{\"oneOf\":[{\"$ref\":\"#/$defs/cat\"},{\"$ref\":\"#/$defs/"
        "dog\"}],\"discriminator\":{\"propertyName\":\"kind\"},"
        "\"$defs\":{\"cat\":{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"cat\"},\"lives\":{\"type\":"
        "\"integer\"}},\"required\":[\"kind\",\"lives\"]},\"dog\":{\"type\":\"object\",\"properties\":{\"kind\":{"
        "\"const\":"
        "\"dog\"}},\"required\":[\"kind\"]}}}",
        "{\"kind\": \"cat\", \"lives\": 9}", "{\"kind\": \"dog\"}", NULL, "{\"kind\": \"cat\"}",
        "{\"kind\": \"cow\"}");
    CHECK("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}},\"required\":[\"a\"],"
          "\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"null\"}},"
          "\"required\":"
          "[\"b\"],\"additionalProperties\":false}]}",
          "{\"a\": null}", "{\"b\": null}", NULL, "{}", "{\"c\": null}");
}

static void test_annotations_change_nothing(void **state)
{
    (void)state;
    CHECK("{\"type\":\"integer\",\"title\":\"T\",\"description\":\"d\",\"default\":1,\"examples\":[2],\"$schema\":"
          "\"s\","
          "\"$id\":\"i\",\"$comment\":\"c\",\"deprecated\":true,\"readOnly\":true,\"writeOnly\":true,\"format\":"
          "\"int32\","
          "\"$anchor\":\"a\",\"$defs\":{},\"definitions\":{},\"contentEncoding\":\"x\",\"contentMediaType\":\"y\","
          "\"contentSchema\":{}}",
          "1", NULL, "\"1\"");
    CHECK("{\"type\":\"string\",\"format\":\"date-time\"}", "\"2025-01-01T00:00:00Z\"", NULL, "1");
}

// More values than places that may be open at once.
static void test_many_values(void **state)
{
    (void)state;
    struct compiled c;
    char text[16];
    json_t *values = json_array(), *schema = json_pack("{so}", "enum", values);
    for (int i = 0; i < 6000; i++) {
        snprintf(text, sizeof text, "id%d", 10000 + i);
        assert_int_equal(json_array_append_new(values, json_string(text)), 0);
    }
    char *written = json_dumps(schema, 0);
    assert_non_null(written);
    compile(&c, written);
    for (int i = 0; i < 6000; i++) {
        snprintf(text, sizeof text, "\"id%d\"", 10000 + i);
        assert_true(accepts(&c, text));
    }
    assert_false(accepts(&c, "\"id1000\""));
    assert_false(accepts(&c, "\"id16000\""));
    release(&c);
    free(written);
    json_decref(schema);
}

// A schema of `n` alternatives, each an object with a property of its own.
static json_t *alternatives(int n)
{
    json_t *all = json_array();
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_array_append_new(all, json_pack("{s:s, s:{s:{s:s}}, s:[s], s:b}", "type", "object", "properties",
                                             name, "type", "null", "required", name, "additionalProperties", 0));
    }
    return json_pack("{s:o}", "anyOf", all);
}

static void test_many_alternatives(void **state)
{
    (void)state;
    json_t *schema = alternatives(3000);
    char *text = json_dumps(schema, 0);
    struct compiled c;
    compile(&c, text);
    assert_true(accepts(&c, "{\"p0\":null}"));
    assert_true(accepts(&c, "{\"p2999\":null}"));
    assert_false(accepts(&c, "{\"p3000\":null}"));
    release(&c);
    free(text);
    json_decref(schema);
    // Too many are refused rather than forgotten.
    int32_t rule;
    struct nib_error err = {0};
    schema = alternatives(9000);
    memset(&c, 0, sizeof c);
    nib_status status = nib_json_schema_compile(schema, &c.rules, &rule, &err);
    if (!status)
        status = nib_automaton_init(&c.automaton, &c.rules, rule, &err);
    assert_int_equal(status, NIB_ERR_UNSUPPORTED);
    release(&c);
    json_decref(schema);
}

static void test_choices_and_references(void **state)
{
    (void)state;
    CHECK("{\"enum\":[\"a\",1,null,{\"x\":[1,2]}]}", "\"a\"", "1", "null", "{\"x\":[1,2]}", NULL, "\"b\"", "2");
    CHECK("{\"type\":\"string\",\"enum\":[\"a\",1]}", "\"a\"", NULL, "1");
    CHECK("{\"enum\":[0.1,12,1,[2.5,0.7],0.30000000000000004]}", "0.1", "1", "12", "[2.5,0.7]",
          "0.30000000000000004", NULL, "0.10000000000000001", "0.3", "2", "[2.5]");
    CHECK("{\"type\":\"integer\",\"enum\":[1.0,1.5]}", "1.0", NULL, "1.5");
    CHECK("{\"const\":\"é\\n\"}", "\"é\\n\"", NULL, "\"e\"");
    CHECK("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"title\":\"T\",\"default\":null}", "1", "null",
          NULL, "\"1\"");
    CHECK(
        "{\"$ref\":\"#/$defs/"
        "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/t\"},"
        "{\"type\":\"null\"}]}},\"required\":[\"next\"]}}}",
        "{\"next\": null}", "{\"next\": {\"next\": {\"next\": null}}}", NULL, "{\"next\": {}}", "{}");
    CHECK("{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
          "{\"c\": [{}, {\"c\": []}]}", NULL, "{\"c\": [1]}");
    CHECK("{\"allOf\":[{\"type\":\"integer\"}]}", "1", NULL, "\"a\"");
}

static void test_what_is_not_supported_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *words[2];
        nib_status status;
    } cases[] = {
        {"{\"not\":{}}", {"'not'", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"oneOf\":[]}}}",
         {"'oneOf'", "#/properties/a"},
         NIB_ERR_ARGUMENT},
        {"{\"type\":\"number\",\"multipleOf\":0.5}", {"'multipleOf'", "whole"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"number\",\"multipleOf\":0}", {"'multipleOf'", "above 0"}, NIB_ERR_ARGUMENT},
        {"{\"type\":\"integer\",\"multipleOf\":3,\"maximum\":9}", {"'multipleOf'", "bound"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"integer\",\"multipleOf\":300}", {"'multipleOf'", "256"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}",
         {"'multipleOf'", "no number"},
         NIB_ERR_ARGUMENT},
        {"{\"pattern\":\"a{}\"}", {"repetition", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"pattern\":\"a{,3}\"}", {"repetition", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"pattern\":\"a{1, 3}\"}", {"repetition", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"pattern\":\"[\\\\ud83c-\\\\ud83e][\\\\udc00-\\\\udfff]\"}",
         {"no character", "#"},
         NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"array\",\"uniqueItems\":true}", {"'uniqueItems'", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9]}}",
         {"'uniqueItems'", "8"},
         NIB_ERR_UNSUPPORTED},
        {"{\"uniqueItems\":true,\"items\":{\"enum\":[1,5],\"minimum\":3}}",
         {"'minimum'", "#/items"},
         NIB_ERR_UNSUPPORTED},
        {"{\"uniqueItems\":true,\"minItems\":3,\"items\":{\"enum\":[1,2,2]}}",
         {"'minItems'", "#"},
         NIB_ERR_ARGUMENT},
        {"{\"prefixItems\":[true],\"items\":false,\"minItems\":2}", {"'minItems'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"prefixItems\":[]}", {"'prefixItems'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"patternProperties\":{\"a\":{},\"b\":{}}}",
         {"'patternProperties'", "one pattern"},
         NIB_ERR_UNSUPPORTED},
        {"{\"properties\":{\"a\":{}},\"patternProperties\":{\"a\":{}}}",
         {"'patternProperties'", "#"},
         NIB_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", {"'oneOf'", "exclude"}, NIB_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"const\":{\"a\":[1]}},{\"enum\":[{\"a\":[1.0]}]}]}",
         {"'oneOf'", "exclude"},
         NIB_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
         {"'oneOf'", "exclude"},
         NIB_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"enum\":[1,2]},{\"enum\":[2,3]}]}", {"'oneOf'", "exclude"}, NIB_ERR_UNSUPPORTED},
        {"{\"oneOf\":[{\"required\":[\"a\"],\"properties\":{\"a\":{}}},{\"required\":[\"b\"],\"properties\":{"
         "\"b\":{}}}]}",
         {"'oneOf'", "exclude"},
         NIB_ERR_UNSUPPORTED},
        {"{\"if\":{},\"then\":{}}", {"'if'", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"object\",\"minProperties\":1}", {"'minProperties'", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"array\",\"contains\":{}}", {"'contains'", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"allOf\":[{},{}]}", {"'allOf'", "#"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", {"pattern", "group"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", {"pattern", "escape"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", {"pattern", "group"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"a{2000}\"}", {"pattern", "repetition"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"maxLength\":100000}", {"'maxLength'", "4096"}, NIB_ERR_UNSUPPORTED},
        {"{\"type\":\"thing\"}", {"'type'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"type\":7}", {"'type'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"enum\":[]}", {"'enum'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"$ref\":\"#/$defs/x\"}", {"'$ref'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", {"'minimum'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"type\":\"integer\",\"minimum\":\"3\"}", {"'minimum'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"type\":\"array\",\"items\":[]}", {"#/items", "object"}, NIB_ERR_ARGUMENT},
        {"{\"type\":\"object\",\"properties\":[]}", {"'properties'", "#"}, NIB_ERR_ARGUMENT},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"b\"],\"additionalProperties\":false}",
         {"'required'", "#"},
         NIB_ERR_ARGUMENT},
        {"false", {"#", "object"}, NIB_ERR_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_error err = {0};
        struct nib_rules rules = {0};
        int32_t rule;
        json_t *json = json_loads(cases[i].schema, JSON_DECODE_ANY, NULL);
        assert_int_equal(nib_json_schema_compile(json, &rules, &rule, &err), cases[i].status);
        for (int w = 0; w < 2; w++)
            if (!strstr(err.message, cases[i].words[w]))
                fail_msg("%s: no %s in: %s", cases[i].schema, cases[i].words[w], err.message);
        nib_rules_free(&rules);
        json_decref(json);
    }
}

static void test_hostile_schemas_end(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"$ref\":\"#\"}",
        "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}",
        "{\"type\":\"string\",\"pattern\":\"((((a{1000}){1000}){1000}){1000})\"}",
        "{\"type\":\"string\",\"pattern\":\"((((){1000}){1000}){1000})*\"}",
        "{\"type\":\"array\",\"minItems\":4096,\"items\":{\"type\":\"array\",\"minItems\":4096}}",
        "{\"oneOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}",
        "{\"uniqueItems\":true,\"items\":{\"$ref\":\"#/items\"}}",
        "{\"oneOf\":[{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"$"
        "ref\":\"#\"}},"
        "\"required\":[\"a\"]}]}",
        "{\"patternProperties\":{\"(((a{1000}){1000}){1000})\":{\"$ref\":\"#\"}}}",
        // Which branches six ways at every one of sixteen steps.
        "{\"$defs\":{\"a\":{\"required\":[\"x\",\"y\",\"z\"],\"properties\":{\"x\":{\"$ref\":\"#/$defs/a\"},"
        "\"y\":{\"$ref\":\"#/$defs/a\"},\"z\":{\"$ref\":\"#/$defs/a\"}}},\"b\":{\"required\":[\"x\",\"y\",\"z\"],"
        "\"properties\":{\"x\":{\"$ref\":\"#/$defs/b\"},\"y\":{\"$ref\":\"#/$defs/b\"},\"z\":{\"$ref\":\"#/$defs/"
        "b\"}}}},"
        "\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}",
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        struct nib_rules rules = {0};
        struct nib_automaton automaton;
        int32_t rule;
        json_t *json = json_loads(schemas[i], 0, NULL);
        if (!nib_json_schema_compile(json, &rules, &rule, NULL)) {
            nib_automaton_init(&automaton, &rules, rule, NULL);
            nib_automaton_free(&automaton);
        }
        nib_rules_free(&rules);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_types),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_bounds_of_numbers),
        cmocka_unit_test(test_numbers_against_arithmetic),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tuples_and_sets),
        cmocka_unit_test(test_multiples),
        cmocka_unit_test(test_pattern_properties),
        cmocka_unit_test(test_one_of_what_excludes_each_other),
        cmocka_unit_test(test_annotations_change_nothing),
        cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_many_alternatives),
        cmocka_unit_test(test_choices_and_references),
        cmocka_unit_test(test_what_is_not_supported_is_named),
        cmocka_unit_test(test_hostile_schemas_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
