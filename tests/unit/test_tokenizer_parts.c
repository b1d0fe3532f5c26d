// Parts of the tokenizer on their own: UTF-8 streaming, and the translation of split patterns.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/tokenizer_parts.h"

#define FFFD "\xef\xbf\xbd"

static const struct {
    const char *in, *out;
} streams[] = {
    {"plain", "plain"},
    {"na\xc3\xafve \xe6\x96\x87 \xf0\x9f\x98\x80", "na\xc3\xafve \xe6\x96\x87 \xf0\x9f\x98\x80"},
    {"\xff\xfe", FFFD FFFD},
    {"\x80"
     "a\xbf",
     FFFD "a" FFFD},
    {"\xe6\x96", FFFD}, // one for the run that could have become a character
    {"\xf0\x9f\x98", FFFD},
    {"\xe6\x96\x41", FFFD "A"},
    {"\xe6\xe6\x96\x87", FFFD "\xe6\x96\x87"},
    {"\xf0\x9f\xf0\x9f\x98\x80", FFFD "\xf0\x9f\x98\x80"},
    {"\xed\xa0\x80", FFFD FFFD FFFD}, // a surrogate: no run can begin with ED A0
    {"\xc0\xaf", FFFD FFFD},
    {"\xe0\x80\xaf", FFFD FFFD FFFD},
    {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD},
    {"\xc3\xc3\xa9", FFFD "\xc3\xa9"},
};

// Every stream, cut in three pieces in every way: the output is the same, and every piece of it whole characters.
static void stream_holds_characters_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        const char *in = streams[i].in;
        size_t size = strlen(in);
        for (size_t first = 0; first <= size; first++)
            for (size_t second = first; second <= size; second++) {
                struct nib_utf8_stream stream = {0};
                struct nib_bytes out = {0};
                size_t cuts[] = {0, first, second, size};
                for (size_t k = 0; k < 3; k++) {
                    size_t before = out.size;
                    assert_int_equal(
                        nib_utf8_stream_push(&stream, in + cuts[k], cuts[k + 1] - cuts[k], &out, NULL), NIB_OK);
                    if (out.size > before)
                        assert_true(nib_utf8_valid(out.data + before, out.size - before));
                }
                assert_int_equal(nib_utf8_stream_flush(&stream, &out, NULL), NIB_OK);
                assert_int_equal(nib_utf8_stream_flush(&stream, &out, NULL), NIB_OK);
                assert_string_equal(out.data, streams[i].out);
                nib_bytes_free(&out);
            }
    }
}

static void every_character_is_whole(void **state)
{
    (void)state;
    for (uint32_t character = 0; character < 0x110000; character++) {
        uint8_t bytes[4];
        size_t size = nib_utf8_put(character, bytes), length;
        bool surrogate = character >= 0xd800 && character <= 0xdfff;
        assert_int_equal(nib_utf8_scan(bytes, size, &length) == NIB_UTF8_WHOLE, !surrogate);
        assert_int_equal(length, surrogate ? 1 : size);
        for (size_t cut = 1; !surrogate && cut < size; cut++) {
            assert_int_equal(nib_utf8_scan(bytes, cut, &length), NIB_UTF8_UNFINISHED);
            assert_int_equal(length, cut);
        }
    }
}

static void assert_translates(const char *pattern, enum nib_regex_dialect dialect, const char *expected)
{
    struct nib_bytes out = {0};
    struct nib_error err = {0};
    nib_status status = nib_split_pattern_translate(pattern, strlen(pattern), dialect, &out, &err);
    if (!expected && status == NIB_OK)
        fail_msg("%s is translated to %s", pattern, out.data);
    if (expected && status != NIB_OK)
        fail_msg("%s: %s", pattern, err.message);
    if (expected)
        assert_string_equal(out.data, expected);
    nib_bytes_free(&out);
}

static void patterns_are_translated(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *oniguruma, *rust; // NULL: refused
    } cases[] = {
        {"a|[^\\r\\n]?\\p{L}+(?!\\S)", "a|[^\\r\\n]?\\p{L}+(?!\\S)", "a|[^\\r\\n]?\\p{L}+(?!\\S)"},
        {"\\p{Han}\\P{sc=Greek}\\p{^Lu}\\pN", "\\p{sc:Han}\\P{sc:Greek}\\P{Lu}\\p{N}",
         "\\p{sc:Han}\\P{sc:Greek}\\P{Lu}\\p{N}"},
        {"\\p{Uppercase_Letter}\\p{punct}", "\\p{Lu}\\p{P}", "\\p{Lu}\\p{P}"},
        {"[\\p{Lu}\\p{M}&&[^\\p{Han}]]*",
         "[^\\p{Ll}\\p{Lt}\\p{Lm}\\p{Lo}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]*",
         "[^\\p{Ll}\\p{Lt}\\p{Lm}\\p{Lo}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]*"},
        {"[^\\p{L}&&[^ab]]", "[\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}ab]",
         "[\\p{M}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}ab]"},
        {"[\\p{L}\\P{L}&&\\p{L}\\P{L}]", "[^\\p{Cs}\\p{Cs}]", "[^\\p{Cs}\\p{Cs}]"},
        {"[a-z&&[^b]]", NULL, NULL},
        {"[a--b]", "[a--b]", NULL},
        {"a$^", "a(?m:$)(?m:^)", "a\\z\\A"},
        {"(a)(?i:b)", "(?:a)(?i:b)", "(?:a)(?i:b)"},
        {"(?i)a", "(?i)a", "(?i)a"},
        {"a(?i)a", NULL, NULL},
        {"(?m)a", NULL, NULL},
        {"\\p{N}{1,3}+", NULL, "\\p{N}{1,3}+"},
        {"a{2}?", NULL, "a{2}?"},
        {"a{2,}?a{3,4}", "a{2,}?a{3,4}", "a{2,}?a{3,4}"},
        {"a{,2}", NULL, NULL},
        {"a{x", NULL, NULL},
        {"\\x41\\u0042\\u{1F600}\\x{10ffff}\\v", "\\x{41}\\x{42}\\x{1f600}\\x{10ffff}\\x{b}",
         "\\x{41}\\x{42}\\x{1f600}\\x{10ffff}\\x{b}"},
        {"\\xe9", NULL, "\\x{e9}"},
        {"\\h", NULL, NULL},
        {"\\1", NULL, NULL},
        {"\\Qa\\E", NULL, NULL},
        {"[]a]", "[]a]", "[]a]"},
        {"[[:alpha:]]", NULL, NULL},
        {"[\\W]", NULL, NULL},
        {"[\\w-]", "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}-]",
         "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}-]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_translates(cases[i].pattern, NIB_REGEX_ONIGURUMA, cases[i].oniguruma);
        assert_translates(cases[i].pattern, NIB_REGEX_RUST, cases[i].rust);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_holds_characters_back),
        cmocka_unit_test(every_character_is_whole),
        cmocka_unit_test(patterns_are_translated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
