#include "server/server.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/error.h"
#include "base/map.h"
#include "server/deadlines.h"
#include "server/departures.h"
#include "server/http.h"
#include "server/response_store.h"

#define STORE_BYTES (64u << 20) // of past responses
#define DRAIN_SECONDS 5         // for the last bytes of answers, once all are generated

static void between_steps(void *context)
{
    struct nib_server *server = context;
    nib_departures_check(server->departures);
}

static nib_status read_file(const char *path, char **text, struct nib_error *err)
{
    struct nib_map map;
    nib_status status = nib_map_open(&map, path, err);
    if (status)
        return status;
    *text = calloc(1, map.size + 1);
    if (*text)
        memcpy(*text, map.data, map.size);
    else
        status = nib_fail_memory(err, map.size, path);
    nib_map_close(&map);
    return status;
}

static nib_status read_files(struct nib_server *server, struct nib_error *err)
{
    const struct nib_server_options *options = &server->options;
    nib_status status = NIB_OK;
    if (options->api_key_file)
        status = nib_api_keys_read(&server->keys, options->api_key_file, err);
    if (!status && !options->tls_certificate != !options->tls_key)
        status = nib_fail(err, NIB_ERR_ARGUMENT, "TLS needs both a certificate and its key");
    if (!status && options->tls_certificate) {
        status = read_file(options->tls_certificate, &server->certificate, err);
        if (!status)
            status = read_file(options->tls_key, &server->key, err);
    }
    return status;
}

void nib_server_free(struct nib_server *server)
{
    nib_scheduler_free(server->scheduler);
    nib_departures_free(server->departures);
    nib_deadlines_free(server->deadlines);
    nib_metrics_destroy(&server->metrics);
    nib_api_keys_free(&server->keys);
    nib_mask_vocabulary_free(server->vocabulary);
    nib_response_store_free(server->responses);
    free(server->certificate);
    free(server->key);
    free(server);
}

nib_status nib_server_start(const struct nib_server_options *options, const struct nib_backend *backend,
                            const struct nib_chat *chat, const struct nib_tokenizer *tokenizer,
                            struct nib_server **server, struct nib_error *err)
{
    struct nib_server *s = calloc(1, sizeof *s);
    if (!s)
        return nib_fail_memory(err, sizeof *s, "the server");
    s->options = *options;
    s->backend = *backend;
    s->chat = chat;
    s->tokenizer = tokenizer;
    s->started = (long)time(NULL);
    nib_metrics_init(&s->metrics);
    struct nib_scheduler_options scheduler = {.backend = *backend,
                                              .metrics = &s->metrics,
                                              .queue = options->queue,
                                              .between_steps = between_steps,
                                              .context = s};
    nib_status status = read_files(s, err);
    if (!status)
        status = nib_mask_vocabulary_create(tokenizer, backend->vocab, &s->vocabulary, err);
    s->responses = nib_response_store_create(STORE_BYTES);
    if (!status && !s->responses)
        status = nib_fail_memory(err, STORE_BYTES, "past responses");
    if (!status)
        status = nib_departures_create(&s->departures, err);
    if (!status)
        status = nib_deadlines_create((double)options->timeout, &s->deadlines, err);
    if (!status)
        status = nib_scheduler_start(&scheduler, &s->scheduler, err);
    if (!status && (status = nib_http_start(s, err)))
        nib_scheduler_stop(s->scheduler, 0);
    if (status) {
        nib_server_free(s);
        return status;
    }
    *server = s;
    return NIB_OK;
}

const char *nib_server_url(const struct nib_server *server)
{
    return server->url;
}

void nib_server_hurry(struct nib_server *server)
{
    nib_scheduler_hurry(server->scheduler);
}

void nib_server_stop(struct nib_server *server, double grace)
{
    nib_http_refuse(server);
    nib_scheduler_stop(server->scheduler, grace);
    // Every answer has its last byte now; what remains is to send them.
    struct timespec pause = {0, 10 * 1000 * 1000};
    for (int i = 0; i < DRAIN_SECONDS * 100 && atomic_load(&server->exchanges) > 0; i++)
        nanosleep(&pause, NULL);
    nib_http_stop(server);
}

struct nib_unique_id nib_make_id(const char *prefix)
{
    unsigned char random[12] = {0};
    struct nib_unique_id id;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        memcpy(random, &now.tv_nsec, sizeof now.tv_nsec);
    }
    int used = snprintf(id.text, sizeof id.text - 24, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(id.text + used + 2 * i, 3, "%02x", random[i]);
    return id;
}

static pthread_once_t schemas_once = PTHREAD_ONCE_INIT;
static json_t *any_object, *no_arguments; // never freed

static void make_schemas(void)
{
    any_object = json_pack("{s:s}", "type", "object");
    no_arguments = json_pack("{s:s, s:{}, s:b}", "type", "object", "properties", "additionalProperties", 0);
}

const json_t *nib_any_object(void)
{
    pthread_once(&schemas_once, make_schemas);
    return any_object;
}

const json_t *nib_no_arguments(void)
{
    pthread_once(&schemas_once, make_schemas);
    return no_arguments;
}

// Whole numbers that were read as reals are integers again, as far as reals tell all of them apart.
static json_t *with_integers(json_t *json)
{
    const char *key;
    json_t *value;
    size_t i;
    double real = json_real_value(json);
    if (json_is_real(json) && fabs(real) < 0x1p53 && real == floor(real)) {
        json_decref(json);
        return json_integer((json_int_t)real);
    }
    json_object_foreach(json, key, value) json_object_set_new(json, key, with_integers(json_incref(value)));
    json_array_foreach(json, i, value) json_array_set_new(json, i, with_integers(json_incref(value)));
    return json;
}

json_t *nib_parse_body(struct nib_text body, struct nib_api_error *error)
{
    json_error_t where;
    if (!body.size) {
        nib_api_fail(error, 400, "invalid_json", NULL, "The request has no body.");
        return NULL;
    }
    size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_t *json = json_loadb(body.bytes, body.size, flags, &where);
    if (!json &&
        json_error_code(&where) == json_error_numeric_overflow) // as 2^64 - 1, the "maximum" of many a schema
        json = with_integers(json_loadb(body.bytes, body.size, flags | JSON_DECODE_INT_AS_REAL, &where));
    if (!json)
        nib_api_fail(error, 400, "invalid_json", NULL, "The body is not JSON: %s (line %d, column %d).",
                     where.text, where.line, where.column);
    return json;
}
