// nibble bench moe: one MoE layer call against the time that reading its packed bytes takes, and against the unpack path.
//
// Every repetition draws fresh routes on another layer of a rotation far over the last-level cache, and measures the read
// ceiling and the call right after each other, so that a machine whose bandwidth changes by the second is compared with
// itself. What is printed are medians over the repetitions.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/moe_cuda.h"
#include "cli/moe_layer.h"
#include "cli/moe_unpack.h"
#include "cli/options.h"
#include "cli/plot.h"

#define MAX_CELLS 32
#define MAX_LAYERS 8
#define MAX_REPEATS 201
#define WORKING_SET (1.0e9)    // bytes of packed weights in rotation, at least
#define CEILING_BYTES (96.0e6) // read to measure the ceiling, each time

struct cell {
    int64_t tokens;
    double us_median, gb_per_s, ceiling_gb_per_s, share_of_ceiling, times_floor, gmac_per_s, distinct_experts;
    double unpack_us_median, unpack_ratio; // NAN without the unpack path
};

struct bench {
    const struct moe_variant *variant;
    int64_t experts, threads, seed, max_tokens;
    double seconds, gmac_per_core;
    bool all_on_one, with_unpack;
    const char *kernel;
    int n_layers;
    struct moe_layer layers[MAX_LAYERS];
    struct nib_moe_plan *plans[MAX_LAYERS];
    struct moe_unpack *unpack;
    struct nib_moe_call call;
    uint16_t *x;
    int32_t *ids;
    float *weights, *y, *per_route;
    uint64_t random;
};

static void free_bench(struct bench *b)
{
    for (int i = 0; i < b->n_layers; i++) {
        nib_moe_plan_free(b->plans[i]);
        moe_layer_free(&b->layers[i]);
    }
    moe_unpack_free(b->unpack);
    free(b->call.scratch);
    free(b->x);
    free(b->ids);
    free(b->weights);
    free(b->y);
    free(b->per_route);
}

static nib_status make_layers(struct bench *b, struct nib_error *err)
{
    struct nib_moe_config config = {.activation = b->variant->activation, .kernel = b->kernel};
    double bytes = 0;
    while (b->n_layers < 2 || (bytes < WORKING_SET && b->n_layers < MAX_LAYERS)) {
        int i = b->n_layers;
        nib_status status = moe_layer_create(b->variant, b->experts, (uint64_t)(b->seed + i), &b->layers[i], err);
        if (status)
            return status;
        b->n_layers++;
        if ((status = nib_moe_plan_create(&b->layers[i].weights, &config, &b->plans[i], err)))
            return status;
        bytes += (double)b->layers[i].bytes;
    }
    return NIB_OK;
}

static nib_status make_bench(struct bench *b, struct nib_error *err)
{
    nib_status status = make_layers(b, err);
    if (status)
        return status;
    int64_t tokens = b->max_tokens, top_k = b->variant->top_k, hidden = b->variant->hidden;
    size_t scratch = nib_moe_scratch_bytes(b->plans[0], tokens, top_k, (int)b->threads);
    size_t routes = (size_t)(tokens * top_k), rows = (size_t)(tokens * hidden);
    b->call.scratch_bytes = (scratch + 63) & ~(size_t)63;
    b->call.scratch = aligned_alloc(64, b->call.scratch_bytes);
    b->x = malloc(rows * sizeof *b->x);
    b->ids = malloc(routes * sizeof *b->ids);
    b->weights = malloc(routes * sizeof *b->weights);
    b->y = malloc(rows * sizeof *b->y);
    b->per_route = b->variant->per_route ? malloc(routes * (size_t)hidden * sizeof(float)) : NULL;
    if (!b->call.scratch || !b->x || !b->ids || !b->weights || !b->y || (b->variant->per_route && !b->per_route))
        return nib_fail_memory(err, scratch + routes * 8 + rows * 6, "the benchmark's buffers");
    b->random = (uint64_t)b->seed;
    moe_random_x(&b->random, 1.0f, tokens * hidden, b->x);
    b->call.top_k = top_k;
    b->call.threads = (int)b->threads;
    b->call.x_dtype = NIB_BF16;
    b->call.x = b->x;
    b->call.expert_ids = b->ids;
    b->call.routing_weights = b->weights;
    b->call.y_dtype = NIB_F32;
    b->call.y = b->y;
    b->call.y_per_route = b->per_route;
    if (b->with_unpack)
        return moe_unpack_create(&b->layers[0].weights, &b->variant->activation, (int)b->threads, tokens,
                                 &b->unpack, err);
    return NIB_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    if (n == 0)
        return NAN;
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static int64_t count_distinct(const struct bench *b, int64_t routes)
{
    int64_t distinct = 0;
    for (int64_t r = 0; r < routes; r++) {
        int64_t earlier = 0;
        while (earlier < r && b->ids[earlier] != b->ids[r])
            earlier++;
        distinct += earlier == r;
    }
    return distinct;
}

// A stretch of the layer that is read next but one, so neither it nor what follows is in a cache.
static double measure_ceiling(struct bench *b, int layer)
{
    const struct moe_layer *other = &b->layers[(layer + b->n_layers / 2) % b->n_layers];
    size_t bytes = (size_t)CEILING_BYTES < other->bytes ? (size_t)CEILING_BYTES : other->bytes;
    size_t start = (moe_random(&b->random) % (other->bytes - bytes + 1)) & ~(size_t)63;
    return nib_bandwidth_read((const uint8_t *)other->memory + start, bytes, (int)b->threads);
}

static nib_status run_cell(struct bench *b, struct cell *cell, struct nib_error *err)
{
    static double us[MAX_REPEATS], rate[MAX_REPEATS], ceiling[MAX_REPEATS], share[MAX_REPEATS],
        floors[MAX_REPEATS];
    static double distinct[MAX_REPEATS], unpack_us[MAX_REPEATS], unpack_ratio[MAX_REPEATS];
    int64_t routes = cell->tokens * b->variant->top_k;
    double macs = (double)routes * 3 * (double)b->variant->hidden * (double)b->variant->intermediate;
    int n = 0, n_unpack = 0;
    double unpack_spent = 0, start = nib_clock();
    b->call.tokens = cell->tokens;
    for (; n < MAX_REPEATS && (n < 11 || nib_clock() - start - unpack_spent < b->seconds); n++) {
        int layer = n % b->n_layers;
        moe_random_routes(&b->random, cell->tokens, b->variant->top_k, b->experts, b->all_on_one, b->ids,
                          b->weights);
        distinct[n] = (double)count_distinct(b, routes);
        ceiling[n] = measure_ceiling(b, layer);
        double before = nib_clock();
        nib_status status = nib_moe_run(b->plans[layer], &b->call, err);
        double seconds = nib_clock() - before;
        if (status)
            return status;
        double bytes = distinct[n] * moe_expert_bytes(&b->layers[layer].weights);
        double floor_seconds = fmax(bytes / ceiling[n], macs / (1e9 * b->gmac_per_core * (double)b->threads));
        us[n] = seconds * 1e6;
        rate[n] = bytes / seconds;
        share[n] = rate[n] / ceiling[n];
        floors[n] = seconds / floor_seconds;
        if (!b->unpack || (n_unpack >= 3 && unpack_spent > b->seconds))
            continue;
        before = nib_clock();
        moe_unpack_run(b->unpack, &b->layers[layer].weights, &b->call);
        double unpack_seconds = nib_clock() - before;
        unpack_spent += unpack_seconds;
        unpack_us[n_unpack] = unpack_seconds * 1e6;
        unpack_ratio[n_unpack++] = unpack_seconds / seconds;
    }
    cell->us_median = median(us, n);
    cell->gb_per_s = median(rate, n) / 1e9;
    cell->ceiling_gb_per_s = median(ceiling, n) / 1e9;
    cell->share_of_ceiling = median(share, n);
    cell->times_floor = median(floors, n);
    cell->gmac_per_s = macs / cell->us_median / 1e3;
    cell->distinct_experts = median(distinct, n);
    cell->unpack_us_median = median(unpack_us, n_unpack);
    cell->unpack_ratio = median(unpack_ratio, n_unpack);
    return NIB_OK;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static void print_json(const struct bench *b, const struct cell *cells, int n)
{
    json_t *rows = json_array();
    for (int i = 0; i < n; i++) {
        const struct cell *c = &cells[i];
        json_t *row = json_object();
        json_object_set_new(row, "variant", json_string(b->variant->name));
        json_object_set_new(row, "kernel", json_string(nib_moe_plan_kernel(b->plans[0])));
        json_object_set_new(row, "tokens", json_integer(c->tokens));
        json_object_set_new(row, "threads", json_integer(b->threads));
        json_object_set_new(row, "routing", json_string(b->all_on_one ? "all-on-one" : "random"));
        json_object_set_new(row, "local_routes", json_integer(c->tokens * b->variant->top_k));
        json_object_set_new(row, "distinct_experts", json_real(c->distinct_experts));
        json_object_set_new(row, "us_median", json_real(c->us_median));
        json_object_set_new(row, "gb_per_s", json_real(c->gb_per_s));
        json_object_set_new(row, "read_ceiling_gb_per_s", json_real(c->ceiling_gb_per_s));
        json_object_set_new(row, "share_of_read_ceiling", json_real(c->share_of_ceiling));
        json_object_set_new(row, "gmac_per_s", json_real(c->gmac_per_s));
        json_object_set_new(row, "times_floor", json_real(c->times_floor));
        json_object_set_new(row, "unpack_us_median", real_or_null(c->unpack_us_median));
        json_object_set_new(row, "unpack_ratio", real_or_null(c->unpack_ratio));
        json_array_append_new(rows, row);
    }
    json_t *root = json_pack("{s:o}", "rows", rows);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(root);
}

static void print_csv(const struct bench *b, const struct cell *cells, int n)
{
    printf("variant,kernel,tokens,threads,routing,local_routes,distinct_experts,us_median,gb_per_s,"
           "read_ceiling_gb_per_s,share_of_read_ceiling,gmac_per_s,times_floor,unpack_us_median,unpack_ratio\n");
    for (int i = 0; i < n; i++) {
        const struct cell *c = &cells[i];
        printf("%s,%s,%lld,%lld,%s,%lld,%g,%.1f,%.2f,%.2f,%.3f,%.1f,%.3f,%.1f,%.2f\n", b->variant->name,
               nib_moe_plan_kernel(b->plans[0]), (long long)c->tokens, (long long)b->threads,
               b->all_on_one ? "all-on-one" : "random", (long long)(c->tokens * b->variant->top_k),
               c->distinct_experts, c->us_median, c->gb_per_s, c->ceiling_gb_per_s, c->share_of_ceiling,
               c->gmac_per_s, c->times_floor, c->unpack_us_median, c->unpack_ratio);
    }
}

static void print_table_head(const struct bench *b)
{
    printf("%s: %lld experts, K %lld, I %lld, top-%lld, %lld thread%s\n", b->variant->name, (long long)b->experts,
           (long long)b->variant->hidden, (long long)b->variant->intermediate, (long long)b->variant->top_k,
           (long long)b->threads, b->threads == 1 ? "" : "s");
    printf("kernel %s (%s)\n", nib_moe_plan_kernel(b->plans[0]), nib_moe_plan_reason(b->plans[0]));
    printf("tokens  routing     routes  experts        us    GB/s  ceiling  share  GMAC/s  x floor  x unpack\n");
}

static void print_table_row(const struct bench *b, const struct cell *c)
{
    printf("%6lld  %-10s  %6lld  %7.0f  %8.0f  %6.1f   %6.1f   %4.2f  %6.1f   %6.2f", (long long)c->tokens,
           b->all_on_one ? "all-on-one" : "random", (long long)(c->tokens * b->variant->top_k),
           c->distinct_experts, c->us_median, c->gb_per_s, c->ceiling_gb_per_s, c->share_of_ceiling, c->gmac_per_s,
           c->times_floor);
    if (isfinite(c->unpack_ratio))
        printf("    %6.1f\n", c->unpack_ratio);
    else
        printf("         -\n");
    fflush(stdout);
}

static nib_status plot_cells(const struct bench *b, const struct cell *cells, int n, const char *path,
                             struct nib_error *err)
{
    double tokens[MAX_CELLS], rate[MAX_CELLS], ceiling[MAX_CELLS], unpack[MAX_CELLS];
    for (int i = 0; i < n; i++) {
        tokens[i] = (double)cells[i].tokens;
        rate[i] = cells[i].gb_per_s;
        ceiling[i] = cells[i].ceiling_gb_per_s;
        unpack[i] = cells[i].gb_per_s * cells[i].us_median / cells[i].unpack_us_median;
    }
    char title[200];
    snprintf(title, sizeof title, "MoE layer %s, %lld thread%s, kernel %s", b->variant->name,
             (long long)b->threads, b->threads == 1 ? "" : "s", nib_moe_plan_kernel(b->plans[0]));
    struct plot_line lines[] = {{"read ceiling", ceiling, true},
                                {nib_moe_plan_kernel(b->plans[0]), rate, false},
                                {"unpack path", unpack, false}};
    return plot_write(path, title, "tokens in the call", "packed GB/s", tokens, n, lines, b->unpack ? 3 : 2, err);
}

static int run_bench(struct bench *b, const int64_t *tokens, int n, const char *format, const char *plot)
{
    struct nib_error err;
    struct cell cells[MAX_CELLS];
    nib_status status = make_bench(b, &err);
    bool table = strcmp(format, "table") == 0;
    if (!status && table)
        print_table_head(b);
    for (int i = 0; !status && i < n; i++) {
        cells[i] = (struct cell){.tokens = tokens[i]};
        status = run_cell(b, &cells[i], &err);
        if (!status && table)
            print_table_row(b, &cells[i]);
    }
    if (!status && strcmp(format, "json") == 0)
        print_json(b, cells, n);
    if (!status && strcmp(format, "csv") == 0)
        print_csv(b, cells, n);
    if (!status && plot)
        status = plot_cells(b, cells, n, plot, &err);
    return status ? report_error(&err) : 0;
}

static void print_cuda_row(const struct moe_cuda_cell *c)
{
    printf("%6lld  %7.1f  %8.1f  %7.0f  %8.1f  %6.2f  %7.1f  %6.2f", (long long)c->tokens, c->distinct_experts,
           c->us_median, c->gb_per_s, c->read_us, c->times_read, c->tflops, c->share_of_gemm);
    if (isfinite(c->unpack_ratio))
        printf("  %9.1f    %6.2f\n", c->unpack_us, c->unpack_ratio);
    else
        printf("          -         -\n");
    fflush(stdout);
}

static void print_cuda_csv(const struct moe_cuda_cell *c)
{
    printf("%lld,%.1f,%.2f,%.1f,%.2f,%.3f,%.1f,%.3f,%.1f,%.2f\n", (long long)c->tokens, c->distinct_experts,
           c->us_median, c->gb_per_s, c->read_us, c->times_read, c->tflops, c->share_of_gemm, c->unpack_us,
           c->unpack_ratio);
}

static nib_status plot_cuda_cells(const struct moe_cuda_bench *b, const struct moe_cuda_cell *cells, int n,
                                  const char *path, struct nib_error *err)
{
    double tokens[MAX_CELLS], rate[MAX_CELLS], read[MAX_CELLS], unpack[MAX_CELLS];
    for (int i = 0; i < n; i++) {
        tokens[i] = (double)cells[i].tokens;
        rate[i] = cells[i].gb_per_s;
        read[i] = cells[i].gb_per_s * cells[i].times_read;
        unpack[i] = cells[i].gb_per_s / cells[i].unpack_ratio;
    }
    char title[200];
    snprintf(title, sizeof title, "MoE layer %s, %lld experts, on the GPU", b->variant->name,
             (long long)b->experts);
    struct plot_line lines[] = {
        {"streaming read", read, true}, {"nibble", rate, false}, {"unpack path", unpack, false}};
    return plot_write(path, title, "tokens in the call", "packed GB/s", tokens, n, lines, b->with_unpack ? 3 : 2,
                      err);
}

static int run_cuda_bench(const struct bench *b, const int64_t *tokens, int n, bool csv, const char *plot)
{
    struct nib_error err;
    struct moe_cuda_cell cells[MAX_CELLS] = {0};
    struct moe_cuda_bench bench = {b->variant, b->experts, (uint64_t)b->seed, b->all_on_one, b->with_unpack};
    for (int i = 0; i < n; i++)
        cells[i].tokens = tokens[i];
    if (csv)
        printf("tokens,distinct_experts,us_median,gb_per_s,read_us,times_read,tflops,share_of_gemm,unpack_us,"
               "unpack_ratio\n");
    else
        printf("%s on cuda: %lld experts, K %lld, I %lld, top-%lld, %s routing\n"
               "tokens  experts        us     GB/s   read us  x read  TFLOP/s  x gemm  unpack us  x unpack\n",
               b->variant->name, (long long)b->experts, (long long)b->variant->hidden,
               (long long)b->variant->intermediate, (long long)b->variant->top_k,
               b->all_on_one ? "all-on-one" : "random");
    nib_status status = moe_cuda_bench(&bench, cells, n, csv ? print_cuda_csv : print_cuda_row, &err);
    if (!status && plot)
        status = plot_cuda_cells(&bench, cells, n, plot, &err);
    return status ? report_error(&err) : 0;
}

int cmd_bench_moe(int argc, char **argv)
{
    struct bench bench = {.threads = 1, .seed = 1, .seconds = 2, .gmac_per_core = 200, .with_unpack = true};
    const char *variant = "gptoss", *list = "1,2,4,8,16,32", *plot = NULL, *device = "cpu";
    bool json = false, csv = false, no_unpack = false;
    const struct nib_option options[] = {
        {"--variant", NIB_OPTION_CHOICE, &variant, "gptoss|glm|dsv41|muse|kimi|mimo|mimo-pro|minimax-m3|kimi-k3",
         "the layer's shape and activation", 0, 0},
        {"--experts", NIB_OPTION_INT, &bench.experts, "E", "experts in the layer (0: as the variant says)", 0,
         4096},
        {"--tokens", NIB_OPTION_STRING, &list, "LIST", "tokens in a call, one row of the table each", 0, 0},
        {"--device", NIB_OPTION_CHOICE, &device, "cpu|cuda", "where it runs; on cuda there is no --json", 0, 0},
        {"--threads", NIB_OPTION_INT, &bench.threads, "N", "threads", 1, 1024},
        {"--all-on-one", NIB_OPTION_FLAG, &bench.all_on_one, NULL, "every token goes to the same experts", 0, 0},
        {"--tier", NIB_OPTION_STRING, &bench.kernel, "NAME", "kernel to run (default: the best)", 0, 0},
        {"--seconds", NIB_OPTION_REAL, &bench.seconds, "S", "time for each row", 0.1, 600},
        {"--gmac", NIB_OPTION_REAL, &bench.gmac_per_core, "G", "GMAC/s of a core that the floor assumes", 1, 1e5},
        {"--seed", NIB_OPTION_INT, &bench.seed, "N", "of weights, activations and routes", 1, 1e9},
        {"--no-unpack", NIB_OPTION_FLAG, &no_unpack, NULL, "leave the unpack path out", 0, 0},
        {"--json", NIB_OPTION_FLAG, &json, NULL, "print {\"rows\": [...]}", 0, 0},
        {"--csv", NIB_OPTION_FLAG, &csv, NULL, "print comma-separated values", 0, 0},
        {"--plot", NIB_OPTION_STRING, &plot, "FILE.svg", "also draw the table", 0, 0},
    };
    const struct nib_usage usage = {
        .command = "nibble bench moe",
        .arguments = "",
        .summary =
            "Times one MoE layer call on random weights. The floor of a row is the longer of reading the packed\n"
            "bytes at the measured read ceiling and the multiplications at --gmac.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    int exit_code;
    if (!nib_parse_options(&usage, argc, argv, &exit_code))
        return exit_code;
    int64_t tokens[MAX_CELLS];
    int n = nib_parse_list(list, 65536, tokens, MAX_CELLS);
    if (n == 0) {
        fprintf(stderr, "nibble bench moe: --tokens %s is not a list of numbers like 1,2,4\n", list);
        return 2;
    }
    for (int i = 0; i < n; i++)
        bench.max_tokens = tokens[i] > bench.max_tokens ? tokens[i] : bench.max_tokens;
    bench.variant = moe_variant_find(variant);
    if (bench.experts == 0)
        bench.experts = bench.variant->experts;
    if (bench.experts < bench.variant->top_k) {
        fprintf(stderr, "nibble bench moe: %s chooses %lld experts, --experts %lld are too few\n", variant,
                (long long)bench.variant->top_k, (long long)bench.experts);
        return 2;
    }
    bench.with_unpack = !no_unpack;
    if (strcmp(device, "cuda") == 0 && json) {
        fprintf(stderr, "nibble bench moe: --device cuda prints a table or --csv\n");
        return 2;
    }
    if (strcmp(device, "cuda") == 0)
        return run_cuda_bench(&bench, tokens, n, csv, plot);
    int code = run_bench(&bench, tokens, n, json ? "json" : csv ? "csv" : "table", plot);
    free_bench(&bench);
    return code;
}
