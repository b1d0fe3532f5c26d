#include "cpu/vec_avx512.h"

enum { WIDE_TALL_TOKENS = 6 };

#include "cpu/linear_wide_kernel.h"

void nib_linear_wide_avx512(const struct nib_linear_part *part)
{
    linear_wide(part);
}

void nib_linear_across_avx512(const struct nib_linear_part *part)
{
    linear_across(part);
}
