// From the tokens of an answer to what it says: messages of a chat, or plain text. Shown as it comes, cut at stop
// strings, and written as JSON in the end.
#ifndef NIB_CLI_ANSWER_H
#define NIB_CLI_ANSWER_H

#include <jansson.h>

#include "cli/generate.h"
#include "cli/messages.h"
#include "cli/show.h"
#include "text/stop_strings.h"

struct answer {
    const struct nib_tokenizer *tokenizer;
    const struct nib_chat *chat; // NULL: plain text, control tokens spelled out
    struct nib_stop_strings *stop;
    struct show show;
    struct nib_chat_parser *parser;
    struct nib_utf8_stream utf8;
    struct nib_bytes whole, shown; // scratch: whole characters; those clear of stop strings
    struct messages messages;      // said so far; plain text is one message
    bool stopped;                  // by a stop string
    json_t *logprobs;              // array, or NULL when not wanted
    struct nib_error error;        // of a callback
};

// `chat` may be NULL. Everything given is borrowed. answer_free afterwards, also after a failure.
nib_status answer_begin(struct answer *answer, const struct nib_tokenizer *tokenizer, const struct nib_chat *chat,
                        struct nib_stop_strings *stop, const struct show *show, bool logprobs,
                        struct nib_error *err);
// Tokens that stand in the prompt but begin the answer (a thought that the prompt opens).
nib_status answer_preset(struct answer *answer, const int32_t *tokens /* [count] */, size_t count,
                         struct nib_error *err);
bool answer_token(void *answer, const struct nib_event *event); // for generation.on_token
// Takes the stop token (-1: none) and ends what is open.
nib_status answer_end(struct answer *answer, int32_t stop_token, struct nib_error *err);
void answer_free(struct answer *answer);

bool answer_calls_tool(const struct answer *answer);

// Text, reasoning, messages, tool calls, reason, counts, rates.
json_t *answer_json(const struct answer *answer, const struct generation *generation);

#endif
