#include "engine/kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/prefix_cache.h"

static int64_t pages_for(int64_t tokens)
{
    return (tokens + NIB_PAGE_TOKENS - 1) / NIB_PAGE_TOKENS;
}

static int group_of(const struct nib_kv_pool *pool, int64_t window)
{
    for (int g = 0; g < pool->n_groups; g++)
        if (pool->groups[g].window == window)
            return g;
    return -1;
}

nib_status nib_kv_pool_plan(struct nib_kv_pool *pool, const struct nib_model_shape *shape, size_t element_bytes,
                            int32_t context, int64_t cache_tokens, int32_t max_sequences, int32_t max_step_tokens,
                            struct nib_error *err)
{
    memset(pool, 0, sizeof *pool);
    pool->table_width = (int32_t)pages_for(context);
    for (int c = 0; c < shape->n_caches; c++) {
        const struct nib_cache_spec *spec = &shape->cache_specs[c];
        int g = group_of(pool, spec->window);
        if (g < 0) {
            if (pool->n_groups == NIB_MAX_GROUPS)
                return nib_fail(err, NIB_ERR_UNSUPPORTED, "more than %d different attention windows",
                                NIB_MAX_GROUPS);
            g = pool->n_groups++;
            pool->groups[g].window = spec->window;
        }
        if (c == 0 || spec->layer != shape->cache_specs[c - 1].layer)
            pool->groups[g].layers++;
        pool->groups[g].row_bytes += (uint64_t)spec->width * element_bytes;
    }
    for (int g = 0; g < pool->n_groups; g++) {
        struct nib_kv_group *group = &pool->groups[g];
        // Each sequence may leave one page half full. Behind a window there lie at most window - 1 older tokens.
        int64_t all = pages_for(cache_tokens) + max_sequences;
        int64_t live = pages_for(group->window - 1 + max_step_tokens) + 1;
        group->most_live = group->window && live < pool->table_width ? (int32_t)live : pool->table_width;
        int64_t windowed = (int64_t)group->most_live * max_sequences;
        int64_t pages = group->window && windowed < all ? windowed : all;
        if (pages > INT32_MAX)
            return nib_fail(err, NIB_ERR_LIMIT, "a cache of %lld tokens needs more than 2^31 pages",
                            (long long)cache_tokens);
        group->n_pages = (int32_t)pages;
    }
    return NIB_OK;
}

uint64_t nib_kv_pool_bytes(const struct nib_kv_pool *pool)
{
    uint64_t bytes = 0;
    for (int g = 0; g < pool->n_groups; g++)
        bytes += pool->groups[g].row_bytes * NIB_PAGE_TOKENS * (uint64_t)pool->groups[g].n_pages;
    return bytes;
}

nib_status nib_kv_pool_alloc(struct nib_kv_pool *pool, const struct nib_model_shape *shape,
                             const struct nib_ops *ops, struct nib_device *device, struct nib_error *err)
{
    for (int g = 0; g < pool->n_groups; g++) {
        struct nib_kv_group *group = &pool->groups[g];
        group->free_pages = malloc((size_t)group->n_pages * sizeof *group->free_pages);
        group->holders = calloc((size_t)group->n_pages, sizeof *group->holders);
        if (!group->free_pages || !group->holders)
            return nib_fail_memory(err, (unsigned long long)group->n_pages * 4, "the list of free pages");
        for (int32_t p = 0; p < group->n_pages; p++)
            group->free_pages[p] = group->n_pages - 1 - p; // the first page is handed out first
        group->n_free = group->n_listed = group->n_pages;
    }
    pool->caches = calloc((size_t)shape->n_caches, sizeof *pool->caches);
    if (!pool->caches)
        return nib_fail_memory(err, (unsigned long long)shape->n_caches * sizeof *pool->caches,
                               "the list of caches");
    pool->n_caches = shape->n_caches;
    for (int c = 0; c < shape->n_caches; c++) {
        int g = group_of(pool, shape->cache_specs[c].window);
        nib_status status = ops->alloc_cache(device, pool->groups[g].n_pages, NIB_PAGE_TOKENS,
                                             shape->cache_specs[c].width, g, &pool->caches[c], err);
        if (status)
            return status;
    }
    return NIB_OK;
}

void nib_kv_pool_free(struct nib_kv_pool *pool, const struct nib_ops *ops, struct nib_device *device)
{
    for (int c = 0; c < pool->n_caches; c++)
        ops->free_cache(device, &pool->caches[c]);
    free(pool->caches);
    for (int g = 0; g < pool->n_groups; g++) {
        free(pool->groups[g].free_pages);
        free(pool->groups[g].holders);
    }
    nib_prefix_cache_free(pool->prefix);
    memset(pool, 0, sizeof *pool);
}

nib_status nib_page_table_init(struct nib_page_table *table, const struct nib_kv_pool *pool, struct nib_error *err)
{
    memset(table, 0, sizeof *table);
    size_t entries = (size_t)pool->n_groups * (size_t)pool->table_width;
    table->pages = malloc(entries * sizeof *table->pages);
    if (!table->pages)
        return nib_fail_memory(err, entries * sizeof *table->pages, "a page table");
    for (size_t i = 0; i < entries; i++)
        table->pages[i] = -1;
    return NIB_OK;
}

static int32_t take(struct nib_kv_pool *pool, int g)
{
    struct nib_kv_group *group = &pool->groups[g];
    int32_t page = group->n_listed ? group->free_pages[--group->n_listed] : nib_prefix_cache_evict(pool, g);
    group->n_free--;
    group->holders[page] = 1;
    return page;
}

static void give_back(struct nib_kv_pool *pool, int g, int32_t *entry)
{
    struct nib_kv_group *group = &pool->groups[g];
    int32_t page = *entry;
    *entry = -1;
    if (--group->holders[page] > 0)
        return;
    group->n_free++;
    if (nib_prefix_cache_holds(pool->prefix, g, page))
        nib_prefix_cache_rest(pool->prefix, g, page);
    else
        group->free_pages[group->n_listed++] = page;
}

int32_t nib_page_table_wanted(const struct nib_page_table *table, int g, int32_t n)
{
    int32_t missing = (int32_t)pages_for((int64_t)table->length + n) - table->end_page[g];
    return missing > 0 ? missing : 0;
}

int32_t nib_page_table_wanted_live(const struct nib_page_table *table, const struct nib_kv_pool *pool, int g,
                                   int32_t n)
{
    int32_t wanted = nib_page_table_wanted(table, g, n),
            more = pool->groups[g].most_live - (table->end_page[g] - table->first_page[g]);
    return wanted < more ? wanted : more;
}

bool nib_page_table_reserve(struct nib_page_table *table, struct nib_kv_pool *pool, int32_t n)
{
    int32_t end = (int32_t)pages_for((int64_t)table->length + n);
    for (int g = 0; g < pool->n_groups; g++)
        if (end > pool->table_width || nib_page_table_wanted(table, g, n) > pool->groups[g].n_free)
            return false;
    for (int g = 0; g < pool->n_groups; g++)
        for (; table->end_page[g] < end; table->end_page[g]++)
            table->pages[g * pool->table_width + table->end_page[g]] = take(pool, g);
    return true;
}

void nib_page_table_unreserve(struct nib_page_table *table, struct nib_kv_pool *pool)
{
    int32_t end = (int32_t)pages_for(table->length);
    for (int g = 0; g < pool->n_groups; g++)
        while (table->end_page[g] > end)
            give_back(pool, g, &table->pages[g * pool->table_width + --table->end_page[g]]);
}

void nib_page_table_advance(struct nib_page_table *table, struct nib_kv_pool *pool, int32_t n)
{
    table->length += n;
    for (int g = 0; g < pool->n_groups; g++) {
        int64_t window = pool->groups[g].window;
        // The next token stands at `length` and sees positions from length - window + 1 on.
        int64_t first_seen = window ? table->length - window + 1 : 0;
        while (((int64_t)table->first_page[g] + 1) * NIB_PAGE_TOKENS <= first_seen)
            give_back(pool, g, &table->pages[g * pool->table_width + table->first_page[g]++]);
    }
}

void nib_page_table_release(struct nib_page_table *table, struct nib_kv_pool *pool)
{
    for (int g = 0; table->pages && g < pool->n_groups; g++)
        for (int32_t p = table->end_page[g];
             p-- > table->first_page[g];) // the end of a prefix rests first, and goes first
            give_back(pool, g, &table->pages[g * pool->table_width + p]);
    free(table->pages);
    memset(table, 0, sizeof *table);
}
