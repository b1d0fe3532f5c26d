// Tokens to messages: three states, and every token has a meaning in each of them.
#include "text/harmony.h"

enum { BETWEEN, HEADER, TEXT };

// A header longer than this is none: its bytes are shown as text rather than held back.
enum { HEADER_BYTES = 1024, HEADER_MARKS = 64 };

void nib_harmony_begin(struct nib_chat_parser *parser, enum nib_chat_from from)
{
    parser->state = BETWEEN;
    if (from == NIB_CHAT_FROM_REPLY) {
        nib_parser_open(parser, false);
        parser->role_known = true;
        parser->state = HEADER;
    }
}

static void open_message(struct nib_chat_parser *parser, bool started)
{
    nib_parser_open(parser, started);
    parser->role_known = false;
    parser->state = HEADER;
}

// Without <|message|>, a header counts only if it is nothing but a header (a call cut off before its arguments).
static void end_header(struct nib_chat_parser *parser)
{
    bool understood = nib_harmony_read_header(parser, true);
    if (understood)
        nib_parser_begin(parser);
    else
        nib_harmony_header_to_text(parser);
    parser->state = TEXT;
}

static void close_message(struct nib_chat_parser *parser, enum nib_end end, int32_t token)
{
    if (parser->state == HEADER)
        end_header(parser);
    nib_parser_close(parser, end, token);
    parser->state = BETWEEN;
}

static enum nib_end end_of(int control)
{
    switch (control) {
    case HARMONY_END:
        return NIB_END_MESSAGE;
    case HARMONY_RETURN:
        return NIB_END_TURN;
    case HARMONY_CALL:
        return NIB_END_CALL;
    case HARMONY_END_OF_TEXT:
        return NIB_END_TEXT;
    default:
        return NIB_END_DEFAULT;
    }
}

static void push_to_header(struct nib_chat_parser *parser, int32_t token, int control, struct nib_text bytes)
{
    if (control == HARMONY_MESSAGE) {
        parser->written.has_body = true;
        nib_harmony_read_header(parser, false);
        nib_parser_begin(parser);
        parser->state = TEXT;
        return;
    }
    if (control == HARMONY_START && parser->header.buffer.size) {
        close_message(parser, NIB_END_MISSING, -1);
        open_message(parser, true);
        return;
    }
    if (control == HARMONY_START)
        parser->role_known = false; // a reply that repeats the prompt's start
    if (bytes.size)
        nib_parser_put_header(parser, bytes);
    else
        nib_parser_mark(parser, &parser->header_marks, parser->header.buffer.size, token);
    if (parser->header.buffer.size > HEADER_BYTES || parser->header_marks.count > HEADER_MARKS) {
        nib_harmony_header_to_text(parser);
        parser->state = TEXT;
    }
}

static void push_to_text(struct nib_chat_parser *parser, int32_t token, int control, struct nib_text bytes)
{
    if (control == HARMONY_START || control == HARMONY_CHANNEL) {
        close_message(parser, NIB_END_MISSING, -1);
        open_message(parser, control == HARMONY_START);
        if (control == HARMONY_CHANNEL)
            nib_parser_mark(parser, &parser->header_marks, 0, token);
    } else if (bytes.size) {
        nib_parser_put_text(parser, bytes);
    } else {
        nib_parser_mark(parser, &parser->text_marks, parser->text.buffer.size, token);
    }
}

void nib_harmony_push(struct nib_chat_parser *parser, int32_t token)
{
    const struct nib_vocabulary *vocabulary = &parser->chat->vocabulary;
    int control = nib_chat_control_of(parser->chat, token);
    struct nib_text bytes = {0};
    if (control < 0)
        bytes = vocabulary->bytes(vocabulary->self, token);
    bool opens =
        bytes.size || control == HARMONY_CHANNEL || control == HARMONY_CONSTRAIN || control == HARMONY_MESSAGE;

    if (parser->state == BETWEEN && control == HARMONY_START) {
        open_message(parser, true);
        return;
    }
    if (parser->state == BETWEEN && !opens && parser->count > 0) {
        nib_parser_mark(parser, &parser->stray_marks, 0, token);
        return;
    }
    if (parser->state == BETWEEN)
        open_message(parser, false);

    if (end_of(control) != NIB_END_DEFAULT)
        close_message(parser, end_of(control), token);
    else if (parser->state == HEADER)
        push_to_header(parser, token, control, bytes);
    else
        push_to_text(parser, token, control, bytes);
}

void nib_harmony_finish(struct nib_chat_parser *parser)
{
    bool untouched = parser->state == HEADER && parser->tokens.count == 0;
    if (parser->state != BETWEEN && !untouched)
        close_message(parser, NIB_END_TRUNCATED, -1);
}
