// The many-token path: what its kernels share, and its launch.
#ifndef NIB_CUDA_MOE_PREFILL_CUH
#define NIB_CUDA_MOE_PREFILL_CUH

#include <cuda_runtime.h>

#include "cuda/moe_device.cuh"

#define NIB_MOE_PREFILL_ROUTES 16384 // of one pass; more tokens take several
#define NIB_MOE_TILE_ROUTES 160      // the most columns of a product's tile
#define NIB_MOE_TILE_ROWS 192        // and its rows: 64 a warpgroup
#define NIB_MOE_PREFILL_LAUNCHES 5

// Scales the path takes: its decoded weights are bf16, 2^-16 times the true ones, and none may leave bf16's range.
#define NIB_MOE_PREFILL_MIN_SCALE 12
#define NIB_MOE_PREFILL_MAX_SCALE 144

// Some routes of one expert: slots [first, first + count).
struct nib_moe_tile {
    int expert, first, count, unused;
};

// Activations of all slots as the products read them: for each 64 columns, for each eight slots, 1024 bytes as in
// wgmma.cuh. Columns are in the order of column_place(), padded with zeros to a multiple of 128.
struct nib_moe_prefill {
    nib_moe_args call; // `out` and the layer's tables; its h and counters are not used
    int32_t *slots;    /* [8 * granules] the route of each slot, -1 where there is none */
    nib_moe_tile *tiles;
    int *counts;    /* [2] tiles; granules in use */
    uint8_t *x, *h; /* [columns / 64, granules, 1024] */
    int granules;   // groups of eight slots there is room for; no expert begins within one
};

// Upper bounds for a number of routes.
inline int nib_moe_prefill_granules(int routes, int n_experts)
{
    return routes / 8 + (routes < n_experts ? routes : n_experts) + 2; // a tile's copy may read one too many
}

inline int nib_moe_prefill_tiles(int routes, int n_experts)
{
    return routes / NIB_MOE_TILE_ROUTES + n_experts;
}

cudaError_t nib_moe_prefill_prepare();
cudaError_t nib_moe_prefill_launch(const nib_moe_prefill &args, int blocks, cudaStream_t stream);

#endif
