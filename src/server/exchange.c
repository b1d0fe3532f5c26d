#include "server/exchange.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/deadlines.h"

// The page runs its own script, talks to its own server, and may be framed by nobody.
#define PAGE_POLICY                                                                                   \
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; " \
    "frame-ancestors 'none'"
#define STREAM_BLOCK 16384      // bytes handed over at once
#define MOST_BACKLOG (8u << 20) // of a stream whose client does not read

struct nib_exchange *nib_exchange_create(struct MHD_Connection *connection, struct nib_deadline *deadline)
{
    struct nib_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange)
        return NULL;
    pthread_mutex_init(&exchange->mutex, NULL);
    exchange->connection = connection;
    exchange->deadline = deadline;
    atomic_init(&exchange->references, 1);
    return exchange;
}

void nib_exchange_retain(struct nib_exchange *exchange)
{
    atomic_fetch_add(&exchange->references, 1);
}

void nib_exchange_release(struct nib_exchange *exchange)
{
    if (!exchange || atomic_fetch_sub(&exchange->references, 1) > 1)
        return;
    if (exchange->free_work)
        exchange->free_work(exchange->work);
    nib_bytes_free(&exchange->body);
    pthread_mutex_destroy(&exchange->mutex);
    free(exchange);
}

// With the mutex held.
static void wake(struct nib_exchange *exchange)
{
    if (exchange->suspended && exchange->connection) {
        exchange->suspended = false;
        MHD_resume_connection(exchange->connection);
    }
}

// Nothing is added any more: from now on the client has to take what there is. With the mutex held.
static void end(struct nib_exchange *exchange)
{
    exchange->ended = true;
    if (exchange->connection)
        nib_deadline_send(exchange->deadline, exchange->body.size - exchange->taken);
}

// A whole answer that memory ran out for becomes an empty 500. A stream breaks off, also when its client lets it pile up.
static void put(struct nib_exchange *exchange, const char *bytes, size_t size)
{
    if (exchange->ended || !exchange->connection)
        return;
    bool late = exchange->streaming && exchange->body.size - exchange->taken > MOST_BACKLOG;
    if (!late && !nib_bytes_append(&exchange->body, bytes, size, NULL))
        return;
    exchange->broken = true;
    if (!exchange->streaming)
        exchange->status = 500;
    if (exchange->cancel_work)
        exchange->cancel_work(exchange->work);
    end(exchange);
}

void nib_exchange_answer_text(struct nib_exchange *exchange, unsigned status, const char *content_type,
                              const char *bytes, size_t size)
{
    pthread_mutex_lock(&exchange->mutex);
    exchange->status = status;
    exchange->content_type = content_type;
    put(exchange, bytes, size);
    end(exchange);
    wake(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

void nib_exchange_answer(struct nib_exchange *exchange, unsigned status, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    static const char failed[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                                 "\"param\":null,\"code\":null}}";
    const char *body = text ? text : failed;
    nib_exchange_answer_text(exchange, text ? status : 500, "application/json", body, strlen(body));
    free(text);
    json_decref(json);
}

void nib_exchange_fail(struct nib_exchange *exchange, const struct nib_api_error *error)
{
    if (error->status == 429 || error->status == 503)
        exchange->retry_after = 1;
    nib_exchange_answer(exchange, error->status, nib_api_error_json(error));
}

void nib_exchange_begin_stream(struct nib_exchange *exchange)
{
    pthread_mutex_lock(&exchange->mutex);
    exchange->status = 200;
    exchange->content_type = "text/event-stream; charset=utf-8";
    exchange->streaming = true;
    wake(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

static void send_event(struct nib_exchange *exchange, const char *event, const char *data)
{
    pthread_mutex_lock(&exchange->mutex);
    if (event) {
        put(exchange, "event: ", 7);
        put(exchange, event, strlen(event));
        put(exchange, "\n", 1);
    }
    put(exchange, "data: ", 6);
    put(exchange, data, strlen(data));
    put(exchange, "\n\n", 2);
    wake(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

void nib_exchange_send(struct nib_exchange *exchange, const char *event, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    if (text)
        send_event(exchange, event, text);
    else
        nib_exchange_end(exchange);
    free(text);
    json_decref(json);
}

void nib_exchange_send_text(struct nib_exchange *exchange, const char *data)
{
    send_event(exchange, NULL, data);
}

void nib_exchange_end(struct nib_exchange *exchange)
{
    pthread_mutex_lock(&exchange->mutex);
    end(exchange);
    wake(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

static ssize_t read_stream(void *context, uint64_t position, char *out, size_t most)
{
    (void)position;
    struct nib_exchange *exchange = context;
    ssize_t result = 0;
    pthread_mutex_lock(&exchange->mutex);
    size_t left = exchange->body.size - exchange->taken;
    if (left > 0) {
        size_t size = left < most ? left : most;
        memcpy(out, exchange->body.data + exchange->taken, size);
        exchange->taken += size;
        if (exchange->taken > exchange->body.size / 2) { // so what moves is less than what was taken
            exchange->body.size -= exchange->taken;
            memmove(exchange->body.data, exchange->body.data + exchange->taken, exchange->body.size);
            exchange->taken = 0;
        }
        result = (ssize_t)size;
    } else if (exchange->ended) {
        result = exchange->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        exchange->suspended = true;
        MHD_suspend_connection(exchange->connection);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return result;
}

static void release_stream(void *context)
{
    nib_exchange_release(context);
}

static struct MHD_Response *make_response(struct nib_exchange *exchange)
{
    if (!exchange->streaming)
        return MHD_create_response_from_buffer(exchange->body.size, exchange->body.data ? exchange->body.data : "",
                                               MHD_RESPMEM_MUST_COPY);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, exchange, release_stream);
    if (response)
        nib_exchange_retain(exchange);
    return response;
}

int nib_exchange_respond(struct nib_exchange *exchange)
{
    pthread_mutex_lock(&exchange->mutex);
    if (!exchange->status) {
        exchange->suspended = true;
        MHD_suspend_connection(exchange->connection);
        pthread_mutex_unlock(&exchange->mutex);
        return MHD_YES;
    }
    struct MHD_Connection *connection = exchange->connection;
    unsigned status = exchange->status;
    struct MHD_Response *response = make_response(exchange);
    pthread_mutex_unlock(&exchange->mutex);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, exchange->content_type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Content-Security-Policy", PAGE_POLICY);
    if (exchange->streaming)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    if (exchange->retry_after) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", exchange->retry_after);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
    }
    if (exchange->allow)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, exchange->allow);
    if (exchange->last)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == 401)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    int result = (int)MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

void nib_exchange_hang_up(struct nib_exchange *exchange)
{
    pthread_mutex_lock(&exchange->mutex);
    exchange->connection = NULL;
    pthread_mutex_unlock(&exchange->mutex);
    if (exchange->cancel_work)
        exchange->cancel_work(exchange->work);
}
