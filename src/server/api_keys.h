// The keys that clients must show.
#ifndef NIB_SERVER_API_KEYS_H
#define NIB_SERVER_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "nibble/status.h"

struct nib_api_keys {
    char **items; /* [count] */
    size_t count;
};

// One key a line; empty lines and lines that begin with # do not count. NIB_ERR_FORMAT when there is none at all.
nib_status nib_api_keys_read(struct nib_api_keys *keys, const char *path, struct nib_error *err);
void nib_api_keys_free(struct nib_api_keys *keys);

// Whether an Authorization header ("Bearer KEY") shows one of them. Always true when there are none. Takes the same
// time whichever bytes are wrong.
bool nib_api_keys_accept(const struct nib_api_keys *keys, const char *authorization);

#endif
