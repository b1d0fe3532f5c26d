// The arithmetic of exact FP8 and of int4, row by row, against their definitions.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu_features.h"
#include "convert/rows.h"
#include "convert/verify_numbers.h"
#include "support/guard.h"

enum { MAX_COLS = 1024 };

static uint64_t random_state = 7;

static unsigned next_random(unsigned below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % below;
}

struct row {
    uint8_t codes[MAX_COLS / 2], scales[MAX_COLS / 32];
    int64_t cols;
};

static unsigned code_of(const struct row *row, int64_t i)
{
    return row->codes[i / 2] >> (i % 2 * 4) & 15u;
}

static void set_code(struct row *row, int64_t i, unsigned code)
{
    unsigned shift = i % 2 ? 4 : 0;
    row->codes[i / 2] = (uint8_t)((row->codes[i / 2] & ~(15u << shift)) | code << shift);
}

// ---- FP8: what the definition says of a row ----

struct expected {
    enum nib_fp8_verdict verdict;
    int k, span;
};

static struct expected expect(const struct row *row)
{
    static const int exponent_of[8] = {0, -1, 0, 0, 1, 1, 2, 2};
    struct expected expected = {NIB_FP8_EXACT, 0, 0};
    int high = -1000, low = 1000, high_scale = -1, low_scale = 1000;
    for (int64_t b = 0; b < row->cols / 32; b++)
        if (row->scales[b] == 255)
            expected.verdict = NIB_FP8_NAN;
    for (int64_t i = 0; i < row->cols; i++) {
        unsigned magnitude = code_of(row, i) & 7;
        int scale = row->scales[i / 32], exponent = exponent_of[magnitude] + scale - 127;
        if (magnitude == 0)
            continue;
        high = exponent > high ? exponent : high;
        low = exponent < low ? exponent : low;
        high_scale = scale > high_scale ? scale : high_scale;
        low_scale = scale < low_scale ? scale : low_scale;
    }
    if (expected.verdict == NIB_FP8_NAN || high == -1000)
        return expected;
    expected.k = high - 7;
    expected.span = high_scale - low_scale;
    if (low - expected.k < -5)
        expected.verdict = NIB_FP8_WIDE;
    else if (expected.k < -126)
        expected.verdict = NIB_FP8_SMALL;
    return expected;
}

static void check_row(const struct row *row, nib_fp8_row *convert)
{
    struct expected expected = expect(row);
    // The bytes end at a page that must not be touched.
    struct test_guarded codes = test_guarded_alloc((size_t)row->cols / 2, TEST_GUARD_BEHIND);
    struct test_guarded scales = test_guarded_alloc((size_t)row->cols / 32, TEST_GUARD_BEHIND);
    struct test_guarded bytes = test_guarded_alloc((size_t)row->cols, TEST_GUARD_BEHIND);
    memcpy(codes.data, row->codes, (size_t)row->cols / 2);
    memcpy(scales.data, row->scales, (size_t)row->cols / 32);
    float scale;
    int span;
    assert_int_equal(convert(codes.data, scales.data, row->cols, bytes.data, &scale, &span), expected.verdict);
    if (expected.verdict == NIB_FP8_EXACT) {
        assert_true(scale == ldexpf(1, expected.k));
        assert_int_equal(span, expected.span);
    }
    for (int64_t i = 0; expected.verdict == NIB_FP8_EXACT && i < row->cols; i++) {
        uint8_t byte = ((uint8_t *)bytes.data)[i];
        double value = ldexp((double)nib_e2m1_to_f32((uint8_t)code_of(row, i)), row->scales[i / 32] - 127);
        double got = ldexp((double)nib_e4m3_to_f32(byte), expected.k);
        unsigned field = byte >> 3 & 15;
        if (value != got || (byte & 0x7f ? field < 2 || field == 15 : byte != 0))
            fail_msg("element %d: byte 0x%02x is %g, not %g", (int)i, byte, got, value);
    }
    test_guarded_free(&codes);
    test_guarded_free(&scales);
    test_guarded_free(&bytes);
}

static void check_both(const struct row *row)
{
    check_row(row, nib_fp8_row_ref);
    if (nib_cpu_has(NIB_CPU_AVX2))
        check_row(row, nib_fp8_row_avx2);
}

// Codes at random, some blocks zero or of one code; scales within `spread` of `base`.
static struct row random_row(int64_t cols, int base, unsigned spread)
{
    struct row row = {.cols = cols};
    for (int64_t b = 0; b < cols / 32; b++) {
        unsigned kind = next_random(8), single = next_random(16);
        row.scales[b] = (uint8_t)(base + (int)next_random(spread + 1));
        for (int64_t i = b * 32; i < (b + 1) * 32; i++)
            set_code(&row, i, kind == 0 ? next_random(2) * 8 : kind == 1 ? single : next_random(16));
    }
    return row;
}

static void random_rows_are_exact_or_refused(void **state)
{
    (void)state;
    int exact = 0, refused = 0;
    for (int i = 0; i < 4000; i++) {
        struct row row = random_row(32 * (1 + (int64_t)next_random(9)), (int)next_random(240), next_random(15));
        check_both(&row);
        enum nib_fp8_verdict verdict = expect(&row).verdict;
        exact += verdict == NIB_FP8_EXACT;
        refused += verdict != NIB_FP8_EXACT;
    }
    assert_true(exact > 1000 && refused > 100); // the test has seen both
}

static void edges_of_fp8_rows(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        unsigned first_code, first_scale, last_code, last_scale;
        enum nib_fp8_verdict verdict;
    } edges[] = {
        {"spread 12: 2^2 and 2^-10", 6, 127, 2, 117, NIB_FP8_EXACT},
        {"spread 13: 2^2 and 2^-11", 6, 127, 2, 116, NIB_FP8_WIDE},
        {"spread 12 with code 1", 7, 127, 1, 118, NIB_FP8_EXACT},
        {"spread 13 with code 1", 7, 127, 1, 117, NIB_FP8_WIDE},
        {"scales 9 apart are always enough", 7, 136, 1, 127, NIB_FP8_EXACT},
        {"scales 10 apart may be enough", 7, 137, 4, 127, NIB_FP8_EXACT},
        {"scale 0", 7, 0, 0, 0, NIB_FP8_SMALL},
        {"k = -126", 7, 6, 7, 6, NIB_FP8_EXACT},
        {"k = -127", 7, 5, 7, 6, NIB_FP8_EXACT},
        {"k = -127 everywhere", 7, 5, 7, 5, NIB_FP8_SMALL},
        {"scale 254", 7, 254, 7, 254, NIB_FP8_EXACT},
        {"scale 255", 7, 127, 0, 255, NIB_FP8_NAN},
        {"scale 255 on a zero block", 0, 255, 0, 127, NIB_FP8_NAN},
        {"zeros", 0, 0, 8, 254, NIB_FP8_EXACT},
        {"-0 beside a value", 8, 127, 5, 127, NIB_FP8_EXACT},
        {"a zero block far away does not count", 8, 1, 5, 200, NIB_FP8_EXACT},
    };
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        struct row row = {.cols = 64};
        row.scales[0] = (uint8_t)edges[i].first_scale;
        row.scales[1] = (uint8_t)edges[i].last_scale;
        set_code(&row, 0, edges[i].first_code);
        set_code(&row, 63, edges[i].last_code);
        if (expect(&row).verdict != edges[i].verdict)
            fail_msg("the definition itself: %s", edges[i].what);
        check_both(&row);
    }
}

static void every_code_under_every_scale(void **state)
{
    (void)state;
    for (int scale = 0; scale < 256; scale++)
        for (unsigned code = 0; code < 16; code++) {
            struct row row = {.cols = 32};
            memset(row.scales, scale, sizeof row.scales);
            for (int64_t i = 0; i < 32; i++)
                set_code(&row, i, i % 3 ? code : 0);
            check_both(&row);
        }
}

// ---- int4 ----

static void int4_codes_are_the_stated_ones(void **state)
{
    (void)state;
    // By the group's largest magnitude code: what each smaller one becomes.
    static const int stated[8][8] = {
        {0},
        {0, 7},
        {0, 4, 7},
        {0, 2, 5, 7},
        {0, 2, 4, 5, 7},
        {0, 1, 2, 4, 5, 7},
        {0, 1, 2, 3, 4, 5, 7},
        {0, 1, 1, 2, 2, 4, 5, 7},
    };
    for (int scale = 108; scale <= 252; scale++)
        for (unsigned largest = 1; largest < 8; largest++) {
            struct nib_int4_block block = nib_int4_codebook((uint8_t)scale, largest);
            assert_true(block.finite);
            for (unsigned code = 0; code <= largest; code++) {
                assert_int_equal((int)block.nibble[code] - 8, stated[largest][code]);
                assert_int_equal((int)block.nibble[code + 8] - 8, -stated[largest][code]);
            }
        }
}

static void int4_never_uses_the_sixteenth_code(void **state)
{
    (void)state;
    for (int scale = 0; scale < 255; scale++)
        for (unsigned largest = 0; largest < 8; largest++) {
            struct nib_int4_block block = nib_int4_codebook((uint8_t)scale, largest);
            for (unsigned code = 0; code < 16; code++)
                assert_in_range(block.nibble[code], 1, 15);
            assert_true(!block.finite || (block.scale > 0 && block.scale < 0x7f80));
        }
    assert_false(nib_int4_codebook(254, 7).finite); // 6 x 2^127 is no bf16
}

static void the_largest_code_of_a_block(void **state)
{
    (void)state;
    for (int i = 0; i < 2000; i++) {
        uint8_t codes[16];
        unsigned largest = 0, below = 1 + next_random(16);
        for (int j = 0; j < 16; j++) {
            unsigned even = next_random(below), odd = next_random(below);
            codes[j] = (uint8_t)(even | odd << 4);
            largest = (even & 7) > largest ? even & 7 : largest;
            largest = (odd & 7) > largest ? odd & 7 : largest;
        }
        assert_int_equal(nib_largest_code(codes), largest);
    }
}

// ---- The verifier's own numbers ----

static void keys_are_equal_exactly_for_equal_numbers(void **state)
{
    (void)state;
    for (unsigned a = 0; a < 256; a++)
        for (unsigned code = 0; code < 16; code++)
            for (int k = -12; k <= 12; k++) {
                int32_t one = nib_key_e4m3(a), other = nib_key_e2m1(code);
                if (one == NIB_KEY_NONE)
                    continue;
                if (other != NIB_KEY_ZERO)
                    other += k * NIB_KEY_BINADE;
                bool same =
                    (double)nib_e4m3_to_f32((uint8_t)a) == ldexp((double)nib_e2m1_to_f32((uint8_t)code), k);
                assert_int_equal(one == other, same);
            }
}

static void bf16_rounding_twice_written_agrees(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t bits = next_random(1u << 31) << 1 | next_random(2);
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value))
            continue;
        assert_int_equal(nib_round_bf16((double)value), nib_bf16_from_f32(value));
        uint16_t half = (uint16_t)(bits >> 16);
        if (!isnan(nib_bf16_to_f32(half)))
            assert_true(nib_number_bf16(half) == (double)nib_bf16_to_f32(half));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_are_exact_or_refused),
        cmocka_unit_test(edges_of_fp8_rows),
        cmocka_unit_test(every_code_under_every_scale),
        cmocka_unit_test(int4_codes_are_the_stated_ones),
        cmocka_unit_test(int4_never_uses_the_sixteenth_code),
        cmocka_unit_test(the_largest_code_of_a_block),
        cmocka_unit_test(keys_are_equal_exactly_for_equal_numbers),
        cmocka_unit_test(bf16_rounding_twice_written_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
