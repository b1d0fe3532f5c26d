// Verification has to find what is wrong: named mistakes of converters, edited files, any single bit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/internal.h"
#include "support/converted.h"
#include "support/files.h"
#include "support/paths.h"

enum { E = 8, K = 64, I = 32 }; // of tests/data/models/kimi_k2

static char source[4096];
static const char layer[] = "model.layers.2.mlp.experts";

// ---- Changing a converted checkpoint ----

// A file in memory, to be changed and written back.
struct file {
    char path[4096];
    uint8_t *bytes;
    size_t size;
};

static struct file read_file(const char *folder, const char *name)
{
    struct file file = {0};
    snprintf(file.path, sizeof file.path, "%s/%s", folder, name);
    file.bytes = test_read(file.path, &file.size);
    return file;
}

static void write_file(struct file *file)
{
    test_write(file->path, file->bytes, file->size);
    free(file->bytes);
}

// Where a tensor's bytes are in "model.safetensors" of the folder.
static uint8_t *find(const struct file *file, const char *name, size_t *bytes)
{
    struct nib_checkpoint *checkpoint;
    struct nib_error err = {0};
    if (nib_checkpoint_open(file->path, &checkpoint, &err) != NIB_OK)
        fail_msg("%s", err.message);
    const struct nib_tensor *tensor = nib_checkpoint_peek(checkpoint, name);
    if (!tensor)
        fail_msg("no %s", name);
    uint8_t *at = file->bytes + ((const uint8_t *)tensor->data - checkpoint->files[0].map.data);
    *bytes = (size_t)tensor->bytes;
    nib_checkpoint_close(checkpoint);
    return at;
}

static uint8_t *find_part(const struct file *file, int expert, const char *ending, size_t *bytes)
{
    char name[200];
    snprintf(name, sizeof name, "%s.%d.%s", layer, expert, ending);
    return find(file, name, bytes);
}

static void swap_bytes(uint8_t *one, uint8_t *other, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = one[i];
        one[i] = other[i];
        other[i] = byte;
    }
}

// ---- Mistakes in FP8 ----

static void fp8_nibbles_swapped(struct file *file)
{
    size_t bytes;
    uint8_t *weight = find_part(file, 3, "up_proj.weight", &bytes);
    for (size_t i = 0; i < bytes; i += 2)
        swap_bytes(weight + i, weight + i + 1, 1);
}

static void fp8_scale_doubled(struct file *file)
{
    size_t bytes;
    uint8_t *scale = find_part(file, 3, "up_proj.weight_scale", &bytes);
    float value;
    memcpy(&value, scale + 4 * 7, 4);
    value *= 2;
    memcpy(scale + 4 * 7, &value, 4);
}

static void fp8_scale_halved(struct file *file)
{
    size_t bytes;
    uint8_t *scale = find_part(file, 3, "up_proj.weight_scale", &bytes);
    float value;
    memcpy(&value, scale + 4 * 7, 4);
    value /= 2;
    memcpy(scale + 4 * 7, &value, 4);
}

// The row still has the same values, but not with exponent 7 on top.
static void fp8_row_with_another_k(struct file *file)
{
    size_t bytes;
    fp8_scale_doubled(file);
    uint8_t *row = find_part(file, 3, "up_proj.weight", &bytes) + (size_t)7 * K;
    for (int i = 0; i < K; i++)
        row[i] = row[i] ? (uint8_t)(row[i] - 8) : 0;
}

static void fp8_scales_off_by_a_row(struct file *file)
{
    size_t bytes;
    uint8_t *scale = find_part(file, 0, "down_proj.weight_scale", &bytes);
    memmove(scale + 4, scale, bytes - 4);
}

static void fp8_sign_dropped(struct file *file)
{
    size_t bytes;
    uint8_t *weight = find_part(file, 7, "gate_proj.weight", &bytes);
    for (size_t i = 0; i < bytes; i++)
        weight[i] &= 0x7f;
}

static void fp8_one_and_a_half_taken_for_one(struct file *file)
{
    size_t bytes;
    uint8_t *weight = find_part(file, 7, "gate_proj.weight", &bytes), *at = weight;
    while ((*at & 0x7f) == 0)
        at++;
    assert_true((size_t)(at - weight) < bytes);
    *at ^= 4;
}

static void fp8_experts_swapped(struct file *file)
{
    static const char *const endings[] = {"gate_proj.weight", "gate_proj.weight_scale",
                                          "up_proj.weight",   "up_proj.weight_scale",
                                          "down_proj.weight", "down_proj.weight_scale"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t bytes;
        uint8_t *one = find_part(file, 1, endings[i], &bytes);
        swap_bytes(one, find_part(file, 2, endings[i], &bytes), bytes);
    }
}

static void fp8_gate_and_up_swapped(struct file *file)
{
    static const char *const endings[] = {"weight", "weight_scale"};
    for (size_t i = 0; i < 2; i++) {
        char gate[40], up[40];
        size_t bytes;
        snprintf(gate, sizeof gate, "gate_proj.%s", endings[i]);
        snprintf(up, sizeof up, "up_proj.%s", endings[i]);
        uint8_t *one = find_part(file, 4, gate, &bytes);
        swap_bytes(one, find_part(file, 4, up, &bytes), bytes);
    }
}

static void fp8_negative_zero(struct file *file)
{
    size_t bytes;
    uint8_t *at = find_part(file, 0, "gate_proj.weight", &bytes), *end = at + bytes;
    while (at < end && *at)
        at++;
    assert_true(at < end);
    *at = 0x80;
}

// ---- Mistakes in fused MXFP4 ----

static uint8_t *find_fused(const struct file *file, const char *ending, size_t *bytes)
{
    char name[200];
    snprintf(name, sizeof name, "%s.%s", layer, ending);
    return find(file, name, bytes);
}

static void fused_nibbles_swapped(struct file *file)
{
    size_t bytes;
    uint8_t *codes = find_fused(file, "down_proj_blocks", &bytes);
    for (size_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
}

static void fused_scale_off_by_one(struct file *file)
{
    size_t bytes;
    find_fused(file, "gate_up_proj_scales", &bytes)[bytes / 2]++;
}

static void fused_scales_off_by_a_row(struct file *file)
{
    size_t bytes;
    uint8_t *scales = find_fused(file, "gate_up_proj_scales", &bytes);
    memmove(scales + K / 32, scales, bytes - K / 32);
}

static void fused_sign_dropped(struct file *file)
{
    size_t bytes;
    uint8_t *codes = find_fused(file, "gate_up_proj_blocks", &bytes);
    for (size_t i = 0; i < bytes; i++)
        codes[i] &= 0x77;
}

static void fused_one_taken_for_one_and_a_half(struct file *file)
{
    size_t bytes;
    uint8_t *codes = find_fused(file, "gate_up_proj_blocks", &bytes), *at = codes;
    while ((*at & 7) != 2)
        at++;
    assert_true((size_t)(at - codes) < bytes);
    *at ^= 1;
}

static void fused_experts_swapped(struct file *file)
{
    static const char *const endings[] = {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks",
                                          "down_proj_scales"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t bytes;
        uint8_t *all = find_fused(file, endings[i], &bytes);
        swap_bytes(all, all + bytes / E, bytes / E);
    }
}

static void fused_gate_and_up_swapped(struct file *file)
{
    size_t bytes;
    uint8_t *codes = find_fused(file, "gate_up_proj_blocks", &bytes);
    for (size_t r = 0; r < (size_t)E * 2 * I; r += 2)
        swap_bytes(codes + r * K / 2, codes + (r + 1) * K / 2, K / 2);
    uint8_t *scales = find_fused(file, "gate_up_proj_scales", &bytes);
    for (size_t r = 0; r < (size_t)E * 2 * I; r += 2)
        swap_bytes(scales + r * K / 32, scales + (r + 1) * K / 32, K / 32);
}

static void passed_through_changed(struct file *file)
{
    size_t bytes;
    find(file, "model.norm.weight", &bytes)[bytes - 1] ^= 1;
}

static const struct {
    const char *name;
    enum nib_form form;
    void (*change)(struct file *file);
} mistakes[] = {
    {"nibble swap", NIB_FORM_FP8_CHANNEL, fp8_nibbles_swapped},
    {"k+1", NIB_FORM_FP8_CHANNEL, fp8_scale_doubled},
    {"k-1", NIB_FORM_FP8_CHANNEL, fp8_scale_halved},
    {"another k with the same values", NIB_FORM_FP8_CHANNEL, fp8_row_with_another_k},
    {"scales off by one row", NIB_FORM_FP8_CHANNEL, fp8_scales_off_by_a_row},
    {"dropped sign", NIB_FORM_FP8_CHANNEL, fp8_sign_dropped},
    {"1.5 for 1.0", NIB_FORM_FP8_CHANNEL, fp8_one_and_a_half_taken_for_one},
    {"expert swap", NIB_FORM_FP8_CHANNEL, fp8_experts_swapped},
    {"gate and up swapped", NIB_FORM_FP8_CHANNEL, fp8_gate_and_up_swapped},
    {"-0", NIB_FORM_FP8_CHANNEL, fp8_negative_zero},
    {"fused: nibble swap", NIB_FORM_FUSED, fused_nibbles_swapped},
    {"fused: scale + 1", NIB_FORM_FUSED, fused_scale_off_by_one},
    {"fused: scales off by one row", NIB_FORM_FUSED, fused_scales_off_by_a_row},
    {"fused: dropped sign", NIB_FORM_FUSED, fused_sign_dropped},
    {"fused: 1.0 for 1.5", NIB_FORM_FUSED, fused_one_taken_for_one_and_a_half},
    {"fused: expert swap", NIB_FORM_FUSED, fused_experts_swapped},
    {"fused: gate and up swapped", NIB_FORM_FUSED, fused_gate_and_up_swapped},
    {"a tensor passed through", NIB_FORM_FUSED, passed_through_changed},
};

static void mistakes_of_converters_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *folder = test_fresh("verify-mistake");
        test_convert(source, folder, (struct nib_convert_options){.form = mistakes[i].form});
        test_proven(source, folder);
        struct file file = read_file(folder, "model.safetensors");
        mistakes[i].change(&file);
        write_file(&file);
        char text[2048];
        if (test_problems(source, folder, text, sizeof text) == 0)
            fail_msg("not found: %s", mistakes[i].name);
    }
}

// ---- Files that were edited ----

// Replaces one word of a text file by another of the same length.
static void replace(const char *folder, const char *name, const char *word, const char *by)
{
    struct file file = read_file(folder, name);
    uint8_t *at = memmem(file.bytes, file.size, word, strlen(word));
    if (!at || strlen(word) != strlen(by))
        fail_msg("no %s in %s", word, name);
    memcpy(at, by, strlen(by));
    write_file(&file);
}

static void edited_files_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *file, *word, *by, *says;
    } edits[] = {
        {"config.json", "float-quantized", "float-quantised", "quantization_config"},
        {"config.json", "\"channel\"", "\"tensors\"", "quantization_config"},
        {"config.json", "model.layers.1.mlp.gate\"", "model.layers.1.mlp.gatf\"", "\"ignore\""},
        {"config.json", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "beyond its quantization_config"},
        {"config.json", "1e-5", "1E-5", "not written as"},
        {"model-00001-of-00010.safetensors", "\"pt\"", "\"tf\"", "metadata"},
        {"model.safetensors.index.json", "total_size", "total_sise", "does not describe"},
        {"tokenizer.json", "content", "conten7", "differs from"},
    };
    const char *from = test_fresh("verify-source");
    test_convert(source, from, (struct nib_convert_options){.form = NIB_FORM_PER_EXPERT});
    test_write_text(test_inside(from, "tokenizer.json"), "{\"content\": 1}");
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *folder = test_fresh("verify-edited");
        test_convert(from, folder,
                     (struct nib_convert_options){.form = NIB_FORM_FP8_CHANNEL, .max_file_bytes = 65000});
        test_proven(from, folder);
        replace(folder, edits[i].file, edits[i].word, edits[i].by);
        char text[2048];
        if (test_problems(from, folder, text, sizeof text) == 0 || !strstr(text, edits[i].says))
            fail_msg("%s, %s: %s", edits[i].file, edits[i].word, text);
    }
}

static void files_too_many_or_too_few_are_found(void **state)
{
    (void)state;
    char text[2048];
    const char *from = test_fresh("verify-source"), *folder = test_fresh("verify-folder");
    test_convert(source, from, (struct nib_convert_options){.form = NIB_FORM_PER_EXPERT});
    test_write_text(test_inside(from, "chat_template.jinja"), "{{ messages }}");
    test_convert(from, folder, (struct nib_convert_options){.form = NIB_FORM_FUSED, .max_file_bytes = 100000});
    test_proven(from, folder);
    unlink(test_inside(folder, "chat_template.jinja"));
    assert_int_equal(test_problems(from, folder, text, sizeof text), 1);
    assert_non_null(strstr(text, "chat_template.jinja: is not in"));
    test_write_text(test_inside(folder, "chat_template.jinja"), "{{ messages }}");
    test_write_text(test_inside(folder, "merges.txt"), "a b");
    assert_int_equal(test_problems(from, folder, text, sizeof text), 1);
    unlink(test_inside(folder, "merges.txt"));
    test_write_text(test_inside(folder, "model.safetensors"), "a");
    assert_int_equal(test_problems(from, folder, text, sizeof text), 1);
    assert_non_null(strstr(text, "no part of the checkpoint"));
    unlink(test_inside(folder, "model.safetensors"));
    test_write_text(test_inside(folder, "merges.txt.part"), "a");
    assert_int_equal(test_problems(from, folder, text, sizeof text), 1);
    assert_non_null(strstr(text, "left over"));
    unlink(test_inside(folder, "merges.txt.part"));
    unlink(test_inside(folder, "model.safetensors.index.json"));
    assert_int_equal(test_problems(from, folder, text, sizeof text), 1);
    assert_non_null(strstr(text, "is missing"));
}

static void another_source_is_not_taken_for_this_one(void **state)
{
    (void)state;
    char text[2048], other[4096];
    const char *folder = test_fresh("verify-other");
    snprintf(other, sizeof other, "%s", test_data("models/deepseek_v3_grouped"));
    test_convert(source, folder, (struct nib_convert_options){.form = NIB_FORM_FP8_CHANNEL});
    assert_true(test_problems(other, folder, text, sizeof text) > 1);
}

static void a_sample_proves_nothing(void **state)
{
    (void)state;
    const char *folder = test_fresh("verify-sample");
    test_convert(source, folder, (struct nib_convert_options){.form = NIB_FORM_FP8_CHANNEL});
    struct nib_verify_report all, some;
    struct nib_error err = {0};
    struct nib_verify_options options = {.sample = 0.25};
    assert_int_equal(nib_verify(source, folder, NULL, &all, &err), NIB_OK);
    assert_int_equal(nib_verify(source, folder, &options, &some, &err), NIB_OK);
    assert_true(all.proven);
    assert_false(some.proven);
    assert_int_equal(some.problems, 0);
    assert_in_range(some.elements, all.elements / 10, all.elements / 2);
    nib_verify_report_free(&all);
    nib_verify_report_free(&some);
}

// ---- Any bit ----

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 20;
}

// `flips` single bits of one file, one at a time.
static void flip_bits(const char *folder, const char *name, size_t limit, int flips, uint64_t seed)
{
    struct file file = read_file(folder, name);
    size_t range = file.size < limit ? file.size : limit;
    for (int i = 0; i < flips; i++) {
        size_t at = next_random(&seed) % range;
        unsigned bit = (unsigned)next_random(&seed) % 8;
        char text[2048];
        file.bytes[at] ^= (uint8_t)(1u << bit);
        test_write(file.path, file.bytes, file.size);
        if (test_problems(source, folder, text, sizeof text) == 0)
            fail_msg("%s: bit %u of byte %zu flipped, and not found", file.path, bit, at);
        file.bytes[at] ^= (uint8_t)(1u << bit);
    }
    write_file(&file);
    test_proven(source, folder);
}

static void single_bits_are_found(void **state)
{
    (void)state;
    static const int flips[NIB_FORM_COUNT] = {60, 60, 200, 60, 60};
    for (int form = 0; form < NIB_FORM_COUNT; form++) {
        const char *folder = test_fresh("verify-bits");
        test_convert(
            source, folder,
            (struct nib_convert_options){.form = (enum nib_form)form, .lossy = true, .max_file_bytes = 300000});
        static const char second[] = "model-00002-of-00002.safetensors";
        flip_bits(folder, second, SIZE_MAX, flips[form], (uint64_t)form);
        flip_bits(folder, second, 4096, 30, (uint64_t)form + 100); // the header
        flip_bits(folder, "config.json", SIZE_MAX, 30, (uint64_t)form + 200);
        flip_bits(folder, "model.safetensors.index.json", SIZE_MAX, 30, (uint64_t)form + 300);
    }
}

int main(void)
{
    snprintf(source, sizeof source, "%s", test_data("models/kimi_k2"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_of_converters_are_found),
        cmocka_unit_test(edited_files_are_found),
        cmocka_unit_test(files_too_many_or_too_few_are_found),
        cmocka_unit_test(another_source_is_not_taken_for_this_one),
        cmocka_unit_test(a_sample_proves_nothing),
        cmocka_unit_test(single_bits_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
