#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "server/deadlines.h"
#include "server/departures.h"

#define HEADER_BYTES 32768 // of a request, with what answering takes
#define HTTP_THREADS 2

struct route {
    const char *path, *method; // a path that ends in a slash goes on with the model's name
    nib_endpoint serve;
    bool open; // without a key
};

static const struct route routes[] = {
    {"/health", "GET", nib_serve_health, true},
    {"/", "GET", nib_serve_page, true},
    {"/v1/models", "GET", nib_serve_models, false},
    {"/v1/models/", "GET", nib_serve_model, false},
    {"/metrics", "GET", nib_serve_metrics, false},
    {"/v1/chat/completions", "POST", nib_serve_chat, false},
    {"/v1/completions", "POST", nib_serve_completions, false},
    {"/v1/responses", "POST", nib_serve_responses, false},
    {"/tokenize", "POST", nib_serve_tokenize, false},
    {"/detokenize", "POST", nib_serve_detokenize, false},
};

// A request on its way in. The exchange is made when it is complete.
struct incoming {
    struct nib_server *server;
    const struct route *route; // NULL: `error` says why
    struct nib_exchange *exchange;
    struct nib_bytes body;
    struct nib_api_error error;
    double started; // seconds
    int socket;
    struct nib_deadline *deadline; // of the connection
    uint64_t watch;
    bool unread; // its body is larger than may be, and is not waited for
    bool served;
};

// ---- before the body ----

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

// Whether a host, with its port or without, is an address or this machine's own name: no other can be made to mean
// this machine for a while by those who own it.
static bool is_own_name(const char *host)
{
    char name[64];
    struct in6_addr address;
    bool bracket = *host == '[';
    size_t size = bracket ? strcspn(++host, "]") : strcspn(host, ":");
    if (size >= sizeof name)
        return false;
    memcpy(name, host, size);
    name[size] = 0;
    return strcasecmp(name, "localhost") == 0 || inet_pton(bracket ? AF_INET6 : AF_INET, name, &address) == 1;
}

// A page of another site must not use the server through its visitor's browser, also when the name of that site leads
// here. With API keys it could not anyway.
static bool page_may_ask(const struct nib_server *server, struct MHD_Connection *connection,
                         struct nib_api_error *error)
{
    const char *origin = header(connection, "Origin"), *host = header(connection, "Host");
    const char *authority = origin ? strstr(origin, "://") : NULL;
    if (!origin)
        return true;
    if (!authority || !host || strcasecmp(authority + 3, host) != 0)
        return nib_api_fail(error, 403, "foreign_origin", NULL, "Requests from pages of other sites are refused.");
    return !server->local || server->keys.count || is_own_name(host) ||
           nib_api_fail(error, 403, "foreign_origin", NULL,
                        "Without API keys, pages must call this server by its address or localhost, not %.80s.",
                        host);
}

static bool is_at(const struct route *route, const char *path)
{
    size_t size = strlen(route->path);
    return strcmp(route->path, path) == 0 ||
           (size > 1 && route->path[size - 1] == '/' && strncmp(route->path, path, size) == 0);
}

static const struct route *find_route(const struct nib_server *server, const char *path,
                                      struct nib_api_error *error)
{
    const char *model = server->options.model_name;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!is_at(&routes[i], path))
            continue;
        const char *name = routes[i].serve == nib_serve_model ? path + strlen(routes[i].path) : model;
        if (strcmp(name, model) == 0)
            return &routes[i];
        nib_api_fail(error, 404, "model_not_found", "model", "The model '%.100s' does not exist.", name);
        return NULL;
    }
    nib_api_fail(error, 404, "unknown_url", NULL, "There is nothing at %.200s.", path);
    return NULL;
}

static bool takes_method(const struct route *route, const char *path, const char *method,
                         struct nib_exchange *exchange, struct nib_api_error *error)
{
    bool reads = strcmp(route->method, "GET") == 0;
    if (strcmp(route->method, method) == 0 || (reads && strcmp(method, "HEAD") == 0))
        return true;
    exchange->allow = reads ? "GET, HEAD" : "POST";
    return nib_api_fail(error, 405, "method_not_allowed", NULL, "%.80s does not take %.20s.", path, method);
}

// What a request says of its body's size; when it does not, the largest that there may be.
static int64_t announced_body(const struct nib_server *server, struct MHD_Connection *connection)
{
    const char *length = header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length ? strtoll(length, NULL, 10) : server->options.max_body;
}

static bool body_may_come(const struct nib_server *server, struct MHD_Connection *connection,
                          struct nib_api_error *error)
{
    if (announced_body(server, connection) > server->options.max_body)
        return nib_api_fail(error, 413, "body_too_large", NULL, "A request may have %lld bytes.",
                            (long long)server->options.max_body);
    return true;
}

struct header_count {
    const char *name;
    int times;
};

static enum MHD_Result count_header(void *context, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct header_count *count = context;
    (void)kind;
    (void)value;
    count->times += strcasecmp(key, count->name) == 0;
    return MHD_YES;
}

static int times_given(struct MHD_Connection *connection, const char *name)
{
    struct header_count count = {.name = name};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, count_header, &count);
    return count.times;
}

// Where several headers say how long the body is, somebody between client and server may have believed another one.
static bool body_is_framed_once(struct MHD_Connection *connection, struct nib_api_error *error)
{
    int times = times_given(connection, MHD_HTTP_HEADER_CONTENT_LENGTH) +
                times_given(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    return times <= 1 || nib_api_fail(error, 400, "ambiguous_body", NULL,
                                      "Content-Length or Transfer-Encoding may be given once, and not both.");
}

// RFC 9112, section 3.2; only HTTP/1.0 knows requests without. libmicrohttpd can refuse them too, but with a web page.
static bool host_is_given_once(struct MHD_Connection *connection, const char *version, struct nib_api_error *error)
{
    int times = times_given(connection, MHD_HTTP_HEADER_HOST);
    return times == 1 || (times == 0 && strcmp(version, MHD_HTTP_VERSION_1_0) == 0) ||
           nib_api_fail(error, 400, "invalid_host", NULL, "A request in %.20s has one Host header, not %d.",
                        version, times);
}

static bool body_is_plain(struct MHD_Connection *connection, struct nib_api_error *error)
{
    const char *coding = header(connection, MHD_HTTP_HEADER_CONTENT_ENCODING);
    return !coding || strcasecmp(coding, "identity") == 0 ||
           nib_api_fail(error, 415, "unsupported_encoding", NULL, "A body in the encoding %.40s is not taken.",
                        coding);
}

static const struct route *admit(const struct nib_server *server, struct MHD_Connection *connection,
                                 struct nib_exchange *exchange, const char *path, const char *method,
                                 struct nib_api_error *error)
{
    const struct route *route = find_route(server, path, error);
    if (!route || !takes_method(route, path, method, exchange, error) ||
        !body_may_come(server, connection, error) || !body_is_plain(connection, error) ||
        !page_may_ask(server, connection, error))
        return NULL;
    if (route->open || nib_api_keys_accept(&server->keys, header(connection, MHD_HTTP_HEADER_AUTHORIZATION)))
        return route;
    nib_api_fail(error, 401, "invalid_api_key", NULL, "An API key is needed: Authorization: Bearer KEY.");
    return NULL;
}

static struct incoming *begin(struct nib_server *server, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version)
{
    struct incoming *incoming = calloc(1, sizeof *incoming);
    if (!incoming)
        return NULL;
    incoming->server = server;
    incoming->started = nib_clock();
    incoming->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    incoming->deadline = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    incoming->exchange = nib_exchange_create(connection, incoming->deadline);
    if (!incoming->exchange) {
        free(incoming);
        return NULL;
    }
    if (!body_is_framed_once(connection, &incoming->error))
        incoming->exchange->last = true;
    else if (host_is_given_once(connection, version, &incoming->error))
        incoming->route = admit(server, connection, incoming->exchange, path, method, &incoming->error);
    int64_t size = announced_body(server, connection), most = server->options.max_body;
    if (size > most) {
        incoming->unread = incoming->exchange->last = true;
        nib_deadline_linger(incoming->deadline);
    }
    nib_deadline_receive(incoming->deadline, (size_t)(size >= 0 && size < most ? size : most));
    atomic_fetch_add(&server->exchanges, 1);
    return incoming;
}

// ---- the body, and the answer ----

static void take_body(struct incoming *incoming, const char *bytes, size_t size)
{
    const struct nib_server *server = incoming->server;
    if (!incoming->route)
        return;
    if (incoming->body.size + size > (size_t)server->options.max_body)
        nib_api_fail(&incoming->error, 413, "body_too_large", NULL, "A request may have %lld bytes.",
                     (long long)server->options.max_body);
    else if (nib_bytes_append(&incoming->body, bytes, size, NULL))
        nib_api_fail(&incoming->error, 500, NULL, NULL, "out of memory");
    else
        return;
    incoming->route = NULL;
    nib_bytes_free(&incoming->body);
}

static void serve(struct incoming *incoming)
{
    struct nib_server *server = incoming->server;
    struct nib_text body = {incoming->body.data, incoming->body.size};
    incoming->served = true;
    nib_deadline_clear(incoming->deadline);
    if (!incoming->route) {
        nib_exchange_fail(incoming->exchange, &incoming->error);
        return;
    }
    incoming->route->serve(server, incoming->exchange, body);
    nib_bytes_free(&incoming->body);
    if (incoming->exchange->cancel_work)
        incoming->watch = nib_departures_watch(server->departures, incoming->socket, incoming->exchange);
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *upload, size_t *upload_size,
                              void **state)
{
    struct incoming *incoming = *state;
    if (!incoming) {
        *state = incoming = begin(context, connection, path, method, version);
        if (!incoming || !incoming->unread)
            return incoming ? MHD_YES : MHD_NO;
    } else if (*upload_size) {
        take_body(incoming, upload, *upload_size);
        *upload_size = 0;
        return MHD_YES;
    }
    if (!incoming->served)
        serve(incoming);
    return (enum MHD_Result)nib_exchange_respond(incoming->exchange);
}

static void log_request(const struct incoming *incoming)
{
    if (incoming->server->options.log_requests)
        fprintf(stderr, "nibble: %s %u %.3f s\n", incoming->route ? incoming->route->path : "-",
                incoming->exchange->status, nib_clock() - incoming->started);
}

static void completed(void *context, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode code)
{
    (void)connection;
    (void)code;
    struct nib_server *server = context;
    struct incoming *incoming = *state;
    if (!incoming)
        return;
    nib_departures_forget(server->departures, incoming->socket, incoming->watch);
    nib_metrics_request(&server->metrics, incoming->exchange->status);
    log_request(incoming);
    nib_exchange_hang_up(incoming->exchange);
    nib_exchange_release(incoming->exchange);
    nib_deadline_receive(incoming->deadline, 0); // for the next request
    nib_bytes_free(&incoming->body);
    free(incoming);
    *state = NULL;
    atomic_fetch_sub(&server->exchanges, 1);
}

// A connection begins, with the time for a request's header, or is about to be closed.
static void connected(void *context, struct MHD_Connection *connection, void **deadline,
                      enum MHD_ConnectionNotificationCode code)
{
    const struct nib_server *server = context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *deadline = nib_deadline_add(
            server->deadlines, MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
        nib_deadline_receive(*deadline, 0);
    } else {
        nib_deadline_remove(*deadline);
    }
}

// ---- listening ----

static int open_socket(const struct nib_server_options *options, struct sockaddr_storage *address,
                       struct nib_error *err)
{
    const char *host = options->host ? options->host : "127.0.0.1";
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", options->port);
    int problem = getaddrinfo(host, port, &hints, &found);
    if (problem) {
        nib_fail(err, NIB_ERR_ARGUMENT, "%s: %s", host, gai_strerror(problem));
        return -1;
    }
    int yes = 1, listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof *address;
    bool open = listener >= 0 && !setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) &&
                !bind(listener, found->ai_addr, found->ai_addrlen) && !listen(listener, 128) &&
                !getsockname(listener, (struct sockaddr *)address, &size);
    freeaddrinfo(found);
    if (open)
        return listener;
    nib_fail(err, NIB_ERR_IO, "cannot listen on %s, port %s: %s", host, port, strerror(errno));
    if (listener >= 0)
        close(listener);
    return -1;
}

static bool is_loopback(const struct sockaddr_storage *address)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    return address->ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
                                          : ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static void write_url(struct nib_server *server, const struct sockaddr_storage *address)
{
    char host[64], port[16];
    bool v6 = address->ss_family == AF_INET6;
    socklen_t size = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    getnameinfo((const struct sockaddr *)address, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(server->url, sizeof server->url, v6 ? "%s://[%s]:%s" : "%s://%s:%s",
             server->certificate ? "https" : "http", host, port);
}

static void be_quiet(void *context, const char *format, va_list arguments)
{
    (void)context;
    (void)format;
    (void)arguments;
}

nib_status nib_http_start(struct nib_server *server, struct nib_error *err)
{
    const struct nib_server_options *options = &server->options;
    struct sockaddr_storage address = {0};
    int listener = open_socket(options, &address, err);
    if (listener < 0)
        return err->status;
    write_url(server, &address);
    server->local = is_loopback(&address);
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, server->certificate},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, server->key},
                                   {MHD_OPTION_END, 0, NULL}};
    if (server->certificate)
        flags |= MHD_USE_TLS;
    else
        tls[0].option = MHD_OPTION_END;
    server->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, server, MHD_OPTION_EXTERNAL_LOGGER, be_quiet, NULL, MHD_OPTION_LISTEN_SOCKET,
        listener, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS, MHD_OPTION_NOTIFY_COMPLETED, completed,
        server, MHD_OPTION_NOTIFY_CONNECTION, connected, server, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_CONNECTION_LIMIT, (unsigned)options->max_connections,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)options->max_connections_per_client,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)options->timeout, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (server->daemon)
        return NIB_OK;
    close(listener);
    return nib_fail(err, NIB_ERR_IO, "the HTTP server cannot be started%s",
                    server->certificate ? "; are certificate and key PEM files that belong together?" : "");
}

// MHD_quiesce_daemon (of libmicrohttpd 0.9.75) ends the process when one of its threads wakes at that moment: both take the
// listening socket out of the thread's epoll. So the socket is closed beneath them; what takes its number is never ready.
void nib_http_refuse(struct nib_server *server)
{
    int listener = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_LISTEN_FD)->listen_fd;
    int nothing = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (nothing < 0)
        return; // requests are still refused, one by one
    dup3(nothing, listener, O_CLOEXEC);
    close(nothing);
}

void nib_http_stop(struct nib_server *server)
{
    MHD_stop_daemon(server->daemon);
}
