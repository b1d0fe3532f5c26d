// What a config leaves out is what its family's own class fills in: a plan made without a key is the plan made with the
// class's default written out, and another one with any other value.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/decoder.h"

#define SIZES "\"hidden_size\": 1024, \"vocab_size\": 64, \"intermediate_size\": 64, \"num_experts_per_tok\": 8, "
#define MOE "\"moe_intermediate_size\": 32, "

// Each with what it cannot do without.
static const char gpt_oss[] = "{\"model_type\": \"gpt_oss\", " SIZES "\"num_hidden_layers\": 4, "
                              "\"num_local_experts\": 16, \"num_attention_heads\": 16}";
static const char deepseek[] =
    "{\"model_type\": \"deepseek_v3\", " SIZES MOE "\"num_hidden_layers\": 5, \"n_routed_experts\": 32, "
    "\"num_attention_heads\": 128, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "
    "\"v_head_dim\": 16}";
static const char mimo[] = "{\"model_type\": \"mimo_v2_flash\", " SIZES MOE "\"num_hidden_layers\": 7, "
                           "\"n_routed_experts\": 16, \"num_attention_heads\": 16}";
static const char minimax[] = "{\"model_type\": \"minimax_m2\", " SIZES "\"num_hidden_layers\": 2, "
                              "\"num_local_experts\": 16, \"num_attention_heads\": 16}";
static const char qwen3[] = "{\"model_type\": \"qwen3_moe\", " SIZES MOE "\"num_hidden_layers\": 2, "
                            "\"num_experts\": 16, \"num_attention_heads\": 16}";

// With `null` the key is written as null instead of left out.
static const struct {
    const char *family, *key, *value, *other;
    bool null;
} defaults[] = {
    {gpt_oss, "attention_bias", "true", "false", false},
    {gpt_oss, "head_dim", "64", "32", false},
    {gpt_oss, "layer_types",
     "[\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]",
     "[\"full_attention\", \"sliding_attention\", \"full_attention\", \"sliding_attention\"]", false},
    {gpt_oss, "num_key_value_heads", "8", "16", false},
    {gpt_oss, "num_key_value_heads", "16", "8", true},
    {gpt_oss, "rms_norm_eps", "1e-5", "1e-6", false},
    {gpt_oss, "rope_parameters",
     "{\"rope_type\": \"yarn\", \"factor\": 32, \"beta_fast\": 32, \"beta_slow\": 1, \"truncate\": false, "
     "\"original_max_position_embeddings\": 4096}",
     "{\"rope_type\": \"default\"}", false},
    {gpt_oss, "rope_scaling",
     "{\"rope_type\": \"yarn\", \"factor\": 32, \"original_max_position_embeddings\": 4096, \"truncate\": false}",
     "{\"rope_type\": \"yarn\", \"factor\": 32, \"original_max_position_embeddings\": 4096}", true},
    {gpt_oss, "rope_theta", "150000", "10000", false},
    {gpt_oss, "sliding_window", "128", "64", false},
    {gpt_oss, "swiglu_alpha", "1.702", "1", false},
    {gpt_oss, "swiglu_limit", "7.0", "6.0", false},
    {gpt_oss, "tie_word_embeddings", "false", "true", false},
    {deepseek, "attention_bias", "false", "true", false},
    {deepseek, "first_k_dense_replace", "3", "1", false},
    {deepseek, "max_position_embeddings", "4096", "131072", false},
    {deepseek, "n_group", "8", "4", false},
    {deepseek, "n_group", "1", "8", true},
    {deepseek, "n_shared_experts", "1", "2", false},
    {deepseek, "n_shared_experts", "0", "1", true},
    {deepseek, "norm_topk_prob", "true", "false", false},
    {deepseek, "norm_topk_prob", "false", "true", true},
    {deepseek, "q_lora_rank", "1536", "768", false},
    {deepseek, "q_lora_rank", "0", "1536", true},
    {deepseek, "rms_norm_eps", "1e-6", "1e-5", false},
    {deepseek, "rope_interleave", "true", "false", false},
    {deepseek, "rope_theta", "10000", "50000", false},
    {deepseek, "routed_scaling_factor", "2.5", "1", false},
    {deepseek, "routed_scaling_factor", "1", "2.5", true},
    {deepseek, "tie_word_embeddings", "false", "true", false},
    {deepseek, "topk_group", "4", "3", false},
    {mimo, "add_full_attention_sink_bias", "false", "true", false},
    {mimo, "add_swa_attention_sink_bias", "true", "false", false},
    {mimo, "attention_bias", "false", "true", false},
    {mimo, "attention_value_scale", "0.707", "1", false},
    {mimo, "attention_value_scale", "1", "0.707", true},
    {mimo, "head_dim", "192", "128", false},
    {mimo, "hybrid_layer_pattern", "[0, 1, 1, 1, 1, 0, 1]", "[0, 1, 1, 1, 1, 1, 1]", false},
    {mimo, "max_position_embeddings", "131072", "4096", false},
    {mimo, "moe_layer_freq", "[0, 1, 1, 1, 1, 1, 1]", "[1, 1, 1, 1, 1, 1, 1]", false},
    {mimo, "n_group", "1", "2", false},
    {mimo, "norm_topk_prob", "true", "false", false},
    {mimo, "num_key_value_heads", "4", "8", false},
    {mimo, "partial_rotary_factor", "0.334", "0.5", false},
    {mimo, "rms_norm_eps", "1e-5", "1e-6", false},
    {mimo, "rope_parameters",
     "{\"full_attention\": {\"rope_theta\": 5000000, \"partial_rotary_factor\": 0.334}, \"sliding_attention\": "
     "{\"rope_theta\": 10000, \"partial_rotary_factor\": 0.334}}",
     "{\"full_attention\": {\"rope_theta\": 5000000, \"partial_rotary_factor\": 0.334}, \"sliding_attention\": "
     "{\"rope_theta\": 10000, \"partial_rotary_factor\": 1}}",
     false},
    {mimo, "rope_theta", "5000000", "10000", false},
    {mimo, "routed_scaling_factor", "1", "2.5", false},
    {mimo, "routed_scaling_factor", "1", "2.5", true},
    {mimo, "sliding_window", "129", "128", false},
    {mimo, "sliding_window_size", "128", "129", false},
    {mimo, "swa_num_key_value_heads", "8", "4", false},
    {mimo, "swa_rope_theta", "10000", "5000000", false},
    {mimo, "tie_word_embeddings", "false", "true", false},
    {mimo, "v_head_dim", "128", "192", false},
    {minimax, "attention_bias", "false", "true", false},
    {minimax, "head_dim", "128", "64", false},
    {minimax, "max_position_embeddings", "196608", "4096", false},
    {minimax, "norm_topk_prob", "true", "false", false},
    {minimax, "num_key_value_heads", "8", "16", false},
    {minimax, "partial_rotary_factor", "1", "0.5", false},
    {minimax, "rms_norm_eps", "1e-6", "1e-5", false},
    {minimax, "rope_theta", "5000000", "10000", false},
    {minimax, "rotary_dim", "128", "64", false},
    {minimax, "routed_scaling_factor", "1", "2.5", false},
    {minimax, "tie_word_embeddings", "false", "true", false},
    {minimax, "use_qk_norm", "true", "false", false},
    {minimax, "use_routing_bias", "true", "false", false},
    {qwen3, "attention_bias", "false", "true", false},
    {qwen3, "decoder_sparse_step", "1", "2", false},
    {qwen3, "head_dim", "64", "32", false},
    {qwen3, "max_position_embeddings", "32768", "4096", false},
    {qwen3, "mlp_only_layers", "[]", "[1]", false},
    {qwen3, "norm_topk_prob", "false", "true", false},
    {qwen3, "num_key_value_heads", "4", "8", false},
    {qwen3, "rms_norm_eps", "1e-6", "1e-5", false},
    {qwen3, "rope_theta", "10000", "1000000", false},
    {qwen3, "tie_word_embeddings", "false", "true", false},
    {qwen3, "use_sliding_window", "false", "true", false},
};

static void print_attention(FILE *out, const struct nib_attention *a)
{
    fprintf(out,
            "%lld/%lld heads of %lld, values %lld, window %lld, scale %a, %a, norm %d, sinks %d, bias %d %d; ",
            (long long)a->n_heads, (long long)a->n_kv_heads, (long long)a->head_dim, (long long)a->v_dim,
            (long long)a->window, (double)a->scale, (double)a->value_scale, (int)a->qk_norm, a->sinks, a->bias,
            a->o_bias);
    fprintf(out, "latent %lld %lld %lld; rope %a, interleaved %d:", (long long)a->q_lora, (long long)a->kv_lora,
            (long long)a->nope, (double)a->rope.scale, a->rope.interleaved);
    for (int64_t i = 0; i < a->rope.dims / 2; i++)
        fprintf(out, " %a", (double)a->rope.inv_freq[i]);
    fprintf(out, "\n");
}

// Everything that a config decides about a forward pass.
static char *describe(const struct nib_decoder *d)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const struct nib_router *r = &d->router;
    fprintf(out, "eps %a %a, tied %d, context %lld, act %d %a %a, dense %lld, shared %lld\n", (double)d->eps,
            (double)d->inner_eps, d->tied, (long long)d->base.shape.context, (int)d->activation.kind,
            (double)d->activation.alpha, (double)d->activation.limit, (long long)d->dense_intermediate,
            (long long)d->shared_intermediate);
    fprintf(out, "router %d, %lld of %lld, groups %lld of %lld, normalise %d, scale %a, bias %d, corrected %d\n",
            (int)r->kind, (long long)r->top_k, (long long)r->n_experts, (long long)r->top_groups,
            (long long)r->n_groups, r->normalise, (double)r->scale, d->router_bias, d->corrected);
    for (int64_t l = 0; l < d->base.shape.n_layers; l++) {
        fprintf(out, "layer %d, ", d->layers[l].sparse);
        print_attention(out, d->layers[l].attention);
    }
    fclose(out);
    return text;
}

// The plan of `family` with the object `options` added.
static char *plan(const char *family, const char *options)
{
    struct nib_config *config;
    struct nib_model *model = NULL;
    struct nib_error err;
    json_t *object = json_loads(family, 0, NULL), *added = json_loads(options, 0, NULL);
    if (!object || !added)
        fail_msg("%s", options);
    json_object_update(object, added);
    char *text = json_dumps(object, 0);
    if (nib_config_parse(text, strlen(text), "config.json", &config, &err) ||
        nib_model_create(config, &model, &err))
        fail_msg("%s: %s", options, err.message);
    char *described = describe((const struct nib_decoder *)model);
    nib_model_free(model);
    nib_config_free(config);
    json_decref(object);
    json_decref(added);
    free(text);
    return described;
}

static void a_key_left_out_is_the_class_default(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        char option[512], unstated[128] = "{}";
        if (defaults[i].null)
            snprintf(unstated, sizeof unstated, "{\"%s\": null}", defaults[i].key);
        char *absent = plan(defaults[i].family, unstated);
        snprintf(option, sizeof option, "{\"%s\": %s}", defaults[i].key, defaults[i].value);
        char *same = plan(defaults[i].family, option);
        if (strcmp(absent, same) != 0)
            fail_msg("%.40s: %s is not what is filled in:\n%s\n%s", defaults[i].family, option, same, absent);
        snprintf(option, sizeof option, "{\"%s\": %s}", defaults[i].key, defaults[i].other);
        char *other = plan(defaults[i].family, option);
        if (strcmp(absent, other) == 0)
            fail_msg("%.40s: %s changes nothing", defaults[i].family, option);
        free(absent);
        free(same);
        free(other);
    }
}

// Of two ways to say one thing, the class hears the first of each pair.
static void of_two_spellings_one_counts(void **state)
{
    (void)state;
    static const char *const pairs[][3] = {
        {mimo, "{\"sliding_window_size\": 16}", "{\"sliding_window_size\": 16, \"sliding_window\": 16}"},
        {minimax, "{\"partial_rotary_factor\": 0.25}", "{\"partial_rotary_factor\": 0.25, \"rotary_dim\": 64}"},
        {minimax, "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}",
         "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}, \"rotary_dim\": 64}"},
        {minimax, "{\"partial_rotary_factor\": 0.25}",
         "{\"rope_parameters\": {}, \"rotary_dim\": 64, \"rope_scaling\": {\"partial_rotary_factor\": 0.25}}"},
        {minimax, "{\"rope_scaling\": {\"type\": \"default\"}, \"rotary_dim\": 64}",
         "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}, \"rotary_dim\": 64,"
         " \"rope_scaling\": {\"type\": \"default\"}}"},
        {mimo, "{\"partial_rotary_factor\": 0.5}", "{\"rope_scaling\": {\"partial_rotary_factor\": 0.5}}"},
        {qwen3, "{}", "{\"use_sliding_window\": true, \"sliding_window\": null}"},
        {qwen3, "{}", "{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 4}}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *one = plan(pairs[i][0], pairs[i][1]), *both = plan(pairs[i][0], pairs[i][2]);
        if (strcmp(one, both) != 0)
            fail_msg("%s is not %s:\n%s\n%s", pairs[i][2], pairs[i][1], both, one);
        free(one);
        free(both);
    }
}

// Eight frequencies at theta 10000 over an original context of 64: the first turns more than four times, the last five
// less than once.
static void llama3_stretches_long_waves(void **state)
{
    (void)state;
    struct nib_config *config;
    struct nib_error err;
    const struct nib_rope_config rope = {.type = "llama3",
                                         .theta = 10000,
                                         .factor = 8,
                                         .original_context = 64,
                                         .low_freq_factor = 1,
                                         .high_freq_factor = 4};
    float inv_freq[8], scale;
    assert_int_equal(nib_config_parse("{}", 2, "config.json", &config, &err), NIB_OK);
    assert_int_equal(nib_rope_table(config, &rope, 16, inv_freq, &scale, &err), NIB_OK);
    for (int i = 0; i < 8; i++) {
        double whole = pow(10000, -i / 8.0), turns = 64 * whole / 6.283185307179586;
        double keep = turns > 4 ? 1 : turns < 1 ? 0 : (turns - 1) / 3;
        assert_float_equal((float)(inv_freq[i] / whole), (float)(keep + (1 - keep) / 8), 1e-5);
    }
    assert_true(scale == 1.0f);
    nib_config_free(config);
}

static void fewer_groups_than_the_default_chooses_are_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"deepseek_v3\", " SIZES MOE "\"num_hidden_layers\": 5, \"n_routed_experts\": 32, "
        "\"num_attention_heads\": 4, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "
        "\"v_head_dim\": 16, \"rope_theta\": 10000, \"n_group\": 2}";
    struct nib_config *config;
    struct nib_model *model;
    struct nib_error err;
    assert_int_equal(nib_config_parse(text, strlen(text), "config.json", &config, &err), NIB_OK);
    assert_int_equal(nib_model_create(config, &model, &err), NIB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "topk_group"));
    nib_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_left_out_is_the_class_default),
        cmocka_unit_test(of_two_spellings_one_counts),
        cmocka_unit_test(llama3_stretches_long_waves),
        cmocka_unit_test(fewer_groups_than_the_default_chooses_are_refused),
    };
    return cmocka_run_group_tests_name("defaults", tests, NULL, NULL);
}
