// What a well-formed checkpoint gives: tensors, files, metadata, use marks.
#include <fcntl.h>
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

static struct nib_checkpoint *open_checkpoint(const char *path)
{
    struct nib_checkpoint *checkpoint = NULL;
    struct nib_error err = {0};
    if (nib_checkpoint_open(path, &checkpoint, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return checkpoint;
}

static void reads_names_types_shapes_and_data(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("safetensors"), "some.safetensors");
    const float floats[6] = {1, 2, 3, 4, 5, -6};
    const uint16_t halves[2] = {0x3f80, 0xbf80};
    struct test_safetensors file = {0};
    test_safetensors_member(&file, "\"__metadata__\":{\"format\":\"pt\",\"empty\":\"\"}");
    test_safetensors_add(&file, "z.last", "F32", "[2, 3]", floats, sizeof floats);
    test_safetensors_add(&file, "a.first", "BF16", "[2]", halves, sizeof halves);
    test_safetensors_add(&file, "scalar", "F32", "[]", floats + 5, 4);
    test_safetensors_add(&file, "nothing", "F32", "[7, 0, 3]", NULL, 0);
    test_safetensors_add(&file, "\xc3\xa4.utf8", "BF16", "[1, 1, 1, 1, 1, 1, 1, 1]", halves, 2);
    test_safetensors_write(&file, path);

    struct nib_checkpoint *checkpoint = open_checkpoint(path);
    assert_int_equal(nib_checkpoint_count(checkpoint), 5);
    assert_int_equal(nib_checkpoint_file_count(checkpoint), 1);
    assert_string_equal(nib_checkpoint_file(checkpoint, 0), path);
    assert_null(nib_checkpoint_file(checkpoint, 1));
    assert_null(nib_checkpoint_config(checkpoint));
    assert_string_equal(nib_checkpoint_metadata(checkpoint, "format"), "pt");
    assert_null(nib_checkpoint_metadata(checkpoint, "z.last"));
    assert_int_equal(nib_checkpoint_bytes(checkpoint), 24 + 4 + 4 + 2);
    assert_string_equal(nib_checkpoint_at(checkpoint, 0)->name, "a.first");
    assert_null(nib_checkpoint_at(checkpoint, 5));

    const struct nib_tensor *last = nib_checkpoint_peek(checkpoint, "z.last");
    assert_non_null(last);
    assert_int_equal(last->dtype, NIB_F32);
    assert_int_equal(last->rank, 2);
    assert_int_equal(last->shape[0], 2);
    assert_int_equal(last->shape[1], 3);
    assert_memory_equal(last->data, floats, sizeof floats);
    assert_string_equal(last->file, path);
    char text[64];
    assert_string_equal(nib_tensor_describe(last, text, sizeof text), "F32 [2, 3]");
    assert_string_equal(nib_tensor_describe(last, text, 8), "F32 [2,");
    const struct nib_tensor *scalar = nib_checkpoint_peek(checkpoint, "scalar");
    assert_int_equal(scalar->rank, 0);
    assert_int_equal(nib_tensor_elements(scalar), 1);
    assert_int_equal(nib_tensor_elements(nib_checkpoint_peek(checkpoint, "nothing")), 0);
    assert_non_null(nib_checkpoint_peek(checkpoint, "\xc3\xa4.utf8"));
    assert_null(nib_checkpoint_peek(checkpoint, "z"));
    assert_null(nib_checkpoint_peek(checkpoint, ""));
    nib_checkpoint_close(checkpoint);
}

static void every_element_type_is_known(void **state)
{
    (void)state;
    static const uint8_t zeros[8];
    const char *path = test_inside(test_scratch("safetensors"), "types.safetensors");
    struct test_safetensors file = {0};
    for (int d = 0; d < NIB_DTYPE_COUNT; d++) {
        const char *name = nib_dtype_name((enum nib_dtype)d);
        test_safetensors_add(&file, name, name, "[1]", zeros, nib_dtype_size((enum nib_dtype)d));
    }
    test_safetensors_write(&file, path);
    struct nib_checkpoint *checkpoint = open_checkpoint(path);
    for (int d = 0; d < NIB_DTYPE_COUNT; d++)
        assert_int_equal(nib_checkpoint_peek(checkpoint, nib_dtype_name((enum nib_dtype)d))->dtype, d);
    nib_checkpoint_close(checkpoint);
}

// Header lengths need not be multiples of anything, and a wide type may follow odd bytes.
static void unaligned_data_is_moved_to_its_boundary(void **state)
{
    (void)state;
    const char *folder = test_scratch("safetensors");
    const float floats[3] = {1, -2, 3};
    for (int odd = 0; odd < 8; odd++) {
        const char *path = test_inside(folder, "odd.safetensors");
        char padding[64];
        snprintf(padding, sizeof padding, "\"__metadata__\":{\"pad\":\"%.*s\"}", odd, "xxxxxxxx");
        struct test_safetensors file = {0};
        test_safetensors_member(&file, padding);
        test_safetensors_add(&file, "floats", "F32", "[3]", floats, sizeof floats);
        test_safetensors_add(&file, "bytes", "U8", "[3]", "abc", 3);
        test_safetensors_add(&file, "more", "F32", "[3]", floats, sizeof floats);
        test_safetensors_write(&file, path);
        struct nib_checkpoint *checkpoint = open_checkpoint(path);
        const struct nib_tensor *more = nib_checkpoint_peek(checkpoint, "more");
        const struct nib_tensor *first = nib_checkpoint_peek(checkpoint, "floats");
        assert_int_equal((uintptr_t)more->data % 4, 0);
        assert_int_equal((uintptr_t)first->data % 4, 0);
        assert_memory_equal(more->data, floats, sizeof floats);
        assert_memory_equal(first->data, floats, sizeof floats);
        assert_memory_equal(nib_checkpoint_peek(checkpoint, "bytes")->data, "abc", 3);
        uint64_t copied = nib_checkpoint_copied_bytes(checkpoint);
        assert_true(copied == 12 || copied == 24);
        nib_checkpoint_advise(checkpoint, more, NIB_ADVICE_DONT_NEED); // a copy keeps its bytes
        assert_memory_equal(more->data, floats, sizeof floats);
        nib_checkpoint_close(checkpoint);
    }
}

static void reads_all_fixtures(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        size_t tensors;
    } models[] = {
        {"models/gpt_oss", 79},      {"models/kimi_k2", 201},
        {"models/deepseek_v4", 458}, {"models/mimo_v2", 353},
        {"models/inkling", 140},     {"models/minimax_m2", 177},
        {"models/qwen3_moe", 174},   {"models/deepseek_v3_grouped", 345},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct nib_checkpoint *checkpoint = open_checkpoint(test_data(models[i].path));
        assert_int_equal(nib_checkpoint_count(checkpoint), models[i].tensors);
        assert_non_null(nib_checkpoint_config(checkpoint));
        assert_null(nib_checkpoint_generation(checkpoint));
        assert_int_equal(nib_checkpoint_copied_bytes(checkpoint), 0);
        nib_checkpoint_close(checkpoint);
    }
    struct nib_checkpoint *expected = open_checkpoint(test_data("models/gpt_oss/expected.safetensors"));
    assert_int_equal(nib_checkpoint_peek(expected, "logits")->shape[0], 75);
    nib_checkpoint_close(expected);
}

static void reads_the_sharded_model_by_its_index(void **state)
{
    (void)state;
    struct nib_checkpoint *checkpoint = open_checkpoint(test_source("models/tiny-gpt-oss/"));
    assert_int_equal(nib_checkpoint_file_count(checkpoint), 2);
    assert_string_equal(nib_checkpoint_path(checkpoint), test_source("models/tiny-gpt-oss"));
    assert_non_null(nib_checkpoint_generation(checkpoint));
    nib_checkpoint_close(checkpoint);
}

static void write_shard(const char *folder, const char *name, const char *tensor)
{
    struct test_safetensors file = {0};
    test_safetensors_add(&file, tensor, "U8", "[2]", "xy", 2);
    test_safetensors_write(&file, test_inside(folder, name));
}

static void shards_without_an_index_are_read_together(void **state)
{
    (void)state;
    const char *folder = test_scratch("safetensors");
    test_write_text(test_inside(folder, "config.json"), "{}");
    write_shard(folder, "model-00002-of-00002.safetensors", "b");
    write_shard(folder, "model-00001-of-00002.safetensors", "a");
    write_shard(folder, "extra-0-of-1x.safetensors", "c");
    struct nib_checkpoint *checkpoint = open_checkpoint(folder);
    assert_int_equal(nib_checkpoint_file_count(checkpoint), 3);
    assert_int_equal(nib_checkpoint_count(checkpoint), 3);
    nib_checkpoint_close(checkpoint);
}

// OpenAI's are numbered from 0 to the number that they are said to be "of".
static void shards_may_be_numbered_from_zero(void **state)
{
    (void)state;
    const char *folder = test_scratch("safetensors");
    test_write_text(test_inside(folder, "config.json"), "{}");
    write_shard(folder, "model-00000-of-00002.safetensors", "a");
    struct nib_checkpoint *checkpoint;
    struct nib_error err;
    assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "1 of its 2 shards"));
    write_shard(folder, "model-00001-of-00002.safetensors", "b");
    write_shard(folder, "model-00002-of-00002.safetensors", "c");
    checkpoint = open_checkpoint(folder);
    assert_int_equal(nib_checkpoint_count(checkpoint), 3);
    nib_checkpoint_close(checkpoint);
    write_shard(folder, "model-00003-of-00002.safetensors", "d");
    assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_ERR_NOT_FOUND);
}

static void unused_tensors_are_listed(void **state)
{
    (void)state;
    const char *folder = test_scratch("safetensors");
    test_write_text(test_inside(folder, "config.json"), "{}");
    static const char *const names[] = {"model.a", "model.b", "vision.x", "vision.y", "visions", "zeta"};
    struct test_safetensors file = {0};
    for (size_t i = 0; i < 6; i++)
        test_safetensors_add(&file, names[i], "U8", "[2]", "xy", 2);
    test_safetensors_write(&file, test_inside(folder, "model.safetensors"));
    struct nib_checkpoint *checkpoint = open_checkpoint(folder);
    assert_non_null(nib_checkpoint_find(checkpoint, "model.b"));
    assert_null(nib_checkpoint_find(checkpoint, "model.c"));
    assert_non_null(nib_checkpoint_peek(checkpoint, "zeta"));
    assert_int_equal(nib_checkpoint_skip(checkpoint, "vision."), 2);
    assert_int_equal(nib_checkpoint_skip(checkpoint, "none."), 0);
    static const char *const left[] = {"model.a", "visions", "zeta"};
    const struct nib_tensor *tensor = NULL;
    for (size_t i = 0; i < 3; i++) {
        tensor = nib_checkpoint_next_unused(checkpoint, tensor);
        assert_non_null(tensor);
        assert_string_equal(tensor->name, left[i]);
    }
    assert_null(nib_checkpoint_next_unused(checkpoint, tensor));

    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_require(checkpoint, "lm_head.weight", &tensor, &err), NIB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "lm_head.weight"));
    assert_non_null(strstr(err.message, folder));
    nib_checkpoint_close(checkpoint);
}

static void eos_ids_come_from_both_configs_once(void **state)
{
    (void)state;
    static const struct {
        const char *config, *generation;
        int count;
        int32_t ids[4];
    } cases[] = {
        {"{\"eos_token_id\":7}", NULL, 1, {7}},
        {"{\"eos_token_id\":7}", "{\"eos_token_id\":[200002,199999,200012]}", 4, {200002, 199999, 200012, 7}},
        {"{\"eos_token_id\":[3,3]}", "{\"eos_token_id\":3}", 1, {3}},
        {"{\"text_config\":{\"eos_token_id\":5}}", "{}", 1, {5}},
        {"{\"eos_token_id\":null}", NULL, 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = test_scratch("safetensors");
        write_shard(folder, "model.safetensors", "a");
        test_write_text(test_inside(folder, "config.json"), cases[i].config);
        if (cases[i].generation)
            test_write_text(test_inside(folder, "generation_config.json"), cases[i].generation);
        struct nib_checkpoint *checkpoint = open_checkpoint(folder);
        int32_t ids[4];
        int count = -1;
        assert_int_equal(nib_checkpoint_eos_ids(checkpoint, ids, 4, &count, NULL), NIB_OK);
        assert_int_equal(count, cases[i].count);
        assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
        if (count > 1) {
            struct nib_error err = {0};
            assert_int_equal(nib_checkpoint_eos_ids(checkpoint, ids, 1, &count, &err), NIB_ERR_LIMIT);
        }
        nib_checkpoint_close(checkpoint);
    }
}

static long resident_bytes(void)
{
    long total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

// TensorRT-LLM 16125, llama.cpp 16761: loading doubled memory. Here it costs the header, also beyond 4 GiB.
static void opening_touches_only_the_header(void **state)
{
    (void)state;
    const uint64_t size = UINT64_C(5) << 30;
    const char *path = test_inside(test_scratch("safetensors"), "large.safetensors");
    char header[200];
    snprintf(header, sizeof header,
             "{\"big\":{\"dtype\":\"U8\",\"shape\":[5,1073741824],\"data_offsets\":[0,%llu]},"
             "\"end\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[%llu,%llu]}}",
             (unsigned long long)size, (unsigned long long)size, (unsigned long long)size + 2);
    test_write_raw_safetensors(path, header, 0);
    uint64_t end = 8 + strlen(header) + size;
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "ok", 2, (off_t)end), 2);
    close(fd);
    long before = resident_bytes();
    struct nib_checkpoint *checkpoint = open_checkpoint(path);
    long grown = resident_bytes() - before;
    assert_int_equal(nib_checkpoint_peek(checkpoint, "big")->bytes, size);
    assert_memory_equal(nib_checkpoint_peek(checkpoint, "end")->data, "ok", 2);
    assert_true(grown < 8 << 20);
    nib_checkpoint_close(checkpoint);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_names_types_shapes_and_data),
        cmocka_unit_test(every_element_type_is_known),
        cmocka_unit_test(unaligned_data_is_moved_to_its_boundary),
        cmocka_unit_test(reads_all_fixtures),
        cmocka_unit_test(reads_the_sharded_model_by_its_index),
        cmocka_unit_test(shards_without_an_index_are_read_together),
        cmocka_unit_test(shards_may_be_numbered_from_zero),
        cmocka_unit_test(unused_tensors_are_listed),
        cmocka_unit_test(eos_ids_come_from_both_configs_once),
        cmocka_unit_test(opening_touches_only_the_header),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
