// nibble run: chat with a model, answer one prompt, or complete plain text.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/talk.h"

#define MAX_PIPED_BYTES (256u << 20)

// The command line's wishes; numbers out of range mean "not given".
struct wishes {
    const char *model, *prompt, *system, *reasoning;
    bool raw, json, hide_reasoning;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed;
    struct nib_option_list stop;
    struct session_options session;
};

// What the command line leaves open comes from generation_config.json.
static nib_status choose_sampling(const struct wishes *wishes, struct talk *talk, struct nib_error *err)
{
    struct nib_sampling *sampling = &talk->sampling;
    nib_status status = session_sampling(&talk->session, sampling, &talk->repetition_penalty, err);
    if (status)
        return status;
    if (wishes->temperature >= 0)
        sampling->temperature = (float)wishes->temperature;
    if (wishes->top_p >= 0)
        sampling->top_p = (float)wishes->top_p;
    if (wishes->min_p >= 0)
        sampling->min_p = (float)wishes->min_p;
    if (wishes->repetition_penalty > 0)
        talk->repetition_penalty = (float)wishes->repetition_penalty;
    if (wishes->top_k >= 0)
        sampling->top_k = (int32_t)wishes->top_k;
    uint32_t random = 0;
    if (wishes->seed < 0 && getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        random = 0;
    sampling->seed = wishes->seed < 0 ? random : (uint64_t)wishes->seed;
    return NIB_OK;
}

static nib_status open_chat(struct talk *talk, const char *model, struct nib_error *err)
{
    talk->chat = talk->session.chat;
    return talk->chat
               ? NIB_OK
               : nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: nibble cannot chat with it (%s); --raw completes text",
                          model, talk->session.no_chat.message);
}

static nib_status open_talk(struct talk *talk, const struct wishes *wishes, struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (size_t i = 0; !status && i < wishes->stop.count; i++)
        status = nib_stop_strings_add(&talk->stop, wishes->stop.items[i], strlen(wishes->stop.items[i]), err);
    if (!status)
        status = session_open(&talk->session, wishes->model, &wishes->session, err);
    if (!status)
        status = choose_sampling(wishes, talk, err);
    if (!status && !wishes->raw)
        status = open_chat(talk, wishes->model, err);
    return status;
}

static void close_talk(struct talk *talk)
{
    messages_free(&talk->dialogue.messages);
    nib_stop_strings_free(&talk->stop);
    session_close(&talk->session);
}

// All of standard input, without the newline that ends it.
static nib_status read_stdin(struct nib_bytes *text, struct nib_error *err)
{
    char chunk[65536];
    size_t size;
    while ((size = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        nib_status status = nib_bytes_append(text, chunk, size, err);
        if (status)
            return status;
        if (text->size > MAX_PIPED_BYTES)
            return nib_fail(err, NIB_ERR_LIMIT, "the prompt from standard input is longer than %u MiB",
                            MAX_PIPED_BYTES >> 20);
    }
    if (ferror(stdin))
        return nib_fail(err, NIB_ERR_IO, "standard input cannot be read");
    if (text->size && text->data[text->size - 1] == '\n')
        text->data[--text->size] = 0;
    return NIB_OK;
}

static nib_status make_prompt(struct talk *talk, const struct wishes *wishes, struct nib_token_list *prompt,
                              size_t *begun, struct nib_error *err)
{
    struct nib_bytes piped = {0};
    struct nib_text text = nib_text_of(wishes->prompt);
    nib_status status = NIB_OK;
    if (!wishes->prompt || strcmp(wishes->prompt, "-") == 0) {
        status = read_stdin(&piped, err);
        text = (struct nib_text){piped.data, piped.size};
    }
    if (!status && text.size == 0)
        status = nib_fail(err, NIB_ERR_ARGUMENT, "the prompt is empty");
    struct nib_message question = nib_message_user(text);
    if (!status && wishes->raw)
        status =
            nib_tokenizer_encode(talk->session.tokenizer, text.bytes, text.size, NIB_ENCODE_SPECIAL, prompt, err);
    else if (!status && !(status = messages_add(&talk->dialogue.messages, &question, err)))
        status = dialogue_prompt(&talk->dialogue, talk->chat, talk->session.tokenizer, prompt, begun, err);
    nib_bytes_free(&piped);
    return status;
}

static void print_json(const struct talk *talk, const struct answer *answer, const struct generation *generation,
                       double load_seconds)
{
    json_t *root = answer_json(answer, generation);
    json_object_set_new(root, "load_seconds", json_real(load_seconds));
    json_object_set_new(root, "seed", json_integer((json_int_t)talk->sampling.seed));
    json_object_set_new(root, "device", json_string(nib_engine_device(talk->session.engine)));
    json_object_set_new(root, "threads", json_integer(nib_engine_threads(talk->session.engine)));
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(root);
}

// One answer; 130, as shells have it, when Ctrl-C cut it short.
static int answer_once(struct talk *talk, const struct wishes *wishes, double load_seconds)
{
    struct nib_token_list prompt = {0};
    struct answer answer = {0};
    struct generation generation;
    struct nib_error err;
    size_t begun = 0;
    nib_status status = make_prompt(talk, wishes, &prompt, &begun, &err);
    interrupt_catch();
    if (!status)
        status = talk_answer(talk, &prompt, begun, &answer, &generation, &err);
    int code = 0;
    if (status)
        code = report_error(&err);
    else {
        if (wishes->json)
            print_json(talk, &answer, &generation, load_seconds);
        talk_print_figures(talk, &answer, &generation);
        code = generation.finish == NIB_FINISH_CANCELLED ? 130 : 0;
    }
    answer_free(&answer);
    nib_token_list_free(&prompt);
    return code;
}

static int run(struct talk *talk, const struct wishes *wishes)
{
    struct nib_error err;
    double started = nib_seconds();
    bool interactive = !wishes->prompt && !wishes->json && isatty(STDIN_FILENO);
    talk->show = (struct show){.silent = wishes->json, .hide_reasoning = wishes->hide_reasoning};
    talk->quiet = wishes->json;
    talk->dialogue.instructions = wishes->system;
    nib_effort_from_name(wishes->reasoning, &talk->dialogue.effort);
    if (open_talk(talk, wishes, &err))
        return report_error(&err);
    if (!interactive)
        return answer_once(talk, wishes, nib_seconds() - started);
    interrupt_catch();
    return talk_interactively(talk);
}

int cmd_run(int argc, char **argv)
{
    struct talk talk = {.top_logprobs = -1};
    struct wishes w = {
        .reasoning = "medium", .temperature = -1, .top_p = -1, .min_p = -1, .top_k = -1, .seed = -1};
    w.session = session_defaults();
    const struct nib_option options[] = {
        {"--prompt", NIB_OPTION_STRING, &w.prompt, "TEXT", "answer this and exit; - reads standard input", 0, 0},
        {"--raw", NIB_OPTION_FLAG, &w.raw, NULL, "complete the prompt as it is; control tokens in it count", 0, 0},
        {"--system", NIB_OPTION_STRING, &w.system, "TEXT", "instructions for the model", 0, 0},
        {"--reasoning", NIB_OPTION_CHOICE, &w.reasoning, "none|low|medium|high", "how much it thinks first", 0, 0},
        {"--hide-reasoning", NIB_OPTION_FLAG, &w.hide_reasoning, NULL, "do not show what it thinks", 0, 0},
        {"--max-tokens", NIB_OPTION_INT, &talk.max_tokens, "N", "of an answer; 0: what the context holds", 0,
         1 << 30},
        {"--temperature", NIB_OPTION_REAL, &w.temperature, "X", "0: always the likeliest token", 0, 100},
        {"--top-k", NIB_OPTION_INT, &w.top_k, "N", "sample from the N likeliest tokens; 0: all", 0, INT32_MAX},
        {"--top-p", NIB_OPTION_REAL, &w.top_p, "X", "sample from the likeliest with probability X together", 0, 1},
        {"--min-p", NIB_OPTION_REAL, &w.min_p, "X", "drop tokens below X times the likeliest", 0, 1},
        {"--repetition-penalty", NIB_OPTION_REAL, &w.repetition_penalty, "X",
         "divide the logits of tokens that there are already; 1: not", 0.01, 100},
        {"--seed", NIB_OPTION_INT, &w.seed, "N", "of the sampling; without it another each time", 0, 1LL << 53},
        {"--stop", NIB_OPTION_LIST, &w.stop, "TEXT", "end the answer before TEXT; may be repeated", 0, 0},
        {"--logprobs", NIB_OPTION_INT, &talk.top_logprobs, "N", "log-probabilities with N alternatives", 0,
         NIB_MAX_TOP_LOGPROBS},
        option_json(&w.json),
        option_device(&w.session.device),
        option_deterministic(&w.session.deterministic),
        option_threads(&w.session.threads),
        option_context(&w.session.context),
        option_precision(&w.session.precision),
        option_dense_dtype(&w.session.dense_dtype),
        {"--force", NIB_OPTION_FLAG, &w.session.force, NULL, "run even if the memory does not suffice", 0, 0},
    };
    const struct nib_usage usage = {
        .command = "nibble run",
        .arguments = "MODEL",
        .summary =
            "Chats with the model in a checkpoint folder, or answers one prompt (--prompt, or standard input\n"
            "when that is no terminal). The answer goes to stdout, reasoning and figures to stderr. Sampling\n"
            "that is not given here comes from the folder's generation_config.json.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = &w.model,
        .min_positionals = 1,
        .n_positionals = 1,
    };
    int code = 0;
    if (!nib_parse_options(&usage, argc, argv, &code))
        return code;
    w.session.max_sequences = 1;
    w.session.print_plan = !w.json;
    code = run(&talk, &w);
    close_talk(&talk);
    return code;
}
