// The MoE layer call on the GPU: plans, checks, and the launch.
#include "nibble/moe_cuda.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <new>

extern "C" {
#include "base/error.h"
#include "ops/moe_check.h"
}
#include "cuda/moe_decode.cuh"
#include "cuda/moe_outputs.h"
#include "cuda/moe_places.cuh"
#include "cuda/moe_prefill.cuh"
#include "cuda/moe_routing.cuh"
#include "cuda/moe_scan.cuh"

// How a call's products are cut into tiles.
struct moe_cut {
    nib_moe_product product[2];
    int stage_bytes;
};

struct nib_moe_cuda_plan {
    nib_moe_args args; // what is the same for every call; its cut is `many`
    moe_cut few, many; // for few routes, by one team of warps, and for more
    int blocks;
    int shared_limit;
    bool prefill;        // more tokens than the few-token kernel is for take a path of their own
    void *device_memory; // the expert table, then a byte an expert
    char reason[200];
};

namespace
{

nib_status fail_cuda(struct nib_error *err, cudaError_t error, const char *doing)
{
    nib_status status = error == cudaErrorMemoryAllocation ? NIB_ERR_MEMORY : NIB_ERR_IO;
    return nib_fail(err, status, "cuda: %s: %s", doing, cudaGetErrorString(error));
}

constexpr int slot_bytes = NIB_MOE_MULTIPLY_WARPS * NIB_MOE_SUM_BYTES;
constexpr int partial_bytes = NIB_MOE_FINISH_WARPS * slot_bytes; // at least
const int most_routing_bytes = routing_bytes(NIB_MOE_DECODE_ROUTES, NIB_MOE_MAX_EXPERTS);

int round_up(int value, int unit)
{
    return (value + unit - 1) / unit * unit;
}

// The room for sums at least: many routes are counted there before.
int sums_bytes(int routes, int n_experts)
{
    int counts = routes > NIB_MOE_LANE_ROUTES ? NIB_MOE_DECODE_THREADS / 32 * n_experts * 2 : 0;
    return std::max(partial_bytes, round_up(counts, 128));
}

bool aligned(const void *pointer, uintptr_t to)
{
    return reinterpret_cast<uintptr_t>(pointer) % to == 0;
}

// Whether gate and up rows of every expert alternate in memory, packed rows and scales alike.
bool rows_alternate(const nib_moe_weights &w, const nib_moe_product &p)
{
    bool alternate = w.gate_up_row_stride == 2;
    for (int64_t i = 0; i < w.n_experts; i++) {
        const nib_expert &e = w.experts[i];
        alternate = alternate && e.up_scales == e.gate_scales + p.blocks && e.up == e.gate + p.columns / 2;
    }
    return alternate;
}

// Scales reach shared memory by bulk copies where the addresses allow it.
nib_moe_scale_copy pick_scale_copy(const nib_moe_weights &w, const nib_moe_product &p, int which, bool together)
{
    bool bases = true;
    for (int64_t i = 0; i < w.n_experts; i++) {
        const nib_expert &e = w.experts[i];
        bases = bases && (which ? aligned(e.down_scales, 16) : aligned(e.gate_scales, 16));
        if (which == 0 && !p.interleaved)
            bases = bases && aligned(e.up_scales, 16);
    }
    if (!bases || p.blocks % 2)
        return NIB_MOE_SCALES_BY_BYTE;
    if (p.blocks % 16 == 0 && (p.blocks % 128 == 0 || !together))
        return NIB_MOE_SCALES_BY_ROW;
    return together ? NIB_MOE_SCALES_BY_REGION : NIB_MOE_SCALES_BY_BYTE;
}

// Of a stage's packed rows.
int packed_bytes(const nib_moe_product &p, int row_groups)
{
    return (p.rows_paired ? 8 : 16) * row_groups * p.row_stride;
}

// Cuts a product into tiles for two teams, or for one where rows are too long for six warps. Where half as many slices
// of a row would do, and a stage stays small enough, a tile has twice the rows instead: what surrounds a warp's few
// pairs costs, too.
void cut_product(const nib_moe_weights &w, int which, bool two_teams, nib_moe_product *p)
{
    *p = {};
    p->columns = static_cast<int>(which ? w.intermediate : w.hidden);
    p->rows = static_cast<int>(which ? w.hidden : w.intermediate);
    p->blocks = p->columns / NIB_MX_BLOCK;
    p->pairs = (p->blocks + 1) / 2;
    // The memory gives a run of rows faster than each of them; but without padding to an odd number of 16-byte units
    // ldmatrix meets a bank twice, and with rows of whole 64 bytes more often. Then neighbours are copied two by two.
    p->interleaved = which == 0 && rows_alternate(w, *p);
    bool together = which == 1 || w.gate_up_row_stride == 1 || p->interleaved;
    p->rows_by_region = together && p->blocks % 4 != 0;
    p->rows_paired = !p->rows_by_region && (which == 1 || p->interleaved);
    p->row_stride = (p->rows_by_region ? p->blocks : (p->rows_paired ? 2 * p->blocks : p->blocks) | 1) * 16;
    p->teams = two_teams && p->pairs * 2 <= NIB_MOE_MAX_PAIRS * NIB_MOE_MULTIPLY_WARPS ? 2 : 1;
    p->k_slices = NIB_MOE_MULTIPLY_WARPS / p->teams;
    for (p->row_groups = 1; p->row_groups < NIB_MOE_MAX_ROW_GROUPS; p->row_groups *= 2) {
        if (p->k_slices % 2 || p->pairs * 2 > p->k_slices * NIB_MOE_MAX_PAIRS ||
            packed_bytes(*p, 2 * p->row_groups) > NIB_MOE_TALL_TILE_BYTES)
            break;
        p->k_slices /= 2;
    }
    p->scale_copy = pick_scale_copy(w, *p, which, together);
    p->exchange_bit = p->rows_by_region && p->interleaved                           ? 1
                      : p->rows_paired && p->scale_copy == NIB_MOE_SCALES_BY_REGION ? 2
                                                                                    : 31;
    p->scale_stride = p->scale_copy == NIB_MOE_SCALES_BY_ROW      ? (p->blocks / 16 | 1) * 16
                      : p->scale_copy == NIB_MOE_SCALES_BY_REGION ? p->blocks
                                                                  : round_up(p->blocks, 2);
}

// Whether one team takes twice as many rows; else a slice's halves go to two warps.
bool joined_by_rows(const nib_moe_product &p)
{
    return 2 * p.row_groups <= NIB_MOE_MAX_ROW_GROUPS &&
           packed_bytes(p, 2 * p.row_groups) <= NIB_MOE_TALL_TILE_BYTES;
}

// A row that is not joined so has so many pairs that each of three slices, or of six, has seven at least (see
// least_halved).
static_assert((NIB_MOE_TALL_TILE_BYTES / 1024 + 6) / 6 > 6, "halved slices have four pairs");

// The same sums by one team.
void join_teams(nib_moe_product *p)
{
    p->teams = 1;
    if (joined_by_rows(*p)) {
        p->row_groups *= 2;
        return;
    }
    p->k_slices *= 2;
    p->classes_apart = true;
}

// Slices differ by a pair at most. Of two teams the second begins with another slice, so that no scheduler has all the
// long ones.
void share_out(nib_moe_product *p)
{
    int slices = p->classes_apart ? p->k_slices / 2 : p->k_slices;
    p->max_pairs = 0;
    for (int warp = 0; warp < NIB_MOE_MULTIPLY_WARPS; warp++) {
        int second = warp >= NIB_MOE_MULTIPLY_WARPS / 2 && (p->classes_apart || p->teams == 2);
        int member = warp - second * NIB_MOE_MULTIPLY_WARPS / 2, row_group = member / slices;
        int part = (member + (p->classes_apart ? 0 : second)) % slices;
        int begin = p->pairs * part / slices, pairs = p->pairs * (part + 1) / slices - begin;
        int sums = row_group * p->k_slices + part;
        if (p->classes_apart) {
            begin += second;
            pairs = (pairs + 1 - second) / 2;
            sums += second * slices;
        }
        p->slices[warp] = {static_cast<uint8_t>(row_group), static_cast<uint8_t>(sums),
                           static_cast<uint8_t>(begin), static_cast<uint8_t>(pairs)};
        p->max_pairs = std::max(p->max_pairs, pairs);
    }
}

// What follows from the number of row groups. Returns the bytes of a stage.
int size_tiles(nib_moe_product *p, int which)
{
    share_out(p);
    p->tile_rows = (which ? 16 : 8) * p->row_groups;
    p->tiles = (p->rows + p->tile_rows - 1) / p->tile_rows;
    p->scale_offset = packed_bytes(*p, p->row_groups);
    for (int place = 0; place < 16 * p->row_groups; place++) {
        p->packed_at[place] = static_cast<uint16_t>(packed_at(*p, which, place));
        p->scales_at[place] = static_cast<uint16_t>(scales_at(*p, which, place));
    }
    return round_up(p->scale_offset + 16 * p->row_groups * p->scale_stride, 128);
}

void size_cut(moe_cut *cut)
{
    int first = size_tiles(&cut->product[0], 0), second = size_tiles(&cut->product[1], 1);
    cut->stage_bytes = std::max(first, second);
}

// Two teams, unless fewer than four stages would fit: two a team, so that one is filled while the other is multiplied.
void cut_products(const nib_moe_weights &w, nib_moe_cuda_plan *plan)
{
    int least = sums_bytes(NIB_MOE_DECODE_ROUTES, static_cast<int>(w.n_experts));
    for (int teams = 2; teams > 0; teams--) {
        for (int which = 0; which < 2; which++)
            cut_product(w, which, teams == 2, &plan->many.product[which]);
        size_cut(&plan->many);
        if (plan->shared_limit - least - most_routing_bytes >= 4 * plan->many.stage_bytes)
            break;
    }
    plan->few = plan->many;
    for (int which = 0; which < 2; which++) {
        if (plan->many.product[which].teams == 2)
            join_teams(&plan->few.product[which]);
    }
    size_cut(&plan->few);
}

void find_steps(const nib_moe_weights &w, nib_moe_table *table)
{
    auto field = [&](int64_t expert, int i) {
        const nib_expert &e = w.experts[expert];
        const void *fields[9] = {e.gate,        e.up,        e.gate_scales, e.up_scales, e.down,
                                 e.down_scales, e.gate_bias, e.up_bias,     e.down_bias};
        return static_cast<int64_t>(reinterpret_cast<intptr_t>(fields[i]));
    };
    table->first = w.experts[0];
    table->affine = true;
    for (int i = 0; i < 9; i++) {
        table->step[i] = w.n_experts > 1 ? field(1, i) - field(0, i) : 0;
        for (int64_t e = 1; e < w.n_experts; e++)
            table->affine = table->affine && field(e, i) == field(0, i) + e * table->step[i];
    }
}

nib_status check_shape(const nib_moe_weights &w, struct nib_error *err)
{
    if (w.experts[0].gate_bias && w.bias_dtype == NIB_F16)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: biases of type %s, only F32 and BF16",
                        nib_dtype_name(w.bias_dtype));
    if (w.n_experts > NIB_MOE_MAX_EXPERTS)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: %lld experts, at most %d", (long long)w.n_experts,
                        NIB_MOE_MAX_EXPERTS);
    if (w.hidden > NIB_MOE_MAX_COLUMNS || w.intermediate > NIB_MOE_MAX_COLUMNS)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: hidden %lld, intermediate %lld, at most %d",
                        (long long)w.hidden, (long long)w.intermediate, NIB_MOE_MAX_COLUMNS);
    for (int64_t i = 0; i < w.n_experts; i++) {
        const nib_expert &e = w.experts[i];
        if (!aligned(e.gate, 16) || !aligned(e.up, 16) || !aligned(e.down, 16))
            return nib_fail(err, NIB_ERR_UNSUPPORTED,
                            "moe on cuda: expert %lld: packed rows at %p, %p, %p are not 16-byte aligned",
                            (long long)i, (const void *)e.gate, (const void *)e.up, (const void *)e.down);
    }
    return NIB_OK;
}

nib_status check_device(nib_moe_cuda_plan *plan, struct nib_error *err)
{
    int device, major, cooperative;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&plan->blocks, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&plan->shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device);
    if (error != cudaSuccess)
        return fail_cuda(err, error, "no usable device");
    if (major != 9 || !cooperative)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "moe on cuda: the kernels are for compute capability 9.0 (H100, H200), this device has %d",
                        major);
    if (plan->blocks > NIB_MOE_MAX_BLOCKS)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: %d multiprocessors, at most %d", plan->blocks,
                        NIB_MOE_MAX_BLOCKS);
    plan->shared_limit -= 1024; // the kernel's own static shared memory
    return NIB_OK;
}

nib_status upload(nib_moe_cuda_plan *plan, const nib_moe_weights &w, struct nib_error *err)
{
    size_t table = static_cast<size_t>(w.n_experts) * sizeof(nib_expert);
    cudaError_t error =
        cudaMalloc(&plan->device_memory, table + static_cast<size_t>(w.n_experts) + 3); // scanned in words
    if (error != cudaSuccess)
        return fail_cuda(err, error, "allocating the expert table");
    uint8_t *exact = static_cast<uint8_t *>(plan->device_memory) + table;
    error = cudaMemcpy(plan->device_memory, w.experts, table, cudaMemcpyHostToDevice);
    if (error == cudaSuccess)
        error = cudaMemset(exact, 0, static_cast<size_t>(w.n_experts) + 3);
    plan->args.table.experts = static_cast<const nib_expert *>(plan->device_memory);
    plan->args.exact = exact;
    if (error == cudaSuccess)
        error = nib_moe_scan_scales(plan->args, exact);
    uint8_t found[NIB_MOE_MAX_EXPERTS];
    if (error == cudaSuccess)
        error = cudaMemcpy(found, exact, static_cast<size_t>(w.n_experts), cudaMemcpyDeviceToHost);
    if (error != cudaSuccess)
        return fail_cuda(err, error, "reading the scales");
    plan->prefill = w.intermediate >= NIB_MOE_KEEP_REST;
    for (int64_t i = 0; i < w.n_experts; i++)
        plan->prefill = plan->prefill && (found[i] & 4) == 0;
    return NIB_OK;
}

static_assert(NIB_MOE_OPEN_TOKENS <= NIB_MOE_DECODE_TOKENS, "the few-token kernel takes such calls");

size_t round_up_256(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

// Offsets in a call's scratch. Counters come first, to stay in place whatever the call's size; the two paths share what
// follows.
struct layout {
    size_t h_done, h, out; // the grid's barrier is at 0, and behind it blocks_read
    size_t slots, tiles, counts, prefill_h, prefill_x, prefill_out;
    size_t bytes;
};

int64_t prefill_tokens(int64_t top_k)
{
    return NIB_MOE_PREFILL_ROUTES / top_k;
}

// Activations of all slots, in bytes. x is dead when the routes' outputs are written over it.
size_t gathered_bytes(int granules, int columns)
{
    return static_cast<size_t>(granules) * static_cast<size_t>(round_up(columns, 128)) * 16;
}

void lay_out_prefill(const nib_moe_args &args, int64_t tokens, int64_t top_k, layout *l)
{
    int64_t chunk = tokens < prefill_tokens(top_k) ? tokens : prefill_tokens(top_k);
    int routes = static_cast<int>(chunk * top_k);
    int granules = nib_moe_prefill_granules(routes, args.n_experts);
    size_t tiles = static_cast<size_t>(nib_moe_prefill_tiles(routes, args.n_experts));
    l->slots = l->h;
    l->tiles = l->slots + round_up_256(static_cast<size_t>(granules) * 8 * sizeof(int32_t));
    l->counts = l->tiles + round_up_256(tiles * sizeof(nib_moe_tile));
    l->prefill_h = l->counts + 256;
    l->prefill_x = l->prefill_h + round_up_256(gathered_bytes(granules, args.product[1].columns));
    l->prefill_out = l->prefill_x;
    size_t x = gathered_bytes(granules, args.product[0].columns);
    size_t out = static_cast<size_t>(routes) * static_cast<size_t>(args.product[0].columns) * sizeof(float);
    size_t end = l->prefill_x + round_up_256(x > out ? x : out);
    l->bytes = end > l->bytes ? end : l->bytes;
}

layout lay_out(const nib_moe_cuda_plan &plan, int64_t tokens, int64_t top_k)
{
    int64_t chunk = tokens < NIB_MOE_DECODE_TOKENS ? tokens : NIB_MOE_DECODE_TOKENS;
    size_t routes = static_cast<size_t>(chunk * top_k);
    size_t hidden = static_cast<size_t>(plan.args.product[0].columns);
    size_t intermediate = static_cast<size_t>(plan.args.product[1].columns);
    layout l = {};
    l.h_done = 256;
    l.h = l.h_done + 2 * sizeof(unsigned) * NIB_MOE_DECODE_ROUTES;
    l.out = l.h + round_up_256(routes * intermediate * (intermediate < NIB_MOE_KEEP_REST ? 4 : 2));
    l.bytes = l.out + round_up_256(routes * hidden * sizeof(float));
    if (plan.prefill && tokens > NIB_MOE_DECODE_TOKENS)
        lay_out_prefill(plan.args, tokens, top_k, &l);
    return l;
}

nib_status check_call(const nib_moe_cuda_plan *plan, const nib_moe_call *call, struct nib_error *err)
{
    if (call->tokens < 0 || call->top_k < 1 || call->tokens > INT32_MAX / call->top_k)
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe on cuda: %lld tokens with top_k %lld", (long long)call->tokens,
                        (long long)call->top_k);
    if (call->top_k > NIB_MOE_DECODE_ROUTES / NIB_MOE_DECODE_TOKENS)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: top_k %lld, at most %d", (long long)call->top_k,
                        NIB_MOE_DECODE_ROUTES / NIB_MOE_DECODE_TOKENS);
    if (call->tokens == 0)
        return NIB_OK;
    if (call->x_dtype != NIB_BF16)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: x of type %s", nib_dtype_name(call->x_dtype));
    if (call->y && call->y_dtype != NIB_F32 && call->y_dtype != NIB_BF16)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe on cuda: y of type %s", nib_dtype_name(call->y_dtype));
    if (!call->x || !call->expert_ids || !call->routing_weights || (!call->y && !call->y_per_route))
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "moe on cuda: x, expert_ids, routing_weights or an output is missing");
    if (!aligned(call->x, 16) || !aligned(call->y, 16) || !aligned(call->y_per_route, 16))
        return nib_fail(err, NIB_ERR_ARGUMENT, "moe on cuda: x and the outputs must be 16-byte aligned");
    size_t needed = nib_moe_cuda_scratch_bytes(plan, call->tokens, call->top_k);
    if (!call->scratch || call->scratch_bytes < needed || !aligned(call->scratch, 256))
        return nib_fail(err, NIB_ERR_ARGUMENT,
                        "moe on cuda: scratch of %zu bytes at %p, needs %zu, 256-byte aligned",
                        call->scratch_bytes, call->scratch, needed);
    return NIB_OK;
}

// Divides shared memory between the ring of stages, the partial sums and the routing tables.
int lay_out_shared(const nib_moe_cuda_plan &plan, nib_moe_args *args)
{
    const moe_cut &cut = args->routes <= NIB_MOE_FEW_ROUTES ? plan.few : plan.many;
    args->product[0] = cut.product[0];
    args->product[1] = cut.product[1];
    args->stage_bytes = cut.stage_bytes;
    int routes = round_up(routing_bytes(args->routes, args->n_experts), 128);
    int least = sums_bytes(args->routes, args->n_experts);
    int fit = (plan.shared_limit - least - routes) / args->stage_bytes;
    // h and the barriers wait behind what a multiprocessor has asked for, which for few routes costs what a deeper ring
    // gains. Three stages are the least that keep the memory busy; two teams, for which cut_products left room for four,
    // need an even number.
    bool two_teams = args->product[0].teams == 2 || args->product[1].teams == 2;
    bool many = args->routes > NIB_MOE_FEW_ROUTES;
    args->producers_apart = true;
    for (const nib_moe_product &p : args->product)
        args->producers_apart =
            args->producers_apart && p.rows_by_region && p.scale_copy == NIB_MOE_SCALES_BY_REGION;
    int wanted = many ? NIB_MOE_MAX_STAGES : std::max(3, NIB_MOE_FEW_BYTES / args->stage_bytes);
    args->stages = std::min({fit, wanted, NIB_MOE_MAX_STAGES});
    if (two_teams)
        args->stages -= args->stages % 2;
    // With fewer stages it is the memory more than the products that tiles wait for; and shares of few tiles are to be even
    // to the tile.
    args->tile_weight = many ? 16 : 1;
    args->weight_step = !many ? 0 : args->stages >= 6 ? 2 : 1;
    args->partial_offset = args->stages * args->stage_bytes;
    // Twice the sums, where they do not cost a stage: finishing warps may then fall behind.
    bool twice = args->partial_offset + 2 * partial_bytes + routes <= plan.shared_limit;
    args->partial_slots = NIB_MOE_FINISH_WARPS * (twice ? 2 : 1);
    args->routing_offset = args->partial_offset + std::max(args->partial_slots * slot_bytes, least);
    return args->routing_offset + routes;
}

// What both paths need for tokens [first, first + count) of a call.
nib_moe_args args_of(const nib_moe_cuda_plan &plan, const nib_moe_call *call, int64_t first, int64_t count,
                     void *own_out)
{
    nib_moe_args args = plan.args;
    int64_t hidden = args.product[0].columns, route = first * call->top_k;
    args.tokens = static_cast<int>(count);
    args.top_k = static_cast<int>(call->top_k);
    args.routes = static_cast<int>(count * call->top_k);
    args.x = static_cast<const uint16_t *>(call->x) + first * hidden;
    args.expert_ids = call->expert_ids + route;
    args.routing_weights = call->routing_weights + route;
    args.y_bf16 = call->y_dtype == NIB_BF16;
    if (call->y)
        args.y = static_cast<uint8_t *>(call->y) + first * hidden * (args.y_bf16 ? 2 : 4);
    args.y_per_route = call->y_per_route != nullptr;
    args.out = call->y_per_route ? call->y_per_route + route * hidden : static_cast<float *>(own_out);
    return args;
}

cudaError_t launch_decode(const nib_moe_cuda_plan &plan, const nib_moe_call *call, int64_t first, int64_t count,
                          cudaStream_t stream)
{
    layout l = lay_out(plan, call->tokens, call->top_k);
    uint8_t *scratch = static_cast<uint8_t *>(call->scratch);
    nib_moe_args args = args_of(plan, call, first, count, scratch + l.out);
    args.h = reinterpret_cast<uint16_t *>(scratch + l.h);
    int64_t intermediate = args.product[1].columns;
    args.h_rest = intermediate < NIB_MOE_KEEP_REST ? args.routes * intermediate : 0;
    args.grid_barrier = reinterpret_cast<unsigned *>(scratch);
    args.blocks_read = args.grid_barrier + 32;
    args.h_done = reinterpret_cast<unsigned *>(scratch + l.h_done);
    int shared = lay_out_shared(plan, &args);
    args.top_k_inverse = (65536u + static_cast<unsigned>(args.top_k) - 1) / static_cast<unsigned>(args.top_k);
    args.blocks_inverse = UINT32_MAX / static_cast<unsigned>(plan.blocks);
    return nib_moe_decode_launch(args, plan.blocks, shared, stream);
}

cudaError_t launch_prefill(const nib_moe_cuda_plan &plan, const nib_moe_call *call, int64_t first, int64_t count,
                           cudaStream_t stream)
{
    layout l = lay_out(plan, call->tokens, call->top_k);
    uint8_t *scratch = static_cast<uint8_t *>(call->scratch);
    nib_moe_prefill args = {};
    args.call = args_of(plan, call, first, count, scratch + l.prefill_out);
    args.slots = reinterpret_cast<int32_t *>(scratch + l.slots);
    args.tiles = reinterpret_cast<nib_moe_tile *>(scratch + l.tiles);
    args.counts = reinterpret_cast<int *>(scratch + l.counts);
    args.x = scratch + l.prefill_x;
    args.h = scratch + l.prefill_h;
    args.granules = nib_moe_prefill_granules(args.call.routes, args.call.n_experts);
    return nib_moe_prefill_launch(args, plan.blocks, stream);
}

} // namespace

extern "C" nib_status nib_moe_cuda_plan_create(const struct nib_moe_weights *weights,
                                               const struct nib_moe_config *config,
                                               struct nib_moe_cuda_plan **plan, struct nib_error *err)
{
    *plan = nullptr;
    nib_moe_cuda_plan *made = new (std::nothrow) nib_moe_cuda_plan();
    if (!made)
        return nib_fail_memory(err, sizeof *made, "a MoE plan");
    nib_status status = nib_moe_check_weights(weights, err);
    if (status == NIB_OK)
        status = nib_moe_check_activation(&config->activation, err);
    if (status == NIB_OK)
        status = check_device(made, err);
    if (status == NIB_OK)
        status = check_shape(*weights, err);
    if (status == NIB_OK) {
        nib_moe_args &args = made->args;
        find_steps(*weights, &args.table);
        args.gate_up_row_stride = weights->gate_up_row_stride;
        args.activation = config->activation;
        args.has_bias = weights->experts[0].gate_bias != nullptr;
        args.bias_bf16 = weights->bias_dtype == NIB_BF16;
        args.n_experts = static_cast<int>(weights->n_experts);
        args.first_expert = static_cast<int>(config->first_expert);
        cut_products(*weights, made);
        args.product[0] = made->many.product[0];
        args.product[1] = made->many.product[1];
        cudaError_t error = nib_moe_decode_prepare(made->shared_limit);
        if (error == cudaSuccess)
            error = nib_moe_prefill_prepare();
        status =
            error == cudaSuccess ? upload(made, *weights, err) : fail_cuda(err, error, "preparing the kernel");
    }
    if (status != NIB_OK) {
        nib_moe_cuda_plan_free(made);
        return status;
    }
    snprintf(made->reason, sizeof made->reason, "packed rows streamed once per touched expert; %s",
             made->prefill ? "wgmma above 64 tokens"
                           : "no many-token path for these scales or this intermediate size");
    *plan = made;
    return NIB_OK;
}

extern "C" const char *nib_moe_cuda_plan_kernel(const struct nib_moe_cuda_plan *)
{
    return "hopper-stream";
}

extern "C" const char *nib_moe_cuda_plan_reason(const struct nib_moe_cuda_plan *plan)
{
    return plan->reason;
}

extern "C" void nib_moe_cuda_plan_free(struct nib_moe_cuda_plan *plan)
{
    if (!plan)
        return;
    cudaFree(plan->device_memory);
    delete plan;
}

extern "C" float *nib_moe_cuda_own_outputs(const struct nib_moe_cuda_plan *plan, const struct nib_moe_call *call)
{
    return reinterpret_cast<float *>(static_cast<uint8_t *>(call->scratch) +
                                     lay_out(*plan, call->tokens, call->top_k).out);
}

extern "C" size_t nib_moe_cuda_scratch_bytes(const struct nib_moe_cuda_plan *plan, int64_t tokens, int64_t top_k)
{
    return lay_out(*plan, tokens, top_k).bytes;
}

extern "C" nib_status nib_moe_cuda_run(const struct nib_moe_cuda_plan *plan, const struct nib_moe_call *call,
                                       void *stream, int *launches, struct nib_error *err)
{
    int enqueued = 0;
    nib_status status = check_call(plan, call, err);
    bool prefill = plan->prefill && call->tokens > NIB_MOE_DECODE_TOKENS;
    int64_t most = prefill ? prefill_tokens(call->top_k) : NIB_MOE_DECODE_TOKENS;
    for (int64_t first = 0; status == NIB_OK && first < call->tokens; first += most) {
        int64_t count = call->tokens - first < most ? call->tokens - first : most;
        auto launch = prefill ? launch_prefill : launch_decode;
        cudaError_t error = launch(*plan, call, first, count, static_cast<cudaStream_t>(stream));
        if (error != cudaSuccess)
            status = fail_cuda(err, error, "launching the MoE kernels");
        enqueued += prefill ? NIB_MOE_PREFILL_LAUNCHES : 1;
    }
    if (launches)
        *launches = enqueued;
    return status;
}
