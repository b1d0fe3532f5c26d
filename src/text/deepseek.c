// DeepSeek-V3, R1 and V3.1: turns that begin with <｜User｜> or <｜Assistant｜>, the assistant's ending with
// <｜end▁of▁sentence｜>. After the chat templates beside the models, which differ: R1's vocabulary has <think>, V3.1's has
// search tokens, too, and V3.1 writes a call's arguments bare where the older ones fence them.
#include "base/error.h"
#include "text/chat_turns.h"

enum {
    BEGIN,
    END,
    USER,
    ASSISTANT,
    CALLS,
    CALLS_END,
    CALL,
    CALL_END,
    SEPARATOR,
    RESULTS,
    RESULTS_END,
    RESULT,
    RESULT_END,
    THINK,
    THOUGHT,
    SEARCH
};

static bool thinks(const struct nib_chat *chat)
{
    return chat->controls[THINK] >= 0 && chat->controls[THOUGHT] >= 0;
}

// V3.1: one model that thinks or does not, as the prompt says.
static bool chooses(const struct nib_chat *chat)
{
    return thinks(chat) && chat->controls[SEARCH] >= 0;
}

// ---- rendering

static nib_status write_tools(struct nib_writer *out, const struct nib_conversation *conversation,
                              struct nib_error *err)
{
    nib_write_string(out, out->buffer.size ? "\n\n" : "");
    nib_write_string(out, "## Tools\nYou have access to the following tools:\n");
    for (size_t i = 0; i < conversation->tool_count; i++) {
        json_t *function = nib_tool_json(&conversation->tools[i], err);
        if (!function)
            return NIB_ERR_ARGUMENT;
        const json_t *parameters = json_object_get(function, "parameters");
        nib_write_string(out, "\n### ");
        nib_write_text(out, conversation->tools[i].name);
        nib_write_string(out, "\nDescription: ");
        nib_write_text(out, conversation->tools[i].description);
        nib_write_string(out, "\n\nParameters: ");
        if (parameters)
            nib_write_json(out, parameters, 0);
        else
            nib_write_string(out, "{}");
        nib_write_string(out, "\n");
        json_decref(function);
    }
    nib_write_string(out, "\n");
    return NIB_OK;
}

static const char how_to_call[] =
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{additional_tool_calls}<｜tool▁calls▁end｜>\n\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces";

// The older models' templates say nothing about tools; this is in their form of calls.
static const char how_to_call_fenced[] =
    "To use a tool, write a call in exactly this form, with arguments that follow the tool's parameters:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>tool_name\n"
    "```json\n"
    "{\"argument\": \"value\"}\n"
    "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";

static nib_status put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err)
{
    struct nib_writer text = {0};
    nib_turns_write_instructions(&text, conversation, "");
    nib_status status = conversation->tool_count ? write_tools(&text, conversation, err) : NIB_OK;
    if (status) {
        nib_bytes_free(&text.buffer);
        return status;
    }
    bool fine = nib_pieces_put_words(pieces, chat, "<｜begin▁of▁sentence｜>");
    fine = nib_pieces_put_written(pieces, &text) && fine;
    if (fine && conversation->tool_count)
        fine = nib_pieces_put_words(pieces, chat, chooses(chat) ? how_to_call : how_to_call_fenced);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

// Up to the arguments.
static bool put_call_head(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces)
{
    bool fenced = !chooses(chat);
    return nib_pieces_put_words(
               pieces, chat, fenced ? "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" : "<｜tool▁call▁begin｜>") &&
           nib_pieces_put_borrowed(pieces, nib_function_of(call->recipient)) &&
           nib_pieces_put_words(pieces, chat, fenced ? "\n```json\n" : "<｜tool▁sep｜>");
}

static bool put_calls(const struct nib_chat *chat, const struct nib_turn *turn, struct nib_pieces *pieces)
{
    bool fine = true, any = false, fenced = !chooses(chat);
    for (size_t i = 0; fine && i < turn->count; i++) {
        if (!nib_is_call(&turn->messages[i]))
            continue;
        fine = nib_pieces_put_words(pieces, chat,
                                    !any     ? "<｜tool▁calls▁begin｜>"
                                    : fenced ? "\n"
                                             : "") &&
               put_call_head(chat, &turn->messages[i], pieces) &&
               nib_pieces_put_borrowed(pieces, turn->messages[i].text) &&
               nib_pieces_put_words(pieces, chat, fenced ? "\n```<｜tool▁call▁end｜>" : "<｜tool▁call▁end｜>");
        any = true;
    }
    return fine && (!any || nib_pieces_put_words(pieces, chat, "<｜tool▁calls▁end｜>"));
}

static enum nib_role role_before(const struct nib_conversation *conversation, size_t index)
{
    return index ? conversation->messages[index - 1].role : NIB_ROLE_USER;
}

// Behind results of tools the assistant's turn simply goes on; V3.1's does behind its own words, too.
static bool put_assistant(const struct nib_chat *chat, const struct nib_conversation *conversation,
                          const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    enum nib_role before = role_before(conversation, turn->first);
    bool begins = before != NIB_ROLE_TOOL && !(before == NIB_ROLE_ASSISTANT && chooses(chat)), fine = true;
    if (begins)
        fine = nib_pieces_put_words(pieces, chat, "<｜Assistant｜>");
    if (fine && nib_turn_reasons(turn, reasons_from))
        fine = nib_pieces_put_words(pieces, chat, chooses(chat) ? "<think>" : "<think>\n") &&
               nib_turn_put_reasoning(pieces, turn, reasons_from) &&
               nib_pieces_put_words(pieces, chat, chooses(chat) ? "</think>" : "\n</think>\n\n");
    else if (fine && begins && chooses(chat))
        fine = nib_pieces_put_words(pieces, chat, "</think>");
    for (size_t i = 0; fine && i < turn->count; i++)
        if (!nib_is_call(&turn->messages[i]) && !nib_is_reasoning(&turn->messages[i]))
            fine = nib_pieces_put_borrowed(pieces, turn->messages[i].text);
    return fine && put_calls(chat, turn, pieces) && nib_pieces_put_words(pieces, chat, "<｜end▁of▁sentence｜>");
}

static bool put_results(const struct nib_chat *chat, const struct nib_turn *turn, struct nib_pieces *pieces)
{
    bool wrapped = !chooses(chat);
    bool fine = !wrapped || nib_pieces_put_words(pieces, chat, "<｜tool▁outputs▁begin｜>");
    for (size_t i = 0; fine && i < turn->count; i++)
        fine = nib_pieces_put_words(pieces, chat,
                                    wrapped && i ? "\n<｜tool▁output▁begin｜>" : "<｜tool▁output▁begin｜>") &&
               nib_pieces_put_borrowed(pieces, turn->messages[i].text) &&
               nib_pieces_put_words(pieces, chat, "<｜tool▁output▁end｜>");
    return fine && (!wrapped || nib_pieces_put_words(pieces, chat, "<｜tool▁outputs▁end｜>"));
}

static bool put_turn(const struct nib_chat *chat, const struct nib_conversation *conversation,
                     const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    if (turn->role == NIB_ROLE_ASSISTANT)
        return put_assistant(chat, conversation, turn, reasons_from, pieces);
    if (turn->role == NIB_ROLE_TOOL)
        return put_results(chat, turn, pieces);
    // There is no turn of a system behind the first; what it says, a user says.
    return nib_pieces_put_words(pieces, chat, "<｜User｜>") &&
           nib_pieces_put_borrowed(pieces, turn->messages->text);
}

// How the assistant's turn begins: with a thought, an empty one, or none.
static const char *thought_before_reply(const struct nib_chat *chat, const struct nib_conversation *conversation)
{
    const struct nib_message *reply = conversation->reply;
    bool at_once = conversation->effort == NIB_EFFORT_NONE || (reply && !nib_is_reasoning(reply));
    if (chooses(chat)) // calls of V3.1 come without a thought
        return at_once || conversation->tool_count ? "</think>" : "<think>";
    return !thinks(chat) ? "" : at_once ? "<think>\n\n</think>\n\n" : "<think>\n";
}

static bool put_first_call_head(const struct nib_chat *chat, const struct nib_message *call,
                                struct nib_pieces *pieces)
{
    return nib_pieces_put_words(pieces, chat, "<｜tool▁calls▁begin｜>") && put_call_head(chat, call, pieces);
}

static nib_status put_reply(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_message *reply = conversation->reply;
    bool begins = role_before(conversation, conversation->message_count) != NIB_ROLE_TOOL, fine = true;
    if (begins)
        fine = nib_pieces_put_words(pieces, chat, "<｜Assistant｜>");
    pieces->reply_from = pieces->count;
    if (fine && begins)
        fine = nib_pieces_put_words(pieces, chat, thought_before_reply(chat, conversation));
    if (fine && reply && nib_is_call(reply))
        fine = put_first_call_head(chat, reply, pieces);
    if (fine && reply)
        fine = nib_pieces_put_borrowed(pieces, reply->text);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

// ---- parsing

// NAME\n```json\n{…}\n```: the name, and the arguments inside the fence. False if there is no fence.
static bool split_fenced(struct nib_text text, struct nib_text *name, struct nib_text *arguments)
{
    static const char fence[] = "```";
    const char *open = text.size ? memmem(text.bytes, text.size, fence, 3) : NULL;
    if (!open || text.size < 6 || memcmp(text.bytes + text.size - 3, fence, 3) != 0 ||
        open == text.bytes + text.size - 3)
        return false;
    const char *line = memchr(open, '\n', (size_t)(text.bytes + text.size - open));
    if (!line || line > text.bytes + text.size - 3)
        return false;
    *name = nib_text_trimmed((struct nib_text){text.bytes, (size_t)(open - text.bytes)});
    *arguments = nib_text_trimmed((struct nib_text){line, (size_t)(text.bytes + text.size - 3 - line)});
    return true;
}

// TYPE<sep>NAME and a fenced block, or NAME<sep>ARGUMENTS.
static bool read_calls(struct nib_chat_parser *parser)
{
    const struct nib_marks *marks = &parser->header_marks;
    struct nib_text header = nib_writer_text(&parser->header), name, arguments;
    size_t i = 0;
    while (i < marks->count && marks->items[i].token != parser->chat->controls[SEPARATOR])
        i++;
    if (i == marks->count || header.size == 0)
        return false;
    size_t at = marks->items[i].at;
    struct nib_text before = {header.bytes, at}, behind = {header.bytes + at, header.size - at};
    if (!split_fenced(nib_text_trimmed(behind), &name, &arguments)) {
        name = nib_text_trimmed(before);
        arguments = nib_text_trimmed(behind);
    }
    if (name.size == 0)
        return false;
    nib_turn_put_call(parser, name, arguments);
    return true;
}

static const char *call_end(const struct nib_chat *chat)
{
    return chooses(chat) ? "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
                         : "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
}

// The templates show no reasoning again.
static size_t reasons_from(const struct nib_conversation *conversation)
{
    return conversation->keep_reasoning ? 0 : conversation->message_count;
}

static const struct nib_turn_grammar grammar = {
    .head = NIB_HEAD_NONE,
    .calls_end_reasoning = true,
    .read_calls = read_calls,
    .put_system = put_system,
    .put_turn = put_turn,
    .put_reply = put_reply,
    .reasons_from = reasons_from,
    .behind_thought = "",
    .put_call_head = put_first_call_head,
    .call_end = call_end,
};

const struct nib_chat_format nib_chat_deepseek = {
    .name = "deepseek",
    .turns = &grammar,
    .controls =
        {
            [BEGIN] = {.spelling = "<｜begin▁of▁sentence｜>"},
            [END] = {"<｜end▁of▁sentence｜>", .required = true, .stops = true, .sign = NIB_SIGN_TURN_END},
            [USER] = {"<｜User｜>", .required = true, .sign = NIB_SIGN_USER},
            [ASSISTANT] = {"<｜Assistant｜>", .required = true, .sign = NIB_SIGN_ASSISTANT},
            [CALLS] = {"<｜tool▁calls▁begin｜>", .sign = NIB_SIGN_CALL},
            [CALLS_END] = {"<｜tool▁calls▁end｜>", .sign = NIB_SIGN_CALLS_END},
            [CALL] = {"<｜tool▁call▁begin｜>", .sign = NIB_SIGN_CALL},
            [CALL_END] = {"<｜tool▁call▁end｜>", .sign = NIB_SIGN_CALL_END},
            [SEPARATOR] = {"<｜tool▁sep｜>", .sign = NIB_SIGN_CALL_PART},
            [RESULTS] = {.spelling = "<｜tool▁outputs▁begin｜>"},
            [RESULTS_END] = {.spelling = "<｜tool▁outputs▁end｜>"},
            [RESULT] = {.spelling = "<｜tool▁output▁begin｜>"},
            [RESULT_END] = {.spelling = "<｜tool▁output▁end｜>"},
            [THINK] = {"<think>", .sign = NIB_SIGN_THINK},
            [THOUGHT] = {"</think>", .sign = NIB_SIGN_THOUGHT},
            [SEARCH] = {.spelling = "<｜search▁begin｜>"},
        },
    .render = nib_turns_render,
    .render_exact = nib_turns_render_exact,
    .frame = nib_turns_frame,
    .begin = nib_turns_begin,
    .push = nib_turns_push,
    .finish = nib_turns_finish,
};
