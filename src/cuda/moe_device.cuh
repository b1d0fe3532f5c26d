// What the host hands the MoE kernels: one struct, passed by value.
#ifndef NIB_CUDA_MOE_DEVICE_CUH
#define NIB_CUDA_MOE_DEVICE_CUH

#include <cstdint>

#include "nibble/moe.h"

#define NIB_MOE_MULTIPLY_WARPS 12 // of the few-token kernel; whole warpgroups, and so are the others together
#define NIB_MOE_MAX_ROW_GROUPS 4

// How a tile's scale bytes reach shared memory.
enum nib_moe_scale_copy {
    NIB_MOE_SCALES_BY_ROW,    // a bulk copy a row, padded: unpadded rows would meet in one bank
    NIB_MOE_SCALES_BY_REGION, // one or two bulk copies a tile: its rows lie together
    NIB_MOE_SCALES_BY_BYTE,   // plain loads: anything else
};

// What one multiplying warp does of a tile: pairs of blocks of 16 of its rows.
struct nib_moe_slice {
    uint8_t row_group; // of the tile's
    uint8_t sums;      // which of a tile's are the warp's
    uint8_t first_pair, pairs;
};

// One of the two products, W13 x and W2 h: how its rows are cut into tiles. A tile is 16 * row_groups rows over all
// columns; each row group of 16 rows is shared by k_slices warps, so that the order of a sum depends on the layer
// alone. One team of warps, or two by turns, takes the tiles. Where there are few routes one team can do what two would
// have done, to the bit: its warps then have a slice's even pairs of blocks or its odd ones, which are in classes of
// their own.
struct nib_moe_product {
    int columns, rows;               // columns of a row; rows in units of the output (I pairs for W13, K for W2)
    int blocks;                      // columns / 32
    int pairs;                       // ceil(blocks / 2): what a warp takes at a time
    int teams, row_groups, k_slices; // their product is the number of multiplying warps
    int max_pairs;                   // of the largest slice, or half slice
    bool classes_apart;              // a slice is two warps' work: its even pairs and its odd ones
    nib_moe_slice slices[NIB_MOE_MULTIPLY_WARPS];
    uint16_t packed_at[16 * NIB_MOE_MAX_ROW_GROUPS]; // where the packed row at each place of a stage lies in it
    uint16_t scales_at[16 * NIB_MOE_MAX_ROW_GROUPS]; // and its scales, behind scale_offset
    int tile_rows;  // output rows of a tile: 8 * row_groups pairs for W13, 16 * row_groups for W2
    int tiles;      // ceil(rows / tile_rows)
    int row_stride; // bytes in shared memory from a row to the next, or from a pair to the next
    int scale_stride;
    int scale_offset; // of the tile's scales in a stage
    nib_moe_scale_copy scale_copy;
    // Packed rows reach it by one or two bulk copies a tile, unpadded; or by a copy for two neighbours, which lie at places
    // 8 apart, so that no ldmatrix reads both; else by a copy a row.
    bool rows_by_region, rows_paired;
    bool interleaved; // gate and up rows, and their scales, alternate in one region
    // Gate and up rows, or those of a pair, change places where this bit of the row or pair is set (31: never). Else the
    // rows at 8 places that are read at once would meet in a bank more often: ldmatrix in one region, scales of pairs.
    int exchange_bit;
};

// The expert table, or the first expert and the step from each to the next where all are alike.
struct nib_moe_table {
    const nib_expert *experts; /* [E], on the device */
    nib_expert first;
    int64_t step[9];
    bool affine;
};

struct nib_moe_args {
    nib_moe_product product[2];
    nib_moe_table table;
    const uint8_t *exact; /* [E] bit 0: W13, bit 1: W2 hold scales outside the fast path's range */
    int64_t gate_up_row_stride;
    nib_activation activation;
    bool bias_bf16, has_bias;
    int n_experts, first_expert;

    int tokens, top_k, routes;
    unsigned top_k_inverse; // 2^16 / top_k rounded up: of the few-token path a route times it, >> 16, is its token
    const uint16_t *x;      /* [T, K] bf16 */
    const int32_t *expert_ids;    /* [T, k] */
    const float *routing_weights; /* [T, k] */
    void *y;                      /* [T, K] or null */
    bool y_bf16, y_per_route;     // y_per_route: `out` is the caller's, and its foreign routes are to be zeroed
    float *out;                   /* [T, k, K] before the routing weight */
    uint16_t *h;                  /* [T, k, I] bf16; then, where h_rest is not 0, what their rounding took away */
    int64_t h_rest;               // elements from h to the rest: kept for small I, where the rounding would show
    unsigned *h_done; /* [2][NIB_MOE_DECODE_ROUTES] W13 tiles finished of each group; calls take the halves by turns */
    unsigned *grid_barrier;
    unsigned *blocks_read; // blocks that have seen whose turn it is, counted over two calls

    int stages, stage_bytes, partial_slots;
    bool producers_apart; // one producer copies packed rows, one scales: each tile is a copy or two of either
    int tile_weight, weight_step;       // of one or two routes; so much more for three or four, and again for more
    unsigned blocks_inverse;            // (2^32 - 1) / blocks of the grid
    int partial_offset, routing_offset; // in shared memory, behind the ring
};

#endif
