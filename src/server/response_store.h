// Conversations of past responses, for previous_response_id. Bounded: the oldest go first.
#ifndef NIB_SERVER_RESPONSE_STORE_H
#define NIB_SERVER_RESPONSE_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct nib_response_store;

// NULL when memory is out.
struct nib_response_store *nib_response_store_create(size_t most /* bytes of JSON */);
void nib_response_store_free(struct nib_response_store *store); // NULL is fine

// Keeps a copy of the items that led to and came of a response. What does not fit is not kept.
void nib_response_store_put(struct nib_response_store *store, const char *id, const json_t *items);
// A copy, or NULL.
json_t *nib_response_store_get(struct nib_response_store *store, const char *id);

#endif
