// Reading what is added to the residual stream.
#ifndef NIB_CUDA_BRANCH_CUH
#define NIB_CUDA_BRANCH_CUH

#include "cuda/kernels.h"
#include "cuda/pipeline.cuh"

constexpr int branch_ahead = 4; // routes whose weights a thread keeps, and whose values it reads at once

__device__ __forceinline__ void add_weighed(float &sum, float weight, float value)
{
    sum = fmaf(weight, value, sum);
}

__device__ __forceinline__ void add_weighed(float4 &sum, float weight, float4 value)
{
    add_weighed(sum.x, weight, value.x);
    add_weighed(sum.y, weight, value.y);
    add_weighed(sum.z, weight, value.z);
    add_weighed(sum.w, weight, value.w);
}

// A row of a branch in elements of type E. Routes are added in their order, as the MoE call does where it adds them up;
// rows that are there to be added count as one route.
template <typename E> struct branch_row {
    const E *values; // null: none
    const float *weights;
    int width, routes;
    float ahead[branch_ahead];

    __device__ __forceinline__ branch_row(const nib_cuda_branch &branch, int64_t row, int width)
        : values(nullptr), weights(nullptr), width(width), routes(0)
    {
        if (!branch.rows)
            return;
        routes = branch.weights ? branch.top_k : 1;
        values = reinterpret_cast<const E *>(branch.rows) + row * width * routes;
        weights = branch.weights + row * routes;
#pragma unroll
        for (int j = 0; j < branch_ahead; j++)
            ahead[j] = branch.weights ? __ldcg(weights + min(j, routes - 1)) : 1;
    }

    // The element from the first routes' values of it.
    __device__ __forceinline__ E sum(const E (&first)[branch_ahead]) const
    {
        E sum = {};
#pragma unroll
        for (int j = 0; j < branch_ahead; j++)
            if (j < routes)
                add_weighed(sum, ahead[j], first[j]);
        return sum;
    }

    __device__ __forceinline__ E at(int i) const
    {
        E first[branch_ahead];
#pragma unroll
        for (int j = 0; j < branch_ahead; j++)
            first[j] = j < routes ? __ldcg(values + static_cast<int64_t>(j) * width + i) : E{};
        E all = sum(first);
#pragma unroll 1
        for (int j = branch_ahead; j < routes; j++)
            add_weighed(all, __ldcg(weights + j), __ldcg(values + static_cast<int64_t>(j) * width + i));
        return all;
    }

    // Asks for element i of the first routes; of a branch that has no more, several elements can be under way at once.
    __device__ __forceinline__ void load(E (&first)[branch_ahead], int i) const
    {
        static_assert(sizeof(E) == 16, "four floats");
#pragma unroll
        for (int j = 0; j < branch_ahead; j++) {
            uint4 raw = load_global_u4_if(j < routes, values + static_cast<int64_t>(j) * width + i);
            first[j] = make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                                   __uint_as_float(raw.w));
        }
    }
};

#endif
