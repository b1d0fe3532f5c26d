// Number formats of MXFP4 checkpoints: E2M1 elements, E8M0 scales, E4M3, bf16. Pure functions, no allocation.
//
// An MXFP4 row of n values (n a multiple of 32) is n/2 packed bytes, the low nibble being the even element, and
// n/32 scale bytes, one for 32 consecutive elements. Source: OCP Microscaling Formats (MX) specification 1.0.
#ifndef NIBBLE_MX_H
#define NIBBLE_MX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define NIB_MX_BLOCK 32 // elements that share one scale

// Element types as they lie in a checkpoint.
enum nib_dtype {
    NIB_F64,
    NIB_F32,
    NIB_F16,
    NIB_BF16,
    NIB_F8_E4M3, // OCP E4M3FN: 1-4-3, bias 7, largest 448, 0x7f and 0xff are NaN, no infinity
    NIB_F8_E5M2,
    NIB_F8_E8M0, // 2^(b-127), 255 is NaN
    NIB_I64,
    NIB_I32,
    NIB_I16,
    NIB_I8,
    NIB_U64,
    NIB_U32,
    NIB_U16,
    NIB_U8,
    NIB_BOOL,
    NIB_DTYPE_COUNT
};

size_t nib_dtype_size(enum nib_dtype dtype);      // bytes of one element
const char *nib_dtype_name(enum nib_dtype dtype); // as safetensors writes it: "BF16", "F8_E4M3", …

static inline float nib_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// Round to nearest, ties to even; overflow goes to infinity; NaN stays NaN (quiet).
static inline uint16_t nib_bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float nib_f16_to_f32(uint16_t bits);

// F32, F16 or BF16: numbers that stand for themselves, without scales.
static inline bool nib_dtype_is_plain(enum nib_dtype dtype)
{
    return dtype == NIB_F32 || dtype == NIB_F16 || dtype == NIB_BF16;
}

// Element i of data of a plain type, which need not be aligned.
static inline float nib_float_at(const void *data, enum nib_dtype dtype, int64_t i)
{
    float wide;
    uint16_t half;
    if (dtype == NIB_F32) {
        memcpy(&wide, (const char *)data + 4 * i, sizeof wide);
        return wide;
    }
    memcpy(&half, (const char *)data + 2 * i, sizeof half);
    return dtype == NIB_F16 ? nib_f16_to_f32(half) : nib_bf16_to_f32(half);
}

// E2M1: code 0..15 = sign << 3 | magnitude; magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Only the low 4 bits are read.
float nib_e2m1_to_f32(uint8_t code);

// Nearest code, ties to the even code, saturating at ±6; −0 and anything that rounds to zero give code 0.
// NaN has no code: the caller refuses it first.
uint8_t nib_e2m1_from_f32(float value);

// E8M0: 2^(byte-127): 0 is 2^-127 (a subnormal of fp32, not zero), 254 is 2^127, 255 is NaN.
float nib_e8m0_to_f32(uint8_t byte);

// OCP E4M3FN.
float nib_e4m3_to_f32(uint8_t byte);

// One MXFP4 row to fp32: values[i] = e2m1(code i) * 2^(scales[i/32]-127); a scale of 255 makes its 32 values NaN.
void nib_mxfp4_decode_row(const uint8_t *packed, /* [n/2] */
                          const uint8_t *scales, /* [n/32] */
                          int64_t n,             /* a multiple of 32 */
                          float *values /* [n] */);

// How an encoder picks the shared exponent of a block whose largest magnitude is amax.
enum nib_mx_scale_rule {
    NIB_MX_SCALE_OCP,    // floor(log2 amax) - 2
    NIB_MX_SCALE_EVEN,   // as OCP after rounding amax up to the next binade when its mantissa is >= 1.75
    NIB_MX_SCALE_RCEIL,  // ceil(log2(amax / 6))
    NIB_MX_SCALE_SEARCH, // of the OCP exponent -1, +0, +1: the one with the least squared error, the lower on a tie
};

// One block of 32 finite fp32 values to 16 packed bytes; returns the scale byte. An all-zero block is byte 0 and
// codes 0; exponents are clamped to bytes 0..254.
uint8_t nib_mxfp4_encode_block(const float *values /* [32] */, enum nib_mx_scale_rule rule,
                               uint8_t *packed /* [16] */);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
