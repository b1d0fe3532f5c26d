// One HTTP request and its answer, between the thread of its connection and the thread that writes the answer. While
// there is nothing to send, the connection is suspended and costs nothing.
#ifndef NIB_SERVER_EXCHANGE_H
#define NIB_SERVER_EXCHANGE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "nibble/tokenizer.h"
#include "server/api_error.h"

struct MHD_Connection;
struct nib_deadline;

struct nib_exchange {
    pthread_mutex_t mutex;             // over what follows, down to `deadline`
    struct MHD_Connection *connection; // NULL once it is over
    bool suspended;
    unsigned status; // HTTP; 0 as long as it is not known
    const char *content_type;
    int retry_after;   // seconds; 0: no such header
    const char *allow; // the methods that there are, static; NULL: no such header
    bool last;         // the connection ends with the answer
    bool streaming;    // the body comes in parts
    struct nib_bytes body;
    size_t taken; // bytes of the body that the connection has
    bool ended;
    bool broken;                   // a stream that ends here is not whole
    struct nib_deadline *deadline; // of the connection: when it must have taken the answer

    atomic_int references;
    void *work; // what the answer is made with
    void (*cancel_work)(void *work);
    void (*free_work)(void *work); // with the last reference
};

// With one reference. NULL when memory is out.
struct nib_exchange *nib_exchange_create(struct MHD_Connection *connection, struct nib_deadline *deadline);
void nib_exchange_retain(struct nib_exchange *exchange);
void nib_exchange_release(struct nib_exchange *exchange);

// ---- the writer's side: any thread

// A whole answer. Takes `json` over; NULL (memory was out) becomes an error of the server.
void nib_exchange_answer(struct nib_exchange *exchange, unsigned status, json_t *json);
// `content_type` is static; the bytes are copied.
void nib_exchange_answer_text(struct nib_exchange *exchange, unsigned status, const char *content_type,
                              const char *bytes /* [size] */, size_t size);
void nib_exchange_fail(struct nib_exchange *exchange, const struct nib_api_error *error);

// An answer in parts: server-sent events.
void nib_exchange_begin_stream(struct nib_exchange *exchange);
// "event: NAME" (unless NULL) and "data: JSON"; takes `json` over.
void nib_exchange_send(struct nib_exchange *exchange, const char *event, json_t *json);
void nib_exchange_send_text(struct nib_exchange *exchange, const char *data);
void nib_exchange_end(struct nib_exchange *exchange);

// ---- the connection's side: its thread

// Queues the answer as soon as its status is known; until then suspends the connection. An MHD_Result.
int nib_exchange_respond(struct nib_exchange *exchange);
// The connection is over: nobody reads any more.
void nib_exchange_hang_up(struct nib_exchange *exchange);

#endif
