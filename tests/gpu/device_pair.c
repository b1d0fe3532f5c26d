#include "device_pair.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test_device devices[DEVICES];
bool quick;
int checks, failures;
double worst;

void pair_die(const char *what, const char *why)
{
    printf("%s: %s\n", what, why);
    exit(1);
}

void pair_expect(bool good, const char *what, double value, double bound)
{
    checks++;
    if (good)
        return;
    failures++;
    printf("FAILED: %s: %.3g, at most %.3g\n", what, value, bound);
}

void pair_expect_close(const char *what, const float *got, const float *want, int64_t n, double bound)
{
    double error = test_rel_l2(got, want, n);
    worst = error / bound > worst ? error / bound : worst;
    pair_expect(error <= bound, what, error, bound);
}

struct pair pair_make(int64_t rows, int64_t width, const float *values)
{
    struct pair pair;
    for (int d = REF; d < DEVICES; d++) {
        pair.on[d] = test_buffer(&devices[d], rows, width, d == REF ? values : NULL);
        if (d == CUDA && values &&
            cudaMemcpy(pair.on[d].data, values, (size_t)(rows * width) * 4, cudaMemcpyHostToDevice) != cudaSuccess)
            pair_die("cuda", "upload");
    }
    return pair;
}

struct pair pair_random(int64_t rows, int64_t width, uint64_t seed)
{
    float *values = test_random_values(rows * width, 1, 1, seed);
    struct pair pair = pair_make(rows, width, values);
    free(values);
    return pair;
}

void pair_drop(struct pair *pair)
{
    for (int d = REF; d < DEVICES; d++)
        devices[d].ops->free_buffer(devices[d].device, &pair->on[d]);
}

struct weights pair_bind(struct nib_weight_view view, void *data, void *scales)
{
    struct weights w = {.data = data, .scales = scales};
    struct nib_error err;
    view.data = data;
    view.scales = scales;
    view.name = "a test's weight";
    for (int d = REF; d < DEVICES; d++)
        if (devices[d].ops->bind(devices[d].device, &view, &w.on[d], &err))
            pair_die("bind", err.message);
    return w;
}

void pair_unbind(struct weights *w)
{
    free(w->data);
    free(w->scales);
}

struct weights pair_random_weights(int64_t rows, int64_t cols, enum nib_dtype dtype, float scale, uint64_t seed)
{
    int64_t n = rows * cols;
    uint16_t *half = malloc((size_t)n * 4 + 4);
    float *values = test_random_values(n, scale, 1, seed);
    if (dtype == NIB_F32)
        memcpy(half, values, (size_t)n * 4);
    for (int64_t i = 0; dtype == NIB_BF16 && i < n; i++)
        half[i] = nib_bf16_from_f32(values[i]);
    for (int64_t i = 0; dtype == NIB_F16 && i < n; i++)
        half[i] = (uint16_t)(0x2c00u + (unsigned)i % 1024 * 3 + ((unsigned)i % 3 == 0 ? 0x8000u : 0));
    free(values);
    return pair_bind((struct nib_weight_view){.dtype = dtype, .rows = rows, .cols = cols}, half, NULL);
}

void pair_compare(const char *what, const struct test_step *step, body_function *body, void *context,
                  const struct pair *result, int64_t rows, double bound)
{
    int64_t n = rows * result->on[REF].width;
    float *got[DEVICES] = {NULL};
    struct nib_error err;
    for (int d = REF; d < DEVICES; d++) {
        got[d] = malloc((size_t)n * sizeof(float) + 4);
        devices[d].ops->begin(devices[d].device, &step->step);
        body(d, context);
        devices[d].ops->read(devices[d].device, rows, result->on[d], got[d]);
        if (devices[d].ops->end(devices[d].device, &err))
            pair_die(what, err.message);
    }
    pair_expect_close(what, got[CUDA], got[REF], n, bound);
    free(got[REF]);
    free(got[CUDA]);
}

struct test_step pair_plain_step(int32_t first, int32_t tokens)
{
    return test_step_make(16, 1, &first, &tokens);
}
