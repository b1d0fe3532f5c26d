#include "support/converted.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "support/files.h"
#include "support/paths.h"

void test_convert(const char *source, const char *destination, struct nib_convert_options options)
{
    struct nib_error err = {0};
    if (nib_convert(source, destination, &options, NULL, &err) != NIB_OK)
        fail_msg("%s to %s: %s", source, nib_form_name(options.form), err.message);
}

uint64_t test_problems(const char *source, const char *destination, char *text, size_t capacity)
{
    struct nib_verify_report report;
    struct nib_error err = {0};
    nib_status status = nib_verify(source, destination, NULL, &report, &err);
    uint64_t problems = status == NIB_OK ? report.problems : 1;
    assert_true(status != NIB_OK || report.proven == (problems == 0));
    snprintf(text, capacity, "%s", status != NIB_OK ? err.message : report.n_messages ? report.messages[0] : "");
    nib_verify_report_free(&report);
    return problems;
}

void test_proven(const char *source, const char *destination)
{
    char text[2048];
    if (test_problems(source, destination, text, sizeof text))
        fail_msg("%s is not %s: %s", destination, source, text);
}

static int count_files(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

void test_same_folder(const char *one, const char *other)
{
    assert_int_equal(count_files(one), count_files(other));
    DIR *dir = opendir(one);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t size, other_size;
        uint8_t *bytes = test_read(test_inside(one, entry->d_name), &size);
        uint8_t *other_bytes = test_read(test_inside(other, entry->d_name), &other_size);
        if (size != other_size || memcmp(bytes, other_bytes, size) != 0)
            fail_msg("%s differs between %s and %s", entry->d_name, one, other);
        free(bytes);
        free(other_bytes);
    }
    closedir(dir);
}

void test_same_tensors(const char *one, const char *other)
{
    struct nib_checkpoint *a, *b;
    struct nib_error err = {0};
    if (nib_checkpoint_open(one, &a, &err) != NIB_OK || nib_checkpoint_open(other, &b, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(nib_checkpoint_count(a), nib_checkpoint_count(b));
    for (size_t i = 0; i < nib_checkpoint_count(a); i++) {
        const struct nib_tensor *x = nib_checkpoint_at(a, i), *y = nib_checkpoint_peek(b, x->name);
        char first[200], second[200];
        if (!y ||
            strcmp(nib_tensor_describe(x, first, sizeof first), nib_tensor_describe(y, second, sizeof second)))
            fail_msg("%s of %s is not in %s", x->name, one, other);
        else if (memcmp(x->data, y->data, x->bytes) != 0)
            fail_msg("%s differs between %s and %s", x->name, one, other);
    }
    nib_checkpoint_close(a);
    nib_checkpoint_close(b);
}

const char *test_fresh(const char *name)
{
    static char ring[16][4096];
    static int at;
    char *path = ring[at++ & 15];
    snprintf(path, sizeof ring[0], "%s", test_scratch(name));
    rmdir(path);
    return path;
}
