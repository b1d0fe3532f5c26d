// Dense matrices: which number format, and how far one scale reaches.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/experts.h"

static nib_status fail_view(const struct nib_tensor *tensor, nib_status status, const char *why,
                            struct nib_error *err)
{
    char text[200];
    return nib_fail(err, status, "%s: %s: %s: %s", tensor->file, tensor->name,
                    nib_tensor_describe(tensor, text, sizeof text), why);
}

static int64_t blocks_of(int64_t length, int64_t block)
{
    return length / block + (length % block != 0);
}

// Shapes alone tell the block apart, save for matrices so small that both answers mean the same.
static bool fit_blocks(struct nib_linear_view *view)
{
    const int64_t candidates[][2] = {
        {1, view->cols}, {view->rows, view->cols}, {128, 128}, {32, 32}, {1, 128}, {1, NIB_MX_BLOCK},
    };
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        if (blocks_of(view->rows, candidates[i][0]) != view->scale_rows ||
            blocks_of(view->cols, candidates[i][1]) != view->scale_cols)
            continue;
        view->block_rows = candidates[i][0];
        view->block_cols = candidates[i][1];
        return true;
    }
    return false;
}

static nib_status read_fp8(struct nib_linear_view *view, struct nib_error *err)
{
    const struct nib_tensor *scale = view->scale;
    if (!scale)
        return fail_view(view->weight, NIB_ERR_NOT_FOUND, "has no scale beside it", err);
    if (scale->dtype != NIB_F32 && scale->dtype != NIB_BF16 && scale->dtype != NIB_F8_E8M0 &&
        scale->dtype != NIB_U8)
        return fail_view(scale, NIB_ERR_UNSUPPORTED, "scales of E4M3 must be F32, BF16, F8_E8M0 or U8", err);
    view->kind = NIB_LINEAR_FP8;
    view->scale_rows = scale->rank >= 1 ? scale->shape[0] : 1;
    view->scale_cols = scale->rank >= 2 ? scale->shape[1] : 1;
    if (scale->rank > 2 || !fit_blocks(view)) {
        char text[200];
        return nib_fail(err, NIB_ERR_FORMAT,
                        "%s: %s: %s: neither one scale per row nor per 128x128 or 32x32 block of [%lld, %lld]",
                        scale->file, scale->name, nib_tensor_describe(scale, text, sizeof text),
                        (long long)view->rows, (long long)view->cols);
    }
    return NIB_OK;
}

static nib_status read_mxfp4(struct nib_linear_view *view, struct nib_error *err)
{
    if (!view->scale)
        return fail_view(view->weight, NIB_ERR_NOT_FOUND, "has no scale beside it", err);
    struct nib_packed packed = {.weight = view->weight, .scale = view->scale};
    nib_status status = nib_packed_check(&packed, false, err);
    if (status != NIB_OK)
        return status;
    view->kind = NIB_LINEAR_MXFP4;
    view->rows = packed.rows;
    view->cols = packed.cols;
    view->block_rows = 1;
    view->block_cols = NIB_MX_BLOCK;
    view->scale_rows = packed.rows;
    view->scale_cols = packed.cols / NIB_MX_BLOCK;
    return NIB_OK;
}

static nib_status read_matrix(struct nib_linear_view *view, struct nib_error *err)
{
    const struct nib_tensor *weight = view->weight;
    if (weight->dtype == NIB_U8 || weight->dtype == NIB_I8)
        return read_mxfp4(view, err);
    if (weight->rank != 2 || weight->bytes == 0)
        return fail_view(weight, NIB_ERR_FORMAT, "not a matrix [rows, cols]", err);
    view->rows = weight->shape[0];
    view->cols = weight->shape[1];
    if (weight->dtype == NIB_F8_E4M3)
        return read_fp8(view, err);
    if (!nib_dtype_is_plain(weight->dtype))
        return fail_view(weight, NIB_ERR_UNSUPPORTED, "not a type that matrices are read from here", err);
    if (view->scale)
        return fail_view(view->scale, NIB_ERR_UNSUPPORTED, "a scale beside a weight that needs none", err);
    view->kind = NIB_LINEAR_PLAIN;
    return NIB_OK;
}

static nib_status check_bias(const struct nib_linear_view *view, struct nib_error *err)
{
    const struct nib_tensor *bias = view->bias;
    if (!bias)
        return NIB_OK;
    if (!nib_dtype_is_plain(bias->dtype))
        return fail_view(bias, NIB_ERR_UNSUPPORTED, "a bias must be F32, F16 or BF16", err);
    if (bias->rank != 1 || bias->shape[0] != view->rows)
        return fail_view(bias, NIB_ERR_FORMAT, "does not fit its weight's rows", err);
    return NIB_OK;
}

static const struct nib_tensor *find_ending(struct nib_checkpoint *checkpoint, const char *name,
                                            const char *ending)
{
    char text[NIB_NAME_CAPACITY];
    int length = snprintf(text, sizeof text, "%s%s", name, ending);
    return length >= 0 && length < NIB_NAME_CAPACITY ? nib_checkpoint_find(checkpoint, text) : NULL;
}

nib_status nib_checkpoint_linear(struct nib_checkpoint *checkpoint, const char *name, struct nib_linear_view *view,
                                 struct nib_error *err)
{
    struct nib_linear_view made = {.weight = find_ending(checkpoint, name, ".weight")};
    if (!made.weight)
        made.weight = find_ending(checkpoint, name, ".weight_packed");
    if (!made.weight)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no tensor %s.weight", checkpoint->path, name);
    for (const char *const *ending = nib_scale_endings; *ending && !made.scale; ending++)
        made.scale = find_ending(checkpoint, name, *ending);
    made.bias = find_ending(checkpoint, name, ".bias");
    nib_status status = read_matrix(&made, err);
    if (status == NIB_OK)
        status = check_bias(&made, err);
    if (status == NIB_OK)
        *view = made;
    return status;
}

const char *nib_linear_describe(const struct nib_linear_view *view, char *text, size_t capacity)
{
    const char *dtype = view->weight->dtype == NIB_BF16  ? "bf16"
                        : view->weight->dtype == NIB_F16 ? "fp16"
                                                         : "fp32";
    if (view->kind == NIB_LINEAR_PLAIN)
        snprintf(text, capacity, "%s", dtype);
    else if (view->kind == NIB_LINEAR_MXFP4)
        snprintf(text, capacity, "mxfp4");
    else if (view->block_rows == 1 && view->block_cols == view->cols)
        snprintf(text, capacity, "fp8 channel");
    else if (view->block_rows == view->rows && view->block_cols == view->cols)
        snprintf(text, capacity, "fp8 tensor");
    else
        snprintf(text, capacity, "fp8 %lldx%lld", (long long)view->block_rows, (long long)view->block_cols);
    return text;
}
