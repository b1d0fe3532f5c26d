// What the files of this room share.
#ifndef NIB_SERVER_SERVER_STATE_H
#define NIB_SERVER_SERVER_STATE_H

#include <stdatomic.h>

#include "server/api_keys.h"
#include "server/exchange.h"
#include "server/metrics.h"
#include "server/scheduler.h"
#include "server/server.h"
#include "text/token_mask.h"

struct MHD_Daemon;
struct nib_deadlines;
struct nib_departures;
struct nib_response_store;

struct nib_server {
    struct nib_server_options options;
    struct nib_backend backend;
    const struct nib_chat *chat; // NULL: completion only
    const struct nib_tokenizer *tokenizer;
    struct nib_mask_vocabulary *vocabulary; // for answers that a schema binds
    struct nib_api_keys keys;
    struct nib_response_store *responses;
    struct nib_metrics metrics;
    struct nib_scheduler *scheduler;
    struct nib_deadlines *deadlines;
    struct nib_departures *departures;
    struct MHD_Daemon *daemon;
    char *certificate, *key; // of TLS
    char url[128];
    bool local;           // only this machine reaches it
    long started;         // seconds since 1970
    atomic_int exchanges; // not over yet
};

// What an endpoint does: answers now, or gives the exchange work that will.
typedef void (*nib_endpoint)(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);

void nib_serve_health(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_models(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_model(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_metrics(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_page(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_chat(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_completions(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_responses(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_tokenize(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);
void nib_serve_detokenize(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body);

// Parses a body; on a mistake fills `error` and returns NULL.
json_t *nib_parse_body(struct nib_text body, struct nib_api_error *error);

// The schema {"type": "object"}; lives as long as the program, as does the next one.
const json_t *nib_any_object(void);
// That of a function without parameters: an object without properties.
const json_t *nib_no_arguments(void);

// PREFIX and 24 random hexadecimal digits.
struct nib_unique_id {
    char text[48];
};
struct nib_unique_id nib_make_id(const char *prefix);

#endif
