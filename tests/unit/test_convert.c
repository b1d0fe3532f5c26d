// Conversions of whole checkpoints: every fixture to every form, and back to the same bytes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "nibble/checkpoint.h"
#include "support/converted.h"
#include "support/files.h"
#include "support/paths.h"

static const char *const models[] = {"gpt_oss", "kimi_k2", "deepseek_v3_grouped", "deepseek_v4",
                                     "mimo_v2", "inkling", "minimax_m2",          "qwen3_moe"};
enum { MODELS = sizeof models / sizeof *models };

static const char *model_path(int m)
{
    static char paths[MODELS][4096];
    char name[64];
    snprintf(name, sizeof name, "models/%s", models[m]);
    snprintf(paths[m], sizeof paths[m], "%s", test_data(name));
    return paths[m];
}

static struct nib_convert_options to(enum nib_form form)
{
    return (struct nib_convert_options){.form = form,
                                        .lossy = true,
                                        .consumer_activations = "silu,silu_clamp,swiglu_oai,unknown",
                                        .max_file_bytes = 300000};
}

// ---- Every fixture, every form ----

static void every_form_of_every_model_is_proven(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int form = 0; form < NIB_FORM_COUNT; form++)
            for (int variant = 0; variant < 3; variant++) {
                struct nib_convert_options options = to((enum nib_form)form);
                options.names = (enum nib_expert_names)variant;
                options.gate_up_concatenated = variant == 1;
                options.fused = variant == 2;
                const char *folder = test_fresh("convert-every");
                test_convert(model_path(m), folder, options);
                test_proven(model_path(m), folder);
            }
}

// The experts of two checkpoints, whatever their layouts, byte by byte.
static void same_experts(const char *one_path, const char *other_path)
{
    struct nib_checkpoint *one, *other;
    const char *const *prefixes;
    size_t count;
    struct nib_experts a, b;
    struct nib_error err = {0};
    assert_int_equal(nib_checkpoint_open(one_path, &one, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_open(other_path, &other, &err), NIB_OK);
    assert_int_equal(nib_checkpoint_expert_prefixes(one, &prefixes, &count, &err), NIB_OK);
    assert_true(count > 0);
    for (size_t p = 0; p < count; p++) {
        assert_int_equal(nib_checkpoint_experts(one, prefixes[p], false, &a, &err), NIB_OK);
        assert_int_equal(nib_checkpoint_experts(other, prefixes[p], false, &b, &err), NIB_OK);
        size_t row = (size_t)a.weights.hidden / 2, blocks = row / 16;
        size_t step = (size_t)a.weights.gate_up_row_stride, other_step = (size_t)b.weights.gate_up_row_stride;
        for (int64_t e = 0; e < a.weights.n_experts; e++) {
            const struct nib_expert *x = &a.weights.experts[e], *y = &b.weights.experts[e];
            for (size_t r = 0; r < (size_t)a.weights.intermediate; r++) {
                assert_memory_equal(x->gate + r * step * row, y->gate + r * other_step * row, row);
                assert_memory_equal(x->up + r * step * row, y->up + r * other_step * row, row);
                assert_memory_equal(x->up_scales + r * step * blocks, y->up_scales + r * other_step * blocks,
                                    blocks);
            }
            assert_memory_equal(x->down, y->down, (size_t)(a.weights.hidden * a.weights.intermediate / 2));
        }
    }
    nib_checkpoint_close(one);
    nib_checkpoint_close(other);
}

static void fused_and_back_is_the_same_bytes(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        const char *fused = test_fresh("convert-fused"), *apart = test_fresh("convert-apart"),
                   *again = test_fresh("convert-again"), *direct = test_fresh("convert-direct");
        struct nib_convert_options options = to(NIB_FORM_FUSED);
        options.gate_up_concatenated = m % 2;
        test_convert(model_path(m), fused, options);
        test_convert(fused, apart, to(NIB_FORM_PER_EXPERT));
        test_convert(apart, again, options);
        test_convert(model_path(m), direct, to(NIB_FORM_PER_EXPERT));
        same_experts(model_path(m), apart);
        test_proven(model_path(m), apart);
        test_proven(model_path(m), again);
        test_same_tensors(fused, again);
        test_same_tensors(direct, apart);
        bool one_by_one = strcmp(models[m], "gpt_oss") != 0 && strcmp(models[m], "inkling") != 0;
        if (one_by_one) // under the names of its family
            test_same_tensors(model_path(m), direct);
    }
}

// ---- The same bytes, however the work is done ----

static void threads_and_chunks_change_nothing(void **state)
{
    (void)state;
    for (int form = 0; form < NIB_FORM_COUNT - 1; form++) {
        const char *one = test_fresh("convert-one"), *other = test_fresh("convert-other");
        struct nib_convert_options options = to((enum nib_form)form);
        options.threads = 1;
        test_convert(model_path(0), one, options);
        options.threads = 3;
        options.chunk_experts = 1;
        test_convert(model_path(0), other, options);
        test_same_folder(one, other);
    }
}

static void shards_make_the_same_as_one_run(void **state)
{
    (void)state;
    const char *one = test_fresh("convert-one"), *shared = test_fresh("convert-shared");
    struct nib_convert_options options = to(NIB_FORM_FP8_CHANNEL);
    struct nib_error err = {0};
    options.max_file_bytes = 50000;
    test_convert(model_path(1), one, options);
    options.shards = 3;
    for (options.shard = 3; options.shard > 0; options.shard--) {
        struct nib_convert_options merge = options;
        merge.shard = merge.shards = 0;
        merge.merge = true;
        assert_int_equal(nib_convert(model_path(1), shared, &merge, NULL, &err), NIB_ERR_NOT_FOUND);
        assert_non_null(strstr(err.message, "is missing"));
        test_convert(model_path(1), shared, options);
    }
    assert_int_not_equal(access(test_inside(shared, "config.json"), F_OK), 0);
    options.shard = options.shards = 0;
    options.merge = true;
    test_convert(model_path(1), shared, options);
    test_same_folder(one, shared);
}

static void resuming_keeps_whole_files_and_ends_the_same(void **state)
{
    (void)state;
    const char *one = test_fresh("convert-one"), *broken = test_fresh("convert-broken");
    struct nib_convert_options options = to(NIB_FORM_FUSED);
    struct nib_convert_report report;
    struct nib_error err = {0};
    options.max_file_bytes = 50000;
    test_convert(model_path(2), one, options);
    options.shard = 2; // a run that wrote every other file
    options.shards = 2;
    test_convert(model_path(2), broken, options);
    options.shard = options.shards = 0;
    test_write_text(test_inside(broken, "config.json.part"), "half");
    assert_int_equal(nib_convert(model_path(2), broken, &options, NULL, &err), NIB_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "not empty"));
    options.resume = true;
    struct nib_convert_options other = options;
    other.form = NIB_FORM_FP8_CHANNEL;
    assert_int_equal(nib_convert(model_path(2), broken, &other, NULL, &err), NIB_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "other options"));
    assert_int_equal(nib_convert(model_path(1), broken, &options, NULL, &err), NIB_ERR_ARGUMENT);
    assert_int_equal(nib_convert(model_path(2), broken, &options, &report, &err), NIB_OK);
    assert_int_equal(report.files_kept, report.files / 2);
    nib_convert_report_free(&report);
    test_same_folder(one, broken);
}

static bool stop_at_once(void *user, uint64_t bytes, uint64_t total)
{
    *(int *)user += bytes <= total;
    return false;
}

static void stopping_leaves_nothing_that_looks_whole(void **state)
{
    (void)state;
    int calls = 0;
    const char *folder = test_fresh("convert-stopped");
    struct nib_convert_options options = to(NIB_FORM_FUSED);
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    options.on_progress = stop_at_once;
    options.user = &calls;
    assert_int_equal(nib_convert(model_path(0), folder, &options, NULL, &err), NIB_ERR_CANCELLED);
    assert_int_equal(calls, 1);
    assert_int_not_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
    assert_int_not_equal(access(test_inside(folder, "model-00001-of-00003.safetensors"), F_OK), 0);
}

// ---- Configurations ----

// Multimodal models keep what concerns the text in text_config; its quantization_config stays where it is.
static void a_nested_quantization_config_stays_nested(void **state)
{
    (void)state;
    char source[4096];
    snprintf(source, sizeof source, "%s", test_scratch("convert-nested"));
    size_t size;
    uint8_t *weights = test_read(test_inside(model_path(1), "model.safetensors"), &size);
    test_write(test_inside(source, "model.safetensors"), weights, size);
    free(weights);
    test_write_text(
        test_inside(source, "config.json"),
        "{\"model_type\": \"outer\", \"rope_theta\": 1e-05, \"text_config\": {\"hidden_act\": \"silu\", "
        "\"quantization_config\": {\"quant_method\": \"quark\"}}, \"vision_config\": {\"depth\": 27}}");
    for (int form = 0; form < NIB_FORM_COUNT; form++) {
        const char *folder = test_fresh("convert-from-nested"), *method = NULL;
        struct nib_config *config;
        struct nib_error err = {0};
        test_convert(source, folder, to((enum nib_form)form));
        test_proven(source, folder);
        assert_int_equal(nib_config_load(test_inside(folder, "config.json"), &config, &err), NIB_OK);
        assert_int_equal(nib_config_string(config, "text_config.quantization_config.quant_method", &method, &err),
                         NIB_OK);
        assert_true(form == NIB_FORM_FUSED ? strcmp(method, "mxfp4") == 0 : strlen(method) > 4);
        nib_config_free(config);
    }
}

static void a_single_file_becomes_a_folder(void **state)
{
    (void)state;
    char source[4096];
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    snprintf(source, sizeof source, "%s", test_data("models/kimi_k2/model.safetensors"));
    const char *folder = test_fresh("convert-single");
    test_convert(source, folder, to(NIB_FORM_FP8_CHANNEL));
    test_proven(source, folder);
    assert_int_equal(nib_checkpoint_open(folder, &checkpoint, &err), NIB_OK);
    assert_true(nib_config_has(nib_checkpoint_config(checkpoint), "quantization_config"));
    nib_checkpoint_close(checkpoint);
}

// ---- What is refused ----

static void experts_with_more_than_a_form_knows_are_refused(void **state)
{
    (void)state;
    char source[4096];
    struct nib_error err = {0};
    struct nib_convert_report report;
    struct nib_convert_options options = to(NIB_FORM_FUSED);
    struct test_safetensors file = {0};
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    static uint8_t codes[512], scales[32];
    snprintf(source, sizeof source, "%s/model.safetensors", test_scratch("convert-more"));
    for (int p = 0; p < 3; p++) {
        char name[64];
        snprintf(name, sizeof name, "m.experts.0.%s.weight", names[p]);
        test_safetensors_add(&file, name, "U8", "[32,16]", codes, sizeof codes);
        snprintf(name, sizeof name, "m.experts.0.%s.weight_scale", names[p]);
        test_safetensors_add(&file, name, "U8", "[32,1]", scales, sizeof scales);
    }
    test_safetensors_add(&file, "m.experts.0.up_proj.input_scale", "F32", "[1]", codes, 4);
    test_safetensors_write(&file, source);
    assert_int_equal(nib_convert_dry_run(source, &options, &report, &err), NIB_ERR_UNSUPPORTED);
    assert_int_equal(report.n_unmatched, 1);
    assert_string_equal(report.unmatched[0], "m.experts.0.up_proj.input_scale");
    nib_convert_report_free(&report);
    assert_int_equal(nib_convert(source, test_fresh("convert-more"), &options, NULL, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "input_scale"));
}

// One scale or row of a source changed: the tensor and the row are named.
static void rows_that_cannot_be_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    static uint8_t codes[64 * 32];
    uint8_t scales[2][64 * 2];
    struct nib_error err = {0};
    memset(codes, 0x22, sizeof codes);
    for (int nan = 0; nan < 2; nan++) {
        char source[4096];
        struct test_safetensors file = {0};
        snprintf(source, sizeof source, "%s/model.safetensors", test_scratch("convert-row"));
        memset(scales, 127, sizeof scales);
        scales[1][2 * 41] = nan ? 255 : 127 + 13; // 13 binades above the row's other block
        for (int p = 0; p < 3; p++) {
            char name[64];
            snprintf(name, sizeof name, "m.experts.0.%s.weight", names[p]);
            test_safetensors_add(&file, name, "U8", "[64,32]", codes, sizeof codes);
            snprintf(name, sizeof name, "m.experts.0.%s.weight_scale", names[p]);
            test_safetensors_add(&file, name, "U8", "[64,2]", scales[p == 1], sizeof scales[0]);
        }
        test_safetensors_write(&file, source);
        for (int form = 0; form < NIB_FORM_COUNT; form++) {
            struct nib_convert_options options = to((enum nib_form)form);
            nib_status status = nib_convert(source, test_fresh("convert-row"), &options, NULL, &err);
            bool refused = nan || form == NIB_FORM_FP8_CHANNEL;
            assert_int_equal(status, nan ? NIB_ERR_FORMAT : refused ? NIB_ERR_UNSUPPORTED : NIB_OK);
            if (refused && (!strstr(err.message, "m.experts.0.up_proj.weight") || !strstr(err.message, "row 41:")))
                fail_msg("%s", err.message);
        }
    }
}

static void refuses(const char *source, const char *destination, struct nib_convert_options options,
                    nib_status status, const char *says)
{
    struct nib_error err = {0};
    nib_status got = nib_convert(source, destination, &options, NULL, &err);
    if (got != status || !strstr(err.message, says))
        fail_msg("status %d (expected %d), message: %s (expected: %s)", got, status, err.message, says);
}

static void what_cannot_work_is_refused(void **state)
{
    (void)state;
    const char *folder = test_fresh("convert-refused"), *map[] = {"*=fp8"};
    struct nib_convert_options options = to(NIB_FORM_INT4_G32);
    options.lossy = false;
    refuses(model_path(0), folder, options, NIB_ERR_ARGUMENT, "--lossy");
    options.lossy = true;
    options.consumer_activations = NULL;
    refuses(model_path(0), folder, options, NIB_ERR_UNSUPPORTED, "swiglu_oai");
    options.consumer_activations = "silu,swiglu";
    refuses(model_path(0), folder, options, NIB_ERR_UNSUPPORTED, "swiglu_oai");
    options = to(NIB_FORM_FUSED);
    options.shard = 4;
    options.shards = 3;
    refuses(model_path(0), folder, options, NIB_ERR_ARGUMENT, "shard 4 of 3");
    options = to(NIB_FORM_MXFP4);
    options.dtype_map = map;
    options.n_dtype_map = 1;
    refuses(model_path(0), folder, options, NIB_ERR_ARGUMENT, "*=fp8");
    options = to(NIB_FORM_FUSED);
    refuses(model_path(0), model_path(0), options, NIB_ERR_ARGUMENT, "is the source");
    refuses(test_data("models/gpt_oss/model.safetensors"), model_path(0), options, NIB_ERR_ARGUMENT,
            "is the source");
    refuses(model_path(0), test_data("models/gpt_oss/model.safetensors"), options, NIB_ERR_ARGUMENT,
            "is not a folder");
    refuses(test_data("nowhere"), folder, options, NIB_ERR_NOT_FOUND, "nowhere");
    refuses(model_path(0), test_data("models"), options, NIB_ERR_ARGUMENT, "not empty");
    assert_int_not_equal(access(folder, F_OK), 0); // nothing was made for what was refused beforehand
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_every_model_is_proven),
        cmocka_unit_test(fused_and_back_is_the_same_bytes),
        cmocka_unit_test(threads_and_chunks_change_nothing),
        cmocka_unit_test(shards_make_the_same_as_one_run),
        cmocka_unit_test(resuming_keeps_whole_files_and_ends_the_same),
        cmocka_unit_test(stopping_leaves_nothing_that_looks_whole),
        cmocka_unit_test(a_nested_quantization_config_stays_nested),
        cmocka_unit_test(a_single_file_becomes_a_folder),
        cmocka_unit_test(experts_with_more_than_a_form_knows_are_refused),
        cmocka_unit_test(rows_that_cannot_be_are_refused_by_name),
        cmocka_unit_test(what_cannot_work_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
