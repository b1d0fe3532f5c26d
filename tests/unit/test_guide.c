// Guides on every chat format: whatever tokens a guide lets through, the parser finds in them what was demanded.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "nibble/tokenizer.h"
#include "text/chat_format.h"
#include "text/guide.h"

static const char *const formats[] = {"harmony", "chatml", "mimo", "minimax", "kimi", "deepseek"};
enum { FORMATS = sizeof formats / sizeof *formats, LONGEST = 4000 };

// A model's side: the bytes, and the format's tags.
struct stage {
    struct nib_tokenizer *tokenizer;
    struct nib_chat *chat;
    struct nib_mask_vocabulary *vocabulary;
    const struct nib_tool *tools; /* [tool_count] for the parser, which types bare text by them */
    size_t tool_count;
};

static struct stage stage_open(const char *name)
{
    const struct nib_chat_format *format = nib_chat_format_find(name);
    struct nib_named_token specials[NIB_CHAT_CONTROLS];
    struct nib_tokenizer_preset preset = {.name = "test", .pattern = "[\\s\\S]", .specials = specials};
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char ranks[256 * 12], *at = ranks;
    for (int i = 0; i < 256; i++)
        at += sprintf(at, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
    for (; format->controls[preset.special_count].spelling; preset.special_count++)
        specials[preset.special_count] = (struct nib_named_token){format->controls[preset.special_count].spelling,
                                                                  256 + (int32_t)preset.special_count};
    struct stage stage = {0};
    struct nib_error err;
    if (nib_tokenizer_open_memory(&stage.tokenizer, ranks, (size_t)(at - ranks), "ranks", &preset, &err))
        fail_msg("%s", err.message);
    struct nib_vocabulary vocabulary = nib_vocabulary_of(stage.tokenizer);
    if (nib_chat_open(format, &vocabulary, &stage.chat, &err) ||
        nib_mask_vocabulary_create(stage.tokenizer, 300, &stage.vocabulary, &err))
        fail_msg("%s: %s", name, err.message);
    return stage;
}

static void stage_close(struct stage *stage)
{
    nib_mask_vocabulary_free(stage->vocabulary);
    nib_chat_close(stage->chat);
    nib_tokenizer_close(stage->tokenizer);
}

static bool stops(const struct stage *stage, int32_t token)
{
    size_t count;
    const int32_t *ids = nib_chat_stop_tokens(stage->chat, &count);
    for (size_t i = 0; i < count; i++)
        if (ids[i] == token)
            return true;
    return false;
}

// What there is to choose from: tags more often than bytes, so that texts end, and of bytes those that print.
static int32_t choose(const uint32_t *mask, uint32_t *random)
{
    int32_t tags[64], bytes[300];
    int n_tags = 0, n_bytes = 0;
    for (int32_t t = 0; t < 300; t++)
        if (mask[t / 32] >> (t % 32) & 1) {
            if (t >= 256)
                tags[n_tags++] = t;
            else if (t < 128 || n_bytes == 0)
                bytes[n_bytes++] = t;
        }
    *random = *random * 1664525u + 1013904223u;
    uint32_t r = *random >> 8;
    if (n_tags && (!n_bytes || r % 3 == 0))
        return tags[r / 3 % (uint32_t)n_tags];
    return n_bytes ? bytes[r / 3 % (uint32_t)n_bytes] : -1;
}

// An answer that the guide lets through, behind what of it stands in the prompt; the parser has read all of it.
static struct nib_chat_parser *write_answer(const struct stage *stage, const struct nib_guide_branch *branches,
                                            size_t count, const struct nib_token_list *preset, uint32_t seed)
{
    struct nib_guide *guide;
    struct nib_chat_parser *parser;
    struct nib_error err;
    int32_t token = -1;
    if (nib_guide_create(stage->chat, stage->tokenizer, stage->vocabulary, branches, count, &guide, &err))
        fail_msg("%s", err.message);
    assert_int_equal(nib_chat_parser_create(stage->chat, NIB_CHAT_FROM_REPLY, NULL, NULL, &parser, &err), NIB_OK);
    nib_chat_parser_set_tools(parser, stage->tools, stage->tool_count);
    for (size_t i = 0; preset && i < preset->count; i++) {
        nib_guide_accept(guide, preset->ids[i]);
        assert_int_equal(nib_chat_parser_push(parser, preset->ids[i], NULL), NIB_OK);
    }
    const char *wish = "";
    for (int length = 0; token < 0 || !stops(stage, token); length++) {
        const uint32_t *mask = nib_guide_mask(guide);
        token = choose(mask, &seed);
        if (!*wish && token < 256 && seed >> 8 & 1)
            wish = seed >> 9 & 1 ? "</parameter>" : "</par<";
        if (*wish && mask[*wish / 32] >> (*wish % 32) & 1)
            token = *wish++; // by chance alone bare text would never end
        else
            wish = "";
        assert_true(token >= 0 && length < LONGEST);
        nib_guide_accept(guide, token);
        assert_int_equal(nib_chat_parser_push(parser, token, NULL), NIB_OK);
    }
    assert_int_equal(nib_chat_parser_finish(parser, NULL), NIB_OK);
    nib_guide_free(guide);
    return parser;
}

static const struct nib_message *last_message(const struct nib_chat_parser *parser)
{
    size_t count = nib_chat_parser_count(parser);
    assert_true(count > 0);
    return nib_chat_parser_message(parser, count - 1);
}

static json_t *schema_of(const char *text)
{
    json_t *schema = json_loads(text, 0, NULL);
    assert_non_null(schema);
    return schema;
}

static struct nib_guide_branch reasoning(void)
{
    return (struct nib_guide_branch){nib_message_reasoning((struct nib_text){0}), NULL, true};
}

static struct nib_guide_branch call(const char *name, const json_t *schema)
{
    struct nib_message header = nib_message_call(nib_text_of(name), (struct nib_text){0});
    header.recipient_in_channel = true;
    return (struct nib_guide_branch){header, schema, false};
}

#define SCHEMA                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":70},\"s\":{" \
    "\"type\":"                                                                                              \
    "\"string\",\"maxLength\":4}},\"required\":[\"n\",\"s\"]}"

static const struct nib_tool known_tools[] = {
    {.name = {"f", 1}, .parameters = {SCHEMA, sizeof SCHEMA - 1}},
    {.name = {"first", 5}, .parameters = {SCHEMA, sizeof SCHEMA - 1}},
    {.name = {"second", 6}, .parameters = {SCHEMA, sizeof SCHEMA - 1}},
};

static void assert_fits(struct nib_text text)
{
    json_error_t where;
    json_t *json = json_loadb(text.bytes, text.size, 0, &where);
    if (!json)
        fail_msg("%.*s: %s", (int)text.size, text.bytes, where.text);
    json_int_t n = json_integer_value(json_object_get(json, "n"));
    assert_true(n >= 3 && n <= 70);
    assert_true(json_is_string(json_object_get(json, "s")));
    assert_int_equal(json_object_size(json), 2);
    json_decref(json);
}

static void a_schema_binds_the_answer(void **state)
{
    (void)state;
    json_t *schema = schema_of(SCHEMA);
    struct nib_guide_branch branches[] = {
        reasoning(), {nib_message_answer((struct nib_text){0}), schema, false}, call("functions.f", NULL)};
    for (int f = 0; f < FORMATS; f++) {
        struct stage stage = stage_open(formats[f]);
        int answers = 0, calls = 0, thoughts = 0;
        for (uint32_t seed = 1; seed <= 120; seed++) {
            bool tools = seed % 2;
            struct nib_chat_parser *parser = write_answer(&stage, branches, tools ? 3 : 2, NULL, seed);
            const struct nib_message *last = last_message(parser);
            thoughts += nib_text_equal(nib_chat_parser_message(parser, 0)->channel, nib_text_of("analysis"));
            // A call that nothing binds may be any text, also one that is no call.
            if (last->recipient.size || (tools && (!last->text.size || last->text.bytes[0] != '{'))) {
                calls++;
            } else {
                assert_true(nib_text_equal(last->channel, nib_text_of("final")));
                assert_fits(last->text);
                answers++;
            }
            nib_chat_parser_free(parser);
        }
        assert_true(answers > 20 && thoughts > 20);
        stage_close(&stage);
    }
    json_decref(schema);
}

static void a_demanded_call_has_the_arguments_of_its_schema(void **state)
{
    (void)state;
    json_t *schema = schema_of(SCHEMA);
    struct nib_guide_branch branches[] = {reasoning(), call("functions.first", schema),
                                          call("functions.second", schema)};
    for (int f = 0; f < FORMATS; f++) {
        struct stage stage = stage_open(formats[f]);
        stage.tools = known_tools;
        stage.tool_count = 3;
        int first = 0, second = 0;
        for (uint32_t seed = 1; seed <= 60; seed++) {
            struct nib_chat_parser *parser = write_answer(&stage, branches, 3, NULL, seed);
            const struct nib_message *last = last_message(parser);
            first += nib_text_equal(last->recipient, nib_text_of("functions.first"));
            second += nib_text_equal(last->recipient, nib_text_of("functions.second"));
            if (first + second != (int)seed)
                fail_msg("%s: a call of \"%.*s\": %.*s", formats[f], (int)last->recipient.size,
                         last->recipient.bytes, (int)last->text.size, last->text.bytes);
            assert_fits(last->text);
            nib_chat_parser_free(parser);
        }
        assert_true(first > 5 && second > 5);
        stage_close(&stage);
    }
    json_decref(schema);
}

// The call's head, or an empty thought, stands in the prompt already.
static void what_the_prompt_begins_goes_on(void **state)
{
    (void)state;
    json_t *schema = schema_of(SCHEMA);
    struct nib_message reply = nib_message_call(nib_text_of("functions.f"), (struct nib_text){0});
    reply.recipient_in_channel = true;
    struct nib_guide_branch wanted_call[] = {reasoning(), call("functions.f", schema)},
                            wanted_text[] = {reasoning(),
                                             {nib_message_answer((struct nib_text){0}), schema, false}};
    for (int f = 0; f < FORMATS; f++) {
        struct stage stage = stage_open(formats[f]);
        stage.tools = known_tools;
        stage.tool_count = 3;
        for (int calling = 0; calling < 2; calling++) {
            struct nib_conversation conversation = {.reply = calling ? &reply : NULL};
            struct nib_pieces pieces = {0};
            struct nib_token_list preset = {0};
            assert_int_equal(nib_chat_render(stage.chat, &conversation, &pieces, NULL), NIB_OK);
            assert_int_equal(nib_pieces_encode(&pieces, pieces.reply_from, stage.tokenizer, &preset, NULL),
                             NIB_OK);
            for (uint32_t seed = 1; seed <= 20; seed++) {
                struct nib_chat_parser *parser =
                    write_answer(&stage, calling ? wanted_call : wanted_text, 2, &preset, seed);
                const struct nib_message *last = last_message(parser);
                if (calling && !nib_text_equal(last->recipient, nib_text_of("functions.f")))
                    fail_msg("%s: a call of \"%.*s\"", formats[f], (int)last->recipient.size,
                             last->recipient.bytes);
                assert_fits(last->text);
                nib_chat_parser_free(parser);
            }
            nib_token_list_free(&preset);
            nib_pieces_free(&pieces);
        }
        stage_close(&stage);
    }
    json_decref(schema);
}

// ---- arguments as bare text

static bool is_anything(const json_t *x)
{
    return x != NULL;
}

static bool is_string(const json_t *x)
{
    return json_is_string(x);
}

static size_t characters_of(const json_t *x)
{
    size_t count = 0;
    for (const char *at = json_string_value(x); at && *at; at++)
        count += (*at & 0xc0) != 0x80;
    return count;
}

static bool has_2_to_14_characters(const json_t *x)
{
    return json_is_string(x) && characters_of(x) >= 2 && characters_of(x) <= 14;
}

static bool is_not_empty(const json_t *x)
{
    return json_string_length(x) > 0;
}

static bool is_empty(const json_t *x)
{
    return json_is_string(x) && json_string_length(x) == 0;
}

static bool is_10_or_more(const json_t *x)
{
    return json_number_value(x) >= 10;
}

static bool is_boolean(const json_t *x)
{
    return json_is_boolean(x);
}

static bool is_listed(const json_t *x)
{
    return json_is_boolean(x) || json_is_null(x) || json_integer_value(x) == 7 ||
           (json_is_string(x) && strcmp(json_string_value(x), "a b") == 0);
}

static bool is_string_or_null(const json_t *x)
{
    return json_is_string(x) || json_is_null(x);
}

static bool is_listed_or_10_or_more(const json_t *x)
{
    const char *string = json_string_value(x);
    return is_10_or_more(x) || (string && (strcmp(string, "a b") == 0 || strcmp(string, "c") == 0));
}

static bool is_null_or_10_or_more(const json_t *x)
{
    return json_is_null(x) || is_10_or_more(x);
}

static bool is_array_of_1_to_3(const json_t *x)
{
    return json_array_size(x) >= 1 && json_array_size(x) <= 3;
}

static bool has_boolean_a(const json_t *x)
{
    return json_object_size(x) == 1 && json_is_boolean(json_object_get(x, "a"));
}

// A schema of the argument "x", which a call must have, and what holds for whatever is read.
static const struct {
    const char *schema;
    bool (*holds)(const json_t *x);
} arguments[] = {
    {"{\"type\": \"string\"}", is_string},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 14}", has_2_to_14_characters},
    {"{\"type\": \"string\", \"minLength\": 1}", is_not_empty},
    {"{\"type\": \"string\", \"maxLength\": 0}", is_empty},
    {"{\"type\": \"integer\", \"minimum\": 10}", is_10_or_more},
    {"{\"type\": \"boolean\"}", is_boolean},
    {"{\"enum\": [\"10\", \"a b\", true, null, 7]}", is_listed}, // "10" would be read as a number
    {"{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", is_string_or_null},
    {"{\"anyOf\": [{\"enum\": [\"a b\", \"c\"]}, {\"type\": \"integer\", \"minimum\": 10}]}",
     is_listed_or_10_or_more},
    {"{\"type\": [\"integer\", \"null\"], \"minimum\": 10}", is_null_or_10_or_more},
    {"{\"$ref\": \"#/properties/y\"}", is_listed},
    {"{\"type\": \"array\", \"items\": {\"enum\": [1, 2]}, \"minItems\": 1, \"maxItems\": 3}", is_array_of_1_to_3},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"boolean\"}}, \"required\": [\"a\"], "
     "\"additionalProperties\": false}",
     has_boolean_a},
    {"{\"allOf\": [{\"$ref\": \"#/properties/y\"}], \"description\": \"as y\"}", is_listed},
    {"{\"minimum\": 10}", is_10_or_more},
    {"{\"required\": [\"a\"], \"properties\": {\"a\": {\"type\": \"boolean\"}}}", has_boolean_a},
    {"{}", is_anything},
    {"true", is_anything},
};

static void bare_arguments_are_read_as_what_the_schema_accepts(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * sizeof arguments / sizeof *arguments; i++) {
        struct stage stage = stage_open(i % 2 ? "mimo" : "minimax");
        char text[1024];
        snprintf(text, sizeof text,
                 "{\"type\": \"object\", \"properties\": {\"y\": {\"enum\": [\"a b\", 7, false]}, \"x\": %s}, "
                 "\"required\": [\"x\"]}",
                 arguments[i / 2].schema);
        json_t *schema = schema_of(text);
        struct nib_tool tool = {.name = {"f", 1}, .parameters = nib_text_of(text)};
        struct nib_guide_branch branch = call("functions.f", schema);
        stage.tools = &tool;
        stage.tool_count = 1;
        int with_y = 0;
        for (uint32_t seed = 1; seed <= 60; seed++) {
            struct nib_chat_parser *parser = write_answer(&stage, &branch, 1, NULL, seed);
            const struct nib_message *last = last_message(parser);
            json_t *read = json_loadb(last->text.bytes, last->text.size, 0, NULL);
            const json_t *x = json_object_get(read, "x"), *y = json_object_get(read, "y");
            if (!nib_text_equal(last->recipient, nib_text_of("functions.f")) || !x || !arguments[i / 2].holds(x) ||
                (y && !is_listed(y)))
                fail_msg("%s: %.*s", arguments[i / 2].schema, (int)last->text.size, last->text.bytes);
            with_y += y != NULL;
            json_decref(read);
            nib_chat_parser_free(parser);
        }
        assert_true(with_y > 10 && with_y < 50);
        json_decref(schema);
        stage_close(&stage);
    }
}

static void what_bare_text_cannot_be_held_to_is_refused(void **state)
{
    (void)state;
    static const char *const schemas[][2] = {
        {"{\"properties\": {\"x\": {\"type\": \"string\", \"pattern\": \"a\"}}}", "pattern"},
        {"{\"properties\": {\"x\": {\"minLength\": 3}}}", "type"},
        {"{\"properties\": {\"x\": {\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}}}", "maxLength"},
        {"{\"properties\": {\"x\": {\"type\": \"string\", \"minLength\": -1}}}", "minLength"},
        {"{\"properties\": {\"x\": {\"type\": \"string\", \"maxLength\": 399999}}}", "too large"},
        {"{\"properties\": {\"x\": {\"type\": [\"string\", \"integer\"], \"minimum\": 3}}}", "strings"},
        {"{\"properties\": {\"x\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\", \"minimum\": "
         "3}]}}}",
         "strings"},
        {"{\"properties\": {\"x\": {\"enum\": [\"a</parameter>\"]}}}", "const"},
        {"{\"properties\": {\"x\": {\"type\": \"colour\"}}}", "type"},
        {"{\"properties\": {\"x\": {\"$ref\": \"#/none\"}}}", "$ref"},
        {"{\"properties\": {\"x\": {\"$ref\": \"#/properties/x\"}}}", "$ref"},
        {"{\"properties\": {\"x\": {\"anyOf\": [{\"$ref\": \"#/properties/x\"}, {\"$ref\": "
         "\"#/properties/x\"}]}}}",
         "too large"},
        {"{\"properties\": {\"x\": 5}}", "schema"},
        {"{\"properties\": {\"a>b\": {}}}", "properties"},
        {"{\"properties\": {}, \"required\": [\"x\"]}", "required"},
        {"{\"properties\": [], \"required\": []}", "properties"},
        {"{\"type\": \"array\"}", "type"},
        {"{\"anyOf\": [{\"type\": \"object\"}]}", "anyOf"},
    };
    for (size_t i = 0; i < 2 * sizeof schemas / sizeof *schemas; i++) {
        struct stage stage = stage_open(i % 2 ? "mimo" : "minimax");
        json_t *schema = schema_of(schemas[i / 2][0]);
        struct nib_guide_branch branch = call("functions.f", schema);
        struct nib_guide *guide;
        struct nib_error err;
        nib_status status =
            nib_guide_create(stage.chat, stage.tokenizer, stage.vocabulary, &branch, 1, &guide, &err);
        if (status != NIB_ERR_UNSUPPORTED && status != NIB_ERR_ARGUMENT)
            fail_msg("%s is taken", schemas[i / 2][0]);
        if (!strstr(err.message, schemas[i / 2][1]))
            fail_msg("%s: %s", schemas[i / 2][0], err.message);
        json_decref(schema);
        stage_close(&stage);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_binds_the_answer),
        cmocka_unit_test(a_demanded_call_has_the_arguments_of_its_schema),
        cmocka_unit_test(what_the_prompt_begins_goes_on),
        cmocka_unit_test(bare_arguments_are_read_as_what_the_schema_accepts),
        cmocka_unit_test(what_bare_text_cannot_be_held_to_is_refused),
    };
    return cmocka_run_group_tests_name("guide", tests, NULL, NULL);
}
