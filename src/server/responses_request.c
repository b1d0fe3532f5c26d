#include "server/responses_request.h"

static const char *const parts[] = {"input_text",   "output_text", "text", "reasoning_text",
                                    "summary_text", "refusal",     NULL};

static bool is_type(const json_t *item, const char *type)
{
    const char *given = json_string_value(json_object_get(item, "type"));
    return given && strcmp(given, type) == 0;
}

// Whether what the assistant says in an item leads to a call: then it is no answer yet, and the reasoning in front of it is
// still of use.
static bool leads_to_call(const json_t *items, size_t index)
{
    do
        index++;
    while (is_type(json_array_get(items, index), "reasoning"));
    return is_type(json_array_get(items, index), "function_call");
}

static bool read_message(struct nib_chat_request *request, const struct nib_fields *item, const json_t *items,
                         size_t index)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", NULL};
    enum { SYSTEM, DEVELOPER, USER, ASSISTANT };
    struct nib_text text = {0};
    int role = 0;
    if (!nib_field_require(item, "role") || !nib_field_choice(item, "role", roles, &role) ||
        !nib_field_require(item, "content") || !nib_read_content(request, item, "content", parts, &text))
        return false;
    if (role == SYSTEM || role == DEVELOPER)
        return nib_chat_request_instruct(request, text, item->error);
    struct nib_message message = role == USER ? nib_message_user(text) : nib_message_answer(text);
    if (role == ASSISTANT && leads_to_call(items, index))
        message.channel = nib_text_of("commentary");
    return nib_chat_request_add(request, &message, item->error);
}

static bool read_reasoning(struct nib_chat_request *request, const struct nib_fields *item)
{
    struct nib_text text = {0};
    if (!nib_read_content(request, item, "content", parts, &text))
        return false;
    struct nib_message message = nib_message_reasoning(text);
    return !text.size || nib_chat_request_add(request, &message, item->error);
}

static bool read_call(struct nib_chat_request *request, const struct nib_fields *item)
{
    struct nib_text name = {0}, arguments = {0}, id = {0};
    if (!nib_field_require(item, "name") || !nib_field_text(item, "name", &name) ||
        !nib_field_require(item, "call_id") || !nib_field_text(item, "call_id", &id) ||
        !nib_field_text(item, "arguments", &arguments))
        return false;
    struct nib_message message = nib_message_call(nib_function_recipient(request, name), arguments);
    message.recipient_in_channel = true;
    message.id = id;
    return nib_chat_request_add(request, &message, item->error);
}

// The function that an output belongs to: the latest call of that id.
static struct nib_text called_function(const json_t *items, size_t before, struct nib_text id)
{
    while (before-- > 0) {
        const json_t *item = json_array_get(items, before), *name = json_object_get(item, "name");
        const char *other = json_string_value(json_object_get(item, "call_id"));
        if (other && is_type(item, "function_call") && nib_text_equal(nib_text_of(other), id) &&
            json_is_string(name))
            return (struct nib_text){json_string_value(name), json_string_length(name)};
    }
    return (struct nib_text){0};
}

static bool read_output(struct nib_chat_request *request, const struct nib_fields *item, const json_t *items,
                        size_t index)
{
    struct nib_text id = {0}, output = {0};
    if (!nib_field_require(item, "call_id") || !nib_field_text(item, "call_id", &id) ||
        !nib_field_require(item, "output") || !nib_read_content(request, item, "output", parts, &output))
        return false;
    struct nib_text name = called_function(items, index, id);
    if (!name.size)
        return nib_field_fail(item, "call_id", "invalid_value",
                              "'%scall_id' is '%.80s', which no earlier function_call has.", item->path, id.bytes);
    struct nib_message message = nib_message_result(nib_function_recipient(request, name), output);
    message.id = id;
    return nib_chat_request_add(request, &message, item->error);
}

bool nib_read_items(struct nib_chat_request *request, const struct nib_fields *fields, const char *name,
                    const json_t *items)
{
    static const char *const types[] = {"message", "reasoning", "function_call", "function_call_output", NULL};
    enum { MESSAGE, REASONING, CALL, OUTPUT };
    for (size_t i = 0; i < json_array_size(items); i++) {
        struct nib_fields item;
        int type = MESSAGE;
        if (!nib_fields_open(&item, json_array_get(items, i), fields->error, "%s[%zu]", name, i) ||
            !nib_field_choice(&item, "type", types, &type))
            return false;
        bool read = type == MESSAGE     ? read_message(request, &item, items, i)
                    : type == REASONING ? read_reasoning(request, &item)
                    : type == CALL      ? read_call(request, &item)
                                        : read_output(request, &item, items, i);
        if (!read)
            return false;
    }
    return true;
}
