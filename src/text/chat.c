#include "text/chat_format.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>

static const struct nib_chat_format *const formats[] = {&nib_chat_harmony,
                                                        &nib_chat_kimi,
                                                        &nib_chat_minimax,
                                                        &nib_chat_deepseek,
                                                        &nib_chat_mimo,
                                                        &nib_chat_chatml,
                                                        NULL};

const struct nib_chat_format *nib_chat_format_find(const char *name)
{
    for (size_t i = 0; formats[i]; i++)
        if (strcmp(formats[i]->name, name) == 0)
            return formats[i];
    return NULL;
}

nib_status nib_chat_open(const struct nib_chat_format *format, const struct nib_vocabulary *vocabulary,
                         struct nib_chat **chat, struct nib_error *err)
{
    *chat = NULL;
    struct nib_chat *opened = malloc(sizeof *opened);
    if (!opened)
        return nib_fail_memory(err, sizeof *opened, "a chat format");
    *opened = (struct nib_chat){.format = format, .vocabulary = *vocabulary};
    for (const struct nib_chat_control *control = format->controls; control->spelling; control++) {
        int32_t token = vocabulary->control(vocabulary->self, control->spelling);
        if (token < 0 && control->required) {
            free(opened);
            return nib_fail(err, NIB_ERR_NOT_FOUND, "the vocabulary has no %s, which the %s format needs",
                            control->spelling, format->name);
        }
        opened->controls[opened->control_count++] = token;
        if (token >= 0 && control->stops)
            opened->stops[opened->stop_count++] = token;
    }
    *chat = opened;
    return NIB_OK;
}

static bool begins(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

nib_status nib_chat_open_fitting(const struct nib_vocabulary *vocabulary, const char *model_type,
                                 struct nib_chat **chat, struct nib_error *err)
{
    char names[256] = "";
    for (int named = 1; named >= 0; named--)
        for (size_t i = 0; formats[i]; i++) {
            const char *models = formats[i]->models;
            if (named ? !(models && model_type && begins(model_type, models)) : models != NULL)
                continue;
            nib_status status = nib_chat_open(formats[i], vocabulary, chat, err);
            if (status != NIB_ERR_NOT_FOUND)
                return status;
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "",
                     formats[i]->name);
        }
    return nib_fail(err, NIB_ERR_NOT_FOUND, "the vocabulary has the control tokens of no chat format (%s)", names);
}

void nib_chat_close(struct nib_chat *chat)
{
    free(chat);
}

const char *nib_chat_name(const struct nib_chat *chat)
{
    return chat->format->name;
}

const int32_t *nib_chat_stop_tokens(const struct nib_chat *chat, size_t *count)
{
    *count = chat->stop_count;
    return chat->stops;
}

int nib_chat_control_of(const struct nib_chat *chat, int32_t token)
{
    for (size_t i = 0; token >= 0 && i < chat->control_count; i++)
        if (chat->controls[i] == token)
            return (int)i;
    return -1;
}

bool nib_chat_always_reasons(const struct nib_chat *chat)
{
    return chat->format->always_reasons;
}

nib_status nib_chat_render(const struct nib_chat *chat, const struct nib_conversation *conversation,
                           struct nib_pieces *pieces, struct nib_error *err)
{
    if (chat->format->always_reasons && conversation->effort == NIB_EFFORT_NONE)
        return nib_fail(err, NIB_ERR_ARGUMENT, "models of the %s format cannot do without reasoning",
                        chat->format->name);
    return chat->format->render(chat, conversation, pieces, err);
}

nib_status nib_chat_render_exact(const struct nib_chat *chat, const struct nib_message *message,
                                 struct nib_pieces *pieces, struct nib_error *err)
{
    return chat->format->render_exact(chat, message, pieces, err);
}

struct nib_message nib_message_user(struct nib_text text)
{
    return (struct nib_message){.role = NIB_ROLE_USER, .text = text};
}

struct nib_message nib_message_reasoning(struct nib_text text)
{
    return (struct nib_message){.role = NIB_ROLE_ASSISTANT, .channel = nib_text_of("analysis"), .text = text};
}

struct nib_message nib_message_answer(struct nib_text text)
{
    return (struct nib_message){.role = NIB_ROLE_ASSISTANT, .channel = nib_text_of("final"), .text = text};
}

struct nib_message nib_message_call(struct nib_text tool, struct nib_text arguments)
{
    return (struct nib_message){.role = NIB_ROLE_ASSISTANT,
                                .channel = nib_text_of("commentary"),
                                .recipient = tool,
                                .content_type = nib_text_of("json"),
                                .constrained = true,
                                .text = arguments};
}

struct nib_message nib_message_result(struct nib_text tool, struct nib_text output)
{
    return (struct nib_message){.role = NIB_ROLE_TOOL,
                                .name = tool,
                                .recipient = nib_text_of("assistant"),
                                .channel = nib_text_of("commentary"),
                                .text = output};
}

bool nib_effort_from_name(const char *name, enum nib_effort *effort)
{
    static const char *const names[] = {[NIB_EFFORT_NONE] = "none",
                                        [NIB_EFFORT_LOW] = "low",
                                        [NIB_EFFORT_MEDIUM] = "medium",
                                        [NIB_EFFORT_HIGH] = "high"};
    for (int i = NIB_EFFORT_NONE; i <= NIB_EFFORT_HIGH; i++)
        if (strcmp(name, names[i]) == 0) {
            *effort = (enum nib_effort)i;
            return true;
        }
    return false;
}

struct nib_conversation nib_conversation_defaults(void)
{
    return (struct nib_conversation){
        .model_identity = nib_text_of("You are ChatGPT, a large language model trained by OpenAI."),
        .knowledge_cutoff = nib_text_of("2024-06"),
        .effort = NIB_EFFORT_MEDIUM,
        .channels = nib_text_of("analysis, commentary, final"),
    };
}
