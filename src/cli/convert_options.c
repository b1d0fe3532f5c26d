#include "cli/convert_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/common_options.h"

#define FORMS "fused|per-expert|fp8-channel|int4-g32|mxfp4"

struct convert_arguments convert_defaults(void)
{
    return (struct convert_arguments){
        .gate_up = "interleaved",
        .source_gate_up = "concatenated",
        .dense = "keep",
        .names = "quark",
        .experts = "per-expert",
        .scale_rule = "even",
        .activations = "silu",
        .file_gigabytes = 5,
        .chunk = 8,
    };
}

int convert_option_table(struct convert_arguments *a, struct nib_option *options /* [CONVERT_OPTIONS] */)
{
    const struct nib_option table[] = {
        {"--to", NIB_OPTION_CHOICE, &a->to, FORMS, "the form to write", 0, 0},
        {"--gate-up", NIB_OPTION_CHOICE, &a->gate_up, "interleaved|concatenated", "fused: order of the rows", 0,
         0},
        {"--names", NIB_OPTION_CHOICE, &a->names, "quark|compressed-tensors|deepseek",
         "per-expert MXFP4: whose names to use", 0, 0},
        {"--dense", NIB_OPTION_CHOICE, &a->dense, "keep|bf16", "FP8 and MXFP4 matrices outside the experts", 0, 0},
        {"--lossy", NIB_OPTION_FLAG, &a->lossy, NULL, "consent to int4-g32", 0, 0},
        {"--consumer-activations", NIB_OPTION_STRING, &a->activations, "LIST",
         "int4-g32: activations that its consumer computes", 0, 0},
        {"--experts", NIB_OPTION_CHOICE, &a->experts, "per-expert|fused", "mxfp4: how the experts are stored", 0,
         0},
        {"--scale-rule", NIB_OPTION_CHOICE, &a->scale_rule, "ocp|even|rceil|search", "mxfp4: choice of the scales",
         0, 0},
        {"--dtype-map", NIB_OPTION_LIST, &a->dtype_map, "NAME=mxfp4|keep",
         "mxfp4: what becomes of the matrices so named (* fits all); without it experts; repeatable", 0, 0},
        {"--source-gate-up", NIB_OPTION_CHOICE, &a->source_gate_up, "concatenated|interleaved",
         "order of the rows in a source with fused w13 that does not say", 0, 0},
        {"--file-size", NIB_OPTION_REAL, &a->file_gigabytes, "GB", "begin a new file beyond", 1e-6, 1e6},
        {"--chunk", NIB_OPTION_INT, &a->chunk, "N", "experts worked on at a time", 1, 4096},
        option_threads(&a->threads),
        {"--resume", NIB_OPTION_FLAG, &a->resume, NULL, "go on with an interrupted run", 0, 0},
        {"--shard", NIB_OPTION_STRING, &a->shard, "I/N", "write only share I (from 1) of N, for a job array", 0,
         0},
        {"--merge", NIB_OPTION_FLAG, &a->merge, NULL, "all shares are there: make them one checkpoint", 0, 0},
    };
    _Static_assert(sizeof table / sizeof *table <= CONVERT_OPTIONS, "CONVERT_OPTIONS is too small");
    memcpy(options, table, sizeof table);
    return (int)(sizeof table / sizeof *table);
}

bool convert_find_rule(const char *name, enum nib_mx_scale_rule *rule)
{
    static const char *const rules[] = {"ocp", "even", "rceil", "search"};
    for (int r = 0; r < 4; r++)
        if (strcmp(name, rules[r]) == 0) {
            *rule = (enum nib_mx_scale_rule)r;
            return true;
        }
    return false;
}

static bool mistake(const char *text, int *exit_code)
{
    fprintf(stderr, "nibble: %s\n", text);
    *exit_code = 2;
    return false;
}

static bool read_shard(const char *text, struct nib_convert_options *options)
{
    if (!text)
        return true;
    char *end;
    long long shard = strtoll(text, &end, 10), shards = *end == '/' ? strtoll(end + 1, &end, 10) : 0;
    if (*end || shard < 1 || shard > shards || shards > 100000)
        return false;
    options->shard = shard;
    options->shards = shards;
    return true;
}

// An option that says nothing of the form asked for would be a wish that is dropped.
static const char *idle_option(const struct convert_arguments *a, const struct nib_convert_options *options)
{
    bool mxfp4 = options->form == NIB_FORM_MXFP4, int4 = options->form == NIB_FORM_INT4_G32;
    bool fused = options->form == NIB_FORM_FUSED || (mxfp4 && options->fused);
    bool per_expert = options->form == NIB_FORM_PER_EXPERT || (mxfp4 && !options->fused);
    const struct convert_arguments defaults = convert_defaults();
    const struct {
        bool idle;
        const char *why;
    } options_of_forms[] = {
        {!fused && options->gate_up_concatenated, "--gate-up is for fused experts"},
        {!per_expert && options->names != NIB_NAMES_QUARK, "--names is for MXFP4 experts in tensors of their own"},
        {!int4 && strcmp(a->activations, defaults.activations) != 0,
         "--consumer-activations is for --to int4-g32"},
        {!mxfp4 && options->fused, "--experts is for --to mxfp4"},
        {!mxfp4 && strcmp(a->scale_rule, defaults.scale_rule) != 0, "--scale-rule is for --to mxfp4"},
        {!mxfp4 && a->dtype_map.count > 0, "--dtype-map is for --to mxfp4"},
        {options->merge && a->shard, "--shard writes one share, --merge ends the work when all are there"},
    };
    for (size_t i = 0; i < sizeof options_of_forms / sizeof *options_of_forms; i++)
        if (options_of_forms[i].idle)
            return options_of_forms[i].why;
    return NULL;
}

bool convert_read_arguments(const struct convert_arguments *a, struct nib_convert_options *options, int *exit_code)
{
    *options = (struct nib_convert_options){
        .gate_up_concatenated = strcmp(a->gate_up, "concatenated") == 0,
        .source_interleaved = strcmp(a->source_gate_up, "interleaved") == 0,
        .dense_bf16 = strcmp(a->dense, "bf16") == 0,
        .lossy = a->lossy,
        .consumer_activations = a->activations,
        .fused = strcmp(a->experts, "fused") == 0,
        .dtype_map = a->dtype_map.items,
        .n_dtype_map = a->dtype_map.count,
        .max_file_bytes = (uint64_t)(a->file_gigabytes * 1e9),
        .chunk_experts = a->chunk,
        .threads = (int)a->threads,
        .resume = a->resume,
        .merge = a->merge,
    };
    if (!a->to || !nib_form_find(a->to, &options->form))
        return mistake("--to FORM is missing: fused, per-expert, fp8-channel, int4-g32 or mxfp4", exit_code);
    if (strcmp(a->names, "compressed-tensors") == 0)
        options->names = NIB_NAMES_COMPRESSED_TENSORS;
    else if (strcmp(a->names, "deepseek") == 0)
        options->names = NIB_NAMES_DEEPSEEK;
    convert_find_rule(a->scale_rule, &options->scale_rule);
    if (!read_shard(a->shard, options))
        return mistake("--shard takes I/N with I from 1 to N, and N up to 100000", exit_code);
    const char *idle = idle_option(a, options);
    return !idle || mistake(idle, exit_code);
}
