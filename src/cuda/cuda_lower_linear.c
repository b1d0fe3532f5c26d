// Linears of a step's program to launches.
#include "cuda/cuda_lower.h"

static void plain_linear(struct nib_device *device, const struct nib_cuda_op *op)
{
    const struct nib_cuda_plain_linear call = {
        .y = (float *)op->y.data + op->column,
        .y_pitch = op->y.width,
        .x = op->x.data,
        .weight = op->weight,
        .bias = op->vector,
    };
    nib_cuda_launched(device, nib_cuda_linear(device->stream, op->rows, &call),
                      op->exact ? "router" : "plain linear", 1);
}

// Where a linear's sums go: its own output, or the residual stream that would be added to next.
struct target {
    float *y;
    const float *added;
    int64_t pitch;
};

static struct target target_of(const struct nib_cuda_op *op, const struct nib_cuda_op *add)
{
    if (add)
        return (struct target){add->y.data, add->y.data, add->y.width};
    return (struct target){(float *)op->y.data + op->column, NULL, op->y.width};
}

struct nib_cuda_skinny_linear nib_cuda_skinny_of(const struct nib_cuda_op *ops, int32_t n,
                                                 const struct nib_cuda_op *add, const uint16_t *x, int64_t first,
                                                 int64_t rows)
{
    struct nib_cuda_skinny_linear call = {.x = x ? x + first * ops->x.width : NULL,
                                          .rows = (int32_t)rows,
                                          .cols = (int32_t)ops->weight.cols,
                                          .n_outputs = n};
    for (int32_t j = 0; j < n; j++) {
        struct target to = target_of(&ops[j], add);
        call.outputs[j] = (struct nib_cuda_skinny_output){
            .weight = ops[j].weight.data,
            .bias = ops[j].vector,
            .added = to.added ? to.added + first * to.pitch : NULL,
            .y = to.y + first * to.pitch,
            .y_pitch = to.pitch,
            .out = (int32_t)ops[j].weight.rows,
        };
    }
    return call;
}

static void skinny_linears(struct nib_device *device, const struct nib_cuda_op *ops, int32_t n,
                           const struct nib_cuda_op *add, const uint16_t *x, int64_t first, int64_t rows)
{
    struct nib_cuda_skinny_linear call = nib_cuda_skinny_of(ops, n, add, x, first, rows);
    call.any_order = !device->options.deterministic;
    const char *name = n > 1 ? "linears of one input" : ops->weight.rows > 32768 ? "head" : "linear";
    nib_cuda_launched(device, nib_cuda_multiply_skinny(device->stream, &call), name, 1);
}

static bool gemm_linear(struct nib_device *device, const struct nib_cuda_op *op, const struct nib_cuda_op *add,
                        const uint16_t *x)
{
    struct target to = target_of(op, add);
    const struct nib_cuda_gemm_call call = {
        .y = to.y,
        .y_pitch = to.pitch,
        .x = x,
        .weight = op->weight.data,
        .bias = op->vector,
        .accumulate = to.added != NULL,
        .rows = op->rows,
        .cols = op->weight.cols,
        .out = op->weight.rows,
    };
    cudaError_t error = nib_cuda_gemm_run(device->gemm, device->stream, &call);
    if (error == cudaErrorNotSupported)
        return false;
    nib_cuda_launched(device, error, "gemm", 1);
    return true;
}

bool nib_cuda_takes_bf16(const struct nib_cuda_op *op)
{
    return !op->exact && op->weight.element == NIB_CUDA_BF16 && op->x.width == op->weight.cols &&
           nib_cuda_skinny_takes(1, (int32_t)op->weight.cols);
}

static void bf16_linears(struct nib_device *device, const struct nib_cuda_op *ops, int32_t n,
                         const struct nib_cuda_op *add)
{
    const uint16_t *x = nib_cuda_half_of(device, ops->x, ops->rows);
    bool many = ops->rows > NIB_CUDA_SKINNY_BEST && device->gemm && !device->options.deterministic;
    if (many) {
        int32_t done = 0;
        while (done < n && gemm_linear(device, &ops[done], add, x))
            done++;
        ops += done;
        n -= done;
    }
    for (int64_t first = 0; n && first < ops->rows; first += NIB_CUDA_SKINNY_ROWS) {
        int64_t left = ops->rows - first;
        skinny_linears(device, ops, n, add, x, first, left < NIB_CUDA_SKINNY_ROWS ? left : NIB_CUDA_SKINNY_ROWS);
    }
}

int32_t nib_cuda_linears_at(const struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = nib_cuda_op_at(device, i, NIB_CUDA_LINEAR), *next;
    if (!op || !nib_cuda_takes_bf16(op))
        return 0;
    int32_t n = 1;
    while (n < NIB_CUDA_SKINNY_OUTPUTS && (next = nib_cuda_op_at(device, i + n, NIB_CUDA_LINEAR)) &&
           next->x.data == op->x.data && next->x.width == op->x.width && next->rows == op->rows &&
           next->y.data != op->x.data && nib_cuda_takes_bf16(next))
        n++;
    return n;
}

int32_t nib_cuda_lower_linear(struct nib_device *device, int32_t i)
{
    const struct nib_cuda_op *op = &device->ops[i];
    int32_t n = nib_cuda_linears_at(device, i);
    if (n == 0) {
        plain_linear(device, op);
        nib_cuda_set_half(device, op->y, false);
        return 1;
    }
    const struct nib_cuda_op *add = n == 1 ? nib_cuda_op_at(device, i + 1, NIB_CUDA_ADD) : NULL;
    if (add && !(add->x.data == op->y.data && add->y.data != op->y.data && add->y.data != op->x.data &&
                 add->rows == op->rows && nib_cuda_whole_rows(op) && nib_cuda_is_dead(device, i + 2, op->y.data)))
        add = NULL;
    bf16_linears(device, op, n, add);
    for (int32_t j = 0; j < n; j++)
        nib_cuda_set_half(device, add ? add->y : op[j].y, false);
    return n + (add != NULL);
}
