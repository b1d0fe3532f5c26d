#include "text/chat_turns.h"

#include "text/tool_markup.h"

// ROLE: a turn has begun, and its role is being read. REPLY: the role is known and nothing has been said, but perhaps
// white space. THINK: nor has any thought behind its beginning. CALL: all of a call is in the header until its end shows
// what it is.
enum { BETWEEN, ROLE, REPLY, THINK, TEXT, CALL };

enum { ROLE_BYTES = 64 }; // a longer role is none

static size_t leading_space(struct nib_text text)
{
    size_t size = 0;
    while (size < text.size && nib_is_space(text.bytes[size]))
        size++;
    return size;
}

static const struct nib_turn_grammar *grammar_of(const struct nib_chat_parser *parser)
{
    return parser->chat->format->turns;
}

static bool is_assistant(const struct nib_chat_parser *parser)
{
    return parser->state == BETWEEN || (parser->state != ROLE && parser->open.role == NIB_ROLE_ASSISTANT);
}

static bool reasons(const struct nib_chat_parser *parser)
{
    return parser->state == THINK ||
           (parser->state == TEXT && nib_text_equal(parser->open.channel, nib_text_of("analysis")));
}

static void mark_header(struct nib_chat_parser *parser, int32_t token)
{
    nib_parser_mark(parser, &parser->header_marks, parser->header.buffer.size, token);
}

// A tag that is shown as such, within an argument of the call that is being read, is a part of that argument.
static bool is_in_argument(const struct nib_chat_parser *parser, int32_t token)
{
    const struct nib_vocabulary *vocabulary = &parser->chat->vocabulary;
    return parser->state == CALL && grammar_of(parser)->in_argument &&
           vocabulary->bytes(vocabulary->self, token).size &&
           grammar_of(parser)->in_argument(nib_writer_text(&parser->header));
}

// ---- messages begin, go on and end

void nib_turns_begin(struct nib_chat_parser *parser, enum nib_chat_from from)
{
    parser->state = BETWEEN;
    if (from == NIB_CHAT_FROM_REPLY) {
        nib_parser_open(parser, false);
        parser->state = REPLY;
    }
}

static void start_text(struct nib_chat_parser *parser, const char *channel)
{
    parser->open.channel = nib_text_of(channel);
    nib_parser_begin(parser);
    parser->state = TEXT;
}

// Of the white space behind a tag what stands in the text's own line: the first line may be indented.
static struct nib_text indentation(const struct nib_chat_parser *parser)
{
    struct nib_text header = nib_writer_text(&parser->header);
    size_t marks = parser->header_marks.count, from = marks ? parser->header_marks.items[marks - 1].at : 0,
           at = header.size;
    while (at > from && (header.bytes[at - 1] == ' ' || header.bytes[at - 1] == '\t'))
        at--;
    return at < header.size ? (struct nib_text){header.bytes + at, header.size - at} : (struct nib_text){0};
}

// Newlines that were held back are text after all.
static void release(struct nib_chat_parser *parser)
{
    for (; parser->held; parser->held--)
        nib_parser_put_text(parser, nib_text_of("\n"));
}

// What the assistant says ends before the newlines in front of a tag, so they wait for what follows them.
static void put_text(struct nib_chat_parser *parser, struct nib_text text)
{
    size_t said = text.size;
    bool holds = parser->open.role == NIB_ROLE_ASSISTANT && parser->open.recipient.size == 0;
    while (holds && said && text.bytes[said - 1] == '\n')
        said--;
    if (said) {
        release(parser);
        nib_parser_put_text(parser, (struct nib_text){text.bytes, said});
    }
    parser->held += text.size - said;
}

// The header as a reader would see it, tags spelled out, is the text.
static void header_to_text(struct nib_chat_parser *parser)
{
    const struct nib_vocabulary *vocabulary = &parser->chat->vocabulary;
    const struct nib_marks *marks = &parser->header_marks;
    struct nib_text header = nib_writer_text(&parser->header);
    struct nib_writer spelled = {0};
    size_t at = 0;
    for (size_t i = 0; i < marks->count; at = marks->items[i++].at) {
        if (marks->items[i].at > at)
            nib_write(&spelled, header.bytes + at, marks->items[i].at - at);
        nib_write_text(&spelled, vocabulary->bytes(vocabulary->self, marks->items[i].token));
    }
    if (header.size > at)
        nib_write(&spelled, header.bytes + at, header.size - at);
    start_text(parser, parser->open.role == NIB_ROLE_ASSISTANT ? "final" : "");
    parser->failed |= spelled.failed;
    parser->written.text_from_header = spelled.buffer.size;
    nib_parser_put_text(parser, nib_writer_text(&spelled));
    nib_bytes_free(&spelled.buffer);
}

static void close_message(struct nib_chat_parser *parser, enum nib_end end, int32_t token)
{
    if (parser->state == ROLE || parser->state == CALL)
        header_to_text(parser);
    else if (parser->state == REPLY || parser->state == THINK)
        start_text(parser, parser->state == THINK ? "analysis" : "final");
    release(parser);
    nib_parser_close(parser, end, token);
    parser->state = BETWEEN;
}

// The message that goes on in the same turn; newlines behind the last one's text stand before it.
static void open_next(struct nib_chat_parser *parser, int state)
{
    size_t held = parser->held;
    parser->held = 0;
    if (parser->state != BETWEEN)
        close_message(parser, NIB_END_MESSAGE, -1);
    nib_parser_open(parser, false);
    for (; held; held--)
        nib_parser_put_header(parser, nib_text_of("\n"));
    parser->state = state;
}

// ---- turns

static enum nib_role role_of(struct nib_text name)
{
    static const struct {
        const char *name;
        enum nib_role role;
    } roles[] = {{"user", NIB_ROLE_USER}, {"tool", NIB_ROLE_TOOL}, {"system", NIB_ROLE_SYSTEM}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (nib_text_equal(name, nib_text_of(roles[i].name)))
            return roles[i].role;
    return NIB_ROLE_ASSISTANT;
}

static void end_head(struct nib_chat_parser *parser)
{
    parser->state = REPLY;
    if (parser->open.role != NIB_ROLE_ASSISTANT)
        start_text(parser, "");
}

static void push_turn(struct nib_chat_parser *parser, enum nib_sign sign, int32_t token)
{
    if (parser->state != REPLY) { // else: white space between turns, or a reply that starts again
        if (parser->state != BETWEEN)
            close_message(parser, NIB_END_MISSING, -1);
        nib_parser_open(parser, false);
    }
    mark_header(parser, token);
    parser->open.role = sign == NIB_SIGN_USER     ? NIB_ROLE_USER
                        : sign == NIB_SIGN_SYSTEM ? NIB_ROLE_SYSTEM
                                                  : NIB_ROLE_ASSISTANT;
    if (grammar_of(parser)->head == NIB_HEAD_NONE)
        end_head(parser);
    else
        parser->state = ROLE;
}

static void push_to_role(struct nib_chat_parser *parser, struct nib_text bytes)
{
    bool by_line = grammar_of(parser)->head == NIB_HEAD_LINE;
    const char *line_end = by_line ? memchr(bytes.bytes, '\n', bytes.size) : NULL;
    size_t size = line_end ? (size_t)(line_end - bytes.bytes) : bytes.size;
    nib_parser_put_header(parser, (struct nib_text){bytes.bytes, size});
    struct nib_text name = nib_text_trimmed(nib_writer_text(&parser->header));
    if (!line_end) {
        if (name.size > ROLE_BYTES)
            header_to_text(parser);
        return;
    }
    parser->open.role = role_of(name);
    nib_parser_put_header(parser, nib_text_of("\n"));
    end_head(parser);
    struct nib_text rest = {line_end + 1, bytes.size - size - 1};
    if (rest.size && parser->state == REPLY)
        start_text(parser, "final");
    if (rest.size)
        put_text(parser, rest);
}

// ---- calls

struct nib_text nib_turn_recipient(struct nib_chat_parser *parser, struct nib_text name)
{
    static const char prefix[] = "functions.";
    size_t size = sizeof prefix - 1;
    if (name.size >= size && memcmp(name.bytes, prefix, size) == 0)
        size = 0;
    char *recipient = nib_arena_alloc(&parser->arena, size + name.size);
    if (!recipient) {
        parser->failed = true;
        return (struct nib_text){0};
    }
    memcpy(recipient, prefix, size);
    if (name.size)
        memcpy(recipient + size, name.bytes, name.size);
    return (struct nib_text){recipient, size + name.size};
}

static void start_call(struct nib_chat_parser *parser)
{
    parser->open.content_type = nib_text_of("json");
    start_text(parser, "commentary");
}

void nib_turn_put_call(struct nib_chat_parser *parser, struct nib_text name, struct nib_text arguments)
{
    if (parser->state == BETWEEN) // the header of the first has all of them
        nib_parser_open(parser, false);
    parser->open.recipient = nib_turn_recipient(parser, name);
    parser->written.text_from_header = arguments.size;
    start_call(parser);
    nib_parser_put_text(parser, arguments);
    close_message(parser, NIB_END_CALL, -1);
}

bool nib_turn_put_markup(struct nib_chat_parser *parser, const struct nib_tool_markup *markup)
{
    json_t *calls = nib_markup_read(markup, nib_writer_text(&parser->header), parser->tools, parser->tool_count),
           *call;
    size_t i;
    bool read = calls != NULL;
    json_array_foreach(calls, i, call)
    {
        const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
        nib_turn_put_call(parser, (struct nib_text){json_string_value(name), json_string_length(name)},
                          (struct nib_text){json_string_value(arguments), json_string_length(arguments)});
    }
    json_decref(calls);
    return read;
}

// Calls that are whole but for the tag behind them, which models forget.
static bool read_unclosed_calls(struct nib_chat_parser *parser)
{
    struct nib_text header = nib_writer_text(&parser->header);
    return parser->state == CALL && leading_space(header) < header.size && grammar_of(parser)->read_calls &&
           grammar_of(parser)->read_calls(parser);
}

static bool push_call(struct nib_chat_parser *parser, int32_t token)
{
    if (!is_assistant(parser) || is_in_argument(parser, token) ||
        (reasons(parser) && !grammar_of(parser)->calls_end_reasoning))
        return false;
    read_unclosed_calls(parser);
    if (parser->state == TEXT || parser->state == BETWEEN)
        open_next(parser, CALL);
    parser->state = CALL;
    mark_header(parser, token);
    return true;
}

static bool push_arguments(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state != CALL || !grammar_of(parser)->read_name)
        return false;
    mark_header(parser, token);
    grammar_of(parser)->read_name(parser);
    start_call(parser);
    return true;
}

static bool push_call_end(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state == TEXT && parser->open.recipient.size) {
        close_message(parser, NIB_END_CALL, token);
        return true;
    }
    if (parser->state != CALL || is_in_argument(parser, token))
        return false;
    mark_header(parser, token);
    if (!grammar_of(parser)->read_calls || !grammar_of(parser)->read_calls(parser))
        close_message(parser, NIB_END_MESSAGE, -1);
    return true;
}

static bool push_calls_end(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state == TEXT && parser->open.recipient.size)
        close_message(parser, NIB_END_CALL, token);
    else if (parser->state == CALL)
        mark_header(parser, token);
    else if (parser->state == BETWEEN && parser->count > 0)
        nib_parser_mark(parser, &parser->stray_marks, 0, token);
    else
        return false;
    return true;
}

// ---- tokens

static bool push_think(struct nib_chat_parser *parser, int32_t token)
{
    if (!is_assistant(parser) || parser->state == TEXT || parser->state == CALL)
        return false;
    if (parser->state == BETWEEN)
        open_next(parser, REPLY);
    mark_header(parser, token);
    parser->state = THINK;
    return true;
}

// A thought in which nothing is said leaves no message.
static bool push_thought(struct nib_chat_parser *parser, int32_t token)
{
    if (!reasons(parser) && parser->state != REPLY)
        return false;
    if (parser->state == TEXT)
        open_next(parser, REPLY);
    mark_header(parser, token);
    parser->state = REPLY;
    return true;
}

// A control token that means nothing here.
static void push_mark(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state == BETWEEN && parser->count > 0) {
        nib_parser_mark(parser, &parser->stray_marks, 0, token);
        return;
    }
    if (parser->state == BETWEEN)
        open_next(parser, REPLY);
    if (parser->state == TEXT) {
        release(parser);
        nib_parser_mark(parser, &parser->text_marks, parser->text.buffer.size, token);
    } else {
        mark_header(parser, token);
    }
}

static bool push_end(struct nib_chat_parser *parser, enum nib_end end, int32_t token)
{
    read_unclosed_calls(parser);
    if (parser->state == BETWEEN && parser->count > 0) {
        push_mark(parser, token);
        return true;
    }
    if (parser->state == BETWEEN)
        open_next(parser, REPLY);
    close_message(parser, end, token);
    return true;
}

static bool push_head_end(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state != ROLE)
        return false;
    if (parser->open.role == NIB_ROLE_SYSTEM) // in whose name tools speak, too
        parser->open.role = role_of(nib_text_trimmed(nib_writer_text(&parser->header))) == NIB_ROLE_TOOL
                                ? NIB_ROLE_TOOL
                                : NIB_ROLE_SYSTEM;
    mark_header(parser, token);
    end_head(parser);
    return true;
}

// False if the sign means nothing here.
static bool push_sign(struct nib_chat_parser *parser, enum nib_sign sign, int32_t token)
{
    switch (sign) {
    case NIB_SIGN_TURN:
    case NIB_SIGN_USER:
    case NIB_SIGN_ASSISTANT:
    case NIB_SIGN_SYSTEM:
        push_turn(parser, sign, token);
        return true;
    case NIB_SIGN_HEAD_END:
        return push_head_end(parser, token);
    case NIB_SIGN_TURN_END:
    case NIB_SIGN_TEXT_END:
        return push_end(parser, sign == NIB_SIGN_TURN_END ? NIB_END_TURN : NIB_END_TEXT, token);
    case NIB_SIGN_THINK:
        return push_think(parser, token);
    case NIB_SIGN_THOUGHT:
        return push_thought(parser, token);
    case NIB_SIGN_CALL:
        return push_call(parser, token);
    case NIB_SIGN_ARGUMENTS:
        return push_arguments(parser, token);
    case NIB_SIGN_CALL_END:
        return push_call_end(parser, token);
    case NIB_SIGN_CALL_PART:
        if (parser->state != CALL)
            return false;
        mark_header(parser, token);
        return true;
    case NIB_SIGN_CALLS_END:
        return push_calls_end(parser, token);
    case NIB_SIGN_NONE:
        break;
    }
    return false;
}

static void push_first_bytes(struct nib_chat_parser *parser, struct nib_text bytes)
{
    size_t space = leading_space(bytes);
    if (space < bytes.size || parser->header.buffer.size + bytes.size <= ROLE_BYTES) {
        nib_parser_put_header(parser, (struct nib_text){bytes.bytes, space});
        bytes = (struct nib_text){bytes.bytes + space, bytes.size - space};
    }
    if (!bytes.size)
        return;
    start_text(parser, parser->state == THINK ? "analysis" : "final");
    parser->written.text_from_header = indentation(parser).size;
    put_text(parser, indentation(parser));
    put_text(parser, bytes);
}

static void push_bytes(struct nib_chat_parser *parser, struct nib_text bytes)
{
    if (parser->state == BETWEEN)
        open_next(parser, REPLY);
    if (parser->state == CALL) {
        nib_parser_put_header(parser, bytes);
    } else if (parser->state == ROLE) {
        push_to_role(parser, bytes);
    } else if (parser->state == TEXT) {
        put_text(parser, bytes);
    } else {
        push_first_bytes(parser, bytes);
    }
}

void nib_turns_push(struct nib_chat_parser *parser, int32_t token)
{
    const struct nib_vocabulary *vocabulary = &parser->chat->vocabulary;
    int control = nib_chat_control_of(parser->chat, token);
    if (control >= 0 && push_sign(parser, (enum nib_sign)parser->chat->format->controls[control].sign, token))
        return;
    struct nib_text bytes = vocabulary->bytes(vocabulary->self, token);
    if (bytes.size)
        push_bytes(parser, bytes);
    else
        push_mark(parser, token);
}

void nib_turns_finish(struct nib_chat_parser *parser)
{
    bool untouched = parser->state == REPLY && parser->tokens.count == 0;
    if (parser->state != BETWEEN && !untouched)
        close_message(parser, NIB_END_TRUNCATED, -1);
}
