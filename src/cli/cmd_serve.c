// nibble serve: the model in a checkpoint folder as an OpenAI-compatible server.
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/path.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/session.h"
#include "server/server.h"

struct serve {
    const char *model;
    struct session_options session;
    struct nib_server_options server;
    int64_t port, grace;
};

// While the server stops, a second signal cuts answers off.
struct stopping {
    struct nib_server *server;
    const sigset_t *signals;
    atomic_bool done;
};

static void *hurry_on_signal(void *context)
{
    struct stopping *stopping = context;
    const struct timespec pause = {0, 100 * 1000 * 1000};
    while (!atomic_load(&stopping->done))
        if (sigtimedwait(stopping->signals, NULL, &pause) > 0)
            nib_server_hurry(stopping->server);
    return NULL;
}

static void serve_until_signal(struct nib_server *server, const sigset_t *signals, double grace)
{
    int number;
    fprintf(stderr, "nibble: serving at %s\n", nib_server_url(server));
    sigwait(signals, &number);
    fprintf(stderr, "nibble: stopping; answers under way have %.0f s\n", grace);
    struct stopping stopping = {.server = server, .signals = signals};
    pthread_t second;
    bool watching = !pthread_create(&second, NULL, hurry_on_signal, &stopping);
    nib_server_stop(server, grace);
    atomic_store(&stopping.done, true);
    if (watching)
        pthread_join(second, NULL);
    nib_server_free(server);
}

static nib_status serve(struct serve *s, sigset_t *signals, struct nib_error *err)
{
    struct session session;
    struct nib_engine_backend *engine = NULL;
    struct nib_backend backend;
    struct nib_server *server;
    nib_status status = session_open(&session, s->model, &s->session, err);
    if (status)
        return status;
    if (!session.chat)
        fprintf(stderr, "nibble: %s; this model only completes\n", session.no_chat.message);
    s->server.stop_tokens = session.stop_tokens;
    s->server.n_stop_tokens = session.n_stop_tokens;
    status = session_sampling(&session, &s->server.sampling, &s->server.repetition_penalty, err);
    if (!status)
        status = nib_engine_backend_open(session.engine, &engine, &backend, err);
    if (!status)
        status = nib_server_start(&s->server, &backend, session.chat, session.tokenizer, &server, err);
    if (!status)
        serve_until_signal(server, signals, (double)s->grace);
    nib_engine_backend_close(engine);
    session_close(&session);
    return status;
}

// The last part of a path, slashes at its end or not; of the folder itself where that is "." or "..".
static const char *folder_name(const char *path, char *name /* [PATH_MAX] */)
{
    snprintf(name, PATH_MAX, "%s", path);
    for (size_t end = strlen(name); end > 1 && name[end - 1] == '/'; end--)
        name[end - 1] = 0;
    const char *base = nib_path_base(name);
    bool dots = strcmp(base, ".") == 0 || strcmp(base, "..") == 0;
    return dots && realpath(path, name) ? nib_path_base(name) : base;
}

// A day that there is, written as in 2025-06-28.
static bool is_date(const char *text)
{
    struct tm day = {0};
    char again[16];
    return strptime(text, "%Y-%m-%d", &day) && timegm(&day) != -1 &&
           strftime(again, sizeof again, "%Y-%m-%d", &day) && strcmp(again, text) == 0;
}

int cmd_serve(int argc, char **argv)
{
    struct serve s = {.port = 8000,
                      .grace = 30,
                      .server = {.queue = 64,
                                 .max_body = 16 << 20,
                                 .max_connections = 512,
                                 .max_connections_per_client = 128,
                                 .timeout = 60}};
    s.session = session_defaults();
    s.session.print_plan = true;
    s.session.max_sequences = 8;
    struct nib_server_options *o = &s.server;
    bool no_prefix_cache = false;
    const struct nib_option options[] = {
        {"--host", NIB_OPTION_STRING, &o->host, "ADDRESS", "to listen on; without it only this machine", 0, 0},
        {"--port", NIB_OPTION_INT, &s.port, "N", "0: any that is free", 0, 65535},
        {"--name", NIB_OPTION_STRING, &o->model_name, "NAME", "of the model; without it the folder's", 0, 0},
        {"--parallel", NIB_OPTION_INT, &s.session.max_sequences, "N", "answers at the same time", 1, 1024},
        {"--queue", NIB_OPTION_INT, &o->queue, "N", "answers that may wait; more get a 429", 0, 1 << 20},
        option_context(&s.session.context),
        {"--cache-tokens", NIB_OPTION_INT, &s.session.cache_tokens, "N",
         "of all answers together; 0: one context; -1: what memory is left for", -1, (double)(1LL << 36)},
        {"--no-prefix-cache", NIB_OPTION_FLAG, &no_prefix_cache, NULL, "read every prompt from its beginning", 0,
         0},
        {"--step-tokens", NIB_OPTION_INT, &s.session.max_step_tokens, "N",
         "computed at once; smaller keeps running answers smooth; 0: 512", 0, 65536},
        {"--max-tokens", NIB_OPTION_INT, &o->max_tokens, "N",
         "of an answer whose request does not say; 0: what the context holds", 0, 1 << 30},
        {"--api-key-file", NIB_OPTION_STRING, &o->api_key_file, "FILE", "keys that are let in, one a line", 0, 0},
        {"--tls-cert", NIB_OPTION_STRING, &o->tls_certificate, "FILE", "PEM; serves HTTPS", 0, 0},
        {"--tls-key", NIB_OPTION_STRING, &o->tls_key, "FILE", "PEM", 0, 0},
        {"--max-body", NIB_OPTION_INT, &o->max_body, "BYTES", "of a request", 1024, 1 << 30},
        {"--max-connections", NIB_OPTION_INT, &o->max_connections, "N", "open at the same time", 1, 65536},
        {"--max-connections-per-client", NIB_OPTION_INT, &o->max_connections_per_client, "N", "by address", 1,
         65536},
        {"--timeout", NIB_OPTION_INT, &o->timeout, "SECONDS", "that a connection may be silent", 1, 3600},
        {"--grace", NIB_OPTION_INT, &s.grace, "SECONDS", "for answers under way when asked to stop", 0, 86400},
        {"--date", NIB_OPTION_STRING, &o->date, "YYYY-MM-DD", "that prompts say; without it today", 0, 0},
        {"--log", NIB_OPTION_FLAG, &o->log_requests, NULL, "a line for each request; never what was said", 0, 0},
        option_device(&s.session.device),
        option_deterministic(&s.session.deterministic),
        option_threads(&s.session.threads),
        {"--force", NIB_OPTION_FLAG, &s.session.force, NULL, "run even if the memory does not suffice", 0, 0},
    };
    const struct nib_usage usage = {
        .command = "nibble serve",
        .arguments = "MODEL",
        .summary = "Serves the model in a checkpoint folder over HTTP with OpenAI's API (docs/server.md), until\n"
                   "SIGTERM or Ctrl-C; a second one cuts off the answers still under way.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = &s.model,
        .min_positionals = 1,
        .n_positionals = 1,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    const char *wrong = o->date && !is_date(o->date)       ? "--date takes a day as YYYY-MM-DD"
                        : o->model_name && !*o->model_name ? "--name takes a name that is not empty"
                                                           : NULL;
    if (wrong) {
        fprintf(stderr, "nibble: %s; nibble serve --help lists the options\n", wrong);
        return 2;
    }
    s.session.prefix_cache = !no_prefix_cache;
    o->port = (int)s.port;
    char name[PATH_MAX];
    if (!o->model_name)
        o->model_name = folder_name(s.model, name);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); // in every thread; they are waited for
    signal(SIGPIPE, SIG_IGN);
    struct nib_error err;
    return serve(&s, &signals, &err) ? report_error(&err) : 0;
}
