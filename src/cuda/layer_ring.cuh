// Linears of up to eight rows inside a launch that does more: weights on their way through shared memory, their products
// with inputs that lie there, and the sums of the warps.
#ifndef NIB_CUDA_LAYER_RING_CUH
#define NIB_CUDA_LAYER_RING_CUH

#include "cuda/mx_decode.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/skinny_linear.h"

constexpr int ring_warps = 8, ring_threads = 32 * ring_warps; // that multiply
constexpr int ring_tile_rows = 16, ring_unit_columns = 32, ring_unit_bytes = ring_unit_columns * 2;
constexpr int ring_most_units = 32; // of a stage
constexpr int ring_most_stages = 16;
constexpr int ring_most_tiles = 4; // of a block

// Bytes between rows in shared memory: 64 more than a multiple of 128, so that no two rows read at once meet in a bank.
__host__ __device__ constexpr int ring_pitch(int units)
{
    return units * ring_unit_bytes + (units % 2 ? 0 : ring_unit_bytes);
}

// How a linear is cut. The rows of all its weights are dealt out evenly; a block cuts its own into tiles of one height, and
// these into stages of some columns.
struct ring_linear {
    int total, height;      // rows of all weights, and of every tile but perhaps a block's last
    int units, chunk;       // of a row, and of a stage
    int pitch, input_pitch; // of a stage's rows and of the inputs

    __host__ ring_linear(const nib_cuda_skinny_linear &call, int blocks)
    {
        total = 0;
        for (int i = 0; i < call.n_outputs; i++)
            total += call.outputs[i].out;
        int most = (total + blocks - 1) / blocks, cuts = (most + ring_tile_rows - 1) / ring_tile_rows;
        height = cuts ? (most + cuts - 1) / cuts : 1;
        units = call.cols / ring_unit_columns;
        int chunks = (units + ring_most_units - 1) / ring_most_units;
        chunk = chunks ? (units + chunks - 1) / chunks : 1;
        pitch = ring_pitch(chunk);
        input_pitch = ring_pitch(units);
    }
};

// A block's rows.
struct ring_rows {
    int begin, end;

    __device__ __forceinline__ explicit ring_rows(const ring_linear &l)
        : begin(static_cast<int>(blockIdx.x * static_cast<unsigned>(l.total) / gridDim.x)),
          end(static_cast<int>((blockIdx.x + 1) * static_cast<unsigned>(l.total) / gridDim.x))
    {
    }
};

struct weight_ring {
    uint32_t full, empty; // barriers of the stages, 8 bytes apart
    uint32_t data;
    int stages, stage_bytes;
    int stage, phase;

    __device__ __forceinline__ void advance()
    {
        if (++stage == stages)
            stage = 0, phase ^= 1;
    }

    __device__ __forceinline__ void init()
    {
        for (int i = 0; i < stages; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, ring_warps);
        }
        barrier_init_fence();
    }
};

struct weight_row {
    int output, row;
};

__device__ __forceinline__ weight_row find_weight_row(const nib_cuda_skinny_linear &call, int row)
{
    int output = 0;
    while (row >= call.outputs[output].out)
        row -= call.outputs[output++].out;
    return {output, row};
}

// Fills the ring. Never more than a few stages are on their way: whatever else the multiprocessors ask of the memory waits
// behind them.
struct ring_producer {
    weight_ring ring, oldest; // oldest: of the stages on their way
    int under_way, at_most;
    uint64_t policy;

    __device__ __forceinline__ ring_producer(const weight_ring &ring, int at_most)
        : ring(ring), oldest(ring), under_way(0), at_most(at_most), policy(evict_first_policy())
    {
    }

    // Starts the copies of `count` rows from `first` of all, a row each. One thread's work.
    __device__ __forceinline__ void copy(const nib_cuda_skinny_linear &call, const ring_linear &l, int first,
                                         int count, int unit) const
    {
        uint32_t full = ring.full + 8 * ring.stage, target = ring.data + ring.stage * ring.stage_bytes;
        int bytes = min(l.chunk, l.units - unit) * ring_unit_bytes;
        barrier_arrive_expect(full, static_cast<uint32_t>(count * bytes));
        for (int done = 0; done < count;) { // rows of one output lie together
            weight_row w = find_weight_row(call, first + done);
            const nib_cuda_skinny_output &output = call.outputs[w.output];
            int together = min(count - done, output.out - w.row);
            const uint16_t *row =
                output.weight + static_cast<int64_t>(w.row) * call.cols + unit * ring_unit_columns;
            done += together;
#pragma unroll 1
            for (; together; together--, row += call.cols, target += l.pitch)
                bulk_copy(target, row, static_cast<uint32_t>(bytes), full, policy);
        }
    }

    // Starts the copies of all the block's rows. One warp's work.
    __device__ __forceinline__ void run(const nib_cuda_skinny_linear &call, const ring_linear &l)
    {
        ring_rows rows(l);
#pragma unroll 1
        for (int first = rows.begin; first < rows.end; first += l.height)
#pragma unroll 1
            for (int unit = 0; unit < l.units; unit += l.chunk) {
                if (under_way == at_most) {
                    barrier_wait(oldest.full + 8 * oldest.stage, oldest.phase);
                    oldest.advance();
                    under_way--;
                }
                barrier_wait(ring.empty + 8 * ring.stage, ring.phase ^ 1);
                if (elect_one())
                    copy(call, l, first, min(l.height, rows.end - first), unit);
                __syncwarp();
                ring.advance();
                under_way++;
            }
    }
};

__device__ __forceinline__ uint4 load_shared_u4(uint32_t address)
{
    float4 v = load_shared_f4(address);
    return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
}

// Multiplies a warp's slice of every stage and leaves the sums at sums[tile][warp][lane]. The order of a lane's eight
// columns is the same in both operands: 8c, 8c + 1 and 8c + 2, 8c + 3 in one product, the rest in the other.
__device__ __forceinline__ void consume(const ring_linear &l, weight_ring &ring, uint32_t inputs, int n_inputs,
                                        uint32_t sums, int warp, int lane)
{
    constexpr int batch = ring_most_units / ring_warps;
    ring_rows rows(l);
    uint32_t x = inputs + min(lane / 4, n_inputs - 1) * l.input_pitch + lane % 4 * 16;
    sums += (warp * 32 + lane) * 16;
#pragma unroll 1
    for (int first = rows.begin; first < rows.end; first += l.height, sums += ring_warps * 512) {
        int last = min(l.height, rows.end - first) - 1; // rows beyond it are somebody's copy
        uint32_t low = ring.data + min(lane / 4, last) * l.pitch + lane % 4 * 16,
                 high = ring.data + min(lane / 4 + 8, last) * l.pitch + lane % 4 * 16;
        float even[4] = {}, odd[4] = {};
#pragma unroll 1
        for (int unit = 0; unit < l.units; unit += l.chunk) {
            int units = min(l.chunk, l.units - unit), begin = warp * units / ring_warps,
                count = (warp + 1) * units / ring_warps - begin;
            uint32_t at = begin * ring_unit_bytes, stage = ring.stage * ring.stage_bytes + at;
            uint4 a[batch], b[batch], v[batch];
            barrier_wait(ring.full + 8 * ring.stage, ring.phase);
#pragma unroll
            for (int i = 0; i < batch; i++) {
                uint32_t offset = max(min(i, count - 1), 0) * ring_unit_bytes;
                a[i] = load_shared_u4(low + stage + offset);
                b[i] = load_shared_u4(high + stage + offset);
                v[i] = load_shared_u4(x + unit * ring_unit_bytes + at + offset);
            }
#pragma unroll
            for (int i = 0; i < batch; i++)
                if (i < count) {
                    mma_bf16(even, a[i].x, b[i].x, a[i].y, b[i].y, v[i].x, v[i].y, even);
                    mma_bf16(odd, a[i].z, b[i].z, a[i].w, b[i].w, v[i].z, v[i].w, odd);
                }
            __syncwarp();
            if (lane == 0)
                barrier_arrive(ring.empty + 8 * ring.stage);
            ring.advance();
        }
        store_shared_f4(sums, even[0] + odd[0], even[1] + odd[1], even[2] + odd[2], even[3] + odd[3]);
    }
}

// The outputs that a thread finishes: number i * ring_threads + thread of the block, from one input to the next first.
struct ring_items {
    static constexpr int count = ring_most_tiles * ring_tile_rows * 8 / ring_threads;
    float *y[count]; // null: none
    float start[count];

    // What is added to the sums is loaded here. `more` is like what the outputs call `added`, or NULL.
    __device__ __forceinline__ void find(const nib_cuda_skinny_linear &call, const ring_linear &l, int n_inputs,
                                         const float *more)
    {
        ring_rows rows(l);
#pragma unroll
        for (int i = 0; i < count; i++) {
            unsigned item = i * ring_threads + threadIdx.x, input = item % static_cast<unsigned>(n_inputs);
            int row = rows.begin + static_cast<int>(item / static_cast<unsigned>(n_inputs));
            y[i] = nullptr;
            start[i] = 0;
            if (row >= rows.end)
                continue;
            weight_row w = find_weight_row(call, row);
            const nib_cuda_skinny_output &output = call.outputs[w.output];
            int64_t at = input * output.y_pitch + w.row;
            y[i] = output.y + at;
            if (output.bias)
                start[i] += output.bias[w.row];
            if (output.added)
                start[i] += output.added[at];
            if (more)
                start[i] += more[at];
        }
    }

    __device__ __forceinline__ void finish(const ring_linear &l, int n_inputs, const float *sums) const
    {
#pragma unroll
        for (int i = 0; i < count; i++) {
            if (!y[i])
                continue;
            unsigned item = i * ring_threads + threadIdx.x, row = item / static_cast<unsigned>(n_inputs),
                     input = item % static_cast<unsigned>(n_inputs), height = static_cast<unsigned>(l.height),
                     tile = row / height, in_tile = row % height;
            // Lane (g, c) has the tile's rows g and g + 8 for the inputs 2c and 2c + 1.
            const float *at =
                sums + (tile * ring_warps * 32 + in_tile % 8 * 4 + input / 2) * 4 + in_tile / 8 * 2 + input % 2;
            float sum = at[0];
#pragma unroll
            for (int warp = 1; warp < ring_warps; warp++)
                sum += at[warp * 128];
            *y[i] = start[i] + sum;
        }
    }
};

#endif
