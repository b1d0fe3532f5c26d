// What a conversion reads: every layer's experts as matrices, whatever their tensors are called, and the order in which
// the tensors lie in their files. Converting and verifying read through this, and share nothing else.
#ifndef NIB_CONVERT_SOURCE_H
#define NIB_CONVERT_SOURCE_H

#include "checkpoint/internal.h"
#include "nibble/checkpoint.h"

enum nib_part { NIB_PART_GATE, NIB_PART_UP, NIB_PART_DOWN, NIB_PART_COUNT };

extern const char *const nib_part_names[NIB_PART_COUNT]; // "gate", "up", "down"

// One matrix where it lies in the map. `scale` is NULL for plain floats; strides are in bytes, so that interleaved,
// transposed and separate tensors are all the same thing.
struct nib_matrix {
    int64_t rows, cols;             // in elements
    enum nib_dtype dtype;           // NIB_U8: packed MXFP4; else F32, F16, BF16 or F8_E4M3
    const uint8_t *data;            // element [r, c] at r * row_stride + c * col_stride; packed rows have no
    int64_t row_stride, col_stride; // col_stride
    const uint8_t *scales;          // of the row's block r / block_rows at that number times scale_stride
    int64_t scale_stride;
    enum nib_dtype scale_dtype;     // NIB_U8 stands for E8M0
    int64_t block_rows, block_cols; // elements that share one scale
    const uint8_t *bias;            // NULL, or the bias of row r at r * bias_stride
    int64_t bias_stride;
};

// The routed experts of one layer.
struct nib_group {
    const char *prefix; // "model.layers.3.mlp.experts"
    int64_t hidden, intermediate, n_experts;
    bool packed;      // MXFP4; false: floats
    bool fused;       // all experts in one tensor
    bool interleaved; // gate and up rows alternate there
    bool has_bias;
    enum nib_dtype bias_dtype;
    struct nib_matrix (*experts)[NIB_PART_COUNT]; /* [n_experts] */
    const struct nib_tensor *first; // the gate's weight of expert 0: where the layer stands in its file
    uint64_t bytes;                 // of its tensors
};

struct nib_source {
    struct nib_checkpoint *checkpoint;
    size_t *order;            /* [tensors] their numbers, in the order in which they lie in the files */
    struct nib_group *groups; /* [n_groups] by layer */
    size_t n_groups;
};

// Opens the checkpoint and reads every layer's experts, whose tensors then count as used. With `floats` experts may be
// of any element type; otherwise other than MXFP4 is refused. `interleaved` is for fused tensors that do not say.
nib_status nib_source_open(const char *path, bool floats, bool interleaved, struct nib_source *source,
                           struct nib_error *err);
void nib_source_close(struct nib_source *source); // fine on a zero one

// A dense matrix (FP8 with its scales, or MXFP4) as one of the above.
struct nib_matrix nib_source_linear(const struct nib_linear_view *view);

// Experts that are not MXFP4, in whichever of the known layouts. Marks their tensors as used.
nib_status nib_source_float_group(struct nib_checkpoint *checkpoint, const char *prefix, struct nib_group *group,
                                  struct nib_error *err);

// `count` values of row r from element c on. All are exact.
void nib_matrix_values(const struct nib_matrix *matrix, int64_t r, int64_t c, int64_t count,
                       double *values /* [count] */);

// Begins to read bytes of a checkpoint's files that will be wanted soon.
void nib_prefetch(const struct nib_checkpoint *checkpoint, const void *address, uint64_t bytes);

// Lets go of all pages of a checkpoint's files that were read so far.
void nib_release_pages(const struct nib_checkpoint *checkpoint);

// A number that tells one source from another: by its tensors' names, types, shapes and first bytes, and its
// configuration.
uint64_t nib_source_fingerprint(const struct nib_source *source);

// Fails with the name of the tensor that `address` lies in, and the row there of `row_bytes` bytes: "FILE: TENSOR,
// expert E, row R: WHAT".
nib_status nib_source_fail_row(const struct nib_source *source, const void *address, nib_status status,
                               const char *what, struct nib_error *err);

#endif
