// Kimi-K2: turns between <|im_user|> or <|im_assistant|> or <|im_system|> and <|im_end|>, calls in a section of their own
// with ids functions.NAME:NUMBER, reasoning in <think> where the vocabulary has it (K2-Thinking and later).
// https://github.com/MoonshotAI/Kimi-K2 (docs/tool_call_guidance.md) and the chat template beside the models. Tools are told
// as JSON; K2.5 and later know a form like TypeScript, too, which their template prefers.
#include <stdio.h>

#include "base/error.h"
#include "text/chat_turns.h"

enum {
    IM_USER,
    IM_ASSISTANT,
    IM_SYSTEM,
    IM_MIDDLE,
    IM_END,
    END_OF_TEXT,
    SECTION,
    SECTION_END,
    CALL,
    ARGUMENTS,
    CALL_END,
    THINK,
    THOUGHT
};

static bool thinks(const struct nib_chat *chat)
{
    return chat->controls[THINK] >= 0 && chat->controls[THOUGHT] >= 0;
}

// ---- ids

// Bytes of "NAME" in "NAME:NUMBER"; 0 for another id.
static size_t named(struct nib_text id)
{
    size_t at = id.size;
    while (at > 0 && id.bytes[at - 1] >= '0' && id.bytes[at - 1] <= '9')
        at--;
    return at < id.size && at > 1 && id.bytes[at - 1] == ':' ? at - 1 : 0;
}

// Bytes of "functions.NAME" in "functions.NAME:NUMBER"; 0 for another id.
static size_t numbered(struct nib_text id)
{
    static const char prefix[] = "functions.";
    size_t size = named(id);
    return size >= sizeof prefix && memcmp(id.bytes, prefix, sizeof prefix - 1) == 0 ? size : 0;
}

// Calls are numbered through the conversation; those that come with such an id keep it.
static bool put_id(const struct nib_conversation *conversation, size_t index, const struct nib_message *call,
                   struct nib_pieces *pieces)
{
    if (numbered(call->id))
        return nib_pieces_put_borrowed(pieces, call->id);
    size_t number = 0;
    for (size_t i = 0; i < index; i++)
        number += nib_is_call(&conversation->messages[i]);
    char digits[32];
    int size = snprintf(digits, sizeof digits, ":%zu", number);
    return nib_pieces_put_copy(pieces, "functions.", nib_function_of(call->recipient)) &&
           nib_pieces_put_copy(pieces, "", (struct nib_text){digits, (size_t)size});
}

// The id of the call that a result answers: the latest with its id or, without one, of its tool.
static bool put_result_id(const struct nib_conversation *conversation, size_t index, struct nib_pieces *pieces)
{
    const struct nib_message *result = &conversation->messages[index];
    for (size_t i = index; i-- > 0;) {
        const struct nib_message *call = &conversation->messages[i];
        if (!nib_is_call(call))
            continue;
        if (result->id.size ? nib_text_equal(call->id, result->id)
                            : nib_text_equal(nib_function_of(call->recipient), nib_function_of(result->name)))
            return put_id(conversation, i, &conversation->messages[i], pieces);
    }
    return nib_pieces_put_borrowed(pieces, result->id.size ? result->id : result->name);
}

// ---- rendering

static nib_status write_tools(struct nib_writer *out, const struct nib_conversation *conversation,
                              struct nib_error *err)
{
    json_t *tools = json_array();
    for (size_t i = 0; i < conversation->tool_count; i++) {
        json_t *function = nib_tool_json(&conversation->tools[i], err);
        if (!function) {
            json_decref(tools);
            return NIB_ERR_ARGUMENT;
        }
        json_array_append_new(tools, json_pack("{s:s, s:o}", "type", "function", "function", function));
    }
    out->failed |= json_array_size(tools) != conversation->tool_count;
    nib_write_json(out, tools, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(tools);
    return NIB_OK;
}

static bool begins_with_system(const struct nib_conversation *conversation)
{
    return conversation->message_count &&
           (conversation->messages->role == NIB_ROLE_SYSTEM || conversation->messages->role == NIB_ROLE_DEVELOPER);
}

static nib_status put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                             struct nib_pieces *pieces, struct nib_error *err)
{
    struct nib_writer tools = {0}, text = {0};
    nib_status status = conversation->tool_count ? write_tools(&tools, conversation, err) : NIB_OK;
    if (status) {
        nib_bytes_free(&tools.buffer);
        return status;
    }
    nib_turns_write_instructions(
        &text, conversation,
        begins_with_system(conversation) ? "" : "You are Kimi, an AI assistant created by Moonshot AI.");
    bool speaks = text.failed || text.buffer.size, fine = true;
    if (conversation->tool_count)
        fine = nib_pieces_put_words(pieces, chat, "<|im_system|>tool_declare<|im_middle|>");
    fine = nib_pieces_put_written(pieces, &tools) && fine;
    fine = fine && (!conversation->tool_count || nib_pieces_put_words(pieces, chat, "<|im_end|>")) &&
           (!speaks || nib_pieces_put_words(pieces, chat, "<|im_system|>system<|im_middle|>"));
    fine = nib_pieces_put_written(pieces, &text) && fine;
    fine = fine && (!speaks || nib_pieces_put_words(pieces, chat, "<|im_end|>"));
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

static bool put_calls(const struct nib_chat *chat, const struct nib_conversation *conversation,
                      const struct nib_turn *turn, struct nib_pieces *pieces)
{
    bool fine = true, any = false;
    for (size_t i = 0; fine && i < turn->count; i++) {
        if (!nib_is_call(&turn->messages[i]))
            continue;
        fine = (any || nib_pieces_put_words(pieces, chat, "<|tool_calls_section_begin|>")) &&
               nib_pieces_put_words(pieces, chat, "<|tool_call_begin|>") &&
               put_id(conversation, turn->first + i, &turn->messages[i], pieces) &&
               nib_pieces_put_words(pieces, chat, "<|tool_call_argument_begin|>") &&
               nib_pieces_put_borrowed(pieces, turn->messages[i].text) &&
               nib_pieces_put_words(pieces, chat, "<|tool_call_end|>");
        any = true;
    }
    return fine && (!any || nib_pieces_put_words(pieces, chat, "<|tool_calls_section_end|>"));
}

static bool put_assistant(const struct nib_chat *chat, const struct nib_conversation *conversation,
                          const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    bool fine = nib_pieces_put_words(pieces, chat, "<|im_assistant|>assistant<|im_middle|>");
    if (fine && (thinks(chat) || nib_turn_reasons(turn, reasons_from)))
        fine = nib_pieces_put_words(pieces, chat, "<think>") &&
               nib_turn_put_reasoning(pieces, turn, reasons_from) &&
               nib_pieces_put_words(pieces, chat, "</think>");
    for (size_t i = 0; fine && i < turn->count; i++)
        if (!nib_is_call(&turn->messages[i]) && !nib_is_reasoning(&turn->messages[i]))
            fine = nib_pieces_put_borrowed(pieces, turn->messages[i].text);
    return fine && put_calls(chat, conversation, turn, pieces) && nib_pieces_put_words(pieces, chat, "<|im_end|>");
}

static bool put_results(const struct nib_chat *chat, const struct nib_conversation *conversation,
                        const struct nib_turn *turn, struct nib_pieces *pieces)
{
    bool fine = true;
    for (size_t i = 0; fine && i < turn->count; i++)
        fine = nib_pieces_put_words(pieces, chat, "<|im_system|>tool<|im_middle|>## Return of ") &&
               put_result_id(conversation, turn->first + i, pieces) && nib_pieces_put_words(pieces, chat, "\n") &&
               nib_pieces_put_borrowed(pieces, turn->messages[i].text) &&
               nib_pieces_put_words(pieces, chat, "<|im_end|>");
    return fine;
}

static bool put_turn(const struct nib_chat *chat, const struct nib_conversation *conversation,
                     const struct nib_turn *turn, size_t reasons_from, struct nib_pieces *pieces)
{
    if (turn->role == NIB_ROLE_ASSISTANT)
        return put_assistant(chat, conversation, turn, reasons_from, pieces);
    if (turn->role == NIB_ROLE_TOOL)
        return put_results(chat, conversation, turn, pieces);
    bool user = turn->role == NIB_ROLE_USER;
    return nib_pieces_put_words(pieces, chat, user ? "<|im_user|>" : "<|im_system|>") &&
           nib_pieces_put_borrowed(pieces, turn->messages->name.size ? turn->messages->name
                                                                     : nib_text_of(user ? "user" : "system")) &&
           nib_pieces_put_words(pieces, chat, "<|im_middle|>") &&
           nib_pieces_put_borrowed(pieces, turn->messages->text) &&
           nib_pieces_put_words(pieces, chat, "<|im_end|>");
}

// A call that is demanded: it will be the next of all.
static bool put_call_head(const struct nib_chat *chat, const struct nib_conversation *conversation,
                          const struct nib_message *call, struct nib_pieces *pieces)
{
    return nib_pieces_put_words(pieces, chat, "<|tool_calls_section_begin|><|tool_call_begin|>") &&
           put_id(conversation, conversation->message_count, call, pieces) &&
           nib_pieces_put_words(pieces, chat, "<|tool_call_argument_begin|>");
}

// Without a conversation it has the number that its id says.
static bool put_numbered_call_head(const struct nib_chat *chat, const struct nib_message *call,
                                   struct nib_pieces *pieces)
{
    const struct nib_conversation nothing = {0};
    return put_call_head(chat, &nothing, call, pieces);
}

static nib_status put_reply(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_message *reply = conversation->reply;
    bool fine = nib_pieces_put_words(pieces, chat, "<|im_assistant|>assistant<|im_middle|>"),
         at_once = conversation->effort == NIB_EFFORT_NONE || (reply && !nib_is_reasoning(reply));
    pieces->reply_from = pieces->count;
    if (fine && thinks(chat))
        fine = nib_pieces_put_words(pieces, chat, at_once ? "<think></think>" : "<think>");
    if (fine && reply)
        fine = (!nib_is_call(reply) || put_call_head(chat, conversation, reply, pieces)) &&
               nib_pieces_put_borrowed(pieces, reply->text);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

// ---- parsing

// functions.NAME:NUMBER, or NAME:NUMBER, which is no id; anything else is the tool's name as it stands.
static void read_name(struct nib_chat_parser *parser)
{
    struct nib_text id = nib_text_trimmed(nib_writer_text(&parser->header));
    size_t name = named(id);
    parser->open.recipient = nib_turn_recipient(parser, (struct nib_text){id.bytes, name ? name : id.size});
    if (!numbered(id))
        return;
    char *copy = nib_arena_copy(&parser->arena, id.bytes, id.size);
    parser->failed |= !copy;
    parser->open.id = (struct nib_text){copy, copy ? id.size : 0};
}

static const char *call_end(const struct nib_chat *chat)
{
    (void)chat;
    return "<|tool_call_end|><|tool_calls_section_end|>";
}

static const struct nib_turn_grammar grammar = {
    .head = NIB_HEAD_TOKEN,
    .calls_end_reasoning = true,
    .read_name = read_name,
    .put_system = put_system,
    .put_turn = put_turn,
    .put_reply = put_reply,
    .reasons_from = nib_reasons_from_answer,
    .behind_thought = "",
    .put_call_head = put_numbered_call_head,
    .call_end = call_end,
};

const struct nib_chat_format nib_chat_kimi = {
    .name = "kimi",
    .turns = &grammar,
    .controls =
        {
            [IM_USER] = {"<|im_user|>", .required = true, .sign = NIB_SIGN_USER},
            [IM_ASSISTANT] = {"<|im_assistant|>", .required = true, .sign = NIB_SIGN_ASSISTANT},
            [IM_SYSTEM] = {"<|im_system|>", .required = true, .sign = NIB_SIGN_SYSTEM},
            [IM_MIDDLE] = {"<|im_middle|>", .required = true, .sign = NIB_SIGN_HEAD_END},
            [IM_END] = {"<|im_end|>", .required = true, .stops = true, .sign = NIB_SIGN_TURN_END},
            [END_OF_TEXT] = {"[EOS]", .stops = true, .sign = NIB_SIGN_TEXT_END},
            [SECTION] = {"<|tool_calls_section_begin|>", .sign = NIB_SIGN_CALL},
            [SECTION_END] = {"<|tool_calls_section_end|>", .sign = NIB_SIGN_CALLS_END},
            [CALL] = {"<|tool_call_begin|>", .sign = NIB_SIGN_CALL},
            [ARGUMENTS] = {"<|tool_call_argument_begin|>", .sign = NIB_SIGN_ARGUMENTS},
            [CALL_END] = {"<|tool_call_end|>", .sign = NIB_SIGN_CALL_END},
            [THINK] = {"<think>", .sign = NIB_SIGN_THINK},
            [THOUGHT] = {"</think>", .sign = NIB_SIGN_THOUGHT},
        },
    .render = nib_turns_render,
    .render_exact = nib_turns_render_exact,
    .frame = nib_turns_frame,
    .begin = nib_turns_begin,
    .push = nib_turns_push,
    .finish = nib_turns_finish,
};
