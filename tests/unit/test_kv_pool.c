// The paged cache: who owns which page, and what slides out of a window.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kv_pool.h"
#include "support/devices.h"

#define CONTEXT 1000
#define STEP 50

static const struct nib_cache_spec specs[] = {{64, 100, 0}, {64, 100, 0}, {96, 0, 1}, {32, 0, 1}};

static struct test_device ref;

static int open_ref(void **state)
{
    (void)state;
    ref = test_device_open(nib_ref_ops(), 1, STEP, &(struct nib_scratch_query){0});
    return 0;
}

static int close_ref(void **state)
{
    (void)state;
    test_device_close(&ref);
    return 0;
}

static struct nib_kv_pool make_pool(int64_t cache_tokens, int32_t sequences)
{
    struct nib_model_shape shape = {.n_caches = 4, .cache_specs = specs};
    struct nib_kv_pool pool;
    assert_int_equal(nib_kv_pool_plan(&pool, &shape, 4, CONTEXT, cache_tokens, sequences, STEP, NULL), NIB_OK);
    assert_int_equal(nib_kv_pool_alloc(&pool, &shape, ref.ops, ref.device, NULL), NIB_OK);
    return pool;
}

// Every page is either free or in exactly one table.
static void check_ownership(const struct nib_kv_pool *pool, const struct nib_page_table *tables, int n)
{
    for (int g = 0; g < pool->n_groups; g++) {
        char *seen = calloc((size_t)pool->groups[g].n_pages, 1);
        int32_t owned = 0;
        for (int t = 0; t < n; t++)
            for (int32_t p = 0; p < pool->table_width; p++) {
                int32_t page = tables[t].pages[g * pool->table_width + p];
                assert_true(page >= -1 && page < pool->groups[g].n_pages);
                if (page < 0)
                    continue;
                assert_int_equal(seen[page]++, 0);
                owned++;
            }
        for (int32_t i = 0; i < pool->groups[g].n_free; i++)
            assert_int_equal(seen[pool->groups[g].free_pages[i]]++, 0);
        assert_int_equal(owned + pool->groups[g].n_free, pool->groups[g].n_pages);
        free(seen);
    }
}

static void groups_follow_windows(void **state)
{
    (void)state;
    struct nib_kv_pool pool = make_pool(CONTEXT, 2);
    assert_int_equal(pool.n_groups, 2);
    assert_int_equal(pool.groups[0].window, 100);
    assert_int_equal(pool.groups[0].row_bytes, (64 + 64) * 4);
    assert_int_equal(pool.groups[1].row_bytes, (96 + 32) * 4);
    assert_int_equal(pool.caches[0].group, 0);
    assert_int_equal(pool.caches[3].group, 1);
    // A window's pages do not grow with the context.
    assert_true(pool.groups[0].n_pages <= 2 * ((100 + STEP) / NIB_PAGE_TOKENS + 2));
    nib_kv_pool_free(&pool, ref.ops, ref.device);
}

static void a_window_keeps_what_the_next_token_sees(void **state)
{
    (void)state;
    struct nib_kv_pool pool = make_pool(CONTEXT, 1);
    struct nib_page_table table;
    assert_int_equal(nib_page_table_init(&table, &pool, NULL), NIB_OK);
    for (int32_t chunk = 1; table.length + chunk <= CONTEXT; chunk = chunk % STEP + 7) {
        chunk = chunk > STEP ? STEP : chunk;
        assert_true(nib_page_table_reserve(&table, &pool, chunk));
        // What the chunk's first token sees and what its last one writes must be there.
        int32_t first = table.length - 100 + 1 > 0 ? table.length - 100 + 1 : 0;
        for (int32_t p = first; p < table.length + chunk; p++)
            assert_true(table.pages[p / NIB_PAGE_TOKENS] >= 0);
        for (int32_t p = 0; p < table.length + chunk; p++)
            assert_true(table.pages[pool.table_width + p / NIB_PAGE_TOKENS] >= 0);
        nib_page_table_advance(&table, &pool, chunk);
        check_ownership(&pool, &table, 1);
    }
    assert_int_equal(table.pages[0], -1); // slid out
    nib_page_table_release(&table, &pool);
    assert_int_equal(pool.groups[0].n_free, pool.groups[0].n_pages);
    assert_int_equal(pool.groups[1].n_free, pool.groups[1].n_pages);
    nib_kv_pool_free(&pool, ref.ops, ref.device);
}

static void reserving_is_all_or_nothing(void **state)
{
    (void)state;
    struct nib_kv_pool pool = make_pool(64, 3); // 2 pages and one for each sequence
    struct nib_page_table tables[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(nib_page_table_init(&tables[i], &pool, NULL), NIB_OK);
    assert_true(nib_page_table_reserve(&tables[0], &pool, 50));
    nib_page_table_advance(&tables[0], &pool, 50);
    assert_true(nib_page_table_reserve(&tables[1], &pool, 33));
    nib_page_table_advance(&tables[1], &pool, 33);
    int32_t before = pool.groups[1].n_free;
    assert_false(nib_page_table_reserve(&tables[2], &pool, 40));
    assert_int_equal(pool.groups[1].n_free, before);
    check_ownership(&pool, tables, 3);
    assert_true(nib_page_table_reserve(&tables[2], &pool, 20));
    nib_page_table_unreserve(&tables[2], &pool);
    assert_int_equal(pool.groups[1].n_free, before);
    assert_false(nib_page_table_reserve(&tables[0], &pool, CONTEXT)); // beyond the table
    for (int i = 0; i < 3; i++)
        nib_page_table_release(&tables[i], &pool);
    nib_kv_pool_free(&pool, ref.ops, ref.device);
}

static void random_lives_lose_no_page(void **state)
{
    (void)state;
    enum { N = 6 };
    struct nib_kv_pool pool = make_pool(600, N);
    struct nib_page_table tables[N];
    for (int i = 0; i < N; i++)
        assert_int_equal(nib_page_table_init(&tables[i], &pool, NULL), NIB_OK);
    uint32_t seed = 7;
    for (int round = 0; round < 5000; round++) {
        seed = seed * 1664525u + 1013904223u;
        int which = (int)(seed >> 16) % N;
        int32_t n = 1 + (int32_t)(seed >> 20) % STEP;
        if ((seed >> 8) % 20 == 0) {
            nib_page_table_release(&tables[which], &pool);
            assert_int_equal(nib_page_table_init(&tables[which], &pool, NULL), NIB_OK);
        } else if (nib_page_table_reserve(&tables[which], &pool, n)) {
            if ((seed >> 9) % 5)
                nib_page_table_advance(&tables[which], &pool, n);
            else
                nib_page_table_unreserve(&tables[which], &pool);
        }
        if (round % 50 == 0)
            check_ownership(&pool, tables, N);
    }
    for (int i = 0; i < N; i++)
        nib_page_table_release(&tables[i], &pool);
    assert_int_equal(pool.groups[0].n_free, pool.groups[0].n_pages);
    assert_int_equal(pool.groups[1].n_free, pool.groups[1].n_pages);
    nib_kv_pool_free(&pool, ref.ops, ref.device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_follow_windows),
        cmocka_unit_test(a_window_keeps_what_the_next_token_sees),
        cmocka_unit_test(reserving_is_all_or_nothing),
        cmocka_unit_test(random_lives_lose_no_page),
    };
    return cmocka_run_group_tests_name("kv_pool", tests, open_ref, close_ref);
}
