#include "cuda/sample.h"

#include <cooperative_groups.h>

#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"

namespace cg = cooperative_groups;

namespace
{

constexpr int threads = 512, warps = threads / 32;
constexpr int cluster_blocks = 8;
constexpr int bins = 512, bins_a_nat = 16; // as in engine/sampler.c
constexpr int digit_bits = 9;
constexpr float most_nats = 60, least_temperature = 1e-6f;
constexpr float one = 1099511627776.0f; // of a mass: 2^40

// Tokens in the order of the host's sort: the larger logit first, of equals the lower id. Ids take 19 bits.
__device__ __forceinline__ uint64_t rank_of(float logit, int token)
{
    uint32_t bits = __float_as_uint(logit + 0.0f); // -0 equals 0
    uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(key) << 19 | static_cast<uint64_t>(0x7ffff - token);
}

constexpr int rank_bits = 32 + 19;

struct weigher {
    float largest, inverse; // the likeliest logit, and 1 / temperature
    float floor;            // logits below it count for nothing

    __device__ __forceinline__ bool counts(float logit) const
    {
        return logit >= floor;
    }

    __device__ __forceinline__ uint64_t mass(float logit) const
    {
        return static_cast<uint64_t>(expf((logit - largest) * inverse) * one);
    }

    __device__ __forceinline__ int bin(float logit) const
    {
        float nats = (largest - logit) * inverse;
        return nats < static_cast<float>(bins) / bins_a_nat ? static_cast<int>(nats * bins_a_nat) : bins - 1;
    }
};

// Tokens up to some place in the order.
struct amount {
    uint64_t count, mass;
};

// A mass in three parts of 14 bits, whose sums over a block's tokens fit 32 bits: there is no 64-bit addition to
// shared memory.
struct shared_bins {
    uint32_t count[bins], mass[3][bins];
};

struct row_state {
    float *logits; /* [slice] of this block, in shared memory */
    int first, n;  // its tokens
    shared_bins *filled;
    amount *before, *digits; /* [bins + 1] in shared memory */
    uint64_t *words;         /* [warps] in shared memory */
    uint64_t *only;          // in shared memory
};

__device__ __forceinline__ void add_to_bin(shared_bins &b, int bin, uint64_t mass)
{
    atomicAdd(&b.count[bin], 1u);
#pragma unroll
    for (int i = 0; i < 3; i++)
        atomicAdd(&b.mass[i][bin], static_cast<uint32_t>(mass >> 14 * i) & 0x3fff);
}

template <typename T> __device__ __forceinline__ T warp_scan(T value)
{
    for (int step = 1; step < 32; step *= 2) {
        T left = __shfl_up_sync(~0u, value, step);
        value += static_cast<int>(threadIdx.x % 32) >= step ? left : 0;
    }
    return value;
}

__device__ __forceinline__ uint64_t block_scan(uint64_t value, uint64_t *words)
{
    value = warp_scan(value);
    if (threadIdx.x % 32 == 31)
        words[threadIdx.x / 32] = value;
    __syncthreads();
    for (int i = 0; i < static_cast<int>(threadIdx.x / 32); i++)
        value += words[i];
    __syncthreads();
    return value;
}

// Which of a thread's tokens are meant: bit k is token k * threads + threadIdx.x.
struct token_set {
    uint64_t words[2];

    __device__ __forceinline__ void add(int k)
    {
        if (k < 64)
            words[0] |= 1ull << k;
        else
            words[1] |= 1ull << (k - 64);
    }

    template <typename Act> __device__ __forceinline__ void for_each(Act act) const
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
            for (uint64_t left = words[half]; left; left &= left - 1)
                act((half * 64 + __ffsll(static_cast<long long>(left)) - 1) * threads +
                    static_cast<int>(threadIdx.x));
    }
};

static_assert(NIB_CUDA_SAMPLE_VOCAB / cluster_blocks < 128 * threads, "a bit for each of a thread's tokens");

__device__ __forceinline__ void clear_bins(const row_state &row)
{
    int bin = threadIdx.x;
    row.filled->count[bin] = row.filled->mass[0][bin] = row.filled->mass[1][bin] = row.filled->mass[2][bin] = 0;
    __syncthreads();
}

// Adds up the blocks' bins: before[i] is what lies in the bins before i, in every block.
__device__ __forceinline__ void add_bins(const row_state &row, amount *before)
{
    cg::cluster_group cluster = cg::this_cluster();
    int bin = threadIdx.x;
    cluster.sync();
    amount here = {};
#pragma unroll
    for (int block = 0; block < cluster_blocks; block++) {
        const shared_bins *there = cluster.map_shared_rank(row.filled, block);
        here.count += there->count[bin];
        here.mass += (static_cast<uint64_t>(there->mass[2][bin]) << 28) +
                     (static_cast<uint64_t>(there->mass[1][bin]) << 14) + there->mass[0][bin];
    }
    cluster.sync(); // the bins may be filled again
    here = {block_scan(here.count, row.words), block_scan(here.mass, row.words)};
    before[bin + 1] = here;
    if (bin == 0)
        before[0] = {};
    __syncthreads();
}

// Counts and weighs the row's tokens in bins of their logits.
__device__ __noinline__ void fill_bins(const row_state &row, const weigher &w)
{
    clear_bins(row);
    for (int i = threadIdx.x; i < row.n; i += threads)
        if (w.counts(row.logits[i]))
            add_to_bin(*row.filled, w.bin(row.logits[i]), w.mass(row.logits[i]));
    add_bins(row, row.before);
}

struct place {
    uint64_t rank;   // of the token, and how many bits of it from the top are known
    int bin;         // its bin
    amount in_front; // what lies in the bins before that
    amount reached;  // up to and with the token
    bool found;
};

enum measure { by_count, by_mass };

__device__ __forceinline__ uint64_t value_of(const amount &a, measure m)
{
    return m == by_count ? a.count : a.mass;
}

// The bin in which the sum reaches `wanted`; bins when none does.
__device__ __forceinline__ int reach_bin(const row_state &row, const amount *before, measure m, const amount &base,
                                         uint64_t wanted)
{
    int bin = threadIdx.x;
    bool here = value_of(base, m) + value_of(before[bin + 1], m) >= wanted &&
                (bin == 0 || value_of(base, m) + value_of(before[bin], m) < wanted);
    if (bin == 0)
        row.words[0] = bins;
    __syncthreads();
    if (here)
        row.words[0] = static_cast<uint64_t>(bin);
    __syncthreads();
    int result = static_cast<int>(row.words[0]);
    __syncthreads();
    return result;
}

// The first token, in order, with which the sum reaches `wanted` (> 0). The bins have been filled.
__device__ __noinline__ place search(const row_state &row, const weigher &w, measure m, uint64_t wanted)
{
    place p = {};
    p.bin = reach_bin(row, row.before, m, {}, wanted);
    if (p.bin == bins)
        return p;
    p.found = true;
    amount base = p.in_front = row.before[p.bin];
    token_set left_over = {};
    for (int k = 0, i = threadIdx.x; i < row.n; i += threads, k++)
        if (w.counts(row.logits[i]) && w.bin(row.logits[i]) == p.bin)
            left_over.add(k);
#pragma unroll 1
    for (int left = rank_bits; left > 0; left -= digit_bits) {
        int shift = left > digit_bits ? left - digit_bits : 0, mask = (1 << (left - shift)) - 1;
        auto digit_of = [&](int i) {
            return static_cast<int>(rank_of(row.logits[i], row.first + i) >> shift) & mask;
        };
        clear_bins(row);
        left_over.for_each([&](int i) { // the largest digit comes first
            add_to_bin(*row.filled, mask - digit_of(i), w.mass(row.logits[i]));
        });
        add_bins(row, row.digits);
        int bin = reach_bin(row, row.digits, m, base, wanted);
        p.rank |= static_cast<uint64_t>(mask - bin) << shift;
        p.reached = {base.count + row.digits[bin + 1].count, base.mass + row.digits[bin + 1].mass};
        base = {base.count + row.digits[bin].count, base.mass + row.digits[bin].mass};
        token_set kept = {};
        left_over.for_each([&](int i) {
            if (mask - digit_of(i) == bin)
                kept.add(i / threads);
        });
        left_over = kept;
        if (p.reached.count == base.count + 1 && shift > 0) { // one token is left: whoever has it says so
            cg::cluster_group cluster = cg::this_cluster();
            left_over.for_each([&](int i) {
                for (int block = 0; block < cluster_blocks; block++)
                    *cluster.map_shared_rank(row.only, block) = rank_of(row.logits[i], row.first + i);
            });
            cluster.sync();
            p.rank = *row.only;
            cluster.sync();
            break;
        }
    }
    return p;
}

__device__ __forceinline__ int token_of(const place &p)
{
    return 0x7ffff - static_cast<int>(p.rank & 0x7ffff);
}

// Warp w's tokens: whole runs of 32.
__device__ __forceinline__ int warp_begin(const row_state &row, int warp)
{
    int runs = (row.n + 31) / 32;
    return min(row.n, (runs * warp / warps) * 32);
}

__device__ __forceinline__ uint64_t up_to(double x)
{
    return static_cast<uint64_t>(ceil(x));
}

// The first mass above unit * all.
__device__ __forceinline__ uint64_t beyond(double unit, uint64_t all)
{
    uint64_t left = static_cast<uint64_t>(unit * static_cast<double>(all));
    return left < all ? left + 1 : all;
}

// A token in the order of ids, of those that `counts` says: the first with which the mass reaches `wanted`, or goes beyond
// the share `unit` of all when wanted is 0; -1: none.
template <typename Counts>
__device__ inline int search_ids(const row_state &row, const weigher &w, uint64_t wanted, double unit,
                                 uint64_t *block_mass, int *found, Counts counts)
{
    cg::cluster_group cluster = cg::this_cluster();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = warp_begin(row, warp),
        end = warp_begin(row, warp + 1);
    uint64_t sum = 0;
    for (int i = begin + lane; i < end; i += 32)
        sum += counts(row.logits[i]) ? w.mass(row.logits[i]) : 0;
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0)
        row.words[warp] = sum;
    __syncthreads();
    uint64_t before = 0, block = 0, all = 0;
    for (int i = 0; i < warps; i++) {
        before += i < warp ? row.words[i] : 0;
        block += row.words[i];
    }
    if (threadIdx.x == 0) {
        *block_mass = block;
        *found = -1;
    }
    cluster.sync();
    for (int i = 0; i < cluster_blocks; i++) {
        uint64_t there = *cluster.map_shared_rank(block_mass, i);
        before += i < static_cast<int>(cluster.block_rank()) ? there : 0;
        all += there;
    }
    wanted = wanted ? wanted : beyond(unit, all);
    if (before < wanted && before + sum >= wanted)
        for (int base = begin; base < end; base += 32) {
            int i = base + lane;
            uint64_t mass = warp_scan<uint64_t>(i < end && counts(row.logits[i]) ? w.mass(row.logits[i]) : 0);
            unsigned reached = __ballot_sync(~0u, before + mass >= wanted);
            if (reached) {
                if (lane == 0)
                    *cluster.map_shared_rank(found, 0) = row.first + base + __ffs(reached) - 1;
                break;
            }
            before += __shfl_sync(~0u, mass, 31);
        }
    cluster.sync();
    int token = *cluster.map_shared_rank(found, 0);
    cluster.sync(); // its block may end
    return token;
}

// Loads the block's logits; returns the rank of the likeliest token of the row, 0 when no logit is a number above
// -infinity.
__device__ inline uint64_t load_row(const row_state &row, const float *logits, uint64_t *best)
{
    cg::cluster_group cluster = cg::this_cluster();
    uint64_t most = 0;
    auto take = [&](int i, float logit) {
        row.logits[i] = logit;
        if (logit > -INFINITY) {
            uint64_t rank = rank_of(logit, row.first + i);
            most = rank > most ? rank : most;
        }
    };
    const float *from = logits + row.first;
    int lead = static_cast<int>((16 - (reinterpret_cast<uintptr_t>(from) & 15)) % 16 / 4);
    lead = min(lead, row.n);
    int quads = (row.n - lead) / 4;
    if (static_cast<int>(threadIdx.x) < lead)
        take(threadIdx.x, from[threadIdx.x]);
#pragma unroll 4
    for (int q = threadIdx.x; q < quads; q += threads) {
        float4 v = __ldcg(reinterpret_cast<const float4 *>(from + lead) + q);
        int i = lead + q * 4;
        take(i, v.x);
        take(i + 1, v.y);
        take(i + 2, v.z);
        take(i + 3, v.w);
    }
    for (int i = lead + quads * 4 + threadIdx.x; i < row.n; i += threads)
        take(i, from[i]);
    for (int step = 16; step; step /= 2) {
        uint64_t other = __shfl_xor_sync(~0u, most, step);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0)
        row.words[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < warps; i++)
        most = row.words[i] > most ? row.words[i] : most;
    if (threadIdx.x == 0)
        *best = most;
    cluster.sync();
    for (int i = 0; i < cluster_blocks; i++) {
        uint64_t other = *cluster.map_shared_rank(best, i);
        most = other > most ? other : most;
    }
    cluster.sync();
    return most;
}

// As nib_sampler_pick.
__device__ inline int draw(const row_state &row, const nib_cuda_sample_ask &ask, int likeliest, float largest,
                           uint64_t *block_mass, int *found)
{
    float nats = ask.min_p > 0 ? fminf(-logf(ask.min_p), most_nats) : most_nats;
    weigher w = {largest, 1 / ask.temperature, largest - nats * ask.temperature};
    if (!ask.top_k && !(ask.top_p < 1)) {
        int token =
            search_ids(row, w, 0, ask.unit, block_mass, found, [&](float logit) { return w.counts(logit); });
        return token < 0 ? likeliest : token;
    }
    fill_bins(row, w);
    amount all = row.before[bins];
    double top_p = static_cast<double>(ask.top_p);
    int token;
    if (ask.top_k) {
        uint64_t kept = all.mass;
        if (static_cast<uint64_t>(ask.top_k) < all.count)
            kept = search(row, w, by_count, static_cast<uint64_t>(ask.top_k)).reached.mass;
        if (ask.top_p < 1) {
            place cut = search(row, w, by_mass, up_to(top_p * static_cast<double>(kept)));
            kept = cut.found && cut.reached.mass < kept ? cut.reached.mass : kept;
        }
        place p = search(row, w, by_mass, beyond(ask.unit, kept));
        token = p.found ? token_of(p) : likeliest;
    } else {
        place cut = search(row, w, by_mass, up_to(top_p * static_cast<double>(all.mass)));
        uint64_t wanted = beyond(ask.unit, cut.found ? cut.reached.mass : all.mass);
        if (wanted <= cut.in_front.mass) { // bins before the cut's are drawn from in the order of ids
            token = search_ids(row, w, wanted, 0, block_mass, found,
                               [&](float logit) { return w.counts(logit) && w.bin(logit) < cut.bin; });
        } else {
            place p = search(row, w, by_mass, wanted);
            token = p.found ? token_of(p) : likeliest;
        }
    }
    return token < 0 ? likeliest : token;
}

// As nib_logprobs.
__device__ inline void find_logprobs(const row_state &row, const nib_cuda_sample_ask &ask, float largest,
                                     int token, float logit, nib_cuda_sample_answer *answer, uint64_t *list,
                                     int *listed)
{
    cg::cluster_group cluster = cg::this_cluster();
    weigher w = {largest, 1, -INFINITY};
    fill_bins(row, w);
    amount all = row.before[bins];
    double total = static_cast<double>(largest);
    if (isfinite(largest))
        total += log(static_cast<double>(all.mass) / static_cast<double>(one));
    bool first_thread = cluster.block_rank() == 0 && threadIdx.x == 0;
    if (first_thread)
        answer->logprob = static_cast<float>(static_cast<double>(logit) - total);
    uint64_t n = static_cast<uint64_t>(max(0, min(ask.n_top, NIB_CUDA_SAMPLE_TOP)));
    n = n < all.count ? n : all.count;
    if (first_thread) {
        answer->n_top = static_cast<int32_t>(n);
        *listed = 0;
    }
    if (n == 0)
        return;
    uint64_t last = search(row, w, by_count, n).rank; // its barriers come after `listed`
    int *there_listed = cluster.map_shared_rank(listed, 0);
    uint64_t *there_list = cluster.map_shared_rank(list, 0);
    for (int i = threadIdx.x; i < row.n; i += threads)
        if (w.counts(row.logits[i]) && rank_of(row.logits[i], row.first + i) >= last)
            there_list[atomicAdd(there_listed, 1)] = rank_of(row.logits[i], row.first + i);
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x < n) {
        uint64_t mine = list[threadIdx.x];
        int before = 0;
        for (uint64_t i = 0; i < n; i++)
            before += list[i] > mine;
        uint32_t key = static_cast<uint32_t>(mine >> 19);
        float value = __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
        answer->top_tokens[before] = 0x7ffff - static_cast<int>(mine & 0x7ffff);
        answer->top_logprobs[before] = static_cast<float>(static_cast<double>(value) - total);
    }
}

struct sample_args {
    const float *logits;
    const nib_cuda_sample_ask *asks;
    nib_cuda_sample_answer *answers;
    int32_t *tokens;
    int vocab, slice;
};

__global__ void __cluster_dims__(cluster_blocks, 1, 1) __launch_bounds__(threads)
    sample(const __grid_constant__ sample_args args)
{
    extern __shared__ __align__(16) float slice[];
    __shared__ shared_bins filled;
    __shared__ amount before[bins + 1], digits[bins + 1];
    __shared__ uint64_t words[warps], best, only, list[NIB_CUDA_SAMPLE_TOP];
    __shared__ int found;
    cg::cluster_group cluster = cg::this_cluster();
    int rank = static_cast<int>(cluster.block_rank());
    int64_t index = blockIdx.x / cluster_blocks;
    row_state row = {slice, rank * args.slice, 0, &filled, before, digits, words, &only};
    row.n = max(0, min(args.slice, args.vocab - row.first));
    wait_for_previous_kernel();
    allow_next_kernel();
    const float *logits = args.logits + index * args.vocab;
    nib_cuda_sample_ask ask = args.asks[index];
    nib_cuda_sample_answer *answer = args.answers + index;
    uint64_t likeliest_rank = load_row(row, logits, &best);
    int likeliest = likeliest_rank ? 0x7ffff - static_cast<int>(likeliest_rank & 0x7ffff) : -1, token = likeliest;
    float largest = likeliest >= 0 ? logits[likeliest] : -INFINITY;
    if (likeliest >= 0 && ask.temperature >= least_temperature && isfinite(largest))
        token = draw(row, ask, likeliest, largest, &best, &found);
    if (rank == 0 && threadIdx.x == 0) {
        answer->token = token;
        answer->logprob = 0;
        answer->n_top = 0;
        if (args.tokens)
            args.tokens[index] = token;
    }
    if (ask.logprobs && token >= 0)
        find_logprobs(row, ask, largest, token, logits[token], answer, list, &found);
    cluster.sync(); // no block ends while another reads its memory
}

} // namespace

cudaError_t nib_cuda_sample(cudaStream_t stream, int32_t rows, int32_t vocab, const float *logits,
                            const struct nib_cuda_sample_ask *asks, struct nib_cuda_sample_answer *answers,
                            int32_t *tokens)
{
    if (rows < 0 || vocab < 1 || vocab > NIB_CUDA_SAMPLE_VOCAB)
        return cudaErrorInvalidValue;
    if (rows == 0)
        return cudaSuccess;
    sample_args args = {logits, asks,  answers,
                        tokens, vocab, ((vocab + cluster_blocks - 1) / cluster_blocks + 3) / 4 * 4};
    int shared = args.slice * static_cast<int>(sizeof(float));
    cudaError_t error = cudaFuncSetAttribute(sample, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess)
        return error;
    return nib_launch(sample, dim3(static_cast<unsigned>(rows * cluster_blocks)), threads,
                      static_cast<size_t>(shared), stream, args);
}
