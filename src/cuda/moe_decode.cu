// The MoE layer for few tokens as one persistent kernel. Each block streams its share of the touched experts' rows, in
// tiles, through a ring of shared-memory stages: two warps issue bulk copies, twelve, in one team or two, decode and
// multiply on the tensor cores, two finish tiles. The stream runs on from the rows of W13 into those of W2, which need
// nothing from the first product until they are multiplied. docs/performance.md has the reasoning and the figures.
#include "cuda/moe_decode.cuh"
#include "cuda/moe_finish.cuh"
#include "cuda/moe_multiply.cuh"
#include "cuda/moe_produce.cuh"
#include "cuda/moe_routing.cuh"
#include "cuda/pipeline.cuh"

namespace
{

// Waits until every block of the grid is here, and sees what they stored. The top bit of the counter flips each time.
__device__ void wait_for_grid(unsigned *counter)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        unsigned before = add_acquire_release(counter, step);
        while (((before ^ load_acquire(counter)) & 0x80000000u) == 0)
            ;
    }
    __syncthreads();
}

// This call's counters of h. A block counts itself once it has looked, so until all have looked the count does not reach the
// other call's. What the call before has left in the other half is cleared for the next.
__device__ __forceinline__ unsigned *take_turn(const nib_moe_args &args)
{
    unsigned turn = load_relaxed(args.blocks_read) >= gridDim.x;
    count_around(args.blocks_read, 2 * gridDim.x - 1);
    return args.h_done + turn * NIB_MOE_DECODE_ROUTES;
}

__device__ __forceinline__ void clear_other(const nib_moe_args &args, int lane)
{
    unsigned *other = args.h_done + (own_h_done() == args.h_done ? NIB_MOE_DECODE_ROUTES : 0);
    for (unsigned i = blockIdx.x * 32 + lane; i < NIB_MOE_DECODE_ROUTES; i += gridDim.x * 32)
        other[i] = 0;
}

__global__ void __launch_bounds__(NIB_MOE_DECODE_THREADS, 1) moe_decode(const __grid_constant__ nib_moe_args args)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[2 * max_stages + 2 * max_slots + 1];
    __shared__ int n_groups;
    __shared__ share shares[2];
    int lane = threadIdx.x % 32;
    int warp = __shfl_sync(~0u, threadIdx.x / 32, 0); // the same in a warp, for the compiler to see

    block_state block;
    block.full = opaque(shared_address(barriers)); // or it would be worked out again before every use
    block.empty = block.full + 8 * max_stages;
    block.partial_full = block.empty + 8 * max_stages;
    block.partial_empty = block.partial_full + 8 * max_slots;
    block.activations = block.partial_empty + 8 * max_slots;
    block.ring = shared_address(memory);
    block.partials = block.ring + args.partial_offset;
    block.routes = routing_at(memory + args.routing_offset, args.routes);
    if (threadIdx.x == 32) {
        for (int i = 0; i < args.stages; i++) {
            barrier_init(block.full + 8 * i, args.producers_apart ? producer_warps : 1);
            barrier_init(block.empty + 8 * i, multiply_warps);
        }
        for (int i = 0; i < args.partial_slots; i++) {
            barrier_init(block.partial_full + 8 * i, multiply_warps);
            barrier_init(block.partial_empty + 8 * i, 1);
        }
        barrier_init(block.activations, multiply_warps);
        barrier_init_fence();
    }
    wait_for_previous_kernel();
    if (threadIdx.x == 32 * multiply_warps)
        own_h_done() = take_turn(args);
    bool by_lanes = args.routes <= NIB_MOE_LANE_ROUTES;
    int groups = 0;
    if (!by_lanes) {
        uint16_t *counts = reinterpret_cast<uint16_t *>(memory + args.partial_offset);
        groups = sort_routes<NIB_MOE_DECODE_THREADS / 32>(args, block.routes, counts, warp, lane);
        __syncthreads();
    }
    if (warp == 0) {
        if (by_lanes)
            groups = sort_few_routes(args, block.routes, lane);
        __syncwarp();
        if (groups > 0) {
            share mine = find_share(args, block.routes, groups, lane);
            if (lane < 2)
                shares[lane] = mine;
        }
        if (lane == 0)
            n_groups = groups;
    }
    __syncthreads();
    allow_next_kernel();
    block.shares = shares;
    if (warp == multiply_warps + producer_warps)
        clear_other(args, lane);

    if (n_groups > 0) {
        if (warp < multiply_warps) {
            take_registers<NIB_MOE_MULTIPLY_REGISTERS>();
            multiply(args, block, warp, lane);
            named_barrier<1, multiply_warps * 32>(); // a warpgroup's warps must meet between two changes
            give_registers<NIB_MOE_REGISTERS>();
        } else {
            give_registers<NIB_MOE_OTHER_REGISTERS>();
            if (warp < multiply_warps + producer_warps && args.producers_apart)
                produce_runs(args, block, warp > multiply_warps);
            else if (warp < multiply_warps + producer_warps)
                produce(args, block, memory, warp - multiply_warps, lane);
            else
                finish(args, block, warp - multiply_warps - producer_warps, lane);
            named_barrier<2, NIB_MOE_DECODE_THREADS - multiply_warps * 32>();
            take_registers<NIB_MOE_REGISTERS>();
        }
        if (args.y)
            wait_for_grid(args.grid_barrier);
    }
    sum_routes(args, block, n_groups, warp, lane);
}

} // namespace

cudaError_t nib_moe_decode_prepare(int shared_bytes)
{
    return cudaFuncSetAttribute(moe_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

cudaError_t nib_moe_decode_launch(const nib_moe_args &args, int blocks, int shared_bytes, cudaStream_t stream)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeCooperative; // blocks wait for each other: all must be resident
    attributes[1].val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(NIB_MOE_DECODE_THREADS);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, moe_decode, args);
}
