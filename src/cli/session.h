// What the commands that run a model open together: engine, tokenizer, chat format, and the tokens that end an answer.
#ifndef NIB_CLI_SESSION_H
#define NIB_CLI_SESSION_H

#include "nibble/chat.h"
#include "nibble/engine.h"
#include "nibble/tokenizer.h"

// Numbers as the command line's options hold them; zero means the engine's default.
struct session_options {
    const char *device;
    int64_t threads, context, max_sequences, max_step_tokens, max_outputs, cache_tokens;
    bool force;
    const char *dense_dtype; // "stored" or "int8"
    const char *precision;   // "auto", "fast" or "exact"
    bool prefix_cache;
    bool deterministic; // see struct nib_engine_options
    bool print_plan;    // on stderr, before anything is allocated
};

struct session_options session_defaults(void);

// The value of a --precision option.
enum nib_precision precision_of(const char *name);

struct session {
    struct nib_engine *engine;
    struct nib_tokenizer *tokenizer;
    struct nib_chat *chat;    // in the format that the model and its vocabulary choose; NULL: there is none
    struct nib_error no_chat; // then: why
    int32_t stop_tokens[16];
    int32_t n_stop_tokens;
};

// On failure everything is closed again and `session` is zero. A warning about tensors that the model does not use goes
// to stderr.
nib_status session_open(struct session *session, const char *path, const struct session_options *options,
                        struct nib_error *err);
void session_close(struct session *session); // fine on a zero session

// How the folder's generation_config.json says to sample; plain sampling without one. The seed stays 0.
nib_status session_sampling(const struct session *session, struct nib_sampling *sampling,
                            float *repetition_penalty, struct nib_error *err);

// On stderr: how many tensors of a bound checkpoint the model does not use, and one of them. Nothing if it uses all.
void warn_unused(const struct nib_checkpoint *checkpoint);

// The engine's memory plan as one line on stderr.
void print_memory_plan(const struct nib_memory_plan *plan);

// The tokenizer of a checkpoint folder.
nib_status open_tokenizer(const char *folder, struct nib_tokenizer **tokenizer, struct nib_error *err);

#endif
