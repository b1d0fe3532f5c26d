// Choosing experts from a token's logits, a token a warp: the arithmetic of ops/route.c.
#ifndef NIB_CUDA_ROUTE_CHOICE_CUH
#define NIB_CUDA_ROUTE_CHOICE_CUH

#include <climits>

#include "cuda/block_sum.cuh"
#include "cuda/kernels.h"

constexpr int most_top_k = 32, most_experts = 1024, most_groups = 64;

// The larger value, and of equals the lower index; index < 0 is none.
__device__ __forceinline__ void warp_best(float &value, int &index)
{
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
        float other = __shfl_xor_sync(~0u, value, distance);
        int at = __shfl_xor_sync(~0u, index, distance);
        if (at >= 0 && (index < 0 || other > value || (other == value && at < index))) {
            value = other;
            index = at;
        }
    }
}

__device__ __forceinline__ float corrected(const nib_cuda_router &r, const float *scores, int expert)
{
    return scores[expert] + (r.correction ? r.correction[expert] : 0.0f);
}

// One bit for each group whose experts may be chosen.
__device__ inline uint64_t choose_groups(const nib_cuda_router &r, const float *scores, int lane)
{
    int size = r.n_experts / r.n_groups;
    float values[most_groups / 32];
#pragma unroll
    for (int i = 0; i < most_groups / 32; i++) {
        int group = i * 32 + lane;
        float best = -INFINITY, second = -INFINITY;
        for (int e = group * size; group < r.n_groups && e < (group + 1) * size; e++) {
            float value = corrected(r, scores, e);
            if (value > best) {
                second = best;
                best = value;
            } else if (value > second) {
                second = value;
            }
        }
        values[i] = best + second;
    }
    uint64_t chosen = 0;
    for (int round = 0; round < r.top_groups; round++) {
        float best = 0;
        int index = -1;
#pragma unroll
        for (int i = 0; i < most_groups / 32; i++) {
            int group = i * 32 + lane;
            if (group < r.n_groups && !(chosen >> group & 1) && (index < 0 || values[i] > best)) {
                best = values[i];
                index = group;
            }
        }
        warp_best(best, index);
        chosen |= uint64_t{1} << index;
    }
    return chosen;
}

__device__ inline void scores_of(const nib_cuda_router &r, float *scores, int lane)
{
    if (r.kind == NIB_CUDA_SIGMOID) {
        for (int e = lane; e < r.n_experts; e += 32)
            scores[e] = 1.0f / (1.0f + expf(-scores[e]));
    } else if (r.kind == NIB_CUDA_SOFTMAX) {
        float largest = -INFINITY, sum = 0;
        for (int e = lane; e < r.n_experts; e += 32)
            largest = fmaxf(largest, scores[e]);
        largest = warp_max(largest);
        for (int e = lane; e < r.n_experts; e += 32)
            sum += scores[e] = expf(scores[e] - largest);
        sum = warp_sum(sum);
        for (int e = lane; e < r.n_experts; e += 32)
            scores[e] /= sum;
    }
    __syncwarp();
}

// Lane j holds the weight of choice j.
__device__ inline float weigh(const nib_cuda_router &r, float score, int lane)
{
    bool mine = lane < r.top_k;
    if (r.kind == NIB_CUDA_TOPK_SOFTMAX) {
        float largest = warp_max(mine ? score : -INFINITY);
        float value = mine ? expf(score - largest) : 0.0f;
        score = value / warp_sum(value);
    }
    if (!r.normalise)
        return score * r.scale;
    float sum = warp_sum(mine ? score : 0.0f) + 1e-20f; // as the published routers have it: no division by zero
    return score / sum * r.scale;
}

// Numbers in the order of floats, none of them 0.
__device__ __forceinline__ uint32_t rank_of(float value)
{
    uint32_t bits = __float_as_uint(value + 0.0f); // -0 is 0
    uint32_t rank = bits ^ (bits >> 31 ? ~0u : 0x80000000u);
    return rank ? rank : 1;
}

struct ranked {
    uint32_t rank;
    int index;
};

// The best of this lane's experts, of equals the first.
__device__ __forceinline__ ranked best_of(const uint32_t *order, int n, int lane)
{
    ranked best = {0, lane};
    for (int e = lane; e < n; e += 32)
        if (order[e] > best.rank)
            best = {order[e], e};
    return best;
}

// Where a token's choice goes.
struct route_target {
    int32_t *ids;   /* [top_k] */
    float *weights; /* [top_k] */
    int32_t *log;   /* [top_k] */
};

// `scores` and `keys` are the warp's own, the first holding the logits.
__device__ inline void choose_experts(const nib_cuda_router &r, float *scores /* [n_experts] */,
                                      float *keys /* [n_experts] */, const route_target &to, int lane)
{
    __syncwarp();
    scores_of(r, scores, lane);
    uint64_t groups = r.n_groups > 1 ? choose_groups(r, scores, lane) : ~uint64_t{0};
    int group_size = r.n_groups > 1 ? r.n_experts / r.n_groups : r.n_experts;
    uint32_t *order = reinterpret_cast<uint32_t *>(keys);
    for (int e = lane; e < r.n_experts; e += 32)
        order[e] = groups == ~uint64_t{0} || groups >> (e / group_size) & 1 ? rank_of(corrected(r, scores, e)) : 0;
    ranked best = best_of(order, r.n_experts, lane);
    int own = 0;
    for (int j = 0; j < r.top_k; j++) {
        uint32_t largest = __reduce_max_sync(~0u, best.rank);
        int index = __reduce_min_sync(~0u, best.rank == largest ? best.index : INT_MAX);
        own = lane == j ? index : own;
        if (index == best.index && index % 32 == lane) { // no other lane holds it
            order[index] = 0;
            best = best_of(order, r.n_experts, lane);
        }
    }
    float score = lane < r.top_k ? scores[own] : 0.0f;
    float weight = weigh(r, score, lane);
    if (lane < r.top_k) {
        to.ids[lane] = own;
        to.log[lane] = own;
        to.weights[lane] = weight;
    }
}

__device__ __forceinline__ route_target target_of(int32_t *ids, float *weights, int32_t *log, int token, int top_k)
{
    int64_t at = static_cast<int64_t>(token) * top_k;
    return {ids + at, weights + at, log + at};
}

#endif
