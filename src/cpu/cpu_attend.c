// attend: softmax attention over paged keys and values.
//
// A range of keys is summed block by block from nothing; the ranges are then merged in order. So a row's bits do not
// depend on which other rows its task has, nor on whether the ranges are summed by one thread or by several.
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/error.h"
#include "cpu/attend_plan.h"
#include "cpu/cpu_device.h"

static const float log2_e = 1.44269504f;
static const float nothing_seen = -1e30f; // a maximum before the first key: finite, so that differences are too

// Rows in the middle of being summed.
struct sums {
    float *out;     /* [NIB_ATTEND_ROWS, v_pitch] */
    float *largest; /* [NIB_ATTEND_ROWS] in units of log2 */
    float *sum;     /* [NIB_ATTEND_ROWS] */
};

// The parts of one thread's scratch.
struct workspace {
    float *queries, *scores;
    int32_t *visible;
    uint32_t *key_units, *value_units;
    struct sums range, total; // of the range at hand, and of the ranges merged so far
};

struct attention {
    const struct nib_device *device;
    const struct nib_cpu_device *cpu; // the same
    struct nib_attend_plan plan;
    const struct nib_attend *attend;
    struct nib_buffer y, q;
    struct nib_cache keys, values;
    int64_t query_pitch, v_pitch; // floats
};

static int64_t query_pitch_of(int64_t head_dim)
{
    return nib_round_up(head_dim + 1, 16);
}

static int64_t v_pitch_of(int64_t v_dim)
{
    return nib_round_up(v_dim, 64);
}

// Lays the workspace out from `base` on and returns how many floats it takes.
static int64_t carve(struct workspace *w, float *base, int64_t head_dim, int64_t v_dim, int parts)
{
    const int64_t sizes[] = {
        NIB_ATTEND_ROWS * query_pitch_of(head_dim),
        4 * NIB_ATTEND_KEYS,
        2 * NIB_ATTEND_ROWS,
        parts * ((head_dim + 1) / 2) * NIB_ATTEND_KEYS,
        parts * (NIB_ATTEND_KEYS / 2) * v_pitch_of(v_dim),
        NIB_ATTEND_ROWS * v_pitch_of(v_dim),
        NIB_ATTEND_ROWS,
        NIB_ATTEND_ROWS,
        NIB_ATTEND_ROWS * v_pitch_of(v_dim),
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
            .range = {base + at[5], base + at[6], base + at[7]},
            .total = {base + at[8], base + at[9], base + at[10]},
        };
    return at[11];
}

size_t nib_cpu_attend_scratch_bytes(const struct nib_scratch_query *query, int cache_parts)
{
    return (size_t)carve(NULL, NULL, query->head_dim, query->head_dim, cache_parts) * sizeof(float);
}

static void pack_queries(const struct attention *a, const struct nib_attend_task *task, struct workspace *w)
{
    for (int64_t r = 0; r < nib_attend_rows(task); r++) {
        struct nib_attend_row row = nib_attend_row_of(&a->plan, task, r);
        a->cpu->kernels->pack_query(nib_buffer_row(a->q, row.token) + row.head * a->attend->head_dim,
                                    a->attend->head_dim, w->queries + r * a->query_pitch);
    }
}

// A block's cached rows, from the first column of the task's first kv head on.
struct block_rows {
    int64_t n_keys;
    const uint16_t *keys[NIB_ATTEND_KEYS], *values[NIB_ATTEND_KEYS];
};

// Keys before the first that anyone sees may be freed: they get the first one's row, which the mask hides.
static void find_rows(const struct attention *a, const struct nib_attend_task *task, struct nib_cache cache,
                      int64_t start, int64_t n_keys, int64_t column, const uint16_t **rows)
{
    int64_t page_tokens = a->device->step->page_tokens, hidden = task->lo > start ? task->lo - start : 0;
    for (int64_t i = hidden; i < n_keys;) {
        const uint16_t *row = nib_cached_row(a->device, cache, task->sequence, start + i) + column;
        int64_t end = i + page_tokens - ((start + i) & (page_tokens - 1));
        for (end = end < n_keys ? end : n_keys; i < end; i++, row += cache.width * a->cpu->cache_parts)
            rows[i] = row;
    }
    for (int64_t i = 0; i < hidden; i++)
        rows[i] = rows[hidden];
}

static void find_block(const struct attention *a, const struct nib_attend_task *task, int64_t start,
                       struct block_rows *block)
{
    int64_t left = task->hi - start + 1;
    block->n_keys = left < NIB_ATTEND_KEYS ? left : NIB_ATTEND_KEYS;
    find_rows(a, task, a->keys, start, block->n_keys, task->first_kv * a->attend->head_dim, block->keys);
    find_rows(a, task, a->values, start, block->n_keys, task->first_kv * a->attend->v_dim, block->values);
}

// One of `parts` parts of a block's memory.
static struct nib_attend_hints make_hints(const struct attention *a, const struct nib_attend_task *task,
                                          const struct block_rows *block, int64_t part, int64_t parts)
{
    int64_t first = block->n_keys * part / parts, n = block->n_keys * (part + 1) / parts - first;
    int64_t key_columns = task->n_kv * a->attend->head_dim, value_columns = task->n_kv * a->attend->v_dim;
    return (struct nib_attend_hints){
        .runs = {{block->keys + first, n, key_columns}, {block->values + first, n, value_columns}},
        .lines = n * (nib_round_up(key_columns, 32) + nib_round_up(value_columns, 32)) / 32,
        .run = n ? 0 : 2,
    };
}

// What each row of one kv head sees of the block; the same for every kv head.
static void set_visible(const struct attention *a, const struct nib_attend_task *task, int64_t start,
                        int64_t n_keys, int32_t *visible)
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

static void sum_block(const struct attention *a, const struct nib_attend_task *task, const struct block_rows *rows,
                      int64_t kv, struct nib_attend_hints *hints, struct workspace *w)
{
    int64_t first = kv * nib_attend_rows_of_kv(task);
    a->cpu->kernels->attend_block(&(struct nib_attend_block){
        .keys = rows->keys,
        .values = rows->values,
        .first_key_column = kv * a->attend->head_dim,
        .first_value_column = kv * a->attend->v_dim,
        .parts = a->cpu->cache_parts,
        .key_part_columns = a->keys.width,
        .value_part_columns = a->values.width,
        .n_keys = rows->n_keys,
        .head_dim = a->attend->head_dim,
        .v_dim = a->attend->v_dim,
        .n_rows = nib_attend_rows_of_kv(task),
        .queries = w->queries + first * a->query_pitch,
        .query_pitch = a->query_pitch,
        .visible = w->visible,
        .scale = a->attend->scale * log2_e,
        .largest = w->range.largest + first,
        .sum = w->range.sum + first,
        .out = w->range.out + first * a->v_pitch,
        .v_pitch = a->v_pitch,
        .key_units = w->key_units,
        .value_units = w->value_units,
        .scores = w->scores,
        .hints = hints,
    });
}

// Sums the task's rows over one range into w->range.
static void sum_range(const struct attention *a, const struct nib_attend_task *task, int64_t range,
                      struct workspace *w)
{
    int64_t n_rows = nib_attend_rows(task), start = range * NIB_ATTEND_RANGE, end = start + NIB_ATTEND_RANGE;
    memset(w->range.out, 0, (size_t)(n_rows * a->v_pitch) * sizeof(float));
    for (int64_t r = 0; r < n_rows; r++) {
        w->range.largest[r] = nothing_seen;
        w->range.sum[r] = 0;
    }
    if (end > task->hi + 1)
        end = task->hi + 1;
    if (start < task->lo)
        start = task->lo / NIB_ATTEND_KEYS * NIB_ATTEND_KEYS;
    struct block_rows rows, next = {0};
    for (find_block(a, task, start, &next); start < end; start += NIB_ATTEND_KEYS) {
        rows = next;
        next.n_keys = 0;
        // The block after this one, even where it belongs to the next range.
        if (start + NIB_ATTEND_KEYS <= task->hi)
            find_block(a, task, start + NIB_ATTEND_KEYS, &next);
        set_visible(a, task, start, rows.n_keys, w->visible);
        for (int64_t kv = 0; kv < task->n_kv; kv++) {
            struct nib_attend_hints hints = make_hints(a, task, &next, kv, task->n_kv);
            sum_block(a, task, &rows, kv, &hints, w);
        }
    }
}

static void start_merge(const struct attention *a, const struct nib_attend_task *task, struct workspace *w)
{
    const struct nib_weight *sinks = a->attend->sinks;
    memset(w->total.out, 0, (size_t)(nib_attend_rows(task) * a->v_pitch) * sizeof(float));
    for (int64_t r = 0; r < nib_attend_rows(task); r++) {
        int64_t head = nib_attend_row_of(&a->plan, task, r).head;
        w->total.largest[r] = sinks ? nib_weight_element(sinks, head) * log2_e : nothing_seen;
        w->total.sum[r] = sinks ? 1.0f : 0.0f;
    }
}

static void merge_row(const struct attention *a, struct sums *total, int64_t row, const float *out /* [v_pitch] */,
                      float largest, float sum)
{
    float joint = largest > total->largest[row] ? largest : total->largest[row];
    float before = exp2f(total->largest[row] - joint), here = exp2f(largest - joint);
    float *merged = total->out + row * a->v_pitch;
    for (int64_t d = 0; d < a->v_pitch; d++)
        merged[d] = merged[d] * before + out[d] * here;
    total->sum[row] = total->sum[row] * before + sum * here;
    total->largest[row] = joint;
}

static void write_rows(const struct attention *a, const struct nib_attend_task *task, const struct sums *total)
{
    for (int64_t r = 0; r < nib_attend_rows(task); r++) {
        struct nib_attend_row row = nib_attend_row_of(&a->plan, task, r);
        float *y = nib_buffer_row(a->y, row.token) + row.head * a->attend->v_dim;
        for (int64_t d = 0; d < a->attend->v_dim; d++)
            y[d] = total->out[r * a->v_pitch + d] / total->sum[r] * a->attend->value_scale;
    }
}

static void run_task(const struct attention *a, int64_t index, struct workspace *w)
{
    struct nib_attend_task task = nib_attend_find_task(&a->plan, index);
    pack_queries(a, &task, w);
    start_merge(a, &task, w);
    for (int64_t i = 0; i < nib_attend_count_ranges(&task); i++) {
        sum_range(a, &task, nib_attend_first_range(&task) + i, w);
        for (int64_t r = 0; r < nib_attend_rows(&task); r++)
            merge_row(a, &w->total, r, w->range.out + r * a->v_pitch, w->range.largest[r], w->range.sum[r]);
    }
    write_rows(a, &task, &w->total);
}

// Long contexts with fewer tasks than threads can share: each range is a piece of work, kept in cpu->partials, and
// the tasks are finished when all ranges are there. Finds the task that range `index` of all ranges belongs to, how many
// of its own ranges come before, and the first of its rows in partials.
static struct nib_attend_task find_range(const struct attention *a, int64_t *index, int64_t *row)
{
    struct nib_attend_task task = nib_attend_find_task(&a->plan, 0);
    *row = 0;
    for (int64_t i = 1; *index >= nib_attend_count_ranges(&task); i++) {
        *index -= nib_attend_count_ranges(&task);
        *row += nib_attend_count_ranges(&task) * nib_attend_rows(&task);
        task = nib_attend_find_task(&a->plan, i);
    }
    return task;
}

static void run_one_range(const struct attention *a, int64_t index, struct workspace *w)
{
    int64_t row, pitch = a->cpu->partial_pitch;
    struct nib_attend_task task = find_range(a, &index, &row);
    pack_queries(a, &task, w);
    sum_range(a, &task, nib_attend_first_range(&task) + index, w);
    float *out = a->cpu->partials + (row + index * nib_attend_rows(&task)) * pitch;
    for (int64_t r = 0; r < nib_attend_rows(&task); r++, out += pitch) {
        memcpy(out, w->range.out + r * a->v_pitch, (size_t)a->v_pitch * sizeof *out);
        out[a->v_pitch] = w->range.largest[r];
        out[a->v_pitch + 1] = w->range.sum[r];
    }
}

static void finish_task(const struct attention *a, int64_t index, struct workspace *w)
{
    int64_t row = 0, pitch = a->cpu->partial_pitch;
    struct nib_attend_task task = nib_attend_find_task(&a->plan, 0);
    for (int64_t i = 1; i <= index; i++) {
        row += nib_attend_count_ranges(&task) * nib_attend_rows(&task);
        task = nib_attend_find_task(&a->plan, i);
    }
    start_merge(a, &task, w);
    const float *part = a->cpu->partials + row * pitch;
    for (int64_t i = 0; i < nib_attend_count_ranges(&task); i++)
        for (int64_t r = 0; r < nib_attend_rows(&task); r++, part += pitch)
            merge_row(a, &w->total, r, part, part[a->v_pitch], part[a->v_pitch + 1]);
    write_rows(a, &task, &w->total);
}

// How many ranges all tasks have together when sharing them is worth it and fits, else 0.
static int64_t ranges_to_share(const struct attention *a)
{
    int64_t ranges = 0, rows = 0, threads = a->device->options.threads;
    if (threads == 1 || a->plan.n_tasks >= 4 * threads)
        return 0;
    for (int64_t i = 0; i < a->plan.n_tasks; i++) {
        struct nib_attend_task task = nib_attend_find_task(&a->plan, i);
        ranges += nib_attend_count_ranges(&task);
        rows += nib_attend_count_ranges(&task) * nib_attend_rows(&task);
    }
    return ranges > a->plan.n_tasks && rows <= a->cpu->partial_rows ? ranges : 0;
}

static void share_tasks(const struct attention *a, int64_t ranges, int threads)
{
#pragma omp parallel num_threads(threads)
    {
        size_t offset = (size_t)omp_get_thread_num() * a->cpu->attend_scratch_bytes;
        char *scratch = (char *)a->cpu->attend_scratch + offset;
        struct workspace w;
        carve(&w, (float *)(void *)scratch, a->attend->head_dim, a->attend->v_dim, a->cpu->cache_parts);
        if (ranges) {
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < ranges; i++)
                run_one_range(a, i, &w);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < a->plan.n_tasks; i++)
                finish_task(a, i, &w);
        } else {
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < a->plan.n_tasks; i++)
                run_task(a, i, &w);
        }
    }
}

void nib_cpu_attend(struct nib_device *device, struct nib_buffer y, struct nib_buffer q, struct nib_cache keys,
                    struct nib_cache values, const struct nib_attend *attend)
{
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    const struct nib_step *step = device->step;
    int64_t dim = attend->head_dim > attend->v_dim ? attend->head_dim : attend->v_dim, work = 0;
    if (device->error.status)
        return;
    if (dim > cpu->limits.head_dim) {
        nib_fail(&device->error, NIB_ERR_LIMIT, "attention heads of %lld in a device opened for %lld",
                 (long long)dim, (long long)cpu->limits.head_dim);
        return;
    }
    for (int64_t t = 0; t < step->n_tokens; t++)
        work += (step->positions[t] + 1) * attend->n_heads * attend->head_dim;
    int threads = nib_host_threads(device, work);
    struct attention a = {
        .device = device,
        .cpu = cpu,
        .plan = nib_attend_plan_make(step, attend, threads),
        .attend = attend,
        .y = y,
        .q = q,
        .keys = keys,
        .values = values,
        .query_pitch = query_pitch_of(attend->head_dim),
        .v_pitch = v_pitch_of(attend->v_dim),
    };
    share_tasks(&a, threads == 1 ? 0 : ranges_to_share(&a), threads);
}
