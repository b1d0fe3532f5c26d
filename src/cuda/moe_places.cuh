// The places of a tile's rows in its stage: 16 to 64 of them, 16 of which are the rows of a tensor-core product.
#ifndef NIB_CUDA_MOE_PLACES_CUH
#define NIB_CUDA_MOE_PLACES_CUH

#include "cuda/moe_device.cuh"

// The half of 16 places in which a half's row `row`, of W2 the pair `row`, lies; and the half whose row lies there.
__host__ __device__ inline int half_at(const nib_moe_product &p, int half, int row)
{
    return half ^ (row >> p.exchange_bit & 1);
}

// The place of a tile's row in its stage: in W13 every 16 rows are 8 gate rows and then their 8 up rows, in W2 those of a
// pair are 8 apart, as half_at has them.
__host__ __device__ inline int place_of(const nib_moe_product &p, int which, int half, int row)
{
    if (which == 0)
        return row + (row & ~7) + half_at(p, half, row) * 8;
    int pair = row >> 1 & 7;
    return p.rows_paired ? (row & ~15) + pair + half_at(p, row & 1, pair) * 8 : row;
}

// Where the place's row lies among the tile's rows in memory.
inline int memory_row(const nib_moe_product &p, int which, int place)
{
    int row = (place >> 4) * 8 + (place & 7), half = half_at(p, place >> 3 & 1, row);
    if (p.rows_paired)
        return 2 * row + half;
    if (which == 1)
        return place;
    return p.interleaved ? 2 * row + half : row + half * p.tile_rows;
}

// Where the place's packed row lies in a stage, and its scales behind scale_offset.
inline int packed_at(const nib_moe_product &p, int which, int place)
{
    int row = p.rows_by_region || p.rows_paired ? memory_row(p, which, place) : place;
    return p.rows_paired ? row / 2 * p.row_stride + row % 2 * (p.columns / 2) : row * p.row_stride;
}

inline int scales_at(const nib_moe_product &p, int which, int place)
{
    return (p.scale_copy == NIB_MOE_SCALES_BY_REGION ? memory_row(p, which, place) : place) * p.scale_stride;
}

#endif
