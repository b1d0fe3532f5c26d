// A call of a tier: two parallel regions, in each of which the threads take pieces of work off a counter until
// none is left, so that all of them stream weights to the end. A piece is a run of blocks of 16 rows; which thread does it
// and how long it is changes no bit of the result.
#include <stdatomic.h>
#include <string.h>

#include "cpu/moe_packed.h"

#define TOKEN_GROUP 64           // activation rows that stay in L2 while a piece's weights go by
#define PIECE_BYTES (256 * 1024) // packed weights of one expert in a piece, about
#define PIECES_PER_THREAD 16     // at least, so that no thread waits long for the last one
#define AHEAD_BYTES (16 * 1024)  // how far ahead weights are prefetched, at least
#define ROW_PAD 64               // bytes behind an arranged row

// Rounding the intermediate to bf16 costs 1.5e-3 to 1.7e-3 of the result when many elements share the error. In a short row
// a few large elements can make it more, and there a second bf16 with the rest of each element costs next to nothing.
#define SHORT_INTERMEDIATE 512

struct run {
    const struct nib_moe_plan *plan;
    const struct nib_moe_tier *tier;
    const struct nib_moe_call *call;
    struct nib_moe_groups groups;
    // Arranged: x, one row a token, or with tier->rows_in_order one a route; the intermediate, [n_routes, h_parts].
    uint8_t *x_rows, *h_rows;
    size_t x_row_bytes, h_row_bytes;
    int h_parts; // rows of the intermediate for one route: 1, or 2 with the rest of the rounding
    float *sums; /* [T, K] y in fp32: the caller's own y when that is fp32; NULL when no y is wanted */
};

// What one of the two products works through: blocks of rows, cut into pieces.
struct work {
    int64_t blocks; // of one expert
    int64_t piece;  // blocks in one piece
    int64_t pieces; // of one expert
    int64_t total;  // pieces there are to take
    int64_t ahead;  // blocks to prefetch ahead
    atomic_llong next;
};

static size_t align_up(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

// From one arranged row to the next: an odd number of cache lines, or the rows of a multiply would meet in a few sets.
static size_t arranged_bytes(const struct nib_moe_tier *tier, int64_t n)
{
    return (size_t)((n + NIB_MOE_CHUNK - 1) / NIB_MOE_CHUNK * NIB_MOE_CHUNK) * tier->element_bytes + ROW_PAD;
}

static int64_t x_row_count(const struct nib_moe_tier *tier, int64_t tokens, int64_t top_k)
{
    return tier->rows_in_order ? tokens * top_k : tokens;
}

static const struct nib_moe_tier *tier_of(const struct nib_moe_plan *plan)
{
    return (const struct nib_moe_tier *)plan->kernel; // which is its first member
}

static int intermediate_parts(const struct nib_moe_plan *plan)
{
    return tier_of(plan)->element_bytes == 2 && plan->weights.intermediate <= SHORT_INTERMEDIATE ? 2 : 1;
}

size_t nib_moe_packed_scratch_bytes(const struct nib_moe_plan *plan, int64_t tokens, int64_t top_k, int threads)
{
    (void)threads;
    const struct nib_moe_weights *w = &plan->weights;
    const struct nib_moe_tier *tier = tier_of(plan);
    return align_up(nib_moe_groups_bytes(w->n_experts, tokens * top_k)) +
           (size_t)x_row_count(tier, tokens, top_k) * arranged_bytes(tier, w->hidden) +
           (size_t)(tokens * top_k * intermediate_parts(plan)) * arranged_bytes(tier, w->intermediate) +
           align_up((size_t)(tokens * w->hidden) * sizeof(float));
}

static struct run carve_scratch(const struct nib_moe_plan *plan, const struct nib_moe_call *call)
{
    const struct nib_moe_weights *w = &plan->weights;
    struct run run = {.plan = plan, .tier = tier_of(plan), .call = call};
    int64_t routes = call->tokens * call->top_k;
    run.x_row_bytes = arranged_bytes(run.tier, w->hidden);
    run.h_row_bytes = arranged_bytes(run.tier, w->intermediate);
    run.h_parts = intermediate_parts(plan);

    uint8_t *memory = call->scratch;
    int32_t *group_memory = call->scratch;
    memory += align_up(nib_moe_groups_bytes(w->n_experts, routes));
    run.x_rows = memory;
    memory += (size_t)x_row_count(run.tier, call->tokens, call->top_k) * run.x_row_bytes;
    run.h_rows = memory;
    memory += (size_t)(routes * run.h_parts) * run.h_row_bytes;
    if (call->y)
        run.sums = call->y_dtype == NIB_F32 ? call->y : (float *)(void *)memory;
    nib_moe_group_routes(call->expert_ids, routes, plan->first_expert, w->n_experts, group_memory, &run.groups);
    return run;
}

// `experts_apart` is how many experts have pieces of their own.
static void plan_work(struct work *work, int64_t rows, int64_t columns, int64_t experts_apart, int threads)
{
    int64_t block_bytes = NIB_MOE_ROWS * columns / 2;
    work->blocks = rows / NIB_MOE_ROWS;
    work->ahead = (AHEAD_BYTES + block_bytes - 1) / block_bytes;
    int64_t piece = PIECE_BYTES / block_bytes;
    if (threads > 1) {
        int64_t fair = work->blocks * experts_apart / ((int64_t)threads * PIECES_PER_THREAD);
        piece = piece < fair ? piece : fair;
    }
    work->piece = piece < 1 ? 1 : piece > work->blocks ? work->blocks : piece;
    work->pieces = (work->blocks + work->piece - 1) / work->piece;
    work->total = work->pieces * experts_apart;
    atomic_init(&work->next, 0);
}

static int64_t take_piece(struct work *work)
{
    return atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
}

static int64_t piece_start(const struct work *work, int64_t piece)
{
    return piece % work->pieces * work->piece;
}

static int64_t piece_end(const struct work *work, int64_t piece)
{
    int64_t end = piece_start(work, piece) + work->piece;
    return end < work->blocks ? end : work->blocks;
}

static const struct nib_expert *group_expert(const struct run *run, int64_t group)
{
    return &run->plan->weights.experts[run->groups.expert[group]];
}

// 8 gate rows and their up rows.
static struct nib_moe_block gate_up_block(const struct run *run, int64_t group, int64_t index)
{
    const struct nib_moe_weights *w = &run->plan->weights;
    const struct nib_expert *e = group_expert(run, group);
    int64_t packed_stride = w->gate_up_row_stride * (w->hidden / 2);
    int64_t scales_stride = w->gate_up_row_stride * (w->hidden / NIB_MX_BLOCK);
    return (struct nib_moe_block){
        .packed = {e->gate + index * 8 * packed_stride, e->up + index * 8 * packed_stride},
        .scales = {e->gate_scales + index * 8 * scales_stride, e->up_scales + index * 8 * scales_stride},
        .packed_stride = packed_stride,
        .scales_stride = scales_stride,
    };
}

static struct nib_moe_block down_block(const struct run *run, int64_t group, int64_t index)
{
    const struct nib_moe_weights *w = &run->plan->weights;
    const struct nib_expert *e = group_expert(run, group);
    int64_t packed_stride = w->intermediate / 2, scales_stride = w->intermediate / NIB_MX_BLOCK;
    const uint8_t *packed = e->down + index * NIB_MOE_ROWS * packed_stride;
    const uint8_t *scales = e->down_scales + index * NIB_MOE_ROWS * scales_stride;
    return (struct nib_moe_block){
        .packed = {packed, packed + 8 * packed_stride},
        .scales = {scales, scales + 8 * scales_stride},
        .packed_stride = packed_stride,
        .scales_stride = scales_stride,
    };
}

// `n` biases, `step` elements apart. Asked for each element, the type would cost 3 % of a call with one token.
static void read_biases(const void *bias, enum nib_dtype dtype, int64_t first, int64_t step, int n,
                        float *out /* [n] */)
{
    if (dtype == NIB_BF16) {
        for (int i = 0; i < n; i++)
            out[i] = nib_float_at(bias, NIB_BF16, first + i * step);
    } else {
        for (int i = 0; i < n; i++)
            out[i] = nib_float_at(bias, dtype, first + i * step);
    }
}

// Activation rows of a multiply: `n` of them are spread evenly over as few multiplies as will do.
static int tile_tokens(int64_t n, int most)
{
    int64_t tiles = (n + most - 1) / most;
    return (int)((n + tiles - 1) / tiles);
}

// Of route s, in the order of the groups.
static uint8_t *x_row(const struct run *run, int64_t s)
{
    int64_t row = run->tier->rows_in_order ? s : run->groups.order[s] / run->call->top_k;
    return run->x_rows + (size_t)row * run->x_row_bytes;
}

static void gate_up_routes(const struct run *run, int64_t group, int64_t index, int64_t first, int64_t end,
                           const struct nib_moe_block *ahead)
{
    const struct nib_moe_weights *w = &run->plan->weights;
    const struct nib_expert *e = group_expert(run, group);
    struct nib_moe_block block = gate_up_block(run, group, index);
    float out[NIB_MOE_TOKENS * NIB_MOE_ROWS];
    const void *x[NIB_MOE_TOKENS];
    float bias[NIB_MOE_ROWS] = {0};
    if (e->gate_bias) {
        int64_t step = w->gate_up_row_stride, row = index * 8 * step;
        read_biases(e->gate_bias, w->bias_dtype, row, step, 8, bias);
        read_biases(e->up_bias, w->bias_dtype, row, step, 8, bias + 8);
    }
    int tile = tile_tokens(end - first, run->tier->max_tokens);
    for (int64_t s = first; s < end; s += tile) {
        int m = (int)(end - s < tile ? end - s : tile);
        for (int t = 0; t < m; t++)
            x[t] = x_row(run, s + t);
        run->tier->multiply(&block, ahead, w->hidden, x, m, out);
        ahead = NULL;
        for (int t = 0; t < m; t++) {
            float *gate_up = out + t * NIB_MOE_ROWS;
            for (int i = 0; i < NIB_MOE_ROWS; i++)
                gate_up[i] += bias[i];
            uint8_t *h = run->h_rows + (size_t)((s + t) * run->h_parts) * run->h_row_bytes;
            run->tier->activate(&run->plan->activation, gate_up, index * 8, h,
                                run->h_parts == 2 ? h + run->h_row_bytes : NULL);
        }
    }
}

// The block that is `work->ahead` blocks behind block b of the piece, in it or in the thread's next one; false if none is.
static bool gate_up_ahead(const struct run *run, const struct work *work, int64_t piece, int64_t next_piece,
                          int64_t b, struct nib_moe_block *ahead)
{
    int64_t target = b + work->ahead, beyond = target - piece_end(work, piece);
    if (beyond >= 0) {
        if (next_piece >= work->total)
            return false;
        piece = next_piece;
        target = piece_start(work, piece) + beyond;
        if (target >= piece_end(work, piece))
            return false;
    }
    *ahead = gate_up_block(run, piece / work->pieces, target);
    return true;
}

static void gate_up_piece(const struct run *run, const struct work *work, int64_t piece, int64_t next_piece)
{
    int64_t group = piece / work->pieces, end = piece_end(work, piece);
    int64_t first = run->groups.first[group], last = run->groups.first[group + 1];
    for (int64_t s = first; s < last; s += TOKEN_GROUP) {
        int64_t s_end = s + TOKEN_GROUP < last ? s + TOKEN_GROUP : last;
        for (int64_t b = piece_start(work, piece); b < end; b++) {
            struct nib_moe_block ahead;
            bool prefetch = s == first && gate_up_ahead(run, work, piece, next_piece, b, &ahead);
            gate_up_routes(run, group, b, s, s_end, prefetch ? &ahead : NULL);
        }
    }
}

static void down_routes(const struct run *run, int64_t group, int64_t index, int64_t first, int64_t end,
                        const struct nib_moe_block *ahead)
{
    const struct nib_moe_weights *w = &run->plan->weights;
    const struct nib_moe_call *call = run->call;
    const struct nib_expert *e = group_expert(run, group);
    struct nib_moe_block block = down_block(run, group, index);
    int64_t row = index * NIB_MOE_ROWS;
    float out[NIB_MOE_TOKENS * NIB_MOE_ROWS];
    const void *h[NIB_MOE_TOKENS];
    float bias[NIB_MOE_ROWS] = {0};
    if (e->down_bias)
        read_biases(e->down_bias, w->bias_dtype, row, 1, NIB_MOE_ROWS, bias);
    int parts = run->h_parts, tile = tile_tokens(end - first, run->tier->max_tokens / parts);
    for (int64_t s = first; s < end; s += tile) {
        int m = (int)(end - s < tile ? end - s : tile);
        for (int t = 0; t < m * parts; t++)
            h[t] = run->h_rows + (size_t)(s * parts + t) * run->h_row_bytes;
        run->tier->multiply(&block, ahead, w->intermediate, h, m * parts, out);
        ahead = NULL;
        for (int t = 0; t < m; t++) {
            int64_t route = run->groups.order[s + t];
            float *value = out + t * parts * NIB_MOE_ROWS;
            for (int i = 0; i < NIB_MOE_ROWS; i++)
                value[i] = value[i] + (parts == 2 ? value[NIB_MOE_ROWS + i] : 0.0f) + bias[i];
            if (call->y_per_route)
                memcpy(call->y_per_route + route * w->hidden + row, value, NIB_MOE_ROWS * sizeof *value);
            if (run->sums) {
                float weight = call->routing_weights[route];
                float *sum = run->sums + route / call->top_k * w->hidden + row;
                for (int i = 0; i < NIB_MOE_ROWS; i++)
                    sum[i] += weight * value[i];
            }
        }
    }
}

// Rows [row, row + rows) of everything the call writes start as zero, so that tokens and routes without a local expert are.
static void clear_rows(const struct run *run, int64_t row, int64_t rows)
{
    const struct nib_moe_call *call = run->call;
    int64_t hidden = run->plan->weights.hidden;
    size_t bytes = (size_t)rows * sizeof(float);
    if (run->sums)
        for (int64_t t = 0; t < call->tokens; t++)
            memset(run->sums + t * hidden + row, 0, bytes);
    if (call->y_per_route && run->groups.n_routes < call->tokens * call->top_k)
        for (int64_t r = 0; r < call->tokens * call->top_k; r++)
            memset(call->y_per_route + r * hidden + row, 0, bytes);
}

static void round_rows(const struct run *run, int64_t row, int64_t rows)
{
    int64_t hidden = run->plan->weights.hidden;
    for (int64_t t = 0; t < run->call->tokens; t++) {
        const float *sum = run->sums + t * hidden + row;
        uint16_t *y = (uint16_t *)run->call->y + t * hidden + row;
        for (int64_t i = 0; i < rows; i++)
            y[i] = nib_bf16_from_f32(sum[i]);
    }
}

// As gate_up_ahead; here a piece is its blocks of the first group, then those of the second, and so on.
static bool down_ahead(const struct run *run, const struct work *work, int64_t piece, int64_t next_piece,
                       int64_t group, int64_t b, struct nib_moe_block *ahead)
{
    int64_t start = piece_start(work, piece), length = piece_end(work, piece) - start;
    int64_t position = group * length + b - start + work->ahead, beyond = position - run->groups.n_groups * length;
    if (beyond >= 0) {
        if (next_piece >= work->total)
            return false;
        start = piece_start(work, next_piece);
        length = piece_end(work, next_piece) - start;
        position = beyond;
        if (position >= run->groups.n_groups * length)
            return false;
    }
    *ahead = down_block(run, position / length, start + position % length);
    return true;
}

// The piece's output rows, of all experts: nobody else adds to them, and a token's routes are added in the order of their
// experts.
static void down_piece(const struct run *run, const struct work *work, int64_t piece, int64_t next_piece)
{
    int64_t start = piece_start(work, piece), end = piece_end(work, piece);
    int64_t row = start * NIB_MOE_ROWS, rows = (end - start) * NIB_MOE_ROWS;
    clear_rows(run, row, rows);
    for (int64_t group = 0; group < run->groups.n_groups; group++) {
        int64_t first = run->groups.first[group], last = run->groups.first[group + 1];
        for (int64_t s = first; s < last; s += TOKEN_GROUP) {
            int64_t s_end = s + TOKEN_GROUP < last ? s + TOKEN_GROUP : last;
            for (int64_t b = start; b < end; b++) {
                struct nib_moe_block ahead;
                bool prefetch = s == first && down_ahead(run, work, piece, next_piece, group, b, &ahead);
                down_routes(run, group, b, s, s_end, prefetch ? &ahead : NULL);
            }
        }
    }
    if (run->call->y && run->call->y_dtype == NIB_BF16)
        round_rows(run, row, rows);
}

static void arrange_row(const struct run *run, int64_t row)
{
    int64_t hidden = run->plan->weights.hidden;
    int64_t token = run->tier->rows_in_order ? run->groups.order[row] / run->call->top_k : row;
    void *arranged = run->x_rows + (size_t)row * run->x_row_bytes;
    if (run->call->x_dtype == NIB_F32)
        run->tier->arrange_f32((const float *)run->call->x + token * hidden, hidden, arranged);
    else
        run->tier->arrange((const uint16_t *)run->call->x + token * hidden, hidden, arranged);
}

// The last chunk of an intermediate row that does not fill it is read whole.
static void clear_h_tail(const struct run *run, int64_t row)
{
    size_t chunk = NIB_MOE_CHUNK * run->tier->element_bytes;
    memset(run->h_rows + (size_t)(row + 1) * run->h_row_bytes - ROW_PAD - chunk, 0, chunk);
}

void nib_moe_packed_run(const struct nib_moe_plan *plan, const struct nib_moe_call *call)
{
    const struct nib_moe_weights *w = &plan->weights;
    struct run run = carve_scratch(plan, call);
    struct work gate_up, down;
    plan_work(&gate_up, 2 * w->intermediate, w->hidden, run.groups.n_groups, call->threads);
    plan_work(&down, w->hidden, w->intermediate, 1, call->threads);
    bool odd = w->intermediate % NIB_MOE_CHUNK != 0;
    int64_t x_rows = run.tier->rows_in_order ? run.groups.n_routes : call->tokens;

#pragma omp parallel num_threads(call->threads)
    {
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < (odd ? run.groups.n_routes * run.h_parts : 0); r++)
            clear_h_tail(&run, r);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < x_rows; row++)
            arrange_row(&run, row);
        int64_t piece = take_piece(&gate_up);
        while (piece < gate_up.total) {
            int64_t next = take_piece(&gate_up);
            gate_up_piece(&run, &gate_up, piece, next);
            piece = next;
        }
    }
#pragma omp parallel num_threads(call->threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < (run.tier->finish ? run.groups.n_routes : 0); r++)
            run.tier->finish(w->intermediate, run.h_rows + (size_t)r * run.h_row_bytes);
        int64_t piece = take_piece(&down);
        while (piece < down.total) {
            int64_t next = take_piece(&down);
            down_piece(&run, &down, piece, next);
            piece = next;
        }
    }
}
