// nibble's HTTP server: OpenAI's API on a model.
#ifndef NIB_SERVER_SERVER_H
#define NIB_SERVER_SERVER_H

#include "nibble/chat.h"
#include "server/backend.h"

struct nib_server_options {
    const char *host; // NULL: loopback
    int port;         // 0: any that is free
    const char *model_name;
    const char *date;                      // that prompts say, "2025-06-28"; NULL: today
    const char *api_key_file;              // one key a line; NULL: nobody is asked for one
    const char *tls_certificate, *tls_key; // PEM files; NULL: plain HTTP
    int64_t queue;                         // answers that may wait
    int64_t max_body;                      // bytes of a request
    int64_t max_tokens;                    // of an answer when the request does not say; 0: what the context holds
    int64_t max_connections, max_connections_per_client;
    int64_t timeout; // seconds that a connection may be silent, and take for a header or, per 64 KiB more, a body
    struct nib_sampling sampling; // what a request does not say
    float repetition_penalty;     // likewise
    const int32_t *stop_tokens;   /* [n_stop_tokens] */
    int32_t n_stop_tokens;
    bool log_requests; // a line each on stderr; never what was said
};

struct nib_server;

// Everything in `options`, the backend and the tokenizer are borrowed. `chat` NULL: the model cannot chat, it only
// completes.
nib_status nib_server_start(const struct nib_server_options *options, const struct nib_backend *backend,
                            const struct nib_chat *chat, const struct nib_tokenizer *tokenizer,
                            struct nib_server **server, struct nib_error *err);

// "http://127.0.0.1:8000"
const char *nib_server_url(const struct nib_server *server);

// Takes no more requests, gives those under way `grace` seconds, and cuts off the rest (they end with a finish reason).
// nib_server_free afterwards.
void nib_server_stop(struct nib_server *server, double grace);
// Ends the grace of a stop that another thread waits in.
void nib_server_hurry(struct nib_server *server);
void nib_server_free(struct nib_server *server);

#endif
