// linear: the rows of all projections of one input, shared among the threads in one parallel region.
#include <string.h>

#include "base/error.h"
#include "cpu/cpu_device.h"

enum { CHUNK_ROWS = 1024, ROW_TILE = 4 };

// A run of rows of one projection: what a thread takes at a time.
struct chunk {
    const struct nib_projection *projection;
    int64_t first, rows;
};

static bool rounds_inputs(const struct nib_device *device, const struct nib_projection *p)
{
    enum nib_dtype dtype = p->weight->dtype;
    return nib_cpu_of(device)->kernels->linear_bf16 && (dtype == NIB_BF16 || dtype == NIB_I8) && !p->exact;
}

static int64_t chunks_of(const struct nib_projection *p, int64_t chunk_rows)
{
    return (p->weight->rows + chunk_rows - 1) / chunk_rows;
}

static struct chunk find_chunk(const struct nib_projection *projections, int64_t chunk_rows, int64_t index)
{
    const struct nib_projection *p = projections;
    for (; index >= chunks_of(p, chunk_rows); p++)
        index -= chunks_of(p, chunk_rows);
    int64_t first = index * chunk_rows, left = p->weight->rows - first;
    return (struct chunk){p, first, left < chunk_rows ? left : chunk_rows};
}

static void run_chunk(const struct nib_device *device, int64_t tokens, struct nib_buffer x, struct chunk chunk)
{
    const struct nib_weight *weight = chunk.projection->weight, *bias = chunk.projection->bias;
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    bool rounded = rounds_inputs(device, chunk.projection);
    float biases[CHUNK_ROWS] = {0};
    if (bias && bias->data)
        for (int64_t r = 0; r < chunk.rows; r++)
            biases[r] = nib_weight_element(bias, chunk.first + r);
    size_t offset = (size_t)chunk.first * nib_weight_row_bytes(weight);
    struct nib_linear_part part = {
        .x = rounded ? (const void *)cpu->rounded : x.data,
        .x_pitch = rounded ? nib_rounded_pitch(x.width) : x.width,
        .weight = (const char *)weight->data + offset,
        .scales = weight->scales,
        .first_row = weight->first_row + chunk.first,
        .block_rows = weight->block_rows,
        .block_cols = weight->block_cols,
        .exponents = weight->exponents,
        .bias = biases,
        .y = (float *)chunk.projection->y.data + chunk.projection->column + chunk.first,
        .y_pitch = chunk.projection->y.width,
        .dtype = weight->dtype,
        .tokens = tokens,
        .n_rows = chunk.rows,
        .cols = weight->cols,
    };
    if (rounded)
        cpu->kernels->linear_bf16(&part);
    else
        cpu->kernels->linear_wide(&part);
}

// The refusals: a model that breaks the sizes it stated when the device was opened.
static bool check(struct nib_device *device, int64_t rows, struct nib_buffer x, const struct nib_projection *p)
{
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    if (device->error.status)
        return false;
    if (rows > device->options.max_tokens || x.width > cpu->limits.max_width)
        nib_fail(&device->error, NIB_ERR_LIMIT, "a linear of %lld x %lld inputs in a device opened for %d x %lld",
                 (long long)rows, (long long)x.width, device->options.max_tokens,
                 (long long)cpu->limits.max_width);
    else if (p->weight->cols != x.width || p->column + p->weight->rows > p->y.width)
        nib_fail(&device->error, NIB_ERR_ARGUMENT,
                 "a linear of weight [%lld, %lld] with inputs of %lld and outputs of %lld",
                 (long long)p->weight->rows, (long long)p->weight->cols, (long long)x.width,
                 (long long)p->y.width);
    return !device->error.status;
}

void nib_cpu_linear(struct nib_device *device, int64_t rows, struct nib_buffer x,
                    const struct nib_projection *projections, int n_projections)
{
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    int64_t weight_rows = 0, n_chunks = 0;
    bool rounds = false;
    for (int i = 0; i < n_projections; i++) {
        if (!check(device, rows, x, &projections[i]))
            return;
        weight_rows += projections[i].weight->rows;
        rounds |= rounds_inputs(device, &projections[i]);
    }
    int threads = nib_host_threads(device, weight_rows * x.width);
    // Several chunks a thread, so that a thread that is held up does not hold up the others.
    int64_t chunk_rows = nib_round_up(weight_rows / (threads * 8) + 1, ROW_TILE);
    chunk_rows = chunk_rows < CHUNK_ROWS && threads > 1 ? chunk_rows : CHUNK_ROWS;
    for (int i = 0; i < n_projections; i++)
        n_chunks += chunks_of(&projections[i], chunk_rows);

#pragma omp parallel num_threads(threads)
    {
        if (rounds) {
            int64_t padded = nib_round_up(x.width, 32);
#pragma omp for schedule(static)
            for (int64_t t = 0; t < rows; t++) {
                uint16_t *out = cpu->rounded + t * nib_rounded_pitch(x.width);
                cpu->kernels->round_bf16(nib_buffer_row(x, t), x.width, out);
                memset(out + x.width, 0, (size_t)(padded - x.width) * sizeof *out);
            }
        }
#pragma omp for schedule(dynamic)
        for (int64_t c = 0; c < n_chunks; c++)
            run_chunk(device, rows, x, find_chunk(projections, chunk_rows, c));
    }
}
