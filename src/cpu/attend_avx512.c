// Attention in fp32 on bf16 keys and values, sixteen lanes.
#include "cpu/vec_avx512.h"

enum { ATTEND_VECTORS = 4 };

static inline vec attend_multiply(vec sum, vec_units b, const float *a, int64_t unit)
{
    sum = vec_fma(vec_low_halves(b), vec_set(a[2 * unit]), sum);
    return vec_fma(vec_high_halves(b), vec_set(a[2 * unit + 1]), sum);
}

static inline void attend_store(float *packed /* [64] */, const vec *p /* [4] */)
{
    for (int v = 0; v < 4; v++)
        vec_store(packed + v * VEC_LANES, p[v]);
}

#include "cpu/attend_kernel.h"

void nib_attend_block_avx512(const struct nib_attend_block *block)
{
    attend_block(block);
}
