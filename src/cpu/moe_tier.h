// What the MoE layer needs of an instruction-set tier: a few functions that neither allocate, thread nor fail.
#ifndef NIB_CPU_MOE_TIER_H
#define NIB_CPU_MOE_TIER_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu_features.h"
#include "ops/moe_plan.h"

#define NIB_MOE_ROWS 16   // weight rows of a block
#define NIB_MOE_TOKENS 64 // activation rows of a multiply at most, for any kernel
#define NIB_MOE_FEW 8     // what fits in registers
#define NIB_MOE_CHUNK 128 // columns that a kernel takes at a time; activation rows are padded to it with zeros

// 16 weight rows: row i of half h is at packed[h] + i * packed_stride, i < 8. For gate and up the halves are 8 gate rows
// and their 8 up rows; for down they are 16 consecutive rows.
struct nib_moe_block {
    const uint8_t *packed[2], *scales[2];
    int64_t packed_stride, scales_stride; // bytes
};

static inline const uint8_t *nib_moe_block_packed(const struct nib_moe_block *block, int row)
{
    return block->packed[row / 8] + row % 8 * block->packed_stride;
}

static inline const uint8_t *nib_moe_block_scales(const struct nib_moe_block *block, int row)
{
    return block->scales[row / 8] + row % 8 * block->scales_stride;
}

// Where the bf16 kernels keep element i of a row: chunks of 128 in four planes, element 4w + p at place w of plane p.
static inline int64_t nib_moe_plane_index(int64_t i)
{
    return (i & -128) + (i & 3) * 32 + (i % 128 >> 2);
}

struct nib_moe_tier {
    struct nib_moe_kernel kernel; // first, so that a plan's kernel leads here
    enum nib_cpu_tier tier;
    size_t element_bytes; // of an arranged activation row
    int max_tokens;       // activation rows of a multiply at most
    bool rows_in_order;   // wants them one behind the other

    // x as the kernel wants to read it; elements past n, up to a whole chunk, become zero
    void (*arrange)(const uint16_t *x /* [n] bf16 */, int64_t n, void *row /* [chunks, 128] */);
    // the same from fp32; NULL where the kernel does not take it
    void (*arrange_f32)(const float *x /* [n] */, int64_t n, void *row /* [chunks, 128] */);

    // out[t][i] = sum over n columns of row i of the block times x[t], for m arranged activation rows. The order
    // of the sum depends on n alone. While it reads, it prefetches the same columns of `ahead` unless that is NULL.
    void (*multiply)(const struct nib_moe_block *block, const struct nib_moe_block *ahead, int64_t n,
                     const void *const *x /* [m] */, int m, float *out /* [m, 16] */);

    // act(gate, up) of 8 pairs into elements first … first + 7 of an arranged row. Where elements are bf16, what the
    // rounding took away goes, rounded once more, into the same elements of `rest` unless that is NULL
    void (*activate)(const struct nib_activation *activation, const float *gate_up /* [2, 8] */, int64_t first,
                     void *row, void *rest);

    // When all n elements were activated, before the row is multiplied; NULL when there is nothing to do
    void (*finish)(int64_t n, void *row);
};

extern const struct nib_moe_tier nib_moe_avx2, nib_moe_avx512, nib_moe_avx512vnni, nib_moe_avx512bf16, nib_moe_amx;

// The most that nib_moe_scratch_bytes can say for a layer of this shape on this CPU, whichever kernel is picked: for
// memory plans made before there are weights.
size_t nib_moe_scratch_bound(int64_t hidden, int64_t intermediate, int64_t n_experts, int64_t tokens,
                             int64_t top_k, int threads);

#endif
