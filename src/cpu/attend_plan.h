// How the attention of a step is cut into tasks for threads, and the keys of a task into ranges.
//
// A task is at most NIB_ATTEND_ROWS query rows of one sequence: some tokens, times one or several kv heads, times the
// query heads that share each. The keys it sees are cut at fixed positions of the sequence into ranges of
// NIB_ATTEND_RANGE, and those into blocks of NIB_ATTEND_KEYS. How a step is cut into tasks changes no bit of the result.
#ifndef NIB_CPU_ATTEND_PLAN_H
#define NIB_CPU_ATTEND_PLAN_H

#include "ops/ops.h"

enum {
    NIB_ATTEND_ROWS = 64,
    NIB_ATTEND_RANGE = 1024,
};

struct nib_attend_plan {
    const struct nib_step *step;
    const struct nib_attend *attend;
    int64_t group;           // query heads of one kv head
    int64_t heads_per_task;  // of a group: all, or NIB_ATTEND_ROWS of a wider one
    int64_t kv_heads_wanted; // kv heads of one task where one token's rows leave room for them
    int64_t n_tasks;
};

struct nib_attend_task {
    int64_t sequence, first_token, n_tokens; // tokens are rows of the step
    int64_t first_kv, n_kv;                  // kv heads
    int64_t first_head, n_heads;             // query heads within each kv head's group
    int64_t lo, hi;                          // first and last position that any of the rows sees
};

// Cuts the step so that `threads` threads find enough tasks where there are, each streaming as wide as it can.
struct nib_attend_plan nib_attend_plan_make(const struct nib_step *step, const struct nib_attend *attend,
                                            int threads);

struct nib_attend_task nib_attend_find_task(const struct nib_attend_plan *plan, int64_t index);

// A task's rows are ordered by kv head, then token, then head.
static inline int64_t nib_attend_rows_of_kv(const struct nib_attend_task *task)
{
    return task->n_tokens * task->n_heads;
}

static inline int64_t nib_attend_rows(const struct nib_attend_task *task)
{
    return task->n_kv * nib_attend_rows_of_kv(task);
}

struct nib_attend_row {
    int64_t token, head; // row of the step, query head of the model
};

struct nib_attend_row nib_attend_row_of(const struct nib_attend_plan *plan, const struct nib_attend_task *task,
                                        int64_t row);

static inline int64_t nib_attend_first_range(const struct nib_attend_task *task)
{
    return task->lo / NIB_ATTEND_RANGE;
}

static inline int64_t nib_attend_count_ranges(const struct nib_attend_task *task)
{
    return task->hi / NIB_ATTEND_RANGE - nib_attend_first_range(task) + 1;
}

#endif
