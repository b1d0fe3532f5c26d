// The tokenizers that come with the tests: known ids, round trips, control tokens, hostile text, speed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "nibble/tokenizer.h"
#include "support/paths.h"

static struct nib_tokenizer *o200k, *tiny;

static int open_both(void **state)
{
    (void)state;
    struct nib_error err = {0};
    const struct nib_tokenizer_preset *preset = nib_tokenizer_preset_find("o200k_harmony");
    if (nib_tokenizer_open(&o200k, test_data("tokenizer/o200k_base.tiktoken"), preset, &err) != NIB_OK ||
        nib_tokenizer_open(&tiny, test_source("models/tiny-gpt-oss"), NULL, &err) != NIB_OK) {
        print_error("%s\n", err.message);
        return 1;
    }
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    nib_tokenizer_close(o200k);
    nib_tokenizer_close(tiny);
    return 0;
}

static struct nib_token_list encode(const struct nib_tokenizer *tokenizer, const char *text, size_t size,
                                    unsigned flags)
{
    struct nib_token_list list = {0};
    struct nib_error err = {0};
    if (nib_tokenizer_encode(tokenizer, text, size, flags, &list, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return list;
}

static void assert_ids(const struct nib_tokenizer *tokenizer, const char *text, unsigned flags, const int32_t *ids,
                       size_t count)
{
    struct nib_token_list list = encode(tokenizer, text, strlen(text), flags);
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list.ids[i], ids[i]);
    nib_token_list_free(&list);
}

// Returns the number of tokens.
static size_t assert_round_trip(const struct nib_tokenizer *tokenizer, const char *text, size_t size,
                                unsigned flags)
{
    struct nib_token_list list = encode(tokenizer, text, size, flags);
    struct nib_bytes back = {0};
    assert_int_equal(nib_tokenizer_decode(tokenizer, list.ids, list.count, &back, NULL), NIB_OK);
    assert_int_equal(back.size, size);
    if (size > 0)
        assert_memory_equal(back.data, text, size);
    size_t count = list.count;
    nib_token_list_free(&list);
    nib_bytes_free(&back);
    return count;
}

static void assert_json_ids(const struct nib_tokenizer *tokenizer, const json_t *text, const json_t *expected,
                            unsigned flags)
{
    assert_true(json_is_string(text) && json_is_array(expected));
    struct nib_token_list list = encode(tokenizer, json_string_value(text), json_string_length(text), flags);
    assert_int_equal(list.count, json_array_size(expected));
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(list.ids[i], json_integer_value(json_array_get(expected, i)));
    nib_token_list_free(&list);
}

static void o200k_vectors(void **state)
{
    (void)state;
    json_t *vectors = json_load_file(test_data("tokenizer/o200k_vectors.json"), JSON_ALLOW_NUL, NULL);
    assert_int_equal(json_array_size(vectors), 20);
    for (size_t i = 0; i < json_array_size(vectors); i++) {
        const json_t *vector = json_array_get(vectors, i);
        assert_json_ids(o200k, json_object_get(vector, "text"), json_object_get(vector, "ids"), NIB_ENCODE_PLAIN);
    }
    json_decref(vectors);
}

static void prompts_of_the_small_model(void **state)
{
    (void)state;
    json_t *root = json_load_file(test_data("tiny-gpt-oss/expected.json"), JSON_ALLOW_NUL, NULL);
    const json_t *prompts = json_object_get(root, "prompts");
    assert_true(json_array_size(prompts) > 0);
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        const json_t *prompt = json_array_get(prompts, i);
        assert_json_ids(tiny, json_object_get(prompt, "text"), json_object_get(prompt, "token_ids"),
                        NIB_ENCODE_SPECIAL);
    }
    json_decref(root);
}

static void control_tokens_only_on_request(void **state)
{
    (void)state;
    assert_ids(o200k, "<|end|>", NIB_ENCODE_SPECIAL, (int32_t[]){200007}, 1);
    assert_ids(o200k, "<|end|><|start|>", NIB_ENCODE_SPECIAL, (int32_t[]){200007, 200006}, 2);
    assert_ids(o200k, "Hello<|call|>, world!", NIB_ENCODE_SPECIAL, (int32_t[]){13225, 200012, 11, 2375, 0}, 5);
    const struct nib_tokenizer *both[] = {o200k, tiny};
    for (size_t t = 0; t < 2; t++) {
        int32_t specials = 0;
        for (int32_t id = 0; id < nib_tokenizer_vocab_size(both[t]); id++) {
            if (!nib_tokenizer_is_special(both[t], id))
                continue;
            size_t size;
            const char *text = (const char *)nib_tokenizer_token_bytes(both[t], id, &size);
            char padded[64];
            snprintf(padded, sizeof padded, "%.*s", (int)size, text);
            assert_int_equal(nib_tokenizer_find_added(both[t], padded), id);
            assert_ids(both[t], padded, NIB_ENCODE_SPECIAL, &id, 1);
            struct nib_token_list plain = encode(both[t], padded, size, NIB_ENCODE_PLAIN);
            assert_true(plain.count > 1);
            for (size_t i = 0; i < plain.count; i++)
                assert_false(nib_tokenizer_is_special(both[t], plain.ids[i]));
            nib_token_list_free(&plain);
            specials++;
        }
        assert_int_equal(specials, 21);
    }
    assert_int_equal(nib_tokenizer_find_added(o200k, "<|en"), -1);
    assert_int_equal(nib_tokenizer_find_added(o200k, "<|end|>x"), -1);
    assert_int_equal(nib_tokenizer_find_added(o200k, ""), -1);
    assert_null(nib_tokenizer_preset_find("o200k"));
}

static void ids_outside_the_vocabulary(void **state)
{
    (void)state;
    const int32_t ids[] = {-1, INT32_MIN, INT32_MAX, 200019, 199998 - 1};
    assert_int_equal(nib_tokenizer_vocab_size(o200k), 200019);
    assert_int_equal(nib_tokenizer_vocab_size(tiny), 5120);
    for (size_t i = 0; i < 4; i++) {
        size_t size = 7;
        struct nib_bytes out = {0};
        struct nib_error err = {0};
        assert_null(nib_tokenizer_token_bytes(o200k, ids[i], &size));
        assert_int_equal(size, 0);
        assert_false(nib_tokenizer_is_special(o200k, ids[i]));
        assert_int_equal(nib_bytes_append(&out, "kept", 4, NULL), NIB_OK);
        assert_int_equal(nib_tokenizer_decode(o200k, (int32_t[]){13225, ids[i]}, 2, &out, &err), NIB_ERR_ARGUMENT);
        assert_string_equal(out.data, "kept");
        assert_non_null(strstr(err.message, "no token has the id"));
        struct nib_utf8_stream stream = {0};
        assert_int_equal(nib_utf8_stream_push_token(&stream, o200k, ids[i], &out, NULL), NIB_ERR_ARGUMENT);
        nib_bytes_free(&out);
    }
}

static void every_token_round_trips(void **state)
{
    (void)state;
    const struct nib_tokenizer *both[] = {o200k, tiny};
    for (size_t t = 0; t < 2; t++) {
        int32_t whole = 0;
        for (int32_t id = 0; id < nib_tokenizer_vocab_size(both[t]); id++) {
            size_t size;
            const char *bytes = (const char *)nib_tokenizer_token_bytes(both[t], id, &size);
            assert_non_null(bytes);
            assert_true(size > 0);
            whole += assert_round_trip(both[t], bytes, size, NIB_ENCODE_SPECIAL) == 1;
        }
        // Most tokens are what their own text encodes to; the others cross a boundary of the split pattern.
        assert_true(whole > nib_tokenizer_vocab_size(both[t]) * 9 / 10);
    }
}

static void any_bytes_round_trip(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
    } cases[] = {
        {"", 0},
        {"\0", 1},
        {"a\0b\0\0", 5},
        {"\xed\xa0\x80", 3},               // a lone surrogate
        {"x\xed\xb0\x80\xed\xa0\xbdy", 8}, // two in the wrong order
        {"\xff\xfe\x80\xbf", 4},
        {"caf\xc3", 4}, // ends within a character
        {"\xf0\x9f\x98", 3},
        {"\xc0\xaf\xe0\x80\xaf\xf8\x88\x80\x80\x80", 10}, // overlong
        {"\xf4\x90\x80\x80", 4},                          // above U+10FFFF
        {"a\xe1\xa0\x8e b", 6},                           // U+180E
        {"\xef\xbb\xbfword", 7},
        {"<|end\xff|><|end|>", 15},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            assert_round_trip(o200k, cases[i].bytes, cases[i].size, flags);
            assert_round_trip(tiny, cases[i].bytes, cases[i].size, flags);
        }
    uint32_t random = 12345;
    for (int round = 0; round < 2000; round++) {
        char text[100];
        size_t size = (size_t)round % sizeof text;
        for (size_t i = 0; i < size; i++) {
            random = random * 1664525 + 1013904223;
            text[i] = (char)(random >> 24);
        }
        assert_round_trip(o200k, text, size, NIB_ENCODE_PLAIN);
        assert_round_trip(tiny, text, size, NIB_ENCODE_SPECIAL);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Fills a megabyte with repetitions of a unit and encodes it. The bound is far off, against quadratic time only.
static void time_megabyte(const char *what, const char *unit, unsigned flags)
{
    size_t length = strlen(unit), size = (size_t)1 << 20;
    char *text = malloc(size);
    assert_non_null(text);
    for (size_t i = 0; i < size; i++)
        text[i] = unit[i % length];
    const struct nib_tokenizer *both[] = {o200k, tiny};
    for (size_t t = 0; t < 2; t++) {
        double start = seconds();
        struct nib_token_list list = encode(both[t], text, size, flags);
        double took = seconds() - start;
        print_message("%s, 1 MiB of %s: %zu tokens, %.3f s\n", t ? "tiny " : "o200k", what, list.count, took);
        assert_true(took < 60);
        nib_token_list_free(&list);
        assert_round_trip(both[t], text, size, flags);
    }
    free(text);
}

static void a_megabyte_of_anything(void **state)
{
    (void)state;
    time_megabyte("prose",
                  "It was a fine morning, and Mr. Weston walked to the village; he'd said \"we'll see\" twice. ",
                  0);
    time_megabyte("code", "    for (size_t i = 0; i < 1024; i++)\n        sum += values[i] * 0x1F; // the total\n",
                  0);
    time_megabyte("Chinese", "中文分词测试，你好！人工智能的发展正在改变世界。", 0);
    time_megabyte("one letter", "a", 0);
    time_megabyte("one capital", "A", 0);
    time_megabyte("one ideograph", "文", 0);
    time_megabyte("spaces", " ", 0);
    time_megabyte("newlines", "\n", 0);
    time_megabyte("digits", "7", 0);
    time_megabyte("marks", "\xcc\x81", 0);
    time_megabyte("signs", "!?", 0);
    time_megabyte("bytes that are not UTF-8", "\xff\xed\xa0\x80", 0);
    time_megabyte("almost control tokens", "<|end", NIB_ENCODE_SPECIAL);
    time_megabyte("control tokens", "<|end|>", NIB_ENCODE_SPECIAL);
    time_megabyte("random letters", "qzjxkvbpygfwmucldrhsnioate", 0);
}

static void ranks_load_fast(void **state)
{
    (void)state;
    struct nib_tokenizer *tokenizer;
    double start = seconds();
    assert_int_equal(nib_tokenizer_open(&tokenizer, test_data("tokenizer/o200k_base.tiktoken"),
                                        nib_tokenizer_preset_find("o200k_harmony"), NULL),
                     NIB_OK);
    print_message("o200k ranks opened in %.3f s\n", seconds() - start);
    nib_tokenizer_close(tokenizer);
}

static void encode_appends(void **state)
{
    (void)state;
    struct nib_token_list list = {0};
    for (int32_t i = 0; i < 100; i++)
        assert_int_equal(nib_token_list_add(&list, i, NULL), NIB_OK);
    assert_int_equal(nib_tokenizer_encode(o200k, "Hello", 5, 0, &list, NULL), NIB_OK);
    assert_int_equal(list.count, 101);
    assert_int_equal(list.ids[99], 99);
    assert_int_equal(list.ids[100], 13225);
    nib_token_list_free(&list);
    assert_null(list.ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(o200k_vectors),
        cmocka_unit_test(prompts_of_the_small_model),
        cmocka_unit_test(control_tokens_only_on_request),
        cmocka_unit_test(ids_outside_the_vocabulary),
        cmocka_unit_test(every_token_round_trips),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(a_megabyte_of_anything),
        cmocka_unit_test(ranks_load_fast),
        cmocka_unit_test(encode_appends),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
