// Random MoE layers in host and device memory, for the tests of the CUDA kernels.
#ifndef NIB_TESTS_GPU_LAYER_H
#define NIB_TESTS_GPU_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "nibble/moe_cuda.h"

enum gpu_bias { GPU_NO_BIAS, GPU_BIAS_F32, GPU_BIAS_BF16 };
enum gpu_rows {
    GPU_INTERLEAVED,
    GPU_CONCATENATED,
    GPU_EVERY_THIRD
}; // the last: stride 3, gate, up, a row of junk

struct gpu_shape {
    int64_t experts, hidden, intermediate;
    enum gpu_rows rows;
    enum gpu_bias bias;
    struct nib_activation activation;
};

struct gpu_layer {
    struct gpu_shape shape;
    size_t bytes;
    uint8_t *host, *device; // the same bytes: w13, s13, w2, s2, biases
    struct nib_expert *host_experts, *device_experts;
    struct nib_moe_cuda_plan *plan;
};

// One call's inputs and its outputs, on both sides. Outputs on the device lie between guards.
struct gpu_call {
    int64_t tokens, top_k, hidden;
    uint16_t *x;
    int32_t *ids;
    float *weights;
    uint16_t *device_x;
    int32_t *device_ids;
    float *device_weights;
    uint8_t *device_y, *device_per_route;
    void *device_scratch;
    size_t scratch_bytes;
};

void gpu_check(int cuda_error, const char *doing); // ends the program with a message unless it is 0

uint32_t gpu_random(void);
float gpu_normal(void);

struct gpu_layer gpu_layer_create(const struct gpu_shape *shape); // without a plan: bytes may still be changed
struct gpu_layer gpu_layer_from(const struct gpu_shape *shape, const void *w13, const void *s13, const void *w2,
                                const void *s2, const void *b13, const void *b2);
void gpu_layer_plan(struct gpu_layer *layer, int64_t first_expert); // uploads and plans
void gpu_layer_free(struct gpu_layer *layer);
uint8_t *gpu_layer_scales2(const struct gpu_layer *layer, int64_t expert); // s2 of an expert in `host`
uint8_t *gpu_layer_packed2(const struct gpu_layer *layer, int64_t expert);
uint8_t *gpu_layer_scales13(const struct gpu_layer *layer, int64_t expert);

struct gpu_call gpu_call_create(const struct gpu_layer *layer, int64_t tokens, int64_t top_k,
                                int64_t first_expert);
void gpu_call_upload(const struct gpu_call *call);
void gpu_call_free(struct gpu_call *call);

// Runs on the default stream over poisoned outputs and returns host copies (the caller frees them): y as f32, either
// computed so or widened from bf16, and the routes' own outputs unless `per_route` is NULL. Dies on a touched guard.
float *gpu_call_run(const struct gpu_layer *layer, const struct gpu_call *call, enum nib_dtype y_dtype,
                    float **per_route, int *launches);

// A call that wants nothing but the routes' own outputs.
float *gpu_call_run_routes(const struct gpu_layer *layer, const struct gpu_call *call);

// The same call with the plain reference on the CPU.
float *gpu_call_ref(const struct gpu_layer *layer, const struct gpu_call *call, int64_t first_expert,
                    float **per_route);

#endif
