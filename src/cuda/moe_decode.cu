// The MoE layer for few tokens as one persistent kernel. Each block streams its share of the touched experts' rows, in
// tiles, through a ring of shared-memory stages: two warps issue bulk copies, twelve decode and multiply on the tensor
// cores, two finish tiles. The stream runs on from the rows of W13 into those of W2, which need nothing from the first
// product until they are multiplied. docs/performance.md has the reasoning and the figures.
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

__global__ void __launch_bounds__(NIB_MOE_DECODE_THREADS, 1) moe_decode(const __grid_constant__ nib_moe_args args)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[2 * max_stages + 2 * finish_warps + 1];
    __shared__ int n_groups, bounds[4];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    block_state block;
    block.full = shared_address(barriers);
    block.empty = block.full + 8 * max_stages;
    block.partial_full = block.empty + 8 * max_stages;
    block.partial_empty = block.partial_full + 8 * finish_warps;
    block.activations = block.partial_empty + 8 * finish_warps;
    block.ring = shared_address(memory);
    block.partials = block.ring + args.partial_offset;
    block.routes = routing_at(memory + args.routing_offset, args.routes);
    if (threadIdx.x == 32) {
        for (int i = 0; i < args.stages; i++) {
            barrier_init(block.full + 8 * i, 1);
            barrier_init(block.empty + 8 * i, multiply_warps);
        }
        for (int i = 0; i < finish_warps; i++) {
            barrier_init(block.partial_full + 8 * i, multiply_warps);
            barrier_init(block.partial_empty + 8 * i, 1);
        }
        barrier_init(block.activations, multiply_warps);
        barrier_init_fence();
    }
    wait_for_previous_kernel();
    if (warp == 0) {
        int groups = sort_routes(args, block.routes, lane);
        bound_shares(args, groups, bounds, lane);
        if (lane == 0)
            n_groups = groups;
    }
    __syncthreads();
    allow_next_kernel();
    block.routes.n_groups = n_groups;
    block.shares[0] = {bounds[0], bounds[1]};
    block.shares[1] = {bounds[2], bounds[3]};

    if (n_groups > 0) {
        if (warp < multiply_warps)
            multiply(args, block, warp, lane);
        else if (warp < multiply_warps + producer_warps)
            produce(args, block, memory, warp - multiply_warps, lane);
        else
            finish(args, block, warp - multiply_warps - producer_warps, lane);
        wait_for_grid(args.grid_barrier);
    }
    sum_routes(args, block, warp, lane);
    if (blockIdx.x == 0) // no block waits for a group any more: ready for the next call
        for (int i = threadIdx.x; i < n_groups; i += blockDim.x)
            args.h_done[i] = 0;
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
