// nibble check: a model's logits and greedy tokens against stored ones.
//
// The file holds one case (input_ids, logits, greedy_ids, greedy_margin) or several ("NAME.input_ids", …). A case has
// logits F32 [T, vocab] of every position of its T input ids, or top_ids I32 [N] and top_logits F32 [N] of the last
// position, likeliest first; and optionally the greedy continuation with its margins (top-1 minus top-2).
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/session.h"
#include "nibble/engine.h"

#define MAX_ROWS 64 // rows of logits fetched at a time
#define MAX_TOP 256 // top_ids of a case

struct expected {
    char name[96];
    int64_t n_input, n_top, n_greedy;
    const int32_t *input, *top_ids, *greedy;    /* [n_input], [n_top], [n_greedy] */
    const float *logits, *top_logits, *margins; /* [n_input, vocab] or NULL, [n_top] or NULL, [n_greedy] or NULL */
};

struct tally {
    double max_abs, squared_error, squared_expected, kl;
    int64_t kl_rows, top1_rows, top1_equal;
    int64_t greedy_steps, greedy_equal, cases_differing;
    double first_difference_margin; // the largest among the cases' first differences; NAN: no difference
};

struct check {
    struct nib_engine *engine;
    int64_t vocab;
    int64_t chunk; // tokens fed at a time
    struct tally total;
};

// ---- the file ----

static nib_status take(struct nib_checkpoint *file, const char *prefix, const char *what, enum nib_dtype dtype,
                       const struct nib_tensor **tensor, struct nib_error *err)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", prefix, what);
    *tensor = nib_checkpoint_find(file, name);
    if (*tensor && (*tensor)->dtype != dtype)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor %s is %s, not %s", (*tensor)->file, name,
                        nib_dtype_name((*tensor)->dtype), nib_dtype_name(dtype));
    return NIB_OK;
}

static nib_status check_ids(const struct nib_tensor *tensor, int64_t vocab, struct nib_error *err)
{
    const int32_t *ids = tensor->data;
    for (int64_t i = 0; i < nib_tensor_elements(tensor); i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor %s holds id %d; the model's vocabulary has %lld",
                            tensor->file, tensor->name, ids[i], (long long)vocab);
    return NIB_OK;
}

static nib_status read_case(struct nib_checkpoint *file, const char *prefix, int64_t vocab, struct expected *e,
                            struct nib_error *err)
{
    const struct nib_tensor *input, *logits, *top_ids, *top_logits, *greedy, *margins;
    nib_status status;
    if ((status = take(file, prefix, "input_ids", NIB_I32, &input, err)) ||
        (status = take(file, prefix, "logits", NIB_F32, &logits, err)) ||
        (status = take(file, prefix, "top_ids", NIB_I32, &top_ids, err)) ||
        (status = take(file, prefix, "top_logits", NIB_F32, &top_logits, err)) ||
        (status = take(file, prefix, "greedy_ids", NIB_I32, &greedy, err)) ||
        (status = take(file, prefix, "greedy_margin", NIB_F32, &margins, err)))
        return status;
    *e = (struct expected){.n_input = nib_tensor_elements(input), .input = input->data};
    snprintf(e->name, sizeof e->name, "%.*s", *prefix ? (int)strlen(prefix) - 1 : 0, prefix);
    if (e->n_input < 1)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor %s is empty", input->file, input->name);
    if ((status = check_ids(input, vocab, err)))
        return status;
    if (logits) {
        if (logits->rank != 2 || logits->shape[0] != e->n_input || logits->shape[1] != vocab) {
            char text[96];
            return nib_fail(err, NIB_ERR_FORMAT,
                            "%s: tensor %s is %s; %lld positions of a vocabulary of %lld are needed", logits->file,
                            logits->name, nib_tensor_describe(logits, text, sizeof text), (long long)e->n_input,
                            (long long)vocab);
        }
        e->logits = logits->data;
    }
    if (!logits && !top_ids && !greedy)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: nothing to compare beside %s: no logits, top_ids or greedy_ids",
                        input->file, input->name);
    if (!top_ids != !top_logits)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: one of %stop_ids and %stop_logits is missing", input->file,
                        prefix, prefix);
    if (top_ids) {
        int64_t n = nib_tensor_elements(top_ids);
        if (n < 1 || n > MAX_TOP)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s holds %lld ids, not 1 .. %d", top_ids->file,
                            top_ids->name, (long long)n, MAX_TOP);
        if (n != nib_tensor_elements(top_logits))
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s and %s differ in length", top_ids->file, top_ids->name,
                            top_logits->name);
        if ((status = check_ids(top_ids, vocab, err)))
            return status;
        e->n_top = n;
        e->top_ids = top_ids->data;
        e->top_logits = top_logits->data;
    }
    if (greedy) {
        if ((status = check_ids(greedy, vocab, err)))
            return status;
        e->n_greedy = nib_tensor_elements(greedy);
        e->greedy = greedy->data;
        if (margins && nib_tensor_elements(margins) != e->n_greedy)
            return nib_fail(err, NIB_ERR_FORMAT, "%s: %s and %s differ in length", greedy->file, greedy->name,
                            margins->name);
        if (margins)
            e->margins = margins->data;
    }
    return NIB_OK;
}

// ---- comparing ----

static int64_t argmax(const float *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

static double log_sum_exp(const float *row, int64_t n)
{
    double largest = (double)row[argmax(row, n)], sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)row[i] - largest);
    return largest + log(sum);
}

// Adds one row's errors; both rows are over the same n tokens.
static void compare_row(struct tally *tally, const float *expected, const float *got, int64_t n)
{
    double total_expected = log_sum_exp(expected, n), total_got = log_sum_exp(got, n);
    for (int64_t i = 0; i < n; i++) {
        double error = (double)got[i] - (double)expected[i];
        if (!(fabs(error) <= tally->max_abs) && !isnan(tally->max_abs)) // NaN comes and stays
            tally->max_abs = fabs(error);
        tally->squared_error += error * error;
        tally->squared_expected += (double)expected[i] * (double)expected[i];
        double log_p = (double)expected[i] - total_expected;
        tally->kl += exp(log_p) * (log_p - ((double)got[i] - total_got));
    }
    tally->kl_rows++;
}

static void count_top1(struct tally *tally, bool equal)
{
    tally->top1_rows++;
    tally->top1_equal += equal;
}

// The row of a position of the prompt.
static void compare_position(struct check *check, const struct expected *e, int64_t position, const float *row)
{
    if (e->logits) {
        const float *expected = e->logits + position * check->vocab;
        compare_row(&check->total, expected, row, check->vocab);
        count_top1(&check->total, argmax(expected, check->vocab) == argmax(row, check->vocab));
    } else if (e->top_ids && position == e->n_input - 1) {
        float got[MAX_TOP];
        int64_t n = e->n_top;
        for (int64_t i = 0; i < n; i++)
            got[i] = row[e->top_ids[i]];
        compare_row(&check->total, e->top_logits, got, n);
        count_top1(&check->total, argmax(row, check->vocab) == e->top_ids[argmax(e->top_logits, n)]);
    }
}

// Feeds the prompt and compares its positions; *next is the greedy choice behind it.
static nib_status run_prompt(struct check *check, const struct expected *e, struct nib_sequence *sequence,
                             int32_t *next, struct nib_error *err)
{
    for (int64_t done = 0; done < e->n_input;) {
        int64_t n = e->n_input - done < check->chunk ? e->n_input - done : check->chunk;
        struct nib_feed feed = {sequence, e->input + done, (int32_t)n,
                                e->logits ? NIB_OUTPUTS_ALL : NIB_OUTPUTS_LAST};
        nib_status status = nib_engine_step(check->engine, &feed, 1, err);
        if (status)
            return status;
        if (e->logits)
            for (int64_t i = 0; i < n; i++)
                compare_position(check, e, done + i, nib_engine_logits(check->engine, i));
        done += n;
        const float *last = nib_engine_logits(check->engine, e->logits ? n - 1 : 0);
        if (!e->logits && done == e->n_input)
            compare_position(check, e, done - 1, last);
        *next = (int32_t)argmax(last, check->vocab);
    }
    return NIB_OK;
}

// Greedy decoding with the reference's token fed at every step: so one early difference does not hide the steps behind
// it. Up to the first difference this is what free decoding gives.
static nib_status run_greedy(struct check *check, const struct expected *e, struct nib_sequence *sequence,
                             int32_t next, struct nib_error *err)
{
    struct tally *tally = &check->total;
    bool differs = false;
    for (int64_t i = 0; i < e->n_greedy; i++) {
        bool equal = next == e->greedy[i];
        count_top1(tally, equal);
        tally->greedy_steps++;
        tally->greedy_equal += equal;
        if (!equal && !differs) {
            double margin = e->margins ? (double)e->margins[i] : INFINITY;
            if (!(tally->first_difference_margin >= margin))
                tally->first_difference_margin = margin;
            tally->cases_differing++;
            differs = true;
        }
        if (i == e->n_greedy - 1)
            break;
        struct nib_feed feed = {sequence, &e->greedy[i], 1, NIB_OUTPUTS_LAST};
        nib_status status = nib_engine_step(check->engine, &feed, 1, err);
        if (status)
            return status;
        next = (int32_t)argmax(nib_engine_logits(check->engine, 0), check->vocab);
    }
    return NIB_OK;
}

static nib_status run_case(struct check *check, const struct expected *e, struct nib_error *err)
{
    struct nib_sequence *sequence;
    int32_t next = 0;
    nib_status status = nib_sequence_create(check->engine, &sequence, err);
    if (status)
        return status;
    status = run_prompt(check, e, sequence, &next, err);
    if (!status)
        status = run_greedy(check, e, sequence, next, err);
    nib_sequence_free(sequence);
    return status && *e->name ? nib_fail_context(err, "case \"%s\"", e->name) : status;
}

static nib_status run_cases(struct check *check, struct nib_checkpoint *file, int64_t *cases,
                            struct nib_error *err)
{
    static const char key[] = "input_ids";
    *cases = 0;
    for (size_t i = 0; i < nib_checkpoint_count(file); i++) {
        const char *name = nib_checkpoint_at(file, i)->name;
        size_t length = strlen(name), prefix = length - strlen(key);
        char text[96];
        if (length < strlen(key) || prefix >= sizeof text || strcmp(name + prefix, key) != 0 ||
            (prefix && name[prefix - 1] != '.'))
            continue;
        snprintf(text, sizeof text, "%.*s", (int)prefix, name);
        struct expected e;
        nib_status status = read_case(file, text, check->vocab, &e, err);
        if (status || (status = run_case(check, &e, err)))
            return status;
        (*cases)++;
    }
    if (*cases == 0)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no tensor is called input_ids", nib_checkpoint_path(file));
    return NIB_OK;
}

// ---- reporting ----

static double ratio(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void print_json(const struct check *check, int64_t cases)
{
    const struct tally *t = &check->total;
    json_t *root = json_object();
    json_object_set_new(root, "device", json_string(nib_engine_device(check->engine)));
    json_object_set_new(root, "cases", json_integer(cases));
    json_object_set_new(root, "positions", json_integer(t->kl_rows));
    json_object_set_new(root, "max_abs", real_or_null(t->max_abs));
    json_object_set_new(root, "rel_l2", real_or_null(sqrt(ratio(t->squared_error, t->squared_expected))));
    json_object_set_new(root, "mean_kl", real_or_null(ratio(t->kl, (double)t->kl_rows)));
    json_object_set_new(root, "top1_agreement", real_or_null(ratio((double)t->top1_equal, (double)t->top1_rows)));
    json_object_set_new(root, "greedy_agreement",
                        real_or_null(ratio((double)t->greedy_equal, (double)t->greedy_steps)));
    json_object_set_new(root, "greedy_first_difference_margin", real_or_null(t->first_difference_margin));
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    printf("\n");
    json_decref(root);
}

static void print_text(const struct check *check, int64_t cases)
{
    const struct tally *t = &check->total;
    printf("%s: %lld case%s, %lld positions compared\n", nib_engine_device(check->engine), (long long)cases,
           cases == 1 ? "" : "s", (long long)t->kl_rows);
    printf("  max_abs            %.3g\n", t->max_abs);
    printf("  rel_l2             %.3g\n", sqrt(ratio(t->squared_error, t->squared_expected)));
    printf("  mean_kl            %.3g\n", ratio(t->kl, (double)t->kl_rows));
    printf("  top1_agreement     %.4f (%lld of %lld)\n", ratio((double)t->top1_equal, (double)t->top1_rows),
           (long long)t->top1_equal, (long long)t->top1_rows);
    if (t->greedy_steps)
        printf("  greedy_agreement   %.4f (%lld of %lld steps)\n",
               ratio((double)t->greedy_equal, (double)t->greedy_steps), (long long)t->greedy_equal,
               (long long)t->greedy_steps);
    if (t->cases_differing)
        printf("  greedy first differs where the reference's margin is %.4g\n", t->first_difference_margin);
}

struct limits {
    double max_abs, max_kl, min_top1, greedy_margin;
};

static bool within(const struct tally *t, const struct limits *limits)
{
    bool fine = true;
    if (!(t->max_abs <= limits->max_abs))
        fine = (fprintf(stderr, "nibble: max_abs %.3g is over %.3g\n", t->max_abs, limits->max_abs), false);
    if (t->kl_rows && !(t->kl / (double)t->kl_rows <= limits->max_kl))
        fine = (fprintf(stderr, "nibble: mean_kl %.3g is over %.3g\n", t->kl / (double)t->kl_rows, limits->max_kl),
                false);
    if (t->top1_rows && !((double)t->top1_equal / (double)t->top1_rows >= limits->min_top1))
        fine = (fprintf(stderr, "nibble: top1_agreement %.4f is under %.4f\n",
                        (double)t->top1_equal / (double)t->top1_rows, limits->min_top1),
                false);
    if (t->cases_differing && t->first_difference_margin >= limits->greedy_margin)
        fine = (fprintf(stderr, "nibble: greedy tokens differ at a margin of %.4g\n", t->first_difference_margin),
                false);
    return fine;
}

int cmd_check(int argc, char **argv)
{
    const char *paths[2] = {0}, *device = "cpu", *dense_dtype = "stored", *precision = "auto";
    bool deterministic = false;
    int64_t threads = 0, chunk = MAX_ROWS;
    bool json = false;
    struct limits limits = {INFINITY, INFINITY, 0, INFINITY};
    const struct nib_option options[] = {
        option_device(&device),
        option_deterministic(&deterministic),
        option_threads(&threads),
        {"--chunk", NIB_OPTION_INT, &chunk, "N", "prompt tokens fed in one step", 1, MAX_ROWS},
        option_precision(&precision),
        option_dense_dtype(&dense_dtype),
        option_json(&json),
        {"--max-abs", NIB_OPTION_REAL, &limits.max_abs, "X", "fail if a logit is off by more", 0, INFINITY},
        {"--max-kl", NIB_OPTION_REAL, &limits.max_kl, "X", "fail if the mean KL divergence is larger", 0,
         INFINITY},
        {"--min-top1", NIB_OPTION_REAL, &limits.min_top1, "X", "fail if fewer likeliest tokens agree", 0, 1},
        {"--greedy-margin", NIB_OPTION_REAL, &limits.greedy_margin, "X",
         "fail if greedy first differs at a reference margin of X or more", 0, INFINITY},
    };
    const struct nib_usage usage = {
        .command = "nibble check",
        .arguments = "MODEL EXPECTED.safetensors",
        .summary =
            "Compares the model's logits and greedy tokens with stored ones: input_ids, logits (or top_ids and\n"
            "top_logits of the last position), greedy_ids, greedy_margin; several cases as NAME.input_ids, ….",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = paths,
        .min_positionals = 2,
        .n_positionals = 2,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    struct nib_engine_options engine_options = {
        .device = device,
        .threads = (int)threads,
        .max_sequences = 1,
        .max_step_tokens = MAX_ROWS,
        .max_outputs = MAX_ROWS,
        .dense_int8 = strcmp(dense_dtype, "int8") == 0,
        .precision = precision_of(precision),
        .deterministic = deterministic,
    };
    struct check check = {.chunk = chunk, .total.first_difference_margin = NAN};
    struct nib_checkpoint *file = NULL;
    struct nib_error err;
    int64_t cases;
    nib_status status = nib_checkpoint_open(paths[1], &file, &err);
    if (!status)
        status = nib_engine_open(paths[0], &engine_options, &check.engine, &err);
    if (!status) {
        warn_unused(nib_engine_checkpoint(check.engine));
        check.vocab = nib_engine_vocab(check.engine);
        status = run_cases(&check, file, &cases, &err);
    }
    if (status)
        code = report_error(&err);
    else {
        (json ? print_json : print_text)(&check, cases);
        code = within(&check.total, &limits) ? 0 : 1;
    }
    nib_engine_close(check.engine);
    nib_checkpoint_close(file);
    return code;
}
