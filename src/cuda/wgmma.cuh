// Warpgroup matrix products (wgmma): 64 rows of A from registers, B from shared memory, sums in fp32 registers.
#ifndef NIB_CUDA_WGMMA_CUH
#define NIB_CUDA_WGMMA_CUH

#include <cstdint>

// B lies K-major: rows of 64 bf16 (128 bytes), 16-byte pieces of row r at place piece ^ r % 8, eight rows to 1024 aligned
// bytes, groups of eight rows one behind the other. Adding 2 steps 16 columns on, adding 64 eight rows.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared)
{
    constexpr uint64_t swizzle_128 = 1ull << 62, group_step = 1024 / 16, unused = 1;
    return swizzle_128 | group_step << 32 | unused << 16 | (shared & 0x3ffff) >> 4;
}

// Registers written before are seen by the products that follow.
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_wait_all()
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// d += a * b: 64 x 16 times 16 x N. d[i]: rows g and g + 8 of the warp's 16, columns 8i + 2c and the next,
// for lane 4g + c; a as in mma.m16n8k16.
__device__ __forceinline__ void wgmma_16(float (*d)[4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_32(float (*d)[4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
                 "%10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_64(float (*d)[4], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
                 "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
                 "%29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
                   "+f"(d[7][2]), "+f"(d[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// N columns, a multiple of 16, in pieces of 64, 32 and 16.
template <int N> __device__ __forceinline__ void wgmma(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b)
{
    static_assert(N % 16 == 0);
    constexpr int after_64 = N / 64 * 64, after_32 = N / 32 * 32;
#pragma unroll
    for (int n = 0; n < after_64; n += 64)
        wgmma_64(d + n / 8, a, b + n / 8 * 64);
    if constexpr (N % 64 >= 32)
        wgmma_32(d + after_64 / 8, a, b + after_64 / 8 * 64);
    if constexpr (N % 32)
        wgmma_16(d + after_32 / 8, a, b + after_32 / 8 * 64);
}

#endif
