// What a conversion will write: files, their tensors, and what each tensor's rows are made from. A plan follows from the
// source's headers and the options alone, so every run on every machine makes the same one.
#ifndef NIB_CONVERT_PLAN_H
#define NIB_CONVERT_PLAN_H

#include <jansson.h>

#include "convert/source.h"
#include "nibble/convert.h"

// How a unit's rows are made.
enum nib_recipe {
    NIB_RECIPE_COPY,   // bytes as they are: a row is one byte
    NIB_RECIPE_MXFP4,  // codes, scales and bias as they are
    NIB_RECIPE_FP8,    // codes and scales to E4M3 with one scale
    NIB_RECIPE_INT4,   // codes and scales to integers
    NIB_RECIPE_ENCODE, // floats to codes and scales
    NIB_RECIPE_BF16,   // a dense matrix to bf16
};

// Which matrices a unit's rows come from.
enum nib_stack {
    NIB_STACK_NONE,         // one matrix
    NIB_STACK_DOWN,         // the down matrices of all experts, one after the other
    NIB_STACK_INTERLEAVED,  // gate and up rows of all experts, alternating
    NIB_STACK_CONCATENATED, // for each expert its gate rows, then its up rows
};

struct nib_output {
    char *name;
    enum nib_dtype dtype;
    int rank;
    int64_t shape[NIB_TENSOR_MAX_RANK];
    uint64_t bytes;
    uint64_t row_bytes; // of one row of its unit; 0: all of it comes with row 0
    uint64_t offset;    // in its file's data
};

enum { NIB_UNIT_OUTPUTS = 4 };

// Tensors that are made together, row by row, and lie together in their file.
struct nib_unit {
    enum nib_recipe recipe;
    enum nib_stack stack;
    const uint8_t *bytes;            // NIB_RECIPE_COPY
    const struct nib_matrix *matrix; // the matrix, or that of part 0 of expert 0 of a stack
    struct nib_matrix own;           // where `matrix` points for dense matrices
    int64_t rows, cols;              // of the whole unit; cols in elements
    int64_t part_rows;               // rows of one expert in a stack
    uint64_t source_bytes;
    struct nib_output outputs[NIB_UNIT_OUTPUTS];
    int n_outputs;
    int64_t error_entry; // of a lossy unit's gate (up and down follow) or dense matrix in the report; -1: exact
    int64_t expert;      // of a unit of its own
    enum nib_part part;
};

struct nib_plan_file {
    char name[48];
    size_t first, count; // of the plan's units
    uint64_t data_bytes;
};

enum nib_fp8_verdict { NIB_FP8_EXACT, NIB_FP8_NAN, NIB_FP8_WIDE, NIB_FP8_SMALL };

// 16 packed bytes and a scale per block to E4M3 and one scale 2^k, exactly. `*span` is the spread in binades of the
// scales of blocks that are not zero. Why there is no exact form: a scale is NaN, the elements' exponents spread over
// more than 13 binades, or k is below -126.
typedef enum nib_fp8_verdict nib_fp8_row(const uint8_t *codes /* [cols/2] */,
                                         const uint8_t *scales /* [cols/32] */, int64_t cols,
                                         uint8_t *bytes /* [cols] */, float *scale, int *span);

struct nib_plan {
    struct nib_convert_options options;
    const struct nib_source *source;
    struct nib_unit *units; /* [n_units] */
    size_t n_units, capacity;
    struct nib_plan_file *files; /* [n_files] */
    size_t n_files;
    nib_fp8_row *fp8_row;
    json_t *metadata; // __metadata__ of every file
    json_t *modules;  // names of the matrices that are left as they were, for config.json
    struct nib_convert_report report;
};

// Frees with nib_plan_free also after a failure. The source must outlive the plan.
nib_status nib_plan_make(const struct nib_source *source, const struct nib_convert_options *options,
                         struct nib_plan *plan, struct nib_error *err);
void nib_plan_free(struct nib_plan *plan);

// The units of one layer's experts; part of nib_plan_make.
nib_status nib_plan_group(struct nib_plan *plan, const struct nib_group *group, struct nib_error *err);

// An empty unit at the plan's end, or NULL without memory.
struct nib_unit *nib_plan_add(struct nib_plan *plan);
// One more tensor of the unit: its name is made from the format.
nib_status nib_unit_add(struct nib_unit *unit, enum nib_dtype dtype, uint64_t row_bytes, int rank,
                        const int64_t *shape /* [rank] */, struct nib_error *err, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
// Whose names MXFP4 matrices get: those asked for where experts are in tensors of their own.
enum nib_expert_names nib_plan_dialect(const struct nib_convert_options *options);
// The two tensors of an MXFP4 matrix, called after `name` in the dialect.
nib_status nib_unit_add_packed(struct nib_unit *unit, const char *name, enum nib_expert_names dialect,
                               struct nib_error *err);
// An entry of the report, or -1 without memory.
int64_t nib_plan_add_error(struct nib_plan *plan, const char *prefix, const char *projection);

// What dtype_map says about a matrix called `name`: true is MXFP4.
bool nib_plan_wants_mxfp4(const struct nib_convert_options *options, const char *name, bool otherwise);

// The file's header as it is written: length, JSON, padding. Free *bytes.
nib_status nib_plan_header(const struct nib_plan *plan, size_t file, uint8_t **bytes, uint64_t *size,
                           struct nib_error *err);

// The destination's config.json, also where the source is a file without one; a new reference.
nib_status nib_plan_config(const struct nib_plan *plan, json_t **config, struct nib_error *err);

// model.safetensors.index.json; a new reference, NULL when there is only one file.
nib_status nib_plan_index(const struct nib_plan *plan, json_t **index, struct nib_error *err);

#endif
