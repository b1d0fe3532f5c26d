// The conversation at a terminal.
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/talk.h"

static const char help[] = "  /system TEXT               instructions for the model; without TEXT none\n"
                           "  /reasoning low|medium|high how much it thinks before it answers\n"
                           "  /reset                     forget the conversation\n"
                           "  /exit                      leave (or Ctrl-D)\n"
                           "A line that ends in \\ goes on in the next one. Ctrl-C stops an answer.\n";

// Appends a line without its newline; false at the end of the input, or after a second Ctrl-C in a row.
static bool read_line(const char *prompt, struct nib_bytes *line)
{
    char *text = NULL;
    size_t capacity = 0;
    bool warned = false;
    for (;;) {
        fputs(prompt, stderr);
        ssize_t size = interrupt_wait_readable(STDIN_FILENO) ? getline(&text, &capacity, stdin) : -1;
        if (size >= 0) {
            if (size > 0 && text[size - 1] == '\n')
                size--;
            bool kept = nib_bytes_append(line, text, (size_t)size, NULL) == NIB_OK;
            free(text);
            return kept;
        }
        fputc('\n', stderr);
        if (!interrupted() || warned) {
            free(text);
            return false;
        }
        interrupt_clear();
        clearerr(stdin);
        line->size = 0;
        warned = true;
        fputs("(Ctrl-C again, Ctrl-D or /exit leaves)\n", stderr);
    }
}

// One input: several lines when all but the last end in a backslash.
static bool read_input(struct nib_bytes *input)
{
    input->size = 0;
    interrupt_clear();
    for (bool more = false;; more = true) {
        if (!read_line(more ? "... " : ">>> ", input))
            return false;
        if (input->size == 0 || input->data[input->size - 1] != '\\')
            return true;
        input->data[input->size - 1] = '\n';
    }
}

// The argument of a command ("" when there is none), or NULL when `input` is another one.
static const char *argument_of(const char *input, const char *command)
{
    size_t length = strlen(command);
    if (strncmp(input, command, length) != 0 || (input[length] && input[length] != ' '))
        return NULL;
    return input + length + strspn(input + length, " ");
}

// False: leave.
static bool run_command(struct talk *talk, const char *input, struct nib_bytes *instructions)
{
    const char *argument;
    if (argument_of(input, "/exit") || argument_of(input, "/quit"))
        return false;
    if (argument_of(input, "/help"))
        fputs(help, stderr);
    else if (argument_of(input, "/reset"))
        messages_cut(&talk->dialogue.messages, 0);
    else if ((argument = argument_of(input, "/system"))) {
        instructions->size = 0;
        if (nib_bytes_append(instructions, argument, strlen(argument), NULL) == NIB_OK)
            talk->dialogue.instructions = instructions->data;
    } else if ((argument = argument_of(input, "/reasoning"))) {
        if (!nib_effort_from_name(argument, &talk->dialogue.effort))
            fputs("/reasoning takes none, low, medium or high\n", stderr);
    } else
        fputs("unknown command; /help lists them\n", stderr);
    return true;
}

// What was said stays in the conversation; after a failure the question does not.
static nib_status converse(struct talk *talk, const struct nib_bytes *input, struct nib_error *err)
{
    struct messages *said = &talk->dialogue.messages;
    size_t before = said->count;
    struct nib_message question = nib_message_user((struct nib_text){input->data, input->size});
    struct nib_token_list prompt = {0};
    struct answer answer = {0};
    struct generation generation;
    size_t begun = 0;
    nib_status status = messages_add(said, &question, err);
    if (!status)
        status = dialogue_prompt(&talk->dialogue, talk->chat, talk->session.tokenizer, &prompt, &begun, err);
    if (!status)
        status = talk_answer(talk, &prompt, begun, &answer, &generation, err);
    if (!status) {
        talk_print_figures(talk, &answer, &generation);
        status = messages_add_all(said, &answer.messages, err);
    }
    if (status)
        messages_cut(said, before);
    answer_free(&answer);
    nib_token_list_free(&prompt);
    return status;
}

static nib_status complete(struct talk *talk, const struct nib_bytes *input, struct nib_error *err)
{
    struct nib_token_list prompt = {0};
    struct answer answer = {0};
    struct generation generation;
    nib_status status =
        nib_tokenizer_encode(talk->session.tokenizer, input->data, input->size, NIB_ENCODE_SPECIAL, &prompt, err);
    if (!status)
        status = talk_answer(talk, &prompt, 0, &answer, &generation, err);
    if (!status)
        talk_print_figures(talk, &answer, &generation);
    answer_free(&answer);
    nib_token_list_free(&prompt);
    return status;
}

int talk_interactively(struct talk *talk)
{
    struct nib_bytes input = {0}, instructions = {0};
    struct nib_error err;
    fprintf(stderr, "%s, %d threads, context %d. /help lists commands, Ctrl-D leaves.\n",
            nib_engine_device(talk->session.engine), nib_engine_threads(talk->session.engine),
            nib_engine_memory(talk->session.engine)->context);
    while (read_input(&input)) {
        if (input.size == 0)
            continue;
        if (talk->chat && input.data[0] == '/') {
            if (!run_command(talk, input.data, &instructions))
                break;
            continue;
        }
        interrupt_clear();
        nib_status status = (talk->chat ? converse : complete)(talk, &input, &err);
        if (status)
            report_error(&err);
        if (status == NIB_ERR_LIMIT && talk->dialogue.messages.count)
            fputs("the conversation has become too long; /reset begins another\n", stderr);
        talk->sampling.seed++;
    }
    nib_bytes_free(&input);
    nib_bytes_free(&instructions);
    return 0;
}
