// The CUDA MoE kernels against the float64 vectors, against the plain reference and against themselves. Ends with one
// summary line. Exit code 77: no GPU that the kernels are for, nothing was run.
//
// usage: test_moe_cuda [--quick] [DATA]    --quick: fewer cases and repeats, for runs under compute-sanitizer
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_layer.h"
#include "nibble/checkpoint.h"

#define BOUND_F32 1.8e-3 // what rounding the intermediate to bf16 leaves
#define BOUND_BF16 2.5e-3
#define FEW 1.2 // times that for random calls: with one or two routes a few large values of h carry the sum

static bool quick;
static int checks, failures;
static double worst_f32, worst_bf16;

static const struct nib_activation silu = {.kind = NIB_ACT_SILU};
static const struct nib_activation clamp10 = {.kind = NIB_ACT_SILU_CLAMP, .limit = 10};
static const struct nib_activation oai = {.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7};
static const struct nib_activation situ = {.kind = NIB_ACT_SITU, .beta = 4, .linear_beta = 25};

static void expect(bool good, const char *format, const char *what, double value)
{
    checks++;
    if (good)
        return;
    failures++;
    printf("FAILED: ");
    printf(format, what, value);
    printf("\n");
}

// NaN where exactly one of the two is NaN.
static double rel_l2(const float *got, const double *want, int64_t n)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(want[i]) && isnan(got[i]))
            continue;
        double d = (double)got[i] - want[i];
        error += d * d;
        norm += want[i] * want[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

static double rel_l2_f32(const float *got, const float *want, int64_t n)
{
    double *wide = malloc((size_t)n * sizeof *wide + 1);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)want[i];
    double error = rel_l2(got, wide, n);
    free(wide);
    return error;
}

static void expect_close(const char *what, double error, double bound)
{
    double *worst = bound >= BOUND_BF16 ? &worst_bf16 : &worst_f32;
    if (error > *worst)
        *worst = error;
    expect(error <= bound, "%s: rel_l2 %.2e", what, error);
}

// ---- vectors in files ----

static void check_vector(const char *path, const char *name)
{
    struct nib_checkpoint *file;
    struct nib_error err;
    if (nib_checkpoint_open(path, &file, &err) != NIB_OK) {
        expect(false, "%s: cannot be read (%g)", path, 0);
        return;
    }
    const struct nib_tensor *w2 = nib_checkpoint_peek(file, "w2"), *w13 = nib_checkpoint_peek(file, "w13");
    const struct nib_tensor *x = nib_checkpoint_peek(file, "x"), *ids = nib_checkpoint_peek(file, "expert_ids");
    const struct nib_tensor *b13 = nib_checkpoint_peek(file, "b13"), *b2 = nib_checkpoint_peek(file, "b2");
    struct gpu_shape shape = {.experts = w13->shape[0],
                              .hidden = w2->shape[1],
                              .intermediate = w13->shape[1] / 2,
                              .rows = strstr(name, "interleaved") ? GPU_INTERLEAVED : GPU_CONCATENATED,
                              .bias = b13 ? GPU_BIAS_F32 : GPU_NO_BIAS,
                              .activation = strstr(name, "clamp")  ? clamp10
                                            : strstr(name, "oai")  ? oai
                                            : strstr(name, "situ") ? situ
                                                                   : silu};
    struct gpu_layer layer =
        gpu_layer_from(&shape, w13->data, nib_checkpoint_peek(file, "s13")->data, w2->data,
                       nib_checkpoint_peek(file, "s2")->data, b13 ? b13->data : NULL, b2 ? b2->data : NULL);
    gpu_layer_plan(&layer, 0);
    struct gpu_call call = gpu_call_create(&layer, x->shape[0], ids->shape[1], 0);
    int64_t values = call.tokens * call.hidden, routes = call.tokens * call.top_k;
    memcpy(call.x, x->data, (size_t)values * 2);
    memcpy(call.ids, ids->data, (size_t)routes * 4);
    memcpy(call.weights, nib_checkpoint_peek(file, "routing_weights")->data, (size_t)routes * 4);
    gpu_call_upload(&call);
    float *per_route, *y = gpu_call_run(&layer, &call, NIB_F32, &per_route, NULL);
    const double *want = nib_checkpoint_peek(file, "y")->data;
    expect_close(name, rel_l2(y, want, values), BOUND_F32);
    expect_close(name, rel_l2(per_route, nib_checkpoint_peek(file, "y_per_route")->data, routes * call.hidden),
                 BOUND_F32);
    free(y);
    y = gpu_call_run(&layer, &call, NIB_BF16, NULL, NULL);
    expect_close(name, rel_l2(y, want, values), BOUND_BF16);
    free(y);
    free(per_route);
    gpu_call_free(&call);
    gpu_layer_free(&layer);
    nib_checkpoint_close(file);
}

static void check_vectors(const char *data)
{
    char folder[1024], path[2048];
    snprintf(folder, sizeof folder, "%s/moe", data);
    DIR *dir = opendir(folder);
    int found = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!strstr(entry->d_name, ".safetensors"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        check_vector(path, entry->d_name);
        found++;
    }
    if (dir)
        closedir(dir);
    expect(found > 0, "%s: no vectors (%g)", folder, 0);
}

// ---- against the reference ----

static void check_call(struct gpu_layer *layer, int64_t tokens, int64_t top_k, int64_t first)
{
    char what[200];
    const struct gpu_shape *s = &layer->shape;
    snprintf(what, sizeof what, "E%d K%d I%d rows %d bias %d act %d T%d k%d", (int)s->experts, (int)s->hidden,
             (int)s->intermediate, (int)s->rows, (int)s->bias, (int)s->activation.kind, (int)tokens, (int)top_k);
    struct gpu_call call = gpu_call_create(layer, tokens, top_k, first);
    int64_t values = tokens * s->hidden;
    int launches = -1;
    float *per_route, *ref_per_route, *y = gpu_call_run(layer, &call, NIB_F32, &per_route, &launches);
    float *ref = gpu_call_ref(layer, &call, first, &ref_per_route);
    int wanted = (int)((tokens + 63) / 64); // a kernel for each 64 tokens; five, where many have their own path
    if (tokens > 64 && s->intermediate >= 512)
        wanted = 5;
    expect(launches == wanted, "%s: %g launches", what, launches);
    expect_close(what, rel_l2_f32(y, ref, values), BOUND_F32 * FEW);
    expect_close(what, rel_l2_f32(per_route, ref_per_route, values * top_k), BOUND_F32 * FEW);
    float *plain = gpu_call_run(layer, &call, NIB_F32, NULL, NULL);
    expect(memcmp(plain, y, (size_t)values * 4) == 0, "%s: other bits without y_per_route (%g)", what, 0);
    free(plain);
    plain = gpu_call_run_routes(layer, &call);
    expect(memcmp(plain, per_route, (size_t)(values * top_k) * 4) == 0, "%s: other bits without y (%g)", what, 0);
    free(plain);
    plain = gpu_call_run(layer, &call, NIB_BF16, NULL, NULL);
    expect_close(what, rel_l2_f32(plain, ref, values), BOUND_BF16 * FEW);
    free(plain);
    free(per_route);
    free(ref_per_route);
    free(y);
    free(ref);
    gpu_call_free(&call);
}

static void check_shapes(void)
{
    static const struct {
        struct gpu_shape shape;
        int64_t top_k;
    } cases[] = {
        {{5, 96, 160, GPU_INTERLEAVED, GPU_BIAS_F32, {NIB_ACT_SWIGLU_OAI, 1.702f, 7, 0, 0}}, 3},
        {{3, 32, 32, GPU_CONCATENATED, GPU_NO_BIAS, {NIB_ACT_SILU, 0, 0, 0, 0}}, 2},
        {{6, 672, 544, GPU_EVERY_THIRD, GPU_BIAS_BF16, {NIB_ACT_SITU, 0, 0, 4, 25}}, 5},
        {{4, 2880, 736, GPU_INTERLEAVED, GPU_BIAS_BF16, {NIB_ACT_SWIGLU_OAI, 1.702f, 7, 0, 0}}, 4},
        {{9, 4096, 1024, GPU_CONCATENATED, GPU_NO_BIAS, {NIB_ACT_SILU, 0, 0, 0, 0}}, 8},
        {{4, 7168, 512, GPU_CONCATENATED, GPU_BIAS_F32, {NIB_ACT_SILU_CLAMP, 0, 10, 0, 0}}, 3},
        {{3, 512, 2304, GPU_EVERY_THIRD, GPU_NO_BIAS, {NIB_ACT_SILU_CLAMP, 0, 10, 0, 0}}, 1},
        {{2, 1056, 7680, GPU_INTERLEAVED, GPU_NO_BIAS, {NIB_ACT_SITU, 0, 0, 4, 25}}, 2},
        {{3, 5120, 768, GPU_INTERLEAVED, GPU_NO_BIAS, {NIB_ACT_SILU_CLAMP, 0, 10, 0, 0}}, 3},
        {{2, 4096, 4096, GPU_INTERLEAVED, GPU_BIAS_F32, {NIB_ACT_SILU, 0, 0, 0, 0}}, 2},
        {{70, 256, 96, GPU_INTERLEAVED, GPU_BIAS_F32, {NIB_ACT_SWIGLU_OAI, 1.702f, 7, 0, 0}}, 16},
    };
    static const int64_t tokens[] = {1, 2, 3, 5, 8, 17, 33, 64, 65, 150, 700};
    static const int64_t quick_tokens[] = {1, 3, 8, 150};
    size_t n_tokens = quick ? 4 : sizeof tokens / sizeof *tokens,
           n_cases = quick ? 4 : sizeof cases / sizeof *cases;
    for (size_t c = 0; c < n_cases; c++) {
        int64_t first = c % 2 ? 100 : 0;
        struct gpu_layer layer = gpu_layer_create(&cases[c].shape);
        gpu_layer_plan(&layer, first);
        bool small = cases[c].shape.hidden * cases[c].shape.intermediate < 1500000;
        for (size_t t = 0; t < n_tokens; t++) {
            int64_t count = quick ? quick_tokens[t] : tokens[t];
            if (small || count <= 33 || count == 65)
                check_call(&layer, count, cases[c].top_k, first);
        }
        gpu_layer_free(&layer);
    }
}

// Row r of W2 has a scale code of its own everywhere, from `least` to `most`, and its weights are positive, so nothing
// cancels.
static void check_scale_codes(int64_t least, int64_t most)
{
    struct gpu_shape shape = {1, 256, 512, GPU_CONCATENATED, GPU_NO_BIAS, silu};
    struct gpu_layer layer = gpu_layer_create(&shape);
    for (int64_t row = 0; row < 256; row++) {
        memset(gpu_layer_scales2(&layer, 0) + row * 16, (int)(least + row % (most - least + 1)), 16);
        for (int64_t i = 0; i < 256; i++)
            gpu_layer_packed2(&layer, 0)[row * 256 + i] = (uint8_t)(gpu_random() & 0x77);
    }
    gpu_layer_plan(&layer, 0);
    struct gpu_call call = gpu_call_create(&layer, 2, 1, 0);
    memset(call.ids, 0, 2 * sizeof *call.ids);
    gpu_call_upload(&call);
    float *per_route, *ref_per_route, *y = gpu_call_run(&layer, &call, NIB_F32, &per_route, NULL);
    float *ref = gpu_call_ref(&layer, &call, 0, &ref_per_route);
    // All rows see the same h and have like weights, so their results, less the scale, are of one size, which is what
    // errors are measured by. The largest codes overflow, on both sides, but not always to the same infinity or NaN.
    double size = 0;
    for (int64_t code = 100; code < 150; code++)
        size = fmax(size, ldexp(fabs((double)ref_per_route[code - least]), 127 - (int)code));
    for (int64_t code = least; code <= most; code++) {
        for (int64_t t = 0; t < 2; t++) {
            float a = per_route[t * 256 + code - least], b = ref_per_route[t * 256 + code - least];
            expect(code == 255 || code > 240 || isfinite(a), "%s %g: not finite", "scale code", (double)code);
            expect(code < 255 || isnan(a), "%s %g: a number", "scale code", (double)code);
            if (isfinite(a) && isfinite(b))
                expect(fabs((double)a - (double)b) <= ldexp(0.02 * size, (int)code - 127) + 1e-44,
                       "%s %g: too far from the reference", "scale code", (double)code);
        }
    }
    free(y);
    free(ref);
    free(per_route);
    free(ref_per_route);
    gpu_call_free(&call);
    gpu_layer_free(&layer);
}

// Huge and tiny values, and a not-a-number, change nothing for their neighbours.
static void check_extreme_activations(void)
{
    struct gpu_shape shape = {2, 1024, 768, GPU_CONCATENATED, GPU_NO_BIAS, clamp10};
    struct gpu_layer layer = gpu_layer_create(&shape);
    memset(gpu_layer_scales13(&layer, 1), 20, 64); // rows of expert 1 that need the exact path
    gpu_layer_plan(&layer, 0);
    struct gpu_call call = gpu_call_create(&layer, 6, 2, 0);
    for (int64_t r = 0; r < 12; r++)
        call.ids[r] = (int32_t)(r % 2);
    gpu_call_upload(&call);
    float *before = gpu_call_run(&layer, &call, NIB_F32, NULL, NULL);
    for (int64_t i = 0; i < 1024; i++) {
        call.x[i] = nib_bf16_from_f32(1e25f * gpu_normal());
        call.x[1024 + i] = nib_bf16_from_f32(1e-25f * gpu_normal());
    }
    call.x[2 * 1024 + 77] = 0x7fc0;
    gpu_call_upload(&call);
    float *per_route, *after = gpu_call_run(&layer, &call, NIB_F32, NULL, NULL);
    float *ref = gpu_call_ref(&layer, &call, 0, &per_route);
    expect(memcmp(before + 3 * 1024, after + 3 * 1024, 3 * 1024 * 4) == 0, "%s (%g)", "neighbours of extremes", 0);
    expect_close("huge activations", rel_l2_f32(after, ref, 1024), BOUND_F32);
    expect_close("tiny activations", rel_l2_f32(after + 1024, ref + 1024, 1024), BOUND_F32);
    expect_close("not a number", rel_l2_f32(after + 2048, ref + 2048, 1024), BOUND_F32);
    free(before);
    free(after);
    free(ref);
    free(per_route);
    gpu_call_free(&call);
    gpu_layer_free(&layer);
}

// ---- against themselves ----

static void check_repeats(struct gpu_layer *layer)
{
    struct gpu_call call = gpu_call_create(layer, 40, 4, 0);
    size_t bytes = (size_t)(call.tokens * call.hidden) * 4;
    float *first = gpu_call_run(layer, &call, NIB_F32, NULL, NULL);
    int different = 0, repeats = quick ? 5 : 1000;
    for (int i = 0; i < repeats; i++) {
        float *again = gpu_call_run(layer, &call, NIB_F32, NULL, NULL);
        different += memcmp(first, again, bytes) != 0;
        free(again);
    }
    expect(different == 0, "%s: %g runs gave other bits", "repeats", different);
    free(first);
    gpu_call_free(&call);
}

// Each token alone against the same among others: fewer routes are shared out in another way.
static void check_neighbours(struct gpu_layer *layer, int64_t tokens)
{
    struct gpu_call call = gpu_call_create(layer, tokens, 4, 0);
    float *first = gpu_call_run(layer, &call, NIB_F32, NULL, NULL);
    for (int64_t t = 0; t < (quick ? 3 : call.tokens); t++) {
        struct gpu_call one = gpu_call_create(layer, 1, 4, 0);
        memcpy(one.x, call.x + t * call.hidden, (size_t)call.hidden * 2);
        memcpy(one.ids, call.ids + t * 4, 4 * sizeof *one.ids);
        memcpy(one.weights, call.weights + t * 4, 4 * sizeof *one.weights);
        gpu_call_upload(&one);
        float *alone = gpu_call_run(layer, &one, NIB_F32, NULL, NULL);
        expect(memcmp(alone, first + t * call.hidden, (size_t)call.hidden * 4) == 0,
               "%s: token %g has other bits alone", "neighbours", (double)t);
        free(alone);
        gpu_call_free(&one);
    }
    free(first);
    gpu_call_free(&call);
}

// Slices of one to ten pairs of blocks, of none, and products that one team or two share.
static void check_neighbours_of_all_cuts(void)
{
    const struct gpu_shape shapes[] = {
        {4, 608, 1056, GPU_CONCATENATED, GPU_NO_BIAS, silu},  {4, 2880, 2880, GPU_INTERLEAVED, GPU_BIAS_BF16, oai},
        {4, 2688, 3840, GPU_CONCATENATED, GPU_NO_BIAS, silu}, {4, 3232, 1984, GPU_INTERLEAVED, GPU_NO_BIAS, silu},
        {4, 4096, 1024, GPU_CONCATENATED, GPU_NO_BIAS, silu}, {4, 7168, 544, GPU_CONCATENATED, GPU_NO_BIAS, silu},
        {4, 1024, 4096, GPU_CONCATENATED, GPU_NO_BIAS, silu}, {4, 64, 512, GPU_CONCATENATED, GPU_NO_BIAS, silu},
        {4, 320, 928, GPU_CONCATENATED, GPU_NO_BIAS, silu},   {4, 5120, 768, GPU_INTERLEAVED, GPU_NO_BIAS, silu},
        {4, 4096, 512, GPU_INTERLEAVED, GPU_NO_BIAS, silu},
    };
    for (size_t i = 0; i < (quick ? 1 : sizeof shapes / sizeof *shapes); i++) {
        struct gpu_layer layer = gpu_layer_create(&shapes[i]);
        gpu_layer_plan(&layer, 0);
        check_neighbours(&layer, 10);
        gpu_layer_free(&layer);
    }
}

static void check_routing_extremes(struct gpu_layer *layer)
{
    struct gpu_call call = gpu_call_create(layer, 21, 4, 0);
    for (int kind = 0; kind < 3;
         kind++) { // all foreign; all on one expert; the same expert in all routes of a token
        for (int64_t r = 0; r < 21 * 4; r++)
            call.ids[r] = kind == 0 ? -5 : kind == 1 ? 1 : (int32_t)(r / 4 % layer->shape.experts);
        gpu_call_upload(&call);
        float *per_route, *ref_per_route, *y = gpu_call_run(layer, &call, NIB_F32, &per_route, NULL);
        float *ref = gpu_call_ref(layer, &call, 0, &ref_per_route);
        expect_close("extreme routing", rel_l2_f32(y, ref, 21 * call.hidden), BOUND_F32);
        expect_close("extreme routing", rel_l2_f32(per_route, ref_per_route, 84 * call.hidden), BOUND_F32);
        free(y);
        free(ref);
        free(per_route);
        free(ref_per_route);
    }
    gpu_call_free(&call);
}

// One captured call, replayed with other routes and activations each time.
static void check_graph(struct gpu_layer *layer)
{
    struct gpu_call call = gpu_call_create(layer, 12, 4, 0);
    struct nib_moe_call args = {.tokens = 12,
                                .top_k = 4,
                                .x_dtype = NIB_BF16,
                                .x = call.device_x,
                                .expert_ids = call.device_ids,
                                .routing_weights = call.device_weights,
                                .y_dtype = NIB_F32,
                                .y = call.device_y,
                                .scratch = call.device_scratch,
                                .scratch_bytes = call.scratch_bytes};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    struct nib_error err;
    gpu_check((int)cudaStreamCreate(&stream), "stream");
    gpu_check((int)cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    nib_status status = nib_moe_cuda_run(layer->plan, &args, stream, NULL, &err);
    expect(status == NIB_OK, "%s: status %g", "capture", status);
    gpu_check((int)cudaStreamEndCapture(stream, &graph), "capture");
    gpu_check((int)cudaGraphInstantiate(&replay, graph, 0), "graph");
    size_t bytes = (size_t)(12 * call.hidden) * 4;
    float *y = malloc(bytes);
    for (int i = 0; i < (quick ? 3 : 20); i++) {
        struct gpu_call other = gpu_call_create(layer, 12, 4, 0);
        memcpy(call.x, other.x, bytes / 2);
        memcpy(call.ids, other.ids, 48 * sizeof *call.ids);
        memcpy(call.weights, other.weights, 48 * sizeof *call.weights);
        gpu_call_upload(&call);
        float *want = gpu_call_run(layer, &other, NIB_F32, NULL, NULL);
        gpu_check((int)cudaMemset(call.device_y, 0xd5, bytes), "poison");
        gpu_check((int)cudaDeviceSynchronize(), "poison");
        gpu_check((int)cudaGraphLaunch(replay, stream), "replay");
        gpu_check((int)cudaStreamSynchronize(stream), "replay");
        gpu_check((int)cudaMemcpy(y, call.device_y, bytes, cudaMemcpyDeviceToHost), "y");
        expect(memcmp(y, want, bytes) == 0, "%s %g differs from the call itself", "replay", i);
        free(want);
        gpu_call_free(&other);
    }
    free(y);
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    gpu_call_free(&call);
}

static void check_refusals(void)
{
    struct gpu_shape shape = {1, 7712, 32, GPU_CONCATENATED, GPU_NO_BIAS, silu};
    struct gpu_layer layer = gpu_layer_create(&shape);
    struct nib_moe_weights weights = {.hidden = 7712,
                                      .intermediate = 32,
                                      .n_experts = 1,
                                      .gate_up_row_stride = 1,
                                      .experts = layer.device_experts};
    struct nib_moe_config config = {.activation = silu};
    struct nib_moe_cuda_plan *plan;
    struct nib_error err;
    nib_status status = nib_moe_cuda_plan_create(&weights, &config, &plan, &err);
    expect(status == NIB_ERR_UNSUPPORTED && strstr(err.message, "7712"), "%s: status %g", "too many columns",
           status);
    weights.hidden = 64;
    layer.device_experts[0].gate++;
    status = nib_moe_cuda_plan_create(&weights, &config, &plan, &err);
    expect(status == NIB_ERR_UNSUPPORTED && strstr(err.message, "aligned"), "%s: status %g", "unaligned rows",
           status);
    gpu_layer_free(&layer);
}

int main(int argc, char **argv)
{
    const char *data = NIB_SOURCE_DIR "/tests/data";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else
            data = argv[i];
    }
    int devices = 0, driver = 0;
    struct cudaDeviceProp device;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices ||
        cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
        printf("moe on cuda: not run: no Hopper GPU here\n");
        return 77;
    }
    cudaDriverGetVersion(&driver);
    check_vectors(data);
    check_shapes();
    check_scale_codes(0, 255);
    check_scale_codes(32, 238); // the fast path's
    check_extreme_activations();
    check_refusals();
    check_neighbours_of_all_cuts();
    struct gpu_shape shape = {8, 1440, 1472, GPU_INTERLEAVED, GPU_BIAS_F32, oai};
    struct gpu_layer layer = gpu_layer_create(&shape);
    gpu_layer_plan(&layer, 0);
    check_repeats(&layer);
    check_neighbours(&layer, 40);
    check_routing_extremes(&layer);
    check_graph(&layer);
    gpu_layer_free(&layer);
    printf("moe on cuda: %s: %d checks, %d failed; worst rel_l2 %.2e (f32), %.2e (bf16); %s, CUDA driver %d.%d\n",
           failures ? "FAILED" : "passed", checks, failures, worst_f32, worst_bf16, device.name, driver / 1000,
           driver % 1000 / 10);
    return failures ? 1 : 0;
}
