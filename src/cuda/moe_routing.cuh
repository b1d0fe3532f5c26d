// Routes sorted by expert in shared memory, by every block: cheaper than a launch of its own.
#ifndef NIB_CUDA_MOE_ROUTING_CUH
#define NIB_CUDA_MOE_ROUTING_CUH

#include "cuda/moe_decode.cuh"

#define NIB_MOE_GROUP 8 // routes that share one pass over an expert's rows: the columns of the tensor-core tile

struct alignas(8) route_group {
    short expert, first, count; // routes slots[first .. first + count) of a local expert
    unsigned short before;      // weight of a tile of each group before it
};

// What a tile costs by the number of its group's routes, whose scales' products are added each for itself.
__device__ __forceinline__ unsigned tile_weight(const nib_moe_args &args, int count)
{
    return args.tile_weight + (count <= 2 ? 0 : count <= 4 ? 1 : 2) * args.weight_step;
}

// Lies at routing_offset of shared memory.
struct routing {
    route_group *groups; /* [routes] at most */
    uint16_t *slots;     /* [routes] route indices, by expert, ascending within one */
    uint32_t *rank; /* [routes] ~0: foreign; else, while they are sorted, expert << 16 | place in a warp's share */
    int *first_slot; /* [E] while more are sorted than a warp has lanes */
};

__device__ __forceinline__ routing routing_at(uint8_t *memory, int routes)
{
    routing r;
    r.groups = reinterpret_cast<route_group *>(memory);
    r.rank = reinterpret_cast<uint32_t *>(r.groups + routes);
    r.slots = reinterpret_cast<uint16_t *>(r.rank + routes);
    r.first_slot = reinterpret_cast<int *>(r.slots + (routes + 1) / 2 * 2);
    return r;
}

__host__ __device__ inline int routing_bytes(int routes, int n_experts)
{
    return routes * static_cast<int>(sizeof(route_group) + sizeof(uint32_t)) + (routes + 1) / 2 * 4 +
           n_experts * 4;
}

// Calls visit(route, expert, place) for a warp's share of the routes, `begin` to `end`: the place is among those of the
// share that want the same expert, of which the warp's own `count` [E] is kept. A foreign route's expert is -1.
template <typename Visit>
__device__ __forceinline__ void visit_routes(const nib_moe_args &args, uint16_t *count, int begin, int end,
                                             int lane, Visit visit)
{
    for (int base = begin; base < end; base += 32) {
        int route = base + lane;
        int expert = route < end ? args.expert_ids[route] - args.first_expert : -1;
        bool local = expert >= 0 && expert < args.n_experts;
        unsigned same = __match_any_sync(~0u, local ? expert : -1);
        int before = __popc(same & ((1u << lane) - 1));
        int placed = local ? count[expert] : 0;
        __syncwarp();
        if (local && before == 0)
            count[expert] = static_cast<uint16_t>(placed + __popc(same));
        __syncwarp();
        if (route < end)
            visit(route, local ? expert : -1, placed + before);
    }
}

// Slots, groups and their tiles' weight, of one expert or of all before one.
struct expert_sums {
    int slots, groups;
    unsigned weight;
};

__device__ __forceinline__ expert_sums operator+(const expert_sums &a, const expert_sums &b)
{
    return {a.slots + b.slots, a.groups + b.groups, a.weight + b.weight};
}

__device__ __forceinline__ expert_sums shuffle_up(const expert_sums &a, int by)
{
    return {__shfl_up_sync(~0u, a.slots, by), __shfl_up_sync(~0u, a.groups, by),
            __shfl_up_sync(~0u, a.weight, by)};
}

__device__ __forceinline__ expert_sums sums_of(const nib_moe_args &args, int count)
{
    int groups = (count + NIB_MOE_GROUP - 1) / NIB_MOE_GROUP;
    unsigned full = tile_weight(args, NIB_MOE_GROUP);
    unsigned last = groups ? tile_weight(args, (count - 1) % NIB_MOE_GROUP + 1) : full;
    return {count, groups, (groups - 1) * full + last};
}

__device__ __forceinline__ void list_groups(const nib_moe_args &args, routing &r, int expert,
                                            const expert_sums &before, int count)
{
    for (int i = 0; i * NIB_MOE_GROUP < count; i++)
        r.groups[before.groups + i] = {
            static_cast<short>(expert), static_cast<short>(before.slots + i * NIB_MOE_GROUP),
            static_cast<short>(min(count - i * NIB_MOE_GROUP, NIB_MOE_GROUP)),
            static_cast<unsigned short>(before.weight + i * tile_weight(args, NIB_MOE_GROUP))};
}

// An expert's counts of the first `shares` warps become the places before each warp's share. Returns their sum.
__device__ __forceinline__ int sum_counts(uint16_t *counts, int shares, int n_experts, int expert)
{
    int sum = 0;
#pragma unroll 1
    for (int first = 0; expert < n_experts && first < shares; first += 4) {
        uint16_t *count = counts + first * n_experts + expert;
        int here[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            here[i] = first + i < shares ? count[i * n_experts] : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (first + i < shares)
                count[i * n_experts] = static_cast<uint16_t>(sum);
            sum += here[i];
        }
    }
    return sum;
}

// The sums of the threads before this one, and in `groups` those of all; every thread of the block calls, and those of
// the first `counted` warps have any.
template <int warps>
__device__ __forceinline__ expert_sums sums_before(const expert_sums &mine, int counted, int *groups, int warp,
                                                   int lane)
{
    __shared__ expert_sums of_warps[warps];
    expert_sums sums = mine;
    for (int step = 1; step < 32; step *= 2) {
        expert_sums left = shuffle_up(sums, step);
        if (lane >= step)
            sums = sums + left;
    }
    if (lane == 31)
        of_warps[warp] = sums;
    __syncthreads();
    expert_sums before = {sums.slots - mine.slots, sums.groups - mine.groups, sums.weight - mine.weight};
    *groups = 0;
    for (int w = 0; w < counted; w++) {
        expert_sums other = of_warps[w];
        *groups += other.groups;
        if (w < warp)
            before = before + other;
    }
    return before;
}

// Sorts any number of routes; all warps' work. Places within an expert follow the route index, so every block of the
// grid finds the same groups. `counts` is [warps, E]. Returns the number of groups.
template <int warps>
__device__ inline int sort_routes(const nib_moe_args &args, routing &r, uint16_t *counts, int warp, int lane)
{
    int n_experts = args.n_experts, each = (args.routes + warps * 32 - 1) / (warps * 32) * 32;
    int begin = min(warp * each, args.routes), end = min(begin + each, args.routes);
    int shares = (args.routes + each - 1) / each; // warps that have any
    uint16_t *own = counts + warp * n_experts;
    for (int i = lane; begin < end && i < n_experts; i += 32)
        own[i] = 0;
    __syncwarp();
    visit_routes(args, own, begin, end, lane, [&](int route, int expert, int place) {
        r.rank[route] = expert < 0 ? ~0u : static_cast<uint32_t>(expert) << 16 | static_cast<uint32_t>(place);
    });
    __syncthreads();

    constexpr int most = (NIB_MOE_MAX_EXPERTS + warps * 32 - 1) / (warps * 32); // experts a thread
    int totals[most], first = static_cast<int>(threadIdx.x) * most, groups;
    expert_sums mine = {};
#pragma unroll
    for (int i = 0; i < most; i++) {
        totals[i] = sum_counts(counts, shares, n_experts, first + i);
        mine = mine + sums_of(args, totals[i]);
    }
    expert_sums before = sums_before<warps>(mine, (n_experts + most * 32 - 1) / (most * 32), &groups, warp, lane);
#pragma unroll
    for (int i = 0; i < most; i++)
        if (first + i < n_experts) {
            list_groups(args, r, first + i, before, totals[i]);
            r.first_slot[first + i] = before.slots;
            before = before + sums_of(args, totals[i]);
        }
    __syncthreads();
    for (int route = begin + lane; route < end; route += 32) {
        uint32_t rank = r.rank[route];
        if (rank != ~0u)
            r.slots[r.first_slot[rank >> 16] + own[rank >> 16] + (rank & 0xffff)] = static_cast<uint16_t>(route);
    }
    return groups;
}

// The same for at most NIB_MOE_LANE_ROUTES routes, one a lane of one warp and all tiles of one weight, without a look
// at every expert: a step's latency is the call's.
__device__ inline int sort_few_routes(const nib_moe_args &args, routing &r, int lane)
{
    int expert = lane < args.routes ? args.expert_ids[lane] - args.first_expert : -1;
    bool local = expert >= 0 && expert < args.n_experts;
    unsigned same = __match_any_sync(~0u, local ? expert : -1);
    int place = __popc(same & ((1u << lane) - 1)), count = local && place == 0 ? __popc(same) : 0;
    int groups = (count + NIB_MOE_GROUP - 1) / NIB_MOE_GROUP, sum = groups << 16 | count;
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? left : 0;
    }
    int before = sum - (groups << 16 | count), groups_before = before >> 16;
    list_groups(args, r, expert, {before & 0xffff, groups_before, static_cast<unsigned>(groups_before)}, count);
    int first = __shfl_sync(~0u, before, __ffs(same) - 1) & 0xffff;
    if (lane < args.routes)
        r.rank[lane] = local ? 0 : ~0u;
    if (local)
        r.slots[first + place] = static_cast<uint16_t>(lane);
    return __shfl_sync(~0u, sum, 31) >> 16;
}

#endif
