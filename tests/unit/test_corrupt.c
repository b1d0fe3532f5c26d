// Files that lie: each gives one error of the right kind that names the file and what is wrong with it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "support/files.h"
#include "support/paths.h"

// Opens, expecting failure; `what` is the case's name.
static void assert_refused(const char *what, const char *path, nib_status status, const char *names,
                           const char *says)
{
    struct nib_checkpoint *checkpoint = NULL;
    struct nib_error err = {0};
    nib_status got = nib_checkpoint_open(path, &checkpoint, &err);
    if (got == NIB_OK)
        nib_checkpoint_close(checkpoint);
    if (got != status || err.status != status || !strstr(err.message, names) || !strstr(err.message, says))
        fail_msg("%s: status %d (expected %d), message: %s (expected: %s … %s)", what, got, status, err.message,
                 names, says);
    assert_null(strchr(err.message, '\n'));
}

// ---- One file: its header ----

#define F32(shape, begin, end) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *what, *header;
    size_t data;
    nib_status status;
    const char *says;
} headers[] = {
    {"not an object", "[1,2]", 0, NIB_ERR_FORMAT, "does not begin with '{'"},
    {"spaces before the object", "  {}", 0, NIB_ERR_FORMAT, "does not begin with '{'"},
    {"unfinished JSON", "{\"a\":{", 0, NIB_ERR_FORMAT, "not valid JSON"},
    {"bytes after the object", "{} x", 0, NIB_ERR_FORMAT, "not valid JSON"},
    {"two objects", "{}{}", 0, NIB_ERR_FORMAT, "not valid JSON"},
    {"single quotes", "{'a':1}", 0, NIB_ERR_FORMAT, "not valid JSON"},
    {"duplicate name", "{\"a\":" F32("[1]", "0", "4") ",\"a\":" F32("[1]", "4", "8") "}", 8, NIB_ERR_FORMAT,
     "duplicate"},
    {"duplicate field", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     NIB_ERR_FORMAT, "duplicate"},
    {"deep JSON", "{\"a\":{\"shape\":[[[[[[1]]]]]]}}", 0, NIB_ERR_FORMAT, "deep"},
    {"NUL in a name", "{\"a\\u0000b\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "not valid JSON"},
    {"control byte in a name", "{\"a\\u001bb\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "control byte 0x1b"},
    {"newline in a name", "{\"a\\nb\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "control byte 0x0a"},
    {"DEL in a name", "{\"a\\u007f\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "control byte 0x7f"},
    {"empty name", "{\"\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "0 bytes"},
    {"invalid UTF-8 in a name", "{\"a\xff\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "not valid JSON"},
    {"entry is a number", "{\"a\":1}", 0, NIB_ERR_FORMAT, "a: its header entry is not an object"},
    {"entry is null", "{\"a\":null}", 0, NIB_ERR_FORMAT, "a: its header entry is not an object"},
    {"no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, NIB_ERR_FORMAT, "a: no \"dtype\""},
    {"dtype is a number", "{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, NIB_ERR_FORMAT,
     "a: no \"dtype\""},
    {"unknown dtype", "{\"a\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}}", 4, NIB_ERR_UNSUPPORTED,
     "a: unknown element type \"F4\""},
    {"lower-case dtype", "{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     NIB_ERR_UNSUPPORTED, "\"f32\""},
    {"no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, NIB_ERR_FORMAT, "a: no \"shape\""},
    {"shape is a number", "{\"a\":" F32("1", "0", "4") "}", 4, NIB_ERR_FORMAT, "a: no \"shape\""},
    {"negative shape", "{\"a\":" F32("[2,-1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "a: shape[1] is -1"},
    {"two negative extents", "{\"a\":" F32("[-1,-1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "a: shape[0] is -1"},
    {"float shape", "{\"a\":" F32("[1.0]", "0", "4") "}", 4, NIB_ERR_FORMAT, "a: shape[0] is not an integer"},
    {"string shape", "{\"a\":" F32("[\"1\"]", "0", "4") "}", 4, NIB_ERR_FORMAT, "a: shape[0] is not an integer"},
    {"nine dimensions", "{\"a\":" F32("[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "a: 9 dimensions"},
    {"2^63 elements", "{\"a\":" F32("[9223372036854775807]", "0", "4") "}", 4, NIB_ERR_FORMAT,
     "a: the shape's size in bytes overflows"},
    {"an extent of 2^63", "{\"a\":" F32("[9223372036854775808]", "0", "4") "}", 4, NIB_ERR_FORMAT,
     "not valid JSON"},
    {"shape product wraps to 1", "{\"a\":" F32("[4294967296,4294967296]", "0", "4") "}", 4, NIB_ERR_FORMAT,
     "overflows"},
    {"shape product wraps behind a zero", "{\"a\":" F32("[0,4294967296,4294967296]", "0", "0") "}", 0,
     NIB_ERR_FORMAT, "overflows"},
    {"no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, NIB_ERR_FORMAT,
     "a: \"data_offsets\" is not two integers"},
    {"one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, NIB_ERR_FORMAT,
     "a: \"data_offsets\" is not two integers"},
    {"three offsets", "{\"a\":" F32("[1]", "0", "4,8") "}", 8, NIB_ERR_FORMAT,
     "a: \"data_offsets\" is not two integers"},
    {"float offsets", "{\"a\":" F32("[1]", "0.0", "4.0") "}", 4, NIB_ERR_FORMAT,
     "a: \"data_offsets\" is not two integers"},
    {"negative offset", "{\"a\":" F32("[1]", "-4", "0") "}", 4, NIB_ERR_FORMAT, "a: data_offsets [-4, 0]"},
    {"end before begin", "{\"a\":" F32("[1]", "4", "0") "}", 4, NIB_ERR_FORMAT, "a: data_offsets [4, 0]"},
    {"offsets past the end", "{\"a\":" F32("[2]", "0", "8") "}", 7, NIB_ERR_FORMAT,
     "a: data_offsets [0, 8] reach past the 7 bytes"},
    {"offset near 2^63", "{\"a\":" F32("[1]", "9223372036854775803", "9223372036854775807") "}", 4, NIB_ERR_FORMAT,
     "reach past"},
    {"offset of 2^64", "{\"a\":" F32("[1]", "18446744073709551616", "18446744073709551620") "}", 4, NIB_ERR_FORMAT,
     "not valid JSON"},
    {"span too short", "{\"a\":" F32("[2]", "0", "4") "}", 4, NIB_ERR_FORMAT,
     "F32 [2] is 8 bytes but data_offsets [0, 4] span 4"},
    {"span too long", "{\"a\":" F32("[1]", "0", "8") "}", 8, NIB_ERR_FORMAT,
     "F32 [1] is 4 bytes but data_offsets [0, 8] span 8"},
    {"a zero extent with data", "{\"a\":" F32("[0,4]", "0", "4") "}", 4, NIB_ERR_FORMAT, "is 0 bytes"},
    {"overlap", "{\"a\":" F32("[2]", "0", "8") ",\"b\":" F32("[2]", "4", "12") "}", 12, NIB_ERR_FORMAT,
     "b begins at 4 and overlaps a"},
    {"the same data twice", "{\"a\":" F32("[1]", "0", "4") ",\"b\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT,
     "overlaps"},
    {"one inside another", "{\"a\":" F32("[4]", "0", "16") ",\"b\":" F32("[1]", "4", "8") "}", 16, NIB_ERR_FORMAT,
     "overlaps"},
    {"a hole", "{\"a\":" F32("[1]", "0", "4") ",\"b\":" F32("[1]", "8", "12") "}", 12, NIB_ERR_FORMAT,
     "hole of 4 bytes between a and b"},
    {"a hole at the start", "{\"a\":" F32("[1]", "4", "8") "}", 8, NIB_ERR_FORMAT,
     "hole of 4 bytes between the header and a"},
    {"bytes at the end", "{\"a\":" F32("[1]", "0", "4") "}", 9, NIB_ERR_FORMAT, "5 bytes after the last tensor"},
    {"metadata is a list", "{\"__metadata__\":[]}", 0, NIB_ERR_FORMAT, "__metadata__ is not an object"},
    {"metadata is a tensor", "{\"__metadata__\":" F32("[1]", "0", "4") "}", 4, NIB_ERR_FORMAT, "not a string"},
    {"metadata value is a number", "{\"__metadata__\":{\"k\":1}}", 0, NIB_ERR_FORMAT, "\"k\" is not a string"},
};

static void lying_headers(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("corrupt"), "lie.safetensors");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        test_write_raw_safetensors(path, headers[i].header, headers[i].data);
        assert_refused(headers[i].what, path, headers[i].status, path, headers[i].says);
    }
}

static void a_name_may_have_1024_bytes(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("corrupt"), "name.safetensors");
    for (size_t length = 1024; length <= 1025; length++) {
        char name[1100];
        memset(name, 'n', length);
        name[length] = 0;
        struct test_safetensors file = {0};
        test_safetensors_add(&file, name, "U8", "[1]", "x", 1);
        test_safetensors_write(&file, path);
        struct nib_checkpoint *checkpoint = NULL;
        if (length == 1024) {
            assert_int_equal(nib_checkpoint_open(path, &checkpoint, NULL), NIB_OK);
            // Names built around it do not overflow anything.
            struct nib_experts experts;
            struct nib_linear_view view;
            assert_int_equal(nib_checkpoint_experts(checkpoint, name, true, &experts, NULL), NIB_ERR_NOT_FOUND);
            assert_int_equal(nib_checkpoint_linear(checkpoint, name, &view, NULL), NIB_ERR_NOT_FOUND);
            nib_checkpoint_close(checkpoint);
        } else {
            assert_refused("long name", path, NIB_ERR_FORMAT, path, "1025 bytes");
        }
    }
}

// ---- One file: its bytes ----

static void lying_lengths(void **state)
{
    (void)state;
    static const struct {
        const char *what, *bytes;
        size_t size;
        const char *says;
    } cases[] = {
        {"empty file", "", 0, "too few"},
        {"seven bytes", "\2\0\0\0\0\0\0", 7, "too few"},
        {"no header", "\0\0\0\0\0\0\0\0", 8, "does not begin"},
        {"a header of one byte too many", "\3\0\0\0\0\0\0\0{}", 10,
         "a header of 3 bytes does not fit a file of 10"},
        {"a header of 2^63", "\0\0\0\0\0\0\0\x80{}", 10, "9223372036854775808"},
        {"a header of 2^64 - 1", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "18446744073709551615"},
        {"a header of 2^64 - 8", "\xf8\xff\xff\xff\xff\xff\xff\xff{}", 10, "does not fit"},
        {"a pickle", "\x80\x02}q\x01.PK\x03\x04zip", 13, "does not fit"},
        {"NULs for padding", "\4\0\0\0\0\0\0\0{}\0\0", 12, "not valid JSON"},
    };
    const char *path = test_inside(test_scratch("corrupt"), "length.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_write(path, cases[i].bytes, cases[i].size);
        assert_refused(cases[i].what, path, NIB_ERR_FORMAT, path, cases[i].says);
    }
}

// Padding with spaces is how writers align the data; an empty object is a file without tensors.
static void padding_and_emptiness_are_fine(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("corrupt"), "fine.safetensors");
    static const char *const fine[] = {"{}", "{}      ", "{ \"__metadata__\" : {} }\n"};
    for (size_t i = 0; i < 3; i++) {
        test_write_raw_safetensors(path, fine[i], 0);
        struct nib_checkpoint *checkpoint = NULL;
        assert_int_equal(nib_checkpoint_open(path, &checkpoint, NULL), NIB_OK);
        assert_int_equal(nib_checkpoint_count(checkpoint), 0);
        assert_null(nib_checkpoint_next_unused(checkpoint, NULL));
        nib_checkpoint_close(checkpoint);
    }
}

static void every_truncation_of_a_good_file_is_refused(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = test_read(test_data("models/qwen3_moe/model.safetensors"), &size);
    const char *path = test_inside(test_scratch("corrupt"), "short.safetensors");
    for (size_t cut = 1; cut < size; cut += cut < 64 ? 1 : cut / 2) {
        test_write(path, bytes, size - cut);
        assert_refused("truncated", path, NIB_ERR_FORMAT, path, "");
    }
    free(bytes);
}

// ---- Folders ----

static void write_tensor(const char *folder, const char *file_name, const char *tensor)
{
    struct test_safetensors file = {0};
    test_safetensors_add(&file, tensor, "U8", "[2]", "xy", 2);
    test_safetensors_write(&file, test_inside(folder, file_name));
}

static const struct {
    const char *what, *index;
    nib_status status;
    const char *names, *says;
} indexes[] = {
    {"index is no JSON", "{\"weight_map\"", NIB_ERR_FORMAT, "index.json", "not valid JSON"},
    {"index is empty", "", NIB_ERR_FORMAT, "index.json", "not valid JSON"},
    {"index is a list", "[]", NIB_ERR_FORMAT, "index.json", "not an object"},
    {"no weight_map", "{\"metadata\":{}}", NIB_ERR_FORMAT, "index.json", "no \"weight_map\""},
    {"weight_map is a list", "{\"weight_map\":[]}", NIB_ERR_FORMAT, "index.json", "no \"weight_map\""},
    {"weight_map is empty", "{\"weight_map\":{}}", NIB_ERR_FORMAT, "index.json", "empty"},
    {"a shard that is a number", "{\"weight_map\":{\"a\":1}}", NIB_ERR_FORMAT, "index.json",
     "a: its file is not a string"},
    {"a shard in the folder above", "{\"weight_map\":{\"a\":\"../one.safetensors\"}}", NIB_ERR_FORMAT,
     "index.json", "leaves the folder"},
    {"a shard at an absolute path", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", NIB_ERR_FORMAT, "index.json",
     "leaves the folder"},
    {"a shard in a folder below", "{\"weight_map\":{\"a\":\"sub/one.safetensors\"}}", NIB_ERR_FORMAT, "index.json",
     "leaves the folder"},
    {"a shard with a backslash", "{\"weight_map\":{\"a\":\"..\\\\one.safetensors\"}}", NIB_ERR_FORMAT,
     "index.json", "leaves the folder"},
    {"the folder itself", "{\"weight_map\":{\"a\":\"..\"}}", NIB_ERR_FORMAT, "index.json", "leaves the folder"},
    {"an empty shard name", "{\"weight_map\":{\"a\":\"\"}}", NIB_ERR_FORMAT, "index.json",
     "not a .safetensors file"},
    {"only the ending", "{\"weight_map\":{\"a\":\".safetensors\"}}", NIB_ERR_FORMAT, "index.json",
     "leaves the folder"},
    {"a shard that is no safetensors", "{\"weight_map\":{\"a\":\"config.json\"}}", NIB_ERR_FORMAT, "index.json",
     "not a .safetensors file"},
    {"a shard with NUL", "{\"weight_map\":{\"a\":\"one.safetensors\\u0000\"}}", NIB_ERR_FORMAT, "index.json",
     "not valid JSON"},
    {"a missing shard", "{\"weight_map\":{\"a\":\"one.safetensors\",\"z\":\"three.safetensors\"}}",
     NIB_ERR_NOT_FOUND, "three.safetensors", "No such file"},
    {"a tensor that is in no shard",
     "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\"}}",
     NIB_ERR_FORMAT, "index.json", "lists c in two.safetensors, which does not hold it"},
    {"a tensor in another shard", "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}",
     NIB_ERR_FORMAT, "index.json", "lists a in two.safetensors, but it is in one.safetensors"},
    {"a tensor that is not listed",
     "{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\",\"x\":\"both.safetensors\"}}",
     NIB_ERR_FORMAT, "index.json", "does not list y, which is in both.safetensors"},
    {"a tensor listed twice", "{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}",
     NIB_ERR_FORMAT, "index.json", "duplicate"},
    {"a tensor in two shards", "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"again.safetensors\"}}",
     NIB_ERR_FORMAT, "again.safetensors", "a: in two files"},
    {"a shard that is a folder", "{\"weight_map\":{\"a\":\"folder.safetensors\"}}", NIB_ERR_IO,
     "folder.safetensors", "is a directory"},
    {"a shard that is cut short", "{\"weight_map\":{\"a\":\"short.safetensors\"}}", NIB_ERR_FORMAT,
     "short.safetensors", "truncated"},
    {"deep JSON", "{\"weight_map\":[[[[[[[[[[[[]]]]]]]]]]]]}", NIB_ERR_FORMAT, "index.json", "deep"},
};

static void lying_indexes(void **state)
{
    (void)state;
    const char *folder = test_scratch("corrupt");
    test_write_text(test_inside(folder, "config.json"), "{}");
    write_tensor(folder, "one.safetensors", "a");
    write_tensor(folder, "two.safetensors", "b");
    write_tensor(folder, "again.safetensors", "a");
    test_write(test_inside(folder, "short.safetensors"), "\x40\0\0\0\0\0\0\0{\"a\":", 13);
    mkdir(test_inside(folder, "folder.safetensors"), 0777);
    struct test_safetensors both = {0};
    test_safetensors_add(&both, "x", "U8", "[2]", "xy", 2);
    test_safetensors_add(&both, "y", "U8", "[2]", "xy", 2);
    test_safetensors_write(&both, test_inside(folder, "both.safetensors"));
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        test_write_text(test_inside(folder, "model.safetensors.index.json"), indexes[i].index);
        assert_refused(indexes[i].what, folder, indexes[i].status, indexes[i].names, indexes[i].says);
    }
}

static void incomplete_folders(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        const char *config;  // NULL: none
        const char *tensors; // file name, NULL: none
        const char *generation;
        nib_status status;
        const char *names, *says;
    } cases[] = {
        {"empty folder", NULL, NULL, NULL, NIB_ERR_NOT_FOUND, "config.json", "No such file"},
        {"no config", NULL, "model.safetensors", NULL, NIB_ERR_NOT_FOUND, "config.json", "No such file"},
        {"no tensors", "{}", NULL, NULL, NIB_ERR_NOT_FOUND, "model.safetensors", "in the folder"},
        {"config is no JSON", "{]", "model.safetensors", NULL, NIB_ERR_FORMAT, "config.json", "not valid JSON"},
        {"config is a list", "[]", "model.safetensors", NULL, NIB_ERR_FORMAT, "config.json", "not an object"},
        {"config is empty", "", "model.safetensors", NULL, NIB_ERR_FORMAT, "config.json", "not valid JSON"},
        {"duplicate key", "{\"a\":1,\"a\":1}", "model.safetensors", NULL, NIB_ERR_FORMAT, "config.json",
         "duplicate"},
        {"generation config is no JSON", "{}", "model.safetensors", "eos", NIB_ERR_FORMAT,
         "generation_config.json", "JSON"},
        {"a shard is missing", "{}", "model-00001-of-00002.safetensors", NULL, NIB_ERR_NOT_FOUND,
         "model-00001-of-00002.safetensors", "1 of its 2 shards"},
        {"2^63 shards are missing", "{}", "m-1-of-99999999999999999999.safetensors", NULL, NIB_ERR_NOT_FOUND,
         "m-1-of", "1 of its 9223372036854775807 shards"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = test_scratch("corrupt");
        if (cases[i].config)
            test_write_text(test_inside(folder, "config.json"), cases[i].config);
        if (cases[i].tensors)
            write_tensor(folder, cases[i].tensors, "a");
        if (cases[i].generation)
            test_write_text(test_inside(folder, "generation_config.json"), cases[i].generation);
        assert_refused(cases[i].what, folder, cases[i].status, cases[i].names, cases[i].says);
    }
    assert_refused("nothing there", "no/such/path", NIB_ERR_NOT_FOUND, "no/such/path", "No such file");
    assert_refused("empty path", "", NIB_ERR_ARGUMENT, "", "is empty");
    const char *folder = test_scratch("corrupt");
    mkdir(test_inside(folder, "config.json"), 0777);
    write_tensor(folder, "model.safetensors", "a");
    assert_refused("config is a folder", folder, NIB_ERR_IO, "config.json", "is a directory");
}

// Wrong types in config.json are found where they are read: see test_config; here the ids that end a text.
static void wrong_eos_ids(void **state)
{
    (void)state;
    static const char *const configs[] = {"\"7\"", "-1", "1.5", "4294967296", "[1,[2]]", "{}"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const char *folder = test_scratch("corrupt");
        char text[100];
        snprintf(text, sizeof text, "{\"eos_token_id\":%s}", configs[i]);
        test_write_text(test_inside(folder, "config.json"), text);
        write_tensor(folder, "model.safetensors", "a");
        struct nib_checkpoint *checkpoint = NULL;
        assert_int_equal(nib_checkpoint_open(folder, &checkpoint, NULL), NIB_OK);
        int32_t ids[8];
        int count;
        struct nib_error err = {0};
        assert_int_equal(nib_checkpoint_eos_ids(checkpoint, ids, 8, &count, &err), NIB_ERR_FORMAT);
        assert_non_null(strstr(err.message, "eos_token_id"));
        assert_non_null(strstr(err.message, "config.json"));
        nib_checkpoint_close(checkpoint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lying_headers),
        cmocka_unit_test(a_name_may_have_1024_bytes),
        cmocka_unit_test(lying_lengths),
        cmocka_unit_test(padding_and_emptiness_are_fine),
        cmocka_unit_test(every_truncation_of_a_good_file_is_refused),
        cmocka_unit_test(lying_indexes),
        cmocka_unit_test(incomplete_folders),
        cmocka_unit_test(wrong_eos_ids),
    };
    return cmocka_run_group_tests_name("corrupt", tests, NULL, NULL);
}
