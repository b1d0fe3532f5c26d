// The paged cache: which pages belong to which sequence. Caches whose layers look equally far back form a group with one
// page table; in a windowed group, pages that have slid out of every window are returned while the sequence lives.
#ifndef NIB_ENGINE_KV_POOL_H
#define NIB_ENGINE_KV_POOL_H

#include "model/model.h"
#include "nibble/engine.h"

#define NIB_PAGE_TOKENS 32 // tokens a page
#define NIB_MAX_GROUPS NIB_CACHE_GROUPS

struct nib_kv_group {
    int64_t window;     // 0: all tokens are kept
    int64_t layers;     // whose rows lie here
    uint64_t row_bytes; // of one token in all caches of the group
    int32_t most_live;  // pages that one sequence holds at most
    int32_t n_pages;
    int32_t n_free;      // pages to be had: on the list, or held by the prefix cache alone
    int32_t n_listed;    // that nobody knows anything about
    int32_t *free_pages; /* [n_pages], the first n_listed */
    int32_t *holders;    /* [n_pages] how many sequences have the page */
};

struct nib_prefix_cache;

struct nib_kv_pool {
    int n_groups;
    struct nib_kv_group groups[NIB_MAX_GROUPS];
    int32_t table_width;      // pages that a sequence's table can name
    struct nib_cache *caches; /* [n_caches] one per cache spec of the model */
    int n_caches;
    struct nib_prefix_cache *prefix; // NULL: pages are forgotten when they are given back
};

// A sequence's pages, one table per group; -1 where there is none.
struct nib_page_table {
    int32_t length;                     // tokens in the cache
    int32_t first_page[NIB_MAX_GROUPS]; // pages before it have been returned
    int32_t end_page[NIB_MAX_GROUPS];   // pages from it on do not exist yet
    int32_t *pages;                     /* [n_groups, table_width] */
};

// Sorts the model's caches into groups and sizes them; allocates nothing. `context` tokens a sequence at most,
// `cache_tokens` all together, at most `max_step_tokens` of them appended at once.
nib_status nib_kv_pool_plan(struct nib_kv_pool *pool, const struct nib_model_shape *shape, size_t element_bytes,
                            int32_t context, int64_t cache_tokens, int32_t max_sequences, int32_t max_step_tokens,
                            struct nib_error *err);
uint64_t nib_kv_pool_bytes(const struct nib_kv_pool *pool);
nib_status nib_kv_pool_alloc(struct nib_kv_pool *pool, const struct nib_model_shape *shape,
                             const struct nib_ops *ops, struct nib_device *device, struct nib_error *err);
void nib_kv_pool_free(struct nib_kv_pool *pool, const struct nib_ops *ops, struct nib_device *device);

nib_status nib_page_table_init(struct nib_page_table *table, const struct nib_kv_pool *pool,
                               struct nib_error *err);

// How many pages of group `g` are missing for `n` more tokens.
int32_t nib_page_table_wanted(const struct nib_page_table *table, int g, int32_t n);
// The same when they come in steps, between which pages slide out of the window.
int32_t nib_page_table_wanted_live(const struct nib_page_table *table, const struct nib_kv_pool *pool, int g,
                                   int32_t n);
// Pages for `n` more tokens in every group: all of them, or none and false.
bool nib_page_table_reserve(struct nib_page_table *table, struct nib_kv_pool *pool, int32_t n);
// Gives back pages reserved beyond `length`.
void nib_page_table_unreserve(struct nib_page_table *table, struct nib_kv_pool *pool);
// The reserved tokens now exist; pages behind the windows are returned.
void nib_page_table_advance(struct nib_page_table *table, struct nib_kv_pool *pool, int32_t n);
void nib_page_table_release(struct nib_page_table *table, struct nib_kv_pool *pool);

#endif
