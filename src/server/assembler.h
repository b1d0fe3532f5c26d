// From a model's tokens to what a client sees: pieces of reasoning, of content, of tool calls. Every API, streaming or
// not, gets its answer from here, so they cannot disagree. Any stream of tokens is taken, and no text of it is lost:
//   channel analysis             reasoning
//   a recipient                  a tool call; content when the request offered no tools
//   everything else              content
// and a call that was cut short is a call with the arguments so far.
#ifndef NIB_SERVER_ASSEMBLER_H
#define NIB_SERVER_ASSEMBLER_H

#include <jansson.h>

#include "nibble/chat.h"
#include "nibble/engine.h"
#include "nibble/tokenizer.h"
#include "text/stop_strings.h"

enum nib_delta_kind {
    NIB_DELTA_REASONING,
    NIB_DELTA_CONTENT,
    NIB_DELTA_CALL,      // a call begins; `text` is the function's name
    NIB_DELTA_ARGUMENTS, // more of its arguments
};

struct nib_delta {
    enum nib_delta_kind kind;
    struct nib_text text; // whole UTF-8 characters, valid during the call
    struct nib_text id;   // NIB_DELTA_CALL: as the model wrote it, or empty
    size_t call;          // number of the call, from 0
    json_t *logprobs;     // NIB_DELTA_CONTENT: array of its tokens, or NULL; borrowed
};

typedef void (*nib_delta_handler)(void *context, const struct nib_delta *delta);

// How an answer ended, beyond what the engine knows.
enum nib_ending {
    NIB_ENDING_STOP,        // a stop token
    NIB_ENDING_STOP_STRING, // text that the request named
    NIB_ENDING_ENOUGH,      // one call was asked for and is complete
    NIB_ENDING_LENGTH,      // max_tokens or the context
    NIB_ENDING_CUT,         // the server is going down, or the cache was full
};

struct nib_assembler {
    const struct nib_tokenizer *tokenizer; // borrowed
    struct nib_chat_parser *parser;        // NULL: plain text, control tokens spelled out
    struct nib_stop_strings stop;          // in content only; filled before the first token
    bool tools_offered;
    bool one_call; // ask to stop behind the first complete call
    bool logprobs; // wanted
    nib_delta_handler on_delta;
    void *context;
    // The rest is its own.
    enum nib_delta_kind kind; // of the open message
    bool open, has_text;      // a message has begun; and this token did not begin it
    bool stopped, enough;
    bool separate; // content has ended; what follows begins on a new line
    size_t calls;
    struct nib_text id; // of the call that begins, during its delta
    struct nib_utf8_stream utf8;
    struct nib_bytes whole, shown;
    json_t *entries; // log-probabilities of tokens whose text has not been shown
    int32_t reasoning_tokens;
    nib_status status; // memory
};

// `chat` NULL: plain text. Set the options afterwards. nib_assembler_free also after a failure.
nib_status nib_assembler_init(struct nib_assembler *assembler, const struct nib_chat *chat,
                              const struct nib_tokenizer *tokenizer, nib_delta_handler on_delta, void *context,
                              struct nib_error *err);
void nib_assembler_free(struct nib_assembler *assembler);

// Tokens that stand in the prompt but belong to the answer (a forced call's header).
nib_status nib_assembler_preset(struct nib_assembler *assembler, const int32_t *tokens /* [count] */,
                                size_t count);

// The event's token. False: enough, generate no more.
bool nib_assembler_push(struct nib_assembler *assembler, const struct nib_event *event);

// Ends what is open. The finish reason of OpenAI's APIs: "stop", "length" or "tool_calls".
const char *nib_assembler_end(struct nib_assembler *assembler, enum nib_finish finish);

// {"token", "bytes", "logprob"} of one token, in OpenAI's form.
json_t *nib_token_logprob_json(const struct nib_tokenizer *tokenizer, const struct nib_token_logprob *token);

// Bytes as a JSON string; what is no UTF-8 becomes U+FFFD.
json_t *nib_text_json(struct nib_text text);

#endif
