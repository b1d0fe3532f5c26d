#include "ops/dense_fp8.h"

#include <stdlib.h>

#include "base/error.h"

struct nib_fp8_scales {
    struct nib_fp8_scales *next;
    float values[];
};

void nib_free_fp8_scales(struct nib_fp8_scales *list)
{
    while (list) {
        struct nib_fp8_scales *next = list->next;
        free(list);
        list = next;
    }
}

static float scale_at(const struct nib_weight_view *view, int64_t index)
{
    if (view->scale_dtype == NIB_F32)
        return ((const float *)view->scales)[index];
    if (view->scale_dtype == NIB_BF16)
        return nib_bf16_to_f32(((const uint16_t *)view->scales)[index]);
    return nib_e8m0_to_f32(((const uint8_t *)view->scales)[index]);
}

nib_status nib_bind_fp8(const struct nib_weight_view *view, struct nib_fp8_scales **list,
                        struct nib_weight *weight, struct nib_error *err)
{
    if (!view->scales || view->block_rows < 1 || view->block_cols < 1)
        return nib_fail(err, NIB_ERR_ARGUMENT, "tensor %s: FP8 without scales", view->name);
    // Kernels take one scale for a whole vector of columns.
    if (view->block_cols < view->cols && view->block_cols % 16)
        return nib_fail(err, NIB_ERR_UNSUPPORTED,
                        "tensor %s: FP8 scales for every %lld columns (16 or more, in 16s)", view->name,
                        (long long)view->block_cols);
    int64_t rows = (view->rows + view->block_rows - 1) / view->block_rows,
            cols = (view->cols + view->block_cols - 1) / view->block_cols;
    size_t bytes = sizeof(struct nib_fp8_scales) + (size_t)(rows * cols) * sizeof(float);
    struct nib_fp8_scales *copy = malloc(bytes);
    if (!copy)
        return nib_fail_memory(err, bytes, view->name);
    for (int64_t i = 0; i < rows * cols; i++)
        copy->values[i] = scale_at(view, i);
    copy->next = *list;
    *list = copy;
    *weight = (struct nib_weight){
        .data = view->data,
        .dtype = NIB_F8_E4M3,
        .rows = view->rows,
        .cols = view->cols,
        .scales = copy->values,
        .block_rows = view->block_rows,
        .block_cols = view->block_cols,
    };
    return NIB_OK;
}
