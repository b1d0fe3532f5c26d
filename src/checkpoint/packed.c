// One packed MXFP4 matrix (or a stack of them) and its scales: do types and shapes fit together?
#include <stdio.h>

#include "base/error.h"
#include "checkpoint/experts.h"

static nib_status fail_tensor(const struct nib_tensor *tensor, nib_status status, const char *why,
                              struct nib_error *err)
{
    char text[200];
    return nib_fail(err, status, "%s: %s: %s: %s", tensor->file, tensor->name,
                    nib_tensor_describe(tensor, text, sizeof text), why);
}

static nib_status fail_shape(const struct nib_packed *packed, const struct nib_tensor *tensor,
                             struct nib_error *err)
{
    char text[200], weight[200];
    return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %s does not fit %s: %s", tensor->file, tensor->name,
                    nib_tensor_describe(tensor, text, sizeof text), packed->weight->name,
                    nib_tensor_describe(packed->weight, weight, sizeof weight));
}

static nib_status check_weight(struct nib_packed *packed, bool fused, struct nib_error *err)
{
    const struct nib_tensor *weight = packed->weight;
    int first = fused ? 1 : 0; // the dimension of the rows
    if (weight->dtype != NIB_U8 && weight->dtype != NIB_I8)
        return fail_tensor(weight, NIB_ERR_UNSUPPORTED, "not MXFP4, which is U8 or I8 with two codes a byte", err);
    bool blocks = weight->rank == first + 3 && weight->shape[first + 2] == NIB_MX_BLOCK / 2;
    if (weight->rank != first + 2 && !blocks)
        return fail_tensor(weight, NIB_ERR_FORMAT,
                           fused ? "not [experts, rows, cols/2] or [experts, rows, cols/32, 16]"
                                 : "not [rows, cols/2] or [rows, cols/32, 16]",
                           err);
    packed->experts = fused ? weight->shape[0] : 1;
    packed->rows = weight->shape[first];
    packed->cols = 2 * (blocks ? weight->shape[first + 1] * (NIB_MX_BLOCK / 2) : weight->shape[first + 1]);
    if (weight->bytes == 0 || packed->cols % NIB_MX_BLOCK != 0)
        return fail_tensor(weight, NIB_ERR_FORMAT, "a row is not a positive multiple of 32 elements (16 bytes)",
                           err);
    return NIB_OK;
}

static nib_status check_scale(const struct nib_packed *packed, bool fused, struct nib_error *err)
{
    const struct nib_tensor *scale = packed->scale;
    int first = fused ? 1 : 0;
    if (scale->dtype != NIB_U8 && scale->dtype != NIB_F8_E8M0)
        return fail_tensor(scale, NIB_ERR_UNSUPPORTED, "not the scales of MXFP4, which are U8 or F8_E8M0", err);
    if (scale->rank != first + 2 || (fused && scale->shape[0] != packed->experts) ||
        scale->shape[first] != packed->rows || scale->shape[first + 1] != packed->cols / NIB_MX_BLOCK)
        return fail_shape(packed, scale, err);
    return NIB_OK;
}

static nib_status check_bias(const struct nib_packed *packed, bool fused, struct nib_error *err)
{
    const struct nib_tensor *bias = packed->bias;
    if (!bias)
        return NIB_OK;
    int first = fused ? 1 : 0;
    if (!nib_dtype_is_plain(bias->dtype))
        return fail_tensor(bias, NIB_ERR_UNSUPPORTED, "an expert's bias must be BF16, F16, or F32", err);
    if (bias->rank != first + 1 || (fused && bias->shape[0] != packed->experts) ||
        bias->shape[first] != packed->rows)
        return fail_shape(packed, bias, err);
    return NIB_OK;
}

nib_status nib_packed_check(struct nib_packed *packed, bool fused, struct nib_error *err)
{
    nib_status status = check_weight(packed, fused, err);
    if (status == NIB_OK)
        status = check_scale(packed, fused, err);
    if (status == NIB_OK)
        status = check_bias(packed, fused, err);
    packed->codes = packed->weight->data;
    packed->scales = packed->scale->data;
    return status;
}
