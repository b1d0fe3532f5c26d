#include <stdlib.h>

#include "base/error.h"
#include "text/chat_turns.h"

nib_status nib_turns_out_of_memory(const struct nib_chat *chat, struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_MEMORY, "out of memory while rendering a prompt in the %s format",
                    chat->format->name);
}

// Whether a message of the assistant stands in the turn of the one before it: as a model's own, or where nothing says so, as
// reasoning, a text and calls do, each once and in this order. Else what was said behind a text or a call was said in a turn
// of its own; an empty text says nothing.
static bool goes_on(const struct nib_message *before, const struct nib_message *message)
{
    if (before->end != NIB_END_DEFAULT)
        return before->end == NIB_END_MESSAGE || before->end == NIB_END_CALL;
    return nib_is_call(message) || nib_is_reasoning(before) ||
           (!nib_is_reasoning(message) && message->text.size == 0);
}

// Start from {0}; false behind the last.
static bool next_turn(const struct nib_conversation *conversation, struct nib_turn *turn)
{
    size_t first = turn->first + turn->count, end = first;
    if (first >= conversation->message_count)
        return false;
    const struct nib_message *messages = conversation->messages;
    enum nib_role role = messages[first].role;
    do
        end++;
    while (end < conversation->message_count && messages[end].role == role &&
           (role == NIB_ROLE_TOOL || (role == NIB_ROLE_ASSISTANT && goes_on(&messages[end - 1], &messages[end]))));
    *turn = (struct nib_turn){role, conversation->messages + first, end - first, first};
    return true;
}

nib_status nib_turns_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_turn_grammar *grammar = chat->format->turns;
    size_t reasons_from = grammar->reasons_from ? grammar->reasons_from(conversation) : 0;
    pieces->joined = true;
    nib_status status = grammar->put_system(chat, conversation, pieces, err);
    for (struct nib_turn turn = {0}; !status && next_turn(conversation, &turn);)
        if (!grammar->put_turn(chat, conversation, &turn, reasons_from, pieces))
            status = nib_turns_out_of_memory(chat, err);
    if (status || conversation->no_reply)
        return status;
    return grammar->put_reply(chat, conversation, pieces, err);
}

nib_status nib_turns_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                  struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_as_written *written = message->written;
    struct nib_conversation one = {.messages = message, .message_count = 1};
    struct nib_turn turn = {message->role, message, 1, 0};
    bool fine = !written ? chat->format->turns->put_turn(chat, &one, &turn, 0, pieces)
                         : nib_pieces_put_marked(pieces, written->header, 0, written->header_marks,
                                                 written->header_mark_count) &&
                               nib_pieces_put_marked(pieces, message->text, written->text_from_header,
                                                     written->text_marks, written->text_mark_count) &&
                               (written->end_token < 0 || nib_pieces_put_control(pieces, written->end_token)) &&
                               nib_pieces_put_marked(pieces, (struct nib_text){0}, 0, written->stray_marks,
                                                     written->stray_mark_count);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

bool nib_turn_put_between(const struct nib_chat *chat, const struct nib_turn *turn,
                          const struct nib_turn_words *words, struct nib_pieces *pieces)
{
    bool fine = nib_pieces_put_words(pieces, chat, words->begin);
    for (size_t i = 0; fine && i < turn->count; i++)
        fine = nib_pieces_put_words(pieces, chat, words->before) &&
               nib_pieces_put_borrowed(pieces, turn->messages[i].text) &&
               nib_pieces_put_words(pieces, chat, words->behind);
    return fine && nib_pieces_put_words(pieces, chat, words->end);
}

bool nib_is_reasoning(const struct nib_message *message)
{
    return message->role == NIB_ROLE_ASSISTANT && message->recipient.size == 0 &&
           nib_text_equal(message->channel, nib_text_of("analysis"));
}

struct nib_text nib_function_of(struct nib_text tool)
{
    static const char prefix[] = "functions.";
    size_t size = sizeof prefix - 1;
    if (tool.size > size && memcmp(tool.bytes, prefix, size) == 0)
        return (struct nib_text){tool.bytes + size, tool.size - size};
    return tool;
}

size_t nib_reasons_from_question(const struct nib_conversation *conversation)
{
    size_t from = conversation->keep_reasoning ? 0 : conversation->message_count;
    while (from > 0 && conversation->messages[from - 1].role != NIB_ROLE_USER)
        from--;
    return from;
}

size_t nib_reasons_from_answer(const struct nib_conversation *conversation)
{
    size_t from = conversation->keep_reasoning ? 0 : conversation->message_count;
    while (from > 0 && !nib_text_equal(conversation->messages[from - 1].channel, nib_text_of("final")))
        from--;
    return from;
}

bool nib_turn_reasons(const struct nib_turn *turn, size_t from)
{
    bool found = false;
    for (size_t i = 0; i < turn->count; i++)
        found |= turn->first + i >= from && nib_is_reasoning(&turn->messages[i]);
    return found;
}

bool nib_turn_put_reasoning(struct nib_pieces *pieces, const struct nib_turn *turn, size_t from)
{
    bool fine = true, any = false;
    for (size_t i = 0; fine && i < turn->count; i++) {
        if (turn->first + i < from || !nib_is_reasoning(&turn->messages[i]))
            continue;
        fine = (!any || nib_pieces_put_borrowed(pieces, nib_text_of("\n"))) &&
               nib_pieces_put_borrowed(pieces, turn->messages[i].text);
        any = true;
    }
    return fine;
}

void nib_turns_write_instructions(struct nib_writer *out, const struct nib_conversation *conversation,
                                  const char *otherwise)
{
    if (conversation->instructions.size)
        nib_write_text(out, conversation->instructions);
    else
        nib_write_string(out, otherwise);
    for (size_t i = 0; i < conversation->response_count; i++) {
        nib_write_string(out, out->buffer.size ? "\n\n" : "");
        nib_write_string(out, "Answer with JSON that follows this schema:\n");
        nib_write_text(out, conversation->responses[i].schema);
    }
}

static json_t *text_json(struct nib_text text)
{
    return json_stringn(text.bytes ? text.bytes : "", text.size);
}

json_t *nib_tool_json(const struct nib_tool *tool, struct nib_error *err)
{
    json_t *parameters = NULL, *json = json_object();
    if (tool->parameters.size) {
        parameters = json_loadb(tool->parameters.bytes, tool->parameters.size, JSON_ALLOW_NUL, NULL);
        if (!parameters) {
            json_decref(json);
            nib_fail(err, NIB_ERR_ARGUMENT, "the parameters of the tool %.*s are not JSON", (int)tool->name.size,
                     tool->name.bytes);
            return NULL;
        }
    }
    bool fine = json_object_set_new(json, "name", text_json(tool->name)) == 0;
    if (fine && tool->description.size)
        fine = json_object_set_new(json, "description", text_json(tool->description)) == 0;
    if (fine && parameters)
        fine = json_object_set(json, "parameters", parameters) == 0;
    json_decref(parameters);
    if (fine)
        return json;
    json_decref(json);
    nib_fail(err, NIB_ERR_ARGUMENT,
             "the tool %.*s cannot be written as JSON: its name or description is not UTF-8", (int)tool->name.size,
             tool->name.bytes);
    return NULL;
}

nib_status nib_turns_write_tools(struct nib_writer *out, const struct nib_conversation *conversation,
                                 void (*write)(struct nib_writer *out, const json_t *function),
                                 struct nib_error *err)
{
    for (size_t i = 0; i < conversation->tool_count; i++) {
        json_t *function = nib_tool_json(&conversation->tools[i], err);
        if (!function)
            return NIB_ERR_ARGUMENT;
        write(out, function);
        json_decref(function);
    }
    return NIB_OK;
}

nib_status nib_turns_put_system(const struct nib_chat *chat, const struct nib_conversation *conversation,
                                nib_status (*write)(struct nib_writer *out,
                                                    const struct nib_conversation *conversation,
                                                    struct nib_error *err),
                                const char *begin, const char *how_to_call, const char *end,
                                struct nib_pieces *pieces, struct nib_error *err)
{
    struct nib_writer text = {0};
    nib_status status = write(&text, conversation, err);
    if (status || (text.buffer.size == 0 && !text.failed)) {
        nib_bytes_free(&text.buffer);
        return status;
    }
    bool fine = nib_pieces_put_words(pieces, chat, begin);
    fine = nib_pieces_put_written(pieces, &text) && fine;
    fine = fine && (conversation->tool_count == 0 || nib_pieces_put_words(pieces, chat, how_to_call)) &&
           nib_pieces_put_words(pieces, chat, end);
    return fine ? NIB_OK : nib_turns_out_of_memory(chat, err);
}

bool nib_pieces_put_written(struct nib_pieces *pieces, struct nib_writer *writer)
{
    bool fine = !writer->failed && nib_pieces_put_copy(pieces, "", nib_writer_text(writer));
    nib_bytes_free(&writer->buffer);
    return fine;
}
