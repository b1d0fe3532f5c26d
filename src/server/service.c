// The endpoints about the server itself.
#include "server/chat_page.h"
#include "server/server_state.h"

void nib_serve_health(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    (void)body;
    bool healthy = nib_scheduler_healthy(server->scheduler);
    nib_exchange_answer(exchange, healthy ? 200 : 503,
                        json_pack("{s:s}", "status", healthy ? "ok" : "unavailable"));
}

static json_t *model_json(const struct nib_server *server)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:i}", "id", server->options.model_name, "object", "model", "created",
                     (json_int_t)server->started, "owned_by", "nibble", "max_model_len",
                     (int)server->backend.context);
}

void nib_serve_models(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    (void)body;
    nib_exchange_answer(exchange, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(server)));
}

void nib_serve_model(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    (void)body;
    nib_exchange_answer(exchange, 200, model_json(server));
}

void nib_serve_metrics(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    (void)body;
    struct nib_bytes text = {0};
    if (nib_metrics_write(&server->metrics, &text, NULL))
        nib_exchange_answer(exchange, 500, NULL);
    else
        nib_exchange_answer_text(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.size);
    nib_bytes_free(&text);
}

void nib_serve_page(struct nib_server *server, struct nib_exchange *exchange, struct nib_text body)
{
    (void)server;
    (void)body;
    nib_exchange_answer_text(exchange, 200, "text/html; charset=utf-8", nib_chat_page, nib_chat_page_size);
}
