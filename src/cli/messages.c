#include "cli/messages.h"

#include <stdlib.h>
#include <time.h>

#include "base/error.h"

static struct nib_text keep(char **at, struct nib_text text)
{
    struct nib_text kept = {*at, text.size};
    if (text.size)
        memcpy(*at, text.bytes, text.size);
    *at += text.size;
    return kept;
}

nib_status messages_add(struct messages *messages, const struct nib_message *message, struct nib_error *err)
{
    if (messages->count == messages->capacity) {
        size_t capacity = 8 + 2 * messages->capacity;
        struct kept_message *items = realloc(messages->items, capacity * sizeof *items);
        if (!items)
            return nib_fail_memory(err, capacity * sizeof *items, "messages");
        messages->items = items;
        messages->capacity = capacity;
    }
    size_t size = message->name.size + message->id.size + message->recipient.size + message->channel.size +
                  message->content_type.size;
    struct kept_message kept = {.message = *message, .fields = malloc(size + 1)};
    if (!kept.fields)
        return nib_fail_memory(err, size, "a message");
    char *at = kept.fields;
    kept.message.name = keep(&at, message->name);
    kept.message.id = keep(&at, message->id);
    kept.message.recipient = keep(&at, message->recipient);
    kept.message.channel = keep(&at, message->channel);
    kept.message.content_type = keep(&at, message->content_type);
    kept.message.text = (struct nib_text){0};
    kept.message.written = NULL;
    messages->items[messages->count++] = kept;
    nib_status status = messages_extend(messages, message->text.bytes, message->text.size, err);
    if (status)
        messages_cut(messages, messages->count - 1);
    return status;
}

nib_status messages_add_all(struct messages *messages, const struct messages *others, struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (size_t i = 0; !status && i < others->count; i++)
        status = messages_add(messages, &others->items[i].message, err);
    return status;
}

nib_status messages_extend(struct messages *messages, const char *bytes, size_t size, struct nib_error *err)
{
    struct kept_message *last = &messages->items[messages->count - 1];
    nib_status status = nib_bytes_append(&last->text, bytes, size, err);
    last->message.text = (struct nib_text){last->text.data, last->text.size};
    return status;
}

void messages_cut(struct messages *messages, size_t count)
{
    while (messages->count > count) {
        struct kept_message *last = &messages->items[--messages->count];
        free(last->fields);
        nib_bytes_free(&last->text);
    }
}

void messages_free(struct messages *messages)
{
    messages_cut(messages, 0);
    free(messages->items);
    *messages = (struct messages){0};
}

nib_status dialogue_prompt(const struct dialogue *dialogue, const struct nib_chat *chat,
                           const struct nib_tokenizer *tokenizer, struct nib_token_list *prompt, size_t *begun,
                           struct nib_error *err)
{
    char date[16] = "";
    time_t now = time(NULL);
    struct tm today;
    if (localtime_r(&now, &today))
        strftime(date, sizeof date, "%Y-%m-%d", &today);
    size_t count = dialogue->messages.count;
    struct nib_message *messages = malloc((count + 1) * sizeof *messages);
    if (!messages)
        return nib_fail_memory(err, (count + 1) * sizeof *messages, "messages");
    for (size_t i = 0; i < count; i++)
        messages[i] = dialogue->messages.items[i].message;
    struct nib_conversation conversation = nib_conversation_defaults();
    conversation.current_date = nib_text_of(date);
    conversation.effort = dialogue->effort;
    conversation.instructions = nib_text_of(dialogue->instructions);
    conversation.messages = messages;
    conversation.message_count = count;
    struct nib_pieces pieces = {0};
    nib_status status = nib_chat_render(chat, &conversation, &pieces, err);
    struct nib_token_list reply = {0};
    if (!status)
        status = nib_pieces_encode(&pieces, 0, tokenizer, prompt, err);
    if (!status)
        status = nib_pieces_encode(&pieces, pieces.reply_from, tokenizer, &reply, err);
    *begun = reply.count;
    nib_token_list_free(&reply);
    nib_pieces_free(&pieces);
    free(messages);
    return status;
}
