// chat_pipe FORMAT [ABSENT-TOKEN…]: prompts of a chat format, for chat_oracle.py, which builds it. A line in: {"messages",
// "tools", "effort", "keep_reasoning"} in OpenAI's form; a line out: the prompt as a JSON string, control tokens spelled out.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/chat_format.h"

struct vocabulary {
    const struct nib_chat_format *format;
    char *const *absent; /* NULL behind the last */
};

static int32_t control(const void *self, const char *spelling)
{
    const struct vocabulary *vocabulary = self;
    for (char *const *absent = vocabulary->absent; *absent; absent++)
        if (strcmp(*absent, spelling) == 0)
            return -1;
    for (int32_t i = 0; i < NIB_CHAT_CONTROLS && vocabulary->format->controls[i].spelling; i++)
        if (strcmp(vocabulary->format->controls[i].spelling, spelling) == 0)
            return i;
    return -1;
}

static struct nib_text no_bytes(const void *self, int32_t token)
{
    (void)self;
    (void)token;
    return (struct nib_text){0};
}

static struct nib_text text_of(const json_t *object, const char *key)
{
    return nib_text_of(json_string_value(json_object_get(object, key)));
}

// "functions." and the name; leaks, as everything here does.
static struct nib_text tool_of(const json_t *function)
{
    char *tool = NULL;
    if (asprintf(&tool, "functions.%s", json_string_value(json_object_get(function, "name"))) < 0)
        abort();
    return nib_text_of(tool);
}

static size_t read_message(const json_t *message, struct nib_message *out)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    size_t count = 0, i;
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *call;
    if (strcmp(role, "assistant") != 0) {
        out[0] = strcmp(role, "tool") == 0 ? nib_message_result(tool_of(message), text_of(message, "content"))
                                           : nib_message_user(text_of(message, "content"));
        out[0].id = text_of(message, "tool_call_id");
        if (strcmp(role, "system") == 0)
            out[0].role = NIB_ROLE_SYSTEM;
        return 1;
    }
    if (json_is_string(json_object_get(message, "reasoning_content")))
        out[count++] = nib_message_reasoning(text_of(message, "reasoning_content"));
    if (json_is_string(json_object_get(message, "content"))) {
        out[count] = nib_message_answer(text_of(message, "content"));
        out[count++].channel = nib_text_of(calls ? "commentary" : "final");
    }
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        out[count] = nib_message_call(tool_of(function), text_of(function, "arguments"));
        out[count++].id = text_of(call, "id");
    }
    return count;
}

static void answer(const struct nib_chat *chat, const json_t *request)
{
    static struct nib_message messages[256];
    static struct nib_tool tools[32];
    const json_t *given = json_object_get(request, "messages"), *offered = json_object_get(request, "tools");
    json_t *item;
    size_t i;
    struct nib_conversation conversation = {.messages = messages, .tools = tools};
    struct nib_pieces pieces = {0};
    struct nib_error err;
    json_array_foreach(given, i, item)
    {
        bool first = i == 0 && strcmp(json_string_value(json_object_get(item, "role")), "system") == 0;
        if (first)
            conversation.instructions = text_of(item, "content");
        else
            conversation.message_count += read_message(item, messages + conversation.message_count);
    }
    json_array_foreach(offered, i, item)
    {
        const json_t *function = json_object_get(item, "function");
        tools[conversation.tool_count++] =
            (struct nib_tool){text_of(function, "name"), text_of(function, "description"),
                              nib_text_of(json_dumps(json_object_get(function, "parameters"), 0))};
    }
    nib_effort_from_name(json_string_value(json_object_get(request, "effort")), &conversation.effort);
    conversation.keep_reasoning = json_is_true(json_object_get(request, "keep_reasoning"));
    json_t *prompt = json_string("");
    if (nib_chat_render(chat, &conversation, &pieces, &err))
        prompt = json_sprintf("error: %s", err.message);
    char *spelled = NULL;
    size_t size;
    FILE *stream = open_memstream(&spelled, &size);
    for (i = 0; stream && i < pieces.count; i++)
        if (pieces.items[i].text.size)
            fwrite(pieces.items[i].text.bytes, 1, pieces.items[i].text.size, stream);
        else
            fputs(chat->format->controls[pieces.items[i].control].spelling, stream);
    if (stream)
        fclose(stream);
    json_dumpf(size ? json_stringn(spelled, size) : prompt, stdout, JSON_ENCODE_ANY);
    putchar('\n');
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static char line[1 << 20];
    struct vocabulary vocabulary = {argc > 1 ? nib_chat_format_find(argv[1]) : NULL, argv + 2};
    struct nib_vocabulary of_chat = {&vocabulary, control, no_bytes};
    struct nib_chat *chat;
    struct nib_error err;
    if (!vocabulary.format || nib_chat_open(vocabulary.format, &of_chat, &chat, &err)) {
        fprintf(stderr, "chat_pipe FORMAT [ABSENT-TOKEN…]: %s\n",
                vocabulary.format ? err.message : "no such format");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        json_t *request = json_loads(line, 0, NULL);
        if (!request)
            return 1;
        answer(chat, request);
    }
    return 0;
}
