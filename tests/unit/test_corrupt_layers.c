// Layers of experts that lie: refused by the tensor's name and its numbers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "support/files.h"
#include "support/paths.h"

struct entry {
    const char *name, *dtype, *shape;
    size_t bytes;
};

// K = 64, I = 32, two experts.
static const struct entry quark_layer[] = {
    {"p.0.gate_proj.weight", "U8", "[32,32]", 1024}, {"p.0.gate_proj.weight_scale", "U8", "[32,2]", 64},
    {"p.0.up_proj.weight", "U8", "[32,32]", 1024},   {"p.0.up_proj.weight_scale", "U8", "[32,2]", 64},
    {"p.0.down_proj.weight", "U8", "[64,16]", 1024}, {"p.0.down_proj.weight_scale", "U8", "[64,1]", 64},
    {"p.1.gate_proj.weight", "U8", "[32,32]", 1024}, {"p.1.gate_proj.weight_scale", "U8", "[32,2]", 64},
    {"p.1.up_proj.weight", "U8", "[32,32]", 1024},   {"p.1.up_proj.weight_scale", "U8", "[32,2]", 64},
    {"p.1.down_proj.weight", "U8", "[64,16]", 1024}, {"p.1.down_proj.weight_scale", "U8", "[64,1]", 64},
};

static const struct entry fused_layer[] = {
    {"p.gate_up_proj_blocks", "U8", "[2,64,2,16]", 4096}, {"p.gate_up_proj_scales", "U8", "[2,64,2]", 256},
    {"p.gate_up_proj_bias", "BF16", "[2,64]", 256},       {"p.down_proj_blocks", "U8", "[2,64,1,16]", 2048},
    {"p.down_proj_scales", "U8", "[2,64,1]", 128},        {"p.down_proj_bias", "BF16", "[2,64]", 256},
};

// The layer with one entry replaced (same name), left out (no dtype) or put in (new name).
static const struct {
    const char *what;
    bool fused;
    struct entry change;
    nib_status status;
    const char *names, *says;
} layers[] = {
    {"missing weight",
     false,
     {"p.1.up_proj.weight", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.1.up_proj.weight",
     "no tensor"},
    {"missing scale",
     false,
     {"p.1.down_proj.weight_scale", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.1.down_proj.weight_scale",
     "no tensor"},
    {"missing first scale",
     false,
     {"p.0.gate_proj.weight_scale", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.0.gate_proj.weight",
     "no scale"},
    {"missing first weight",
     false,
     {"p.0.gate_proj.weight", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.0",
     "no gate_proj or w1"},
    {"an expert between is missing",
     false,
     {"p.3.gate_proj.weight", "U8", "[32,32]", 1024},
     NIB_ERR_NOT_FOUND,
     "p.2.gate_proj.weight",
     "no tensor"},
    {"an expert far away",
     false,
     {"p.999999999.gate_proj.weight", "U8", "[32,32]", 1024},
     NIB_ERR_NOT_FOUND,
     "expert 999999999",
     "13 tensors"},
    {"an expert beyond all numbers",
     false,
     {"p.99999999999999999999.gate_proj.weight", "U8", "[1]", 1},
     NIB_ERR_FORMAT,
     "p.99999999999999999999",
     "not an expert's number"},
    {"an expert with a leading zero",
     false,
     {"p.01.gate_proj.weight", "U8", "[1]", 1},
     NIB_ERR_FORMAT,
     "p.01.gate_proj",
     "not an expert's number"},
    {"mixed spellings",
     false,
     {"p.2.gate_proj.weight_packed", "U8", "[32,32]", 1024},
     NIB_ERR_NOT_FOUND,
     "p.2.gate_proj.weight",
     "stored the way expert 0 is"},
    {"fused and numbered",
     false,
     {"p.gate_up_proj_blocks", "U8", "[2,64,2,16]", 4096},
     NIB_ERR_NOT_FOUND,
     "p.gate_up_proj_scales",
     "no tensor"},
    {"bf16 weight",
     false,
     {"p.0.gate_proj.weight", "BF16", "[32,32]", 2048},
     NIB_ERR_UNSUPPORTED,
     "p.0.gate_proj.weight",
     "BF16 [32, 32]: not MXFP4"},
    {"fp8 weight in one expert",
     false,
     {"p.1.gate_proj.weight", "F8_E4M3", "[32,32]", 1024},
     NIB_ERR_UNSUPPORTED,
     "p.1.gate_proj.weight",
     "F8_E4M3"},
    {"int4 words",
     false,
     {"p.0.gate_proj.weight", "I32", "[32,8]", 1024},
     NIB_ERR_UNSUPPORTED,
     "p.0.gate_proj.weight",
     "I32"},
    {"NVFP4 scales",
     false,
     {"p.0.gate_proj.weight_scale", "F8_E4M3", "[32,4]", 128},
     NIB_ERR_UNSUPPORTED,
     "p.0.gate_proj.weight_scale",
     "F8_E4M3"},
    {"float scales",
     false,
     {"p.0.down_proj.weight_scale", "F32", "[64,1]", 256},
     NIB_ERR_UNSUPPORTED,
     "p.0.down_proj.weight_scale",
     "F32"},
    {"one expert in I8",
     false,
     {"p.1.gate_proj.weight", "I8", "[32,32]", 1024},
     NIB_ERR_FORMAT,
     "p.1.gate_proj.weight",
     "unlike p.0.gate_proj.weight"},
    {"one scale in E8M0",
     false,
     {"p.1.gate_proj.weight_scale", "F8_E8M0", "[32,2]", 64},
     NIB_ERR_FORMAT,
     "p.1.gate_proj.weight",
     "F8_E8M0"},
    {"scale for blocks of 16",
     false,
     {"p.0.gate_proj.weight_scale", "U8", "[32,4]", 128},
     NIB_ERR_FORMAT,
     "p.0.gate_proj.weight_scale",
     "U8 [32, 4] does not fit"},
    {"scale of another row count",
     false,
     {"p.0.up_proj.weight_scale", "U8", "[31,2]", 62},
     NIB_ERR_FORMAT,
     "p.0.up_proj.weight_scale",
     "[31, 2] does not fit"},
    {"scale transposed",
     false,
     {"p.1.down_proj.weight_scale", "U8", "[1,64]", 64},
     NIB_ERR_FORMAT,
     "p.1.down_proj.weight_scale",
     "does not fit"},
    {"scale flat",
     false,
     {"p.1.down_proj.weight_scale", "U8", "[64]", 64},
     NIB_ERR_FORMAT,
     "p.1.down_proj.weight_scale",
     "does not fit"},
    {"a row of 24 bytes",
     false,
     {"p.0.gate_proj.weight", "U8", "[32,24]", 768},
     NIB_ERR_FORMAT,
     "p.0.gate_proj.weight",
     "multiple of 32"},
    {"a row of nothing",
     false,
     {"p.0.gate_proj.weight", "U8", "[32,0]", 0},
     NIB_ERR_FORMAT,
     "p.0.gate_proj.weight",
     "multiple of 32"},
    {"no rows",
     false,
     {"p.0.gate_proj.weight", "U8", "[0,32]", 0},
     NIB_ERR_FORMAT,
     "p.0.gate_proj.weight",
     "multiple of 32"},
    {"flat weight",
     false,
     {"p.0.gate_proj.weight", "U8", "[1024]", 1024},
     NIB_ERR_FORMAT,
     "p.0.gate_proj.weight",
     "not [rows, cols/2]"},
    {"up smaller than gate",
     false,
     {"p.0.up_proj.weight", "U8", "[16,32]", 512},
     NIB_ERR_FORMAT,
     "p.0.up_proj.weight_scale",
     "does not fit"},
    {"down transposed",
     false,
     {"p.0.down_proj.weight", "U8", "[16,64]", 1024},
     NIB_ERR_FORMAT,
     "p.0.down_proj",
     "does not fit"},
    {"a bias in one projection only",
     false,
     {"p.0.gate_proj.bias", "F32", "[32]", 128},
     NIB_ERR_FORMAT,
     "p.0.up_proj",
     "biases"},
    {"a bias of the wrong size",
     false,
     {"p.0.gate_proj.bias", "F32", "[64]", 256},
     NIB_ERR_FORMAT,
     "p.0.gate_proj.bias",
     "does not fit"},
    {"fused: missing scale",
     true,
     {"p.gate_up_proj_scales", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.gate_up_proj_scales",
     "no tensor"},
    {"fused: missing down",
     true,
     {"p.down_proj_blocks", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.down_proj_blocks",
     "no tensor"},
    {"fused: missing gate_up",
     true,
     {"p.gate_up_proj_blocks", NULL, NULL, 0},
     NIB_ERR_NOT_FOUND,
     "p.gate_up_proj_blocks",
     "no tensor"},
    {"fused: missing down bias",
     true,
     {"p.down_proj_bias", NULL, NULL, 0},
     NIB_ERR_FORMAT,
     "p.down_proj_blocks",
     "bias"},
    {"fused: other number of experts",
     true,
     {"p.down_proj_blocks", "U8", "[1,64,1,16]", 1024},
     NIB_ERR_FORMAT,
     "p.down_proj_scales",
     "does not fit"},
    {"fused: blocks of 8 bytes",
     true,
     {"p.down_proj_blocks", "U8", "[2,64,2,8]", 2048},
     NIB_ERR_FORMAT,
     "p.down_proj_blocks",
     "not [experts, rows"},
    {"fused: matrix without experts",
     true,
     {"p.gate_up_proj_blocks", "U8", "[64,32]", 2048},
     NIB_ERR_FORMAT,
     "p.gate_up_proj_blocks",
     "not [experts, rows"},
    {"fused: bf16 weights",
     true,
     {"p.gate_up_proj_blocks", "BF16", "[2,64,64]", 16384},
     NIB_ERR_UNSUPPORTED,
     "p.gate_up_proj_blocks",
     "BF16"},
    {"fused: integer bias",
     true,
     {"p.gate_up_proj_bias", "I16", "[2,64]", 256},
     NIB_ERR_UNSUPPORTED,
     "p.gate_up_proj_bias",
     "I16"},
    {"fused: bias of two types",
     true,
     {"p.down_proj_bias", "F32", "[2,64]", 512},
     NIB_ERR_FORMAT,
     "p.down_proj_blocks",
     "one type"},
    {"fused: bias of one expert",
     true,
     {"p.down_proj_bias", "BF16", "[1,64]", 128},
     NIB_ERR_FORMAT,
     "p.down_proj_bias",
     "does not fit"},
    {"fused: scales of one expert",
     true,
     {"p.gate_up_proj_scales", "U8", "[1,64,2]", 128},
     NIB_ERR_FORMAT,
     "p.gate_up_proj_scales",
     "does not fit"},
    {"fused: two spellings",
     true,
     {"p.w13_weight", "U8", "[2,64,32]", 4096},
     NIB_ERR_FORMAT,
     "gate_up_proj_blocks",
     "two layouts"},
    {"fused and numbered experts",
     true,
     {"p.0.gate_proj.weight", "U8", "[32,32]", 1024},
     NIB_ERR_FORMAT,
     "p.gate_up_proj_blocks",
     "two layouts"},
};

static void lying_layers(void **state)
{
    (void)state;
    static const uint8_t zeros[1 << 15];
    const char *path = test_inside(test_scratch("corrupt"), "layer.safetensors");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const struct entry *base = layers[i].fused ? fused_layer : quark_layer, *change = &layers[i].change;
        size_t count = layers[i].fused ? 6 : 12;
        struct test_safetensors file = {0};
        bool applied = false;
        for (size_t e = 0; e < count; e++) {
            const struct entry *entry = strcmp(base[e].name, change->name) == 0 ? change : &base[e];
            applied = applied || entry == change;
            if (entry->dtype)
                test_safetensors_add(&file, entry->name, entry->dtype, entry->shape, zeros, entry->bytes);
        }
        if (!applied)
            test_safetensors_add(&file, change->name, change->dtype, change->shape, zeros, change->bytes);
        test_safetensors_write(&file, path);
        struct nib_checkpoint *checkpoint = NULL;
        assert_int_equal(nib_checkpoint_open(path, &checkpoint, NULL), NIB_OK);
        struct nib_experts experts;
        struct nib_error err = {0};
        nib_status status = nib_checkpoint_experts(checkpoint, "p", true, &experts, &err);
        if (status != layers[i].status || err.status != status || !strstr(err.message, path) ||
            !strstr(err.message, layers[i].names) || !strstr(err.message, layers[i].says))
            fail_msg("%s: status %d, message: %s (expected: %s … %s)", layers[i].what, status, err.message,
                     layers[i].names, layers[i].says);
        nib_checkpoint_close(checkpoint);
    }
}

static void intermediate_must_be_whole_blocks(void **state)
{
    (void)state;
    static const uint8_t zeros[4096];
    const char *path = test_inside(test_scratch("corrupt"), "odd.safetensors");
    struct test_safetensors file = {0};
    // I = 48: gate and up agree, but 48 inputs of down are one and a half blocks.
    test_safetensors_add(&file, "p.gate_up_proj_blocks", "U8", "[1,96,1,16]", zeros, 1536);
    test_safetensors_add(&file, "p.gate_up_proj_scales", "U8", "[1,96,1]", zeros, 96);
    test_safetensors_add(&file, "p.down_proj_blocks", "U8", "[1,32,2,16]", zeros, 1024);
    test_safetensors_add(&file, "p.down_proj_scales", "U8", "[1,32,2]", zeros, 64);
    test_safetensors_write(&file, path);
    struct nib_checkpoint *checkpoint = NULL;
    assert_int_equal(nib_checkpoint_open(path, &checkpoint, NULL), NIB_OK);
    struct nib_experts experts;
    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_experts(checkpoint, "p", true, &experts, &err), NIB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "p.gate_up_proj_blocks: U8 [1, 96, 1, 16]"));
    nib_checkpoint_close(checkpoint);
}

// mlx-lm 1865, transformers 48371: an unknown format is refused by name, not read as something else.
static void unknown_expert_layouts_are_refused_by_name(void **state)
{
    (void)state;
    static const uint8_t zeros[4096];
    const char *path = test_inside(test_scratch("corrupt"), "unknown.safetensors");
    struct test_safetensors file = {0};
    test_safetensors_add(&file, "model.layers.0.mlp.experts.gate_up_proj", "BF16", "[1,32,64]", zeros, 4096);
    test_safetensors_add(&file, "model.norm.weight", "BF16", "[32]", zeros, 64);
    test_safetensors_member(&file, "\"__metadata__\":{\"gate_up_layout\":\"sideways\"}");
    test_safetensors_add(&file, "w13", "U8", "[1,64,16]", zeros, 1024);
    test_safetensors_add(&file, "s13", "U8", "[1,64,1]", zeros, 64);
    test_safetensors_add(&file, "w2", "U8", "[1,32,16]", zeros, 512);
    test_safetensors_add(&file, "s2", "U8", "[1,32,1]", zeros, 32);
    test_safetensors_write(&file, path);
    struct nib_checkpoint *checkpoint = NULL;
    assert_int_equal(nib_checkpoint_open(path, &checkpoint, NULL), NIB_OK);
    const char *const *prefixes;
    size_t count;
    assert_int_equal(nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, NULL), NIB_OK);
    assert_int_equal(count, 1);
    struct nib_experts experts;
    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_experts(checkpoint, prefixes[0], true, &experts, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "model.layers.0.mlp.experts.gate_up_proj: BF16 [1, 32, 64]"));
    assert_int_equal(nib_checkpoint_experts(checkpoint, "model.layers.7", true, &experts, &err),
                     NIB_ERR_NOT_FOUND);
    assert_int_equal(nib_checkpoint_experts(checkpoint, "", true, &experts, &err), NIB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "sideways"));
    nib_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lying_layers),
        cmocka_unit_test(intermediate_must_be_whole_blocks),
        cmocka_unit_test(unknown_expert_layouts_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("corrupt layers", tests, NULL, NULL);
}
