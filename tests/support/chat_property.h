// What must hold for every stream of tokens, shared by the property tests and the fuzzer: the parser takes it, its
// events tell the same messages that it keeps, and rendering those gives the stream back.
#ifndef NIB_TEST_CHAT_PROPERTY_H
#define NIB_TEST_CHAT_PROPERTY_H

#include "support/byte_vocabulary.h"
#include "text/chat_format.h"

#include <stdio.h>
#include <stdlib.h>

struct heard {
    char *text; // joined deltas of the open message
    size_t size, messages;
    bool open;
    const char *fault;
};

static inline bool ends_inside_character(struct nib_text text)
{
    for (size_t back = 1; back <= 3 && back <= text.size; back++) {
        unsigned char byte = (unsigned char)text.bytes[text.size - back];
        if ((byte & 0xc0) == 0xc0)
            return byte <= 0xf4 && byte >= 0xc2 && back < (byte >= 0xf0 ? 4u : byte >= 0xe0 ? 3u : 2u);
        if (byte < 0x80)
            return false;
    }
    return false;
}

static inline void hear(void *context, const struct nib_chat_event *event)
{
    struct heard *heard = context;
    struct nib_text text = {heard->text, heard->size};
    if (event->index != heard->messages)
        heard->fault = "an event's index";
    if ((event->kind == NIB_CHAT_BEGIN) == heard->open)
        heard->fault = "events out of order";
    if (event->kind == NIB_CHAT_DELTA) {
        if (event->delta.size == 0)
            heard->fault = "an empty delta";
        heard->text = realloc(heard->text, heard->size + event->delta.size + 1);
        if (!heard->text)
            abort();
        memcpy(heard->text + heard->size, event->delta.bytes, event->delta.size);
        heard->size += event->delta.size;
    } else if (event->kind == NIB_CHAT_END) {
        if (!nib_text_equal(text, event->message->text))
            heard->fault = "deltas differ from the text";
        heard->size = 0;
        heard->messages++;
    } else if (event->message->end != NIB_END_DEFAULT) {
        heard->fault = "an end at the beginning";
    }
    heard->open = event->kind != NIB_CHAT_END;
}

// Tokens one a byte, but those that show none.
static inline size_t show_token(const struct nib_vocabulary *vocabulary, int32_t token, int32_t *shown,
                                size_t capacity, size_t count)
{
    struct nib_text text = vocabulary->bytes(vocabulary->self, token);
    for (size_t b = 0; b < text.size; b++, count++)
        if (count < capacity)
            shown[count] = (unsigned char)text.bytes[b];
    if (text.size == 0 && count < capacity)
        shown[count] = token;
    return count + (text.size == 0);
}

static inline size_t show_pieces(const struct nib_vocabulary *vocabulary, const struct nib_pieces *pieces,
                                 int32_t *shown, size_t capacity)
{
    size_t count = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        struct nib_text text = pieces->items[i].text;
        for (size_t b = 0; b < text.size; b++, count++)
            if (count < capacity)
                shown[count] = (unsigned char)text.bytes[b];
        if (text.size == 0)
            count = show_token(vocabulary, pieces->items[i].control, shown, capacity, count);
    }
    return count;
}

static inline const char *compare_rendering(const struct nib_chat *chat, const struct nib_chat_parser *parser,
                                            const int32_t *stream, size_t size)
{
    struct nib_pieces pieces = {0};
    size_t covered = 0;
    const char *fault = NULL;
    for (size_t i = 0; i < nib_chat_parser_count(parser); i++) {
        const struct nib_message *message = nib_chat_parser_message(parser, i);
        if (message->written->first_token != covered)
            fault = "token spans with a gap";
        covered += message->written->token_count;
        if (nib_chat_render_exact(chat, message, &pieces, NULL) != NIB_OK)
            fault = "an exact rendering failed";
    }
    if (covered != size)
        fault = "tokens without a message";
    size_t capacity = size * 32 + 1, got_size, wanted_size;
    int32_t *got = calloc(capacity, sizeof *got), *wanted = calloc(capacity, sizeof *wanted);
    if (!got || !wanted)
        abort();
    got_size = show_pieces(&chat->vocabulary, &pieces, got, capacity);
    wanted_size = 0;
    for (size_t i = 0; i < size; i++)
        wanted_size = show_token(&chat->vocabulary, stream[i], wanted, capacity, wanted_size);
    if (got_size != wanted_size || memcmp(got, wanted, got_size * sizeof *got) != 0)
        fault = "render(parse(x)) differs from x";
    free(got);
    free(wanted);
    nib_pieces_free(&pieces);
    return fault;
}

// Arguments that the format does not write as JSON.
static inline bool is_rewritten(const struct nib_chat *chat, const struct nib_message *message)
{
    bool marks_up = strcmp(nib_chat_name(chat), "mimo") == 0 || strcmp(nib_chat_name(chat), "minimax") == 0;
    return marks_up && message->recipient.size;
}

// History rendering of whatever was parsed: it works, and parses to the same words again.
static inline const char *check_history(const struct nib_chat *chat, const struct nib_chat_parser *parser)
{
    struct nib_pieces pieces = {0};
    const char *fault = NULL;
    for (size_t i = 0; i < nib_chat_parser_count(parser); i++) {
        struct nib_conversation one = {
            .messages = nib_chat_parser_message(parser, i), .message_count = 1, .keep_reasoning = true};
        if (nib_chat_render(chat, &one, &pieces, NULL) != NIB_OK)
            fault = "a history rendering failed";
        struct nib_text text = one.messages->text;
        bool found = text.size == 0 || is_rewritten(chat, one.messages);
        for (size_t p = 0; p < pieces.count; p++)
            found |= pieces.items[p].text.bytes == text.bytes && pieces.items[p].text.size == text.size;
        if (!found)
            fault = "history lost a text";
        nib_pieces_free(&pieces);
    }
    return fault;
}

// NULL if all is well, else what is wrong.
static inline const char *check_stream(const struct nib_chat *chat, enum nib_chat_from from, const int32_t *stream,
                                       size_t size)
{
    struct heard heard = {0};
    struct nib_chat_parser *parser;
    if (nib_chat_parser_create(chat, from, hear, &heard, &parser, NULL) != NIB_OK)
        abort();
    const char *fault = NULL;
    for (size_t i = 0; i < size; i++)
        if (nib_chat_parser_push(parser, stream[i], NULL) != NIB_OK)
            fault = "push failed";
    if (nib_chat_parser_finish(parser, NULL) != NIB_OK)
        fault = "finish failed";
    if (heard.fault)
        fault = heard.fault;
    if (heard.open || heard.messages != nib_chat_parser_count(parser))
        fault = "messages kept and told differ";
    if (!fault)
        fault = compare_rendering(chat, parser, stream, size);
    if (!fault)
        fault = check_history(chat, parser);
    nib_chat_parser_free(parser);
    free(heard.text);
    return fault;
}

#endif
