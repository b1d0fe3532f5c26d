// linear_heads: one small product for each head, heads shared among the threads.
#include <string.h>

#include "cpu/cpu_device.h"

enum { ROWS_AT_ONCE = 1024 };

static const float no_bias[ROWS_AT_ONCE];

static struct nib_linear_part part_of(const struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                                      const struct nib_head_product *p, int64_t head)
{
    int64_t row = head * p->row_pitch + p->first_row;
    size_t offset = (size_t)row * nib_weight_row_bytes(p->weight);
    return (struct nib_linear_part){
        .x = (const float *)x.data + head * p->x_pitch,
        .x_pitch = x.width,
        .weight = (const char *)p->weight->data + offset,
        .scales = p->weight->scales,
        .first_row = p->weight->first_row + row,
        .block_rows = p->weight->block_rows,
        .block_cols = p->weight->block_cols,
        .exponents = p->weight->exponents,
        .bias = no_bias,
        .y = (float *)y.data + head * p->y_pitch,
        .y_pitch = y.width,
        .dtype = p->weight->dtype,
        .tokens = device->step->n_tokens,
        .n_rows = p->rows,
        .cols = p->weight->cols,
    };
}

// All rows of one head, at most as many at a time as there are biases.
static void run_rows(const struct nib_device *device, struct nib_linear_part part, size_t row_bytes)
{
    int64_t left = part.n_rows;
    for (; left > 0; left -= ROWS_AT_ONCE) {
        part.n_rows = left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
        nib_cpu_of(device)->kernels->linear_wide(&part);
        part.weight = (const char *)part.weight + (size_t)part.n_rows * row_bytes;
        part.first_row += part.n_rows;
        part.y += part.n_rows;
    }
}

void nib_cpu_linear_heads(struct nib_device *device, struct nib_buffer y, struct nib_buffer x,
                          const struct nib_head_product *product)
{
    const struct nib_head_product *p = product;
    int64_t tokens = device->step->n_tokens, cols = p->weight->cols;
    int64_t in = p->transposed ? p->rows : cols, out = p->transposed ? cols : p->rows;
#pragma omp parallel for schedule(dynamic) num_threads(nib_host_threads(device, p->n_heads * p->rows * cols))
    for (int64_t h = 0; h < p->n_heads; h++) {
        struct nib_linear_part part = part_of(device, y, x, p, h);
        if (p->transposed)
            nib_cpu_of(device)->kernels->linear_across(&part);
        else
            run_rows(device, part, nib_weight_row_bytes(p->weight));
        for (int64_t t = 0; t < tokens && p->tail; t++)
            memcpy(nib_buffer_row(y, t) + h * p->y_pitch + out, nib_buffer_row(x, t) + h * p->x_pitch + in,
                   (size_t)p->tail * sizeof(float));
    }
}
