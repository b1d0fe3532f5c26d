#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/config.h"
#include "nibble/checkpoint.h"
#include "support/paths.h"

static struct nib_config *parse(const char *text)
{
    struct nib_config *config = NULL;
    struct nib_error err = {0};
    if (nib_config_parse(text, strlen(text), "some/config.json", &config, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return config;
}

static void reads_every_type(void **state)
{
    (void)state;
    struct nib_config *config = parse("{\"int\": 64, \"real\": 0.5, \"whole\": 32.0, \"yes\": true, \"no\": false,"
                                      " \"text\": \"silu\", \"list\": [1, 2.0, 3], \"kinds\": [\"a\", \"b\"],"
                                      " \"in\": {\"side\": {\"x\": 7}}, \"nothing\": null}");
    int64_t i;
    double r;
    bool b;
    const char *s;
    size_t n;
    assert_string_equal(nib_config_name(config), "some/config.json");
    assert_int_equal(nib_config_int(config, "int", 1, 64, &i, NULL), NIB_OK);
    assert_int_equal(i, 64);
    assert_int_equal(nib_config_int(config, "whole", 0, 100, &i, NULL), NIB_OK);
    assert_int_equal(i, 32);
    assert_int_equal(nib_config_int(config, "in.side.x", 0, 100, &i, NULL), NIB_OK);
    assert_int_equal(i, 7);
    assert_int_equal(nib_config_real(config, "real", 0, 1, &r, NULL), NIB_OK);
    assert_true(r == 0.5);
    assert_int_equal(nib_config_real(config, "int", 0, 100, &r, NULL), NIB_OK);
    assert_true(r == 64.0);
    assert_int_equal(nib_config_bool(config, "yes", &b, NULL), NIB_OK);
    assert_true(b);
    assert_int_equal(nib_config_bool(config, "no", &b, NULL), NIB_OK);
    assert_false(b);
    assert_int_equal(nib_config_string(config, "text", &s, NULL), NIB_OK);
    assert_string_equal(s, "silu");
    assert_int_equal(nib_config_length(config, "list", &n, NULL), NIB_OK);
    assert_int_equal(n, 3);
    assert_int_equal(nib_config_int_at(config, "list", 1, 0, 9, &i, NULL), NIB_OK);
    assert_int_equal(i, 2);
    assert_int_equal(nib_config_string_at(config, "kinds", 1, &s, NULL), NIB_OK);
    assert_string_equal(s, "b");
    // One value is a list of one.
    assert_int_equal(nib_config_length(config, "int", &n, NULL), NIB_OK);
    assert_int_equal(n, 1);
    assert_int_equal(nib_config_int_at(config, "int", 0, 0, 100, &i, NULL), NIB_OK);
    assert_int_equal(i, 64);
    assert_true(nib_config_has(config, "in.side"));
    assert_false(nib_config_has(config, "in.side.y"));
    assert_false(nib_config_has(config, "nothing"));
    assert_false(nib_config_has(config, "text.deeper"));
    assert_false(nib_config_has(config, ""));
    nib_config_free(config);
}

static void fallbacks_stand_in_for_absent_and_null_only(void **state)
{
    (void)state;
    struct nib_config *config = parse("{\"null\": null, \"wrong\": \"x\"}");
    int64_t i;
    double r;
    bool b;
    const char *s;
    static const char *const absent[] = {"null", "absent"};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(nib_config_int_or(config, absent[k], -1, 0, 9, &i, NULL), NIB_OK);
        assert_int_equal(i, -1);
        assert_int_equal(nib_config_real_or(config, absent[k], 1.5, 0, 1, &r, NULL), NIB_OK);
        assert_true(r == 1.5);
        assert_int_equal(nib_config_bool_or(config, absent[k], true, &b, NULL), NIB_OK);
        assert_true(b);
        assert_int_equal(nib_config_string_or(config, absent[k], "silu", &s, NULL), NIB_OK);
        assert_string_equal(s, "silu");
    }
    assert_int_equal(nib_config_int_or(config, "wrong", 1, 0, 9, &i, NULL), NIB_ERR_FORMAT);
    assert_int_equal(nib_config_real_or(config, "wrong", 1, 0, 9, &r, NULL), NIB_ERR_FORMAT);
    assert_int_equal(nib_config_bool_or(config, "wrong", true, &b, NULL), NIB_ERR_FORMAT);
    nib_config_free(config);
}

static void errors_name_file_key_and_value(void **state)
{
    (void)state;
    struct nib_config *config =
        parse("{\"half\": 0.5, \"big\": 1e300, \"neg\": -3, \"text\": \"abc\", \"list\": [1, \"two\"],"
              " \"flag\": 1, \"deep\": {\"x\": []}}");
    static const struct {
        char kind; // of getter: int, real, bool, string, element 1 as int
        const char *key;
        nib_status status;
        const char *says;
    } cases[] = {
        {'i', "half", NIB_ERR_FORMAT, "\"half\" is 0.5"},
        {'i', "big", NIB_ERR_FORMAT, "\"big\" is 1"},
        {'i', "neg", NIB_ERR_FORMAT, "\"neg\" is -3: outside 0 to 100"},
        {'i', "text", NIB_ERR_FORMAT, "\"text\" is \"abc\""},
        {'i', "deep.x", NIB_ERR_FORMAT, "\"deep.x\" is []"},
        {'i', "deep.y", NIB_ERR_NOT_FOUND, "no \"deep.y\""},
        {'r', "big", NIB_ERR_FORMAT, "outside 0 to 100"},
        {'r', "text", NIB_ERR_FORMAT, "not a number"},
        {'r', "none", NIB_ERR_NOT_FOUND, "no \"none\""},
        {'b', "flag", NIB_ERR_FORMAT, "not true or false"},
        {'b', "none", NIB_ERR_NOT_FOUND, "no \"none\""},
        {'s', "flag", NIB_ERR_FORMAT, "not a string"},
        {'s', "none", NIB_ERR_NOT_FOUND, "no \"none\""},
        {'e', "list", NIB_ERR_FORMAT, "\"list[1]\" is \"two\""},
        {'e', "half", NIB_ERR_NOT_FOUND, "has 1 entries"},
        {'e', "none", NIB_ERR_NOT_FOUND, "no \"none\""},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int64_t i = 0;
        double r = 0;
        bool b = false;
        const char *s = NULL, *key = cases[k].key;
        struct nib_error err = {0};
        nib_status status = cases[k].kind == 'i'   ? nib_config_int(config, key, 0, 100, &i, &err)
                            : cases[k].kind == 'r' ? nib_config_real(config, key, 0, 100, &r, &err)
                            : cases[k].kind == 'b' ? nib_config_bool(config, key, &b, &err)
                            : cases[k].kind == 's' ? nib_config_string(config, key, &s, &err)
                                                   : nib_config_int_at(config, key, 1, 0, 100, &i, &err);
        assert_int_equal(status, cases[k].status);
        assert_non_null(strstr(err.message, "some/config.json"));
        assert_non_null(strstr(err.message, cases[k].says));
    }
    struct nib_error err = {0};
    assert_int_equal(nib_config_refuse(config, "text", "only silu is computed here", &err), NIB_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "some/config.json: \"text\" is \"abc\": only silu is computed here");
    nib_config_free(config);
}

static void text_config_comes_before_the_top_level(void **state)
{
    (void)state;
    struct nib_config *config =
        parse("{\"hidden_size\": 1, \"tie\": true, \"rope_parameters\": {\"factor\": 2},"
              " \"text_config\": {\"hidden_size\": 64, \"rope_parameters\": {\"rope_theta\": 5}}}");
    int64_t i;
    bool b;
    assert_int_equal(nib_config_int(config, "hidden_size", 0, 100, &i, NULL), NIB_OK);
    assert_int_equal(i, 64);
    assert_int_equal(nib_config_bool(config, "tie", &b, NULL), NIB_OK);
    // Objects of the two levels do not mix.
    assert_false(nib_config_has(config, "rope_parameters.factor"));
    nib_config_free(config);
}

static struct nib_rope_config rope_of(const char *text, const char *layer_type)
{
    struct nib_config *config = parse(text);
    struct nib_rope_config rope;
    struct nib_error err = {0};
    if (nib_config_rope(config, layer_type, 0, &rope, &err) != NIB_OK)
        fail_msg("%s", err.message);
    static char type[16];
    snprintf(type, sizeof type, "%s", rope.type);
    rope.type = type;
    nib_config_free(config);
    return rope;
}

static void yarn_is_the_same_in_all_three_spellings(void **state)
{
    (void)state;
    static const char *const spellings[] = {
        "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 150000, \"factor\": 32.0, \"beta_fast\": "
        "32,"
        " \"beta_slow\": 1.0, \"original_max_position_embeddings\": 4096, \"truncate\": false}}",
        "{\"rope_theta\": 150000, \"max_position_embeddings\": 131072, \"rope_scaling\": {\"type\": \"yarn\","
        " \"factor\": 32, \"original_max_position_embeddings\": 4096, \"truncate\": false}}",
        "{\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32, \"truncate\": "
        "false},"
        " \"original_max_position_embeddings\": 4096}",
        "{\"rope_theta\": 150000, \"rope_scaling_factor\": 32.0, \"rope_ntk_alpha\": 1, \"rope_ntk_beta\": 32,"
        " \"initial_context_length\": 4096}",
    };
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        struct nib_rope_config rope = rope_of(spellings[i], NULL);
        assert_string_equal(rope.type, "yarn");
        assert_true(rope.theta == 150000 && rope.factor == 32 && rope.original_context == 4096);
        assert_true(rope.beta_fast == 32 && rope.beta_slow == 1 && rope.partial_rotary_factor == 1);
        assert_true(rope.mscale == 0 && rope.mscale_all_dim == 0 && rope.attention_factor == 0);
        assert_false(rope.truncate);
    }
}

static void a_rotary_setting_is_there_where_it_is_read(void **state)
{
    (void)state;
    static const char name[] = "partial_rotary_factor";
    static const struct {
        const char *text;
        bool full, sliding, flat;
    } cases[] = {
        {"{}", false, false, false},
        {"{\"partial_rotary_factor\": 0.5}", true, true, true},
        {"{\"partial_rotary_factor\": null, \"rope_scaling\": {\"partial_rotary_factor\": 0.5}}", true, true,
         true},
        {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", true, true, true},
        {"{\"rope_parameters\": {}, \"rope_scaling\": {\"partial_rotary_factor\": 0.5}}", true, true, true},
        {"{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}, \"rope_scaling\": {\"type\": \"default\"}}",
         false, false, false},
        {"{\"rope_parameters\": {\"sliding_attention\": {\"partial_rotary_factor\": 0.5}}}", false, true, false},
        {"{\"rope_parameters\": {\"sliding_attention\": {}, \"partial_rotary_factor\": 0.5}}", true, false, true},
        {"{\"rope_parameters\": 5}", false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_config *config = parse(cases[i].text);
        if (nib_config_has_rope(config, "full_attention", name) != cases[i].full ||
            nib_config_has_rope(config, "sliding_attention", name) != cases[i].sliding ||
            nib_config_has_rope(config, NULL, name) != cases[i].flat)
            fail_msg("%s", cases[i].text);
        nib_config_free(config);
    }
}

static void rope_defaults_and_layer_types(void **state)
{
    (void)state;
    struct nib_rope_config rope = rope_of("{\"rope_theta\": 1e4, \"rope_scaling\": null,"
                                          " \"max_position_embeddings\": 512, \"partial_rotary_factor\": 0.5}",
                                          NULL);
    assert_string_equal(rope.type, "default");
    assert_true(rope.theta == 1e4 && rope.factor == 1 && rope.original_context == 512);
    assert_true(rope.truncate && rope.partial_rotary_factor == 0.5);

    rope =
        rope_of("{\"rope_theta\": 1e4, \"max_position_embeddings\": 163840, \"rope_scaling\": {\"type\": \"yarn\","
                " \"factor\": null, \"original_max_position_embeddings\": 4096}}",
                NULL);
    assert_true(rope.factor == 40 && rope.original_context == 4096);

    // Both: rope_scaling counts unless it is empty.
    rope = rope_of("{\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4},"
                   " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5}}",
                   NULL);
    assert_string_equal(rope.type, "linear");
    assert_true(rope.theta == 1e4 && rope.factor == 4);
    rope = rope_of("{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5}}",
                   NULL);
    assert_true(rope.theta == 5 && rope.factor == 1);

    const char *nested = "{\"rope_theta\": 7, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5e6},"
                         " \"sliding_attention\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.25}}}";
    assert_true(rope_of(nested, "full_attention").theta == 5e6);
    assert_true(rope_of(nested, "sliding_attention").theta == 1e4);
    assert_true(rope_of(nested, "sliding_attention").partial_rotary_factor == 0.25);
    assert_true(rope_of(nested, NULL).theta == 7);
    assert_true(rope_of("{\"rope_parameters\": {\"rope_theta\": 3}}", "full_attention").theta == 3);

    rope = rope_of(
        "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 5e4, \"factor\": 64, \"mscale\": 1,"
        " \"mscale_all_dim\": 0.7, \"attention_factor\": 1.25}, \"max_position_embeddings\": 9}",
        NULL);
    assert_true(rope.mscale == 1 && rope.mscale_all_dim == 0.7 && rope.attention_factor == 1.25);
}

static void wrong_rope_settings_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        nib_status status;
        const char *says;
    } cases[] = {
        {"{}", NIB_ERR_NOT_FOUND, "rope_theta"},
        {"{\"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\"}, \"max_position_embeddings\": 512}",
         NIB_ERR_NOT_FOUND, "\"rope_scaling.factor\""},
        {"{\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 1}}", NIB_ERR_NOT_FOUND,
         "\"rope_parameters.factor\""},
        {"{\"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}}", NIB_ERR_NOT_FOUND,
         "original_max_position_embeddings"},
        {"{\"rope_scaling\": 5, \"rope_theta\": 1}", NIB_ERR_FORMAT, "\"rope_scaling\" is not an object"},
        {"{\"rope_parameters\": \"yarn\", \"rope_theta\": 1}", NIB_ERR_FORMAT, "rope_parameters"},
        {"{\"rope_theta\": \"1e4\"}", NIB_ERR_FORMAT, "rope_theta"},
        {"{\"rope_theta\": -1}", NIB_ERR_FORMAT, "rope_theta"},
        {"{\"rope_theta\": 1, \"rope_scaling\": {\"factor\": 0}}", NIB_ERR_FORMAT, "rope_scaling.factor"},
        {"{\"rope_theta\": 1, \"rope_scaling\": {\"rope_type\": 3}}", NIB_ERR_FORMAT, "rope_scaling.rope_type"},
        {"{\"rope_parameters\": {\"x\": {\"rope_theta\": 1, \"truncate\": 0}}}", NIB_ERR_FORMAT,
         "rope_parameters.x.truncate"},
        {"{\"rope_theta\": 1, \"partial_rotary_factor\": 2}", NIB_ERR_FORMAT, "partial_rotary_factor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_config *config = parse(cases[i].text);
        struct nib_rope_config rope;
        struct nib_error err = {0};
        assert_int_equal(nib_config_rope(config, "x", 0, &rope, &err), cases[i].status);
        assert_non_null(strstr(err.message, cases[i].says));
        assert_non_null(strstr(err.message, "some/config.json"));
        nib_config_free(config);
    }
}

static void refuses_what_is_not_one_json_object(void **state)
{
    (void)state;
    char deep[300] = "{\"a\":";
    memset(deep + 5, '[', 100);
    memset(deep + 105, ']', 100);
    strcpy(deep + 205, "}");
    const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "not an object"},
        {"{\"a\":1", "not valid JSON at line 1"},
        {"{\"a\":1}\n}", "line 2"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"a\\u0000\":1}", "not valid JSON"},
        {"{\"a\":\"\xff\"}", "not valid JSON"},
        {"{\"a\":1e999}", "not valid JSON"},
        {"{\"a\":99999999999999999999}", "not valid JSON"},
        {"{\"a\":NaN}", "not valid JSON"},
        {deep, "nested 101 deep"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_config *config = NULL;
        struct nib_error err = {0};
        assert_int_equal(nib_config_parse(cases[i].text, strlen(cases[i].text), "some/config.json", &config, &err),
                         NIB_ERR_FORMAT);
        assert_null(config);
        assert_non_null(strstr(err.message, "some/config.json"));
        assert_non_null(strstr(err.message, cases[i].says));
    }
}

static void brackets_inside_strings_are_no_nesting(void **state)
{
    (void)state;
    char text[300] = "{\"a\":\"\\\"\\\\";
    size_t at = strlen(text);
    memset(text + at, '[', 200);
    strcpy(text + at + 200, "\"}");
    nib_config_free(parse(text));
}

static void an_over_long_value_is_cut_in_messages(void **state)
{
    (void)state;
    char text[6000] = "{\"a\":\"";
    memset(text + 6, 'x', 5000);
    strcpy(text + 5006, "\"}");
    struct nib_config *config = parse(text);
    struct nib_error err = {0};
    int64_t value;
    assert_int_equal(nib_config_int(config, "a", 0, 1, &value, &err), NIB_ERR_FORMAT);
    assert_true(strlen(err.message) < 200);
    assert_non_null(strstr(err.message, "not an integer"));
    nib_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(fallbacks_stand_in_for_absent_and_null_only),
        cmocka_unit_test(errors_name_file_key_and_value),
        cmocka_unit_test(text_config_comes_before_the_top_level),
        cmocka_unit_test(yarn_is_the_same_in_all_three_spellings),
        cmocka_unit_test(a_rotary_setting_is_there_where_it_is_read),
        cmocka_unit_test(rope_defaults_and_layer_types),
        cmocka_unit_test(wrong_rope_settings_are_refused),
        cmocka_unit_test(refuses_what_is_not_one_json_object),
        cmocka_unit_test(brackets_inside_strings_are_no_nesting),
        cmocka_unit_test(an_over_long_value_is_cut_in_messages),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
