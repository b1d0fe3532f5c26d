// What the tiers without bf16 products share: activations and unpacked weights are fp32, scales become fp32 a panel at a
// time, and each chunk's sum is scaled as it is added. Included by one file per tier, which supplies the chunk.
#ifndef NIB_CPU_MOE_F32_H
#define NIB_CPU_MOE_F32_H

#include <immintrin.h>

#include "cpu/moe_activation.h"
#include "cpu/moe_packed.h"

#define PANEL_CHUNKS 8 // 4 KiB of a fp32 activation row: what eight tokens read again for each row stays in L1
#define PANEL_COLUMNS (PANEL_CHUNKS * NIB_MOE_CHUNK)
#define PANEL_SCALES (PANEL_COLUMNS / NIB_MX_BLOCK)

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

// Up to PANEL_CHUNKS chunks of a block's rows.
struct panel {
    const struct nib_moe_block *block;
    const struct nib_moe_block *ahead; // or NULL
    int64_t start, columns;
    _Alignas(64) float scales[NIB_MOE_ROWS][PANEL_SCALES]; // zero past the last column
};

static inline const uint8_t *panel_packed(const struct panel *panel, int row)
{
    return nib_moe_block_packed(panel->block, row) + panel->start / 2;
}

static void expand_scales(struct panel *panel)
{
    int64_t n = panel->columns / NIB_MX_BLOCK;
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(panel->block, i) + panel->start / NIB_MX_BLOCK;
        float *values = panel->scales[i];
        for (int64_t k = 0; k < n; k++) {
            uint32_t byte = scales[k], bits = byte << 23;
            bits = byte == 0 ? 0x00400000u : bits;   // 2^-127, a subnormal
            bits = byte == 255 ? 0x7fc00000u : bits; // NaN
            memcpy(&values[k], &bits, sizeof bits);
        }
        for (int64_t k = n; k % (NIB_MOE_CHUNK / NIB_MX_BLOCK); k++)
            values[k] = 0;
    }
}

// The weights of the same panel of the block ahead, chunk c of row `row`; with the first chunk also its scales.
INLINE void prefetch_ahead(const struct panel *panel, int row, int64_t c)
{
    if (!panel->ahead)
        return;
    _mm_prefetch((const char *)nib_moe_block_packed(panel->ahead, row) + panel->start / 2 + c * 64, _MM_HINT_T1);
    if (c == 0)
        for (int64_t k = 0; k < panel->columns / NIB_MX_BLOCK; k += 64)
            _mm_prefetch((const char *)nib_moe_block_scales(panel->ahead, row) + panel->start / NIB_MX_BLOCK + k,
                         _MM_HINT_T1);
}

#endif
