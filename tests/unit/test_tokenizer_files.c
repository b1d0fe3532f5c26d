// Files of every kind: small tokenizer.json and rank files made here, right ones, broken ones, folders.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nibble/tokenizer.h"
#include "support/paths.h"
#include "text/tokenizer_parts.h"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define VOCAB "{\"a\":0,\"b\":1,\"\\u0120\":2,\"ab\":3,\"\\u0120ab\":4,\"<|x|>\":5}"
#define MERGES "[[\"a\",\"b\"],\"\\u0120 ab\"]"
#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}"
#define GOOD_MODEL MODEL(VOCAB, MERGES)
#define PRE ",\"pre_tokenizer\":" BYTE_LEVEL
#define SPLIT(pattern) \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define WITH_SPLIT(pattern)                                                                                      \
    "{" GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(pattern) "," BYTE_LEVEL \
                                                                                                  "]}}"

static struct nib_tokenizer *open_json(const char *json)
{
    struct nib_tokenizer *tokenizer;
    struct nib_error err = {0};
    if (nib_tokenizer_open_memory(&tokenizer, json, strlen(json), "t.json", NULL, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return tokenizer;
}

static void assert_encodes(const char *json, const char *text, unsigned flags, size_t count, const int32_t *ids)
{
    struct nib_tokenizer *tokenizer = open_json(json);
    struct nib_token_list list = {0};
    assert_int_equal(nib_tokenizer_encode(tokenizer, text, strlen(text), flags, &list, NULL), NIB_OK);
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(list.ids[i], ids[i]);
    nib_token_list_free(&list);
    nib_tokenizer_close(tokenizer);
}

static void small_files_work(void **state)
{
    (void)state;
    assert_encodes("{" GOOD_MODEL PRE "}", "ab ab", 0, 2, (int32_t[]){3, 4});
    assert_encodes("{" GOOD_MODEL PRE "}", "ba", 0, 2, (int32_t[]){1, 0});
    // No token for "c" and no unk_token: dropped, and the neighbours merge, as in `tokenizers`.
    assert_encodes("{" GOOD_MODEL PRE "}", "acb", 0, 1, (int32_t[]){3});
    assert_encodes("{\"model\":{\"unk_token\":\"b\",\"fuse_unk\":true,\"vocab\":" VOCAB ",\"merges\":[]}" PRE "}",
                   "accb", 0, 3, (int32_t[]){0, 1, 1});
    // A special token of the vocabulary is not a word, even where whole words count before merges.
    assert_encodes("{\"model\":{\"ignore_merges\":true,\"vocab\":" VOCAB ",\"merges\":" MERGES "}" PRE
                   ",\"added_tokens\":[{\"id\":5,\"content\":\"<|x|>\",\"special\":true}]}",
                   "a<|x|>b", NIB_ENCODE_SPECIAL, 3, (int32_t[]){0, 5, 1});
    assert_encodes("{\"model\":{\"ignore_merges\":true,\"vocab\":{\"<\":0,\"<<\":1},\"merges\":[]}" PRE
                   ",\"added_tokens\":[{\"id\":1,\"content\":\"<<\",\"special\":true}]}",
                   "<<", NIB_ENCODE_PLAIN, 2, (int32_t[]){0, 0});
}

static void added_tokens_longest_and_stripping(void **state)
{
    (void)state;
    const char *json = "{" GOOD_MODEL PRE ",\"added_tokens\":["
                       "{\"id\":10,\"content\":\"<a\",\"normalized\":false},{\"id\":11,\"content\":\"<a><b\","
                       "\"normalized\":false},"
                       "{\"id\":12,\"content\":\"<a>\",\"normalized\":false,\"special\":true},"
                       "{\"id\":13,\"content\":\"<m>\",\"lstrip\":true,\"rstrip\":true,\"special\":true}]}";
    assert_encodes(json, "<a><b", NIB_ENCODE_SPECIAL, 1, (int32_t[]){11});
    assert_encodes(json, "<a><a", NIB_ENCODE_SPECIAL, 2, (int32_t[]){12, 10});
    assert_encodes(json, "ab \xe3\x80\x80<m>\t\n ab<m>", NIB_ENCODE_SPECIAL, 4, (int32_t[]){3, 13, 3, 13});
    // White space that a token has stripped is no token any more if it strips leftwards itself.
    assert_encodes("{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":10,\"content\":\"<m>\",\"rstrip\":true},"
                   "{\"id\":11,\"content\":\"\\t\",\"lstrip\":true}]}",
                   "\tab<m>\tab \tab", NIB_ENCODE_SPECIAL, 6, (int32_t[]){11, 3, 10, 3, 11, 3});
    struct nib_tokenizer *tokenizer = open_json(json);
    assert_true(nib_tokenizer_is_special(tokenizer, 12));
    assert_false(nib_tokenizer_is_special(tokenizer, 10));
    assert_false(nib_tokenizer_is_special(tokenizer, 9)); // a gap
    assert_int_equal(nib_tokenizer_find_added(tokenizer, "<a"), 10);
    assert_int_equal(nib_tokenizer_vocab_size(tokenizer), 14);
    nib_tokenizer_close(tokenizer);
}

// In these files \u00c3\u00a9 stands for the bytes of U+00E9, \u00cc\u0123 for those of U+0301, \u00ff for one of none.
#define NFC_MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"\\u00c3\":0,\"\\u00a9\":1,\"\\u00c3\\u00a9\":2,\"e\":3," \
    "\"\\u00cc\":4,"                                                                                   \
    "\"\\u0123\":5,\"!\":6,\"\\u00ff\":7},\"merges\":[[\"\\u00c3\",\"\\u00a9\"]]}" PRE
#define NFC ",\"normalizer\":{\"type\":\"NFC\"}"

static void text_is_normalised_where_the_file_asks(void **state)
{
    (void)state;
    assert_encodes("{" NFC_MODEL "}", "e\u0301", 0, 3, (int32_t[]){3, 4, 5});
    assert_encodes("{" NFC_MODEL NFC "}", "e\u0301", 0, 1, (int32_t[]){2});
    assert_encodes("{" NFC_MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}}",
                   "!e\u0301\u00e9", NIB_ENCODE_SPECIAL, 3, (int32_t[]){6, 2, 2});
    // A byte that is not UTF-8 stays, and parts what stands around it.
    assert_encodes("{" NFC_MODEL NFC "}", "e\xff\u0301", 0, 4, (int32_t[]){3, 7, 4, 5});
    assert_encodes("{" NFC_MODEL NFC "}", "e\u0301\xff", 0, 2, (int32_t[]){2, 7});
    // Tokens not "normalized" are looked for in the text as it is, the others in the form, and are brought into it.
    const char *added = "{" NFC_MODEL NFC ",\"added_tokens\":["
                        "{\"id\":8,\"content\":\"<e\\u0301>\",\"normalized\":false},"
                        "{\"id\":9,\"content\":\"e\\u0301!\",\"normalized\":true}]}";
    assert_encodes(added, "<e\u0301>e\u0301!\u00e9!", NIB_ENCODE_SPECIAL, 3, (int32_t[]){8, 9, 9});
    assert_encodes(added, "e\u0301!", NIB_ENCODE_PLAIN, 2, (int32_t[]){2, 6});
}

static void the_form_itself(void **state)
{
    (void)state;
    static const struct {
        const char *text, *form;
    } cases[] = {
        {"a\u0302\u0323", "\u1ead"}, // marks in another order
        {"\u1112\u1161\u11ab", "\ud55c"},
        {"\uac00\u11a7\u11a8", "\uac00\u11a7\u11a8"}, // U+11A7 is no final consonant
        {"\u0958", "\u0915\u093c"},                   // excluded from composition
        {"\u212b \uf900", "\u00c5 \u8c48"},
        {"\u0344", "\u0308\u0301"},
        {"e\xcc", "e\xcc"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_bytes form = {0};
        const char *text = cases[i].text;
        assert_int_equal(nib_normalize_nfc((const uint8_t *)text, strlen(text), &form, NULL), NIB_OK);
        assert_int_equal(form.size, strlen(cases[i].form));
        assert_memory_equal(form.data, cases[i].form, form.size);
        nib_bytes_free(&form);
    }
}

// Putting marks in order takes time by the square of their number, so many are taken in parts: here those of class 230 stay
// before those of 220.
static void a_wall_of_marks_is_ordered_in_parts(void **state)
{
    (void)state;
    uint8_t text[1 << 16];
    struct nib_bytes form = {0};
    for (size_t i = 0; i < sizeof text; i += 2)
        memcpy(text + i, i < sizeof text / 2 ? "\xcc\x81" : "\xcc\x96", 2);
    assert_int_equal(nib_normalize_nfc(text, sizeof text, &form, NULL), NIB_OK);
    assert_int_equal(form.size, sizeof text);
    assert_memory_equal(form.data, text, 1 << 14);
    nib_bytes_free(&form);
}

struct refusal {
    const char *file;
    nib_status status;
    const char *says; // part of the message
};

static const struct refusal refusals[] = {
    {"", NIB_ERR_FORMAT, "line 1"},
    {"null", NIB_ERR_FORMAT, "line 1"},
    {"[]", NIB_ERR_FORMAT, "no model"},
    {"{}", NIB_ERR_FORMAT, "no model"},
    {"{\"model\":3}", NIB_ERR_FORMAT, "no model"},
    {"{\"model\":{}}", NIB_ERR_FORMAT, "model.vocab"},
    {"{" GOOD_MODEL PRE, NIB_ERR_FORMAT, "line 1"}, // cut off
    {"{" GOOD_MODEL PRE "}x", NIB_ERR_FORMAT, "line 1"},
    {"{\"model\":\"\xff\"}", NIB_ERR_FORMAT, "line 1"},
    {"{\"model\":{\"type\":\"Unigram\"}}", NIB_ERR_UNSUPPORTED, "Unigram"},
    {"{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true}}", NIB_ERR_UNSUPPORTED, "byte_fallback"},
    {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1}}", NIB_ERR_UNSUPPORTED, "dropout"},
    {"{\"model\":{\"end_of_word_suffix\":\"</w>\"}}", NIB_ERR_UNSUPPORTED, "end_of_word_suffix"},
    {"{\"model\":{\"ignore_merges\":1}}", NIB_ERR_FORMAT, "ignore_merges"},
    {"{" MODEL("[]", "[]") "}", NIB_ERR_FORMAT, "model.vocab"},
    {"{" MODEL("{\"a\":\"0\"}", "[]") "}", NIB_ERR_FORMAT, "not an integer"},
    {"{" MODEL("{\"a\":0.5}", "[]") "}", NIB_ERR_FORMAT, "not an integer"},
    {"{" MODEL("{\"a\":-1}", "[]") "}", NIB_ERR_LIMIT, "-1"},
    {"{" MODEL("{\"a\":2097152}", "[]") "}", NIB_ERR_LIMIT, "2097152"},
    {"{" MODEL("{\"a\":9223372036854775807}", "[]") "}", NIB_ERR_LIMIT, "9223372036854775807"},
    {"{" MODEL("{\"a\":99999999999999999999}", "[]") "}", NIB_ERR_FORMAT, "line 1"},
    {"{" MODEL("{\"a\":0,\"b\":0}", "[]") "}", NIB_ERR_FORMAT, "two tokens have the id 0"},
    {"{" MODEL("{\"a\":0,\"a\":1}", "[]") "}", NIB_ERR_FORMAT, "duplicate"},
    {"{" MODEL(VOCAB, "{}") "}", NIB_ERR_FORMAT, "model.merges is not"},
    {"{" MODEL(VOCAB, "[3]") "}", NIB_ERR_FORMAT, "model.merges[0]"},
    {"{" MODEL(VOCAB, "[\"ab\"]") "}", NIB_ERR_FORMAT, "model.merges[0]"},
    {"{" MODEL(VOCAB, "[\"a b c\"]") "}", NIB_ERR_FORMAT, "model.merges[0]"},
    {"{" MODEL(VOCAB, "[[\"a\",\"b\"],[\"a\"]]") "}", NIB_ERR_FORMAT, "model.merges[1]"},
    {"{" MODEL(VOCAB, "[[\"a\",1]]") "}", NIB_ERR_FORMAT, "model.merges[0]"},
    {"{" MODEL(VOCAB, "[[\"a\",\"zz\"]]") "}", NIB_ERR_FORMAT, "\"zz\" is not in the vocabulary"},
    {"{" MODEL(VOCAB, "[[\"\",\"a\"]]") "}", NIB_ERR_FORMAT, "not in the vocabulary"},
    {"{" MODEL(VOCAB, "[[\"b\",\"a\"]]") "}", NIB_ERR_FORMAT, "lacks what it makes"},
    {"{" GOOD_MODEL "}", NIB_ERR_UNSUPPORTED, "pre_tokenizer"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":null}", NIB_ERR_UNSUPPORTED, "pre_tokenizer"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}}", NIB_ERR_UNSUPPORTED, "Metaspace"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":" SPLIT("a") "}", NIB_ERR_UNSUPPORTED, "no ByteLevel"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL
     "]}}",
     NIB_ERR_UNSUPPORTED, "behind ByteLevel"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}}",
     NIB_ERR_FORMAT, "no pattern"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"}}}", NIB_ERR_FORMAT,
     "no behavior"},
    {"{" GOOD_MODEL
     ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Contiguous\"}}",
     NIB_ERR_UNSUPPORTED, "Contiguous"},
    {"{" GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":\"no\"}}", NIB_ERR_FORMAT,
     "use_regex"},
    {"{" GOOD_MODEL PRE ",\"normalizer\":{\"type\":\"NFKC\"}}", NIB_ERR_UNSUPPORTED, "normalizer NFKC"},
    {"{" GOOD_MODEL PRE ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
     "{\"type\":\"Lowercase\"}]}}",
     NIB_ERR_UNSUPPORTED, "normalizer Lowercase"},
    {"{" GOOD_MODEL PRE ",\"normalizer\":7}", NIB_ERR_UNSUPPORTED, "normalizer"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":{}}", NIB_ERR_FORMAT, "added_tokens"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[1]}", NIB_ERR_FORMAT, "added_tokens[0]"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"content\":\"x\"}]}", NIB_ERR_FORMAT, "added_tokens[0] \"x\""},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":9,\"content\":\"\"}]}", NIB_ERR_FORMAT, "1 … 1024 bytes"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]}", NIB_ERR_FORMAT, "two tokens"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]}", NIB_ERR_FORMAT,
     "1 here and 0 in model.vocab"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":4294967296,\"content\":\"x\"}]}", NIB_ERR_LIMIT, "4294967296"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"special\":\"yes\"}]}", NIB_ERR_FORMAT,
     "special"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"single_word\":true}]}",
     NIB_ERR_UNSUPPORTED, "single_word"},
    {"{" GOOD_MODEL PRE ",\"added_tokens\":[{\"id\":0,\"content\":\"a\"},{\"id\":0,\"content\":\"a\"}]}",
     NIB_ERR_FORMAT, "same text"},
    {WITH_SPLIT("[a[b]]"), NIB_ERR_UNSUPPORTED, "class within a class"},
    {WITH_SPLIT("[ab"), NIB_ERR_UNSUPPORTED, "class without an end"},
    {WITH_SPLIT("[ab&&[^c]]"), NIB_ERR_UNSUPPORTED, "intersection"},
    {WITH_SPLIT("(?<n>a)"), NIB_ERR_UNSUPPORTED, "kind of group"},
    {WITH_SPLIT("a(?i)b"), NIB_ERR_UNSUPPORTED, "kind of group"},
    {WITH_SPLIT("a{2}+"), NIB_ERR_UNSUPPORTED, "behind this interval"},
    {WITH_SPLIT("a{,2}"), NIB_ERR_UNSUPPORTED, "'{'"},
    {WITH_SPLIT("\\\\bword\\\\b"), NIB_ERR_UNSUPPORTED, "escape sequence"},
    {WITH_SPLIT("\\\\p{Klingon}"), NIB_ERR_UNSUPPORTED, "split pattern"},
    {WITH_SPLIT("(a"), NIB_ERR_UNSUPPORTED, "parenthes"},
    {WITH_SPLIT("a\\\\"), NIB_ERR_UNSUPPORTED, "backslash at the end"},
    {WITH_SPLIT("(*UTF)a"), NIB_ERR_UNSUPPORTED, "split pattern"},
};

static void broken_files_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct nib_tokenizer *tokenizer = (void *)&refusals;
        struct nib_error err = {0};
        const char *file = refusals[i].file;
        nib_status status = nib_tokenizer_open_memory(&tokenizer, file, strlen(file), "t.json", NULL, &err);
        if (status != refusals[i].status || !strstr(err.message, refusals[i].says))
            fail_msg("%s\ngives %d \"%s\", expected %d \"%s\"", file, status, err.message, refusals[i].status,
                     refusals[i].says);
        assert_int_equal(err.status, status);
        assert_null(tokenizer);
        assert_int_equal(strncmp(err.message, "t.json: ", 8), 0);
        assert_int_equal(nib_tokenizer_open_memory(&tokenizer, file, strlen(file), "t.json", NULL, NULL), status);
    }
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    const char *file = WITH_SPLIT("\\\\p{L}+|[^\\\\p{L}]");
    nib_tokenizer_close(open_json(file));
    for (size_t size = 0; size < strlen(file); size++) {
        struct nib_tokenizer *tokenizer;
        char *cut = malloc(size + 1); // exact, for AddressSanitizer
        assert_non_null(cut);
        memcpy(cut, file, size);
        assert_int_equal(nib_tokenizer_open_memory(&tokenizer, cut, size, "cut", NULL, NULL), NIB_ERR_FORMAT);
        free(cut);
    }
}

static void deep_json_is_refused(void **state)
{
    (void)state;
    size_t size = 1000000;
    char *deep = malloc(size);
    assert_non_null(deep);
    memset(deep, '[', size);
    struct nib_tokenizer *tokenizer;
    struct nib_error err = {0};
    assert_int_equal(nib_tokenizer_open_memory(&tokenizer, deep, size, "deep", NULL, &err), NIB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "depth"));
    free(deep);
}

static void a_wild_pattern_stops(void **state)
{
    (void)state;
    struct nib_tokenizer *tokenizer = open_json(WITH_SPLIT("(?:a|aa|aaa)*(?:aa|a)*b(?=c)"));
    struct nib_token_list list = {0};
    struct nib_error err = {0};
    char text[200];
    memset(text, 'a', sizeof text);
    assert_int_equal(nib_token_list_add(&list, 7, NULL), NIB_OK);
    text[199] = 'b';
    assert_int_equal(nib_tokenizer_encode(tokenizer, text, sizeof text, 0, &list, &err), NIB_ERR_LIMIT);
    assert_non_null(strstr(err.message, "gives up"));
    assert_int_equal(list.count, 1);
    nib_token_list_free(&list);
    nib_tokenizer_close(tokenizer);
}

// ---- rank files

// The 256 bytes as ranks 0 … 255, and more lines; in new memory.
static char *make_ranks(const char *more)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *file = malloc(16 * 256 + strlen(more) + 1), *at = file;
    assert_non_null(file);
    for (unsigned byte = 0; byte < 256; byte++)
        at += sprintf(at, "%c%c== %u\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    strcpy(at, more);
    return file;
}

static void rank_files(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"YWI= 256\r\n\nYWJj 257", NIB_OK, ""}, // ab, abc
        {"YWI 256\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"Y=I= 256\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"==== 256\n", NIB_ERR_FORMAT, "line 257 is not"},
        {" 256\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"YWI=\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"YWI= \n", NIB_ERR_FORMAT, "line 257 is not"},
        {"YWI= -1\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"YWI= 1e3\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"YWI= 99999999999999999999\n", NIB_ERR_FORMAT, "line 257 is not"},
        {"YWI= 2097152\n", NIB_ERR_LIMIT, "2097152"},
        {"YWI= 255\n", NIB_ERR_FORMAT, "two tokens have the id 255"},
        {"YQ== 256\n", NIB_ERR_FORMAT, "same bytes"},
        {"YWI= 1000\n", NIB_ERR_FORMAT, "special token <|end|>"},
    };
    static const struct nib_named_token specials[] = {{"<|end|>", 1000}};
    struct nib_tokenizer_preset preset = {
        .name = "test", .pattern = "\\p{L}+|\\P{L}", .specials = specials, .special_count = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_tokenizer *tokenizer;
        struct nib_error err = {0};
        char *file = make_ranks(cases[i].file);
        nib_status status = nib_tokenizer_open_memory(&tokenizer, file, strlen(file), "r", &preset, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].says))
            fail_msg("%s gives %d \"%s\"", cases[i].file, status, err.message);
        nib_tokenizer_close(tokenizer);
        free(file);
    }
    struct nib_tokenizer *tokenizer;
    struct nib_error err = {0};
    assert_int_equal(nib_tokenizer_open_memory(&tokenizer, "YQ== 0\n", 7, "r", &preset, &err), NIB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "no token for byte 0x00"));
}

static void write_file(const char *folder, const char *name, const char *content)
{
    char path[5000];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static nib_status open_path(const char *path, const struct nib_tokenizer_preset *preset, int32_t *vocab_size)
{
    struct nib_tokenizer *tokenizer;
    nib_status status = nib_tokenizer_open(&tokenizer, path, preset, NULL);
    *vocab_size = status == NIB_OK ? nib_tokenizer_vocab_size(tokenizer) : -1;
    nib_tokenizer_close(tokenizer);
    return status;
}

static void folders_are_searched(void **state)
{
    (void)state;
    int32_t size;
    struct nib_tokenizer_preset preset = {.name = "test", .pattern = "\\p{L}+|\\P{L}"};
    const char *folder = test_scratch("tokenizer");
    char *ranks = make_ranks("YWI= 256\n"), *more_ranks = make_ranks("YWI= 256\nYWJj 257\n");
    assert_int_equal(open_path(folder, &preset, &size), NIB_ERR_NOT_FOUND);
    write_file(folder, "tiktoken.model", ranks);
    assert_int_equal(open_path(folder, &preset, &size), NIB_OK);
    assert_int_equal(size, 257);
    write_file(folder, "x.tiktoken", more_ranks);
    assert_int_equal(open_path(folder, &preset, &size), NIB_OK);
    assert_int_equal(size, 258);
    assert_int_equal(open_path(folder, NULL, &size), NIB_ERR_ARGUMENT); // whose ranks these are
    write_file(folder, "y.tiktoken", more_ranks);
    assert_int_equal(open_path(folder, &preset, &size), NIB_ERR_ARGUMENT);
    write_file(folder, "tokenizer.json", "{" GOOD_MODEL PRE "}");
    assert_int_equal(open_path(folder, &preset, &size), NIB_OK);
    assert_int_equal(size, 6);
    write_file(folder, "tokenizer.json", "");
    assert_int_equal(open_path(folder, NULL, &size), NIB_ERR_FORMAT);
    assert_int_equal(open_path("/nowhere/at/all", NULL, &size), NIB_ERR_NOT_FOUND);
    free(ranks);
    free(more_ranks);
}

static void expect_token(const struct nib_tokenizer *tokenizer, const char *text, int32_t id)
{
    size_t size;
    assert_int_equal(nib_tokenizer_find_added(tokenizer, text), id);
    if (id < 0)
        return;
    assert_true(nib_tokenizer_is_special(tokenizer, id));
    const uint8_t *bytes = nib_tokenizer_token_bytes(tokenizer, id, &size);
    assert_true(size == strlen(text) && memcmp(bytes, text, size) == 0);
}

// 256 ranks stand for the 163584 of the real file; the specials lie behind them as tokenizer_config.json says.
static void kimi_ranks(void **state)
{
    (void)state;
    struct nib_tokenizer *tokenizer;
    struct nib_error err;
    char *ranks = make_ranks("");
    const char *folder = test_scratch("kimi-tokenizer");
    write_file(folder, "tiktoken.model", ranks);
    // Without a configuration the ids are those of Kimi-K2, which this file is too short for.
    assert_int_equal(nib_tokenizer_open(&tokenizer, folder, NULL, &err), NIB_OK);
    assert_int_equal(nib_tokenizer_vocab_size(tokenizer), 163840);
    expect_token(tokenizer, "<|im_end|>", 163586);
    expect_token(tokenizer, "<think>", -1);
    nib_tokenizer_close(tokenizer);
    write_file(
        folder, "tokenizer_config.json",
        "{\"added_tokens_decoder\": {\"258\": {\"content\": \"<|im_end|>\", \"special\": true}, \"300\": "
        "{\"content\": \"<think>\", \"special\": false}}, \"model_max_length\": 1000000000000000019884624838656}");
    if (nib_tokenizer_open(&tokenizer, folder, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(nib_tokenizer_vocab_size(tokenizer), 512);
    expect_token(tokenizer, "<|im_end|>", 258);
    expect_token(tokenizer, "<think>", 300);
    expect_token(tokenizer, "<|reserved_token_256|>", 256);
    expect_token(tokenizer, "<|reserved_token_300|>", -1);
    expect_token(tokenizer, "<|reserved_token_511|>", 511);
    expect_token(tokenizer, "<|im_user|>", -1);
    struct nib_token_list plain = {0}, rendered = {0};
    assert_int_equal(nib_tokenizer_encode(tokenizer, "<|im_end|>", 10, NIB_ENCODE_PLAIN, &plain, NULL), NIB_OK);
    assert_int_equal(nib_tokenizer_encode(tokenizer, "<|im_end|>", 10, NIB_ENCODE_SPECIAL, &rendered, NULL),
                     NIB_OK);
    assert_int_equal(plain.count, 10);
    assert_int_equal(rendered.count, 1);
    assert_int_equal(rendered.ids[0], 258);
    nib_token_list_free(&plain);
    nib_token_list_free(&rendered);
    nib_tokenizer_close(tokenizer);
    free(ranks);
}

static void broken_tokenizer_configs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{", "tokenizer_config.json: line 1"},
        {"{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}", "\"x\" is not an id"},
        {"{\"added_tokens_decoder\": {\"\": {\"content\": \"a\"}}}", "is not an id"},
        {"{\"added_tokens_decoder\": {\"99999999999\": {\"content\": \"a\"}}}", "is not an id"},
        {"{\"added_tokens_decoder\": {\"300\": {}}}", "\"300\""},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"\"}}}", "\"300\""},
        {"{\"added_tokens_decoder\": {\"5\": {\"content\": \"<a>\"}}}", "two tokens have the id 5"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"<a>\"}, \"301\": {\"content\": \"<a>\"}}}",
         "same text"},
    };
    char *ranks = make_ranks("");
    const char *folder = test_scratch("kimi-broken");
    write_file(folder, "tiktoken.model", ranks);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_tokenizer *tokenizer;
        struct nib_error err = {0};
        write_file(folder, "tokenizer_config.json", cases[i].config);
        assert_int_not_equal(nib_tokenizer_open(&tokenizer, folder, NULL, &err), NIB_OK);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s gives \"%s\"", cases[i].config, err.message);
    }
    free(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_files_work),
        cmocka_unit_test(added_tokens_longest_and_stripping),
        cmocka_unit_test(text_is_normalised_where_the_file_asks),
        cmocka_unit_test(the_form_itself),
        cmocka_unit_test(a_wall_of_marks_is_ordered_in_parts),
        cmocka_unit_test(broken_files_are_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(deep_json_is_refused),
        cmocka_unit_test(a_wild_pattern_stops),
        cmocka_unit_test(rank_files),
        cmocka_unit_test(folders_are_searched),
        cmocka_unit_test(kimi_ranks),
        cmocka_unit_test(broken_tokenizer_configs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
