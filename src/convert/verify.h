// Proving a conversion. Nothing here is shared with the converter but the reading of the source: names, positions,
// decoding and rounding are worked out again.
#ifndef NIB_CONVERT_VERIFY_H
#define NIB_CONVERT_VERIFY_H

#include "convert/source.h"
#include "nibble/convert.h"

enum nib_check_kind {
    NIB_CHECK_BYTES,  // a tensor passed through
    NIB_CHECK_CODES,  // packed codes and scales, as they were
    NIB_CHECK_FP8,    // equal elements
    NIB_CHECK_INT4,   // recomputed
    NIB_CHECK_ENCODE, // recomputed
    NIB_CHECK_BF16,   // recomputed
};

// One matrix of the source, or one tensor of any kind, against what stands for it.
struct nib_check {
    enum nib_check_kind kind;
    struct nib_matrix source;                            // rows x cols; of bytes: data and rows
    const struct nib_tensor *weight, *scale, *bias;      // of the destination; NULL: it has none
    const uint8_t *weight_rows, *scale_rows, *bias_rows; // where row 0 is
    int64_t weight_stride, scale_stride, bias_stride;    // in bytes
    int64_t bias_bytes;                                  // of one row's bias
    int64_t expert;                                      // for messages; -1: a matrix of its own
};

struct nib_verifier {
    const struct nib_verify_options *options;
    struct nib_source source;
    struct nib_checkpoint *destination;
    bool *claimed; /* [tensors of the destination] */
    enum nib_form form;
    enum nib_mx_scale_rule rule;
    bool fused, concatenated;
    struct nib_check *checks; /* [n_checks] */
    size_t n_checks, capacity;
    struct nib_verify_report *report;
};

// Notes a difference; the first ones keep their words. Any thread may call it.
void nib_verify_problem(struct nib_verifier *verifier, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// What the destination has to hold, and claims it: fills in the checks.
nib_status nib_verify_claims(struct nib_verifier *verifier, struct nib_error *err);

// Metadata, configuration, index and side files.
nib_status nib_verify_side(struct nib_verifier *verifier, struct nib_error *err);

// The first row of [first, first + count) that differs, and why; -1 when none does. `sample` in (0, 1) skips rows.
int64_t nib_verify_rows(const struct nib_verifier *verifier, const struct nib_check *check, int64_t first,
                        int64_t count, uint64_t *elements, const char **why);

#endif
