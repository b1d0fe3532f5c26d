// A list of chat messages that owns every byte of them.
#ifndef NIB_CLI_MESSAGES_H
#define NIB_CLI_MESSAGES_H

#include "nibble/chat.h"
#include "nibble/tokenizer.h"

struct kept_message {
    struct nib_message message; // points into the two below
    char *fields;               // name, id, recipient, channel and content type, one behind the other
    struct nib_bytes text;
};

// Start from {0}.
struct messages {
    struct kept_message *items; /* [count] */
    size_t count, capacity;
};

// Appends a copy; `written` is not kept.
nib_status messages_add(struct messages *messages, const struct nib_message *message, struct nib_error *err);
nib_status messages_add_all(struct messages *messages, const struct messages *others, struct nib_error *err);
// More text for the last message.
nib_status messages_extend(struct messages *messages, const char *bytes /* [size] */, size_t size,
                           struct nib_error *err);
void messages_cut(struct messages *messages, size_t count); // forgets those from `count` on
void messages_free(struct messages *messages);

static inline bool message_is_reasoning(const struct nib_message *message)
{
    return nib_text_equal(message->channel, nib_text_of("analysis")) && message->recipient.size == 0;
}

static inline bool message_is_call(const struct nib_message *message)
{
    return message->recipient.size > 0;
}

// What is said to the model: instructions, effort, today's date, and the messages so far.
struct dialogue {
    struct messages messages;
    const char *instructions; // of the developer, or NULL
    enum nib_effort effort;
};

// Appends the ids of the prompt for the model's next message, the last `*begun` of which begin that message.
nib_status dialogue_prompt(const struct dialogue *dialogue, const struct nib_chat *chat,
                           const struct nib_tokenizer *tokenizer, struct nib_token_list *prompt, size_t *begun,
                           struct nib_error *err);

#endif
