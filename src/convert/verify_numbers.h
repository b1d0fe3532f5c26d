// Numbers as sign, mantissa and exponent, worked out from the formats' definitions and from nothing else.
#ifndef NIB_CONVERT_VERIFY_NUMBERS_H
#define NIB_CONVERT_VERIFY_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

// sign * mantissa * 2^exponent with an odd mantissa, folded into one integer so that equal numbers are equal integers
// and a factor of 2^k adds k * NIB_KEY_BINADE. Zero is NIB_KEY_ZERO whatever its sign; what is no number, or a number that
// has no place in the format, is NIB_KEY_NONE.
enum { NIB_KEY_ZERO = 0, NIB_KEY_NONE = -1, NIB_KEY_BINADE = 16 };

int32_t nib_key(bool negative, uint32_t mantissa, int exponent);

int32_t nib_key_e2m1(unsigned code);
// E4M3 as exact conversions may write it: +0, and normal numbers with exponent fields 2 to 14, which halve to normal ones
// and stay below 240.
int32_t nib_key_e4m3(unsigned byte);

// The double that a code means; both are exact.
double nib_number_e2m1(unsigned code);
double nib_number_e8m0(unsigned byte); // 0..254

// The nearest bf16, ties to even, rounded once.
uint16_t nib_round_bf16(double value);
double nib_number_bf16(uint16_t bits);

#endif
