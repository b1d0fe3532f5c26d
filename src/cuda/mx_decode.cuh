// MXFP4 in registers: packed nibbles to bf16 or f16 pairs, and the tensor-core products they feed.
#ifndef NIB_CUDA_MX_DECODE_CUH
#define NIB_CUDA_MX_DECODE_CUH

#include <cstdint>

// Eight E2M1 nibbles to four bf16 pairs, each value times 2^-126: sign to bit 15, exponent and mantissa to bits 8..6,
// where 0.5 is a bf16 subnormal, which the tensor cores take exactly. Pair i holds elements i and i + 4. A product by
// 2^12 + 2^6 puts both copies of a nibble in place at once and runs on the FMA pipe, which has room when the logic
// pipe has not: three instructions for two weights.
__device__ __forceinline__ void decode_nibbles(uint32_t packed, uint32_t (&pairs)[4])
{
    uint32_t upper = packed >> 8;
    pairs[0] = ((packed & 0x000f000fu) * 0x1040u) & 0x81c081c0u;
    pairs[1] = ((packed & 0x00f000f0u) * 0x0104u) & 0x81c081c0u;
    pairs[2] = ((upper & 0x000f000fu) * 0x1040u) & 0x81c081c0u;
    pairs[3] = ((upper & 0x00f000f0u) * 0x0104u) & 0x81c081c0u;
}

// The same to f16 pairs, each value times 2^-14: sign to bit 15, exponent and mantissa to bits 11..9, where 0.5 is a
// subnormal too. The two copies of a nibble lie closer together than in bf16, so one mask can leave two nibbles in each half
// of the word: the copies of the one do not reach the bits that are kept of the other. 11 instructions for eight weights, five
// of them on the FMA pipe. In a product by 2^12 + 2^9 both copies share bit 12; without the added -2^12 in each half a nibble
// of ones would carry into its sign. It makes -0 of 0.
__device__ __forceinline__ void decode_f16(uint32_t packed, uint32_t (&pairs)[4])
{
    constexpr uint32_t kept = 0x8e008e00u, less = 0xf000f000u;
    uint32_t even = packed & 0x0f0f0f0fu, odd = (packed - even) >> 4;
    pairs[0] = (even * 0x1200u + less) & kept;
    pairs[1] = (odd * 0x1200u + less) & kept;
    pairs[2] = (even * 0x0012u + less) & kept;
    pairs[3] = (odd * 0x0012u + less) & kept;
}

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

// d = a * b + c for a 16x16 (row-major) and b 16x8 (column-major) in bf16.
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1, const float (&c)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// The same in f16.
__device__ __forceinline__ void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1, const float (&c)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// The order in which decode_nibbles leaves a lane's eight elements, given them in memory order: (0,4) (1,5) (2,6) (3,7).
__device__ __forceinline__ void permute_activations(const uint4 &in, uint32_t (&out)[4])
{
    out[0] = __byte_perm(in.x, in.z, 0x5410);
    out[1] = __byte_perm(in.x, in.z, 0x7632);
    out[2] = __byte_perm(in.y, in.w, 0x5410);
    out[3] = __byte_perm(in.y, in.w, 0x7632);
}

#endif
