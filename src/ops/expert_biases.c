#include "ops/expert_biases.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "nibble/mx.h"

static const float *widen(const void *biases, enum nib_dtype dtype, size_t count, float **next)
{
    float *values = *next;
    for (size_t i = 0; i < count; i++)
        values[i] = nib_float_at(biases, dtype, (int64_t)i);
    *next += count;
    return values;
}

nib_status nib_widen_biases(const struct nib_moe_weights *weights, struct nib_widened_biases *widened,
                            struct nib_error *err)
{
    // Gate and up biases keep their distance, so where they alternate each array has the other's between its own.
    size_t n = (size_t)weights->n_experts, down = (size_t)weights->hidden;
    size_t reach = (size_t)((weights->intermediate - 1) * weights->gate_up_row_stride + 1);
    size_t bytes = n * (2 * reach + down) * sizeof(float);
    *widened = (struct nib_widened_biases){
        .weights = *weights, .experts = calloc(n + 1, sizeof *widened->experts), .values = malloc(bytes + 1)};
    if (!widened->experts || !widened->values)
        return nib_fail_memory(err, bytes, "the biases of experts");
    float *next = widened->values;
    for (size_t e = 0; e < n; e++) {
        struct nib_expert *expert = &widened->experts[e];
        *expert = weights->experts[e];
        expert->gate_bias = widen(expert->gate_bias, weights->bias_dtype, reach, &next);
        expert->up_bias = widen(expert->up_bias, weights->bias_dtype, reach, &next);
        expert->down_bias = widen(expert->down_bias, weights->bias_dtype, down, &next);
    }
    widened->weights.experts = widened->experts;
    widened->weights.bias_dtype = NIB_F32;
    return NIB_OK;
}

void nib_free_widened_biases(struct nib_widened_biases *widened)
{
    free(widened->experts);
    free(widened->values);
    *widened = (struct nib_widened_biases){.experts = NULL};
}
