// Where tokens come from. The server runs on an engine's batch; tests put scripts in its place.
#ifndef NIB_SERVER_BACKEND_H
#define NIB_SERVER_BACKEND_H

#include "nibble/engine.h"

struct nib_backend_load {
    int64_t pages, free_pages; // of the KV cache
    int64_t cached_pages;      // of the free ones, those that hold a prefix
};

// All functions are called by the scheduler's thread.
struct nib_backend {
    void *self;
    int32_t vocab;
    int32_t context;       // tokens of one request
    int32_t max_sequences; // that run at the same time
    // Where the events go; set before the first request.
    void (*listen)(void *self, void (*on_event)(void *context, const struct nib_event *event), void *context);
    // As nib_batch_add, _cancel and _step.
    nib_status (*add)(void *self, const struct nib_request *request, int64_t *id, struct nib_error *err);
    void (*cancel)(void *self, int64_t id);
    nib_status (*step)(void *self, bool *busy, struct nib_error *err);
    void (*load)(void *self, struct nib_backend_load *load);
};

struct nib_engine_backend;

// The engine is borrowed.
nib_status nib_engine_backend_open(struct nib_engine *engine, struct nib_engine_backend **opened,
                                   struct nib_backend *backend, struct nib_error *err);
void nib_engine_backend_close(struct nib_engine_backend *opened); // NULL is fine

#endif
