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
    for (size_t i = 0; preset && i < preset->count; i++) {
        nib_guide_accept(guide, preset->ids[i]);
        assert_int_equal(nib_chat_parser_push(parser, preset->ids[i], NULL), NIB_OK);
    }
    for (int length = 0; token < 0 || !stops(stage, token); length++) {
        token = choose(nib_guide_mask(guide), &seed);
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
        if (strncmp(formats[f], "mi", 2) == 0) { // MiMo and MiniMax write arguments as bare text
            struct nib_guide *guide;
            struct nib_error err;
            assert_int_equal(
                nib_guide_create(stage.chat, stage.tokenizer, stage.vocabulary, branches, 3, &guide, &err),
                NIB_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.message, formats[f]));
            stage_close(&stage);
            continue;
        }
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
        for (int calling = 0; calling < 2; calling++) {
            if (calling && strncmp(formats[f], "mi", 2) == 0)
                continue;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_binds_the_answer),
        cmocka_unit_test(a_demanded_call_has_the_arguments_of_its_schema),
        cmocka_unit_test(what_the_prompt_begins_goes_on),
    };
    return cmocka_run_group_tests_name("guide", tests, NULL, NULL);
}
