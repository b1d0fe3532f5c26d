// One persistent block an SM. The rows of all weights of the call are dealt out evenly, and each block cuts its own into
// tiles of at most 16, all of one height. Sixteen warps share a tile's columns: each streams its slice of the rows from
// memory into registers, eight units of 32 columns ahead and across tiles, and multiplies it with the inputs in shared
// memory. The slices' sums meet in shared memory. The loads begin before the previous kernel has ended.
//
// With many rows the inputs are as many bytes for a multiprocessor as its weights. Clusters of four blocks then share both
// out: each has a quarter of the columns, a tile is one warp's, and the quarters' sums meet over the cluster.
#include "cuda/skinny_linear.h"

#include <cuda_bf16.h>

#include "cuda/launch.cuh"
#include "cuda/mx_decode.cuh"
#include "cuda/norm_row.cuh"
#include "cuda/pipeline.cuh"

namespace
{

constexpr int warps = 16, threads = 32 * warps;
constexpr int tile_rows = 16, unit_columns = 32, unit_bytes = unit_columns * 2;
constexpr int max_shared = 227 * 1024;

struct skinny_args {
    nib_cuda_skinny_linear call;
    int total_out; // rows of all weights
    int units;     // of a row
    int chunk;     // units that a warp has on their way
    int pitch;   // bytes between rows of x in shared memory: 64 more than a multiple of 128, so no bank conflicts
    int buffers; // for sums; in clusters only
};

// Buffers for the sums of a tile's slices; with many columns there is room for one.
template <int columns> constexpr int sum_buffers = columns == 1 ? 4 : columns == 2 ? 2 : 1;
template <int columns> constexpr int sum_bytes = columns *warps * 512;

struct weight_row {
    const uint16_t *data; // null: beyond the last
    int output, row;
};

__device__ __forceinline__ weight_row find_row(const nib_cuda_skinny_linear &call, int row, int end)
{
    if (row >= end)
        return {nullptr, 0, 0};
    int output = 0;
    while (row >= call.outputs[output].out)
        row -= call.outputs[output++].out;
    return {call.outputs[output].weight + static_cast<int64_t>(row) * call.cols, output, row};
}

// The rows of this block and their tiles.
struct block_tiles {
    int begin, end, count, height;

    __device__ __forceinline__ int first_row(int tile) const
    {
        return begin + tile * height;
    }

    __device__ __forceinline__ int end_row(int tile) const
    {
        return min(end, begin + (tile + 1) * height);
    }
};

__device__ __forceinline__ block_tiles tiles_of_block(int total)
{
    int64_t block = blockIdx.x;
    block_tiles tiles;
    tiles.begin = static_cast<int>(block * total / gridDim.x);
    tiles.end = static_cast<int>((block + 1) * total / gridDim.x);
    int rows = tiles.end - tiles.begin;
    tiles.count = (rows + tile_rows - 1) / tile_rows;
    tiles.height = tiles.count ? (rows + tiles.count - 1) / tiles.count : 0;
    return tiles;
}

__device__ __forceinline__ uint4 load_weights(const uint4 *address)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

// A lane's way through its warp's slice of one tile after another, a chunk of at most `depth` units at a time: of each
// unit 16 bytes of rows g and g + 8.
struct weight_stream {
    const nib_cuda_skinny_linear &call;
    const block_tiles &tiles;
    int lane, first, end, chunk; // units of the slice, and of a chunk
    int step, tile, unit;        // from a tile to the next; where the next chunk begins
    const uint4 *low, *high;     // null: no such row

    __device__ __forceinline__ void enter_tile()
    {
        int row = tiles.first_row(tile) + lane / 4, limit = tile < tiles.count ? tiles.end_row(tile) : 0;
        const uint16_t *a = find_row(call, row, limit).data, *b = find_row(call, row + 8, limit).data;
        int column = first * unit_columns + lane % 4 * 8;
        low = a ? reinterpret_cast<const uint4 *>(a + column) : nullptr;
        high = b ? reinterpret_cast<const uint4 *>(b + column) : nullptr;
        unit = first;
    }

    __device__ __forceinline__ void load(int i, uint4 &a, uint4 &b) const
    {
        bool inside = unit + i < end && (unit + i) * unit_columns + lane % 4 * 8 < call.cols;
        a = low && inside ? load_weights(low + i * (unit_bytes / 16)) : make_uint4(0, 0, 0, 0);
        b = high && inside ? load_weights(high + i * (unit_bytes / 16)) : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void advance()
    {
        unit += chunk;
        if (unit >= end) {
            tile += step;
            enter_tile();
            return;
        }
        low = low ? low + chunk * (unit_bytes / 16) : low;
        high = high ? high + chunk * (unit_bytes / 16) : high;
    }
};

// ---- the inputs ----

__device__ __forceinline__ void copy_inputs(const skinny_args &args, uint8_t *inputs)
{
    const nib_cuda_skinny_linear &call = args.call;
    int pieces = call.cols / 8;
    for (int i = threadIdx.x; i < call.rows * pieces; i += threads) {
        int row = i / pieces, piece = i - row * pieces;
        uint32_t target = shared_address(inputs + row * args.pitch + piece * 16);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target),
                     "l"(call.x + static_cast<int64_t>(row) * call.cols + piece * 8)
                     : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void norm_inputs(const skinny_args &args, uint8_t *inputs, float *sums)
{
    const nib_cuda_skinny_linear &call = args.call;
    for (int row = 0; row < call.rows; row++) {
        const float *x = call.x_wide + static_cast<int64_t>(row) * call.cols;
        float inverse = block_inverse_rms(x, call.cols, call.eps, sums);
        uint16_t *target = reinterpret_cast<uint16_t *>(inputs + row * args.pitch);
        write_normed(x, call.norm_weight, inverse, call.cols, static_cast<float *>(nullptr), target);
    }
}

// Columns that fill up the last unit; what follows in memory is no input.
__device__ __forceinline__ void clear_tail(const skinny_args &args, uint8_t *inputs)
{
    int begin = args.call.cols * 2 / 16, pieces = args.units * (unit_bytes / 16) - begin;
    for (int i = threadIdx.x; i < args.call.rows * pieces; i += threads)
        *reinterpret_cast<uint4 *>(inputs + i / pieces * args.pitch + (begin + i % pieces) * 16) =
            make_uint4(0, 0, 0, 0);
}

// ---- the sums ----

__device__ __forceinline__ float4 add4(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The slices' sums of one lane's place in the tile, half by half.
__device__ __forceinline__ float4 sum_slices(uint32_t address, int step)
{
    float4 half[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        half[h] = load_shared_f4(address + h * (warps / 2) * step);
#pragma unroll
        for (int i = 1; i < warps / 2; i++)
            half[h] = add4(half[h], load_shared_f4(address + (h * (warps / 2) + i) * step));
    }
    return add4(half[0], half[1]);
}

// Where an output goes and what is added to it, for the input rows `first` and first + 1.
struct target {
    float *y;
    int64_t pitch;
    float start[2];
    bool valid[2];
};

__device__ __forceinline__ target find_target(const nib_cuda_skinny_linear &call, int row, int end, int first)
{
    target t = {};
    weight_row w = find_row(call, row, end);
    if (!w.data)
        return t;
    const nib_cuda_skinny_output &output = call.outputs[w.output];
    int64_t at = first * output.y_pitch + w.row;
    float bias = output.bias ? output.bias[w.row] : 0;
    t.y = output.y + at;
    t.pitch = output.y_pitch;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        t.valid[i] = first + i < call.rows;
        t.start[i] = bias;
        if (t.valid[i] && output.added)
            t.start[i] += output.added[at + i * t.pitch];
    }
    return t;
}

__device__ __forceinline__ void store(const target &t, float first, float second)
{
    if (t.valid[0])
        t.y[0] = t.start[0] + first;
    if (t.valid[1])
        t.y[t.pitch] = t.start[1] + second;
}

struct sum_exchange {
    uint32_t full, empty; // barriers of the buffers, 8 bytes apart
    uint32_t sums;        // [buffers][slice][column group][lane] float4
};

// Hands this warp's sums of a tile on, and finishes the column groups of it that are this warp's turn.
template <int columns>
__device__ __forceinline__ void finish_tile(const nib_cuda_skinny_linear &call, const block_tiles &tiles,
                                            const sum_exchange &exchange, int tile, float (&sums)[columns][4],
                                            int warp, int lane)
{
    constexpr int buffers = sum_buffers<columns>;
    int buffer = tile % buffers, phase = tile / buffers & 1;
    uint32_t base = exchange.sums + buffer * sum_bytes<columns> + lane * 16;
    barrier_wait(exchange.empty + 8 * buffer, phase ^ 1);
#pragma unroll
    for (int j = 0; j < columns; j++) {
        store_shared_f4(base + (warp * columns + j) * 512, sums[j][0], sums[j][1], sums[j][2], sums[j][3]);
        sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
    }
    __syncwarp();
    if (lane == 0)
        barrier_arrive(exchange.full + 8 * buffer);
#pragma unroll 1
    for (int j = 0; j < columns; j++) {
        if ((tile * columns + j) % warps != warp)
            continue;
        int row = tiles.first_row(tile) + lane / 4, end = tiles.end_row(tile), first = j * 8 + lane % 4 * 2;
        target low = find_target(call, row, end, first), high = find_target(call, row + 8, end, first);
        barrier_wait(exchange.full + 8 * buffer, phase);
        float4 sum = sum_slices(base + j * 512, columns * 512);
        __syncwarp();
        if (lane == 0)
            barrier_arrive(exchange.empty + 8 * buffer);
        store(low, sum.x, sum.y);
        store(high, sum.z, sum.w);
    }
}

// The order of a lane's eight columns in both operands: 8c, 8c + 1 and 8c + 2, 8c + 3 in one product, the rest in the next.
template <int columns>
__device__ __forceinline__ void multiply(float (&sums)[columns][4], const uint32_t (&x)[columns], int offset,
                                         const uint4 &low, const uint4 &high)
{
#pragma unroll
    for (int j = 0; j < columns; j++) {
        float4 bits = load_shared_f4(x[j] + offset);
        mma_bf16(sums[j], low.x, high.x, low.y, high.y, __float_as_uint(bits.x), __float_as_uint(bits.y), sums[j]);
        mma_bf16(sums[j], low.z, high.z, low.w, high.w, __float_as_uint(bits.z), __float_as_uint(bits.w), sums[j]);
    }
}

template <int columns, int depth>
__global__ void __launch_bounds__(threads, 1) skinny_linear(const __grid_constant__ skinny_args args)
{
    constexpr int buffers = sum_buffers<columns>;
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[2 * buffers];
    __shared__ float norm_sums[warps];
    const nib_cuda_skinny_linear &call = args.call;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t *inputs = memory + buffers * sum_bytes<columns>;
    sum_exchange exchange = {shared_address(barriers), shared_address(barriers + buffers), shared_address(memory)};

    block_tiles tiles = tiles_of_block(args.total_out);
    weight_stream stream = {
        call, tiles,   lane,   warp * args.units / warps, (warp + 1) * args.units / warps, args.chunk, 1, 0,
        0,    nullptr, nullptr};
    uint4 low[depth], high[depth];
    stream.enter_tile();
#pragma unroll
    for (int i = 0; i < depth; i++)
        if (i < args.chunk)
            stream.load(i, low[i], high[i]);
    stream.advance();
    if (threadIdx.x == 0) {
        for (int i = 0; i < buffers; i++) {
            barrier_init(exchange.full + 8 * i, warps);
            barrier_init(exchange.empty + 8 * i, columns);
        }
    }
    clear_tail(args, inputs);
    wait_for_previous_kernel();
    allow_next_kernel();
    if (call.x)
        copy_inputs(args, inputs);
    else
        norm_inputs(args, inputs, norm_sums);
    __syncthreads();

    uint32_t x[columns];
#pragma unroll
    for (int j = 0; j < columns; j++)
        x[j] = shared_address(inputs) + min(lane / 4 + j * 8, call.rows - 1) * args.pitch + lane % 4 * 16;
    float sums[columns][4] = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles.count; tile++) {
#pragma unroll 1
        for (int unit = stream.first; unit < stream.end; unit += args.chunk) {
#pragma unroll
            for (int i = 0; i < depth; i++) {
                if (i >= args.chunk)
                    break;
                if (unit + i < stream.end)
                    multiply<columns>(sums, x, (unit + i) * unit_bytes, low[i], high[i]);
                stream.load(i, low[i], high[i]);
            }
            stream.advance();
        }
        finish_tile<columns>(call, tiles, exchange, tile, sums, warp, lane);
    }
}

// ---- clusters ----

constexpr int cluster_blocks = 4;

// Buffers for the sums that a block adds up, in each [warp][block][group of 8 inputs][lane] float4.
template <int columns> constexpr int quarter_sum_bytes = warps *cluster_blocks *(columns / cluster_blocks) * 512;

__device__ __forceinline__ void store_in_block(uint32_t address, int block, const float (&v)[4])
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}

__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The quarter's columns of all rows; those that fill up its last unit as zeros.
__device__ __forceinline__ void copy_quarter(const skinny_args &args, int first, int end, uint8_t *inputs)
{
    const nib_cuda_skinny_linear &call = args.call;
    int pieces = (end - first) * (unit_bytes / 16), begin = first * (unit_bytes / 16);
    for (int i = threadIdx.x; i < call.rows * pieces; i += threads) {
        int row = i / pieces, piece = i - row * pieces;
        bool inside = (begin + piece) * 8 < call.cols;
        uint32_t target = shared_address(inputs + row * args.pitch + piece * 16);
        const uint16_t *from = call.x + static_cast<int64_t>(row) * call.cols + (inside ? (begin + piece) * 8 : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(inside ? 16 : 0)
                     : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// The tiles of all blocks of a cluster: its warps take them in turn.
__device__ __forceinline__ block_tiles tiles_of_cluster(int total)
{
    int64_t cluster = blockIdx.x / cluster_blocks, clusters = gridDim.x / cluster_blocks;
    block_tiles tiles;
    tiles.begin = static_cast<int>(cluster * total / clusters);
    tiles.end = static_cast<int>((cluster + 1) * total / clusters);
    int rows = tiles.end - tiles.begin, rounds = (rows + warps * tile_rows - 1) / (warps * tile_rows);
    tiles.count = rounds * warps;
    tiles.height = rounds ? (rows + tiles.count - 1) / tiles.count : 0;
    return tiles;
}

template <int columns, int depth>
__global__ void __cluster_dims__(cluster_blocks, 1, 1) __launch_bounds__(threads, 1)
    split_linear(const __grid_constant__ skinny_args args)
{
    constexpr int groups = columns / cluster_blocks; // of 8 inputs, whose sums a block adds up
    extern __shared__ __align__(128) uint8_t memory[];
    const nib_cuda_skinny_linear &call = args.call;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = static_cast<int>(blockIdx.x) % cluster_blocks;
    block_tiles tiles = tiles_of_cluster(args.total_out);
    int first = block * args.units / cluster_blocks, end = (block + 1) * args.units / cluster_blocks,
        buffers = args.buffers;
    uint8_t *inputs = memory + buffers * quarter_sum_bytes<columns>;
    weight_stream stream = {call, tiles, lane, first, end, args.chunk, warps, warp, 0, nullptr, nullptr};
    uint4 low[depth], high[depth];
    stream.enter_tile();
#pragma unroll
    for (int i = 0; i < depth; i++)
        if (i < args.chunk)
            stream.load(i, low[i], high[i]);
    stream.advance();
    cluster_arrive();
    wait_for_previous_kernel();
    allow_next_kernel();
    copy_quarter(args, first, end, inputs);
    cluster_wait(); // all blocks are there
    __syncthreads();

    uint32_t x[columns];
#pragma unroll
    for (int j = 0; j < columns; j++)
        x[j] = shared_address(inputs) + min(lane / 4 + j * 8, call.rows - 1) * args.pitch + lane % 4 * 16;
    uint32_t own = shared_address(memory) + warp * cluster_blocks * groups * 512 + lane * 16;
#pragma unroll 1
    for (int tile = warp, buffer = 0; tile < tiles.count; tile += warps, buffer ^= buffers - 1) {
        float sums[columns][4] = {};
#pragma unroll 1
        for (int unit = first; unit < end; unit += args.chunk) {
#pragma unroll
            for (int i = 0; i < depth; i++) {
                if (i >= args.chunk)
                    break;
                if (unit + i < end)
                    multiply<columns>(sums, x, (unit + i - first) * unit_bytes, low[i], high[i]);
                stream.load(i, low[i], high[i]);
            }
            stream.advance();
        }
        uint32_t at = own + buffer * quarter_sum_bytes<columns>;
#pragma unroll
        for (int j = 0; j < columns; j++)
            store_in_block(at + (block * groups + j % groups) * 512, j / groups, sums[j]);
        cluster_arrive();
        int row = tiles.first_row(tile) + lane / 4, limit = tiles.end_row(tile);
        target low_target[groups], high_target[groups];
#pragma unroll
        for (int j = 0; j < groups; j++) {
            int input = (block * groups + j) * 8 + lane % 4 * 2;
            low_target[j] = find_target(call, row, limit, input);
            high_target[j] = find_target(call, row + 8, limit, input);
        }
        cluster_wait();
#pragma unroll
        for (int j = 0; j < groups; j++) {
            float4 sum = load_shared_f4(at + j * 512);
#pragma unroll
            for (int i = 1; i < cluster_blocks; i++)
                sum = add4(sum, load_shared_f4(at + (i * groups + j) * 512));
            store(low_target[j], sum.x, sum.y);
            store(high_target[j], sum.z, sum.w);
        }
    }
}

int pitch_of(int units)
{
    return units * unit_bytes + (units % 2 ? 0 : unit_bytes);
}

constexpr int whole_shared = max_shared - 1024; // so that no two blocks share a multiprocessor

template <int columns, int depth> cudaError_t launch_clusters(cudaStream_t stream, skinny_args args, int blocks)
{
    auto kernel = split_linear<columns, depth>;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster_blocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks / cluster_blocks * cluster_blocks));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = whole_shared;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0; // that there is room for at once
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, whole_shared);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error != cudaSuccess)
        return error;
    clusters = clusters < blocks / cluster_blocks ? clusters : blocks / cluster_blocks;
    int rows = (args.total_out + clusters - 1) / clusters,
        quarter = (args.units + cluster_blocks - 1) / cluster_blocks, chunks = (quarter + depth - 1) / depth;
    args.buffers = rows > warps * tile_rows ? 2 : 1;
    args.pitch = pitch_of(quarter);
    args.chunk = (quarter + chunks - 1) / chunks;
    if (args.buffers * quarter_sum_bytes<columns> + args.call.rows * args.pitch > whole_shared)
        return cudaErrorNotSupported;
    return nib_launch(kernel, dim3(static_cast<unsigned>(clusters * cluster_blocks)), threads,
                      static_cast<size_t>(whole_shared), stream, args);
}

template <int columns, int depth> cudaError_t launch(cudaStream_t stream, skinny_args &args, int blocks)
{
    int shared = sum_buffers<columns> * sum_bytes<columns> + args.call.rows * args.pitch;
    cudaError_t error = cudaFuncSetAttribute(skinny_linear<columns, depth>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared - 1024);
    if (error != cudaSuccess)
        return error;
    int slice = (args.units + warps - 1) / warps, chunks = (slice + depth - 1) / depth;
    args.chunk = (slice + chunks - 1) / chunks;
    return nib_launch(skinny_linear<columns, depth>, dim3(static_cast<unsigned>(blocks)), threads,
                      static_cast<size_t>(shared), stream, args);
}

// Rows whose inputs fit beside the sums. The last 1 KiB is the runtime's, and some is static.
int rows_at_once(int pitch)
{
    const int room[][2] = {{8, max_shared - 4 * sum_bytes<1>},
                           {16, max_shared - 2 * sum_bytes<2>},
                           {32, max_shared - sum_bytes<4>},
                           {64, max_shared - sum_bytes<8>}};
    int best = 0;
    for (const auto &r : room) {
        int rows = (r[1] - 2048) / pitch;
        rows = rows < r[0] ? rows : r[0];
        best = rows > best ? rows : best;
    }
    return best;
}

} // namespace

bool nib_cuda_skinny_takes(int32_t rows, int32_t cols)
{
    if (rows < 1 || rows > NIB_CUDA_SKINNY_ROWS || cols < 8 || cols % 8 || cols > 1 << 20)
        return false;
    return rows_at_once(pitch_of((cols + unit_columns - 1) / unit_columns)) > 0;
}

cudaError_t nib_cuda_multiply_skinny(cudaStream_t stream, const struct nib_cuda_skinny_linear *call)
{
    if (!nib_cuda_skinny_takes(call->rows, call->cols) || call->n_outputs < 1 ||
        call->n_outputs > NIB_CUDA_SKINNY_OUTPUTS)
        return cudaErrorInvalidValue;
    int device, sms;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    skinny_args args = {*call, 0, (call->cols + unit_columns - 1) / unit_columns, 0, 0, 0};
    args.pitch = pitch_of(args.units);
    for (int i = 0; i < call->n_outputs; i++)
        args.total_out += call->outputs[i].out;
    int at_once = rows_at_once(args.pitch);
    if (error == cudaSuccess && call->any_order && call->x && call->rows > at_once) {
        error =
            call->rows <= 32 ? launch_clusters<4, 8>(stream, args, sms) : launch_clusters<8, 6>(stream, args, sms);
        if (error != cudaErrorNotSupported)
            return error;
        error = cudaSuccess;
    }
    for (int done = 0; error == cudaSuccess && done < call->rows; done += args.call.rows) {
        int rows = call->rows - done < at_once ? call->rows - done : at_once;
        args.call.rows = rows;
        args.call.x = call->x ? call->x + static_cast<int64_t>(done) * call->cols : nullptr;
        args.call.x_wide = call->x_wide ? call->x_wide + static_cast<int64_t>(done) * call->cols : nullptr;
        for (int i = 0; i < call->n_outputs; i++) {
            int64_t skip = done * call->outputs[i].y_pitch;
            args.call.outputs[i].y = call->outputs[i].y + skip;
            args.call.outputs[i].added = call->outputs[i].added ? call->outputs[i].added + skip : nullptr;
        }
        int blocks = sms < args.total_out ? sms : args.total_out;
        error = rows <= 8    ? launch<1, 8>(stream, args, blocks)
                : rows <= 16 ? launch<2, 8>(stream, args, blocks)
                : rows <= 32 ? launch<4, 8>(stream, args, blocks)
                             : launch<8, 6>(stream, args, blocks);
    }
    return error;
}
