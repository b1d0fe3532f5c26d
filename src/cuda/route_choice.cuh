// Choosing experts from a token's logits, a token a warp: the arithmetic of ops/route.c.
#ifndef NIB_CUDA_ROUTE_CHOICE_CUH
#define NIB_CUDA_ROUTE_CHOICE_CUH

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
    float sum = warp_sum(mine ? score : 0.0f) + 1e-20f; // as the published routers have it: no division by zero
    return score / (r.normalise ? sum : 1.0f) * r.scale;
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
    uint64_t groups = r.n_groups > 1 ? choose_groups(r, scores, lane) : 1;
    int group_size = r.n_groups > 1 ? r.n_experts / r.n_groups : r.n_experts;
    for (int e = lane; e < r.n_experts; e += 32)
        keys[e] = corrected(r, scores, e);
    int own = 0;
    uint32_t taken = 0; // a bit for each of this lane's at most 32 experts
    float score = 0;
    for (int j = 0; j < r.top_k; j++) {
        float best = 0;
        int index = -1;
        for (int e = lane, i = 0; e < r.n_experts; e += 32, i++) {
            if (taken >> i & 1 || !(groups >> (e / group_size) & 1))
                continue;
            if (index < 0 || keys[e] > best) {
                best = keys[e];
                index = e;
            }
        }
        warp_best(best, index);
        if (index >= 0 && index % 32 == lane)
            taken |= 1u << (index / 32);
        if (lane == j) {
            own = index;
            score = index >= 0 ? scores[index] : 0.0f;
        }
    }
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
