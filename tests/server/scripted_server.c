// nibble's server on a model that says what the last message of its prompt says: "<|channel|>final<|message|>hi<|return|>"
// in a user's message is answered with exactly these tokens, control tokens included; "{{1234}}" is the token of that id.
// So a client can have the server read any stream of tokens. Where the script ends, the answer has reached its length.
//
// usage: scripted_server TOKENIZER_FOLDER [name=value ...]; prints its URL. The vocabulary chooses the chat format, with
// MODEL_TYPE of the environment.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "nibble/tokenizer.h"
#include "server/server.h"

struct scripted {
    struct scripted *next;
    int64_t id;
    void *user;
    struct nib_token_list tokens;
    int32_t said, max_tokens, n_prompt, top;
    bool cancelled;
};

struct stage {
    const struct nib_tokenizer *tokenizer;
    const int32_t *stops;
    size_t n_stops;
    int32_t message, end; // tokens around a message's text
    bool headed;          // whose first line is its role
    struct scripted *first;
    int64_t next_id;
    int parallel, step_us;
    void (*on_event)(void *, const struct nib_event *);
    void *context;
};

static void listen_to(void *self, void (*on_event)(void *, const struct nib_event *), void *context)
{
    struct stage *stage = self;
    stage->on_event = on_event;
    stage->context = context;
}

// Text with control tokens spelled out and {{ids}}, as tokens.
static nib_status encode_script(struct stage *stage, const char *text, struct nib_token_list *tokens,
                                struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (const char *at = text; *at && !status;) {
        const char *braces = strstr(at, "{{");
        size_t size = braces ? (size_t)(braces - at) : strlen(at);
        status = nib_tokenizer_encode(stage->tokenizer, at, size, NIB_ENCODE_SPECIAL, tokens, err);
        at += size;
        if (braces && !status) {
            char *end;
            status = nib_token_list_add(tokens, (int32_t)strtol(at + 2, &end, 10), err);
            at = strncmp(end, "}}", 2) == 0 ? end + 2 : end;
        }
    }
    return status;
}

// The text of the prompt's last message.
static nib_status read_script(struct stage *stage, const struct nib_request *request,
                              struct nib_token_list *tokens, struct nib_error *err)
{
    int32_t end = request->n_prompt;
    while (end > 0 && request->prompt[end - 1] != stage->end)
        end--;
    int32_t from = --end;
    while (from > 0 && request->prompt[from - 1] != stage->message)
        from--;
    struct nib_bytes text = {0};
    nib_status status = NIB_OK;
    if (end > from)
        status = nib_tokenizer_decode(stage->tokenizer, request->prompt + from, (size_t)(end - from), &text, err);
    const char *script = text.data ? text.data : "", *line = strchr(script, '\n');
    if (!status)
        status = encode_script(stage, stage->headed && line ? line + 1 : script, tokens, err);
    if (!status && tokens->count == 0) // no script: an empty answer
        status = nib_token_list_add(tokens, stage->stops[0], err);
    nib_bytes_free(&text);
    return status;
}

static nib_status add(void *self, const struct nib_request *request, int64_t *id, struct nib_error *err)
{
    struct stage *stage = self;
    struct scripted *added = calloc(1, sizeof *added);
    if (!added)
        return nib_fail_memory(err, sizeof *added, "a script");
    *added = (struct scripted){.id = *id = stage->next_id++,
                               .user = request->user,
                               .max_tokens = request->max_tokens,
                               .n_prompt = request->n_prompt,
                               .top = request->top_logprobs};
    nib_status status = read_script(stage, request, &added->tokens, err);
    if (status) {
        nib_token_list_free(&added->tokens);
        free(added);
        return status;
    }
    struct scripted **link = &stage->first;
    while (*link)
        link = &(*link)->next;
    *link = added;
    return NIB_OK;
}

static void cancel(void *self, int64_t id)
{
    struct stage *stage = self;
    for (struct scripted *s = stage->first; s; s = s->next)
        if (s->id == id)
            s->cancelled = true;
}

static bool is_stop(const struct stage *stage, int32_t token)
{
    for (size_t i = 0; i < stage->n_stops; i++)
        if (stage->stops[i] == token)
            return true;
    return false;
}

// Says the next token; true when that was the last.
static bool say(struct stage *stage, struct scripted *s)
{
    struct nib_event event = {
        .request = s->id, .user = s->user, .prompt_tokens = s->n_prompt, .generated_tokens = s->said};
    struct nib_token_logprob top[NIB_MAX_TOP_LOGPROBS];
    if (s->cancelled) {
        event.finish = NIB_FINISH_CANCELLED;
    } else {
        event.has_token = true;
        event.token = (struct nib_token_logprob){s->tokens.ids[s->said++], -0.25f};
        event.generated_tokens = s->said;
        event.top = top;
        for (; event.n_top < s->top; event.n_top++)
            top[event.n_top] = (struct nib_token_logprob){event.n_top, -1.0f - (float)event.n_top};
        if (is_stop(stage, event.token.token))
            event.finish = NIB_FINISH_STOP;
        else if ((size_t)s->said == s->tokens.count || s->said == s->max_tokens)
            event.finish = NIB_FINISH_LENGTH;
    }
    bool last = event.finish != NIB_FINISH_NOT_YET;
    stage->on_event(stage->context, &event);
    return last;
}

static nib_status step(void *self, bool *busy, struct nib_error *err)
{
    (void)err;
    struct stage *stage = self;
    struct timespec pause = {0, stage->step_us * 1000L};
    nanosleep(&pause, NULL);
    int running = 0;
    for (struct scripted **link = &stage->first; *link;) {
        struct scripted *s = *link;
        bool speaks = s->cancelled || running++ < stage->parallel;
        if (!speaks || !say(stage, s)) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        nib_token_list_free(&s->tokens);
        free(s);
    }
    *busy = stage->first != NULL;
    return NIB_OK;
}

static void load(void *self, struct nib_backend_load *load)
{
    (void)self;
    *load = (struct nib_backend_load){0};
}

static int64_t option(int argc, char **argv, const char *name, int64_t value)
{
    size_t size = strlen(name);
    for (int i = 2; i < argc; i++)
        if (strncmp(argv[i], name, size) == 0 && argv[i][size] == '=')
            value = strtoll(argv[i] + size + 1, NULL, 10);
    return value;
}

// How a format sets off the text of a message.
static void find_messages(struct stage *stage, const char *format)
{
    static const struct {
        const char *format, *message, *end;
        bool headed;
    } formats[] = {{"harmony", "<|message|>", "<|end|>", false},
                   {"kimi", "<|im_middle|>", "<|im_end|>", false},
                   {"chatml", "<|im_start|>", "<|im_end|>", true},
                   {"mimo", "<|im_start|>", "<|im_end|>", true},
                   {"minimax", "]~b]", "[e~[", true},
                   {"deepseek", "<｜User｜>", "<｜Assistant｜>", false}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].format, format) == 0) {
            stage->message = nib_tokenizer_find_added(stage->tokenizer, formats[i].message);
            stage->end = nib_tokenizer_find_added(stage->tokenizer, formats[i].end);
            stage->headed = formats[i].headed;
        }
}

int main(int argc, char **argv)
{
    struct nib_error err;
    struct nib_tokenizer *tokenizer = NULL;
    struct nib_chat *chat = NULL;
    struct nib_server *server;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (argc < 2 || nib_tokenizer_open(&tokenizer, argv[1], NULL, &err))
        return 2;
    struct nib_vocabulary vocabulary = nib_vocabulary_of(tokenizer);
    if (nib_chat_open_fitting(&vocabulary, getenv("MODEL_TYPE"), &chat, &err))
        return 2;
    struct stage stage = {.tokenizer = tokenizer,
                          .stops = NULL,
                          .parallel = (int)option(argc, argv, "parallel", 4),
                          .step_us = (int)option(argc, argv, "step_us", 0)};
    find_messages(&stage, nib_chat_name(chat));
    stage.stops = nib_chat_stop_tokens(chat, &stage.n_stops);
    struct nib_backend backend = {.self = &stage,
                                  .vocab = nib_tokenizer_vocab_size(tokenizer),
                                  .context = (int32_t)option(argc, argv, "context", 8192),
                                  .max_sequences = stage.parallel,
                                  .listen = listen_to,
                                  .add = add,
                                  .cancel = cancel,
                                  .step = step,
                                  .load = load};
    struct nib_server_options options = {
        .model_name = "scripted",
        .date = "2025-06-28",
        .queue = option(argc, argv, "queue", 64),
        .max_body = option(argc, argv, "max_body", 1 << 20),
        .max_connections = 256,
        .max_connections_per_client = option(argc, argv, "per_client", 256),
        .timeout = option(argc, argv, "timeout", 30),
        .sampling = {.temperature = 1, .top_p = 1},
        .stop_tokens = stage.stops,
        .n_stop_tokens = (int32_t)stage.n_stops,
    };
    if (nib_server_start(&options, &backend, chat, tokenizer, &server, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    fprintf(stderr, "serving at %s\n", nib_server_url(server));
    int number;
    sigwait(&signals, &number);
    nib_server_stop(server, (double)option(argc, argv, "grace", 5));
    nib_server_free(server);
    nib_chat_close(chat);
    nib_tokenizer_close(tokenizer);
    return 0;
}
