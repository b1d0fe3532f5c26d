// The integer kernel of AVX-512 VNNI at the borders of its arithmetic: how far scales spread in a group of 512 columns, and
// what activations become. What all kernels have in common is tested in test_moe.c.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/moe_tier.h"
#include "nibble/mx.h"
#include "support/moe_case.h"

enum {
    COLUMNS = 1184,
    ROWS = NIB_MOE_ROWS,
    SCALES = COLUMNS / 32,
    TOKENS = 20
}; // two groups and a chunk and a quarter

struct block {
    uint8_t packed[ROWS][COLUMNS / 2], scales[ROWS][SCALES];
    uint16_t x[TOKENS][COLUMNS];
};

static const struct nib_moe_tier *const tier = &nib_moe_avx512vnni;

static void fill_block(struct block *b, uint64_t seed)
{
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < COLUMNS / 2; k++)
            b->packed[i][k] = (uint8_t)next_random(&seed);
        for (int k = 0; k < SCALES; k++)
            b->scales[i][k] = (uint8_t)(118 + next_random(&seed) % 4);
    }
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < COLUMNS; k++)
            b->x[t][k] = nib_bf16_from_f32(((float)(next_random(&seed) % 511) - 255) / 128); // held exactly
}

// The sum over columns of weight times x, of their magnitudes, and of what rounding an element to 2^-15 of its group's largest
// can do.
static double exact_sum(const struct block *b, int row, int t, double *magnitude, double *rounding)
{
    double sum = 0;
    *magnitude = *rounding = 0;
    for (int first = 0; first < COLUMNS; first += 512) {
        double largest = 0, weights = 0;
        for (int k = first; k < first + 512 && k < COLUMNS; k++) {
            int code = b->packed[row][k / 2] >> (k % 2 ? 4 : 0) & 15;
            double weight =
                (double)nib_e2m1_to_f32((uint8_t)code) * (double)nib_e8m0_to_f32(b->scales[row][k / 32]);
            double x = (double)nib_bf16_to_f32(b->x[t][k]);
            sum += weight * x;
            *magnitude += fabs(weight * x);
            weights += fabs(weight);
            largest = fmax(largest, fabs(x));
        }
        *rounding += weights * largest / 32768;
    }
    return sum;
}

static void run_block(const struct block *b, int first, int m, float *out /* [m, ROWS] */)
{
    size_t row_bytes = (size_t)(COLUMNS + 127) / 128 * 128 * tier->element_bytes + 64;
    uint8_t *memory = aligned_alloc(64, (row_bytes * TOKENS + 63) / 64 * 64);
    const void *rows[TOKENS];
    assert_non_null(memory);
    for (int t = 0; t < m; t++) {
        rows[t] = memory + (size_t)t * row_bytes;
        tier->arrange(b->x[first + t], COLUMNS, memory + (size_t)t * row_bytes);
    }
    struct nib_moe_block block = {.packed = {b->packed[0], b->packed[8]},
                                  .scales = {b->scales[0], b->scales[8]},
                                  .packed_stride = COLUMNS / 2,
                                  .scales_stride = SCALES};
    tier->multiply(&block, NULL, COLUMNS, rows, m, out);
    free(memory);
}

// Within fp32's rounding, and that of activations where they are not held exactly; and the same bits however many share the
// call.
static void check_block(const struct block *b, bool exactly)
{
    float all[TOKENS * ROWS], some[TOKENS * ROWS];
    run_block(b, 0, TOKENS, all);
    for (int t = 0; t < TOKENS; t++) {
        for (int row = 0; row < ROWS; row++) {
            double magnitude, rounding, want = exact_sum(b, row, t, &magnitude, &rounding);
            double got = (double)all[t * ROWS + row];
            if (!(fabs(got - want) <= 1e-6 * magnitude + (exactly ? 0 : rounding)))
                fail_msg("row %d, token %d: %g instead of %g", row, t, got, want);
        }
    }
    for (int m = 1; m < TOKENS; m++) {
        int first = TOKENS - m;
        run_block(b, first, m, some);
        assert_memory_equal(some, all + first * ROWS, (size_t)(m * ROWS) * sizeof *some);
    }
}

// bf16 activations of one size are held exactly: what is left is fp32's rounding.
static void scales_spread_as_they_like(void **state)
{
    (void)state;
    static struct block b;
    static const int places[] = {0, 3, 4, 15, 16, 31, 32, 35, 36};
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        for (int spread = -9; spread <= 9; spread++) {
            fill_block(&b, p + 1);
            for (int row = 0; row < ROWS; row++) {
                memset(b.scales[row], 120, SCALES);
                if (row % 3 == 0)
                    b.scales[row][places[p]] = (uint8_t)(120 + spread);
            }
            check_block(&b, true);
        }
    }
    for (int base = 0; base < 248; base += 31) { // all of them, and each group its own
        fill_block(&b, 77);
        for (int row = 0; row < ROWS; row++)
            for (int k = 0; k < SCALES; k++)
                b.scales[row][k] = (uint8_t)(base + (k * 5 + row) % 8 - (k / 16 == 1 && base > 100 ? 40 : 0));
        if (base < 120) // sums beyond fp32 are not the question
            check_block(&b, true);
    }
}

// The largest that a lane's sum of a group can be: every code 6 or -6, every activation the largest of its power of two.
static void the_largest_sums_do_not_overflow(void **state)
{
    (void)state;
    static struct block b;
    for (int sign = 0; sign < 2; sign++) {
        fill_block(&b, 5);
        memset(b.packed, sign ? 0xff : 0x77, sizeof b.packed);
        for (int t = 0; t < TOKENS; t++)
            for (int k = 0; k < COLUMNS; k++)
                b.x[t][k] = 0x3fff; // 1.992
        for (int row = 0; row < ROWS; row++)
            for (int k = 0; k < SCALES; k++)
                b.scales[row][k] = k % 16 ? 127 : 120;
        check_block(&b, true);
    }
}

// An element keeps 2^-15 of its group's largest, so an outlier costs its own group alone.
static void small_activations_beside_large_ones(void **state)
{
    (void)state;
    static struct block b;
    for (int size = 0; size < 120; size += 3) {
        fill_block(&b, 9);
        for (int t = 0; t < TOKENS; t++)
            b.x[t][(t * 97) % COLUMNS] = nib_bf16_from_f32(ldexpf(t % 2 ? 1.5f : -1.9f, size));
        check_block(&b, false);
    }
    memset(b.x, 0, sizeof b.x);
    check_block(&b, true);
    for (int t = 0; t < TOKENS; t++) // 2^-110, the smallest held exactly
        for (int k = 0; k < COLUMNS; k++)
            b.x[t][k] = (uint16_t)(k % 2 << 15 | 17 << 7 | (k * 5 & 127));
    memset(b.scales, 190, sizeof b.scales);
    check_block(&b, true);
}

// Of a token whose activations are not all finite nothing is left, and its neighbours do not notice.
static void infinite_activations_spoil_their_token(void **state)
{
    (void)state;
    static struct block b;
    static const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0xffff};
    float before[TOKENS * ROWS], after[TOKENS * ROWS];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (int scale = 0; scale < 2; scale++) { // on either path
            fill_block(&b, 11);
            b.scales[2][7] = scale ? 200 : 120;
            run_block(&b, 0, TOKENS, before);
            b.x[4][COLUMNS - 1 - (int)i * 300] = bad[i];
            run_block(&b, 0, TOKENS, after);
            for (int k = 0; k < TOKENS * ROWS; k++) {
                if (k / ROWS == 4)
                    assert_true(isnan(after[k]));
                else
                    assert_memory_equal(&after[k], &before[k], sizeof *after);
            }
        }
    }
}

// fp32 elements, as the intermediate has them, become the same integers as bf16 ones of the same value.
static void finishing_is_arranging(void **state)
{
    (void)state;
    static struct block b;
    static _Alignas(64) uint8_t arranged[COLUMNS * 4 + 512 + 64], finished[COLUMNS * 4 + 512 + 64];
    for (int64_t n = 32; n <= COLUMNS; n += 96) {
        fill_block(&b, (uint64_t)n);
        memset(arranged, 0, sizeof arranged);
        memset(finished, 0, sizeof finished);
        tier->arrange(b.x[0], n, arranged);
        for (int64_t k = 0; k < n; k++) {
            float value = nib_bf16_to_f32(b.x[0][k]);
            memcpy(finished + k * 4, &value, sizeof value);
        }
        tier->finish(n, finished);
        struct nib_moe_block block = {.packed = {b.packed[0], b.packed[8]},
                                      .scales = {b.scales[0], b.scales[8]},
                                      .packed_stride = COLUMNS / 2,
                                      .scales_stride = SCALES};
        float want[ROWS], got[ROWS];
        const void *rows[] = {arranged, finished};
        tier->multiply(&block, NULL, n, &rows[0], 1, want);
        tier->multiply(&block, NULL, n, &rows[1], 1, got);
        assert_memory_equal(got, want, sizeof got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_spread_as_they_like),
        cmocka_unit_test(the_largest_sums_do_not_overflow),
        cmocka_unit_test(small_activations_beside_large_ones),
        cmocka_unit_test(infinite_activations_spoil_their_token),
        cmocka_unit_test(finishing_is_arranging),
    };
    if (!nib_cpu_has(NIB_CPU_AVX512VNNI)) {
        print_message("this CPU has no AVX-512 VNNI: not run\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
