// What the kernels of the AVX-512 tiers that read weights by panels share, whatever they multiply them as.
#ifndef NIB_CPU_MOE_PANEL_AVX512_H
#define NIB_CPU_MOE_PANEL_AVX512_H

#include "cpu/moe_packed.h"
#include "cpu/unroll.h"

#include <immintrin.h>
#include <stdbool.h>

#define SCALE_LOWEST 64
#define SCALE_HIGHEST 190
#define CHUNK_BYTES (NIB_MOE_CHUNK / 2)
#define CHUNK_SCALES (NIB_MOE_CHUNK / NIB_MX_BLOCK)

// A stretch of a block's columns.
struct panel {
    const struct nib_moe_block *block;
    const struct nib_moe_block *ahead; // to prefetch, or NULL
    const uint8_t *after;              // packed weights of the first rows that are multiplied behind this panel
    int64_t start;                     // its first column
    int64_t chunks;                    // whole ones
    int64_t partial;                   // scales in a last, partial chunk
};

// Where a chunk of some rows begins. They lie in one half of their block and so equally far apart.
struct rows {
    const uint8_t *packed, *scales;
    uintptr_t packed_stride, scales_stride;
    uintptr_t far, near; // the rows of the block ahead, and those that are multiplied next
};

INLINE void skip_chunks(struct rows *from, int64_t chunks)
{
    from->packed += chunks * CHUNK_BYTES;
    from->scales += chunks * CHUNK_SCALES;
    from->far += (uintptr_t)chunks * CHUNK_BYTES;
    from->near += (uintptr_t)chunks * CHUNK_BYTES;
}

INLINE void next_chunk(struct rows *from)
{
    skip_chunks(from, 1);
    // Or the compiler keeps an address for each row, more than there are registers.
    __asm__("" : "+r"(from->packed_stride), "+r"(from->scales_stride));
}

INLINE __m512i load_table(const void *codes /* [16] words */)
{
    return _mm512_broadcast_i64x4(_mm256_load_si256(codes));
}

// The words of a chunk of one row, zeros behind those of a partial one.
INLINE __m512i load_packed(const uint8_t *packed, int64_t partial)
{
    return partial ? _mm512_maskz_loadu_epi16((1u << partial * 8) - 1, packed) : _mm512_loadu_si512(packed);
}

// True when every scale of the block is in the range of the fast paths.
static inline bool scales_in_range(const struct nib_moe_block *block, int64_t n)
{
    const __m512i lowest = _mm512_set1_epi8(SCALE_LOWEST), span = _mm512_set1_epi8(SCALE_HIGHEST - SCALE_LOWEST);
    int64_t n_scales = n / NIB_MX_BLOCK;
    __mmask64 rest = ((__mmask64)1 << n_scales % 64) - 1;
    __m512i largest = _mm512_setzero_si512(); // above the lowest, modulo 256
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(block, i);
        int64_t k = 0;
        for (; k + 64 <= n_scales; k += 64)
            largest = _mm512_max_epu8(largest, _mm512_sub_epi8(_mm512_loadu_si512(scales + k), lowest));
        __m512i last = _mm512_maskz_sub_epi8(rest, _mm512_maskz_loadu_epi8(rest, scales + k), lowest);
        largest = _mm512_max_epu8(largest, last);
    }
    return _mm512_cmpgt_epu8_mask(largest, span) == 0;
}

static inline void prefetch_scales(const struct nib_moe_block *block, int64_t n)
{
    for (int i = 0; i < NIB_MOE_ROWS; i++) {
        const uint8_t *scales = nib_moe_block_scales(block, i);
        for (int64_t k = 0; k < n / NIB_MX_BLOCK; k += 64)
            _mm_prefetch((const char *)scales + k, _MM_HINT_T1);
    }
}

// Packed weights of a row of the panel, or counted on beyond its last, of one that is multiplied behind it.
static inline const uint8_t *panel_row(const struct panel *panel, int row)
{
    if (row >= NIB_MOE_ROWS)
        return panel->after + (row - NIB_MOE_ROWS) * panel->block->packed_stride;
    return nib_moe_block_packed(panel->block, row) + panel->start / 2;
}

// The panel's columns from its start on, at most `most` of a block's n.
static inline void cut_panel(struct panel *panel, int64_t n, int64_t most)
{
    int64_t columns = n - panel->start < most ? n - panel->start : most;
    panel->chunks = columns / NIB_MOE_CHUNK;
    panel->partial = columns % NIB_MOE_CHUNK / NIB_MX_BLOCK;
    if (panel->ahead)
        panel->after = panel->start + columns < n
                           ? nib_moe_block_packed(panel->block, 0) + (panel->start + columns) / 2
                           : nib_moe_block_packed(panel->ahead, 0);
}

// The 16 lanes of each of 16 sums added in one fixed tree: lane i of the result belongs to sum[i].
INLINE __m512 reduce_rows(const __m512 *sum /* [16] */)
{
    __m512 pair[8], quad[4];
    UNROLL
    for (int i = 0; i < 8; i++)
        pair[i] = _mm512_add_ps(_mm512_unpacklo_ps(sum[2 * i], sum[2 * i + 1]),
                                _mm512_unpackhi_ps(sum[2 * i], sum[2 * i + 1]));
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pair[2 * i]), b = _mm512_castps_pd(pair[2 * i + 1]);
        quad[i] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    __m512 low =
        _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44), _mm512_shuffle_f32x4(quad[0], quad[1], 0xee));
    __m512 high =
        _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x44), _mm512_shuffle_f32x4(quad[2], quad[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

// Rows [first, first + rows) of the panel.
static inline struct rows tile_rows(const struct panel *panel, int first, int rows)
{
    const struct nib_moe_block *block = panel->block;
    struct rows from = {.packed = panel_row(panel, first),
                        .scales = nib_moe_block_scales(block, first) + panel->start / NIB_MX_BLOCK,
                        .packed_stride = (uintptr_t)block->packed_stride,
                        .scales_stride = (uintptr_t)block->scales_stride};
    if (!panel->ahead)
        return from;
    from.far = (uintptr_t)nib_moe_block_packed(panel->ahead, first) + (uintptr_t)panel->start / 2;
    from.near = (uintptr_t)panel_row(panel, first + rows);
    return from;
}

#endif
