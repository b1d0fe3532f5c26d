// Prompts and replies in formats of turns, with control tokens spelled out.
#ifndef NIB_TEST_TURN_EXPECT_H
#define NIB_TEST_TURN_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/turns.h"

// Pieces as text, control tokens spelled out.
static inline char *spell_pieces(const struct nib_chat *chat, const struct nib_pieces *pieces, size_t first)
{
    char *out = NULL;
    size_t size;
    FILE *stream = open_memstream(&out, &size);
    if (!stream)
        abort();
    for (size_t i = first; i < pieces->count; i++) {
        struct nib_text text = pieces->items[i].text;
        int control = text.size ? -1 : nib_chat_control_of(chat, pieces->items[i].control);
        if (control >= 0)
            fputs(chat->format->controls[control].spelling, stream);
        else
            fwrite(text.bytes, 1, text.size, stream);
    }
    fclose(stream);
    return out;
}

// The whole prompt, and its end from the reply's author on.
static inline void expect_prompt(const struct nib_chat *chat, const struct nib_conversation *conversation,
                                 const char *expected, const char *expected_reply)
{
    struct nib_pieces pieces = {0};
    struct nib_error err;
    if (nib_chat_render(chat, conversation, &pieces, &err))
        fail_msg("%s", err.message);
    char *text = spell_pieces(chat, &pieces, 0),
         *reply = spell_pieces(chat, &pieces, conversation->no_reply ? pieces.count : pieces.reply_from);
    assert_string_equal(text, expected);
    assert_string_equal(reply, expected_reply);
    free(text);
    free(reply);
    nib_pieces_free(&pieces);
}

static inline void expect_refusal(const struct nib_chat *chat, const struct nib_conversation *conversation,
                                  const char *why)
{
    struct nib_pieces pieces = {0};
    struct nib_error err;
    assert_int_equal(nib_chat_render(chat, conversation, &pieces, &err), NIB_ERR_ARGUMENT);
    if (!strstr(err.message, why))
        fail_msg("%s", err.message);
    nib_pieces_free(&pieces);
}

// A stream from text in which control tokens are spelled out.
static inline size_t turn_tokens(const struct nib_chat *chat, const char *text, int32_t *tokens)
{
    size_t count = 0;
    while (*text) {
        size_t longest = 0, size;
        int32_t token = (unsigned char)*text;
        for (size_t i = 0; i < chat->control_count; i++) {
            size = strlen(chat->format->controls[i].spelling);
            if (chat->controls[i] >= 0 && size > longest &&
                strncmp(text, chat->format->controls[i].spelling, size) == 0) {
                longest = size;
                token = chat->controls[i];
            }
        }
        tokens[count++] = token;
        text += longest ? longest : 1;
    }
    return count;
}

struct expected_message {
    enum nib_role role;
    const char *channel, *recipient, *text;
    enum nib_end end;
    const char *id;
};

static inline void expect_messages(const struct nib_chat *chat, const struct nib_tool *tools, size_t tool_count,
                                   enum nib_chat_from from, const char *stream,
                                   const struct expected_message *expected, size_t n)
{
    static int32_t tokens[8192];
    size_t count = turn_tokens(chat, stream, tokens);
    struct nib_chat_parser *parser;
    assert_null(check_stream(chat, from, tokens, count));
    assert_int_equal(nib_chat_parser_create(chat, from, NULL, NULL, &parser, NULL), NIB_OK);
    nib_chat_parser_set_tools(parser, tools, tool_count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(nib_chat_parser_push(parser, tokens[i], NULL), NIB_OK);
    assert_int_equal(nib_chat_parser_finish(parser, NULL), NIB_OK);
    for (size_t i = 0; i < n && i < nib_chat_parser_count(parser); i++) {
        const struct nib_message *message = nib_chat_parser_message(parser, i);
        if (message->role != expected[i].role || message->end != expected[i].end ||
            !nib_text_equal(message->channel, nib_text_of(expected[i].channel)) ||
            !nib_text_equal(message->recipient, nib_text_of(expected[i].recipient)) ||
            !nib_text_equal(message->id, nib_text_of(expected[i].id)) ||
            !nib_text_equal(message->text, nib_text_of(expected[i].text)))
            fail_msg("%s\nmessage %zu: role %d end %d channel %.*s recipient %.*s id %.*s text \"%.*s\"", stream,
                     i, message->role, message->end, (int)message->channel.size, message->channel.bytes,
                     (int)message->recipient.size, message->recipient.bytes, (int)message->id.size,
                     message->id.bytes, (int)message->text.size, message->text.bytes);
    }
    assert_int_equal(nib_chat_parser_count(parser), n);
    nib_chat_parser_free(parser);
}

#endif
