// ChatML as Qwen3 writes it: turns between <|im_start|> and <|im_end|>, reasoning in <think>, calls as JSON in
// <tool_call>. https://qwen.readthedocs.io (Key Concepts: control tokens; function calling).
#include <stdlib.h>

#include "base/error.h"
#include "text/chat_turns.h"

enum { IM_START, IM_END, END_OF_TEXT, THINK, THOUGHT, CALL, CALL_END, RESPONSE, RESPONSE_END };

// ---- rendering

static void write_tool(struct nib_writer *out, const json_t *function)
{
    nib_write_string(out, "\n{\"type\": \"function\", \"function\": ");
    nib_write_json(out, function, 0);
    nib_write_string(out, "}");
}

static nib_status write_system(struct nib_writer *out, const struct nib_conversation *conversation,
                               struct nib_error *err)
{
    nib_turns_write_instructions(out, conversation, "");
    if (conversation->tool_count == 0)
        return NIB_OK;
    nib_write_string(out, out->buffer.size ? "\n\n" : "");
    nib_write_string(out,
                     "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
                     "provided with function signatures within <tools></tools> XML tags:\n<tools>");
    nib_status status = nib_turns_write_tools(out, conversation, write_tool, err);
    nib_write_string(out, "\n</tools>\n\n");
    return status;
}

static const char how_to_call[] = "For each function call, return a json object with function name and arguments "
                                  "within <tool_call></tool_call> XML tags:\n"
                                  "<tool_call>\n"
                                  "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
                                  "</tool_call>";

static nib_status put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err)
{
    return nib_turns_put_system(chat, conversation, write_system, "<|im_start|>system\n", how_to_call,
                                "<|im_end|>\n", pieces, err);
}

static bool ends_line(const struct nib_pieces *pieces)
{
    struct nib_text last = pieces->items[pieces->count - 1].text;
    return last.size && last.bytes[last.size - 1] == '\n';
}

// A call up to its arguments.
static bool put_call_head(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces)
{
    struct nib_text function = nib_function_of(call->recipient);
    json_t *string = json_stringn(function.bytes, function.size);
    struct nib_writer name = {0};
    if (string)
        nib_write_json(&name, string, 0);
    else // no UTF-8, so no tool has it
        nib_write_text(&name, function);
    json_decref(string);
    bool fine = nib_pieces_put_words(pieces, chat, "<tool_call>\n{\"name\": ");
    fine = nib_pieces_put_written(pieces, &name) && fine;
    return fine && nib_pieces_put_words(pieces, chat, ", \"arguments\": ");
}

static bool put_assistant(const struct nib_chat *chat, const struct nib_turn *turn, size_t reasons_from,
                          struct nib_pieces *pieces)
{
    bool fine = nib_pieces_put_words(pieces, chat, "<|im_start|>assistant\n"), said = false;
    if (fine && nib_turn_reasons(turn, reasons_from))
        fine = nib_pieces_put_words(pieces, chat, "<think>\n") &&
               nib_turn_put_reasoning(pieces, turn, reasons_from) &&
               (ends_line(pieces) || nib_pieces_put_words(pieces, chat, "\n")) &&
               nib_pieces_put_words(pieces, chat, "</think>\n\n");
    for (size_t i = 0; fine && i < turn->count; i++) {
        const struct nib_message *message = &turn->messages[i];
        if (nib_is_reasoning(message))
            continue;
        if (nib_is_call(message))
            fine = (!said || nib_pieces_put_words(pieces, chat, "\n")) && put_call_head(chat, message, pieces) &&
                   nib_pieces_put_borrowed(pieces, message->text) &&
                   nib_pieces_put_words(pieces, chat, "}\n</tool_call>");
        else
            fine = nib_pieces_put_borrowed(pieces, message->text);
        said |= nib_is_call(message) || message->text.size;
    }
    return fine && nib_pieces_put_words(pieces, chat, "<|im_end|>\n");
}

static bool put_turn(const struct nib_chat *chat, const struct nib_conversation *conversation,
                     const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    static const struct nib_turn_words words[] = {
        [NIB_ROLE_SYSTEM] = {"<|im_start|>system\n", "", "", "<|im_end|>\n"},
        [NIB_ROLE_DEVELOPER] = {"<|im_start|>system\n", "", "", "<|im_end|>\n"},
        [NIB_ROLE_USER] = {"<|im_start|>user\n", "", "", "<|im_end|>\n"},
        [NIB_ROLE_TOOL] = {"<|im_start|>user", "\n<tool_response>\n", "\n</tool_response>", "<|im_end|>\n"},
    };
    (void)conversation;
    if (turn->role == NIB_ROLE_ASSISTANT)
        return put_assistant(chat, turn, reasons_from, pieces);
    return nib_turn_put_between(chat, turn, &words[turn->role], pieces);
}

static nib_status put_reply(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_message *reply = conversation->reply;
    bool fine = nib_pieces_put_words(pieces, chat, "<|im_start|>assistant\n");
    pieces->reply_from = pieces->count;
    if (fine && conversation->effort == NIB_EFFORT_NONE && chat->controls[THINK] >= 0)
        fine = nib_pieces_put_words(pieces, chat, "<think>\n\n</think>\n\n");
    if (fine && reply)
        fine = (!nib_is_call(reply) || put_call_head(chat, reply, pieces)) &&
               nib_pieces_put_borrowed(pieces, reply->text);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

// ---- parsing

// The arguments are passed on as they were written, so numbers may be as large as they like and strings may hold a NUL.
enum { LENIENT = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL };

// The bytes of a call's arguments as the model wrote them.
static struct nib_text arguments_in(struct nib_text call, const json_t *arguments)
{
    static const char key[] = "\"arguments\"";
    size_t size = sizeof key - 1;
    for (size_t at = 0; at + size < call.size; at++) {
        if (call.bytes[at] != '"' || memcmp(call.bytes + at, key, size) != 0)
            continue;
        size_t value = at + size + strspn(call.bytes + at + size, " \t\r\n");
        if (value >= call.size || call.bytes[value] != ':')
            continue;
        value++;
        value += strspn(call.bytes + value, " \t\r\n");
        json_error_t end;
        json_t *read = json_loadb(call.bytes + value, call.size - value,
                                  LENIENT | JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY, &end);
        bool same = read && json_equal(read, arguments);
        json_decref(read);
        if (same && end.position > 0)
            return (struct nib_text){call.bytes + value, (size_t)end.position};
    }
    return (struct nib_text){0};
}

// {"name": …, "arguments": …} between the tags.
static bool read_calls(struct nib_chat_parser *parser)
{
    struct nib_text header = nib_writer_text(&parser->header); // ends with a NUL
    json_t *call = header.size ? json_loadb(header.bytes, header.size, LENIENT, NULL) : NULL;
    const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
    struct nib_text written = {0};
    bool read = json_string_length(name) > 0 && arguments;
    if (read &&
        json_is_null(arguments)) // how some say that there are none; whoever gets the call expects an object
        written = nib_text_of("{}");
    else if (read)
        written = arguments_in(header, arguments);
    char *dumped = read && !written.size ? json_dumps(arguments, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    read = written.size || dumped;
    if (read)
        nib_turn_put_call(parser, (struct nib_text){json_string_value(name), json_string_length(name)},
                          written.size ? written : nib_text_of(dumped));
    free(dumped);
    json_decref(call);
    return read;
}

// In a string of the call's JSON.
static bool in_argument(struct nib_text header)
{
    bool string = false;
    for (size_t i = 0; i < header.size; i++)
        if (header.bytes[i] == '"')
            string = !string;
        else if (string && header.bytes[i] == '\\')
            i++;
    return string;
}

static const char *call_end(const struct nib_chat *chat)
{
    (void)chat;
    return "}\n</tool_call>";
}

static const struct nib_turn_grammar grammar = {
    .head = NIB_HEAD_LINE,
    .read_calls = read_calls,
    .in_argument = in_argument,
    .put_system = put_system,
    .put_turn = put_turn,
    .put_reply = put_reply,
    .reasons_from = nib_reasons_from_question,
    .behind_thought = "\n\n",
    .put_call_head = put_call_head,
    .call_end = call_end,
};

const struct nib_chat_format nib_chat_chatml = {
    .name = "chatml",
    .turns = &grammar,
    .controls =
        {
            [IM_START] = {"<|im_start|>", .required = true, .sign = NIB_SIGN_TURN},
            [IM_END] = {"<|im_end|>", .required = true, .stops = true, .sign = NIB_SIGN_TURN_END},
            [END_OF_TEXT] = {"<|endoftext|>", .stops = true, .sign = NIB_SIGN_TEXT_END},
            [THINK] = {"<think>", .sign = NIB_SIGN_THINK},
            [THOUGHT] = {"</think>", .sign = NIB_SIGN_THOUGHT},
            [CALL] = {"<tool_call>", .sign = NIB_SIGN_CALL},
            [CALL_END] = {"</tool_call>", .sign = NIB_SIGN_CALL_END},
            [RESPONSE] = {.spelling = "<tool_response>"},
            [RESPONSE_END] = {.spelling = "</tool_response>"},
        },
    .render = nib_turns_render,
    .render_exact = nib_turns_render_exact,
    .frame = nib_turns_frame,
    .begin = nib_turns_begin,
    .push = nib_turns_push,
    .finish = nib_turns_finish,
};
