// attend: softmax attention over paged keys and values.
//
// A task is up to NIB_ATTEND_ROWS query rows (tokens times the heads of one kv head) of one sequence. The keys it sees are
// cut at fixed positions of the sequence, into ranges of NIB_ATTEND_RANGE and those into blocks of NIB_ATTEND_KEYS. A
// range is summed block by block from nothing; the ranges are then merged in order. So a row's bits do not depend on
// which other rows its task has, nor on whether the ranges are summed by one thread or by several.
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/error.h"
#include "cpu/cpu_device.h"

static const float log2_e = 1.44269504f;
static const float nothing_seen =
    -1e30f; // the running maximum before the first key; finite, so that differences are

// The parts of one thread's scratch; every pitch is in 32-bit elements.
struct workspace {
    float *queries, *scores;
    int32_t *visible;
    uint32_t *key_units, *value_units;
    float *range_out, *range_largest, *range_sum; // of the range at hand
    float *out, *largest, *sum;                   // of the ranges merged so far
};

struct attention {
    const struct nib_device *device;
    const struct nib_attend *attend;
    struct nib_buffer y, q;
    struct nib_cache keys, values;
    int64_t group;          // query heads of one kv head
    int64_t heads_per_task; // at most the group
    int64_t tokens_per_task;
    int64_t pieces; // tasks that share one run of tokens
    int64_t query_pitch, v_pitch;
};

struct task {
    int64_t sequence, first_token, n_tokens; // tokens are rows of the step
    int64_t first_head, n_heads, kv_head;
    int64_t lo, hi; // first and last position that any of its rows sees
};

static int64_t query_pitch_of(int64_t head_dim)
{
    return nib_round_up(head_dim + 1, 16);
}

static int64_t v_pitch_of(int64_t v_dim)
{
    return nib_round_up(v_dim, 64);
}

static int64_t carve(struct workspace *w, float *base, int64_t query_pitch, int64_t v_pitch, int64_t head_dim)
{
    const int64_t sizes[] = {
        NIB_ATTEND_ROWS * query_pitch,
        4 * NIB_ATTEND_KEYS,
        2 * NIB_ATTEND_ROWS,
        (head_dim + 1) / 2 * NIB_ATTEND_KEYS,
        NIB_ATTEND_KEYS / 2 * v_pitch,
        NIB_ATTEND_ROWS * v_pitch,
        NIB_ATTEND_ROWS,
        NIB_ATTEND_ROWS,
        NIB_ATTEND_ROWS * v_pitch,
        NIB_ATTEND_ROWS,
        NIB_ATTEND_ROWS,
    };
    int64_t at[12] = {0};
    for (int i = 0; i < 11; i++)
        at[i + 1] = at[i] + sizes[i];
    if (w)
        *w = (struct workspace){
            .queries = base,
            .scores = base + at[1],
            .visible = (int32_t *)(base + at[2]),
            .key_units = (uint32_t *)(base + at[3]),
            .value_units = (uint32_t *)(base + at[4]),
            .range_out = base + at[5],
            .range_largest = base + at[6],
            .range_sum = base + at[7],
            .out = base + at[8],
            .largest = base + at[9],
            .sum = base + at[10],
        };
    return at[11];
}

size_t nib_cpu_attend_scratch_bytes(const struct nib_scratch_query *query)
{
    int64_t dim = query->head_dim;
    return (size_t)carve(NULL, NULL, query_pitch_of(dim), v_pitch_of(dim), dim) * sizeof(float);
}

static int64_t tasks_of_sequence(const struct attention *a, int64_t sequence)
{
    const int32_t *first_row = a->device->step->first_row;
    int64_t tokens = first_row[sequence + 1] - first_row[sequence];
    return (tokens + a->tokens_per_task - 1) / a->tokens_per_task * a->pieces;
}

static struct task find_task(const struct attention *a, int64_t index)
{
    const struct nib_step *step = a->device->step;
    struct task task = {0};
    for (; index >= tasks_of_sequence(a, task.sequence); task.sequence++)
        index -= tasks_of_sequence(a, task.sequence);
    int64_t end = step->first_row[task.sequence + 1], piece = index % a->pieces;
    task.first_token = step->first_row[task.sequence] + index / a->pieces * a->tokens_per_task;
    task.n_tokens = end - task.first_token < a->tokens_per_task ? end - task.first_token : a->tokens_per_task;

    int64_t per_kv_head = a->pieces / a->attend->n_kv_heads;
    task.kv_head = piece / per_kv_head;
    int64_t head = piece % per_kv_head * a->heads_per_task;
    task.first_head = task.kv_head * a->group + head;
    task.n_heads = a->group - head < a->heads_per_task ? a->group - head : a->heads_per_task;

    int64_t first = step->positions[task.first_token], window = a->attend->window;
    task.lo = window && first >= window ? first - window + 1 : 0;
    task.hi = first + task.n_tokens - 1;
    return task;
}

static int64_t first_range(const struct task *task)
{
    return task->lo / NIB_ATTEND_RANGE;
}

static int64_t count_ranges(const struct task *task)
{
    return task->hi / NIB_ATTEND_RANGE - first_range(task) + 1;
}

static void pack_queries(const struct attention *a, const struct task *task, struct workspace *w)
{
    float *out = w->queries;
    for (int64_t t = 0; t < task->n_tokens; t++)
        for (int64_t h = 0; h < task->n_heads; h++, out += a->query_pitch)
            a->device->kernels->pack_query(nib_buffer_row(a->q, task->first_token + t) +
                                               (task->first_head + h) * a->attend->head_dim,
                                           a->attend->head_dim, out);
}

// Where the block's keys and values lie, and a hint to the memory system to bring them. Keys before the first that
// anyone sees may be freed: they get the first one's rows, which the mask hides.
static int64_t find_block(const struct attention *a, const struct task *task, int64_t start, const uint16_t **keys,
                          const uint16_t **values)
{
    const struct nib_attend *attend = a->attend;
    int64_t n_keys = task->hi - start + 1 < NIB_ATTEND_KEYS ? task->hi - start + 1 : NIB_ATTEND_KEYS;
    for (int64_t i = 0; i < n_keys; i++) {
        int64_t position = start + i > task->lo ? start + i : task->lo;
        keys[i] =
            nib_cached_row(a->device->step, a->keys, task->sequence, position) + task->kv_head * attend->head_dim;
        values[i] =
            nib_cached_row(a->device->step, a->values, task->sequence, position) + task->kv_head * attend->v_dim;
        for (int64_t d = 0; d < attend->head_dim; d += 32)
            __builtin_prefetch(keys[i] + d);
        for (int64_t d = 0; d < attend->v_dim; d += 32)
            __builtin_prefetch(values[i] + d);
    }
    return n_keys;
}

static void set_visible(const struct attention *a, const struct task *task, int64_t start, int64_t n_keys,
                        int32_t *visible)
{
    for (int64_t t = 0; t < task->n_tokens; t++) {
        int64_t last = a->device->step->positions[task->first_token + t], window = a->attend->window;
        int64_t first = window && last >= window ? last - window + 1 : 0;
        last = last - start < n_keys - 1 ? last - start : n_keys - 1;
        first = first > start ? first - start : 0;
        for (int64_t h = 0; h < task->n_heads; h++, visible += 2) {
            visible[0] = (int32_t)(first < NIB_ATTEND_KEYS ? first : NIB_ATTEND_KEYS);
            visible[1] = (int32_t)(last >= 0 ? last : -1);
        }
    }
}

// Sums the task's rows over one range into range_out, range_largest and range_sum.
static void sum_range(const struct attention *a, const struct task *task, int64_t range, struct workspace *w)
{
    const uint16_t *keys[2][NIB_ATTEND_KEYS], *values[2][NIB_ATTEND_KEYS];
    int64_t n_rows = task->n_tokens * task->n_heads, start = range * NIB_ATTEND_RANGE;
    int64_t end = task->hi + 1 < start + NIB_ATTEND_RANGE ? task->hi + 1 : start + NIB_ATTEND_RANGE;
    if (start < task->lo)
        start = task->lo / NIB_ATTEND_KEYS * NIB_ATTEND_KEYS;
    memset(w->range_out, 0, (size_t)(n_rows * a->v_pitch) * sizeof(float));
    for (int64_t r = 0; r < n_rows; r++) {
        w->range_largest[r] = nothing_seen;
        w->range_sum[r] = 0;
    }
    int side = 0;
    int64_t n_keys = find_block(a, task, start, keys[side], values[side]), n_next = 0;
    for (; start < end; start += NIB_ATTEND_KEYS, side = !side, n_keys = n_next) {
        if (start + NIB_ATTEND_KEYS < end)
            n_next = find_block(a, task, start + NIB_ATTEND_KEYS, keys[!side], values[!side]);
        set_visible(a, task, start, n_keys, w->visible);
        a->device->kernels->attend_block(&(struct nib_attend_block){
            .keys = keys[side],
            .values = values[side],
            .n_keys = n_keys,
            .head_dim = a->attend->head_dim,
            .v_dim = a->attend->v_dim,
            .n_rows = n_rows,
            .queries = w->queries,
            .query_pitch = a->query_pitch,
            .visible = w->visible,
            .scale = a->attend->scale * log2_e,
            .largest = w->range_largest,
            .sum = w->range_sum,
            .out = w->range_out,
            .v_pitch = a->v_pitch,
            .key_units = w->key_units,
            .value_units = w->value_units,
            .scores = w->scores,
        });
    }
}

static void start_merge(const struct attention *a, const struct task *task, struct workspace *w)
{
    int64_t n_rows = task->n_tokens * task->n_heads;
    memset(w->out, 0, (size_t)(n_rows * a->v_pitch) * sizeof(float));
    for (int64_t r = 0; r < n_rows; r++) {
        const struct nib_weight *sinks = a->attend->sinks;
        w->largest[r] =
            sinks ? nib_weight_element(sinks, task->first_head + r % task->n_heads) * log2_e : nothing_seen;
        w->sum[r] = sinks ? 1.0f : 0.0f;
    }
}

static void merge_row(const struct attention *a, struct workspace *w, int64_t row,
                      const float *out /* [v_pitch] */, float largest, float sum)
{
    float joint = largest > w->largest[row] ? largest : w->largest[row];
    float before = exp2f(w->largest[row] - joint), here = exp2f(largest - joint);
    float *total = w->out + row * a->v_pitch;
    for (int64_t d = 0; d < a->v_pitch; d++)
        total[d] = total[d] * before + out[d] * here;
    w->sum[row] = w->sum[row] * before + sum * here;
    w->largest[row] = joint;
}

static void write_rows(const struct attention *a, const struct task *task, const struct workspace *w)
{
    int64_t v_dim = a->attend->v_dim;
    for (int64_t r = 0; r < task->n_tokens * task->n_heads; r++) {
        float *y = nib_buffer_row(a->y, task->first_token + r / task->n_heads) +
                   (task->first_head + r % task->n_heads) * v_dim;
        for (int64_t d = 0; d < v_dim; d++)
            y[d] = w->out[r * a->v_pitch + d] / w->sum[r];
    }
}

static void run_task(const struct attention *a, int64_t index, struct workspace *w)
{
    struct task task = find_task(a, index);
    pack_queries(a, &task, w);
    start_merge(a, &task, w);
    for (int64_t i = 0; i < count_ranges(&task); i++) {
        sum_range(a, &task, first_range(&task) + i, w);
        for (int64_t r = 0; r < task.n_tokens * task.n_heads; r++)
            merge_row(a, w, r, w->range_out + r * a->v_pitch, w->range_largest[r], w->range_sum[r]);
    }
    write_rows(a, &task, w);
}

// Long contexts with fewer tasks than threads can share: each range is a piece of work, kept in device->partials from
// `row` on, and the tasks are finished when all are there.
static void run_one_range(const struct attention *a, int64_t index, struct workspace *w)
{
    int64_t row = 0, task_index = 0;
    struct task task = find_task(a, 0);
    while (index >= count_ranges(&task)) {
        index -= count_ranges(&task);
        row += count_ranges(&task) * task.n_tokens * task.n_heads;
        task = find_task(a, ++task_index);
    }
    int64_t n_rows = task.n_tokens * task.n_heads, pitch = a->device->partial_pitch;
    pack_queries(a, &task, w);
    sum_range(a, &task, first_range(&task) + index, w);
    float *out = a->device->partials + (row + index * n_rows) * pitch;
    for (int64_t r = 0; r < n_rows; r++, out += pitch) {
        memcpy(out, w->range_out + r * a->v_pitch, (size_t)a->v_pitch * sizeof *out);
        out[a->v_pitch] = w->range_largest[r];
        out[a->v_pitch + 1] = w->range_sum[r];
    }
}

static void finish_task(const struct attention *a, int64_t index, struct workspace *w)
{
    int64_t row = 0, pitch = a->device->partial_pitch;
    struct task task = find_task(a, 0);
    for (int64_t i = 1; i <= index; i++) {
        row += count_ranges(&task) * task.n_tokens * task.n_heads;
        task = find_task(a, i);
    }
    int64_t n_rows = task.n_tokens * task.n_heads;
    start_merge(a, &task, w);
    for (int64_t i = 0; i < count_ranges(&task); i++)
        for (int64_t r = 0; r < n_rows; r++) {
            const float *part = a->device->partials + (row + i * n_rows + r) * pitch;
            merge_row(a, w, r, part, part[a->v_pitch], part[a->v_pitch + 1]);
        }
    write_rows(a, &task, w);
}

// How many ranges all tasks have together when sharing them is worth it and fits, else 0.
static int64_t ranges_to_share(const struct attention *a, int64_t n_tasks)
{
    int64_t ranges = 0, rows = 0;
    if (a->device->options.threads == 1 || n_tasks >= 4 * a->device->options.threads)
        return 0;
    for (int64_t i = 0; i < n_tasks; i++) {
        struct task task = find_task(a, i);
        ranges += count_ranges(&task);
        rows += count_ranges(&task) * task.n_tokens * task.n_heads;
    }
    return ranges > n_tasks && rows <= a->device->partial_rows ? ranges : 0;
}

static void share_tasks(const struct attention *a, int64_t n_tasks, int64_t ranges, int threads)
{
#pragma omp parallel num_threads(threads)
    {
        struct workspace w;
        size_t offset = (size_t)omp_get_thread_num() * a->device->attend_scratch_bytes;
        char *scratch = (char *)a->device->attend_scratch + offset;
        carve(&w, (float *)(void *)scratch, a->query_pitch, a->v_pitch, a->attend->head_dim);
        if (ranges) {
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < ranges; i++)
                run_one_range(a, i, &w);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < n_tasks; i++)
                finish_task(a, i, &w);
        } else {
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < n_tasks; i++)
                run_task(a, i, &w);
        }
    }
}

void nib_cpu_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                    struct nib_cache values, const struct nib_attend *attend)
{
    int64_t dim = attend->head_dim > attend->v_dim ? attend->head_dim : attend->v_dim, work = 0, n_tasks = 0;
    if (device->error.status)
        return;
    if (dim > device->limits.head_dim) {
        nib_fail(&device->error, NIB_ERR_LIMIT, "attention heads of %lld in a device opened for %lld",
                 (long long)dim, (long long)device->limits.head_dim);
        return;
    }
    int64_t group = attend->n_heads / attend->n_kv_heads;
    int64_t heads = group < NIB_ATTEND_ROWS ? group : NIB_ATTEND_ROWS;
    struct attention a = {
        .device = device,
        .attend = attend,
        .y = y,
        .q = q,
        .keys = keys,
        .values = values,
        .group = group,
        .heads_per_task = heads,
        .tokens_per_task = NIB_ATTEND_ROWS / heads,
        .pieces = attend->n_kv_heads * ((group + heads - 1) / heads),
        .query_pitch = query_pitch_of(attend->head_dim),
        .v_pitch = v_pitch_of(attend->v_dim),
    };
    for (int64_t s = 0; s < device->step->n_sequences; s++)
        n_tasks += tasks_of_sequence(&a, s);
    for (int64_t t = 0; t < device->step->n_tokens; t++)
        work += (device->step->positions[t] + 1) * attend->n_heads * attend->head_dim;
    share_tasks(&a, n_tasks, ranges_to_share(&a, n_tasks), nib_cpu_threads(device, work));
}
