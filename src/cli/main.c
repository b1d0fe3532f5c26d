// nibble: run, inspect, check, evaluate and measure MXFP4 mixture-of-experts models.
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "nibble/version.h"

int report_error(const struct nib_error *err)
{
    fprintf(stderr, "nibble: %s\n", err->message);
    return 1;
}

static void print_commands(FILE *out, const char *usage, const struct nib_command *commands, int count)
{
    fprintf(out, "%s\n\n", usage);
    for (int i = 0; i < count; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
}

int dispatch(const char *usage, const struct nib_command *commands, int count, int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        print_commands(stdout, usage, commands, count);
        return 0;
    }
    for (int i = 0; argc > 0 && i < count; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (argc > 0)
        fprintf(stderr, "nibble: unknown command \"%s\"\n", argv[0]);
    print_commands(stderr, usage, commands, count);
    return 2;
}

// Where a shell closed standard output or error (>&-), no file that is opened may take its number, and get what is
// printed.
static void hold_standard_files(void)
{
    int file;
    do
        file = open("/dev/null", O_RDONLY | O_CLOEXEC); // so that printing fails
    while (file >= 0 && file <= STDERR_FILENO);
    if (file >= 0)
        close(file);
}

// What was printed may not have arrived: a full disk must not look like success.
static int end_output(int code)
{
    errno = 0;
    bool failed = fflush(stdout) != 0;
    if (!failed && !ferror(stdout))
        return code;
    fprintf(stderr, "nibble: standard output cannot be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return code ? code : 1;
}

int main(int argc, char **argv)
{
    static const struct nib_command commands[] = {
        {"bench", "measure this machine and the kernels on it", cmd_bench},
        {"run", "chat with a model, or answer one prompt", cmd_run},
        {"serve", "serve a model over HTTP with OpenAI's API", cmd_serve},
        {"inspect", "what a checkpoint holds and how it would run", cmd_inspect},
        {"parity", "hold the kernels against exact results", cmd_parity},
        {"convert", "write a checkpoint in another form", cmd_convert},
        {"verify", "prove that a converted checkpoint says the same", cmd_verify},
        {"check", "compare a model's logits and greedy tokens with stored ones", cmd_check},
        {"eval", "negative log-likelihood of a text, accuracy on tasks", cmd_eval},
    };
    hold_standard_files();
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("nibble %s\n", NIB_VERSION);
        return end_output(0);
    }
    return end_output(dispatch(
        "nibble: MXFP4 mixture-of-experts models on CPUs and Hopper GPUs, straight from the packed weights.\n"
        "usage: nibble COMMAND [ARGUMENTS]   (nibble COMMAND --help says more)",
        commands, sizeof commands / sizeof *commands, argc - 1, argv + 1));
}
