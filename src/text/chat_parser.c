#include "text/chat_format.h"

#include "base/error.h"

#include <stdlib.h>

nib_status nib_chat_parser_create(const struct nib_chat *chat, enum nib_chat_from from, nib_chat_handler handler,
                                  void *context, struct nib_chat_parser **parser, struct nib_error *err)
{
    struct nib_chat_parser *created = calloc(1, sizeof *created);
    *parser = created;
    if (!created)
        return nib_fail_memory(err, sizeof *created, "a chat parser");
    created->chat = chat;
    created->handler = handler;
    created->context = context;
    chat->format->begin(created, from);
    return NIB_OK;
}

void nib_chat_parser_set_tools(struct nib_chat_parser *parser, const struct nib_tool *tools, size_t count)
{
    struct nib_tool *copies = nib_arena_copy(&parser->arena, tools, count * sizeof *tools);
    parser->failed |= !copies;
    for (size_t i = 0; !parser->failed && i < count; i++) {
        copies[i].description = (struct nib_text){0};
        copies[i].name.bytes = nib_arena_copy(&parser->arena, tools[i].name.bytes, tools[i].name.size);
        copies[i].parameters.bytes =
            nib_arena_copy(&parser->arena, tools[i].parameters.bytes, tools[i].parameters.size);
        parser->failed |= !copies[i].name.bytes || !copies[i].parameters.bytes;
    }
    parser->tools = copies;
    parser->tool_count = parser->failed ? 0 : count;
}

void nib_chat_parser_free(struct nib_chat_parser *parser)
{
    if (!parser)
        return;
    nib_arena_free(parser->arena);
    nib_bytes_free(&parser->header.buffer);
    nib_bytes_free(&parser->text.buffer);
    free(parser->header_marks.items);
    free(parser->text_marks.items);
    free(parser->stray_marks.items);
    free(parser->messages);
    nib_token_list_free(&parser->tokens);
    free(parser);
}

static bool parser_failed(const struct nib_chat_parser *parser)
{
    return parser->failed || parser->header.failed || parser->text.failed;
}

static nib_status parser_status(const struct nib_chat_parser *parser, struct nib_error *err)
{
    if (parser_failed(parser))
        return nib_fail(err, NIB_ERR_MEMORY, "out of memory after parsing %zu tokens", parser->tokens.count);
    return NIB_OK;
}

nib_status nib_chat_parser_push(struct nib_chat_parser *parser, int32_t token, struct nib_error *err)
{
    if (parser->finished)
        return nib_fail(err, NIB_ERR_ARGUMENT, "token %d pushed into a finished chat parser", token);
    if (!parser_failed(parser))
        parser->chat->format->push(parser, token);
    parser->failed |= nib_token_list_add(&parser->tokens, token, NULL) != NIB_OK;
    return parser_status(parser, err);
}

// Strays behind the last message's end belong to it; they are known only when the next message opens.
static void settle_strays(struct nib_chat_parser *parser)
{
    if (parser->count == 0)
        return;
    struct nib_as_written *last = (struct nib_as_written *)parser->messages[parser->count - 1]->written;
    struct nib_marks *strays = &parser->stray_marks;
    last->token_count = parser->tokens.count - last->first_token;
    last->stray_marks = nib_arena_copy(&parser->arena, strays->items, strays->count * sizeof *strays->items);
    last->stray_mark_count = strays->count;
    parser->failed |= !last->stray_marks;
    strays->count = 0;
}

nib_status nib_chat_parser_finish(struct nib_chat_parser *parser, struct nib_error *err)
{
    if (!parser->finished && !parser_failed(parser)) {
        parser->chat->format->finish(parser);
        settle_strays(parser);
        parser->finished = true;
    }
    return parser_status(parser, err);
}

size_t nib_chat_parser_count(const struct nib_chat_parser *parser)
{
    return parser->count;
}

const struct nib_message *nib_chat_parser_message(const struct nib_chat_parser *parser, size_t index)
{
    return index < parser->count ? parser->messages[index] : NULL;
}

const int32_t *nib_chat_parser_tokens(const struct nib_chat_parser *parser, size_t *count)
{
    *count = parser->tokens.count;
    return parser->tokens.ids;
}

static void tell(struct nib_chat_parser *parser, enum nib_chat_event_kind kind, const struct nib_message *message,
                 struct nib_text delta)
{
    struct nib_chat_event event = {kind, parser->count, message, delta};
    if (parser->handler && !parser_failed(parser))
        parser->handler(parser->context, &event);
}

void nib_parser_open(struct nib_chat_parser *parser, bool started)
{
    settle_strays(parser);
    parser->open = (struct nib_message){.role = NIB_ROLE_ASSISTANT};
    parser->written =
        (struct nib_as_written){.started = started, .first_token = parser->tokens.count, .end_token = -1};
    parser->header.buffer.size = parser->text.buffer.size = parser->told = parser->held = 0;
    parser->header_marks.count = parser->text_marks.count = 0;
}

void nib_parser_begin(struct nib_chat_parser *parser)
{
    tell(parser, NIB_CHAT_BEGIN, &parser->open, (struct nib_text){0});
}

void nib_parser_put_header(struct nib_chat_parser *parser, struct nib_text bytes)
{
    nib_write_text(&parser->header, bytes);
}

// How many bytes at the end of a text begin a UTF-8 character that is not complete yet.
static size_t incomplete_tail(struct nib_text text)
{
    for (size_t back = 1; back <= 3 && back <= text.size; back++) {
        unsigned char byte = (unsigned char)text.bytes[text.size - back];
        if (byte >= 0xc2 && byte <= 0xf4) {
            size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
            return back < length ? back : 0;
        }
        if ((byte & 0xc0) != 0x80)
            return 0;
    }
    return 0;
}

static void tell_text(struct nib_chat_parser *parser, size_t end)
{
    if (end <= parser->told)
        return;
    parser->open.text = nib_writer_text(&parser->text);
    struct nib_text delta = {parser->text.buffer.data + parser->told, end - parser->told};
    parser->told = end;
    tell(parser, NIB_CHAT_DELTA, &parser->open, delta);
}

void nib_parser_put_text(struct nib_chat_parser *parser, struct nib_text bytes)
{
    nib_write_text(&parser->text, bytes);
    struct nib_text text = nib_writer_text(&parser->text);
    tell_text(parser, text.size - incomplete_tail(text));
}

void nib_parser_mark(struct nib_chat_parser *parser, struct nib_marks *marks, size_t at, int32_t token)
{
    void *items = marks->items;
    bool grown = nib_grow(&items, &marks->capacity, marks->count, sizeof *marks->items);
    marks->items = items;
    if (grown)
        marks->items[marks->count++] = (struct nib_mark){at, token};
    parser->failed |= !grown;
}

// A field is a slice of the header buffer until the message is complete; then it moves with its header.
static void move_field(struct nib_text *field, struct nib_text header, const char *to)
{
    uintptr_t offset = (uintptr_t)field->bytes - (uintptr_t)header.bytes;
    if (field->size && offset < header.size)
        field->bytes = to + offset;
}

static struct nib_message *keep_message(struct nib_chat_parser *parser)
{
    struct nib_arena **arena = &parser->arena;
    struct nib_as_written *written = &parser->written;
    const struct nib_marks *header_marks = &parser->header_marks, *text_marks = &parser->text_marks;
    struct nib_message *message = nib_arena_copy(arena, &parser->open, sizeof parser->open);
    struct nib_text read_header = nib_writer_text(&parser->header), read_text = nib_writer_text(&parser->text);
    char *header = nib_arena_copy(arena, read_header.bytes, read_header.size);
    char *text = nib_arena_copy(arena, read_text.bytes, read_text.size);
    written->header = (struct nib_text){header, read_header.size};
    written->header_mark_count = header_marks->count;
    written->header_marks =
        nib_arena_copy(arena, header_marks->items, header_marks->count * sizeof(struct nib_mark));
    written->text_mark_count = text_marks->count;
    written->text_marks = nib_arena_copy(arena, text_marks->items, text_marks->count * sizeof(struct nib_mark));
    struct nib_as_written *kept = nib_arena_copy(arena, written, sizeof *written);
    if (!message || !header || !text || !written->header_marks || !written->text_marks || !kept)
        return NULL;
    struct nib_text *fields[4] = {&message->name, &message->recipient, &message->channel, &message->content_type};
    for (size_t i = 0; i < 4; i++)
        move_field(fields[i], read_header, header);
    message->text = (struct nib_text){text, read_text.size};
    message->written = kept;
    return message;
}

void nib_parser_close(struct nib_chat_parser *parser, enum nib_end end, int32_t end_token)
{
    tell_text(parser, parser->text.buffer.size);
    parser->open.end = end;
    parser->written.end_token = end_token;
    void *messages = parser->messages;
    bool grown = nib_grow(&messages, &parser->capacity, parser->count, sizeof(void *));
    parser->messages = messages;
    struct nib_message *message = grown ? keep_message(parser) : NULL;
    if (!message) {
        parser->failed = true;
        return;
    }
    parser->messages[parser->count] = message;
    tell(parser, NIB_CHAT_END, message, (struct nib_text){0});
    parser->count++;
}
