#include "cpu/vec_avx2.h"

enum { WIDE_TALL_TOKENS = 2 }; // twelve accumulators of the sixteen registers at most

#include "cpu/linear_wide_kernel.h"

void nib_linear_wide_avx2(const struct nib_linear_part *part)
{
    linear_wide(part);
}

void nib_linear_across_avx2(const struct nib_linear_part *part)
{
    linear_across(part);
}
