// One streamed request to an OpenAI-compatible server, timed.
#ifndef NIB_CLI_LOAD_CLIENT_H
#define NIB_CLI_LOAD_CLIENT_H

#include <stdint.h>

#include "nibble/status.h"

struct load_server {
    char host[128], port[8];
    const char *api_key; // NULL: none
    char stop_bias[256]; // a "logit_bias" that keeps answers from ending early, or ""
};

// "http://HOST:PORT"; asks the server for its stop tokens.
nib_status load_server_open(struct load_server *server, const char *url, const char *api_key,
                            struct nib_error *err);

struct load_result {
    double first, last; // seconds from sending to the first and the last piece of text
    int64_t tokens;     // generated, as the server counts
};

// Completes a random prompt of `prompt` tokens, which begins like no other, with `output` tokens.
nib_status load_request(const struct load_server *server, int64_t prompt, int64_t output, uint64_t seed,
                        struct load_result *result, struct nib_error *err);

#endif
