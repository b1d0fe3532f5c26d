// MiniMax-M2: turns between ]~b] and [e~[, reasoning in <think>, which every answer begins with, and calls as mark-up.
// https://github.com/MiniMax-AI/MiniMax-M2 (docs/tool_calling_guide.md) and the chat template beside the models.
#include "base/error.h"
#include "text/chat_turns.h"
#include "text/tool_markup.h"

enum { BEGIN, TURN, TURN_END, THINK, THOUGHT, CALL, CALL_END };

static const struct nib_tool_markup markup = {.call = "<invoke name=",
                                              .call_end = "</invoke>",
                                              .argument = "<parameter name=",
                                              .argument_end = "</parameter>",
                                              .before_name = "\"",
                                              .behind_name = "\">",
                                              .null = "null",
                                              .yes = "true",
                                              .no = "false"};

// ---- rendering

static void write_tool(struct nib_writer *out, const json_t *function)
{
    nib_write_string(out, "<tool>");
    nib_write_json(out, function, 0);
    nib_write_string(out, "</tool>\n");
}

static nib_status write_system(struct nib_writer *out, const struct nib_conversation *conversation,
                               struct nib_error *err)
{
    nib_turns_write_instructions(out, conversation, "You are a helpful assistant.");
    if (conversation->tool_count == 0)
        return NIB_OK;
    nib_write_string(out,
                     "\n\n# Tools\nYou may call one or more tools to assist with the user query.\nHere are the "
                     "tools available in JSONSchema format:\n\n<tools>\n");
    nib_status status = nib_turns_write_tools(out, conversation, write_tool, err);
    nib_write_string(out, "</tools>\n\n");
    return status;
}

static const char how_to_call[] = "When making tool calls, use XML format to invoke tools and pass parameters:\n\n"
                                  "<minimax:tool_call>\n"
                                  "<invoke name=\"tool-name-1\">\n"
                                  "<parameter name=\"param-key-1\">param-value-1</parameter>\n"
                                  "<parameter name=\"param-key-2\">param-value-2</parameter>\n"
                                  "...\n"
                                  "</invoke>\n"
                                  "</minimax:tool_call>";

static nib_status put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err)
{
    return nib_turns_put_system(chat, conversation, write_system, "]~!b[]~b]system\n", how_to_call, "[e~[\n",
                                pieces, err);
}

static bool put_call_head(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces)
{
    return nib_pieces_put_words(pieces, chat, "<invoke name=\"") &&
           nib_pieces_put_borrowed(pieces, nib_function_of(call->recipient)) &&
           nib_pieces_put_words(pieces, chat, "\">\n");
}

static bool put_first_call_head(const struct nib_chat *chat, const struct nib_message *call,
                                struct nib_pieces *pieces)
{
    return nib_pieces_put_words(pieces, chat, "<minimax:tool_call>\n") && put_call_head(chat, call, pieces);
}

static bool put_call(const struct nib_chat *chat, const struct nib_message *call, struct nib_pieces *pieces)
{
    struct nib_writer arguments = {0};
    nib_markup_write_arguments(&arguments, &markup, call->text);
    bool fine = put_call_head(chat, call, pieces);
    fine = nib_pieces_put_written(pieces, &arguments) && fine;
    return fine && nib_pieces_put_words(pieces, chat, "</invoke>\n");
}

// All calls of a turn stand behind everything else.
static bool put_calls(const struct nib_chat *chat, const struct nib_turn *turn, struct nib_pieces *pieces)
{
    bool fine = true, any = false;
    for (size_t i = 0; fine && i < turn->count; i++) {
        if (!nib_is_call(&turn->messages[i]))
            continue;
        fine = (any || nib_pieces_put_words(pieces, chat, "\n<minimax:tool_call>\n")) &&
               put_call(chat, &turn->messages[i], pieces);
        any = true;
    }
    return fine && (!any || nib_pieces_put_words(pieces, chat, "</minimax:tool_call>"));
}

static bool put_assistant(const struct nib_chat *chat, const struct nib_turn *turn, size_t reasons_from,
                          struct nib_pieces *pieces)
{
    bool fine = nib_pieces_put_words(pieces, chat, "]~b]ai\n");
    if (fine && nib_turn_reasons(turn, reasons_from))
        fine = nib_pieces_put_words(pieces, chat, "<think>\n") &&
               nib_turn_put_reasoning(pieces, turn, reasons_from) &&
               nib_pieces_put_words(pieces, chat, "\n</think>\n\n");
    for (size_t i = 0; fine && i < turn->count; i++)
        if (!nib_is_call(&turn->messages[i]) && !nib_is_reasoning(&turn->messages[i]))
            fine = nib_pieces_put_borrowed(pieces, turn->messages[i].text);
    return fine && put_calls(chat, turn, pieces) && nib_pieces_put_words(pieces, chat, "[e~[\n");
}

static bool put_turn(const struct nib_chat *chat, const struct nib_conversation *conversation,
                     const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    static const struct nib_turn_words words[] = {
        [NIB_ROLE_SYSTEM] = {"]~b]system\n", "", "", "[e~[\n"},
        [NIB_ROLE_DEVELOPER] = {"]~b]system\n", "", "", "[e~[\n"},
        [NIB_ROLE_USER] = {"]~b]user\n", "", "", "[e~[\n"},
        [NIB_ROLE_TOOL] = {"]~b]tool", "\n<response>", "</response>", "[e~[\n"},
    };
    (void)conversation;
    if (turn->role == NIB_ROLE_ASSISTANT)
        return put_assistant(chat, turn, reasons_from, pieces);
    return nib_turn_put_between(chat, turn, &words[turn->role], pieces);
}

// The reply begins with a thought that the prompt opens; a reply that was demanded begins behind an empty one.
static nib_status put_reply(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_message *reply = conversation->reply;
    bool fine = nib_pieces_put_words(pieces, chat, "]~b]ai\n");
    pieces->reply_from = pieces->count;
    fine = fine && nib_pieces_put_words(pieces, chat, "<think>\n");
    if (fine && reply && !nib_is_reasoning(reply))
        fine = nib_pieces_put_words(pieces, chat, "\n</think>\n\n");
    if (fine && reply && nib_is_call(reply))
        fine = put_first_call_head(chat, reply, pieces);
    if (fine && reply)
        fine = nib_pieces_put_borrowed(pieces, reply->text);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

// ---- parsing

static bool read_calls(struct nib_chat_parser *parser)
{
    return nib_turn_put_markup(parser, &markup);
}

static bool in_argument(struct nib_text header)
{
    return nib_markup_in_argument(&markup, header);
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
    .put_call_head = put_first_call_head,
    .markup = &markup,
};

const struct nib_chat_format nib_chat_minimax = {
    .name = "minimax",
    .always_reasons = true,
    .turns = &grammar,
    .controls =
        {
            [BEGIN] = {"]~!b[", .required = true},
            [TURN] = {"]~b]", .required = true, .sign = NIB_SIGN_TURN},
            [TURN_END] = {"[e~[", .required = true, .stops = true, .sign = NIB_SIGN_TURN_END},
            [THINK] = {"<think>", .sign = NIB_SIGN_THINK},
            [THOUGHT] = {"</think>", .sign = NIB_SIGN_THOUGHT},
            [CALL] = {"<minimax:tool_call>", .sign = NIB_SIGN_CALL},
            [CALL_END] = {"</minimax:tool_call>", .sign = NIB_SIGN_CALL_END},
        },
    .render = nib_turns_render,
    .render_exact = nib_turns_render_exact,
    .frame = nib_turns_frame,
    .begin = nib_turns_begin,
    .push = nib_turns_push,
    .finish = nib_turns_finish,
};
