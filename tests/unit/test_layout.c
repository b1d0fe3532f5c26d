// One layer's experts in every layout in the wild, and dense matrices in every form: all give the same bytes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "support/files.h"
#include "support/paths.h"

static struct nib_checkpoint *open_checkpoint(const char *path)
{
    struct nib_checkpoint *checkpoint = NULL;
    struct nib_error err = {0};
    if (nib_checkpoint_open(path, &checkpoint, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return checkpoint;
}

static struct nib_experts read_experts(struct nib_checkpoint *checkpoint, const char *prefix, bool interleaved)
{
    struct nib_experts experts = {0};
    struct nib_error err = {0};
    if (nib_checkpoint_experts(checkpoint, prefix, interleaved, &experts, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return experts;
}

// ---- The weights of a layer, written out in any layout ----

enum { E = 3, K = 96, I = 64 }; // odd numbers of blocks and experts

// Plain arrays, gate, up and down apart.
struct layer {
    uint8_t gate[E][I][K / 2], up[E][I][K / 2], down[E][K][I / 2];
    uint8_t gate_scales[E][I][K / 32], up_scales[E][I][K / 32], down_scales[E][K][I / 32];
    uint16_t gate_bias[E][I], up_bias[E][I], down_bias[E][K];
};

static void fill(void *memory, size_t bytes, uint32_t seed)
{
    uint8_t *out = memory;
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (uint8_t)(seed >> 24);
        if (out[i] == 255)
            out[i] = 254;
    }
}

static const struct layer *the_layer(void)
{
    static struct layer layer;
    fill(&layer, sizeof layer, 1);
    return &layer;
}

// Gate and up rows of `bytes` each into one array, alternating or one after the other.
static void merge_rows(const void *gate, const void *up, size_t bytes, bool interleaved, uint8_t *merged)
{
    for (size_t e = 0; e < E; e++)
        for (size_t r = 0; r < I; r++) {
            uint8_t *at = merged + e * 2 * I * bytes;
            size_t g = interleaved ? 2 * r : r, u = interleaved ? 2 * r + 1 : I + r;
            memcpy(at + g * bytes, (const uint8_t *)gate + (e * I + r) * bytes, bytes);
            memcpy(at + u * bytes, (const uint8_t *)up + (e * I + r) * bytes, bytes);
        }
}

struct fused_names {
    const char *gate_up, *gate_up_scale, *gate_up_bias, *down, *down_scale, *down_bias;
    bool blocks; // [E, rows, cols/32, 16] rather than [E, rows, cols/2]
};

static void write_fused(const char *path, const char *prefix, const struct fused_names *names, bool interleaved,
                        bool biases, const char *metadata)
{
    static uint8_t codes[E * 2 * I * K / 2], scales[E * 2 * I * K / 32], bias[E * 2 * I * 2];
    const struct layer *layer = the_layer();
    merge_rows(layer->gate, layer->up, K / 2, interleaved, codes);
    merge_rows(layer->gate_scales, layer->up_scales, K / 32, interleaved, scales);
    merge_rows(layer->gate_bias, layer->up_bias, 2, interleaved, bias);
    const struct {
        const char *name, *shape;
        const void *data;
        size_t bytes;
        bool is_bias;
    } tensors[] = {
        {names->gate_up, names->blocks ? "[3,128,3,16]" : "[3,128,48]", codes, sizeof codes, false},
        {names->gate_up_scale, "[3,128,3]", scales, sizeof scales, false},
        {names->gate_up_bias, "[3,128]", bias, sizeof bias, true},
        {names->down, names->blocks ? "[3,96,2,16]" : "[3,96,32]", layer->down, sizeof layer->down, false},
        {names->down_scale, "[3,96,2]", layer->down_scales, sizeof layer->down_scales, false},
        {names->down_bias, "[3,96]", layer->down_bias, sizeof layer->down_bias, true},
    };
    struct test_safetensors file = {0};
    if (metadata)
        test_safetensors_member(&file, metadata);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[200];
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", tensors[i].name);
        if (!tensors[i].is_bias || biases)
            test_safetensors_add(&file, name, tensors[i].is_bias ? "BF16" : "U8", tensors[i].shape,
                                 tensors[i].data, tensors[i].bytes);
    }
    test_safetensors_write(&file, path);
}

struct separate_names {
    const char *gate, *up, *down, *weight, *scale;
    const char *weight_dtype, *scale_dtype;
};

static void add_expert(struct test_safetensors *file, const char *prefix, const struct separate_names *names,
                       int e)
{
    const struct layer *layer = the_layer();
    const struct {
        const char *projection, *shape, *scale_shape;
        const void *codes, *scales;
        size_t bytes;
    } parts[] = {
        {names->gate, "[64,48]", "[64,3]", layer->gate[e], layer->gate_scales[e], sizeof layer->gate[e]},
        {names->up, "[64,48]", "[64,3]", layer->up[e], layer->up_scales[e], sizeof layer->up[e]},
        {names->down, "[96,32]", "[96,2]", layer->down[e], layer->down_scales[e], sizeof layer->down[e]},
    };
    for (int p = 0; p < 3; p++) {
        char name[200];
        snprintf(name, sizeof name, "%s.%d.%s%s", prefix, e, parts[p].projection, names->weight);
        test_safetensors_add(file, name, names->weight_dtype, parts[p].shape, parts[p].codes, parts[p].bytes);
        snprintf(name, sizeof name, "%s.%d.%s%s", prefix, e, parts[p].projection, names->scale);
        test_safetensors_add(file, name, names->scale_dtype, parts[p].scale_shape, parts[p].scales,
                             parts[p].bytes / 16);
    }
}

static void write_separate(const char *path, const char *prefix, const struct separate_names *names)
{
    struct test_safetensors file = {0};
    for (int e = E; e-- > 0;) // the order in the file is nobody's business
        add_expert(&file, prefix, names, e);
    test_safetensors_write(&file, path);
}

// Follows the view the way a kernel does.
static void assert_is_the_layer(const struct nib_experts *experts, bool biases)
{
    const struct layer *layer = the_layer();
    const struct nib_moe_weights *weights = &experts->weights;
    assert_int_equal(weights->n_experts, E);
    assert_int_equal(weights->hidden, K);
    assert_int_equal(weights->intermediate, I);
    assert_int_equal(weights->gate_up_row_stride, experts->interleaved ? 2 : 1);
    size_t stride = (size_t)weights->gate_up_row_stride;
    for (size_t e = 0; e < E; e++) {
        const struct nib_expert *expert = &weights->experts[e];
        for (size_t r = 0; r < I; r++) {
            assert_memory_equal(expert->gate + r * stride * (K / 2), layer->gate[e][r], K / 2);
            assert_memory_equal(expert->up + r * stride * (K / 2), layer->up[e][r], K / 2);
            assert_memory_equal(expert->gate_scales + r * stride * (K / 32), layer->gate_scales[e][r], K / 32);
            assert_memory_equal(expert->up_scales + r * stride * (K / 32), layer->up_scales[e][r], K / 32);
            if (biases) {
                assert_memory_equal((const uint16_t *)expert->gate_bias + r * stride, &layer->gate_bias[e][r], 2);
                assert_memory_equal((const uint16_t *)expert->up_bias + r * stride, &layer->up_bias[e][r], 2);
            }
        }
        assert_memory_equal(expert->down, layer->down[e], sizeof layer->down[e]);
        assert_memory_equal(expert->down_scales, layer->down_scales[e], sizeof layer->down_scales[e]);
        if (biases)
            assert_memory_equal(expert->down_bias, layer->down_bias[e], sizeof layer->down_bias[e]);
        else
            assert_true(!expert->gate_bias && !expert->up_bias && !expert->down_bias);
    }
    if (biases)
        assert_int_equal(weights->bias_dtype, NIB_BF16);
    uint64_t bytes =
        sizeof layer->gate * 3 * 17 / 16 + (biases ? sizeof layer->gate_bias * 2 + sizeof layer->down_bias : 0);
    assert_int_equal(experts->bytes, bytes);
}

static void assert_all_used(const struct nib_checkpoint *checkpoint)
{
    const struct nib_tensor *unused = nib_checkpoint_next_unused(checkpoint, NULL);
    if (unused)
        fail_msg("%s is unused", unused->name);
}

static const struct fused_names gpt_oss = {"gate_up_proj_blocks",
                                           "gate_up_proj_scales",
                                           "gate_up_proj_bias",
                                           "down_proj_blocks",
                                           "down_proj_scales",
                                           "down_proj_bias",
                                           true};
static const struct fused_names original = {
    "mlp1_weight.blocks", "mlp1_weight.scales", "mlp1_bias", "mlp2_weight.blocks",
    "mlp2_weight.scales", "mlp2_bias",          true};
static const struct fused_names w13 = {"w13_weight",      "w13_weight_scale", "w13_bias", "w2_weight",
                                       "w2_weight_scale", "w2_bias",          false};
static const struct fused_names s13 = {"w13", "s13", "b13", "w2", "s2", "b2", false};

// amd/Quark 44, vllm 54556, 32879, 35366: names, types and order differ by exporter; ATOM 885: the order is in the view.
static void fused_layouts_give_the_same_rows(void **state)
{
    (void)state;
    static const char interleaved[] = "\"__metadata__\":{\"gate_up_layout\":\"interleaved\"}";
    static const char concatenated[] = "\"__metadata__\":{\"gate_up_layout\":\"concatenated\"}";
    static const struct {
        const struct fused_names *names;
        const char *prefix;
        enum nib_expert_layout layout;
        bool stored, asked; // interleaved
        const char *metadata;
    } cases[] = {
        {&gpt_oss, "model.layers.0.mlp.experts", NIB_EXPERTS_GPT_OSS, true, false, NULL},
        {&gpt_oss, "model.layers.0.mlp.experts", NIB_EXPERTS_GPT_OSS, true, true, NULL},
        {&gpt_oss, "model.layers.0.mlp.experts", NIB_EXPERTS_GPT_OSS, false, true, concatenated},
        {&original, "block.7.mlp", NIB_EXPERTS_GPT_OSS_ORIGINAL, true, false, NULL},
        {&w13, "model.llm.layers.1.mlp.experts", NIB_EXPERTS_FUSED, true, true, NULL},
        {&w13, "model.llm.layers.1.mlp.experts", NIB_EXPERTS_FUSED, false, false, NULL},
        {&w13, "model.llm.layers.1.mlp.experts", NIB_EXPERTS_FUSED, false, true, concatenated},
        {&w13, "model.llm.layers.1.mlp.experts", NIB_EXPERTS_FUSED, true, false, interleaved},
        {&s13, "", NIB_EXPERTS_FUSED, true, true, NULL},
        {&s13, "", NIB_EXPERTS_FUSED, false, false, NULL},
    };
    const char *folder = test_scratch("layout");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int biases = 0; biases < 2; biases++) {
            const char *path = test_inside(folder, "fused.safetensors");
            write_fused(path, cases[i].prefix, cases[i].names, cases[i].stored, biases, cases[i].metadata);
            struct nib_checkpoint *checkpoint = open_checkpoint(path);
            struct nib_experts experts = read_experts(checkpoint, cases[i].prefix, cases[i].asked);
            assert_int_equal(experts.layout, cases[i].layout);
            assert_int_equal(experts.interleaved, cases[i].stored);
            assert_string_equal(experts.prefix, cases[i].prefix);
            assert_is_the_layer(&experts, biases);
            assert_all_used(checkpoint);
            nib_checkpoint_close(checkpoint);
        }
}

static const struct separate_names quark = {"gate_proj",     "up_proj", "down_proj", ".weight",
                                            ".weight_scale", "U8",      "U8"};

static void separate_layouts_give_the_same_rows(void **state)
{
    (void)state;
    static const struct {
        struct separate_names names;
        const char *prefix;
        enum nib_expert_layout layout;
    } cases[] = {
        {{"gate_proj", "up_proj", "down_proj", ".weight", ".weight_scale", "U8", "U8"},
         "model.layers.3.mlp.experts",
         NIB_EXPERTS_QUARK},
        {{"gate_proj", "up_proj", "down_proj", ".weight", ".weight_quantizer.scale", "U8", "U8"},
         "language_model.model.layers.3.mlp.experts",
         NIB_EXPERTS_QUARK},
        {{"gate_proj", "up_proj", "down_proj", ".weight", ".weight_scale_inv", "U8", "U8"},
         "model.layers.3.mlp.experts",
         NIB_EXPERTS_QUARK},
        {{"w1", "w3", "w2", ".weight", ".weight_scale", "U8", "F8_E8M0"},
         "model.layers.3.block_sparse_moe.experts",
         NIB_EXPERTS_QUARK},
        {{"w1", "w3", "w2", ".weight_packed", ".weight_scale", "U8", "U8"},
         "model.layers.3.block_sparse_moe.experts",
         NIB_EXPERTS_COMPRESSED_TENSORS},
        {{"gate_proj", "up_proj", "down_proj", ".weight_packed", ".weight_scale", "U8", "U8"},
         "model.layers.3.mlp.experts",
         NIB_EXPERTS_COMPRESSED_TENSORS},
        {{"w1", "w3", "w2", ".weight", ".scale", "I8", "F8_E8M0"}, "layers.3.ffn.experts", NIB_EXPERTS_DEEPSEEK},
        {{"w1", "w3", "w2", ".weight", ".scale", "U8", "U8"}, "experts", NIB_EXPERTS_DEEPSEEK},
    };
    const char *folder = test_scratch("layout");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = test_inside(folder, "separate.safetensors");
        write_separate(path, cases[i].prefix, &cases[i].names);
        struct nib_checkpoint *checkpoint = open_checkpoint(path);
        const char *const *prefixes;
        size_t count;
        assert_int_equal(nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, NULL), NIB_OK);
        assert_int_equal(count, 1);
        assert_string_equal(prefixes[0], cases[i].prefix);
        struct nib_experts experts = read_experts(checkpoint, cases[i].prefix, true);
        assert_int_equal(experts.layout, cases[i].layout);
        assert_false(experts.interleaved);
        assert_is_the_layer(&experts, false);
        assert_all_used(checkpoint);
        nib_checkpoint_close(checkpoint);
    }
}

// ---- The fixtures ----

static void layers_of_the_fixtures_are_found_in_order(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        size_t layers;
        const char *first, *last;
        enum nib_expert_layout layout;
        int64_t experts, hidden, intermediate;
    } models[] = {
        {"models/gpt_oss", 4, "model.layers.0.mlp.experts", "model.layers.3.mlp.experts", NIB_EXPERTS_GPT_OSS, 8,
         96, 64},
        {"models/kimi_k2", 3, "model.layers.1.mlp.experts", "model.layers.3.mlp.experts", NIB_EXPERTS_QUARK, 8, 64,
         32},
        {"models/deepseek_v3_grouped", 3, "model.layers.1.mlp.experts", "model.layers.3.mlp.experts",
         NIB_EXPERTS_QUARK, 16, 64, 32},
        {"models/deepseek_v4", 6, "model.layers.0.ffn.experts", "model.layers.5.ffn.experts", NIB_EXPERTS_QUARK, 8,
         64, 32},
        {"models/mimo_v2", 6, "model.layers.1.mlp.experts", "model.layers.6.mlp.experts", NIB_EXPERTS_QUARK, 8, 64,
         32},
        {"models/minimax_m2", 3, "model.layers.0.block_sparse_moe.experts",
         "model.layers.2.block_sparse_moe.experts", NIB_EXPERTS_QUARK, 8, 64, 32},
        {"models/qwen3_moe", 3, "model.layers.0.mlp.experts", "model.layers.2.mlp.experts", NIB_EXPERTS_QUARK, 8,
         64, 32},
        {"models/inkling", 5, "model.llm.layers.1.mlp.experts", "model.llm.layers.5.mlp.experts",
         NIB_EXPERTS_FUSED, 8, 64, 32},
    };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct nib_checkpoint *checkpoint = open_checkpoint(test_data(models[m].path));
        const char *const *prefixes;
        size_t count;
        assert_int_equal(nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, NULL), NIB_OK);
        assert_int_equal(count, models[m].layers);
        assert_string_equal(prefixes[0], models[m].first);
        assert_string_equal(prefixes[count - 1], models[m].last);
        for (size_t i = 0; i < count; i++) {
            struct nib_experts experts = read_experts(checkpoint, prefixes[i], true);
            assert_int_equal(experts.layout, models[m].layout);
            assert_int_equal(experts.weights.n_experts, models[m].experts);
            assert_int_equal(experts.weights.hidden, models[m].hidden);
            assert_int_equal(experts.weights.intermediate, models[m].intermediate);
            assert_int_equal(nib_checkpoint_check_scales(checkpoint, &experts, NULL), NIB_OK);
        }
        // What is left has nothing to do with routed experts.
        for (const struct nib_tensor *t = NULL; (t = nib_checkpoint_next_unused(checkpoint, t));)
            assert_null(strstr(t->name, ".experts."));
        nib_checkpoint_close(checkpoint);
    }
}

// vllm 49187: the config was trusted over the tensor's header. What it says about sizes and formats is not read here.
static void labels_in_the_config_change_nothing(void **state)
{
    (void)state;
    const char *folder = test_scratch("layout");
    test_write_text(test_inside(folder, "config.json"),
                    "{\"hidden_size\": 4096, \"intermediate_size\": 1, \"num_local_experts\": 999,"
                    " \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [1, 1]}}");
    write_separate(test_inside(folder, "model.safetensors"), "model.layers.0.mlp.experts", &quark);
    struct nib_checkpoint *checkpoint = open_checkpoint(folder);
    struct nib_experts experts = read_experts(checkpoint, "model.layers.0.mlp.experts", true);
    assert_int_equal(experts.layout, NIB_EXPERTS_QUARK);
    assert_is_the_layer(&experts, false);
    nib_checkpoint_close(checkpoint);
}

static void layer_ten_comes_after_layer_nine(void **state)
{
    (void)state;
    const char *path = test_inside(test_scratch("layout"), "many.safetensors");
    struct test_safetensors file = {0};
    for (int layer = 0; layer < 12; layer++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "model.layers.%d.mlp.experts", layer);
        add_expert(&file, prefix, &quark, 0);
    }
    test_safetensors_add(&file, "model.layers.0.mlp.shared_experts.0.w1.weight", "U8", "[1]", "a", 1);
    test_safetensors_write(&file, path);
    struct nib_checkpoint *checkpoint = open_checkpoint(path);
    const char *const *prefixes;
    size_t count;
    assert_int_equal(nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, NULL), NIB_OK);
    assert_int_equal(count, 12);
    assert_string_equal(prefixes[2], "model.layers.2.mlp.experts");
    assert_string_equal(prefixes[9], "model.layers.9.mlp.experts");
    assert_string_equal(prefixes[10], "model.layers.10.mlp.experts");
    nib_checkpoint_close(checkpoint);
}

// ---- Scales that are NaN ----

static void a_nan_scale_is_found_wherever_it_is(void **state)
{
    (void)state;
    static const struct {
        bool fused;
        const char *tensor, *says;
        int64_t at;
    } cases[] = {
        {true, "p.experts.w13_weight_scale", "expert 0, row 0, block 0", 0},
        {true, "p.experts.w13_weight_scale", "expert 2, row 127, block 2", E * 2 * I * K / 32 - 1},
        {true, "p.experts.w2_weight_scale", "expert 1, row 5, block 1", 96 * 2 + 5 * 2 + 1},
        {false, "p.experts.1.up_proj.weight_scale", "row 7, block 2", 7 * 3 + 2},
        {false, "p.experts.2.down_proj.weight_scale", "row 95, block 1", 95 * 2 + 1},
    };
    const char *folder = test_scratch("layout");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = test_inside(folder, "nan.safetensors");
        if (cases[i].fused)
            write_fused(path, "p.experts", &w13, true, false, NULL);
        else
            write_separate(path, "p.experts", &quark);
        struct nib_checkpoint *checkpoint = open_checkpoint(path);
        const struct nib_tensor *scale = nib_checkpoint_peek(checkpoint, cases[i].tensor);
        size_t size;
        uint8_t *bytes = test_read(path, &size);
        uint64_t header;
        memcpy(&header, bytes, 8);
        const struct nib_tensor *start = nib_checkpoint_at(checkpoint, 0);
        for (size_t t = 0; t < nib_checkpoint_count(checkpoint); t++)
            if (nib_checkpoint_at(checkpoint, t)->data < start->data)
                start = nib_checkpoint_at(checkpoint, t);
        size_t offset = 8 + header + (size_t)((const uint8_t *)scale->data - (const uint8_t *)start->data);
        bytes[offset + (size_t)cases[i].at] = 255;
        nib_checkpoint_close(checkpoint);
        test_write(path, bytes, size);
        free(bytes);

        checkpoint = open_checkpoint(path);
        struct nib_experts experts = read_experts(checkpoint, "p.experts", true);
        struct nib_error err = {0};
        assert_int_equal(nib_checkpoint_check_scales(checkpoint, &experts, &err), NIB_ERR_FORMAT);
        assert_non_null(strstr(err.message, cases[i].tensor));
        assert_non_null(strstr(err.message, cases[i].says));
        nib_checkpoint_close(checkpoint);
    }
}

// ---- Dense matrices ----

struct linear_case {
    const char *weight, *dtype, *shape;
    size_t bytes;
    const char *scale, *scale_dtype, *scale_shape; // NULL: none
    size_t scale_bytes;
    const char *form; // NULL: refused
    nib_status status;
};

static void try_linear(const char *folder, const struct linear_case *c)
{
    static const uint8_t zeros[1 << 17];
    const char *path = test_inside(folder, "linear.safetensors");
    char name[64];
    struct test_safetensors file = {0};
    snprintf(name, sizeof name, "m.q_proj%s", c->weight);
    test_safetensors_add(&file, name, c->dtype, c->shape, zeros, c->bytes);
    if (c->scale) {
        snprintf(name, sizeof name, "m.q_proj%s", c->scale);
        test_safetensors_add(&file, name, c->scale_dtype, c->scale_shape, zeros, c->scale_bytes);
    }
    test_safetensors_write(&file, path);
    struct nib_checkpoint *checkpoint = open_checkpoint(path);
    struct nib_linear_view view;
    struct nib_error err = {0};
    nib_status status = nib_checkpoint_linear(checkpoint, "m.q_proj", &view, &err);
    assert_int_equal(status, c->status);
    if (c->form) {
        char text[40];
        assert_string_equal(nib_linear_describe(&view, text, sizeof text), c->form);
        assert_all_used(checkpoint);
        if (view.scale)
            assert_int_equal(view.scale_rows * view.scale_cols, nib_tensor_elements(view.scale));
    } else {
        assert_non_null(strstr(err.message, "m.q_proj"));
        assert_non_null(strstr(err.message, path));
    }
    nib_checkpoint_close(checkpoint);
}

// vllm 54556 and its like: type and scale decide, not the config's label. mlx-lm 1865: the unknown is refused.
static void dense_forms_are_told_by_type_and_scale(void **state)
{
    (void)state;
    static const struct linear_case cases[] = {
        {".weight", "BF16", "[3,5]", 30, NULL, NULL, NULL, 0, "bf16", NIB_OK},
        {".weight", "F16", "[3,5]", 30, NULL, NULL, NULL, 0, "fp16", NIB_OK},
        {".weight", "F32", "[3,5]", 60, NULL, NULL, NULL, 0, "fp32", NIB_OK},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "F32", "[3]", 12, "fp8 channel", NIB_OK},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "BF16", "[3,1]", 6, "fp8 channel", NIB_OK},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "F32", "[]", 4, "fp8 tensor", NIB_OK},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "F32", "[1]", 4, "fp8 tensor", NIB_OK},
        {".weight", "F8_E4M3", "[200,300]", 60000, ".weight_scale_inv", "F32", "[2,3]", 24, "fp8 128x128", NIB_OK},
        {".weight", "F8_E4M3", "[200,300]", 60000, ".scale", "F8_E8M0", "[2,3]", 6, "fp8 128x128", NIB_OK},
        {".weight", "F8_E4M3", "[200,300]", 60000, ".scale", "F8_E8M0", "[7,10]", 70, "fp8 32x32", NIB_OK},
        {".weight", "F8_E4M3", "[200,320]", 64000, ".weight_scale", "U8", "[200,10]", 2000, "fp8 1x32", NIB_OK},
        {".weight", "U8", "[3,32]", 96, ".weight_scale", "U8", "[3,2]", 6, "mxfp4", NIB_OK},
        {".weight_packed", "U8", "[3,32]", 96, ".weight_scale", "U8", "[3,2]", 6, "mxfp4", NIB_OK},
        {".weight", "I8", "[3,32]", 96, ".scale", "F8_E8M0", "[3,2]", 6, "mxfp4", NIB_OK},
        {".weight", "F8_E4M3", "[3,5]", 15, NULL, NULL, NULL, 0, NULL, NIB_ERR_NOT_FOUND},
        {".weight", "U8", "[3,32]", 96, NULL, NULL, NULL, 0, NULL, NIB_ERR_NOT_FOUND},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "F32", "[2]", 8, NULL, NIB_ERR_FORMAT},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "F32", "[3,1,1]", 12, NULL, NIB_ERR_FORMAT},
        {".weight", "F8_E4M3", "[3,5]", 15, ".weight_scale", "I32", "[3]", 12, NULL, NIB_ERR_UNSUPPORTED},
        {".weight", "F8_E5M2", "[3,5]", 15, ".weight_scale", "F32", "[3]", 12, NULL, NIB_ERR_UNSUPPORTED},
        {".weight", "BF16", "[3,5]", 30, ".weight_scale", "F32", "[3]", 12, NULL, NIB_ERR_UNSUPPORTED},
        {".weight", "BF16", "[15]", 30, NULL, NULL, NULL, 0, NULL, NIB_ERR_FORMAT},
        {".weight", "BF16", "[0,5]", 0, NULL, NULL, NULL, 0, NULL, NIB_ERR_FORMAT},
        {".weight_packed", "I32", "[3,4]", 48, ".weight_scale", "BF16", "[3,1]", 6, NULL, NIB_ERR_UNSUPPORTED},
        {".weight", "U8", "[3,32]", 96, ".weight_scale", "F8_E4M3", "[3,4]", 12, NULL, NIB_ERR_UNSUPPORTED},
        {".weight", "U8", "[3,32]", 96, ".weight_scale", "U8", "[3,1]", 3, NULL, NIB_ERR_FORMAT},
        {".weight", "U8", "[3,24]", 72, ".weight_scale", "U8", "[3,1]", 3, NULL, NIB_ERR_FORMAT},
        {".kernel", "BF16", "[3,5]", 30, NULL, NULL, NULL, 0, NULL, NIB_ERR_NOT_FOUND},
        {".weight", "BF16", "[3,5]", 30, ".bias", "BF16", "[5]", 10, NULL, NIB_ERR_FORMAT},
        {".weight", "BF16", "[3,5]", 30, ".bias", "I32", "[3]", 12, NULL, NIB_ERR_UNSUPPORTED},
    };
    const char *folder = test_scratch("layout");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        try_linear(folder, &cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_layouts_give_the_same_rows),
        cmocka_unit_test(separate_layouts_give_the_same_rows),
        cmocka_unit_test(layers_of_the_fixtures_are_found_in_order),
        cmocka_unit_test(labels_in_the_config_change_nothing),
        cmocka_unit_test(layer_ten_comes_after_layer_nine),
        cmocka_unit_test(a_nan_scale_is_found_wherever_it_is),
        cmocka_unit_test(dense_forms_are_told_by_type_and_scale),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
