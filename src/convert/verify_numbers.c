#include "convert/verify_numbers.h"

#include <math.h>

enum { EXPONENT_OFFSET = 4096 };

int32_t nib_key(bool negative, uint32_t mantissa, int exponent)
{
    if (mantissa == 0)
        return NIB_KEY_ZERO;
    while (mantissa % 2 == 0) {
        mantissa /= 2;
        exponent++;
    }
    return (int32_t)((exponent + EXPONENT_OFFSET) * NIB_KEY_BINADE) + (int32_t)(mantissa / 2 * 2) + negative;
}

// 1-2-1, bias 1, subnormals.
int32_t nib_key_e2m1(unsigned code)
{
    unsigned field = code >> 1 & 3, bit = code & 1;
    bool negative = code & 8;
    return field ? nib_key(negative, 2 + bit, (int)field - 1 - 1) : nib_key(negative, bit, -1);
}

// 1-4-3, bias 7.
int32_t nib_key_e4m3(unsigned byte)
{
    unsigned field = byte >> 3 & 15, mantissa = byte & 7;
    if (byte == 0)
        return NIB_KEY_ZERO;
    if (field < 2 || field == 15)
        return NIB_KEY_NONE;
    int32_t key = nib_key(byte >> 7, 8 + mantissa, (int)field - 7 - 3);
    // Halved by lowering the field, it has to be half the number.
    int32_t half = nib_key(byte >> 7, 8 + mantissa, (int)(field - 1) - 7 - 3);
    return half == key - NIB_KEY_BINADE ? key : NIB_KEY_NONE;
}

double nib_number_e2m1(unsigned code)
{
    static const double twice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return (code & 8 ? -0.5 : 0.5) * twice[code & 7];
}

double nib_number_e8m0(unsigned byte)
{
    return ldexp(1, (int)byte - 127);
}

uint16_t nib_round_bf16(double value)
{
    if (isnan(value))
        return 0x7fc0;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isinf(magnitude))
        return sign | 0x7f80;
    int exponent = magnitude > 0 ? ilogb(magnitude) : -126;
    if (exponent < -126)
        exponent = -126;
    // Seven bits behind the leading one; nearbyint rounds ties to even.
    double steps = nearbyint(ldexp(magnitude, 7 - exponent));
    if (steps >= 256) {
        steps /= 2;
        exponent++;
    }
    if (exponent > 127)
        return sign | 0x7f80;
    unsigned whole = (unsigned)steps;
    unsigned bits = whole >= 128 ? (unsigned)(exponent + 127) << 7 | (whole - 128) : whole;
    return (uint16_t)(sign | bits);
}

double nib_number_bf16(uint16_t bits)
{
    unsigned field = bits >> 7 & 255, mantissa = bits & 127;
    double sign = bits & 0x8000 ? -1 : 1;
    if (field == 255)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (field ? ldexp(128 + mantissa, (int)field - 127 - 7) : ldexp(mantissa, -126 - 7));
}
