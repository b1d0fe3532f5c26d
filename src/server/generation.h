// An answer under way: one or several choices of one request, each a job of the scheduler with an assembler of its
// own. What the APIs have in common; how an answer is written is theirs (struct nib_reply_format).
#ifndef NIB_SERVER_GENERATION_H
#define NIB_SERVER_GENERATION_H

#include "server/assembler.h"
#include "server/fields.h"
#include "server/server_state.h"
#include "text/guide.h"

struct nib_generation;

struct nib_choice {
    struct nib_job job;
    struct nib_generation *generation;
    int index;
    bool begun;
    struct nib_assembler assembler;
    struct nib_guide *guide; // NULL: the model writes what it likes
    const char *finish_reason;
    int32_t generated, cached_tokens;
    struct nib_bytes content, reasoning; // so far
    size_t characters;                   // of the tokens told of, where the API's reply counts them
    struct nib_called {
        struct nib_unique_id id;
        struct nib_bytes name, arguments;
    } * calls; /* [n_calls] */
    size_t n_calls, calls_capacity;
    json_t *logprobs; // array of the tokens of the content
};

// How an API writes an answer. All functions are called on the scheduler's thread, after the choice has been brought
// up to date.
struct nib_reply_format {
    void (*begin)(struct nib_choice *choice); // NULL, or when streaming: before the first delta
    void (*delta)(struct nib_choice *choice, const struct nib_delta *delta); // when streaming
    void (*end)(struct nib_choice *choice);                                  // when streaming
    void (*done)(struct nib_generation *generation); // of the whole answer; ends the exchange
    bool every_delta;                                // also when not streaming
};

struct nib_generation {
    struct nib_server *server;
    struct nib_exchange *exchange; // borrowed: it owns the generation
    const struct nib_reply_format *format;
    json_t *body; // the request; everything borrowed from it lives as long
    struct nib_unique_id id;
    long created; // seconds since 1970
    void *state;  // the API's own
    void (*free_state)(void *state);
    bool chat; // the answer is read as a chat's
    // What the request asks for.
    bool stream, include_usage, logprobs;
    int64_t n; // choices; from the submit on, of all prompts together
    int64_t max_tokens, top_logprobs, seed;
    bool has_seed;
    double temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    int64_t top_k;
    const json_t *stop; // validated
    bool tools_offered, one_call;
    struct nib_token_list prompt; // all of them, one behind the other
    size_t *ends;                 /* [n_prompts] where each ends; NULL: there is one prompt */
    size_t n_prompts;
    struct nib_logit_bias *bias; /* [n_bias] */
    int32_t n_bias;
    // What may be written; needed until the submit. No branches: anything.
    struct nib_guide_branch *branches; /* [n_branches] */
    size_t n_branches;
    const struct nib_tool *tools; /* [n_tools] likewise */
    size_t n_tools;
    const char *schema_field; // blamed when a schema cannot be used
    size_t preset;            // so many last tokens of the prompt belong to the answer
    // Under way.
    struct nib_choice *choices; /* [n] */
    int unfinished;
    struct nib_error error; // of the first choice that failed
};

// Takes `body` over and attaches a new generation, with the server's defaults, to the exchange. NULL when memory is
// out; the body is then gone.
struct nib_generation *nib_generation_create(struct nib_server *server, struct nib_exchange *exchange,
                                             const struct nib_reply_format *format, json_t *body,
                                             const char *id_prefix);

// Ends one of several prompts where the tokens end now; false when memory is out.
bool nib_generation_end_prompt(struct nib_generation *generation, struct nib_api_error *error);

// Reads what all APIs call by the same names: model, stream, stream_options, temperature, top_p, top_k, min_p, seed, stop,
// n, penalties, logit_bias.
bool nib_generation_read(struct nib_generation *generation, const struct nib_fields *fields);
// Refuses a field that is neither one of those nor in the NULL-terminated lists.
bool nib_generation_only(const struct nib_fields *fields, const char *const *own, const char *const *ignored);

// Whether the model can chat.
bool nib_generation_chats(const struct nib_generation *generation, struct nib_api_error *error);

// Renders a chat as the prompt, and what it demands of the answer.
struct nib_chat_request;
bool nib_generation_encode(struct nib_generation *generation, struct nib_chat_request *request,
                           const char *prompt_field, struct nib_api_error *error);

// Checks the length of the prompt and queues the choices. When streaming, the stream has then begun.
bool nib_generation_submit(struct nib_generation *generation, const char *prompt_field,
                           struct nib_api_error *error);

int64_t nib_generation_completion_tokens(const struct nib_generation *generation);
int64_t nib_generation_reasoning_tokens(const struct nib_generation *generation);
int64_t nib_generation_cached_tokens(const struct nib_generation *generation); // of the prompts
// OpenAI's "usage" of chats and completions.
json_t *nib_generation_usage(const struct nib_generation *generation);

#endif
