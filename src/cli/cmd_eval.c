// nibble eval: how likely a model finds a text, and how often it solves tasks with a known answer.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/progress.h"
#include "cli/session.h"

#define NLL_ROWS 64 // tokens a step, each with its logits

// ---- nll ----

struct nll {
    struct session session;
    int64_t window;
    double nats, seconds; // summed over `scored` tokens
    int64_t scored;
};

// Scores tokens 1 … n-1 of one window, each given those before it.
static nib_status score_window(struct nll *nll, const int32_t *ids, int64_t n, struct nib_error *err)
{
    int64_t vocab = nib_engine_vocab(nll->session.engine);
    struct nib_sequence *sequence;
    nib_status status = nib_sequence_create(nll->session.engine, &sequence, err);
    if (status)
        return status;
    for (int64_t done = 0; !status && done < n - 1; done += NLL_ROWS) {
        int64_t rows = n - 1 - done < NLL_ROWS ? n - 1 - done : NLL_ROWS;
        struct nib_feed feed = {sequence, ids + done, (int32_t)rows, NIB_OUTPUTS_ALL};
        status = nib_engine_step(nll->session.engine, &feed, 1, err);
        for (int64_t r = 0; !status && r < rows; r++) {
            const float *logits = nib_engine_logits(nll->session.engine, r);
            nll->nats += nib_log_sum_exp(logits, vocab) - (double)logits[ids[done + r + 1]];
            nll->scored++;
        }
    }
    nib_sequence_free(sequence);
    return status;
}

static nib_status score_text(struct nll *nll, const char *path, struct nib_error *err)
{
    struct nib_map text;
    nib_status status = nib_map_open(&text, path, err);
    if (status)
        return status;
    struct nib_token_list list = {0};
    status = nib_tokenizer_encode(nll->session.tokenizer, (const char *)text.data, text.size, NIB_ENCODE_SPECIAL,
                                  &list, err);
    nib_map_close(&text);
    struct nib_progress bar;
    nib_progress_begin(&bar, "scoring", (int64_t)list.count, "tok");
    for (int64_t at = 0; !status && at < (int64_t)list.count; at += nll->window) {
        int64_t n = (int64_t)list.count - at < nll->window ? (int64_t)list.count - at : nll->window;
        nib_progress_update(&bar, at);
        if (n >= 2)
            status = score_window(nll, list.ids + at, n, err);
    }
    nib_progress_end(&bar);
    nib_token_list_free(&list);
    if (!status && nll->scored == 0)
        return nib_fail(err, NIB_ERR_ARGUMENT, "%s: fewer than two tokens", path);
    return status;
}

// The mean over the file, with the model opened as `options` say.
static nib_status measure_nll(const char *model, const char *text, const struct session_options *options,
                              struct nll *nll, struct nib_error *err)
{
    nll->nats = 0;
    nll->scored = 0;
    nib_status status = session_open(&nll->session, model, options, err);
    double started = nib_seconds();
    if (!status)
        status = score_text(nll, text, err);
    nll->seconds = nib_seconds() - started;
    session_close(&nll->session);
    return status;
}

static void print_nll(const struct nll *nll, double stored_mean, bool json)
{
    double mean = nll->nats / (double)nll->scored, rate = (double)nll->scored / nll->seconds;
    if (json) {
        printf("{\"mean_nats\": %.6f, \"tokens\": %lld, \"window\": %lld, \"tokens_per_second\": %.1f", mean,
               (long long)nll->scored, (long long)nll->window, rate);
        if (!isnan(stored_mean))
            printf(", \"mean_nats_stored\": %.6f, \"change\": %.6f", stored_mean, mean - stored_mean);
        printf("}\n");
        return;
    }
    printf("%.5f nats per token over %lld tokens in windows of %lld (perplexity %.3f), %.1f tok/s\n", mean,
           (long long)nll->scored, (long long)nll->window, exp(mean), rate);
    if (!isnan(stored_mean))
        printf("%.5f with dense matrices as stored: 8 bits change it by %+.5f nats (%+.3f %%)\n", stored_mean,
               mean - stored_mean, 100 * (mean / stored_mean - 1));
}

static int eval_nll(int argc, char **argv)
{
    const char *paths[2] = {0};
    bool json = false;
    struct nll nll = {.window = 1024};
    struct session_options session = session_defaults();
    const struct nib_option options[] = {
        {"--window", NIB_OPTION_INT, &nll.window, "N", "tokens of one window; windows do not overlap", 2, 1 << 24},
        option_device(&session.device),
        option_deterministic(&session.deterministic),
        option_threads(&session.threads),
        option_precision(&session.precision),
        option_dense_dtype(&session.dense_dtype),
        option_json(&json),
    };
    const struct nib_usage usage = {
        .command = "nibble eval nll",
        .arguments = "MODEL TEXT",
        .summary = "The mean negative log-likelihood, in nats per token, of a text file cut into windows. The "
                   "text of a control\n"
                   "token is that token, as in the reference implementations.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = paths,
        .min_positionals = 2,
        .n_positionals = 2,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    session.max_sequences = 1;
    session.max_step_tokens = session.max_outputs = NLL_ROWS;
    session.context = nll.window;
    double stored_mean = NAN;
    struct nib_error err;
    nib_status status = NIB_OK;
    if (strcmp(session.dense_dtype, "int8") == 0) {
        struct session_options stored = session;
        stored.dense_dtype = "stored";
        status = measure_nll(paths[0], paths[1], &stored, &nll, &err);
        stored_mean = nll.nats / (double)nll.scored;
    }
    if (!status)
        status = measure_nll(paths[0], paths[1], &session, &nll, &err);
    if (!status && !isfinite(nll.nats))
        status = nib_fail(&err, NIB_ERR_FORMAT, "%s: the logits are not numbers: the weights hold NaN or infinity",
                          paths[0]);
    if (status)
        return report_error(&err);
    print_nll(&nll, stored_mean, json);
    return 0;
}

// ---- tasks ----

enum { MAX_TASK_BYTES = 16 << 20 }; // of its line

struct task {
    const char *kind;
    json_t *line; // owns everything the task refers to
    struct nib_bytes answer;
    bool correct;
};

struct tasks {
    struct session session;
    struct task *items; /* [count] */
    size_t count, done;
    struct nib_progress bar;
    struct nib_error error; // of a callback
};

// A call is right when it names the function and its arguments are equal as JSON values.
static bool call_is_right(const char *answer, const json_t *expected)
{
    const json_t *name = json_object_get(expected, "name");
    const char *body = answer, *next;
    char recipient[256];
    snprintf(recipient, sizeof recipient, "to=functions.%s", json_is_string(name) ? json_string_value(name) : "?");
    while ((next = strstr(body, "<|message|>")))
        body = next + strlen("<|message|>");
    const char *end = strstr(body, "<|call|>");
    json_t *arguments = json_loadb(body, end ? (size_t)(end - body) : strlen(body), JSON_DECODE_ANY, NULL);
    bool right =
        strstr(answer, recipient) && arguments && json_equal(arguments, json_object_get(expected, "arguments"));
    json_decref(arguments);
    return right;
}

static bool answer_is_right(const char *answer, const json_t *expected)
{
    if (json_is_object(expected))
        return call_is_right(answer, expected);
    const char *body = answer, *next;
    while ((next = strstr(body, "<|message|>")))
        body = next + strlen("<|message|>");
    return strstr(body, json_string_value(expected)) != NULL;
}

static void on_task_event(void *context, const struct nib_event *event)
{
    struct tasks *tasks = context;
    struct task *task = event->user;
    if (event->has_token && !tasks->error.status)
        nib_tokenizer_decode(tasks->session.tokenizer, &event->token.token, 1, &task->answer, &tasks->error);
    if (event->finish == NIB_FINISH_NOT_YET)
        return;
    if (event->finish == NIB_FINISH_ERROR && !tasks->error.status)
        tasks->error = *event->error;
    task->correct =
        task->answer.data && answer_is_right(task->answer.data, json_object_get(task->line, "expected"));
    nib_progress_update(&tasks->bar, (int64_t)++tasks->done);
}

static bool is_task(const json_t *root)
{
    const json_t *expected = json_object_get(root, "expected");
    return json_is_string(json_object_get(root, "kind")) && json_is_string(json_object_get(root, "prompt")) &&
           (json_string_length(expected) > 0 || json_is_string(json_object_get(expected, "name")));
}

static nib_status add_task(struct tasks *tasks, const char *line, size_t number, const char *path,
                           struct nib_error *err)
{
    if (!line[strspn(line, " \t\r\n")])
        return NIB_OK;
    size_t size = (tasks->count + 1) * sizeof *tasks->items;
    struct task *grown = realloc(tasks->items, size);
    if (!grown)
        return nib_fail_memory(err, size, "tasks");
    tasks->items = grown;
    json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    if (!is_task(root)) {
        json_decref(root);
        return nib_fail(
            err, NIB_ERR_FORMAT,
            "%s:%zu: a task is an object with kind, prompt and expected, a text or a call with its name", path,
            number);
    }
    const char *kind = json_string_value(json_object_get(root, "kind"));
    tasks->items[tasks->count++] = (struct task){.kind = kind, .line = root};
    return NIB_OK;
}

static nib_status read_tasks(struct tasks *tasks, const char *path, struct nib_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return nib_fail(err, NIB_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    char *line = malloc(MAX_TASK_BYTES + 2);
    nib_status status = line ? NIB_OK : nib_fail_memory(err, MAX_TASK_BYTES + 2, "a line of tasks");
    char *last = line ? line + MAX_TASK_BYTES : NULL; // stays 0 but for a line that is as long or longer
    if (last)
        *last = 0;
    for (size_t number = 1; !status && fgets(line, MAX_TASK_BYTES + 2, file); number++)
        status = *last && *last != '\n' ? nib_fail(err, NIB_ERR_LIMIT, "%s:%zu: the line is longer than %d bytes",
                                                   path, number, MAX_TASK_BYTES)
                                        : add_task(tasks, line, number, path, err);
    if (!status && ferror(file))
        status = nib_fail(err, NIB_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    free(line);
    fclose(file);
    if (!status && tasks->count == 0)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: no tasks", path);
    return status;
}

static nib_status run_tasks(struct tasks *tasks, int64_t max_tokens, struct nib_error *err)
{
    struct nib_batch *batch;
    bool busy = true;
    nib_status status = nib_batch_create(tasks->session.engine, on_task_event, tasks, &batch, err);
    if (status)
        return status;
    for (size_t i = 0; !status && i < tasks->count; i++) {
        const char *prompt = json_string_value(json_object_get(tasks->items[i].line, "prompt"));
        struct nib_token_list ids = {0};
        int64_t id;
        status =
            nib_tokenizer_encode(tasks->session.tokenizer, prompt, strlen(prompt), NIB_ENCODE_SPECIAL, &ids, err);
        struct nib_request request = {
            .prompt = ids.ids,
            .n_prompt = (int32_t)ids.count,
            .max_tokens = (int32_t)max_tokens,
            .sampling = {.top_p = 1},
            .stop_tokens = tasks->session.stop_tokens,
            .n_stop_tokens = tasks->session.n_stop_tokens,
            .top_logprobs = -1,
            .user = &tasks->items[i],
        };
        if (!status && (status = nib_batch_add(batch, &request, &id, err)))
            nib_fail_context(err, "task %zu", i + 1);
        nib_token_list_free(&ids);
    }
    while (!status && busy) {
        status = nib_batch_step(batch, &busy, err);
        if (!status && tasks->error.status) {
            *err = tasks->error;
            status = err->status;
        }
    }
    nib_batch_free(batch);
    return status;
}

// One line a kind, in the order the kinds first appear.
static void print_accuracies(const struct tasks *tasks, bool json)
{
    json_t *root = json_object();
    for (size_t i = 0; i < tasks->count; i++) {
        const char *kind = tasks->items[i].kind;
        if (json_object_get(root, kind))
            continue;
        int n = 0, correct = 0;
        for (size_t j = 0; j < tasks->count; j++)
            if (strcmp(tasks->items[j].kind, kind) == 0) {
                n++;
                correct += tasks->items[j].correct;
            }
        json_object_set_new(
            root, kind, json_pack("{s:i, s:i, s:f}", "n", n, "correct", correct, "accuracy", (double)correct / n));
        if (!json)
            printf("%-12s %d of %d (%.1f %%)\n", kind, correct, n, 100.0 * correct / n);
    }
    if (json) {
        json_dumpf(root, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        printf("\n");
    }
    json_decref(root);
}

static int eval_tasks(int argc, char **argv)
{
    const char *paths[2] = {0};
    int64_t max_tokens = 64, sequences = 8;
    bool json = false;
    struct tasks tasks = {0};
    struct session_options session = session_defaults();
    const struct nib_option options[] = {
        {"--max-tokens", NIB_OPTION_INT, &max_tokens, "N", "tokens of an answer at most", 1, 1 << 20},
        {"--sequences", NIB_OPTION_INT, &sequences, "N", "tasks answered at the same time", 1, 256},
        option_device(&session.device),
        option_deterministic(&session.deterministic),
        option_threads(&session.threads),
        option_precision(&session.precision),
        option_dense_dtype(&session.dense_dtype),
        option_json(&json),
    };
    const struct nib_usage usage = {
        .command = "nibble eval tasks",
        .arguments = "MODEL TASKS.jsonl",
        .summary = "Greedy answers to prompts with a known answer. A line is {\"kind\", \"prompt\", "
                   "\"expected\"}: the prompt\n"
                   "with its control tokens, and a string the answer's last message must hold, or a call's name "
                   "and arguments.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = paths,
        .min_positionals = 2,
        .n_positionals = 2,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    session.max_sequences = sequences;
    struct nib_error err;
    nib_status status = read_tasks(&tasks, paths[1], &err);
    if (!status)
        status = session_open(&tasks.session, paths[0], &session, &err);
    nib_progress_begin(&tasks.bar, "tasks", (int64_t)tasks.count, "task");
    if (!status)
        status = run_tasks(&tasks, max_tokens, &err);
    nib_progress_end(&tasks.bar);
    if (status)
        code = report_error(&err);
    else
        print_accuracies(&tasks, json);
    for (size_t i = 0; i < tasks.count; i++) {
        json_decref(tasks.items[i].line);
        nib_bytes_free(&tasks.items[i].answer);
    }
    free(tasks.items);
    session_close(&tasks.session);
    return code;
}

int cmd_eval(int argc, char **argv)
{
    static const struct nib_command commands[] = {
        {"nll", "mean negative log-likelihood of a text", eval_nll},
        {"tasks", "accuracy on prompts with a known answer", eval_tasks},
    };
    return dispatch("usage: nibble eval nll|tasks [ARGUMENTS]", commands, 2, argc, argv);
}
