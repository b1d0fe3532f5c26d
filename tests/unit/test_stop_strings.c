// Stop strings against a plain search, for texts cut in every way.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/stop_strings.h"

static struct nib_stop_strings stops(const char *const *strings, size_t count)
{
    struct nib_stop_strings stop = {0};
    for (size_t i = 0; i < count; i++)
        assert_int_equal(nib_stop_strings_add(&stop, strings[i], strlen(strings[i]), NULL), NIB_OK);
    return stop;
}

// How much of the text may be shown; its whole length when no string is in it.
static size_t plain_search(const char *text, const char *const *strings, size_t count, bool *found)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (size_t i = 0; i < count; i++) {
            size_t size = strlen(strings[i]);
            if (size <= end && size > longest && memcmp(text + end - size, strings[i], size) == 0)
                longest = size;
        }
        if (longest) {
            *found = true;
            return end - longest;
        }
    }
    *found = false;
    return strlen(text);
}

// Pushes the text in pieces of the given lengths (cyclic) and compares with the plain search.
static void check_cut(const char *text, const char *const *strings, size_t count, size_t first, size_t second)
{
    struct nib_stop_strings stop = stops(strings, count);
    struct nib_bytes out = {0};
    bool stopped = false, found;
    size_t shown = plain_search(text, strings, count, &found), n = strlen(text), step = first;
    for (size_t at = 0; at < n && !stopped; at += step) {
        step = step == first ? second : first;
        size_t size = n - at < step ? n - at : step;
        assert_int_equal(nib_stop_strings_push(&stop, text + at, size, &out, &stopped, NULL), NIB_OK);
        assert_true(out.size <= shown); // nothing of a stop string is ever let out
    }
    assert_int_equal(stopped, found);
    if (!stopped)
        assert_int_equal(nib_stop_strings_flush(&stop, &out, NULL), NIB_OK);
    assert_int_equal(out.size, shown);
    if (shown)
        assert_memory_equal(out.data, text, shown);
    nib_bytes_free(&out);
    nib_stop_strings_free(&stop);
}

static void agrees_with_a_plain_search(void **state)
{
    (void)state;
    static const char *const strings[] = {"aab", "bab", "aabaab", "b", "abba", "aaaa", "c", "bcb"};
    uint32_t random = 1;
    for (int round = 0; round < 3000; round++) {
        char text[40];
        const char *chosen[3];
        size_t length = (size_t)round % (sizeof text - 1), count = 1 + (size_t)round % 3;
        for (size_t i = 0; i < length; i++)
            text[i] = "aaabbc"[(random = random * 1664525 + 1013904223) >> 16 & 1 ? (random >> 20) % 6 : 0];
        text[length] = 0;
        for (size_t i = 0; i < count; i++)
            chosen[i] = strings[((random = random * 1664525 + 1013904223) >> 16) % 8];
        check_cut(text, chosen, count, 1 + (size_t)round % 5, 1 + (size_t)round % 7);
    }
}

static void what_may_be_shown_is_shown_at_once(void **state)
{
    (void)state;
    static const char *const strings[] = {"END"};
    struct nib_stop_strings stop = stops(strings, 1);
    struct nib_bytes out = {0};
    bool stopped;
    nib_stop_strings_push(&stop, "one E", 5, &out, &stopped, NULL);
    assert_string_equal(out.data, "one ");
    nib_stop_strings_push(&stop, "N", 1, &out, &stopped, NULL);
    assert_string_equal(out.data, "one ");
    nib_stop_strings_push(&stop, "T EN", 4, &out, &stopped, NULL);
    assert_string_equal(out.data, "one ENT ");
    nib_stop_strings_push(&stop, "D more", 6, &out, &stopped, NULL);
    assert_true(stopped);
    assert_string_equal(out.data, "one ENT ");
    nib_stop_strings_push(&stop, "D", 1, &out, &stopped, NULL); // another text: "EN" is forgotten
    assert_false(stopped);
    assert_string_equal(out.data, "one ENT D");
    nib_bytes_free(&out);
    nib_stop_strings_free(&stop);
}

static void strings_may_hold_any_bytes(void **state)
{
    (void)state;
    struct nib_stop_strings stop = {0};
    struct nib_bytes out = {0};
    bool stopped;
    assert_int_equal(nib_stop_strings_add(&stop, "\0\xff", 2, NULL), NIB_OK);
    nib_stop_strings_push(&stop, "a\0b\0\xff", 5, &out, &stopped, NULL);
    assert_true(stopped);
    assert_int_equal(out.size, 3);
    assert_memory_equal(out.data, "a\0b", 3);
    nib_bytes_free(&out);
    nib_stop_strings_free(&stop);
}

static void limits_are_refused(void **state)
{
    (void)state;
    struct nib_stop_strings stop = {0};
    struct nib_error err;
    char *text = calloc(1, NIB_MAX_STOP_BYTES + 1);
    assert_int_equal(nib_stop_strings_add(&stop, text, 0, &err), NIB_ERR_ARGUMENT);
    assert_int_equal(nib_stop_strings_add(&stop, text, NIB_MAX_STOP_BYTES + 1, &err), NIB_ERR_ARGUMENT);
    for (int i = 0; i < NIB_MAX_STOP_STRINGS; i++)
        assert_int_equal(nib_stop_strings_add(&stop, text, NIB_MAX_STOP_BYTES, &err), NIB_OK);
    assert_int_equal(nib_stop_strings_add(&stop, text, 1, &err), NIB_ERR_ARGUMENT);
    free(text);
    nib_stop_strings_free(&stop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_plain_search),
        cmocka_unit_test(what_may_be_shown_is_shown_at_once),
        cmocka_unit_test(strings_may_hold_any_bytes),
        cmocka_unit_test(limits_are_refused),
    };
    return cmocka_run_group_tests_name("stop strings", tests, NULL, NULL);
}
