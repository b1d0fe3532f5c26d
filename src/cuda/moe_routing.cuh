// Routes sorted by expert in shared memory, by one warp of every block: cheaper than a launch of its own.
#ifndef NIB_CUDA_MOE_ROUTING_CUH
#define NIB_CUDA_MOE_ROUTING_CUH

#include "cuda/moe_device.cuh"

#define NIB_MOE_GROUP 8 // routes that share one pass over an expert's rows: the columns of the tensor-core tile

struct alignas(8) route_group {
    short expert, first, count; // routes slots[first .. first + count) of a local expert
    unsigned short before;      // weight of a tile of each group before it
};

// What a tile costs by the number of its group's routes, whose scales' products are added each for itself.
__device__ __forceinline__ unsigned tile_weight(const nib_moe_args &args, int count)
{
    return !args.by_weight ? 1 : count <= 2 ? 8 : count <= 4 ? 9 : 10;
}

// Lies at routing_offset of shared memory.
struct routing {
    route_group *groups; /* [routes] at most */
    uint16_t *slots;     /* [routes] route indices, by expert, ascending within one */
    uint32_t *rank;      /* [routes] expert << 16 | place among the expert's routes; ~0: foreign */
    int *count;          /* [E] then the expert's first slot */
};

__device__ __forceinline__ routing routing_at(uint8_t *memory, int routes)
{
    routing r;
    r.groups = reinterpret_cast<route_group *>(memory);
    r.rank = reinterpret_cast<uint32_t *>(r.groups + routes);
    r.slots = reinterpret_cast<uint16_t *>(r.rank + routes);
    r.count = reinterpret_cast<int *>(r.slots + (routes + 1) / 2 * 2);
    return r;
}

__host__ __device__ inline int routing_bytes(int routes, int n_experts)
{
    return routes * static_cast<int>(sizeof(route_group) + sizeof(uint32_t)) + (routes + 1) / 2 * 4 +
           n_experts * 4;
}

// Places within an expert follow the route index, so every block of the grid finds the same groups.
__device__ inline void rank_routes(const nib_moe_args &args, routing &r, int lane)
{
    for (int base = 0; base < args.routes; base += 32) {
        int route = base + lane;
        int expert = route < args.routes ? args.expert_ids[route] - args.first_expert : -1;
        bool local = expert >= 0 && expert < args.n_experts;
        unsigned same = __match_any_sync(~0u, local ? expert : -1);
        int before = __popc(same & ((1u << lane) - 1));
        int placed = local ? r.count[expert] : 0;
        __syncwarp();
        if (local && before == 0)
            r.count[expert] = placed + __popc(same);
        if (route < args.routes)
            r.rank[route] =
                local ? static_cast<uint32_t>(expert) << 16 | static_cast<uint32_t>(placed + before) : ~0u;
        __syncwarp();
    }
}

// Turns counts into first slots and lists the groups. Returns their number.
__device__ inline int list_groups(const nib_moe_args &args, routing &r, int lane)
{
    int carried = 0; // slots and, in the upper half, groups before this run of 32 experts
    unsigned carried_weight = 0, full = tile_weight(args, NIB_MOE_GROUP);
    for (int base = 0; base < args.n_experts; base += 32) {
        int expert = base + lane;
        int count = expert < args.n_experts ? r.count[expert] : 0;
        int groups = (count + NIB_MOE_GROUP - 1) / NIB_MOE_GROUP;
        int sum = groups << 16 | count;
        unsigned weight = groups ? (groups - 1) * full + tile_weight(args, (count - 1) % NIB_MOE_GROUP + 1) : 0;
        unsigned weights = weight;
        for (int step = 1; step < 32; step *= 2) {
            int left = __shfl_up_sync(~0u, sum, step);
            unsigned left_weights = __shfl_up_sync(~0u, weights, step);
            sum += lane >= step ? left : 0;
            weights += lane >= step ? left_weights : 0;
        }
        int before = carried + sum - (groups << 16 | count);
        unsigned before_weight = carried_weight + weights - weight;
        int first = before & 0xffff;
        if (expert < args.n_experts)
            r.count[expert] = first;
        for (int i = 0; i < groups; i++)
            r.groups[(before >> 16) + i] = {static_cast<short>(expert),
                                            static_cast<short>(first + i * NIB_MOE_GROUP),
                                            static_cast<short>(min(count - i * NIB_MOE_GROUP, NIB_MOE_GROUP)),
                                            static_cast<unsigned short>(before_weight + i * full)};
        carried += __shfl_sync(~0u, sum, 31);
        carried_weight += __shfl_sync(~0u, weights, 31);
    }
    __syncwarp();
    return carried >> 16;
}

// The same for at most 32 routes, one a lane and all tiles of one weight, without a look at every expert: a step's latency
// is the call's.
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
    int before = sum - (groups << 16 | count);
    for (int i = 0; i < groups; i++)
        r.groups[(before >> 16) + i] = {static_cast<short>(expert),
                                        static_cast<short>((before & 0xffff) + i * NIB_MOE_GROUP),
                                        static_cast<short>(min(count - i * NIB_MOE_GROUP, NIB_MOE_GROUP)),
                                        static_cast<unsigned short>((before >> 16) + i)};
    int first = __shfl_sync(~0u, before, __ffs(same) - 1) & 0xffff;
    if (lane < args.routes)
        r.rank[lane] = local ? 0 : ~0u;
    if (local)
        r.slots[first + place] = static_cast<uint16_t>(lane);
    return __shfl_sync(~0u, sum, 31) >> 16;
}

__device__ inline int sort_routes(const nib_moe_args &args, routing &r, int lane)
{
    if (args.routes <= 32)
        return sort_few_routes(args, r, lane);
    for (int expert = lane; expert < args.n_experts; expert += 32)
        r.count[expert] = 0;
    __syncwarp();
    rank_routes(args, r, lane);
    int n_groups = list_groups(args, r, lane);
    for (int route = lane; route < args.routes; route += 32) {
        uint32_t rank = r.rank[route];
        if (rank != ~0u)
            r.slots[r.count[rank >> 16] + (rank & 0xffff)] = static_cast<uint16_t>(route);
    }
    return n_groups;
}

#endif
