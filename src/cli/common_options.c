#include "cli/common_options.h"

struct nib_option option_device(const char **device)
{
    return (struct nib_option){"--device", NIB_OPTION_CHOICE, device, "cpu|cuda|cuda:N|ref", "what computes", 0,
                               0};
}

struct nib_option option_threads(int64_t *threads)
{
    return (struct nib_option){
        "--threads", NIB_OPTION_INT, threads, "N", "CPU threads, 0: as many as the process may use", 0, 1024};
}

struct nib_option option_context(int64_t *tokens)
{
    return (struct nib_option){"--context", NIB_OPTION_INT, tokens, "N", "tokens; 0: the model's own or what fits",
                               0,           1 << 30};
}

struct nib_option option_precision(const char **precision)
{
    return (struct nib_option){"--precision",
                               NIB_OPTION_CHOICE,
                               precision,
                               "auto|fast|exact",
                               "bf16 activations and cache, or exact (avx2 experts 16 bits); auto: exact if small",
                               0,
                               0};
}

struct nib_option option_dense_dtype(const char **dtype)
{
    return (struct nib_option){"--dense-dtype",
                               NIB_OPTION_CHOICE,
                               dtype,
                               "stored|int8",
                               "dense matrices as stored, or in 8 bits (faster, lossy)",
                               0,
                               0};
}

struct nib_option option_deterministic(bool *deterministic)
{
    return (struct nib_option){"--deterministic",
                               NIB_OPTION_FLAG,
                               deterministic,
                               NULL,
                               "cuda: the same bits whatever else is in a step (cpu and ref: always so)",
                               0,
                               0};
}

struct nib_option option_json(bool *json)
{
    return (struct nib_option){"--json", NIB_OPTION_FLAG, json, NULL, "print the result as JSON", 0, 0};
}
