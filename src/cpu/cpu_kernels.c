#include "cpu/cpu_kernels.h"

#include <stddef.h>

static const struct nib_cpu_kernels avx2 = {
    .tier = NIB_CPU_AVX2,
    .linear_name = "linear_wide_avx2",
    .linear_reason = "no AVX-512 in use: weights widened to fp32 in registers, FMA",
    .wide_name = "linear_wide_avx2",
    .round_bf16 = nib_round_bf16_any,
    .linear_wide = nib_linear_wide_avx2,
    .linear_across = nib_linear_across_avx2,
    .pack_query = nib_attend_pack_query_wide,
    .attend_block = nib_attend_block_avx2,
};

static const struct nib_cpu_kernels avx512 = {
    .tier = NIB_CPU_AVX512,
    .linear_name = "linear_wide_avx512",
    .linear_reason = "no AVX-512 BF16 in use: weights widened to fp32 in registers, FMA",
    .wide_name = "linear_wide_avx512",
    .round_bf16 = nib_round_bf16_any,
    .linear_wide = nib_linear_wide_avx512,
    .linear_across = nib_linear_across_avx512,
    .pack_query = nib_attend_pack_query_wide,
    .attend_block = nib_attend_block_avx512,
};

static const struct nib_cpu_kernels avx512bf16 = {
    .tier = NIB_CPU_AVX512BF16,
    .linear_name = "linear_avx512bf16",
    .linear_reason = "bf16 weights and AVX-512 BF16: vdpbf16ps on the weights as they lie",
    .wide_name = "linear_wide_avx512",
    .round_bf16 = nib_round_bf16_avx512bf16,
    .linear_bf16 = nib_linear_avx512bf16,
    .linear_wide = nib_linear_wide_avx512,
    .linear_across = nib_linear_across_avx512,
    .pack_query = nib_attend_pack_query_avx512bf16,
    .attend_block = nib_attend_block_avx512bf16,
};

const struct nib_cpu_kernels *nib_cpu_kernels_for(enum nib_cpu_tier tier)
{
    switch (tier) {
    case NIB_CPU_AVX2:
        return &avx2;
    case NIB_CPU_AVX512:
    case NIB_CPU_AVX512VNNI:
        return &avx512;
    case NIB_CPU_AVX512BF16:
    case NIB_CPU_AMX:
        return &avx512bf16;
    default:
        return NULL;
    }
}

void nib_round_bf16_any(const float *x, int64_t n, uint16_t *rounded)
{
    for (int64_t i = 0; i < n; i++)
        rounded[i] = nib_bf16_from_f32(x[i]);
}

void nib_attend_pack_query_wide(const float *query, int64_t n, float *packed)
{
    for (int64_t i = 0; i < n; i++)
        packed[i] = query[i];
    packed[n] = 0; // the odd dimension's partner
}
