#include "engine/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

// A page's worth of tokens. Groups with a window lose their page first; the block then still leads to later ones.
struct block {
    uint64_t number, parent; // numbers are never used again; parent 0: it begins a prefix
    uint64_t used;           // when
    int32_t tokens[NIB_PAGE_TOKENS];
    int32_t pages[NIB_MAX_GROUPS]; // -1: none
    int32_t next;                  // in its bucket, or on the list of unused blocks; -1: none
};

struct nib_prefix_cache {
    struct block *blocks; /* [n_blocks] */
    int32_t n_blocks, unused;
    int32_t *buckets; /* [n_buckets] */
    uint32_t n_buckets;
    int32_t *block_of[NIB_MAX_GROUPS]; /* [n_pages] by page, -1: none */
    uint64_t last_number, clock;
};

nib_status nib_prefix_cache_create(const struct nib_kv_pool *pool, struct nib_prefix_cache **cache,
                                   struct nib_error *err)
{
    struct nib_prefix_cache *c = calloc(1, sizeof *c);
    if (!c)
        return nib_fail_memory(err, sizeof *c, "the prefix cache");
    bool failed = false;
    int32_t most = 0;
    for (int g = 0; g < pool->n_groups; g++) {
        int32_t n_pages = pool->groups[g].n_pages;
        c->block_of[g] = malloc((size_t)n_pages * sizeof(int32_t));
        failed |= !c->block_of[g];
        for (int32_t p = 0; c->block_of[g] && p < n_pages; p++)
            c->block_of[g][p] = -1;
        c->n_blocks += n_pages; // every block has at least one page
        most = n_pages > most ? n_pages : most;
    }
    c->n_buckets = 64;
    while (c->n_buckets < (uint32_t)most)
        c->n_buckets *= 2;
    c->blocks = malloc((size_t)c->n_blocks * sizeof *c->blocks);
    c->buckets = malloc(c->n_buckets * sizeof *c->buckets);
    if (failed || !c->blocks || !c->buckets) {
        nib_prefix_cache_free(c);
        return nib_fail_memory(err, (unsigned long long)most * sizeof *c->blocks, "the prefix cache");
    }
    for (int32_t b = 0; b < c->n_blocks; b++)
        c->blocks[b].next = b + 1 < c->n_blocks ? b + 1 : -1;
    for (uint32_t b = 0; b < c->n_buckets; b++)
        c->buckets[b] = -1;
    *cache = c;
    return NIB_OK;
}

void nib_prefix_cache_free(struct nib_prefix_cache *cache)
{
    if (!cache)
        return;
    for (int g = 0; g < NIB_MAX_GROUPS; g++)
        free(cache->block_of[g]);
    free(cache->blocks);
    free(cache->buckets);
    free(cache);
}

// ---- blocks ----

static int32_t *bucket_of(struct nib_prefix_cache *cache, uint64_t parent, const int32_t *tokens)
{
    uint64_t hash = parent * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < NIB_PAGE_TOKENS; i++) {
        hash = (hash ^ (uint32_t)tokens[i]) * 0xbf58476d1ce4e5b9u;
        hash ^= hash >> 31;
    }
    return &cache->buckets[hash & (cache->n_buckets - 1)];
}

static int32_t find(struct nib_prefix_cache *cache, uint64_t parent, const int32_t *tokens)
{
    int32_t b = *bucket_of(cache, parent, tokens);
    while (b >= 0 && (cache->blocks[b].parent != parent ||
                      memcmp(cache->blocks[b].tokens, tokens, sizeof cache->blocks[b].tokens) != 0))
        b = cache->blocks[b].next;
    return b;
}

static int32_t add(struct nib_prefix_cache *cache, uint64_t parent, const int32_t *tokens)
{
    int32_t b = cache->unused, *bucket = bucket_of(cache, parent, tokens);
    if (b < 0)
        return -1;
    struct block *block = &cache->blocks[b];
    cache->unused = block->next;
    *block = (struct block){.number = ++cache->last_number, .parent = parent, .next = *bucket};
    memcpy(block->tokens, tokens, sizeof block->tokens);
    for (int g = 0; g < NIB_MAX_GROUPS; g++)
        block->pages[g] = -1;
    *bucket = b;
    return b;
}

// Takes a block away; pages that it still had and nobody holds are free at once.
static void drop(struct nib_kv_pool *pool, int32_t b)
{
    struct nib_prefix_cache *cache = pool->prefix;
    struct block *block = &cache->blocks[b];
    int32_t *link = bucket_of(cache, block->parent, block->tokens);
    while (*link != b)
        link = &cache->blocks[*link].next;
    *link = block->next;
    for (int g = 0; g < pool->n_groups; g++) {
        int32_t page = block->pages[g];
        if (page < 0)
            continue;
        cache->block_of[g][page] = -1;
        if (pool->groups[g].holders[page] == 0)
            pool->groups[g].free_pages[pool->groups[g].n_listed++] = page;
    }
    block->next = cache->unused;
    cache->unused = b;
}

static bool useless(const struct nib_kv_pool *pool, const struct block *block)
{
    bool any = false;
    for (int g = 0; g < pool->n_groups; g++) {
        if (pool->groups[g].window == 0 && block->pages[g] < 0)
            return true; // nothing can be found behind it
        any |= block->pages[g] >= 0;
    }
    return !any;
}

int32_t nib_prefix_cache_evict(struct nib_kv_pool *pool, int g)
{
    struct nib_prefix_cache *cache = pool->prefix;
    const struct nib_kv_group *group = &pool->groups[g];
    int32_t oldest = -1;
    for (int32_t page = 0; page < group->n_pages; page++) {
        int32_t b = cache->block_of[g][page];
        if (b >= 0 && group->holders[page] == 0 &&
            (oldest < 0 || cache->blocks[b].used < cache->blocks[cache->block_of[g][oldest]].used))
            oldest = page;
    }
    int32_t b = cache->block_of[g][oldest];
    cache->block_of[g][oldest] = -1;
    cache->blocks[b].pages[g] = -1;
    if (useless(pool, &cache->blocks[b]))
        drop(pool, b);
    return oldest;
}

bool nib_prefix_cache_holds(const struct nib_prefix_cache *cache, int g, int32_t page)
{
    return cache && cache->block_of[g][page] >= 0;
}

void nib_prefix_cache_rest(struct nib_prefix_cache *cache, int g, int32_t page)
{
    cache->blocks[cache->block_of[g][page]].used = ++cache->clock;
}

// ---- sequences ----

static void note_block(struct nib_kv_pool *pool, const struct nib_page_table *table,
                       struct nib_prefix_trail *trail, int32_t index)
{
    struct nib_prefix_cache *cache = pool->prefix;
    int32_t b = find(cache, trail->last, trail->open);
    if (b < 0)
        b = add(cache, trail->last, trail->open);
    trail->n_open = 0;
    if (b < 0) {
        trail->last = ++cache->last_number; // nothing is ever found behind it
        return;
    }
    struct block *block = &cache->blocks[b];
    block->used = ++cache->clock;
    trail->last = block->number;
    for (int g = 0; g < pool->n_groups; g++) {
        int32_t page = table->pages[g * pool->table_width + index];
        if (block->pages[g] < 0 && page >= 0 && cache->block_of[g][page] < 0) {
            block->pages[g] = page;
            cache->block_of[g][page] = b;
        }
    }
    if (useless(pool, block))
        drop(pool, b);
}

void nib_prefix_cache_note(struct nib_kv_pool *pool, const struct nib_page_table *table,
                           struct nib_prefix_trail *trail, const int32_t *tokens, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        trail->open[trail->n_open++] = tokens[i];
        if (trail->n_open == NIB_PAGE_TOKENS)
            note_block(pool, table, trail, (table->length + i) / NIB_PAGE_TOKENS);
    }
}

// The first page that a token behind `length` others looks at.
static int32_t first_seen(const struct nib_kv_group *group, int32_t length)
{
    int64_t position = group->window ? length - group->window + 1 : 0;
    return position > 0 ? (int32_t)(position / NIB_PAGE_TOKENS) : 0;
}

// Whether a sequence can go on behind the first `count` blocks.
static bool complete(const struct nib_kv_pool *pool, const int32_t *chain /* [count] */, int32_t count)
{
    for (int g = 0; g < pool->n_groups; g++)
        for (int32_t i = first_seen(&pool->groups[g], count * NIB_PAGE_TOKENS); i < count; i++)
            if (pool->prefix->blocks[chain[i]].pages[g] < 0)
                return false;
    return true;
}

int32_t nib_prefix_cache_attach(struct nib_kv_pool *pool, struct nib_page_table *table,
                                struct nib_prefix_trail *trail, const int32_t *tokens, int32_t n)
{
    struct nib_prefix_cache *cache = pool->prefix;
    int32_t most = (n - 1) / NIB_PAGE_TOKENS, count = 0;
    int32_t *chain = most > 0 ? calloc((size_t)most, sizeof *chain) : NULL;
    if (!chain || table->length > 0) {
        free(chain);
        return 0;
    }
    for (uint64_t parent = 0; count < most; count++) {
        int32_t b = find(cache, parent, tokens + count * NIB_PAGE_TOKENS);
        if (b < 0)
            break;
        chain[count] = b;
        parent = cache->blocks[b].number;
    }
    while (count > 0 && !complete(pool, chain, count))
        count--;
    for (int32_t i = count - 1; i >= 0; i--)
        cache->blocks[chain[i]].used = ++cache->clock;
    for (int g = 0; g < pool->n_groups; g++) {
        table->first_page[g] = count ? first_seen(&pool->groups[g], count * NIB_PAGE_TOKENS) : 0;
        table->end_page[g] = count;
        for (int32_t i = table->first_page[g]; i < count; i++) {
            int32_t page = cache->blocks[chain[i]].pages[g];
            table->pages[g * pool->table_width + i] = page;
            pool->groups[g].n_free -= pool->groups[g].holders[page]++ == 0;
        }
    }
    if (count)
        trail->last = cache->blocks[chain[count - 1]].number;
    table->length = count * NIB_PAGE_TOKENS;
    free(chain);
    return table->length;
}
