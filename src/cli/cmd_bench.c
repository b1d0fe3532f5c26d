// nibble bench: what to measure.
#include "cli/commands.h"

int cmd_bench(int argc, char **argv)
{
    static const struct nib_command commands[] = {
        {"decode", "a whole model's decode and prefill speed", cmd_bench_decode},
        {"moe", "one MoE layer, beside the machine's read bandwidth and the unpack path", cmd_bench_moe},
        {"serve", "load on a running server: latencies and tokens per second", cmd_bench_serve},
    };
    return dispatch("usage: nibble bench WHAT [OPTIONS]   (nibble bench WHAT --help says more)", commands,
                    sizeof commands / sizeof *commands, argc, argv);
}
