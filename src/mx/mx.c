#include "nibble/mx.h"

#include <math.h>

static const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float nib_e2m1_to_f32(uint8_t code)
{
    return e2m1_values[code & 15];
}

uint8_t nib_e2m1_from_f32(float value)
{
    // Between magnitudes k and k+1 the midpoint belongs to the even code: the lower one's bound is inclusive if k is even.
    static const float midpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    float magnitude = fabsf(value);
    uint8_t code = 0;
    while (code < 7 && (magnitude > midpoints[code] || (magnitude == midpoints[code] && (code & 1))))
        code++;
    return code && signbit(value) ? (uint8_t)(code | 8) : code;
}

float nib_e8m0_to_f32(uint8_t byte)
{
    if (byte == 255)
        return NAN;
    return byte ? float_from_bits((uint32_t)byte << 23) : float_from_bits(0x00400000u);
}

float nib_e4m3_to_f32(uint8_t byte)
{
    uint32_t sign = (uint32_t)(byte & 0x80) << 24, field = (byte >> 3) & 15, mantissa = byte & 7;
    if ((byte & 0x7f) == 0x7f)
        return float_from_bits(sign | 0x7fc00000u);
    if (field == 0) {
        float value = ldexpf((float)mantissa, -9);
        return sign ? -value : value;
    }
    return float_from_bits(sign | ((field + 120) << 23) | (mantissa << 20));
}

float nib_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, field = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    if (field == 31)
        return float_from_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x00400000u : 0));
    if (field == 0) {
        float value = ldexpf((float)mantissa, -24);
        return sign ? -value : value;
    }
    return float_from_bits(sign | ((field + 112) << 23) | (mantissa << 13));
}

void nib_mxfp4_decode_row(const uint8_t *packed, const uint8_t *scales, int64_t n, float *values)
{
    for (int64_t block = 0; block < n / NIB_MX_BLOCK; block++) {
        float scale = nib_e8m0_to_f32(scales[block]);
        const uint8_t *bytes = packed + block * (NIB_MX_BLOCK / 2);
        float *out = values + block * NIB_MX_BLOCK;
        for (int i = 0; i < NIB_MX_BLOCK / 2; i++) {
            out[2 * i] = e2m1_values[bytes[i] & 15] * scale;
            out[2 * i + 1] = e2m1_values[bytes[i] >> 4] * scale;
        }
    }
}

static int clamp_exponent(int exponent)
{
    return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
}

static int scale_exponent(float amax, enum nib_mx_scale_rule rule)
{
    int exponent; // amax = m * 2^exponent with m in [0.5, 1)
    float m = frexpf(amax, &exponent);
    int floor_log2 = exponent - 1;
    switch (rule) {
    case NIB_MX_SCALE_EVEN:
        return floor_log2 - 2 + (m >= 0.875f);
    case NIB_MX_SCALE_RCEIL: // amax / 6 = (m / 0.75) * 2^(exponent - 3), so its ceil-log2 turns on m > 0.75
        return exponent - 3 + (m > 0.75f);
    case NIB_MX_SCALE_OCP:
    case NIB_MX_SCALE_SEARCH:
        break;
    }
    return floor_log2 - 2;
}

// Scaling by a power of two in double is exact, so rounding happens once, in nib_e2m1_from_f32.
static float scaled_down(float value, int exponent)
{
    double scaled = ldexp((double)value, -exponent);
    return scaled > 8.0 ? 8.0f : scaled < -8.0 ? -8.0f : (float)scaled;
}

static double squared_error(const float *values, int exponent)
{
    double sum = 0;
    for (int i = 0; i < NIB_MX_BLOCK; i++) {
        double coded =
            ldexp((double)nib_e2m1_to_f32(nib_e2m1_from_f32(scaled_down(values[i], exponent))), exponent);
        double error = coded - (double)values[i];
        sum += error * error;
    }
    return sum;
}

uint8_t nib_mxfp4_encode_block(const float *values, enum nib_mx_scale_rule rule, uint8_t *packed)
{
    float amax = 0;
    for (int i = 0; i < NIB_MX_BLOCK; i++)
        amax = fmaxf(amax, fabsf(values[i]));
    memset(packed, 0, NIB_MX_BLOCK / 2);
    if (amax == 0)
        return 0;
    int exponent = clamp_exponent(scale_exponent(amax, rule));
    if (rule == NIB_MX_SCALE_SEARCH) {
        int base = exponent;
        double best = INFINITY;
        for (int candidate = base - 1; candidate <= base + 1; candidate++) {
            double error = squared_error(values, clamp_exponent(candidate));
            if (error < best) {
                best = error;
                exponent = clamp_exponent(candidate);
            }
        }
    }
    for (int i = 0; i < NIB_MX_BLOCK; i++) {
        uint8_t code = nib_e2m1_from_f32(scaled_down(values[i], exponent));
        packed[i / 2] = (uint8_t)(packed[i / 2] | (i & 1 ? code << 4 : code));
    }
    return (uint8_t)(exponent + 127);
}
