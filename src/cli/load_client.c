#include "cli/load_client.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/progress.h"
#include "nibble/tokenizer.h"

#define RANDOM_IDS 4000 // prompts are made of the first ids, which every vocabulary has

static int connect_to(const struct load_server *server)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(server->host, server->port, &hints, &found))
        return -1;
    int connection = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection >= 0 && connect(connection, found->ai_addr, found->ai_addrlen)) {
        close(connection);
        connection = -1;
    }
    freeaddrinfo(found);
    return connection;
}

static nib_status append(struct nib_bytes *out, const char *text)
{
    return nib_bytes_append(out, text, strlen(text), NULL);
}

// HTTP 1.0, so that the answer comes as it is and ends with the connection.
static nib_status send_request(const struct load_server *server, int connection, const char *path,
                               const struct nib_bytes *body, struct nib_error *err)
{
    char head[1024];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s%s%s\r\n",
             path, server->host, body->size, server->api_key ? "Authorization: Bearer " : "",
             server->api_key ? server->api_key : "", server->api_key ? "\r\n" : "");
    struct nib_bytes all = {0};
    nib_status status = append(&all, head);
    if (!status)
        status = nib_bytes_append(&all, body->data, body->size, NULL);
    for (size_t sent = 0; !status && sent < all.size;) {
        ssize_t size = send(connection, all.data + sent, all.size - sent, MSG_NOSIGNAL);
        if (size <= 0)
            status = nib_fail(err, NIB_ERR_IO, "%s:%s does not take the request", server->host, server->port);
        else
            sent += (size_t)size;
    }
    nib_bytes_free(&all);
    return status;
}

// Reads until the connection ends, calling on_line for each whole line of the answer.
static nib_status read_lines(int connection, void (*on_line)(void *context, const char *line), void *context)
{
    struct nib_bytes rest = {0};
    char chunk[16384];
    ssize_t size;
    nib_status status = NIB_OK;
    while (!status && (size = recv(connection, chunk, sizeof chunk, 0)) > 0) {
        status = nib_bytes_append(&rest, chunk, (size_t)size, NULL);
        size_t from = 0;
        for (char *end; !status && (end = memchr(rest.data + from, '\n', rest.size - from));) {
            *end = 0;
            on_line(context, rest.data + from);
            from = (size_t)(end - rest.data) + 1;
        }
        if (!status) {
            memmove(rest.data, rest.data + from, rest.size - from);
            rest.size -= from;
        }
    }
    if (!status && rest.size && !nib_bytes_append(&rest, "", 1, NULL))
        on_line(context, rest.data);
    nib_bytes_free(&rest);
    return status;
}

static nib_status exchange(const struct load_server *server, const char *path, const struct nib_bytes *body,
                           void (*on_line)(void *, const char *), void *context, struct nib_error *err)
{
    int connection = connect_to(server);
    if (connection < 0)
        return nib_fail(err, NIB_ERR_IO, "cannot connect to %s:%s", server->host, server->port);
    nib_status status = send_request(server, connection, path, body, err);
    if (!status)
        status = read_lines(connection, on_line, context);
    close(connection);
    return status;
}

// ---- the server's stop tokens ----

static void take_stops(void *context, const char *line)
{
    char *bias = context;
    const char *list = strstr(line, "\"tokens\":[");
    size_t used = 0;
    if (!list)
        return;
    used += (size_t)snprintf(bias, 256, ",\"logit_bias\":{");
    for (const char *p = list + 10; *p && *p != ']' && used < 200;) {
        char *end;
        long id = strtol(p, &end, 10);
        used += (size_t)snprintf(bias + used, 256 - used, "%s\"%ld\":-100", p == list + 10 ? "" : ",", id);
        p = *end == ',' ? end + 1 : end;
    }
    snprintf(bias + used, 256 - used, "}");
}

nib_status load_server_open(struct load_server *server, const char *url, const char *api_key,
                            struct nib_error *err)
{
    *server = (struct load_server){.api_key = api_key};
    if (sscanf(url, "http://%127[^:/]:%7[0-9]", server->host, server->port) != 2)
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s is not of the form http://HOST:PORT", url);
    struct nib_bytes body = {0};
    nib_status status = append(&body, "{\"prompt\":\"<|return|><|call|><|endoftext|>\"}");
    if (!status)
        status = exchange(server, "/tokenize", &body, take_stops, server->stop_bias, err);
    nib_bytes_free(&body);
    return status;
}

// ---- a request ----

struct watch {
    struct load_result *result;
    double sent;
    int code; // HTTP
    bool done;
};

static void on_line(void *context, const char *line)
{
    struct watch *watch = context;
    if (!watch->code && sscanf(line, "HTTP/%*s %d", &watch->code) == 1)
        return;
    const char *tokens = strstr(line, "\"completion_tokens\":");
    if (tokens)
        watch->result->tokens = strtoll(tokens + 20, NULL, 10);
    watch->done |= strncmp(line, "data: [DONE]", 12) == 0;
    if (!strstr(line, "\"text\":\"") || strstr(line, "\"text\":\"\""))
        return;
    watch->result->last = nib_seconds() - watch->sent;
    if (watch->result->first < 0)
        watch->result->first = watch->result->last;
}

static nib_status write_body(const struct load_server *server, int64_t prompt, int64_t output, uint64_t seed,
                             struct nib_bytes *body)
{
    char text[512];
    nib_status status = append(body, "{\"prompt\":[");
    for (int64_t i = 0; i < prompt && !status; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        snprintf(text, sizeof text, "%s%d", i ? "," : "", (int)((seed >> 33) % RANDOM_IDS));
        status = append(body, text);
    }
    snprintf(
        text, sizeof text,
        "],\"max_tokens\":%lld,\"temperature\":1,\"stream\":true,\"stream_options\":{\"include_usage\":true}%s}",
        (long long)output, server->stop_bias);
    return status ? status : append(body, text);
}

nib_status load_request(const struct load_server *server, int64_t prompt, int64_t output, uint64_t seed,
                        struct load_result *result, struct nib_error *err)
{
    struct nib_bytes body = {0};
    *result = (struct load_result){.first = -1};
    nib_status status = write_body(server, prompt, output, seed, &body);
    struct watch watch = {.result = result, .sent = nib_seconds()};
    if (!status)
        status = exchange(server, "/v1/completions", &body, on_line, &watch, err);
    nib_bytes_free(&body);
    if (!status && (watch.code != 200 || !watch.done || result->first < 0))
        status = nib_fail(err, NIB_ERR_IO, "%s:%s answers with status %d%s", server->host, server->port,
                          watch.code, watch.code == 200 ? ", but not to the end" : "");
    return status;
}
