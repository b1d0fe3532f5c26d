#include "cpu/vec_avx2.h"

enum { WIDE_TOKENS = 2 }; // with four rows: eight accumulators of the sixteen registers

#include "cpu/linear_wide_kernel.h"

void nib_linear_wide_avx2(const struct nib_linear_part *part)
{
    linear_wide(part);
}
