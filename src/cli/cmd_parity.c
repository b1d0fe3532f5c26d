// nibble parity moe: the kernels against float64 vectors in files, and against the plain reference on random layers at the
// shapes of released models, each beside the unpack path.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu_features.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/moe_cuda.h"
#include "cli/moe_layer.h"
#include "cli/moe_unpack.h"
#include "cli/options.h"
#include "nibble/checkpoint.h"

#define BOUND 1.8e-3   // rel_l2 of fp32 results: what rounding the intermediate to bf16 leaves
#define REF_BOUND 2e-6 // of the plain reference against float64
#define MAX_FILES 256
#define RANDOM_EXPERTS 8 // of a random layer: more change nothing but the time

static const char *const kernel_names[] = {"ref", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
#define N_KERNELS (sizeof kernel_names / sizeof *kernel_names)

struct parity {
    const char *tier, *device;
    int64_t threads;
    bool json, failed;
    json_t *rows;
};

static double relative_error(const float *got, const double *want, int64_t n)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        error += d * d;
        norm += want[i] * want[i];
    }
    return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

// One line of the report. The unpack path's error is NAN where it was not run.
static void report(struct parity *p, const char *what, const char *detail, const char *kernel, double error,
                   double bound, double unpack_error)
{
    bool pass = error <= bound;
    p->failed |= !pass;
    if (p->json) {
        json_t *row = json_pack("{s:s, s:s, s:s, s:f, s:f, s:b}", "case", what, "detail", detail, "kernel", kernel,
                                "rel_l2", isfinite(error) ? error : 1e300, "bound", bound, "pass", pass);
        if (row && isfinite(unpack_error))
            json_object_set_new(row, "unpack_rel_l2", json_real(unpack_error));
        json_array_append_new(p->rows, row);
        return;
    }
    printf("  %-34s %-11s rel_l2 %.2e", detail, kernel, error);
    if (isfinite(unpack_error))
        printf("   unpack path %.2e", unpack_error);
    printf("%s\n", pass ? "" : "   ABOVE THE BOUND");
    fflush(stdout);
}

static bool wants(const struct parity *p, const char *kernel)
{
    return !p->tier || strcmp(p->tier, kernel) == 0;
}

static nib_status run_kernel(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                             const char *kernel, struct nib_moe_call call, float *y, struct nib_error *err)
{
    struct nib_moe_config config = {.activation = *activation, .kernel = kernel};
    struct nib_moe_plan *plan;
    nib_status status = nib_moe_plan_create(weights, &config, &plan, err);
    if (status)
        return status;
    size_t bytes = (nib_moe_scratch_bytes(plan, call.tokens, call.top_k, call.threads) + 63) & ~(size_t)63;
    call.scratch = aligned_alloc(64, bytes);
    call.scratch_bytes = bytes;
    call.y_dtype = NIB_F32;
    call.y = y;
    status = call.scratch ? nib_moe_run(plan, &call, err) : nib_fail_memory(err, bytes, "a MoE call's scratch");
    free(call.scratch);
    nib_moe_plan_free(plan);
    return status;
}

static nib_status run_unpack(const struct nib_moe_weights *weights, const struct nib_activation *activation,
                             struct nib_moe_call call, float *y, struct nib_error *err)
{
    struct moe_unpack *unpack;
    nib_status status =
        moe_unpack_create(weights, activation, call.threads, call.tokens * call.top_k, &unpack, err);
    if (status)
        return status;
    call.y = y;
    moe_unpack_run(unpack, weights, &call);
    moe_unpack_free(unpack);
    return NIB_OK;
}

// Every wanted kernel on one call whose true result is `want`.
static nib_status compare_kernels(struct parity *p, const char *what, const char *detail,
                                  const struct nib_moe_weights *weights, const struct nib_activation *activation,
                                  const struct nib_moe_call *call, const double *want, bool with_ref,
                                  struct nib_error *err)
{
    int64_t n = call->tokens * weights->hidden;
    float *y = malloc((size_t)n * sizeof *y);
    if (!y)
        return nib_fail_memory(err, (unsigned long long)n * sizeof *y, "results");
    double unpack_error = NAN;
    nib_status status = NIB_OK;
    if (nib_cpu_has(NIB_CPU_AVX2)) {
        status = run_unpack(weights, activation, *call, y, err);
        unpack_error = relative_error(y, want, n);
    }
    if (!status && strcmp(p->device, "cuda") == 0) {
        status = moe_cuda_run(weights, activation, call, y, err);
        if (!status)
            report(p, what, detail, "cuda", relative_error(y, want, n), BOUND, unpack_error);
        free(y);
        return status;
    }
    for (size_t k = 0; !status && k < N_KERNELS; k++) {
        bool ref = k == 0;
        if (!wants(p, kernel_names[k]) || (ref && !with_ref))
            continue;
        status = run_kernel(weights, activation, kernel_names[k], *call, y, err);
        if (status == NIB_ERR_UNSUPPORTED && !p->tier) { // not on this CPU
            status = NIB_OK;
            continue;
        }
        if (!status)
            report(p, what, detail, kernel_names[k], relative_error(y, want, n), ref ? REF_BOUND : BOUND,
                   unpack_error);
    }
    free(y);
    return status;
}

// ---- vectors in files ----

struct vectors {
    const struct nib_tensor *w13, *s13, *w2, *s2, *b13, *b2, *x, *ids, *routing, *y;
};

static nib_status take(struct nib_checkpoint *file, const char *name, enum nib_dtype dtype, int rank,
                       const struct nib_tensor **tensor, struct nib_error *err)
{
    nib_status status = nib_checkpoint_require(file, name, tensor, err);
    if (!status && ((*tensor)->dtype != dtype || (*tensor)->rank != rank))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: tensor %s is %s of rank %d, not %s of rank %d", (*tensor)->file,
                        name, nib_dtype_name((*tensor)->dtype), (*tensor)->rank, nib_dtype_name(dtype), rank);
    return status;
}

static nib_status take_vectors(struct nib_checkpoint *file, struct vectors *v, struct nib_error *err)
{
    *v = (struct vectors){0};
    nib_status status;
    if ((status = take(file, "w13", NIB_U8, 3, &v->w13, err)) ||
        (status = take(file, "s13", NIB_U8, 3, &v->s13, err)) ||
        (status = take(file, "w2", NIB_U8, 3, &v->w2, err)) ||
        (status = take(file, "s2", NIB_U8, 3, &v->s2, err)) ||
        (status = take(file, "x", NIB_BF16, 2, &v->x, err)) ||
        (status = take(file, "expert_ids", NIB_I32, 2, &v->ids, err)) ||
        (status = take(file, "routing_weights", NIB_F32, 2, &v->routing, err)) ||
        (status = take(file, "y", NIB_F64, 2, &v->y, err)))
        return status;
    if (nib_checkpoint_peek(file, "b13") && ((status = take(file, "b13", NIB_F32, 2, &v->b13, err)) ||
                                             (status = take(file, "b2", NIB_F32, 2, &v->b2, err))))
        return status;
    const int64_t *w13 = v->w13->shape, *w2 = v->w2->shape;
    int64_t n = w13[0], hidden = w2[1], intermediate = w2[2] * 2, tokens = v->x->shape[0],
            top_k = v->ids->shape[1];
    bool fits = w13[1] == 2 * intermediate && w13[2] * 2 == hidden && w2[0] == n && v->s13->shape[0] == n &&
                v->s13->shape[1] == w13[1] && v->s13->shape[2] * 32 == hidden && v->s2->shape[0] == n &&
                v->s2->shape[1] == hidden && v->s2->shape[2] * 32 == intermediate && v->x->shape[1] == hidden &&
                v->ids->shape[0] == tokens && v->routing->shape[0] == tokens && v->routing->shape[1] == top_k &&
                v->y->shape[0] == tokens && v->y->shape[1] == hidden &&
                (!v->b13 || (v->b13->shape[0] == n && v->b13->shape[1] == w13[1] && v->b2->shape[0] == n &&
                             v->b2->shape[1] == hidden));
    if (!fits)
        return nib_fail(err, NIB_ERR_FORMAT,
                        "%s: shapes of w13, s13, w2, s2, x, expert_ids, y do not belong together", v->w13->file);
    return NIB_OK;
}

// "swiglu_oai", "silu", "silu_clamp10" (the limit), "situ_b4_l25" (beta and linear_beta).
static nib_status parse_activation(const struct nib_checkpoint *file, struct nib_activation *activation,
                                   struct nib_error *err)
{
    const char *name = nib_checkpoint_metadata(file, "activation");
    float a, b;
    if (name && strcmp(name, "silu") == 0)
        *activation = (struct nib_activation){.kind = NIB_ACT_SILU};
    else if (name && strcmp(name, "swiglu_oai") == 0)
        *activation = (struct nib_activation){.kind = NIB_ACT_SWIGLU_OAI, .alpha = 1.702f, .limit = 7};
    else if (name && sscanf(name, "silu_clamp%f", &a) == 1)
        *activation = (struct nib_activation){.kind = NIB_ACT_SILU_CLAMP, .limit = a};
    else if (name && sscanf(name, "situ_b%f_l%f", &a, &b) == 2)
        *activation = (struct nib_activation){.kind = NIB_ACT_SITU, .beta = a, .linear_beta = b};
    else
        return nib_fail(err, NIB_ERR_FORMAT, "%s: metadata \"activation\" is %s", nib_checkpoint_path(file),
                        name ? name : "missing");
    return NIB_OK;
}

static void point_experts(const struct vectors *v, bool interleaved, struct nib_expert *experts)
{
    int64_t hidden = v->w2->shape[1], intermediate = v->w2->shape[2] * 2, up_row = interleaved ? 1 : intermediate;
    for (int64_t e = 0; e < v->w13->shape[0]; e++) {
        int64_t row = e * 2 * intermediate;
        experts[e].gate = (const uint8_t *)v->w13->data + row * (hidden / 2);
        experts[e].up = experts[e].gate + up_row * (hidden / 2);
        experts[e].gate_scales = (const uint8_t *)v->s13->data + row * (hidden / 32);
        experts[e].up_scales = experts[e].gate_scales + up_row * (hidden / 32);
        experts[e].down = (const uint8_t *)v->w2->data + e * hidden * (intermediate / 2);
        experts[e].down_scales = (const uint8_t *)v->s2->data + e * hidden * (intermediate / 32);
        if (v->b13) {
            experts[e].gate_bias = (const float *)v->b13->data + row;
            experts[e].up_bias = (const float *)v->b13->data + row + up_row;
            experts[e].down_bias = (const float *)v->b2->data + e * hidden;
        }
    }
}

static nib_status check_vectors(struct parity *p, struct nib_checkpoint *file, const char *name,
                                struct nib_error *err)
{
    struct vectors v;
    struct nib_activation activation;
    nib_status status = take_vectors(file, &v, err);
    if (status || (status = parse_activation(file, &activation, err)))
        return status;
    const char *layout = nib_checkpoint_metadata(file, "layout");
    bool interleaved = layout && strcmp(layout, "interleaved") == 0;
    struct nib_expert *experts = calloc((size_t)v.w13->shape[0] + 1, sizeof *experts);
    if (!experts)
        return nib_fail_memory(err, (unsigned long long)v.w13->shape[0] * sizeof *experts, "experts");
    point_experts(&v, interleaved, experts);
    struct nib_moe_weights weights = {.hidden = v.w2->shape[1],
                                      .intermediate = v.w2->shape[2] * 2,
                                      .n_experts = v.w13->shape[0],
                                      .gate_up_row_stride = interleaved ? 2 : 1,
                                      .bias_dtype = NIB_F32,
                                      .experts = experts};
    struct nib_moe_call call = {.tokens = v.x->shape[0],
                                .top_k = v.ids->shape[1],
                                .threads = (int)p->threads,
                                .x_dtype = NIB_BF16,
                                .x = v.x->data,
                                .expert_ids = v.ids->data,
                                .routing_weights = v.routing->data};
    status = compare_kernels(p, "vectors", name, &weights, &activation, &call, v.y->data, true, err);
    free(experts);
    return status;
}

static nib_status check_files(struct parity *p, const char *const *paths, int n, struct nib_error *err)
{
    for (int i = 0; i < n; i++) {
        struct nib_checkpoint *file;
        nib_status status = nib_checkpoint_open(paths[i], &file, err);
        if (status)
            return status;
        const char *slash = strrchr(paths[i], '/');
        const char *name = slash ? slash + 1 : paths[i];
        if (!p->json)
            printf("%s\n", name);
        bool before = p->failed;
        p->failed = false;
        status = check_vectors(p, file, name, err);
        nib_checkpoint_close(file);
        if (status)
            return nib_fail_context(err, "%s", paths[i]);
        if (!p->json)
            printf("PARITY %s %s\n", p->failed ? "FAIL" : "PASS", name);
        p->failed |= before;
    }
    return NIB_OK;
}

// ---- random layers ----

struct trial {
    int64_t tokens;
    float rms;
    bool all_on_one;
};

static const struct trial trials[] = {{1, 1, false},  {1, 4, false},  {2, 1, false}, {4, 4, false},  {8, 1, false},
                                      {16, 4, false}, {32, 1, false}, {32, 4, true}, {128, 1, false}};

static nib_status run_trial(struct parity *p, const struct moe_variant *variant, const struct moe_layer *layer,
                            const struct trial *trial, uint64_t *random, struct nib_error *err)
{
    int64_t tokens = trial->tokens, top_k = variant->top_k, n = tokens * variant->hidden;
    uint16_t *x = malloc((size_t)n * sizeof *x);
    int32_t *ids = malloc((size_t)(tokens * top_k) * sizeof *ids);
    float *routing = malloc((size_t)(tokens * top_k) * sizeof *routing), *y = malloc((size_t)n * sizeof *y);
    double *want = malloc((size_t)n * sizeof *want);
    nib_status status = NIB_OK;
    if (!x || !ids || !routing || !y || !want) {
        status = nib_fail_memory(err, (unsigned long long)n * 14, "a trial");
        goto done;
    }
    moe_random_x(random, trial->rms, n, x);
    for (int64_t i = 0; i < n; i += 997) // outliers, as real activations have them
        x[i] = nib_bf16_from_f32(nib_bf16_to_f32(x[i]) * 30);
    moe_random_routes(random, tokens, top_k, layer->weights.n_experts, trial->all_on_one, ids, routing);
    struct nib_moe_call call = {.tokens = tokens,
                                .top_k = top_k,
                                .threads = (int)p->threads,
                                .x_dtype = NIB_BF16,
                                .x = x,
                                .expert_ids = ids,
                                .routing_weights = routing};
    if ((status = run_kernel(&layer->weights, &variant->activation, "ref", call, y, err)))
        goto done;
    for (int64_t i = 0; i < n; i++)
        want[i] = (double)y[i];
    char detail[64];
    snprintf(detail, sizeof detail, "T %lld, rms %g, %s", (long long)tokens, (double)trial->rms,
             trial->all_on_one ? "all on one" : "random");
    status =
        compare_kernels(p, variant->name, detail, &layer->weights, &variant->activation, &call, want, false, err);
done:
    free(x);
    free(ids);
    free(routing);
    free(y);
    free(want);
    return status;
}

static nib_status check_variant(struct parity *p, const struct moe_variant *variant, uint64_t seed,
                                struct nib_error *err)
{
    struct moe_layer layer;
    nib_status status = moe_layer_create(variant, RANDOM_EXPERTS, seed, &layer, err);
    if (status)
        return status;
    if (!p->json)
        printf("%s: K %lld, I %lld, top-%lld, %d experts, against ref\n", variant->name,
               (long long)variant->hidden, (long long)variant->intermediate, (long long)variant->top_k,
               RANDOM_EXPERTS);
    bool before = p->failed;
    p->failed = false;
    for (size_t i = 0; !status && i < sizeof trials / sizeof *trials; i++)
        status = run_trial(p, variant, &layer, &trials[i], &seed, err);
    moe_layer_free(&layer);
    if (!status && !p->json)
        printf("PARITY %s %s\n", p->failed ? "FAIL" : "PASS", variant->name);
    p->failed |= before;
    return status;
}

static nib_status check_variants(struct parity *p, const char *name, uint64_t seed, struct nib_error *err)
{
    nib_status status = NIB_OK;
    for (int i = 0; !status && i < MOE_VARIANTS; i++)
        if (strcmp(name, "all") == 0 || strcmp(name, moe_variants[i].name) == 0)
            status = check_variant(p, &moe_variants[i], seed + (uint64_t)i, err);
    return status;
}

static int parity_moe(int argc, char **argv)
{
    struct parity p = {.threads = 1, .device = "cpu"};
    const char *variant = NULL, *files[MAX_FILES] = {NULL};
    int64_t seed = 1;
    const struct nib_option options[] = {
        {"--variant", NIB_OPTION_CHOICE, &variant,
         "all|gptoss|glm|dsv41|muse|kimi|mimo|mimo-pro|minimax-m3|kimi-k3",
         "random layers of this shape against ref (default: all, unless files are given)", 0, 0},
        {"--tier", NIB_OPTION_CHOICE, &p.tier, "ref|avx2|avx512|avx512vnni|avx512bf16|amx",
         "only this kernel (default: all that run here)", 0, 0},
        {"--device", NIB_OPTION_CHOICE, &p.device, "cpu|cuda", "where the kernel runs", 0, 0},
        {"--threads", NIB_OPTION_INT, &p.threads, "N", "threads", 1, 1024},
        {"--seed", NIB_OPTION_INT, &seed, "N", "of weights, activations and routes", 1, 1e9},
        {"--json", NIB_OPTION_FLAG, &p.json, NULL, "print {\"pass\": …, \"rows\": [...]}", 0, 0},
    };
    const struct nib_usage usage = {
        .command = "nibble parity moe",
        .arguments = "[VECTORS.safetensors ...]",
        .summary = "Relative error of the MoE kernels against float64 vectors and, on random layers, against the "
                   "plain fp32\n"
                   "reference; beside it that of the unpack path (experts widened to bf16, bf16 GEMM).",
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .positionals = files,
        .n_positionals = MAX_FILES,
    };
    int exit_code;
    if (!nib_parse_options(&usage, argc, argv, &exit_code))
        return exit_code;
    int n = 0;
    while (n < MAX_FILES && files[n])
        n++;
    struct nib_error err;
    p.rows = json_array();
    nib_status status = check_files(&p, files, n, &err);
    if (!status && (n == 0 || variant))
        status = check_variants(&p, variant ? variant : "all", (uint64_t)seed, &err);
    if (!status && p.json) {
        json_t *root = json_pack("{s:b, s:O}", "pass", !p.failed, "rows", p.rows);
        json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        printf("\n");
        json_decref(root);
    } else if (!status) {
        printf("PARITY %s (bound %.1e)\n", p.failed ? "FAIL" : "PASS", BOUND);
    }
    json_decref(p.rows);
    return status ? report_error(&err) : p.failed;
}

int cmd_parity(int argc, char **argv)
{
    static const struct nib_command commands[] = {
        {"moe", "the MoE kernels against float64 vectors and the plain reference", parity_moe},
    };
    return dispatch("usage: nibble parity WHAT [OPTIONS]   (nibble parity WHAT --help says more)", commands,
                    sizeof commands / sizeof *commands, argc, argv);
}
