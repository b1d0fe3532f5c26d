// Arithmetic on numbers that came from a file: false means the true result does not fit.
#ifndef NIB_BASE_CHECKED_H
#define NIB_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool nib_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

static inline bool nib_mul_i64(int64_t a, int64_t b, int64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

#endif
