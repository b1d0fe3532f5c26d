// See layer_decode.h; layer_ring.cuh has the linears and layer_attend.cuh the attention.
#include "cuda/layer_decode.h"

#include "cuda/block_sum.cuh"
#include "cuda/branch.cuh"
#include "cuda/launch.cuh"
#include "cuda/layer_attend.cuh"
#include "cuda/layer_ring.cuh"
#include "cuda/route_choice.cuh"

namespace
{

constexpr int warps = ring_warps, consumers = ring_threads, threads = consumers + 32;
constexpr int max_shared = 225 * 1024;              // of a block, less what the runtime and static variables take
constexpr int few_stages = 3, stages_under_way = 2; // of a ring
enum { GRID_COUNTER, ROUTE_COUNTER, PART_COUNTERS = 16 }; // the last: one for each row and kv head

struct layer_args {
    nib_cuda_layer call;
    attend_args attend;
    ring_linear in, out;
    int rows;
    int parts;               // that a row's tokens are divided into at most
    int groups;              // of rows that are routed
    int stages, stage_bytes; // of the ring, which comes first in shared memory
    int input_bytes;         // of the inputs behind it; last comes what the stages use in turn
};

// ---- the grid ----

// Everything written before `arrive` is seen by all blocks after `wait`. The counter's top bit turns with each barrier, as
// the steps of all blocks add up to it.
struct grid_barrier {
    unsigned *counter, before;

    __device__ __forceinline__ void arrive()
    {
        named_barrier<1, consumers>();
        if (threadIdx.x == 0)
            before = add_acquire_release(counter, blockIdx.x ? 1 : 0x80000000u - (gridDim.x - 1));
    }

    __device__ __forceinline__ void wait() const
    {
        if (threadIdx.x == 0)
            while (!((load_acquire(counter) ^ before) & 0x80000000u))
                ;
        named_barrier<1, consumers>();
    }
};

// True in the last of `expected` blocks to come here, which then sees what the others have written.
__device__ __forceinline__ bool is_last(unsigned *counter, unsigned expected)
{
    __shared__ bool last;
    named_barrier<1, consumers>();
    if (threadIdx.x == 0) {
        last = add_acquire_release(counter, 1) == expected - 1;
        if (last)
            *counter = 0;
    }
    named_barrier<1, consumers>();
    return last;
}

// ---- rows ----

// The warps share the rows out evenly: with few rows several work at one.
struct row_share {
    int row, part, warps;

    __device__ __forceinline__ row_share(int rows, int warp)
    {
        int shift = rows == 1 ? 3 : rows == 2 ? 2 : rows <= 4 ? 1 : 0;
        row = warp >> shift;
        warps = 1 << shift;
        part = warp & (warps - 1);
    }

    // The sum of what the row's warps have left, in order.
    __device__ __forceinline__ float sum(const float *partial) const
    {
        float sum = partial[row * warps];
        for (int i = 1; i < warps; i++)
            sum += partial[row * warps + i];
        return sum;
    }
};

__device__ __forceinline__ float4 add4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float dot4(float4 a, float4 b)
{
    return (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w);
}

__device__ __forceinline__ float4 scaled4(float4 a, float factor, float4 w)
{
    return make_float4(a.x * factor * w.x, a.y * factor * w.y, a.z * factor * w.z, a.w * factor * w.w);
}

__device__ __forceinline__ uint2 half4(float4 a)
{
    return make_uint2(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w));
}

__device__ __forceinline__ float inverse_rms(float square, int width, float eps)
{
    return 1.0f / sqrtf(square / static_cast<float>(width) + eps);
}

// Reads in batches of loads that are all under way at once: a loop left to the compiler has a rest in which each waits for
// the one before.
template <int batch, typename Load, typename Use>
__device__ __forceinline__ void in_batches(int first, int end, int step, Load load, Use use)
{
#pragma unroll 1
    for (; first < end; first += batch * step) {
        float4 values[batch];
#pragma unroll
        for (int i = 0; i < batch; i++)
            values[i] = load(min(first + i * step, end - 1));
#pragma unroll
        for (int i = 0; i < batch; i++)
            if (first + i * step < end)
                use(first + i * step, values[i]);
    }
}

// Few rows are normed by every block for itself; of more each is normed by one block and read by all.
constexpr int own_rows = 2;

__device__ __forceinline__ void fetch_norm(const nib_cuda_layer &call, float *weight)
{
    for (int i = static_cast<int>(threadIdx.x); i < call.qkv.cols / 4; i += consumers)
        copy_16(shared_address(weight + i * 4), call.norm_weight + i * 4);
    commit_copies();
}

constexpr int norm_batch = 3, norm_kept = 2 * norm_batch; // values of a lane: read at once, and kept in registers

// The norm of `rows` rows of x + branch as bf16, `pitch` bytes apart. The norm's weights were fetched by the same threads.
__device__ __forceinline__ void norm_rows(const layer_args &args, int first_row, int rows, const float *weight,
                                          uint8_t *to, int pitch, float *partial, int warp, int lane)
{
    const nib_cuda_layer &call = args.call;
    int width = call.qkv.cols / 4;
    row_share share(rows, warp);
    int64_t at = static_cast<int64_t>(first_row + share.row) * width;
    const float4 *x = reinterpret_cast<const float4 *>(call.x) + at;
    branch_row<float4> branch(call.branch, first_row + share.row, width);
    int first = share.part * 32 + lane, step = share.warps * 32, end = share.row < rows ? width : 0;
    // Sums of routes are wanted again where o is added: of the block's own outputs, or all where others wait for its row.
    float4 *sums = reinterpret_cast<float4 *>(call.branch.sum) + at;
    ring_rows outputs(args.out);
    bool own = call.qkv.rows <= own_rows;
    int first_sum = own ? outputs.begin / 4 : 0, last_sum = own ? (outputs.end - 1) / 4 : width - 1;
    float square = 0;
    auto load = [&](float4(&v)[norm_batch], int from) {
        float4 routes[norm_batch][branch_ahead];
#pragma unroll
        for (int i = 0; i < norm_batch; i++) {
            int column = min(from + i * step, end - 1);
            v[i] = __ldcg(x + column);
            branch.load(routes[i], column);
        }
#pragma unroll
        for (int i = 0; i < norm_batch; i++) {
            int column = min(from + i * step, end - 1);
            float4 sum = branch.sum(routes[i]);
            if (call.branch.weights && column >= first_sum && column <= last_sum)
                sums[column] = sum;
            v[i] = add4(v[i], sum);
            square += from + i * step < end ? dot4(v[i], v[i]) : 0;
        }
    };
    float4 kept[norm_kept / norm_batch][norm_batch]; // the first of the lane's values; others are read again
#pragma unroll
    for (int i = 0; i < norm_kept / norm_batch; i++)
        if (int from = first + i * norm_batch * step; from < end)
            load(kept[i], from);
#pragma unroll 1
    for (int from = first + norm_kept * step; from < end; from += norm_batch * step) {
        float4 v[norm_batch];
        load(v, from);
    }
    square = warp_sum(square);
    if (lane == 0)
        partial[warp] = square;
    wait_copies<0>();
    named_barrier<1, consumers>();
    float inverse = inverse_rms(share.sum(partial), call.qkv.cols, call.eps);
    uint2 *row = reinterpret_cast<uint2 *>(to + share.row * pitch);
    auto store = [&](const float4(&v)[norm_batch], int from) {
#pragma unroll
        for (int i = 0; i < norm_batch; i++)
            if (int column = from + i * step; column < end)
                row[column] = half4(scaled4(v[i], inverse, reinterpret_cast<const float4 *>(weight)[column]));
    };
#pragma unroll
    for (int i = 0; i < norm_kept / norm_batch; i++)
        store(kept[i], first + i * norm_batch * step);
#pragma unroll 1
    for (int from = first + norm_kept * step; from < end; from += norm_batch * step) {
        float4 v[norm_batch];
        load(v, from);
        store(v, from);
    }
}

// Rows of `cols` bf16 to shared memory.
__device__ __forceinline__ void copy_inputs(const uint16_t *from, int rows, int cols, uint8_t *inputs, int pitch)
{
    unsigned pieces = static_cast<unsigned>(cols) / 8;
    for (unsigned i = threadIdx.x; i < static_cast<unsigned>(rows) * pieces; i += consumers)
        copy_16(shared_address(inputs + i / pieces * pitch + i % pieces * 16), from + i * 8);
    commit_copies();
    wait_copies<0>();
}

// The inputs of the first linear.
__device__ __forceinline__ void norm_inputs(const layer_args &args, grid_barrier &barrier, const float *weight,
                                            uint8_t *inputs, float *partial, int warp, int lane)
{
    const nib_cuda_layer &call = args.call;
    int pitch = args.in.input_pitch, cols = call.qkv.cols, block = static_cast<int>(blockIdx.x);
    if (args.rows <= own_rows) {
        norm_rows(args, 0, args.rows, weight, inputs, pitch, partial, warp, lane);
    } else {
        uint16_t *normed = call.route.y_half; // nobody needs what is there
        if (block < args.rows)
            norm_rows(args, block, 1, weight,
                      reinterpret_cast<uint8_t *>(normed + static_cast<int64_t>(block) * cols), 0, partial, warp,
                      lane);
        barrier.arrive();
        barrier.wait();
        copy_inputs(normed, args.rows, cols, inputs, pitch);
    }
    named_barrier<1, consumers>();
}

// ---- the stages ----

// The block's part of a linear.
__device__ __forceinline__ void multiply(const layer_args &args, const ring_linear &linear,
                                         const ring_items &items, weight_ring &ring, const uint8_t *inputs,
                                         float *sums, int warp, int lane)
{
    consume(linear, ring, shared_address(inputs), args.rows, shared_address(sums), warp, lane);
    named_barrier<1, consumers>();
    items.finish(linear, args.rows, sums);
}

// The block's part of the attention, between two barriers of the grid. Cached tokens are on their way before the first; the
// next weights wait for it, `go` says that it is passed.
__device__ inline void attend(const layer_args &args, const attend_part &part, bool any, const float2 *turns,
                              const grid_barrier &barrier, uint32_t go, part_sums &sums, int warp, int lane)
{
    const attend_args &a = args.attend;
    const nib_cuda_attention &call = a.call;
    int tile = part.tile + warp, last = part.position / part_tokens;
    cached_tile now, next;
    if (any && tile < part.end)
        now.load(a, part, tile, part.ahead[0], lane);
    if (any && tile + warps < part.end)
        next.load(a, part, tile + warps, part.ahead[1], lane);
    barrier.wait();
    if (threadIdx.x == 0)
        barrier_arrive(go);
    if (!any)
        return;
    part_state state;
    state.clear();
    if (tile < part.end) {
        bool appends = last < part.end && (last - tile) % warps == 0;
        uint4 q[2];
        fresh_row fresh;
        load_fresh(a, part, appends, turns, q, fresh, lane);
#pragma unroll 1
        for (; tile < part.end; tile += warps) {
            if (tile == last)
                now.append(a, part, fresh, lane);
            state.attend(now, q, part, tile, call.scale * log2_e, lane);
            now = next;
            if (tile + 2 * warps < part.end)
                next.load(a, part, tile + 2 * warps,
                          cached_row(a.step, part.table, (tile + 2 * warps) * part_tokens), lane);
        }
    }
    state.spill(sums, warp, lane);
    named_barrier<1, consumers>();
    float2 values;
    int thread = static_cast<int>(threadIdx.x), head = thread / 32;
    head_state all = join_parts<part_warps>(
        part_warps, values, [&](int i) { return sums.states[i][head]; },
        [&](int i) { return *reinterpret_cast<const float2 *>(&sums.values[i][head][thread % 32 * 2]); });
    if (part.parts > 1) {
        part_results results(args.call.partial, static_cast<int>(gridDim.x));
        results.put(static_cast<int>(blockIdx.x), all, values);
        if (!is_last(args.call.counters + PART_COUNTERS + part.row * call.n_kv_heads + part.kv_head,
                     static_cast<unsigned>(part.parts)))
            return;
        all = results.join(static_cast<int>(blockIdx.x) - part.part, part.parts, values);
    }
    store_attended(a, part, all, values);
}

// Routing divides the rows into groups, and a block takes one of them and as many experts as there are groups.
constexpr int most_groups_of_rows = 4;

struct route_share {
    int set, sets, first_row, rows, first_expert, experts;

    __device__ __forceinline__ explicit route_share(const layer_args &args)
    {
        int group = static_cast<int>(blockIdx.x) % args.groups, each = (args.rows + args.groups - 1) / args.groups;
        set = static_cast<int>(blockIdx.x) / args.groups;
        sets = (args.call.route.router.n_experts + args.groups - 1) / args.groups;
        first_row = group * each;
        rows = min(each, args.rows - first_row);
        first_expert = set * args.groups;
        experts = min(args.groups, args.call.route.router.n_experts - first_expert);
    }
};

// The norm's weights and those of the experts, which no earlier stage has to do with.
__device__ __forceinline__ void fetch_experts(const nib_cuda_norm_route &p, const route_share &share, float *norm,
                                              uint8_t *experts)
{
    const uint8_t *weights =
        static_cast<const uint8_t *>(p.weight) + static_cast<int64_t>(share.first_expert) * p.width * 2;
    for (int i = static_cast<int>(threadIdx.x); i < p.width / 4; i += consumers)
        copy_16(shared_address(norm + i * 4), p.norm_weight + i * 4);
    for (int i = static_cast<int>(threadIdx.x); i < share.experts * (p.width / 8); i += consumers)
        copy_16(shared_address(experts + i * 16), weights + i * 16);
    commit_copies();
}

// Of a row: its squares, and its products with each expert, without the row's own factor.
struct route_sums {
    float square, products[most_groups_of_rows];

    __device__ __forceinline__ void add(float4 x, float4 norm, const uint8_t *experts /* at x's columns */,
                                        int pitch, int count)
    {
        square += dot4(x, x);
        x = scaled4(x, 1, norm);
#pragma unroll
        for (int e = 0; e < most_groups_of_rows; e++)
            if (e < count) {
                uint2 w = *reinterpret_cast<const uint2 *>(experts + e * pitch);
                products[e] +=
                    dot4(x, make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u),
                                        __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u)));
            }
    }
};

// The logits of the block's rows and experts, and its part of the normed rows.
__device__ __forceinline__ void route_rows(const layer_args &args, const route_share &share, const float *norm,
                                           const uint8_t *experts, float (*partial)[warps], int warp, int lane)
{
    const nib_cuda_norm_route &p = args.call.route;
    row_share its(share.rows, warp);
    const float4 *x =
        reinterpret_cast<const float4 *>(p.x + static_cast<int64_t>(share.first_row + its.row) * p.width);
    route_sums sums = {};
    if (its.row < share.rows) {
        in_batches<6>(
            its.part * 32 + lane, p.width / 4, its.warps * 32, [&](int i) { return __ldcg(x + i); },
            [&](int i, float4 v) {
                sums.add(v, reinterpret_cast<const float4 *>(norm)[i], experts + i * 8, p.width * 2,
                         share.experts);
            });
    }
    sums.square = warp_sum(sums.square);
    if (lane == 0)
        partial[most_groups_of_rows][warp] = sums.square;
#pragma unroll
    for (int e = 0; e < most_groups_of_rows; e++)
        if (e < share.experts) {
            float product = warp_sum(sums.products[e]);
            if (lane == 0)
                partial[e][warp] = product;
        }
    named_barrier<1, consumers>();
    if (its.row >= share.rows)
        return;
    int row = share.first_row + its.row;
    float inverse = inverse_rms(its.sum(partial[most_groups_of_rows]), p.width, p.eps);
    if (its.part == 0 && lane < share.experts) {
        int expert = share.first_expert + lane;
        __stcg(p.logits + static_cast<int64_t>(row) * p.router.n_experts + expert,
               its.sum(partial[lane]) * inverse + (p.bias ? p.bias[expert] : 0));
    }
    unsigned width = static_cast<unsigned>(p.width) / 4, sets = static_cast<unsigned>(share.sets),
             set = static_cast<unsigned>(share.set);
    int64_t at = static_cast<int64_t>(row) * p.width;
    for (int i = static_cast<int>(set * width / sets) + its.part * 32 + lane;
         i < static_cast<int>((set + 1) * width / sets); i += its.warps * 32) {
        float4 y = scaled4(__ldcg(x + i), inverse, reinterpret_cast<const float4 *>(norm)[i]);
        reinterpret_cast<float4 *>(p.y + at)[i] = y;
        reinterpret_cast<uint2 *>(p.y_half + at)[i] = half4(y);
    }
}

constexpr int lane_experts = 4;

// A row's experts, by the arithmetic of choose_experts for the one kind of router that is taken here, all in registers.
__device__ __forceinline__ void choose_row(const nib_cuda_norm_route &p, int row, int lane)
{
    const float *logits = p.logits + static_cast<int64_t>(row) * p.router.n_experts;
    uint32_t ranks[lane_experts];
    float values[lane_experts], score = 0;
#pragma unroll
    for (int i = 0; i < lane_experts; i++) {
        int expert = i * 32 + lane;
        values[i] = __ldcg(logits + min(expert, p.router.n_experts - 1));
        ranks[i] = expert < p.router.n_experts ? rank_of(values[i]) : 0;
    }
    int own = 0;
    for (int j = 0; j < p.router.top_k; j++) {
        uint32_t largest = __reduce_max_sync(~0u, max(max(ranks[0], ranks[1]), max(ranks[2], ranks[3])));
        int index = INT_MAX;
#pragma unroll
        for (int i = lane_experts - 1; i >= 0; i--)
            index = ranks[i] == largest ? i * 32 + lane : index;
        index = __reduce_min_sync(~0u, index);
        float value = 0;
#pragma unroll
        for (int i = 0; i < lane_experts; i++)
            if (index == i * 32 + lane) {
                ranks[i] = 0;
                value = values[i];
            }
        value = __shfl_sync(~0u, value, index % 32);
        own = lane == j ? index : own;
        score = lane == j ? value : score;
    }
    float weight = weigh(p.router, score, lane);
    if (lane < p.router.top_k) {
        route_target to = target_of(p.ids, p.weights, p.log, row, p.router.top_k);
        to.ids[lane] = own;
        to.log[lane] = own;
        to.weights[lane] = weight;
    }
}

__global__ void __launch_bounds__(threads, 1) layer_decode(const __grid_constant__ layer_args args)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[2 * ring_most_stages + 1];
    __shared__ float partial[most_groups_of_rows + 1][warps];
    __shared__ float2 turns[part_dim / 2];
    const nib_cuda_layer &call = args.call;
    int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
    uint8_t *inputs = memory + args.stages * args.stage_bytes;
    float *shared = reinterpret_cast<float *>(inputs + args.input_bytes); // what the stages use in turn
    weight_ring ring = {shared_address(barriers),
                        shared_address(barriers + ring_most_stages),
                        shared_address(memory),
                        args.stages,
                        args.stage_bytes,
                        0,
                        0};
    uint32_t go = shared_address(barriers + 2 * ring_most_stages);
    if (threadIdx.x == 0) {
        barrier_init(go, 1);
        ring.init();
    }
    __syncthreads();
    if (warp == warps) {
        ring_producer producer(ring, stages_under_way);
        producer.run(call.qkv, args.in);
        barrier_wait(go, 0); // or what the barrier and the attention need would wait behind these
        producer.run(call.o, args.out);
        return;
    }
    attend_part part;
    bool attends = part.find(args.attend, static_cast<int>(blockIdx.x), args.parts);
    if (attends)
        part.look_ahead(args.attend, warp);
    if (attends && threadIdx.x < part_dim / 2)
        turns[threadIdx.x] = turn_of(args.attend.fresh.q_turn, static_cast<int>(threadIdx.x), part.position);
    ring_items items;
    items.find(call.qkv, args.in, args.rows, nullptr);
    fetch_norm(call, shared);
    wait_for_previous_kernel();
    allow_next_kernel();
    grid_barrier barrier = {call.counters + GRID_COUNTER, 0};
    norm_inputs(args, barrier, shared, inputs, partial[0], warp, lane);
    multiply(args, args.in, items, ring, inputs, shared, warp, lane);
    barrier.arrive();
    attend(args, part, attends, turns, barrier, go, *reinterpret_cast<part_sums *>(shared), warp, lane);
    barrier.arrive();
    items.find(call.o, args.out, args.rows, call.branch.weights ? call.branch.sum : call.branch.rows);
    barrier.wait();
    copy_inputs(call.attention.y_half, args.rows, call.o.cols, inputs, args.out.input_pitch);
    named_barrier<1, consumers>();
    multiply(args, args.out, items, ring, inputs, shared, warp, lane);
    barrier.arrive();
    route_share share(args);
    bool routes = share.experts > 0 && share.rows > 0;
    if (routes)
        fetch_experts(call.route, share, shared, inputs);
    barrier.wait();
    wait_copies<0>();
    named_barrier<1, consumers>();
    if (routes)
        route_rows(args, share, shared, inputs, partial, warp, lane);
    if (is_last(call.counters + ROUTE_COUNTER, gridDim.x) && warp < args.rows)
        choose_row(call.route, warp, lane);
}

int larger(int a, int b)
{
    return a > b ? a : b;
}

layer_args plan(const nib_cuda_layer &call, const nib_cuda_step &step, int blocks)
{
    ring_linear in(call.qkv, blocks), out(call.o, blocks);
    layer_args args = {call, {call.attention, step, call.fresh, false}, in, out, 0, 0, 0, 0, 0, 0};
    const nib_cuda_norm_route &route = call.route;
    int used = call.qkv.rows * call.attention.n_kv_heads, tiles = 0;
    for (const ring_linear &l : {in, out})
        tiles = larger(tiles, ((l.total + blocks - 1) / blocks + l.height - 1) / l.height);
    args.rows = call.qkv.rows;
    args.parts = blocks / used < part_most ? blocks / used : part_most;
    args.groups = args.rows > 4 ? 4 : args.rows > 1 ? 2 : 1;
    args.stage_bytes = larger(in.height * in.pitch, out.height * out.pitch);
    args.input_bytes = larger(args.rows * larger(in.input_pitch, out.input_pitch), args.groups * route.width * 2);
    args.input_bytes = (args.input_bytes + 127) / 128 * 128;
    int sums = larger(tiles * warps * 512, static_cast<int>(sizeof(part_sums))),
        left = max_shared - args.input_bytes - larger(sums, route.width * 4);
    args.stages = left / args.stage_bytes < ring_most_stages ? left / args.stage_bytes : ring_most_stages;
    return args;
}

bool fits(const nib_cuda_skinny_linear &call, int blocks)
{
    return call.cols > 0 && call.cols % ring_unit_columns == 0 &&
           ring_linear(call, blocks).total <= blocks * ring_most_tiles * ring_tile_rows;
}

bool turns_whole(const nib_cuda_rotation &turn)
{
    return !turn.interleaved && turn.first == 0 && turn.dims == part_dim;
}

} // namespace

size_t nib_cuda_layer_scratch(int multiprocessors)
{
    return static_cast<size_t>(multiprocessors) * part_heads * (part_dim + 2) * sizeof(float);
}

bool nib_cuda_layer_takes(const struct nib_cuda_layer *layer, int multiprocessors)
{
    const nib_cuda_attention &a = layer->attention;
    const nib_cuda_rotate_append &f = layer->fresh;
    const nib_cuda_norm_route &r = layer->route;
    int rows = layer->qkv.rows;
    bool rotates = turns_whole(f.q_turn) && turns_whole(f.k_turn) && f.q_turn.inv_freq == f.k_turn.inv_freq &&
                   f.q_turn.scale == f.k_turn.scale && f.v && f.q_heads == a.n_heads &&
                   f.k_heads == a.n_kv_heads && f.head_dim == part_dim && f.k_dim == part_dim;
    bool attends = a.head_dim == part_dim && a.v_dim == part_dim && a.n_heads % a.n_kv_heads == 0 &&
                   a.n_heads <= part_heads * a.n_kv_heads && a.longest == 1 && a.keys.width % 8 == 0 &&
                   a.values.width % 8 == 0 && rows * a.n_kv_heads <= multiprocessors && a.y_half;
    bool routes = r.width == layer->qkv.cols && r.router.n_experts + most_groups_of_rows - 1 <= multiprocessors &&
                  r.router.kind == NIB_CUDA_TOPK_SOFTMAX && !r.router.correction && r.router.n_groups <= 1 &&
                  r.router.n_experts <= 32 * lane_experts && r.router.top_k <= 32;
    bool adds = !layer->branch.weights || layer->branch.top_k <= branch_ahead;
    return rows >= 1 && rows <= NIB_CUDA_LAYER_ROWS && rows <= multiprocessors && adds && rotates && attends &&
           routes && PART_COUNTERS + rows * a.n_kv_heads <= NIB_CUDA_LAYER_COUNTERS &&
           fits(layer->qkv, multiprocessors) && fits(layer->o, multiprocessors) &&
           layer->o.cols == a.n_heads * part_dim && plan(*layer, {}, multiprocessors).stages >= few_stages;
}

cudaError_t nib_cuda_run_layer(cudaStream_t stream, const struct nib_cuda_step *step,
                               const struct nib_cuda_layer *layer, int multiprocessors)
{
    if (!nib_cuda_layer_takes(layer, multiprocessors) || step->page_tokens < part_tokens)
        return cudaErrorInvalidValue;
    layer_args args = plan(*layer, *step, multiprocessors);
    cudaError_t error =
        cudaFuncSetAttribute(layer_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared);
    if (error != cudaSuccess)
        return error;
    return nib_launch(layer_decode, dim3(static_cast<unsigned>(multiprocessors)), threads,
                      static_cast<size_t>(max_shared), stream, args);
}
