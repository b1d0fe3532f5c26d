// Experts and dense matrices that are not MXFP4: bf16, fp32 and FP8 in their layouts, encoded, and decoded to bf16.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "support/converted.h"
#include "support/files.h"
#include "support/paths.h"

enum { E = 3, K = 96, I = 64 };

static uint64_t random_state;

static unsigned next_random(unsigned below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % below;
}

static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)next_random(1 << 20) / (1 << 20);
    return sum - 6;
}

// Gate, up and down of all experts, as plain fp32.
struct values {
    float gate[E][I][K], up[E][I][K], down[E][K][I];
};

// `exact`: values that MXFP4 has; otherwise of every size, with a few zeros and ties.
static void fill(float *values, size_t count, bool exact)
{
    int exponent = 0;
    for (size_t i = 0; i < count; i++) {
        if (i % 32 == 0)
            exponent = (int)next_random(20) - 12;
        if (exact)
            values[i] = ldexpf(nib_e2m1_to_f32((uint8_t)next_random(16)), exponent);
        else if (i % 64 < 8)
            values[i] = ldexpf((float)next_random(16) / 4, exponent); // the rules' edges: 1.75, ties, 6 and beyond
        else
            values[i] = ldexpf(random_normal(), exponent);
        values[i] = nib_bf16_to_f32(nib_bf16_from_f32(values[i]));
    }
}

static struct values *make_values(bool exact)
{
    struct values *values = malloc(sizeof *values);
    assert_non_null(values);
    random_state = 3;
    fill(&values->gate[0][0][0], (size_t)E * I * K, exact);
    fill(&values->up[0][0][0], (size_t)E * I * K, exact);
    fill(&values->down[0][0][0], (size_t)E * K * I, exact);
    return values;
}

// ---- Writing them in layouts of the wild ----

static void add_halves(struct test_safetensors *file, const char *name, const char *dtype, const char *shape,
                       const float *values, size_t count)
{
    uint16_t *halves = malloc(count * sizeof *halves);
    assert_non_null(halves);
    for (size_t i = 0; i < count; i++)
        halves[i] = nib_bf16_from_f32(values[i]); // of F16 another number, as good as any
    test_safetensors_add(file, name, dtype, shape, halves, count * 2);
    free(halves);
}

static void add_bf16(struct test_safetensors *file, const char *name, const char *shape, const float *values,
                     size_t count)
{
    add_halves(file, name, "BF16", shape, values, count);
}

// gpt-oss as it is fine-tuned: [E, K, 2I] with gate and up columns alternating, [E, I, K].
static void write_transposed(const struct values *v, const char *folder, const char *bias_dtype)
{
    float *gate_up = malloc(sizeof(float) * E * K * 2 * I), *down = malloc(sizeof(float) * E * I * K);
    float bias[E * 2 * I];
    assert_true(gate_up && down);
    for (int e = 0; e < E; e++)
        for (int k = 0; k < K; k++)
            for (int i = 0; i < I; i++) {
                gate_up[(e * K + k) * 2 * I + 2 * i] = v->gate[e][i][k];
                gate_up[(e * K + k) * 2 * I + 2 * i + 1] = v->up[e][i][k];
                down[(e * I + i) * K + k] = v->down[e][k][i];
            }
    fill(bias, E * 2 * I, false);
    struct test_safetensors file = {0};
    add_bf16(&file, "model.layers.0.mlp.experts.gate_up_proj", "[3,96,128]", gate_up, (size_t)E * K * 2 * I);
    add_bf16(&file, "model.layers.0.mlp.experts.down_proj", "[3,64,96]", down, (size_t)E * I * K);
    add_halves(&file, "model.layers.0.mlp.experts.gate_up_proj_bias", bias_dtype, "[3,128]", bias,
               (size_t)E * 2 * I);
    add_halves(&file, "model.layers.0.mlp.experts.down_proj_bias", bias_dtype, "[3,96]", bias, (size_t)E * K);
    add_bf16(&file, "model.layers.0.self_attn.q_proj.weight", "[64,96]", &v->gate[0][0][0], (size_t)I * K);
    test_safetensors_write(&file, test_inside(folder, "model.safetensors"));
    free(gate_up);
    free(down);
}

static void write_separate(const struct values *v, const char *folder, const char *dtype)
{
    struct test_safetensors file = {0};
    for (int e = 0; e < E; e++) {
        const struct {
            const char *name, *shape;
            const float *values;
        } parts[] = {{"gate_proj", "[64,96]", &v->gate[e][0][0]},
                     {"up_proj", "[64,96]", &v->up[e][0][0]},
                     {"down_proj", "[96,64]", &v->down[e][0][0]}};
        for (int p = 0; p < 3; p++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s.weight", e, parts[p].name);
            if (strcmp(dtype, "BF16") == 0)
                add_bf16(&file, name, parts[p].shape, parts[p].values, (size_t)I * K);
            else
                test_safetensors_add(&file, name, "F32", parts[p].shape, parts[p].values, sizeof(float) * I * K);
        }
    }
    test_safetensors_write(&file, test_inside(folder, "model.safetensors"));
}

// E4M3 bytes with one scale per block of 32 x 32.
static void write_fp8(const char *folder)
{
    struct test_safetensors file = {0};
    static const char *const names[] = {"w1", "w3", "w2"};
    uint8_t bytes[I * K], scales[6];
    for (int e = 0; e < E; e++)
        for (int p = 0; p < 3; p++) {
            char name[100];
            for (int i = 0; i < I * K; i++)
                do
                    bytes[i] = (uint8_t)next_random(256);
                while ((bytes[i] & 0x7f) == 0x7f);
            for (int i = 0; i < 6; i++)
                scales[i] = (uint8_t)(120 + next_random(9));
            snprintf(name, sizeof name, "layers.0.ffn.experts.%d.%s.weight", e, names[p]);
            test_safetensors_add(&file, name, "F8_E4M3", p == 2 ? "[96,64]" : "[64,96]", bytes, sizeof bytes);
            snprintf(name, sizeof name, "layers.0.ffn.experts.%d.%s.scale", e, names[p]);
            test_safetensors_add(&file, name, "F8_E8M0", p == 2 ? "[3,2]" : "[2,3]", scales, sizeof scales);
        }
    test_safetensors_write(&file, test_inside(folder, "model.safetensors"));
}

static const char *make_source(const struct values *values, int layout)
{
    static char folder[4096];
    snprintf(folder, sizeof folder, "%s", test_scratch("floats-source"));
    test_write_text(test_inside(folder, "config.json"), "{\"model_type\": \"test\", \"hidden_act\": \"silu\"}");
    if (layout == 0)
        write_transposed(values, folder, "BF16");
    else if (layout == 1)
        write_separate(values, folder, "BF16");
    else if (layout == 2)
        write_separate(values, folder, "F32");
    else
        write_fp8(folder);
    return folder;
}

// ---- Tests ----

static struct nib_convert_options encode(enum nib_mx_scale_rule rule, bool fused)
{
    return (struct nib_convert_options){.form = NIB_FORM_MXFP4, .scale_rule = rule, .fused = fused};
}

static void values_that_mxfp4_has_are_kept_by_every_rule(void **state)
{
    (void)state;
    struct values *values = make_values(true);
    for (int layout = 0; layout < 3; layout++)
        for (int rule = 0; rule < 4; rule++) {
            const char *source = make_source(values, layout), *folder = test_fresh("floats");
            struct nib_convert_options options = encode((enum nib_mx_scale_rule)rule, layout == 0);
            struct nib_convert_report report;
            struct nib_error err = {0};
            if (nib_convert(source, folder, &options, &report, &err) != NIB_OK)
                fail_msg("%s", err.message);
            assert_int_equal(report.n_errors, 3);
            for (size_t i = 0; i < report.n_errors; i++) {
                assert_true(report.errors[i].squared_norm > 0);
                assert_true(report.errors[i].squared_error == 0);
            }
            nib_convert_report_free(&report);
            test_proven(source, folder);
        }
    free(values);
}

// To be closed when the experts are not needed any more.
static struct nib_checkpoint *open_experts(const char *folder, struct nib_experts *experts)
{
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_experts(checkpoint, "model.layers.0.mlp.experts", false, experts, &err),
                     NIB_OK);
    return checkpoint;
}

// The decoded result is where it belongs: gate is gate, row is row.
static void the_result_reads_as_the_source_was(void **state)
{
    (void)state;
    struct values *values = make_values(true);
    for (int layout = 0; layout < 3; layout++) {
        const char *source = make_source(values, layout), *folder = test_fresh("floats");
        test_convert(source, folder, encode(NIB_MX_SCALE_OCP, layout != 1));
        struct nib_experts experts;
        struct nib_checkpoint *checkpoint = open_experts(folder, &experts);
        int64_t stride = experts.weights.gate_up_row_stride;
        for (int e = 0; e < E; e++) {
            const struct nib_expert *x = &experts.weights.experts[e];
            float row[K];
            for (int i = 0; i < I; i++) {
                nib_mxfp4_decode_row(x->gate + i * stride * K / 2, x->gate_scales + i * stride * K / 32, K, row);
                for (int k = 0; k < K; k++)
                    assert_true(row[k] == values->gate[e][i][k]);
                nib_mxfp4_decode_row(x->up + i * stride * K / 2, x->up_scales + i * stride * K / 32, K, row);
                for (int k = 0; k < K; k++)
                    assert_true(row[k] == values->up[e][i][k]);
            }
            for (int k = 0; k < K; k++) {
                nib_mxfp4_decode_row(x->down + k * I / 2, x->down_scales + k * I / 32, I, row);
                for (int i = 0; i < I; i++)
                    assert_true(row[i] == values->down[e][k][i]);
            }
        }
        nib_checkpoint_close(checkpoint);
    }
    free(values);
}

static void half_biases_stay_what_they_are(void **state)
{
    (void)state;
    struct values *values = make_values(true);
    for (int fused = 0; fused < 2; fused++) {
        const char *source = make_source(values, 0), *folder = test_fresh("floats");
        write_transposed(values, source, "F16");
        test_convert(source, folder, encode(NIB_MX_SCALE_OCP, fused));
        test_proven(source, folder);
        struct nib_experts experts;
        struct nib_checkpoint *checkpoint = open_experts(folder, &experts);
        assert_int_equal(experts.weights.bias_dtype, NIB_F16);
        nib_checkpoint_close(checkpoint);
    }
    free(values);
}

static void any_values_by_any_rule_are_proven(void **state)
{
    (void)state;
    struct values *values = make_values(false);
    for (int layout = 0; layout < 4; layout++)
        for (int rule = 0; rule < 4; rule++) {
            const char *source = make_source(values, layout), *folder = test_fresh("floats");
            test_convert(source, folder, encode((enum nib_mx_scale_rule)rule, rule % 2));
            test_proven(source, folder);
            // Claimed of another rule, it is not.
            struct nib_verify_options other = {.has_scale_rule = true,
                                               .scale_rule = rule ? NIB_MX_SCALE_OCP : NIB_MX_SCALE_RCEIL};
            struct nib_verify_report report;
            struct nib_error err = {0};
            assert_int_equal(nib_verify(source, folder, &other, &report, &err), NIB_OK);
            assert_false(report.proven);
            nib_verify_report_free(&report);
        }
    free(values);
}

static void search_errs_least(void **state)
{
    (void)state;
    struct values *values = make_values(false);
    const char *source = make_source(values, 1);
    double errors[4];
    for (int rule = 0; rule < 4; rule++) {
        struct nib_convert_options options = encode((enum nib_mx_scale_rule)rule, false);
        struct nib_convert_report report;
        struct nib_error err = {0};
        assert_int_equal(nib_convert(source, test_fresh("floats"), &options, &report, &err), NIB_OK);
        errors[rule] = report.errors[0].squared_error;
        assert_true(report.errors[0].worst >= sqrt(errors[rule] / report.errors[0].squared_norm));
        nib_convert_report_free(&report);
    }
    assert_true(errors[3] < errors[0] && errors[3] < errors[1] && errors[3] < errors[2]);
    free(values);
}

static void what_is_not_finite_is_refused(void **state)
{
    (void)state;
    struct values *values = make_values(false);
    values->down[1][5][40] = INFINITY;
    const char *source = make_source(values, 2);
    struct nib_convert_options options = encode(NIB_MX_SCALE_EVEN, false);
    struct nib_error err = {0};
    assert_int_equal(nib_convert(source, test_fresh("floats"), &options, NULL, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "experts.1.down_proj.weight"));
    assert_non_null(strstr(err.message, "down row 5"));
    free(values);
}

// ---- Dense matrices ----

// FP8 with all kinds of scales, and MXFP4, beside two experts.
static const char *make_dense_source(void)
{
    static char folder[4096];
    struct test_safetensors file = {0};
    uint8_t bytes[130 * 64], codes[64 * 32], scales[128];
    float block_scales[4], channel_scales[130];
    random_state = 11;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)next_random(0x7f);
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)next_random(256);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(118 + next_random(10));
    for (int i = 0; i < 130; i++)
        channel_scales[i] = 0.001f * (float)(1 + next_random(10000));
    for (int i = 0; i < 4; i++)
        block_scales[i] = 0.013f * (float)(1 + next_random(10000));
    snprintf(folder, sizeof folder, "%s", test_scratch("dense-source"));
    test_write_text(test_inside(folder, "config.json"), "{\"model_type\": \"test\", \"hidden_act\": \"silu\"}");
    test_safetensors_add(&file, "a.channel.weight", "F8_E4M3", "[130,64]", bytes, 130 * 64);
    test_safetensors_add(&file, "a.channel.weight_scale", "F32", "[130,1]", channel_scales, sizeof channel_scales);
    test_safetensors_add(&file, "a.block.weight", "F8_E4M3", "[130,64]", bytes, 130 * 64);
    test_safetensors_add(&file, "a.block.weight_scale_inv", "F32", "[2,1]", block_scales, 8);
    test_safetensors_add(&file, "a.mx.weight", "U8", "[64,32]", codes, sizeof codes);
    test_safetensors_add(&file, "a.mx.weight_scale", "U8", "[64,2]", scales, sizeof scales);
    test_safetensors_add(&file, "a.odd", "BOOL", "[3]", bytes, 3);
    test_safetensors_add(&file, "a.empty", "F32", "[0,7]", bytes, 0);
    for (int e = 0; e < 2; e++)
        for (int p = 0; p < 3; p++) {
            static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
            char name[100];
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s.weight", e, names[p]);
            test_safetensors_add(&file, name, "U8", p == 2 ? "[64,16]" : "[32,32]", codes, 1024);
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s.weight_scale", e, names[p]);
            test_safetensors_add(&file, name, "U8", p == 2 ? "[64,1]" : "[32,2]", scales, 64);
        }
    test_safetensors_write(&file, test_inside(folder, "model.safetensors"));
    return folder;
}

static void dense_matrices_are_kept_or_become_bf16(void **state)
{
    (void)state;
    const char *source = make_dense_source();
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    for (int dense = 0; dense < 2; dense++) {
        const char *folder = test_fresh("dense");
        test_convert(source, folder, (struct nib_convert_options){.form = NIB_FORM_FUSED, .dense_bf16 = dense});
        test_proven(source, folder);
        assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
        assert_int_equal(nib_checkpoint_copied_bytes(checkpoint), 0); // everything lies on its boundary
        const struct nib_tensor *channel = nib_checkpoint_peek(checkpoint, "a.channel.weight");
        assert_int_equal(channel->dtype, dense ? NIB_BF16 : NIB_F8_E4M3);
        assert_int_equal(nib_checkpoint_peek(checkpoint, "a.block.weight_scale_inv") == NULL, dense);
        assert_non_null(nib_checkpoint_peek(checkpoint, "a.odd"));
        assert_non_null(nib_checkpoint_peek(checkpoint, "a.empty"));
        nib_checkpoint_close(checkpoint);
    }
    // Neither FP8 in blocks nor MXFP4 can be described beside FP8 per channel, and nothing beside int4.
    struct nib_convert_options options = {.form = NIB_FORM_FP8_CHANNEL};
    assert_int_equal(nib_convert(source, test_fresh("dense"), &options, NULL, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a.block.weight"));
    options.form = NIB_FORM_INT4_G32;
    options.lossy = true;
    assert_int_equal(nib_convert(source, test_fresh("dense"), &options, NULL, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "beside int4-g32"));
    // compressed-tensors has one kind for all matrices there too; DeepSeek's layout describes those outside apart.
    options = (struct nib_convert_options){.form = NIB_FORM_PER_EXPERT, .names = NIB_NAMES_COMPRESSED_TENSORS};
    assert_int_equal(nib_convert(source, test_fresh("dense"), &options, NULL, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "beside per-expert"));
    test_write_text(
        test_inside(source, "config.json"),
        "{\"hidden_act\": \"silu\", \"text_config\": {\"quantization_config\": {\"quant_method\": \"fp8\"}}}");
    for (int names = 0; names < NIB_NAMES_COUNT; names++) {
        const char *folder = test_fresh("dense");
        options.names = (enum nib_expert_names)names;
        options.dense_bf16 = names != NIB_NAMES_QUARK;
        test_convert(source, folder, options);
        test_proven(source, folder);
    }
    options = (struct nib_convert_options){.lossy = true, .dense_bf16 = true};
    for (int form = 0; form < NIB_FORM_COUNT; form++) {
        const char *folder = test_fresh("dense");
        options.form = (enum nib_form)form;
        test_convert(source, folder, options);
        test_proven(source, folder);
    }
}

// Layer 0 in MXFP4 as Quark has it, layer 1 in bf16, as after a quantization that left layers out.
static void packed_layers_may_be_kept_beside_fused_ones(void **state)
{
    (void)state;
    static const char *const map[] = {"*.0.mlp.experts=keep"}, *const names[] = {"gate_proj", "up_proj",
                                                                                 "down_proj"};
    static const uint8_t codes[1024], scales[64], halves[4096];
    struct test_safetensors file = {0};
    const char *source = test_scratch("mixed-source"), *folder = test_fresh("mixed");
    test_write_text(test_inside(source, "config.json"), "{}");
    for (int p = 0; p < 3; p++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.0.%s.weight", names[p]);
        test_safetensors_add(&file, name, "U8", p == 2 ? "[64,16]" : "[32,32]", codes, 1024);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.0.%s.weight_scale", names[p]);
        test_safetensors_add(&file, name, "U8", p == 2 ? "[64,1]" : "[32,2]", scales, 64);
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.0.%s.weight", names[p]);
        test_safetensors_add(&file, name, "BF16", p == 2 ? "[64,32]" : "[32,64]", halves, 4096);
    }
    test_safetensors_write(&file, test_inside(source, "model.safetensors"));
    struct nib_convert_options options = encode(NIB_MX_SCALE_EVEN, false);
    options.fused = true;
    options.dtype_map = map;
    options.n_dtype_map = 1;
    test_convert(source, folder, options);
    test_proven(source, folder);
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
    assert_non_null(nib_checkpoint_peek(checkpoint, "model.layers.0.mlp.experts.0.up_proj.weight"));
    assert_non_null(nib_checkpoint_peek(checkpoint, "model.layers.1.mlp.experts.gate_up_proj_blocks"));
    nib_checkpoint_close(checkpoint);
}

static void dense_matrices_get_the_names_of_the_experts(void **state)
{
    (void)state;
    static const char *const map[] = {"model.layers.*.q_proj.weight=mxfp4"};
    static const struct {
        const char *weight, *scale;
        enum nib_dtype dtype;
        const char *key, *value; // of config.json
    } wanted[NIB_NAMES_COUNT] = {
        [NIB_NAMES_QUARK] = {"weight", "weight_scale", NIB_U8, "quantization_config.quant_method", "quark"},
        [NIB_NAMES_COMPRESSED_TENSORS] = {"weight_packed", "weight_scale", NIB_U8, "quantization_config.format",
                                          "mxfp4-pack-quantized"},
        [NIB_NAMES_DEEPSEEK] = {"weight", "scale", NIB_I8, "expert_dtype", "fp4"},
    };
    struct values *values = make_values(false);
    const char *source = make_source(values, 0);
    for (int names = 0; names < NIB_NAMES_COUNT; names++) {
        const char *folder = test_fresh("names");
        struct nib_convert_options options = encode(NIB_MX_SCALE_EVEN, false);
        options.names = (enum nib_expert_names)names;
        options.dtype_map = map;
        options.n_dtype_map = 1;
        test_convert(source, folder, options);
        test_proven(source, folder);
        struct nib_checkpoint *checkpoint;
        struct nib_error err = {0};
        char name[100];
        const char *value = "";
        assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
        snprintf(name, sizeof name, "model.layers.0.self_attn.q_proj.%s", wanted[names].weight);
        assert_non_null(nib_checkpoint_peek(checkpoint, name));
        assert_int_equal(nib_checkpoint_peek(checkpoint, name)->dtype, wanted[names].dtype);
        snprintf(name, sizeof name, "model.layers.0.self_attn.q_proj.%s", wanted[names].scale);
        assert_non_null(nib_checkpoint_peek(checkpoint, name));
        const struct nib_config *config = nib_checkpoint_config(checkpoint);
        assert_int_equal(nib_config_string(config, wanted[names].key, &value, &err), NIB_OK);
        assert_string_equal(value, wanted[names].value);
        assert_int_equal(nib_config_has(config, "quantization_config"), names != NIB_NAMES_DEEPSEEK);
        nib_checkpoint_close(checkpoint);
    }
    free(values);
}

static void a_dtype_map_chooses(void **state)
{
    (void)state;
    static const char *const map[] = {"*.0.mlp.experts=keep", "model.layers.*.q_proj.weight=mxfp4"};
    struct values *values = make_values(false);
    const char *source = make_source(values, 0), *folder = test_fresh("map");
    struct nib_convert_options options = encode(NIB_MX_SCALE_EVEN, false);
    options.dtype_map = map;
    options.n_dtype_map = 2;
    test_convert(source, folder, options);
    test_proven(source, folder);
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
    assert_non_null(nib_checkpoint_peek(checkpoint, "model.layers.0.mlp.experts.gate_up_proj"));
    const struct nib_tensor *q = nib_checkpoint_peek(checkpoint, "model.layers.0.self_attn.q_proj.weight");
    assert_int_equal(q->dtype, NIB_U8);
    assert_non_null(nib_checkpoint_peek(checkpoint, "model.layers.0.self_attn.q_proj.weight_scale"));
    nib_checkpoint_close(checkpoint);
    // The kept layer's rows alternate, which files that say "concatenated" would hide.
    options.fused = options.gate_up_concatenated = true;
    assert_int_equal(nib_convert(source, test_fresh("map"), &options, NULL, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "interleaved"));
    options.gate_up_concatenated = false;
    folder = test_fresh("map");
    test_convert(source, folder, options);
    test_proven(source, folder);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_mxfp4_has_are_kept_by_every_rule),
        cmocka_unit_test(the_result_reads_as_the_source_was),
        cmocka_unit_test(half_biases_stay_what_they_are),
        cmocka_unit_test(any_values_by_any_rule_are_proven),
        cmocka_unit_test(search_errs_least),
        cmocka_unit_test(what_is_not_finite_is_refused),
        cmocka_unit_test(dense_matrices_are_kept_or_become_bf16),
        cmocka_unit_test(packed_layers_may_be_kept_beside_fused_ones),
        cmocka_unit_test(dense_matrices_get_the_names_of_the_experts),
        cmocka_unit_test(a_dtype_map_chooses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
