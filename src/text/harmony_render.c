// Messages to pieces.
#include "text/harmony.h"

#include "base/error.h"

static nib_status out_of_memory(struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_MEMORY, "out of memory while rendering a harmony prompt");
}

// ---- the system and developer messages' text: sections with an empty line between them

static void begin_section(struct nib_writer *out)
{
    if (out->buffer.size)
        nib_write_string(out, "\n\n");
}

static void put_line(struct nib_writer *out, const char *label, struct nib_text value)
{
    if (value.size == 0)
        return;
    if (out->buffer.size)
        nib_write_string(out, "\n");
    nib_write_string(out, label);
    nib_write_text(out, value);
}

// Each line behind "\n" and `prefix`; a last line break opens no further line.
static void put_lines(struct nib_writer *out, const char *prefix, struct nib_text lines)
{
    for (size_t at = 0; at < lines.size;) {
        const char *line = lines.bytes + at;
        const char *stop = memchr(line, '\n', lines.size - at);
        size_t size = stop ? (size_t)(stop - line) : lines.size - at;
        at += size + 1;
        if (stop && size && line[size - 1] == '\r')
            size--;
        nib_write_string(out, "\n");
        nib_write_string(out, prefix);
        nib_write(out, line, size);
    }
}

static nib_status put_tool(struct nib_writer *out, const struct nib_tool *tool, struct nib_error *err)
{
    put_lines(out, "// ", tool->description);
    nib_write_string(out, "\ntype ");
    nib_write_text(out, tool->name);
    if (tool->parameters.size == 0) {
        nib_write_string(out, " = () => any;\n");
        return NIB_OK;
    }
    nib_write_string(out, " = (_: ");
    nib_status status = nib_harmony_put_type(out, tool->parameters, tool->name, err);
    nib_write_string(out, ") => any;\n");
    return status;
}

static nib_status put_group(struct nib_writer *out, const struct nib_tool_group *group, struct nib_error *err)
{
    begin_section(out);
    nib_write_string(out, "## ");
    nib_write_text(out, group->name);
    nib_write_string(out, "\n");
    put_lines(out, group->tool_count ? "// " : "", group->description);
    if (group->tool_count == 0)
        return NIB_OK;
    nib_write_string(out, "\nnamespace ");
    nib_write_text(out, group->name);
    nib_write_string(out, " {\n");
    for (size_t i = 0; i < group->tool_count; i++) {
        nib_status status = put_tool(out, &group->tools[i], err);
        if (status != NIB_OK)
            return status;
    }
    nib_write_string(out, "\n} // namespace ");
    nib_write_text(out, group->name);
    return NIB_OK;
}

static nib_status put_groups(struct nib_writer *out, const struct nib_tool_group *groups /* [count] */,
                             size_t count, struct nib_error *err)
{
    if (count == 0)
        return NIB_OK;
    begin_section(out);
    nib_write_string(out, "# Tools");
    nib_status status = NIB_OK;
    for (size_t i = 0; i < count && status == NIB_OK; i++)
        status = put_group(out, &groups[i], err);
    return status;
}

static nib_status put_system(struct nib_writer *out, const struct nib_conversation *conversation,
                             struct nib_error *err)
{
    static const char *const efforts[] = {
        [NIB_EFFORT_LOW] = "low", [NIB_EFFORT_MEDIUM] = "medium", [NIB_EFFORT_HIGH] = "high"};
    put_line(out, "", conversation->model_identity);
    put_line(out, "Knowledge cutoff: ", conversation->knowledge_cutoff);
    put_line(out, "Current date: ", conversation->current_date);
    if (conversation->effort != NIB_EFFORT_UNSAID) {
        begin_section(out);
        nib_write_string(out, "Reasoning: ");
        nib_write_string(out, efforts[conversation->effort]);
    }
    nib_status status = put_groups(out, conversation->builtins, conversation->builtin_count, err);
    if (status != NIB_OK || conversation->channels.size == 0)
        return status;
    begin_section(out);
    nib_write_string(out, "# Valid channels: ");
    nib_write_text(out, conversation->channels);
    nib_write_string(out, ". Channel must be included for every message.");
    if (conversation->tool_count)
        nib_write_string(out, "\nCalls to these tools must go to the commentary channel: 'functions'.");
    return NIB_OK;
}

static nib_status put_developer(struct nib_writer *out, const struct nib_conversation *conversation,
                                struct nib_error *err)
{
    if (conversation->instructions.size) {
        nib_write_string(out, "# Instructions\n\n");
        nib_write_text(out, conversation->instructions);
    }
    struct nib_tool_group functions = {
        .name = nib_text_of("functions"), .tools = conversation->tools, .tool_count = conversation->tool_count};
    nib_status status = put_groups(out, &functions, conversation->tool_count ? 1 : 0, err);
    if (status != NIB_OK || conversation->response_count == 0)
        return status;
    begin_section(out);
    nib_write_string(out, "# Response Formats");
    for (size_t i = 0; i < conversation->response_count; i++) {
        const struct nib_response_format *response = &conversation->responses[i];
        begin_section(out);
        nib_write_string(out, "## ");
        nib_write_text(out, response->name);
        nib_write_string(out, "\n");
        put_lines(out, "// ", response->description);
        nib_write_string(out, "\n");
        nib_write_text(out, response->schema);
    }
    return NIB_OK;
}

// ---- messages

static const char *role_name(enum nib_role role)
{
    switch (role) {
    case NIB_ROLE_SYSTEM:
        return "system";
    case NIB_ROLE_DEVELOPER:
        return "developer";
    case NIB_ROLE_USER:
        return "user";
    case NIB_ROLE_ASSISTANT:
    case NIB_ROLE_TOOL:
        break;
    }
    return "assistant";
}

static bool put_author(struct nib_pieces *pieces, const struct nib_message *message)
{
    if (message->role == NIB_ROLE_TOOL)
        return nib_pieces_put_borrowed(pieces, message->name);
    return nib_pieces_put_borrowed(pieces, nib_text_of(role_name(message->role))) &&
           (message->name.size == 0 || nib_pieces_put_copy(pieces, ":", message->name));
}

static bool put_recipient(struct nib_pieces *pieces, const struct nib_message *message, bool in_channel)
{
    if (message->recipient.size == 0 || message->recipient_in_channel != in_channel)
        return true;
    return nib_pieces_put_copy(pieces, " to=", message->recipient);
}

static bool put_type(const struct nib_chat *chat, struct nib_pieces *pieces, const struct nib_message *message)
{
    if (!message->constrained)
        return message->content_type.size == 0 || nib_pieces_put_copy(pieces, " ", message->content_type);
    return nib_pieces_put_borrowed(pieces, nib_text_of(" ")) &&
           nib_pieces_put_control(pieces, chat->controls[HARMONY_CONSTRAIN]) &&
           nib_pieces_put_borrowed(pieces, message->content_type);
}

// From behind the author on.
static bool put_rest(const struct nib_chat *chat, struct nib_pieces *pieces, const struct nib_message *message)
{
    return put_recipient(pieces, message, false) &&
           (message->channel.size == 0 || (nib_pieces_put_control(pieces, chat->controls[HARMONY_CHANNEL]) &&
                                           nib_pieces_put_borrowed(pieces, message->channel))) &&
           put_recipient(pieces, message, true) && put_type(chat, pieces, message) &&
           nib_pieces_put_control(pieces, chat->controls[HARMONY_MESSAGE]) &&
           nib_pieces_put_borrowed(pieces, message->text);
}

static nib_status put_message(const struct nib_chat *chat, const struct nib_message *message,
                              struct nib_pieces *pieces, struct nib_error *err)
{
    if (message->role == NIB_ROLE_TOOL && message->name.size == 0)
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "a tool's message needs the tool's name, as in functions.get_weather");
    bool call = message->role == NIB_ROLE_ASSISTANT && message->recipient.size > 0;
    bool put = nib_pieces_put_control(pieces, chat->controls[HARMONY_START]) && put_author(pieces, message) &&
               put_rest(chat, pieces, message) &&
               nib_pieces_put_control(pieces, chat->controls[call ? HARMONY_CALL : HARMONY_END]);
    return put ? NIB_OK : out_of_memory(err);
}

// A message whose text was built here; none if there is nothing to say.
static nib_status put_built(const struct nib_chat *chat, enum nib_role role, struct nib_writer *text,
                            struct nib_pieces *pieces, struct nib_error *err)
{
    if (text->failed)
        return out_of_memory(err);
    struct nib_text built = nib_writer_text(text);
    if (built.size == 0)
        return NIB_OK;
    built.bytes = nib_arena_copy(&pieces->arena, built.bytes, built.size);
    struct nib_message message = {.role = role, .text = built};
    return built.bytes ? put_message(chat, &message, pieces, err) : out_of_memory(err);
}

static bool is_channel(const struct nib_message *message, const char *channel)
{
    return nib_text_equal(message->channel, nib_text_of(channel));
}

// Messages before this index are history that led to an answer: their reasoning is not shown again.
static size_t answered(const struct nib_conversation *conversation)
{
    size_t end = conversation->keep_reasoning ? 0 : conversation->message_count;
    while (end > 0 && !is_channel(&conversation->messages[end - 1], "final"))
        end--;
    return end;
}

nib_status nib_harmony_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                              struct nib_pieces *pieces, struct nib_error *err)
{
    struct nib_writer text = {0};
    nib_status status = put_system(&text, conversation, err);
    if (status == NIB_OK)
        status = put_built(chat, NIB_ROLE_SYSTEM, &text, pieces, err);
    text.buffer.size = 0;
    if (status == NIB_OK)
        status = put_developer(&text, conversation, err);
    if (status == NIB_OK)
        status = put_built(chat, NIB_ROLE_DEVELOPER, &text, pieces, err);
    nib_bytes_free(&text.buffer);

    size_t past = answered(conversation);
    for (size_t i = 0; i < conversation->message_count && status == NIB_OK; i++) {
        const struct nib_message *message = &conversation->messages[i];
        if (i >= past || !is_channel(message, "analysis"))
            status = put_message(chat, message, pieces, err);
    }
    if (status != NIB_OK || conversation->no_reply)
        return status;
    bool put = nib_pieces_put_control(pieces, chat->controls[HARMONY_START]) &&
               nib_pieces_put_borrowed(pieces, nib_text_of("assistant"));
    pieces->reply_from = pieces->count;
    if (put && conversation->reply)
        put = put_rest(chat, pieces, conversation->reply);
    return put ? NIB_OK : out_of_memory(err);
}

nib_status nib_harmony_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                    struct nib_pieces *pieces, struct nib_error *err)
{
    const struct nib_as_written *written = message->written;
    if (!written)
        return put_message(chat, message, pieces, err);
    bool put =
        (!written->started || nib_pieces_put_control(pieces, chat->controls[HARMONY_START])) &&
        nib_pieces_put_marked(pieces, written->header, 0, written->header_marks, written->header_mark_count) &&
        (!written->has_body || nib_pieces_put_control(pieces, chat->controls[HARMONY_MESSAGE])) &&
        nib_pieces_put_marked(pieces, message->text, written->text_from_header, written->text_marks,
                              written->text_mark_count) &&
        (written->end_token < 0 || nib_pieces_put_control(pieces, written->end_token)) &&
        nib_pieces_put_marked(pieces, (struct nib_text){0}, 0, written->stray_marks, written->stray_mark_count);
    return put ? NIB_OK : out_of_memory(err);
}

nib_status nib_harmony_frame(const struct nib_chat *chat, const struct nib_message *header, bool bound,
                             bool goes_on, struct nib_message_frame *frame, struct nib_error *err)
{
    (void)bound;
    enum harmony_control end = header->recipient.size ? HARMONY_CALL : goes_on ? HARMONY_END : HARMONY_RETURN;
    bool put = put_rest(chat, &frame->begin, header) && nib_pieces_put_control(&frame->end, chat->controls[end]) &&
               nib_pieces_put_control(&frame->next, chat->controls[HARMONY_START]) &&
               nib_pieces_put_borrowed(&frame->next, nib_text_of("assistant"));
    return put ? NIB_OK : out_of_memory(err);
}
