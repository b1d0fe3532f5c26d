// MXFP4 to E4M3 with a power of two per row, without rounding. Included by a file per instruction set, which first defines
// present_codes() and write_block().
//
// Every element is m * 2^e with m = 1 or 1.5. With the row's largest exponent at E4M3's 7 all others fit if they lie at
// most 12 below, at -5: still normal after one halving, and 1.5 * 2^7 = 192 stays under the 240 of narrower E4M3s.
#ifndef NIB_CONVERT_FP8_ROW_KERNEL_H
#define NIB_CONVERT_FP8_ROW_KERNEL_H

#include <string.h>

#include "convert/rows.h"

enum { TOP_EXPONENT = 7, MAX_SPREAD = 12, E4M3_BIAS = 7 };

// E2M1 magnitudes 1..7 as 2^exponent, or 1.5 times that.
static const int8_t code_exponent[8] = {0, -1, 0, 0, 1, 1, 2, 2};
static const uint8_t code_mantissa[8] = {0, 0, 0, 4, 0, 4, 0, 4}; // E4M3's three bits

// The E4M3 byte of each code under 2^exponent. Codes that do not occur in the block may leave E4M3's range: their entries
// mean nothing.
static void fill_table(uint8_t *table /* [16] */, int exponent)
{
    table[0] = table[8] = 0; // -0 too
    for (unsigned code = 1; code < 8; code++) {
        unsigned field = (unsigned)(code_exponent[code] + exponent + E4M3_BIAS);
        table[code] = (uint8_t)(field << 3 | code_mantissa[code]);
        table[code + 8] = (uint8_t)(table[code] | 0x80);
    }
}

// The exponents of a row's elements and the scales of its blocks, from least to largest.
struct extent {
    int low, high, low_scale, high_scale;
    bool any, nan;
};

static struct extent measure(const uint8_t *codes, const uint8_t *scales, int64_t blocks)
{
    struct extent extent = {.low = 1 << 20, .high = -(1 << 20), .low_scale = 255, .high_scale = 0};
    for (int64_t b = 0; b < blocks; b++) {
        extent.nan |= scales[b] == 255;
        unsigned present = present_codes(codes + b * (NIB_MX_BLOCK / 2)) & ~1u;
        if (!present)
            continue;
        int scale = scales[b], least = code_exponent[__builtin_ctz(present)] + scale - 127,
            most = code_exponent[31 - __builtin_clz(present)] + scale - 127;
        extent.any = true;
        extent.low = least < extent.low ? least : extent.low;
        extent.high = most > extent.high ? most : extent.high;
        extent.low_scale = scale < extent.low_scale ? scale : extent.low_scale;
        extent.high_scale = scale > extent.high_scale ? scale : extent.high_scale;
    }
    return extent;
}

static float power_of_two(int exponent) // -126 .. 127
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static enum nib_fp8_verdict fp8_row(const uint8_t *codes, const uint8_t *scales, int64_t cols, uint8_t *bytes,
                                    float *scale, int *span)
{
    int64_t blocks = cols / NIB_MX_BLOCK;
    struct extent extent = measure(codes, scales, blocks);
    *span = extent.any ? extent.high_scale - extent.low_scale : 0;
    *scale = 1;
    if (extent.nan)
        return NIB_FP8_NAN;
    if (!extent.any) {
        memset(bytes, 0, (size_t)cols);
        return NIB_FP8_EXACT;
    }
    int k = extent.high - TOP_EXPONENT;
    if (extent.high - extent.low > MAX_SPREAD)
        return NIB_FP8_WIDE;
    if (k < -126)
        return NIB_FP8_SMALL;
    *scale = power_of_two(k);
    uint8_t table[16];
    int filled = -1000;
    for (int64_t b = 0; b < blocks; b++) {
        int exponent = scales[b] - 127 - k;
        if (exponent != filled)
            fill_table(table, filled = exponent);
        write_block(codes + b * (NIB_MX_BLOCK / 2), table, bytes + b * NIB_MX_BLOCK);
    }
    return NIB_FP8_EXACT;
}

#endif
