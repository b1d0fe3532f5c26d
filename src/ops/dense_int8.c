#include "ops/dense_int8.h"

#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"

struct nib_narrowed {
    struct nib_narrowed *next;
    float *scales;   /* [rows] */
    int8_t *weights; /* [rows, cols] */
};

uint64_t nib_narrowed_bytes(int64_t rows, int64_t cols)
{
    return (uint64_t)rows * (uint64_t)cols + (uint64_t)rows * sizeof(float);
}

void nib_free_narrowed(struct nib_narrowed *list)
{
    while (list) {
        struct nib_narrowed *next = list->next;
        free(list->scales);
        free(list->weights);
        free(list);
        list = next;
    }
}

static float element(const struct nib_weight_view *view, int64_t index)
{
    return nib_float_at(view->data, view->dtype, index);
}

// A row of zeros has scale 0; NaN and infinities stay visible through the scale.
static float narrow_row(const struct nib_weight_view *view, int64_t row, int8_t *out)
{
    float largest = 0;
    for (int64_t i = 0; i < view->cols; i++) {
        float magnitude = fabsf(element(view, row * view->cols + i));
        if (!(magnitude <= largest) && !isnan(largest)) // NaN wins
            largest = magnitude;
    }
    float scale = largest / 127.0f;
    bool usable = scale > 0 && isfinite(scale);
    for (int64_t i = 0; i < view->cols; i++)
        out[i] = usable ? (int8_t)rintf(element(view, row * view->cols + i) / scale) : 1;
    return scale;
}

nib_status nib_narrow_matrix(const struct nib_weight_view *view, int threads, struct nib_narrowed **list,
                             struct nib_weight *weight, struct nib_error *err)
{
    struct nib_narrowed *copy = calloc(1, sizeof *copy);
    if (!copy)
        return nib_fail_memory(err, sizeof *copy, "an 8-bit matrix");
    copy->next = *list;
    *list = copy;
    copy->scales = malloc((size_t)view->rows * sizeof *copy->scales);
    copy->weights = malloc((size_t)view->rows * (size_t)view->cols);
    if (!copy->scales || !copy->weights)
        return nib_fail_memory(err, nib_narrowed_bytes(view->rows, view->cols), view->name);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < view->rows; r++)
        copy->scales[r] = narrow_row(view, r, copy->weights + r * view->cols);
    *weight = (struct nib_weight){
        .data = copy->weights,
        .dtype = NIB_I8,
        .rows = view->rows,
        .cols = view->cols,
        .scales = copy->scales,
        .block_rows = 1,
        .block_cols = view->cols,
    };
    return NIB_OK;
}
