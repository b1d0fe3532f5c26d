// What the files of the AVX-512 VNNI kernel share: the arithmetic is described in moe_avx512vnni.c.
#ifndef NIB_CPU_MOE_AVX512VNNI_H
#define NIB_CPU_MOE_AVX512VNNI_H

#include "cpu/moe_panel_avx512.h"

#define GROUP_CHUNKS 4
#define GROUP_COLUMNS (GROUP_CHUNKS * NIB_MOE_CHUNK)
#define SPREAD 7    // a block's scale is at most 2^7 times the smallest of its row and group
#define TILE_ROWS 4 // weight rows that are taken together

// 512 columns of an activation row, as integers; of the row's last group only the chunks that there are.
struct group {
    float unit;     // what 1 stands for, in the row's unit
    float row_unit; // of the row's first group: halved for the doubled weights; NaN if an element is not finite
    _Alignas(64) int16_t planes[GROUP_CHUNKS][4][32]; /* element 4w + p of a chunk at place w of plane p */
};

// The columns of a group that a row really has.
struct stretch {
    int64_t chunks;  // whole ones
    int64_t partial; // scales in a last, partial chunk
};

static inline struct stretch group_stretch(int64_t n, int64_t group)
{
    int64_t left = n - group * GROUP_COLUMNS, columns = left < GROUP_COLUMNS ? left : GROUP_COLUMNS;
    return (struct stretch){.chunks = columns / NIB_MOE_CHUNK, .partial = columns % NIB_MOE_CHUNK / NIB_MX_BLOCK};
}

// Twice the values of codes 0 … 15.
static const _Alignas(32) int16_t codes_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The scales of a group of four rows: 2^(smallest - 127), and in each row's 128-bit lane how far above it the 16 lie. Where
// that is too far the group's sums mean nothing, and smallest is zero.
struct group_scales {
    __m128 smallest;
    __m512i above;
};

// What a block's scales were like: the least, the largest (short of SPREAD), and whether a group has been left out.
struct seen {
    __m512i least, largest;
    bool too_far;
};

INLINE struct seen nothing_seen(void)
{
    return (struct seen){.least = _mm512_set1_epi8(-1), .largest = _mm512_setzero_si512()};
}

// Whether fp32 holds what the scales make of a group's sums.
static inline bool in_range(const struct seen *seen)
{
    return _mm512_cmplt_epu8_mask(seen->least, _mm512_set1_epi8(SCALE_LOWEST)) == 0 &&
           _mm512_cmpgt_epu8_mask(seen->largest, _mm512_set1_epi8((char)(SCALE_HIGHEST - SPREAD))) == 0;
}

INLINE __m128i load_group_scales(const uint8_t *scales, __mmask16 there)
{
    if (there == 0xffff)
        return _mm_loadu_si128((const __m128i *)(const void *)scales);
    return _mm_mask_loadu_epi8(_mm_set1_epi8(-1), there, scales); // so that none of these is the smallest
}

INLINE struct group_scales read_scales(const struct rows *from, struct stretch stretch, struct seen *seen)
{
    const __mmask16 there = stretch.chunks == GROUP_CHUNKS
                                ? 0xffff
                                : (__mmask16)((1u << (stretch.chunks * CHUNK_SCALES + stretch.partial)) - 1);
    struct group_scales s;
    const uint8_t *row = from->scales;
    uintptr_t stride = from->scales_stride;
    __m512i bytes = _mm512_castsi128_si512(load_group_scales(row, there));
    bytes = _mm512_inserti32x4(bytes, load_group_scales(row + stride, there), 1);
    bytes = _mm512_inserti32x4(bytes, load_group_scales(row + 2 * stride, there), 2);
    bytes = _mm512_inserti32x4(bytes, load_group_scales(row + 3 * stride, there), 3);
    __m512i least = _mm512_min_epu8(bytes, _mm512_shuffle_epi32(bytes, 0x4e));
    least = _mm512_min_epu8(least, _mm512_shuffle_epi32(least, 0xb1));
    least = _mm512_min_epu8(least, _mm512_rol_epi32(least, 16));
    least = _mm512_min_epu8(least, _mm512_rol_epi32(least, 8));
    s.above = _mm512_sub_epi8(bytes, least);
    if (there != 0xffff)
        s.above = _mm512_and_si512(s.above, _mm512_broadcast_i32x4(_mm_movm_epi8(there)));
    seen->least = _mm512_min_epu8(seen->least, least);
    seen->largest = _mm512_max_epu8(seen->largest, least);
    // A dword of each lane, as an exponent.
    const __m512i lanes = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    __m128i four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(lanes, least));
    s.smallest = _mm_castsi128_ps(_mm_slli_epi32(_mm_and_si128(four, _mm_set1_epi32(0xff)), 23));
    __mmask16 too_far = _mm512_test_epi32_mask(s.above, _mm512_set1_epi8((char)~SPREAD)); // four bits a row
    if (__builtin_expect(too_far != 0, 0)) {
        seen->too_far = true;
        seen->largest = _mm512_max_epu8(seen->largest, _mm512_add_epi8(s.above, least));
        for (int i = 0; i < TILE_ROWS; i++)
            if (too_far >> 4 * i & 15)
                s.smallest = _mm_mask_mov_ps(s.smallest, (__mmask8)(1 << i), _mm_setzero_ps());
    }
    return s;
}

// A row's part of `above`, in every lane.
INLINE __m512i row_above(const struct group_scales *scales, int row)
{
    switch (row) {
    case 0:
        return _mm512_shuffle_i32x4(scales->above, scales->above, 0x00);
    case 1:
        return _mm512_shuffle_i32x4(scales->above, scales->above, 0x55);
    case 2:
        return _mm512_shuffle_i32x4(scales->above, scales->above, 0xaa);
    default:
        return _mm512_shuffle_i32x4(scales->above, scales->above, 0xff);
    }
}

// Where the shifts of a chunk's words, or of its sums, are in what lies above: byte `lane` of the chunk's four, and zero.
INLINE __m512i word_places(int64_t chunk)
{
    const __m512i first =
        _mm512_set_epi64((int64_t)0x8003800380038003, (int64_t)0x8003800380038003, (int64_t)0x8002800280028002,
                         (int64_t)0x8002800280028002, (int64_t)0x8001800180018001, (int64_t)0x8001800180018001,
                         (int64_t)0x8000800080008000, (int64_t)0x8000800080008000);
    return _mm512_add_epi32(first, _mm512_set1_epi32((int32_t)(chunk * CHUNK_SCALES * 0x10001)));
}

INLINE __m512i dword_places(int64_t chunk)
{
    return _mm512_or_si512(word_places(chunk), _mm512_set1_epi32((int32_t)0x80000000 | 0x00800000));
}

// Adds a group's sums of integers to the fp32 ones, as what they stand for.
INLINE void add_group(__m512i sum, float factor, __m512 *saved)
{
    *saved = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor), *saved);
}

// A block's sums for more than NIB_MOE_FEW activation rows, added to saved[t][row].
struct seen nib_moe_multiply_many_vnni(const struct nib_moe_block *block, const struct nib_moe_block *ahead,
                                       int64_t n, const struct group *const *x /* [m] */, int m,
                                       __m512 (*saved)[NIB_MOE_ROWS] /* [m] */);

// arrange and finish of struct nib_moe_tier.
void nib_moe_arrange_groups(const uint16_t *x /* [n] bf16 */, int64_t n, void *row);
void nib_moe_finish_groups(int64_t n, void *row);

#endif
