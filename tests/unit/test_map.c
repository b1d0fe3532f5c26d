#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/map.h"
#include "support/files.h"
#include "support/paths.h"

static void maps_the_bytes_of_a_file(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("map"), "five");
    test_write(path, "\0abc\xff", 5);
    struct nib_map map;
    assert_int_equal(nib_map_open(&map, path, NULL), NIB_OK);
    assert_int_equal(map.size, 5);
    assert_memory_equal(map.data, "\0abc\xff", 5);
    assert_string_equal(map.path, path);
    nib_map_close(&map);
    assert_null(map.path);
    nib_map_close(&map);
}

static void maps_an_empty_file(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("map"), "empty");
    test_write(path, "", 0);
    struct nib_map map;
    assert_int_equal(nib_map_open(&map, path, NULL), NIB_OK);
    assert_int_equal(map.size, 0);
    assert_non_null(map.data);
    nib_map_advise(&map, 0, 100, NIB_MAP_DONT_NEED);
    nib_map_close(&map);
}

static long pages_mapped(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld", &pages), 1);
    fclose(f);
    return pages;
}

static void maps_a_large_file_where_large_pages_fit(void **state)
{
    (void)state;
    const size_t large = (size_t)2 << 20, sizes[] = {large - 1, large, large + 1, 2 * large + 12345, 3 * large};
    const char *path = test_inside(test_scratch("map"), "large");
    uint8_t *bytes = malloc(3 * large);
    assert_non_null(bytes);
    for (size_t i = 0; i < 3 * large; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        test_write(path, bytes, sizes[k]);
        long before = pages_mapped();
        for (int i = 0; i < 20; i++) {
            struct nib_map map;
            assert_int_equal(nib_map_open(&map, path, NULL), NIB_OK);
            assert_int_equal(map.size, sizes[k]);
            if (sizes[k] >= large)
                assert_int_equal((uintptr_t)map.data % large, 0);
            assert_memory_equal(map.data, bytes, sizes[k]);
            assert_true(pages_mapped() - before <= (long)(sizes[k] / 4096 + 64));
            nib_map_close(&map);
        }
        assert_true(pages_mapped() - before < 64);
    }
    free(bytes);
}

static void maps_no_descriptor_that_is_closed(void **state)
{
    (void)state;
    long before = pages_mapped();
    for (int i = 0; i < 20; i++) {
        errno = 0;
        assert_ptr_equal(nib_map_pages((size_t)8 << 20, PROT_READ, MAP_SHARED, -1), MAP_FAILED);
        assert_int_equal(errno, EBADF);
    }
    assert_true(pages_mapped() - before < 64);
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    const char *folder = test_scratch("map");
    const char *fifo = test_inside(folder, "fifo"), *missing = test_inside(folder, "missing");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const struct {
        const char *path;
        nib_status status;
        const char *says;
    } cases[] = {
        {folder, NIB_ERR_IO, "directory"},
        {fifo, NIB_ERR_IO, "regular file"},
        {missing, NIB_ERR_NOT_FOUND, "No such file"},
        {"/dev/null", NIB_ERR_IO, "regular file"},
        {"", NIB_ERR_NOT_FOUND, "No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_map map;
        struct nib_error err = {0};
        assert_int_equal(nib_map_open(&map, cases[i].path, &err), cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_non_null(strstr(err.message, cases[i].path));
        assert_non_null(strstr(err.message, cases[i].says));
        assert_null(map.path);
    }
}

// The range is cut to the file, whatever it is, and the bytes stay the file's.
static void advice_changes_no_byte(void **state)
{
    (void)state;
    static uint8_t bytes[3 * 4096 + 17];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    const char *path = test_inside(test_scratch("map"), "pages");
    test_write(path, bytes, sizeof bytes);
    struct nib_map map;
    assert_int_equal(nib_map_open(&map, path, NULL), NIB_OK);
    const uint64_t edges[] = {0, 1, 4095, 4096, 4097, 12288, sizeof bytes, sizeof bytes + 1, UINT64_MAX};
    for (size_t a = 0; a < sizeof edges / sizeof *edges; a++)
        for (size_t b = 0; b < sizeof edges / sizeof *edges; b++)
            for (int advice = NIB_MAP_NORMAL; advice <= NIB_MAP_DONT_NEED; advice++)
                nib_map_advise(&map, edges[a], edges[b], (enum nib_map_advice)advice);
    assert_memory_equal(map.data, bytes, sizeof bytes);
    nib_map_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_the_bytes_of_a_file),
        cmocka_unit_test(maps_an_empty_file),
        cmocka_unit_test(maps_a_large_file_where_large_pages_fit),
        cmocka_unit_test(maps_no_descriptor_that_is_closed),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(advice_changes_no_byte),
    };
    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
