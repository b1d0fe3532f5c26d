#include "server/response_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Kept as text, which is exactly as large as it looks.
struct kept {
    struct kept *next; // younger
    size_t size;
    char *items;
    char id[64];
};

struct nib_response_store {
    pthread_mutex_t mutex;
    struct kept *oldest, **end;
    size_t most, used;
};

struct nib_response_store *nib_response_store_create(size_t most)
{
    struct nib_response_store *store = calloc(1, sizeof *store);
    if (!store)
        return NULL;
    pthread_mutex_init(&store->mutex, NULL);
    store->end = &store->oldest;
    store->most = most;
    return store;
}

static void drop_oldest(struct nib_response_store *store)
{
    struct kept *oldest = store->oldest;
    store->oldest = oldest->next;
    if (!store->oldest)
        store->end = &store->oldest;
    store->used -= oldest->size;
    free(oldest->items);
    free(oldest);
}

void nib_response_store_free(struct nib_response_store *store)
{
    if (!store)
        return;
    while (store->oldest)
        drop_oldest(store);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

void nib_response_store_put(struct nib_response_store *store, const char *id, const json_t *items)
{
    struct kept *kept = calloc(1, sizeof *kept);
    char *text = json_dumps(items, JSON_COMPACT);
    size_t size = text ? strlen(text) + sizeof *kept : 0;
    if (!kept || !text || size > store->most || strlen(id) >= sizeof kept->id) {
        free(kept);
        free(text);
        return;
    }
    kept->size = size;
    kept->items = text;
    strcpy(kept->id, id);
    pthread_mutex_lock(&store->mutex);
    while (store->used + size > store->most)
        drop_oldest(store);
    *store->end = kept;
    store->end = &kept->next;
    store->used += size;
    pthread_mutex_unlock(&store->mutex);
}

json_t *nib_response_store_get(struct nib_response_store *store, const char *id)
{
    json_t *items = NULL;
    pthread_mutex_lock(&store->mutex);
    for (const struct kept *kept = store->oldest; kept && !items; kept = kept->next)
        if (strcmp(kept->id, id) == 0)
            items = json_loads(kept->items, JSON_ALLOW_NUL, NULL);
    pthread_mutex_unlock(&store->mutex);
    return items;
}
