#include "cpu/attend_plan.h"

// How the rows of one sequence are cut.
struct cut {
    int64_t tokens, kv_heads; // of one task
    int64_t runs, pieces;     // runs of tokens, and tasks of each run
};

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// Few tokens (a decode) take several kv heads, whose keys lie side by side in memory; many tokens take one, whose
// unpacked keys then serve them all.
static struct cut cut_sequence(const struct nib_attend_plan *plan, int64_t sequence)
{
    int64_t tokens = plan->step->first_row[sequence + 1] - plan->step->first_row[sequence];
    int64_t room = NIB_ATTEND_ROWS / plan->heads_per_task, n_kv = plan->attend->n_kv_heads; // (tokens x kv heads)
    struct cut cut = {.tokens = room, .kv_heads = 1};
    if (tokens > 0 && tokens < room && plan->heads_per_task == plan->group) {
        cut.tokens = tokens;
        cut.kv_heads = smaller(smaller(plan->kv_heads_wanted, room / tokens), n_kv);
    }
    cut.runs = divide_up(tokens, cut.tokens);
    cut.pieces = divide_up(n_kv, cut.kv_heads) * divide_up(plan->group, plan->heads_per_task);
    return cut;
}

static void set_span(const struct nib_attend_plan *plan, struct nib_attend_task *task)
{
    int64_t first = plan->step->positions[task->first_token], window = plan->attend->window;
    task->lo = window && first >= window ? first - window + 1 : 0;
    task->hi = first + task->n_tokens - 1;
}

// Tasks with one kv head each, times the ranges that each of them has.
static int64_t count_finest(const struct nib_attend_plan *plan)
{
    int64_t count = 0;
    for (int64_t s = 0; s < plan->step->n_sequences; s++) {
        struct nib_attend_task whole = {.first_token = plan->step->first_row[s]};
        whole.n_tokens = plan->step->first_row[s + 1] - whole.first_token;
        if (whole.n_tokens == 0)
            continue;
        set_span(plan, &whole);
        struct cut cut = cut_sequence(plan, s);
        count += cut.runs * cut.pieces * nib_attend_count_ranges(&whole);
    }
    return count;
}

struct nib_attend_plan nib_attend_plan_make(const struct nib_step *step, const struct nib_attend *attend,
                                            int threads)
{
    enum { TASKS_PER_THREAD = 4 };
    struct nib_attend_plan plan = {.step = step, .attend = attend, .kv_heads_wanted = 1};
    plan.group = attend->n_heads / attend->n_kv_heads;
    plan.heads_per_task = smaller(plan.group, NIB_ATTEND_ROWS);
    if (threads == 1)
        plan.kv_heads_wanted = attend->n_kv_heads;
    else
        plan.kv_heads_wanted = count_finest(&plan) / ((int64_t)threads * TASKS_PER_THREAD);
    if (plan.kv_heads_wanted < 1)
        plan.kv_heads_wanted = 1;
    for (int64_t s = 0; s < step->n_sequences; s++) {
        struct cut cut = cut_sequence(&plan, s);
        plan.n_tasks += cut.runs * cut.pieces;
    }
    return plan;
}

struct nib_attend_task nib_attend_find_task(const struct nib_attend_plan *plan, int64_t index)
{
    struct nib_attend_task task = {0};
    struct cut cut = cut_sequence(plan, 0);
    while (index >= cut.runs * cut.pieces) {
        index -= cut.runs * cut.pieces;
        cut = cut_sequence(plan, ++task.sequence);
    }
    int64_t end = plan->step->first_row[task.sequence + 1];
    task.first_token = plan->step->first_row[task.sequence] + index / cut.pieces * cut.tokens;
    task.n_tokens = smaller(cut.tokens, end - task.first_token);

    int64_t parts = divide_up(plan->group, plan->heads_per_task), piece = index % cut.pieces;
    task.first_kv = piece / parts * cut.kv_heads;
    task.n_kv = smaller(cut.kv_heads, plan->attend->n_kv_heads - task.first_kv);
    task.first_head = piece % parts * plan->heads_per_task;
    task.n_heads = smaller(plan->heads_per_task, plan->group - task.first_head);
    set_span(plan, &task);
    return task;
}

struct nib_attend_row nib_attend_row_of(const struct nib_attend_plan *plan, const struct nib_attend_task *task,
                                        int64_t row)
{
    int64_t kv = row / nib_attend_rows_of_kv(task), rest = row % nib_attend_rows_of_kv(task);
    return (struct nib_attend_row){
        .token = task->first_token + rest / task->n_heads,
        .head = (task->first_kv + kv) * plan->group + task->first_head + rest % task->n_heads,
    };
}
