// Rewriting a checkpoint in another form, and proving that the result says the same.
//
// A conversion is planned from the source's headers alone, so its files, names, shapes and sizes are known before any
// weight is read. Then the weights stream through in chunks of experts, on all cores, into files that get their names
// only once they are whole. The result is the same bytes whatever the chunk, the thread count, the number of
// interruptions and the number of machines that shared the work.
//
// Threads: each call belongs to one thread, and uses `threads` OpenMP threads inside.
#ifndef NIBBLE_CONVERT_H
#define NIBBLE_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nibble/mx.h"
#include "nibble/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// What the routed experts become. All other tensors are passed through byte for byte unless options say otherwise.
enum nib_form {
    NIB_FORM_FUSED, // MXFP4, a layer in one tensor per projection: P.gate_up_proj_blocks [E, 2I, K/32, 16], …
    NIB_FORM_PER_EXPERT, // MXFP4, tensors of their own: P.E.gate_proj.weight [I, K/2], …
    NIB_FORM_FP8_CHANNEL, // E4M3 with one power of two per row, exactly the same values: P.E.gate_proj.weight [I, K]
    NIB_FORM_INT4_G32, // 4-bit integers with a bf16 scale per 32 (lossy): P.E.gate_proj.weight_packed I32 [I, K/8]
    NIB_FORM_MXFP4,    // from bf16, fp16, fp32 or FP8 experts (lossy); fused or per expert
    NIB_FORM_COUNT
};

const char *nib_form_name(enum nib_form form);             // "fused", "per-expert", "fp8-channel", …
bool nib_form_find(const char *name, enum nib_form *form); // false: there is none of that name

// How per-expert MXFP4 tensors are called. gate_proj, up_proj and down_proj stand for what the family says: those, or w1,
// w3 and w2 below block_sparse_moe (MiniMax) and ffn (DeepSeek).
enum nib_expert_names {
    NIB_NAMES_QUARK,              // E.gate_proj.weight U8, E.gate_proj.weight_scale U8
    NIB_NAMES_COMPRESSED_TENSORS, // E.gate_proj.weight_packed U8, E.gate_proj.weight_scale U8
    NIB_NAMES_DEEPSEEK,           // E.w1.weight I8, E.w1.scale F8_E8M0, whatever the family
    NIB_NAMES_COUNT
};

// Zeroed options with `form` set are fine.
struct nib_convert_options {
    enum nib_form form;
    enum nib_expert_names names; // per-expert MXFP4
    bool
        gate_up_concatenated; // fused: all gate rows, then all up rows; false: they alternate, as gpt-oss has them
    bool source_interleaved;  // how a source with fused w13 tensors orders its rows, which nothing in it shows
    bool dense_bf16;          // FP8 and MXFP4 matrices outside the experts become bf16
    bool lossy;               // consent to int4-g32, which does not keep the values
    const char *consumer_activations;  // int4-g32: what the consumer computes, "silu,swiglu_oai"; NULL: "silu"
    enum nib_mx_scale_rule scale_rule; // mxfp4
    bool fused;                        // mxfp4: write the fused form; false: per expert
    const char *const
        *dtype_map; /* [n_dtype_map] mxfp4: "GLOB=mxfp4" or "GLOB=keep", the first that fits counts */
    size_t n_dtype_map;
    uint64_t max_file_bytes; // a new file begins when one would grow beyond; 0: 5 GB
    int64_t chunk_experts;   // experts worked on at a time; 0: 8
    int threads;             // 0: as many as the process may use
    bool resume;             // files that an interrupted run finished are kept
    int64_t shard, shards;   // of `shards` runs this is number `shard` (from 1) and writes its share; 0: all
    bool merge;              // every share is there: check that and write what makes them one checkpoint
    // Called now and then from the calling thread; false ends the run with NIB_ERR_CANCELLED. `bytes` of `total_bytes`
    // of output are done.
    bool (*on_progress)(void *user, uint64_t bytes, uint64_t total_bytes);
    void *user;
};

// What rounding cost one projection of a layer's experts.
struct nib_convert_error {
    const char *prefix;                 // of the layer's experts, or the name of a dense matrix
    const char *projection;             // "gate", "up", "down" or ""
    double squared_error, squared_norm; // of all elements; relative L2 is the root of their quotient
    double worst;                       // the worst group of 32: its relative L2
    int64_t worst_expert, worst_row, worst_group;
};

struct nib_convert_report {
    uint64_t source_bytes, output_bytes; // of tensors: all that is read, all that is written
    uint64_t tensors, files, layers, experts;
    uint64_t files_kept;              // of an earlier run
    uint64_t dense_converted;         // matrices that became bf16
    uint64_t buffer_bytes;            // the most memory that buffers and a chunk's mapped pages take
    uint64_t span_rows[256];          // fp8-channel: rows by the spread of their scales, in binades
    struct nib_convert_error *errors; /* [n_errors] of lossy forms */
    size_t n_errors;
    char **unmatched; /* [n_unmatched] tensors below an expert's name that no form has a place for */
    size_t n_unmatched;
};

void nib_convert_report_free(struct nib_convert_report *report); // fine on a zero one

// Writes the checkpoint in `source` (a folder or one .safetensors file) to the folder `destination` in another form.
// The folder is made; what it already holds is never overwritten. `report` may be NULL; it is filled in as far as the
// run came and freed with nib_convert_report_free.
// NIB_ERR_ARGUMENT for options that cannot work, among them a destination that is the source; NIB_ERR_UNSUPPORTED for a
// form that the source cannot take, such as a row without an exact FP8 form (the message names tensor and row);
// NIB_ERR_FORMAT for a scale of 255 (NaN); NIB_ERR_IO when the system refuses, the disk being full among it.
// A failed run leaves finished files and no config.json, so that nothing there looks like a checkpoint.
nib_status nib_convert(const char *source, const char *destination, const struct nib_convert_options *options,
                       struct nib_convert_report *report, struct nib_error *err);

// The same without reading a weight or writing anything: sizes, counts and unmatched tensors of the report.
nib_status nib_convert_dry_run(const char *source, const struct nib_convert_options *options,
                               struct nib_convert_report *report, struct nib_error *err);

// All zero is fine.
struct nib_verify_options {
    bool has_form, has_scale_rule; // false: what the destination's own metadata says
    enum nib_form form;
    enum nib_mx_scale_rule scale_rule;
    bool source_interleaved; // as in nib_convert_options
    double sample;           // share of the rows to compare; 0 or 1: all, and only then is anything proven
    int threads;             // 0: as many as the process may use
    // Called now and then from the calling thread; false ends the run with NIB_ERR_CANCELLED.
    bool (*on_progress)(void *user, uint64_t bytes, uint64_t total_bytes);
    void *user;
};

struct nib_verify_report {
    enum nib_form form;
    bool proven;       // everything compared, nothing differs
    uint64_t tensors;  // of the destination, each accounted for
    uint64_t elements; // compared one by one
    uint64_t bytes;    // of the destination's tensors that were compared
    uint64_t problems; // how many differences were found
    char **messages;   /* [n_messages] the first of them */
    size_t n_messages;
};

void nib_verify_report_free(struct nib_verify_report *report); // fine on a zero one

// Proves that `destination` is `source` in another form: every tensor once and nothing else, each element equal as
// (sign, mantissa, exponent) for exact forms and recomputed for lossy ones, the rest byte for byte, configuration and
// side files as they should be. Decodes with code of its own. NIB_OK: the comparison took place and the report says what
// came of it; an error: it could not.
nib_status nib_verify(const char *source, const char *destination, const struct nib_verify_options *options,
                      struct nib_verify_report *report, struct nib_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
