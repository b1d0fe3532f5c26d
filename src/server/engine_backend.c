#include <stdlib.h>

#include "base/error.h"
#include "server/backend.h"

struct nib_engine_backend {
    struct nib_engine *engine;
    struct nib_batch *batch;
    int64_t pages; // all of them
    void (*on_event)(void *context, const struct nib_event *event);
    void *context;
};

static void pass_event(void *context, const struct nib_event *event)
{
    struct nib_engine_backend *self = context;
    self->on_event(self->context, event);
}

static void listen_to(void *context, void (*on_event)(void *, const struct nib_event *), void *listener)
{
    struct nib_engine_backend *self = context;
    self->on_event = on_event;
    self->context = listener;
}

static nib_status add(void *context, const struct nib_request *request, int64_t *id, struct nib_error *err)
{
    struct nib_engine_backend *self = context;
    return nib_batch_add(self->batch, request, id, err);
}

static void cancel(void *context, int64_t id)
{
    struct nib_engine_backend *self = context;
    nib_batch_cancel(self->batch, id);
}

static nib_status step(void *context, bool *busy, struct nib_error *err)
{
    struct nib_engine_backend *self = context;
    return nib_batch_step(self->batch, busy, err);
}

static void load(void *context, struct nib_backend_load *load)
{
    struct nib_engine_backend *self = context;
    *load = (struct nib_backend_load){.pages = self->pages,
                                      .free_pages = nib_engine_free_pages(self->engine),
                                      .cached_pages = nib_engine_prefix_pages(self->engine)};
}

nib_status nib_engine_backend_open(struct nib_engine *engine, struct nib_engine_backend **opened,
                                   struct nib_backend *backend, struct nib_error *err)
{
    struct nib_engine_backend *self = calloc(1, sizeof *self);
    if (!self)
        return nib_fail_memory(err, sizeof *self, "the server's engine");
    self->engine = engine;
    self->pages = nib_engine_free_pages(engine);
    nib_status status = nib_batch_create(engine, pass_event, self, &self->batch, err);
    if (status) {
        free(self);
        return status;
    }
    const struct nib_memory_plan *plan = nib_engine_memory(engine);
    *backend = (struct nib_backend){
        .self = self,
        .vocab = nib_engine_vocab(engine),
        .context = plan->context < plan->cache_tokens ? plan->context : (int32_t)plan->cache_tokens,
        .max_sequences = plan->max_sequences,
        .listen = listen_to,
        .add = add,
        .cancel = cancel,
        .step = step,
        .load = load,
    };
    *opened = self;
    return NIB_OK;
}

void nib_engine_backend_close(struct nib_engine_backend *opened)
{
    if (!opened)
        return;
    nib_batch_free(opened->batch);
    free(opened);
}
