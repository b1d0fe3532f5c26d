// Pages of the KV cache found again by what they hold. A page of NIB_PAGE_TOKENS tokens is known by its tokens and the
// page before it, compared in full, so no two prefixes can be taken for one another. Pages that no sequence holds stay
// until somebody needs room; then the one unused for longest goes, the later pages of a prefix before the earlier.
#ifndef NIB_ENGINE_PREFIX_CACHE_H
#define NIB_ENGINE_PREFIX_CACHE_H

#include "engine/kv_pool.h"

struct nib_prefix_cache;

nib_status nib_prefix_cache_create(const struct nib_kv_pool *pool, struct nib_prefix_cache **cache,
                                   struct nib_error *err);
void nib_prefix_cache_free(struct nib_prefix_cache *cache); // NULL is fine

// How far a sequence's tokens are known to the cache.
struct nib_prefix_trail {
    uint64_t last; // number of its last whole page, 0: none
    int32_t n_open;
    int32_t open[NIB_PAGE_TOKENS]; /* [n_open] tokens behind it */
};

// Gives a new sequence the pages of the longest prefix of `tokens` there is, but not all tokens (the last one's logits
// are wanted). How many tokens that were.
int32_t nib_prefix_cache_attach(struct nib_kv_pool *pool, struct nib_page_table *table,
                                struct nib_prefix_trail *trail, const int32_t *tokens /* [n] */, int32_t n);

// `n` more tokens have been computed, in pages that the table has reserved and not yet advanced over.
void nib_prefix_cache_note(struct nib_kv_pool *pool, const struct nib_page_table *table,
                           struct nib_prefix_trail *trail, const int32_t *tokens /* [n] */, int32_t n);

// Frees the page of group `g` that nobody holds and that was unused for longest. There must be one.
int32_t nib_prefix_cache_evict(struct nib_kv_pool *pool, int g);

bool nib_prefix_cache_holds(const struct nib_prefix_cache *cache, int g, int32_t page);
// A page was let go by its last sequence.
void nib_prefix_cache_rest(struct nib_prefix_cache *cache, int g, int32_t page);

#endif
