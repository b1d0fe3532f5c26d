// ChatML as Qwen3 and MiMo write it: turns between <|im_start|> and <|im_end|>, reasoning in <think>, calls as JSON in
// <tool_call>. The tags are ordinary tokens of the vocabulary, recognised as whole tokens.
//
// A turn of the assistant is read as several messages: reasoning (channel "analysis"), answer ("final") and calls.
#include <jansson.h>
#include <stdlib.h>

#include "base/error.h"
#include "text/chat_format.h"

enum { IM_START, IM_END, END_OF_TEXT };

static const char think[] = "<think>", end_think[] = "</think>", call[] = "<tool_call>",
                  end_call[] = "</tool_call>";

// ---- rendering

static nib_status out_of_memory(struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_MEMORY, "out of memory while rendering a ChatML prompt");
}

static bool put(struct nib_pieces *pieces, const char *string)
{
    return nib_pieces_put_borrowed(pieces, nib_text_of(string));
}

static bool put_start(const struct nib_chat *chat, struct nib_pieces *pieces, const char *role)
{
    return nib_pieces_put_control(pieces, chat->controls[IM_START]) && put(pieces, role) && put(pieces, "\n");
}

static bool put_end(const struct nib_chat *chat, struct nib_pieces *pieces)
{
    return nib_pieces_put_control(pieces, chat->controls[IM_END]) && put(pieces, "\n");
}

static void write_json(struct nib_writer *out, struct nib_text text)
{
    json_t *string = json_stringn(text.bytes ? text.bytes : "", text.size);
    char *dumped = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    out->failed |= !dumped;
    if (dumped)
        nib_write_string(out, dumped);
    free(dumped);
    json_decref(string);
}

static nib_status write_tool(struct nib_writer *out, const struct nib_tool *tool, struct nib_error *err)
{
    json_t *parameters =
        tool->parameters.size ? json_loadb(tool->parameters.bytes, tool->parameters.size, 0, NULL) : json_object();
    if (!parameters)
        return nib_fail(err, NIB_ERR_ARGUMENT, "the parameters of the tool %.*s are not JSON",
                        (int)tool->name.size, tool->name.bytes);
    json_decref(parameters);
    nib_write_string(out, "\n{\"type\": \"function\", \"function\": {\"name\": ");
    write_json(out, tool->name);
    nib_write_string(out, ", \"description\": ");
    write_json(out, tool->description);
    nib_write_string(out, ", \"parameters\": ");
    nib_write_text(out, tool->parameters.size ? tool->parameters : nib_text_of("{}"));
    nib_write_string(out, "}}");
    return NIB_OK;
}

static nib_status write_system(struct nib_writer *out, const struct nib_conversation *conversation,
                               struct nib_error *err)
{
    nib_status status = NIB_OK;
    nib_write_text(out, conversation->instructions);
    for (size_t i = 0; i < conversation->response_count; i++) {
        nib_write_string(out, out->buffer.size ? "\n\n" : "");
        nib_write_string(out, "Answer with JSON that follows this schema:\n");
        nib_write_text(out, conversation->responses[i].schema);
    }
    if (conversation->tool_count == 0)
        return NIB_OK;
    nib_write_string(out, out->buffer.size ? "\n\n" : "");
    nib_write_string(out,
                     "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
                     "provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (size_t i = 0; status == NIB_OK && i < conversation->tool_count; i++)
        status = write_tool(out, &conversation->tools[i], err);
    nib_write_string(out, "\n</tools>\n\nFor each function call, return a json object with function name and "
                          "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
                          "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
    return status;
}

static nib_status put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err)
{
    struct nib_writer text = {0};
    nib_status status = write_system(&text, conversation, err);
    bool fine = !text.failed;
    if (status == NIB_OK && fine && text.buffer.size)
        fine = put_start(chat, pieces, "system") && nib_pieces_put_copy(pieces, "", nib_writer_text(&text)) &&
               put_end(chat, pieces);
    nib_bytes_free(&text.buffer);
    return status == NIB_OK && !fine ? out_of_memory(err) : status;
}

static bool is_reasoning(const struct nib_message *message)
{
    return message->role == NIB_ROLE_ASSISTANT && message->recipient.size == 0 &&
           nib_text_equal(message->channel, nib_text_of("analysis"));
}

static struct nib_text without_namespace(struct nib_text tool)
{
    static const char functions[] = "functions.";
    size_t size = sizeof functions - 1;
    if (tool.size > size && memcmp(tool.bytes, functions, size) == 0)
        return (struct nib_text){tool.bytes + size, tool.size - size};
    return tool;
}

static bool begins_line(struct nib_text text)
{
    return text.size && text.bytes[0] == '\n';
}

static bool ends_line(struct nib_text text)
{
    return text.size && text.bytes[text.size - 1] == '\n';
}

// A part of an assistant's turn, up to the end of its text.
static bool put_part(struct nib_pieces *pieces, const struct nib_message *message)
{
    struct nib_writer name = {0};
    bool fine = true;
    if (is_reasoning(message))
        fine = put(pieces, think) && (begins_line(message->text) || put(pieces, "\n"));
    if (message->recipient.size) {
        write_json(&name, without_namespace(message->recipient));
        fine = !name.failed && put(pieces, call) &&
               nib_pieces_put_copy(pieces, "\n{\"name\": ", nib_writer_text(&name)) &&
               put(pieces, ", \"arguments\": ");
    }
    nib_bytes_free(&name.buffer);
    return fine && nib_pieces_put_borrowed(pieces, message->text);
}

static bool put_part_end(struct nib_pieces *pieces, const struct nib_message *message)
{
    if (is_reasoning(message))
        return (ends_line(message->text) || put(pieces, "\n")) && put(pieces, end_think) && put(pieces, "\n\n");
    return message->recipient.size == 0 || (put(pieces, "}\n") && put(pieces, end_call) && put(pieces, "\n"));
}

// A message of anybody but the assistant is a turn.
static bool put_turn(const struct nib_chat *chat, struct nib_pieces *pieces, const struct nib_message *message)
{
    if (message->role == NIB_ROLE_TOOL)
        return put_start(chat, pieces, "user") && put(pieces, "<tool_response>\n") &&
               nib_pieces_put_borrowed(pieces, message->text) && put(pieces, "\n</tool_response>") &&
               put_end(chat, pieces);
    const char *role = message->role == NIB_ROLE_USER ? "user" : "system";
    return put_start(chat, pieces, role) && nib_pieces_put_borrowed(pieces, message->text) &&
           put_end(chat, pieces);
}

// Reasoning before the last answer is not shown again.
static size_t answered(const struct nib_conversation *conversation)
{
    size_t end = conversation->keep_reasoning ? 0 : conversation->message_count;
    while (end > 0 && !nib_text_equal(conversation->messages[end - 1].channel, nib_text_of("final")))
        end--;
    return end;
}

static bool put_messages(const struct nib_chat *chat, const struct nib_conversation *conversation,
                         struct nib_pieces *pieces)
{
    size_t past = answered(conversation);
    bool fine = true, in_turn = false;
    for (size_t i = 0; fine && i < conversation->message_count; i++) {
        const struct nib_message *message = &conversation->messages[i];
        bool assistant = message->role == NIB_ROLE_ASSISTANT;
        if (i < past && is_reasoning(message))
            continue;
        if (in_turn && !assistant)
            fine = put_end(chat, pieces);
        if (assistant && !in_turn)
            fine = put_start(chat, pieces, "assistant");
        in_turn = assistant;
        fine = fine && (assistant ? put_part(pieces, message) && put_part_end(pieces, message)
                                  : put_turn(chat, pieces, message));
    }
    return fine && (!in_turn || put_end(chat, pieces));
}

static nib_status chatml_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                                struct nib_pieces *pieces, struct nib_error *err)
{
    nib_status status = put_system(chat, conversation, pieces, err);
    if (status != NIB_OK)
        return status;
    bool fine = put_messages(chat, conversation, pieces);
    if (fine && !conversation->no_reply) {
        fine = put_start(chat, pieces, "assistant");
        pieces->reply_from = pieces->count;
        if (fine && conversation->reply)
            fine = put_part(pieces, conversation->reply);
    }
    return fine ? NIB_OK : out_of_memory(err);
}

static nib_status chatml_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                      struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_as_written *written = message->written;
    struct nib_conversation one = {.messages = message, .message_count = 1, .no_reply = true};
    if (!written)
        return chatml_render(chat, &one, pieces, err);
    bool fine =
        (!written->started || nib_pieces_put_control(pieces, chat->controls[IM_START])) &&
        nib_pieces_put_marked(pieces, written->header, 0, written->header_marks, written->header_mark_count) &&
        nib_pieces_put_marked(pieces, message->text, written->text_from_header, written->text_marks,
                              written->text_mark_count) &&
        (written->end_token < 0 || nib_pieces_put_control(pieces, written->end_token)) &&
        nib_pieces_put_marked(pieces, (struct nib_text){0}, 0, written->stray_marks, written->stray_mark_count);
    return fine ? NIB_OK : out_of_memory(err);
}

// ---- parsing

// ROLE: behind a start, up to the line's end. REPLY: the author is known and nothing has been said, but perhaps white
// space. CALL: all of a call is in the header until its end tag shows what it is.
enum { BETWEEN, ROLE, REPLY, TEXT, CALL };

enum { ROLE_BYTES = 64 }; // a longer first line names no role

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

static void chatml_begin(struct nib_chat_parser *parser, enum nib_chat_from from)
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

// What stands in the header is the text.
static void header_to_text(struct nib_chat_parser *parser)
{
    start_text(parser, parser->open.role == NIB_ROLE_ASSISTANT ? "final" : "");
    parser->written.text_from_header = parser->header.buffer.size;
    nib_parser_put_text(parser, nib_writer_text(&parser->header));
}

static void close_message(struct nib_chat_parser *parser, enum nib_end end, int32_t token)
{
    if (parser->state == ROLE || parser->state == CALL)
        header_to_text(parser);
    else if (parser->state == REPLY)
        start_text(parser, "final");
    nib_parser_close(parser, end, token);
    parser->state = BETWEEN;
}

// The message that goes on in the same turn.
static void open_next(struct nib_chat_parser *parser, int state)
{
    if (parser->state != BETWEEN)
        close_message(parser, NIB_END_MESSAGE, -1);
    nib_parser_open(parser, false);
    parser->state = state;
}

// {"name": …, "arguments": …} between the tags; anything else stays a text.
static void finish_call(struct nib_chat_parser *parser)
{
    struct nib_text header = nib_writer_text(&parser->header);
    size_t from = 0, to = header.size - (sizeof end_call - 1);
    while (from < to && header.bytes[from] != '{')
        from++;
    json_t *read = json_loadb(header.bytes + from, to - from, 0, NULL);
    const char *name = json_string_value(json_object_get(read, "name"));
    char *arguments = json_dumps(json_object_get(read, "arguments"), JSON_ENCODE_ANY | JSON_COMPACT);
    if (!name || !arguments) {
        close_message(parser, NIB_END_MESSAGE, -1);
    } else {
        struct nib_writer full = {0};
        nib_write_string(&full, "functions.");
        nib_write_string(&full, name);
        struct nib_text recipient = nib_writer_text(&full);
        recipient.bytes = nib_arena_copy(&parser->arena, recipient.bytes, recipient.size);
        parser->failed |= full.failed || !recipient.bytes;
        parser->open.recipient = parser->failed ? (struct nib_text){0} : recipient;
        nib_bytes_free(&full.buffer);
        parser->open.content_type = nib_text_of("json");
        parser->written.text_from_header = strlen(arguments);
        start_text(parser, "commentary");
        nib_parser_put_text(parser, nib_text_of(arguments));
        close_message(parser, NIB_END_CALL, -1);
    }
    free(arguments);
    json_decref(read);
}

static enum nib_role role_of(struct nib_text name)
{
    if (nib_text_equal(name, nib_text_of("user")))
        return NIB_ROLE_USER;
    if (nib_text_equal(name, nib_text_of("tool")))
        return NIB_ROLE_TOOL;
    return nib_text_equal(name, nib_text_of("system")) ? NIB_ROLE_SYSTEM : NIB_ROLE_ASSISTANT;
}

static void push_to_role(struct nib_chat_parser *parser, struct nib_text bytes)
{
    const char *line_end = memchr(bytes.bytes, '\n', bytes.size);
    size_t size = line_end ? (size_t)(line_end - bytes.bytes) : bytes.size;
    nib_parser_put_header(parser, (struct nib_text){bytes.bytes, size});
    struct nib_text name = nib_writer_text(&parser->header);
    while (name.size && is_space(*name.bytes)) {
        name.bytes++;
        name.size--;
    }
    if (!line_end) {
        if (name.size > ROLE_BYTES)
            header_to_text(parser);
        return;
    }
    parser->open.role = role_of(name);
    nib_parser_put_header(parser, nib_text_of("\n"));
    parser->state = REPLY;
    if (parser->open.role != NIB_ROLE_ASSISTANT)
        start_text(parser, "");
    struct nib_text rest = {line_end + 1, bytes.size - size - 1};
    if (rest.size && parser->state == REPLY)
        start_text(parser, "final");
    if (rest.size)
        nib_parser_put_text(parser, rest);
}

static bool is_reply_space(const struct nib_chat_parser *parser, struct nib_text bytes)
{
    for (size_t i = 0; i < bytes.size; i++)
        if (!is_space(bytes.bytes[i]))
            return false;
    return parser->header.buffer.size + bytes.size <= ROLE_BYTES;
}

static void push_bytes(struct nib_chat_parser *parser, struct nib_text bytes)
{
    bool assistant = parser->state == BETWEEN || parser->open.role == NIB_ROLE_ASSISTANT,
         reasons = parser->state == TEXT && nib_text_equal(parser->open.channel, nib_text_of("analysis")),
         speaks = assistant && (parser->state == TEXT || parser->state == REPLY || parser->state == BETWEEN);
    if (parser->state == BETWEEN)
        open_next(parser, REPLY);
    if (speaks && parser->state == REPLY && nib_text_equal(bytes, nib_text_of(think))) {
        nib_parser_put_header(parser, bytes);
        start_text(parser, "analysis");
    } else if (reasons && nib_text_equal(bytes, nib_text_of(end_think))) {
        open_next(parser, REPLY);
        nib_parser_put_header(parser, bytes);
    } else if (speaks && !reasons && nib_text_equal(bytes, nib_text_of(call))) {
        if (parser->state == TEXT)
            open_next(parser, CALL);
        nib_parser_put_header(parser, bytes);
        parser->state = CALL;
    } else if (parser->state == CALL) {
        nib_parser_put_header(parser, bytes);
        if (nib_text_equal(bytes, nib_text_of(end_call)))
            finish_call(parser);
    } else if (parser->state == ROLE) {
        push_to_role(parser, bytes);
    } else if (parser->state == REPLY && is_reply_space(parser, bytes)) {
        nib_parser_put_header(parser, bytes);
    } else {
        if (parser->state == REPLY)
            start_text(parser, "final");
        nib_parser_put_text(parser, bytes);
    }
}

static void push_mark(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state == TEXT)
        nib_parser_mark(parser, &parser->text_marks, parser->text.buffer.size, token);
    else
        nib_parser_mark(parser, &parser->header_marks, parser->header.buffer.size, token);
}

static void push_start(struct nib_chat_parser *parser, int32_t token)
{
    if (parser->state ==
        REPLY) { // nothing but the line's end behind the turn before, or a reply that starts again
        push_mark(parser, token);
    } else {
        if (parser->state != BETWEEN)
            close_message(parser, NIB_END_MISSING, -1);
        nib_parser_open(parser, true);
    }
    parser->state = ROLE;
}

static void chatml_push(struct nib_chat_parser *parser, int32_t token)
{
    const struct nib_vocabulary *vocabulary = &parser->chat->vocabulary;
    int control = nib_chat_control_of(parser->chat, token);
    struct nib_text bytes = {0};
    if (control < 0)
        bytes = vocabulary->bytes(vocabulary->self, token);
    if (control == IM_START) {
        push_start(parser, token);
    } else if (bytes.size) {
        push_bytes(parser, bytes);
    } else if (parser->state == BETWEEN && parser->count > 0) {
        nib_parser_mark(parser, &parser->stray_marks, 0, token);
    } else {
        if (parser->state == BETWEEN)
            open_next(parser, REPLY);
        if (control == IM_END || control == END_OF_TEXT)
            close_message(parser, control == IM_END ? NIB_END_TURN : NIB_END_TEXT, token);
        else
            push_mark(parser, token);
    }
}

static void chatml_finish(struct nib_chat_parser *parser)
{
    bool untouched = parser->state == REPLY && parser->tokens.count == 0;
    if (parser->state != BETWEEN && !untouched)
        close_message(parser, NIB_END_TRUNCATED, -1);
}

const struct nib_chat_format nib_chat_chatml = {
    .name = "chatml",
    .controls =
        {
            [IM_START] = {"<|im_start|>", .required = true},
            [IM_END] = {"<|im_end|>", .required = true, .stops = true},
            [END_OF_TEXT] = {"<|endoftext|>", .stops = true},
        },
    .render = chatml_render,
    .render_exact = chatml_render_exact,
    .begin = chatml_begin,
    .push = chatml_push,
    .finish = chatml_finish,
};
