#include "server/chat_request.h"

#include <stdio.h>
#include <stdlib.h>

#include "text/json_text.h"

#define MAX_MESSAGES 4096
#define MAX_TOOLS 512

static const char *const text_parts[] = {"text", "refusal", NULL};

void nib_chat_request_free(struct nib_chat_request *request)
{
    nib_arena_free(request->arena);
    free(request->messages);
    *request = (struct nib_chat_request){0};
}

static bool out_of_memory(struct nib_api_error *error)
{
    return nib_api_fail(error, 500, NULL, NULL, "out of memory");
}

bool nib_chat_request_add(struct nib_chat_request *request, const struct nib_message *message,
                          struct nib_api_error *error)
{
    void *items = request->messages;
    bool grown = nib_grow(&items, &request->capacity, request->n_messages, sizeof *request->messages);
    request->messages = items;
    if (!grown)
        return out_of_memory(error);
    request->messages[request->n_messages++] = *message;
    return true;
}

bool nib_chat_request_instruct(struct nib_chat_request *request, struct nib_text text, struct nib_api_error *error)
{
    struct nib_message message = {.role = NIB_ROLE_DEVELOPER, .text = text};
    if (request->n_messages)
        return nib_chat_request_add(request, &message, error);
    if (!request->instructions.size) {
        request->instructions = text;
        return true;
    }
    struct nib_text before = request->instructions;
    char *joined = nib_arena_alloc(&request->arena, before.size + 2 + text.size);
    if (!joined)
        return out_of_memory(error);
    memcpy(joined, before.bytes, before.size);
    memcpy(joined + before.size, "\n\n", 2);
    memcpy(joined + before.size + 2, text.bytes, text.size);
    request->instructions = (struct nib_text){joined, before.size + 2 + text.size};
    return true;
}

struct nib_text nib_function_recipient(struct nib_chat_request *request, struct nib_text name)
{
    static const char prefix[] = "functions.";
    size_t size = sizeof prefix - 1;
    char *full = nib_arena_alloc(&request->arena, size + name.size + 1);
    if (!full)
        return (struct nib_text){0};
    memcpy(full, prefix, size);
    memcpy(full + size, name.bytes, name.size);
    return (struct nib_text){full, size + name.size};
}

struct nib_text nib_chat_request_json(struct nib_chat_request *request, const json_t *json)
{
    struct nib_writer out = {0};
    nib_write_json(&out, json, JSON_COMPACT);
    struct nib_text text = nib_writer_text(&out);
    text.bytes = out.failed ? NULL : nib_arena_copy(&request->arena, text.bytes, text.size);
    nib_bytes_free(&out.buffer);
    return text;
}

// ---- content ----

static bool read_part(const struct nib_fields *fields, const char *name, size_t index, const json_t *part,
                      const char *const *types, struct nib_text *text)
{
    struct nib_fields inner;
    struct nib_text type = {0};
    if (!nib_fields_open(&inner, part, fields->error, "%s%s[%zu]", fields->path, name, index) ||
        !nib_field_require(&inner, "type") || !nib_field_text(&inner, "type", &type))
        return false;
    for (; *types; types++)
        if (nib_text_equal(type, nib_text_of(*types))) {
            const char *key = strcmp(*types, "refusal") == 0 ? "refusal" : "text";
            return nib_field_require(&inner, key) && nib_field_text(&inner, key, text);
        }
    return nib_field_fail(&inner, "type", "unsupported_value", "'%stype' is '%.60s'; this model reads text only.",
                          inner.path, type.bytes);
}

bool nib_read_content(struct nib_chat_request *request, const struct nib_fields *fields, const char *name,
                      const char *const *part_types, struct nib_text *text)
{
    const json_t *content = nib_field(fields, name), *part;
    if (!json_is_array(content))
        return nib_field_text(fields, name, text);
    struct nib_writer joined = {0};
    bool read = true;
    size_t i;
    json_array_foreach((json_t *)content, i, part)
    {
        struct nib_text piece = {0};
        read = read_part(fields, name, i, part, part_types, &piece);
        if (!read)
            break;
        nib_write_text(&joined, piece);
    }
    struct nib_text all = nib_writer_text(&joined);
    if (read) {
        *text = (struct nib_text){nib_arena_copy(&request->arena, all.bytes, all.size), all.size};
        read = (text->bytes && !joined.failed) || out_of_memory(fields->error);
    }
    nib_bytes_free(&joined.buffer);
    return read;
}

// ---- messages ----

// The function that a tool's answer belongs to: the latest call of that id.
static struct nib_text called_function(const json_t *messages, size_t before, struct nib_text id)
{
    while (before-- > 0) {
        const json_t *calls = json_object_get(json_array_get(messages, before), "tool_calls"), *call;
        size_t i;
        json_array_foreach((json_t *)calls, i, call)
        {
            const char *other = json_string_value(json_object_get(call, "id"));
            const json_t *name = json_object_get(json_object_get(call, "function"), "name");
            if (other && nib_text_equal(nib_text_of(other), id) && json_is_string(name))
                return (struct nib_text){json_string_value(name), json_string_length(name)};
        }
    }
    return (struct nib_text){0};
}

static bool read_tool_result(struct nib_chat_request *request, const struct nib_fields *fields,
                             const json_t *messages, size_t index)
{
    struct nib_text id = {0}, content = {0}, name = {0};
    if (!nib_field_require(fields, "tool_call_id") || !nib_field_text(fields, "tool_call_id", &id) ||
        !nib_read_content(request, fields, "content", text_parts, &content))
        return false;
    name = called_function(messages, index, id);
    if (!name.size)
        return nib_field_fail(fields, "tool_call_id", "invalid_value",
                              "'%stool_call_id' is '%.80s', which no earlier message's tool_calls have.",
                              fields->path, id.bytes);
    struct nib_message message = nib_message_result(nib_function_recipient(request, name), content);
    message.id = id;
    return nib_chat_request_add(request, &message, fields->error);
}

static bool read_call(struct nib_chat_request *request, const struct nib_fields *fields, const json_t *call,
                      size_t index)
{
    struct nib_fields outer, inner;
    struct nib_text name = {0}, arguments = {0}, id = {0};
    if (!nib_fields_open(&outer, call, fields->error, "%stool_calls[%zu]", fields->path, index) ||
        !nib_field_text(&outer, "id", &id) || !nib_field_require(&outer, "function") ||
        !nib_fields_open(&inner, nib_field(&outer, "function"), fields->error, "%sfunction", outer.path) ||
        !nib_field_require(&inner, "name") || !nib_field_text(&inner, "name", &name) ||
        !nib_field_text(&inner, "arguments", &arguments))
        return false;
    struct nib_message message = nib_message_call(nib_function_recipient(request, name), arguments);
    message.recipient_in_channel = true; // as gpt-oss writes it
    message.id = id;
    return nib_chat_request_add(request, &message, fields->error);
}

static bool read_assistant(struct nib_chat_request *request, const struct nib_fields *fields)
{
    struct nib_text reasoning = {0}, content = {0}, refusal = {0};
    const json_t *calls = NULL;
    if (!nib_field_text(fields, "reasoning", &reasoning) ||
        !nib_field_text(fields, "reasoning_content", &reasoning) ||
        !nib_read_content(request, fields, "content", text_parts, &content) ||
        !nib_field_text(fields, "refusal", &refusal) || !nib_field_array(fields, "tool_calls", 128, &calls))
        return false;
    if (!content.size)
        content = refusal; // said in place of an answer
    bool calling = json_array_size(calls) > 0;
    if (reasoning.size) {
        struct nib_message message = nib_message_reasoning(reasoning);
        if (!nib_chat_request_add(request, &message, fields->error))
            return false;
    }
    if (content.size || (!calling && !reasoning.size)) {
        struct nib_message message = nib_message_answer(content);
        if (calling)
            message.channel = nib_text_of("commentary");
        if (!nib_chat_request_add(request, &message, fields->error))
            return false;
    }
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (!read_call(request, fields, json_array_get(calls, i), i))
            return false;
    return true;
}

static bool read_message(struct nib_chat_request *request, const struct nib_fields *outer, const json_t *messages,
                         size_t index)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    static const char *const known[] = {"role",       "content",      "name",
                                        "tool_calls", "tool_call_id", "reasoning_content",
                                        "reasoning",  "refusal",      NULL};
    static const char *const ignored[] = {"annotations", "id", "type", NULL};
    enum { SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL };
    struct nib_fields fields;
    struct nib_text content = {0};
    int role = 0;
    if (!nib_fields_open(&fields, json_array_get(messages, index), outer->error, "messages[%zu]", index) ||
        !nib_fields_only(&fields, known, ignored) || !nib_field_require(&fields, "role") ||
        !nib_field_choice(&fields, "role", roles, &role))
        return false;
    if (role == ASSISTANT)
        return read_assistant(request, &fields);
    if (!nib_field_require(&fields, "content"))
        return false;
    if (role == TOOL)
        return read_tool_result(request, &fields, messages, index);
    if (!nib_read_content(request, &fields, "content", text_parts, &content))
        return false;
    if (role != USER)
        return nib_chat_request_instruct(request, content, outer->error);
    struct nib_message message = nib_message_user(content);
    return nib_chat_request_add(request, &message, outer->error);
}

bool nib_read_messages(struct nib_chat_request *request, const struct nib_fields *fields)
{
    const json_t *messages = NULL;
    if (!nib_field_require(fields, "messages") || !nib_field_array(fields, "messages", MAX_MESSAGES, &messages))
        return false;
    if (json_array_size(messages) == 0)
        return nib_field_fail(fields, "messages", "empty_array", "'messages' must have at least one message.");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!read_message(request, fields, messages, i))
            return false;
    return true;
}

// ---- tools ----

static bool name_is_fine(struct nib_text name)
{
    if (name.size < 1 || name.size > 64)
        return false;
    for (size_t i = 0; i < name.size; i++) {
        char c = name.bytes[i];
        bool fine =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        if (!fine)
            return false;
    }
    return true;
}

static bool read_parameters(struct nib_chat_request *request, const struct nib_fields *fields,
                            struct nib_tool *tool)
{
    const json_t *parameters = nib_field(fields, "parameters");
    if (!parameters)
        return true;
    if (!json_is_object(parameters))
        return nib_field_fail(fields, "parameters", "invalid_type", "'%sparameters' must be a JSON schema object.",
                              fields->path);
    tool->parameters = nib_chat_request_json(request, parameters);
    return tool->parameters.bytes || out_of_memory(fields->error);
}

static bool read_tool(struct nib_chat_request *request, const struct nib_fields *outer, const json_t *given,
                      size_t index, bool flat)
{
    static const char *const types[] = {"function", NULL};
    static const char *const known[] = {"name", "description", "parameters", "strict", "type", NULL};
    struct nib_fields fields, inner;
    struct nib_tool *tool = &request->tools[index];
    int type = 0;
    if (!nib_fields_open(&fields, given, outer->error, "tools[%zu]", index) ||
        !nib_field_require(&fields, "type") || !nib_field_choice(&fields, "type", types, &type))
        return false;
    if (flat)
        inner = fields;
    else if (!nib_field_require(&fields, "function") ||
             !nib_fields_open(&inner, nib_field(&fields, "function"), outer->error, "%sfunction", fields.path))
        return false;
    if (!nib_fields_only(&inner, known, NULL) || !nib_field_require(&inner, "name") ||
        !nib_field_text(&inner, "name", &tool->name) || !nib_field_text(&inner, "description", &tool->description))
        return false;
    if (!name_is_fine(tool->name))
        return nib_field_fail(&inner, "name", "invalid_value",
                              "'%sname' must be 1 to 64 letters, digits, underscores or dashes.", inner.path);
    for (size_t i = 0; i < index; i++)
        if (nib_text_equal(request->tools[i].name, tool->name))
            return nib_field_fail(&inner, "name", "invalid_value", "'%sname': two tools are called '%s'.",
                                  inner.path, tool->name.bytes);
    return read_parameters(request, &inner, tool);
}

static bool read_named_choice(struct nib_chat_request *request, const struct nib_fields *fields,
                              const json_t *choice, bool flat)
{
    static const char *const types[] = {"function", NULL};
    struct nib_fields outer, inner;
    struct nib_text name = {0};
    int type = 0;
    if (!nib_fields_open(&outer, choice, fields->error, "tool_choice") || !nib_field_require(&outer, "type") ||
        !nib_field_choice(&outer, "type", types, &type))
        return false;
    if (flat)
        inner = outer;
    else if (!nib_field_require(&outer, "function") ||
             !nib_fields_open(&inner, nib_field(&outer, "function"), fields->error, "tool_choice.function"))
        return false;
    if (!nib_field_require(&inner, "name") || !nib_field_text(&inner, "name", &name))
        return false;
    request->tool_choice = NIB_TOOLS_NAMED;
    for (size_t i = 0; i < request->n_tools; i++)
        if (nib_text_equal(request->tools[i].name, name)) {
            request->named_tool = i;
            return true;
        }
    return nib_field_fail(&inner, "name", "invalid_value", "'%sname': no tool is called '%.80s'.", inner.path,
                          name.bytes);
}

static bool read_tool_choice(struct nib_chat_request *request, const struct nib_fields *fields, bool flat)
{
    static const char *const words[] = {"none", "auto", "required", NULL};
    const json_t *choice = nib_field(fields, "tool_choice");
    int word = NIB_TOOLS_AUTO;
    if (json_is_object(choice))
        return read_named_choice(request, fields, choice, flat);
    if (!nib_field_choice(fields, "tool_choice", words, &word))
        return false;
    if (word == NIB_TOOLS_REQUIRED && !request->n_tools)
        return nib_field_fail(fields, "tool_choice", "invalid_value",
                              "'tool_choice' is 'required', but there are no 'tools'.");
    request->tool_choice = request->n_tools ? (enum nib_tool_choice)word : NIB_TOOLS_NONE;
    return true;
}

bool nib_read_tools(struct nib_chat_request *request, const struct nib_fields *fields, bool flat)
{
    const json_t *tools = NULL;
    request->parallel_calls = true;
    if (!nib_field_array(fields, "tools", MAX_TOOLS, &tools) ||
        !nib_field_bool(fields, "parallel_tool_calls", &request->parallel_calls))
        return false;
    size_t count = json_array_size(tools);
    request->tools = nib_arena_alloc(&request->arena, (count + 1) * sizeof *request->tools);
    if (!request->tools)
        return out_of_memory(fields->error);
    memset(request->tools, 0, (count + 1) * sizeof *request->tools);
    for (; request->n_tools < count; request->n_tools++)
        if (!read_tool(request, fields, json_array_get(tools, request->n_tools), request->n_tools, flat))
            return false;
    return read_tool_choice(request, fields, flat);
}

static void want_no_effort(struct nib_chat_request *request, const struct nib_fields *fields, const char *name)
{
    request->effort = NIB_EFFORT_NONE;
    snprintf(request->no_effort, sizeof request->no_effort, "%s%s", fields->path, name);
}

bool nib_read_effort(struct nib_chat_request *request, const struct nib_fields *fields, const char *name)
{
    static const char *const words[] = {"none", "low", "medium", "high", NULL};
    int word = NIB_EFFORT_MEDIUM - NIB_EFFORT_NONE;
    if (!nib_field_choice(fields, name, words, &word))
        return false;
    request->effort = (enum nib_effort)(NIB_EFFORT_NONE + word);
    if (request->effort == NIB_EFFORT_NONE)
        want_no_effort(request, fields, name);
    return true;
}

bool nib_read_thinking(struct nib_chat_request *request, const struct nib_fields *fields)
{
    static const char *const known[] = {"enable_thinking", "thinking", NULL};
    struct nib_fields inner;
    if (!nib_field(fields, "chat_template_kwargs"))
        return true;
    if (!nib_fields_open(&inner, nib_field(fields, "chat_template_kwargs"), fields->error,
                         "chat_template_kwargs") ||
        !nib_fields_only(&inner, known, NULL))
        return false;
    for (size_t i = 0; known[i]; i++) {
        bool thinks = true;
        if (!nib_field_bool(&inner, known[i], &thinks))
            return false;
        if (!thinks)
            want_no_effort(request, &inner, known[i]);
    }
    return true;
}

bool nib_chat_request_check_effort(const struct nib_chat_request *request, const struct nib_chat *chat,
                                   struct nib_api_error *error)
{
    return !request->no_effort[0] || !nib_chat_always_reasons(chat) ||
           nib_api_fail(error, 400, "unsupported_value", request->no_effort,
                        "'%s': models of the %s format cannot do without reasoning.", request->no_effort,
                        nib_chat_name(chat));
}

nib_status nib_chat_request_encode(const struct nib_chat_request *request, const struct nib_chat *chat,
                                   const struct nib_tokenizer *tokenizer, const char *date,
                                   const struct nib_message *reply, struct nib_token_list *prompt, size_t *preset,
                                   struct nib_error *err)
{
    struct nib_conversation conversation = nib_conversation_defaults();
    conversation.current_date = nib_text_of(date);
    conversation.effort = request->effort;
    conversation.instructions = request->instructions;
    conversation.messages = request->messages;
    conversation.message_count = request->n_messages;
    conversation.reply = reply;
    if (request->format.schema.size) {
        conversation.responses = &request->format;
        conversation.response_count = 1;
    }
    if (request->tool_choice != NIB_TOOLS_NONE) {
        conversation.tools = request->tools;
        conversation.tool_count = request->n_tools;
    }
    struct nib_pieces pieces = {0};
    struct nib_token_list begun = {0};
    nib_status status = nib_chat_render(chat, &conversation, &pieces, err);
    if (!status)
        status = nib_pieces_encode(&pieces, 0, tokenizer, prompt, err);
    if (!status)
        status = nib_pieces_encode(&pieces, pieces.reply_from, tokenizer, &begun, err);
    *preset = begun.count;
    nib_token_list_free(&begun);
    nib_pieces_free(&pieces);
    return status;
}
