// One of the two products for many routes. A block takes tiles of 192 rows by up to 160 routes of an expert: three
// warpgroups decode 64 rows each from global memory into registers, as operand A of wgmma, and one thread copies the
// routes' activations, operand B, into a ring of shared-memory stages of 128 columns.
#ifndef NIB_CUDA_MOE_GEMM_CUH
#define NIB_CUDA_MOE_GEMM_CUH

#include <cuda_bf16.h>

#include "cuda/moe_activation.cuh"
#include "cuda/moe_block.cuh"
#include "cuda/moe_finish.cuh"
#include "cuda/moe_prefill.cuh"
#include "cuda/moe_produce.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/wgmma.cuh"

constexpr int gemm_warpgroups = NIB_MOE_TILE_ROWS / 64, gemm_threads = gemm_warpgroups * 128 + 128;
constexpr int gemm_stages = 5, gemm_stage_bytes = NIB_MOE_TILE_ROUTES * 256,
              gemm_shared = gemm_stages * gemm_stage_bytes;
constexpr float gemm_factor = 65536.0f; // decoded weights are 2^-16 times the true ones

// Within 128 columns, lane c of a quad multiplies the four words of block c, two products of 16 columns each, in the
// order in which decode_nibbles leaves them. The place of column e of block c: 16-byte piece and element there.
struct column_place {
    int piece, element;
};

__device__ __forceinline__ column_place place_column(int c, int e)
{
    int product = e / 8 * 2 + e % 4 / 2;
    return {product * 2 + e % 2, c * 2 + e % 8 / 4};
}

// Where piece p (of 16 in 128 columns) of a slot lies.
__device__ __forceinline__ uint8_t *piece_address(uint8_t *base, int granules, int slot, int group, int piece)
{
    int64_t at = static_cast<int64_t>(group * 2 + piece / 8) * granules + slot / 8;
    return base + at * 1024 + slot % 8 * 128 + ((piece ^ slot) & 7) * 16;
}

__device__ __forceinline__ int column_groups(const nib_moe_product &p)
{
    return (p.columns + 127) / 128;
}

__device__ __forceinline__ int row_tiles(const nib_moe_product &p, int which)
{
    int rows = which == 0 ? p.rows * 2 : p.rows;
    return (rows + NIB_MOE_TILE_ROWS - 1) / NIB_MOE_TILE_ROWS;
}

__device__ __forceinline__ int tile_columns(const nib_moe_tile &tile)
{
    return (tile.count + 15) / 16 * 16;
}

struct gemm_ring {
    uint32_t stages, full, empty; // shared addresses; barriers 8 bytes apart
    int at, phase;
};

__device__ __forceinline__ void advance(gemm_ring &ring)
{
    if (++ring.at == gemm_stages)
        ring.at = 0, ring.phase ^= 1;
}

__device__ __forceinline__ void copy_activations(const nib_moe_prefill &args, const uint8_t *base,
                                                 const nib_moe_tile &tile, int groups, gemm_ring &ring,
                                                 uint64_t policy)
{
    int bytes = tile_columns(tile) * 128;
    int64_t step = static_cast<int64_t>(args.granules) * 1024;
    const uint8_t *from = base + static_cast<int64_t>(tile.first / 8) * 1024;
    for (int q = 0; q < groups; q++) {
        barrier_wait(ring.empty + 8 * ring.at, ring.phase ^ 1);
        uint32_t full = ring.full + 8 * ring.at, target = ring.stages + ring.at * gemm_stage_bytes;
        barrier_arrive_expect(full, 2 * bytes);
        bulk_copy(target, from, bytes, full, policy);
        bulk_copy(target + bytes, from + step, bytes, full, policy);
        from += 2 * step;
        advance(ring);
    }
}

// This lane's two rows of a tile, and one block of each.
struct row_pair {
    const uint8_t *packed[2], *scales[2];
};

struct block_pair {
    uint4 words[2];
    uint32_t codes[2];
};

__device__ __forceinline__ void load_blocks(const row_pair &rows, int block, int blocks, block_pair &to)
{
    bool here = block < blocks;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to.words[i] = here ? load_once_u4(rows.packed[i] + block * 16) : make_uint4(0, 0, 0, 0);
        to.codes[i] = here ? rows.scales[i][block] : 0;
    }
}

// Operand A of the two products over one word of each row.
__device__ __forceinline__ void decode_words(uint32_t top_word, uint32_t bottom_word, const uint32_t (&factor)[2],
                                             uint32_t (&a)[2][4])
{
    uint32_t top[4], bottom[4];
    decode_nibbles(top_word, top);
    decode_nibbles(bottom_word, bottom);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i / 2][i % 2 * 2] = mul_bf16x2(top[i], factor[0]);
        a[i / 2][i % 2 * 2 + 1] = mul_bf16x2(bottom[i], factor[1]);
    }
}

template <int N>
__device__ __forceinline__ void multiply_group(float (&sum)[N / 8][4], const uint4 (&words)[2],
                                               const uint32_t (&factor)[2], uint32_t stage)
{
    const uint32_t top[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
    const uint32_t bottom[4] = {words[1].x, words[1].y, words[1].z, words[1].w};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t a[2][2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            decode_words(top[half * 2 + j], bottom[half * 2 + j], factor, a[j]);
        uint64_t b = wgmma_descriptor(stage + half * N * 128);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            wgmma<N>(sum, a[i / 2][i % 2], b + i * 2);
        wgmma_commit();
        wgmma_wait_all();
    }
}

// 2^(s - 127), less the 2^16 that decoded weights lack and more the 2^126 that decode_nibbles leaves out; bf16 twice.
__device__ __forceinline__ uint32_t scale_factor(uint32_t code)
{
    return code * 0x00800080u + 110 * 0x00800080u;
}

// Two results of neighbouring slots to h: lanes of rows e and e + 4, whose elements lie side by side, swap one each, so
// that each stores a pair.
__device__ __forceinline__ void store_h(uint8_t *place, float even, float odd, bool store, int lane)
{
    bool upper = lane & 16;
    float other = __shfl_xor_sync(~0u, upper ? even : odd, 16);
    __nv_bfloat162 pair = upper ? __floats2bfloat162_rn(other, odd) : __floats2bfloat162_rn(even, other);
    if (store)
        *reinterpret_cast<__nv_bfloat162 *>(place) = pair;
}

__device__ __forceinline__ float2 biases_at(const nib_moe_args &call, int which, const nib_expert &expert, int row)
{
    raw_biases raw = load_biases(call, biases_of(call, which, expert, row, 8), 0, row < call.product[which].rows);
    return make_float2(bias_of(call, raw.first), bias_of(call, raw.second));
}

// Gate rows in sum[][0..1], up rows in sum[][2..3].
template <int N>
__device__ __forceinline__ void finish_h(const nib_moe_prefill &args, const nib_expert &expert,
                                         const nib_moe_tile &tile, const float (&sum)[N / 8][4], int row, int lane)
{
    const nib_moe_args &call = args.call;
    float2 bias = biases_at(call, 0, expert, row);
    int slot = tile.first + lane % 4 * 2 + (lane / 16); // of the two, the one that this lane stores
    column_place place = place_column(row % 128 / 32, row % 32);
    uint8_t *at = piece_address(args.h, args.granules, slot, row / 128, place.piece) + place.element / 2 * 4;
    int padded = (tile.count + 7) / 8;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        float even = activate(call.activation, sum[i][0] * gemm_factor + bias.x, sum[i][2] * gemm_factor + bias.y);
        float odd = activate(call.activation, sum[i][1] * gemm_factor + bias.x, sum[i][3] * gemm_factor + bias.y);
        store_h(at + i * 1024, even, odd, i < padded && row < call.product[0].rows, lane);
    }
}

template <int N>
__device__ __forceinline__ void finish_out(const nib_moe_prefill &args, const nib_expert &expert,
                                           const nib_moe_tile &tile, const float (&sum)[N / 8][4], int row,
                                           int lane)
{
    const nib_moe_args &call = args.call;
    int rows = call.product[1].rows;
    if (row >= rows)
        return;
    float2 bias = biases_at(call, 1, expert, row);
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int n = i * 8 + lane % 4 * 2 + j;
            if (n >= tile.count)
                continue;
            float *out = call.out + static_cast<int64_t>(args.slots[tile.first + n]) * rows + row;
            out[0] = sum[i][j] * gemm_factor + bias.x;
            out[8] = sum[i][2 + j] * gemm_factor + bias.y;
        }
    }
}

template <int which, int N>
__device__ __forceinline__ void multiply_rows(const nib_moe_prefill &args, const nib_moe_tile &tile, int row_tile,
                                              gemm_ring &ring, int warp, int lane)
{
    const nib_moe_product &p = args.call.product[which];
    nib_expert expert = expert_at(args.call.table, tile.expert);
    int row = (row_tile * (NIB_MOE_TILE_ROWS / 16) + warp) * (which == 0 ? 8 : 16) + lane / 4;
    row_pair rows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row_source packed = packed_rows(args.call, which, expert, i),
                   scales = scale_rows(args.call, which, expert, i);
        int64_t own = min(which == 0 ? row : row + 8 * i, p.rows - 1);
        rows.packed[i] = packed.bytes + own * packed.step;
        rows.scales[i] = scales.bytes + own * scales.step;
    }
    block_pair next[2]; // two groups of 128 columns are under way: with few routes a tile is all loads
    for (int i = 0; i < 2; i++)
        load_blocks(rows, i * 4 + lane % 4, p.blocks, next[i]);
    float sum[N / 8][4] = {};
    int groups = column_groups(p);
#pragma unroll 1
    for (int group = 0; group < groups; group += 2) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (group + i == groups)
                break;
            const block_pair now = next[i];
            const uint32_t factor[2] = {scale_factor(now.codes[0]), scale_factor(now.codes[1])};
            load_blocks(rows, (group + i + 2) * 4 + lane % 4, p.blocks, next[i]);
            barrier_wait(ring.full + 8 * ring.at, ring.phase);
            multiply_group<N>(sum, now.words, factor, ring.stages + ring.at * gemm_stage_bytes);
            if (lane == 0)
                barrier_arrive(ring.empty + 8 * ring.at);
            advance(ring);
        }
    }
    if constexpr (which == 0)
        finish_h<N>(args, expert, tile, sum, row, lane);
    else
        finish_out<N>(args, expert, tile, sum, row, lane);
}

template <int which>
__device__ __forceinline__ void multiply_tile(const nib_moe_prefill &args, const nib_moe_tile &tile, int row_tile,
                                              gemm_ring &ring, int warp, int lane)
{
    switch (tile_columns(tile) / 16) {
    case 1:
        return multiply_rows<which, 16>(args, tile, row_tile, ring, warp, lane);
    case 2:
        return multiply_rows<which, 32>(args, tile, row_tile, ring, warp, lane);
    case 3:
        return multiply_rows<which, 48>(args, tile, row_tile, ring, warp, lane);
    case 4:
        return multiply_rows<which, 64>(args, tile, row_tile, ring, warp, lane);
    case 5:
        return multiply_rows<which, 80>(args, tile, row_tile, ring, warp, lane);
    case 6:
        return multiply_rows<which, 96>(args, tile, row_tile, ring, warp, lane);
    case 7:
        return multiply_rows<which, 112>(args, tile, row_tile, ring, warp, lane);
    case 8:
        return multiply_rows<which, 128>(args, tile, row_tile, ring, warp, lane);
    case 9:
        return multiply_rows<which, 144>(args, tile, row_tile, ring, warp, lane);
    case 10:
        return multiply_rows<which, 160>(args, tile, row_tile, ring, warp, lane);
    }
}

// Tiles of routes outermost, so that blocks at work at the same time share activations in the L2.
template <int which>
__global__ void __launch_bounds__(gemm_threads, 1) multiply_routes(const __grid_constant__ nib_moe_prefill args)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t barriers[2 * gemm_stages];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    gemm_ring ring = {shared_address(memory), shared_address(barriers), shared_address(barriers + gemm_stages), 0,
                      0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < gemm_stages; i++) {
            barrier_init(ring.full + 8 * i, 1);
            barrier_init(ring.empty + 8 * i, gemm_warpgroups * 4);
        }
        barrier_init_fence();
    }
    __syncthreads();
    int per_tile = row_tiles(args.call.product[which], which), items = args.counts[0] * per_tile;
    if (warp >= gemm_warpgroups * 4) {
        give_registers<24>();
        if (threadIdx.x != gemm_warpgroups * 128)
            return;
        uint64_t policy = evict_normal_policy();
        const uint8_t *from = which == 0 ? args.x : args.h;
        for (int item = blockIdx.x; item < items; item += gridDim.x)
            copy_activations(args, from, args.tiles[item / per_tile], column_groups(args.call.product[which]),
                             ring, policy);
    } else {
        take_registers<160>();
        for (int item = blockIdx.x; item < items; item += gridDim.x)
            multiply_tile<which>(args, args.tiles[item / per_tile], item % per_tile, ring, warp, lane);
    }
}

#endif
