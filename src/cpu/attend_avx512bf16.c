// Attention with bf16 products and fp32 sums: queries and probabilities are rounded to bf16, one rounding each.
#include "cpu/vec_avx512.h"

enum { ATTEND_VECTORS = 4 };

static inline vec attend_multiply(vec sum, vec_units b, const float *a, int64_t unit)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)_mm512_castps_si512(vec_set(a[unit])));
}

static inline void attend_store(float *packed /* [32] units */, const vec *p /* [4] */)
{
    _mm512_storeu_si512(packed, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
    _mm512_storeu_si512(packed + 16, (__m512i)_mm512_cvtne2ps_pbh(p[3], p[2]));
}

#include "cpu/attend_kernel.h"

void nib_attend_pack_query_avx512bf16(const float *query, int64_t n, float *packed)
{
    nib_round_bf16_avx512bf16(query, n, (uint16_t *)packed);
    ((uint16_t *)packed)[n] = 0; // the odd dimension's partner
}

void nib_attend_block_avx512bf16(const struct nib_attend_block *block)
{
    attend_block(block);
}
