// From configs to plans: released sizes give the caches that theory says, and options that nothing here computes are
// refused naming key and value.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/model.h"

// Sizes of the released models; an option may follow.
#define KIMI_K2                                                                                                \
    "{\"model_type\": \"kimi_k2\", \"hidden_size\": 7168, \"num_hidden_layers\": 61, \"vocab_size\": 163840, " \
    "\"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, \"n_routed_experts\": 384, "               \
    "\"num_experts_per_tok\": 8, \"first_k_dense_replace\": 1, \"n_shared_experts\": 1, "                      \
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, " \
    "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"rope_theta\": 50000"
#define MIMO_V2                                                                                                \
    "{\"model_type\": \"mimo_v2_flash\", \"hidden_size\": 4096, \"num_hidden_layers\": 12, \"vocab_size\": "   \
    "152576, "                                                                                                 \
    "\"intermediate_size\": 16384, \"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, "               \
    "\"num_experts_per_tok\": 8, \"num_attention_heads\": 64, \"num_key_value_heads\": 4, \"head_dim\": 192, " \
    "\"v_head_dim\": 128, \"partial_rotary_factor\": 0.334, \"rope_theta\": 5000000, \"swa_rope_theta\": 10000"
#define MINIMAX_M2                                                                                                \
    "{\"model_type\": \"minimax_m2\", \"hidden_size\": 3072, \"num_hidden_layers\": 62, \"vocab_size\": 200064, " \
    "\"intermediate_size\": 1536, \"num_local_experts\": 256, \"num_experts_per_tok\": 8, "                       \
    "\"num_attention_heads\": 48, \"num_key_value_heads\": 8, \"head_dim\": 128, \"rope_theta\": 5000000"
#define QWEN3_MOE                                                                                                \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"num_hidden_layers\": 48, \"vocab_size\": 151936, " \
    "\"intermediate_size\": 6144, \"moe_intermediate_size\": 768, \"num_experts\": 128, "                        \
    "\"num_experts_per_tok\": 8, "                                                                               \
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128, \"rope_theta\": 1000000"

// A model of these sizes, with an option added or in place of the one there.
static nib_status create(const char *sizes, const char *option, struct nib_model **model, struct nib_error *err)
{
    char text[2048];
    struct nib_config *config;
    snprintf(text, sizeof text, "%s}", sizes);
    json_t *object = json_loads(text, 0, NULL);
    snprintf(text, sizeof text, "{%s}", option);
    json_t *other = json_loads(text, 0, NULL);
    assert_true(object && other);
    json_object_update(object, other);
    char *dumped = json_dumps(object, 0);
    assert_int_equal(nib_config_parse(dumped, strlen(dumped), "config.json", &config, err), NIB_OK);
    nib_status status = nib_model_create(config, model, err);
    nib_config_free(config);
    json_decref(object);
    json_decref(other);
    free(dumped);
    return status;
}

static void caches_are_what_theory_says(void **state)
{
    (void)state;
    struct nib_model *model;
    struct nib_error err;
    assert_int_equal(create(KIMI_K2, "", &model, &err), NIB_OK);
    assert_int_equal(model->shape.n_caches, 61); // one row of 512 + 64 for each layer
    for (int c = 0; c < 61; c++)
        assert_int_equal(model->shape.cache_specs[c].width, 576);
    nib_model_free(model);

    assert_int_equal(create(MIMO_V2, "", &model, &err), NIB_OK);
    int64_t full = 0, windowed = 0;
    for (int c = 0; c < model->shape.n_caches; c++) {
        const struct nib_cache_spec *spec = &model->shape.cache_specs[c];
        assert_true(spec->window == 0 || spec->window == 129);
        *(spec->window ? &windowed : &full) += spec->width;
    }
    assert_int_equal(full, 3 * 4 * (192 + 128)); // layers 0, 5 and 11
    assert_int_equal(windowed, 9 * 8 * (192 + 128));
    nib_model_free(model);

    assert_int_equal(create(MINIMAX_M2, "\"rotary_dim\": 64", &model, &err), NIB_OK);
    assert_int_equal(model->shape.n_caches, 124);
    nib_model_free(model);
    assert_int_equal(create(QWEN3_MOE, "\"use_sliding_window\": true, \"sliding_window\": 4096", &model, &err),
                     NIB_OK);
    assert_int_equal(model->shape.cache_specs[95].window, 4096);
    nib_model_free(model);
}

static void other_options_are_accepted(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {KIMI_K2, "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"moe_layer_freq\": 1"},
        {KIMI_K2, "\"n_group\": 8, \"topk_group\": 4, \"tie_word_embeddings\": true, \"norm_topk_prob\": false"},
        {KIMI_K2, "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 64, \"mscale\": 1, \"mscale_all_dim\": 0.7, "
                  "\"original_max_position_embeddings\": 4096}"},
        {MIMO_V2,
         "\"routed_scaling_factor\": null, \"swa_num_key_value_heads\": 8, \"attention_value_scale\": 0.707"},
        {MIMO_V2,
         "\"hybrid_layer_pattern\": [0,1,1,0,1,1,0,1,1,0,1,1], \"moe_layer_freq\": [0,0,1,1,1,1,1,1,1,1,1,1]"},
        {MINIMAX_M2, "\"scoring_func\": \"sigmoid\", \"use_qk_norm\": true, \"shared_intermediate_size\": 0"},
        {QWEN3_MOE, "\"mlp_only_layers\": [0, 47], \"decoder_sparse_step\": 2"},
        {KIMI_K2,
         "\"partial_rotary_factor\": 1.0, \"sliding_window\": null, \"layer_types\": [\"full_attention\"]"},
        {KIMI_K2, "\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}"},
        {KIMI_K2, "\"hc_mult\": 1, \"index_topk\": null, \"final_logit_softcapping\": null, \"postnorm\": false"},
        // What says nothing about a forward pass, known or not.
        {KIMI_K2,
         "\"aux_loss_alpha\": 0.5, \"seq_aux\": false, \"ep_size\": 8, \"pretraining_tp\": 4, \"invented\": [1]"},
        {MINIMAX_M2, "\"layernorm_full_attention_beta\": 1.0, \"layernorm_linear_attention_beta\": 2.0, "
                     "\"num_mtp_modules\": 3, \"mlp_intermediate_size\": 8192, \"shared_moe_mode\": \"sigmoid\""},
        {QWEN3_MOE,
         "\"scoring_func\": \"softmax\", \"shared_expert_intermediate_size\": 0, \"router_jitter_noise\": 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_model *model;
        struct nib_error err;
        if (create(cases[i][0], cases[i][1], &model, &err))
            fail_msg("%s: %s", cases[i][1], err.message);
        nib_model_free(model);
    }
}

static void refusals_name_key_and_value(void **state)
{
    (void)state;
    static const struct {
        const char *sizes, *option, *key, *value;
    } cases[] = {
        {KIMI_K2, "\"scoring_func\": \"softmax\"", "scoring_func", "softmax"},
        {KIMI_K2, "\"topk_method\": \"greedy\"", "topk_method", "greedy"},
        {KIMI_K2, "\"hidden_act\": \"gelu\"", "hidden_act", "gelu"},
        {KIMI_K2, "\"moe_layer_freq\": 2", "moe_layer_freq", "2"},
        {KIMI_K2, "\"n_group\": 5", "n_group", "5"},
        {KIMI_K2, "\"n_group\": 384", "n_group", "384"},
        {KIMI_K2, "\"n_group\": 96, \"topk_group\": 1", "n_group", "96"},
        {KIMI_K2, "\"n_group\": 64, \"topk_group\": 1", "topk_group", "1"},
        {KIMI_K2, "\"n_group\": 8, \"topk_group\": null", "topk_group", "absent"},
        {KIMI_K2, "\"n_group\": 8, \"topk_group\": 9", "topk_group", "9"},
        {KIMI_K2, "\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 4}", "rope_type", "longrope"},
        {KIMI_K2,
         "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"original_max_position_embeddings\": "
         "512, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 1}",
         "rope_parameters.high_freq_factor\" 1", "rope_parameters.low_freq_factor\" is 4"},
        {KIMI_K2, "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", "rope_parameters.partial_rotary_factor",
         "0.5"},
        {QWEN3_MOE, "\"partial_rotary_factor\": 0.5", "partial_rotary_factor", "0.5"},
        {KIMI_K2, "\"rope_parameters\": \"yarn\"", "rope_parameters", "object"},
        {KIMI_K2, "\"scoring_func\": 5", "scoring_func", "5"},
        {KIMI_K2, "\"moe_layer_freq\": [0, 1]", "moe_layer_freq", "[0,1]"},
        {KIMI_K2, "\"n_shared_experts\": -1", "n_shared_experts", "-1"},
        {KIMI_K2, "\"num_experts_per_tok\": 400", "num_experts_per_tok", "400"},
        {KIMI_K2, "\"norm_topk_prob\": \"yes\"", "norm_topk_prob", "yes"},
        {KIMI_K2, "\"partial_rotary_factor\": 0.5", "partial_rotary_factor", "0.5"},
        {KIMI_K2, "\"sliding_window\": 128", "sliding_window", "128"},
        {KIMI_K2, "\"layer_types\": [\"linear_attention\"]", "layer_types", "linear_attention"},
        {KIMI_K2, "\"index_topk\": 2048", "index_topk", "2048"},
        {KIMI_K2, "\"hc_mult\": 4", "hc_mult", "4"},
        {KIMI_K2, "\"final_logit_softcapping\": 30.0", "final_logit_softcapping", "30.0"},
        {KIMI_K2, "\"qk_layernorm\": true", "qk_layernorm", "true"},
        {KIMI_K2, "\"quantization_config\": {\"quant_method\": \"awq\"}", "quant_method", "awq"},
        {KIMI_K2, "\"qk_rope_head_dim\": 63", "63", "191"},
        {MINIMAX_M2, "\"scoring_func\": \"softmax\"", "scoring_func", "softmax"},
        {MINIMAX_M2, "\"hidden_act\": \"swigluoai\"", "hidden_act", "swigluoai"},
        {MINIMAX_M2, "\"layernorm_mlp_beta\": 3.5", "layernorm_mlp_beta", "3.5"},
        {MINIMAX_M2, "\"postnorm\": true", "postnorm", "true"},
        {MINIMAX_M2, "\"sliding_window\": 512", "sliding_window", "512"},
        {QWEN3_MOE, "\"scoring_func\": \"sigmoid\"", "scoring_func", "sigmoid"},
        {QWEN3_MOE, "\"shared_expert_intermediate_size\": 512", "shared_expert_intermediate_size", "512"},
        {QWEN3_MOE, "\"n_group\": 4", "n_group", "4"},
        {QWEN3_MOE, "\"attn_output_gate\": true", "attn_output_gate", "true"},
        {QWEN3_MOE, "\"tie_word_embeddings\": \"no\"", "tie_word_embeddings", "no"},
        {MIMO_V2, "\"scoring_func\": \"sqrtsoftplus\"", "scoring_func", "sqrtsoftplus"},
        {MIMO_V2, "\"hidden_act\": \"gelu\"", "hidden_act", "gelu"},
        {MIMO_V2, "\"hybrid_layer_pattern\": [0,1,2,0,1,1,0,1,1,0,1,1]", "hybrid_layer_pattern[2]", "2"},
        {MIMO_V2, "\"partial_rotary_factor\": 1.5", "partial_rotary_factor", "1.5"},
        {MIMO_V2, "\"layer_types\": [\"full_attention\"]", "layer_types", "full_attention"},
        {MIMO_V2, "\"mlp_layer_types\": [\"dense\"]", "mlp_layer_types", "dense"},
        {MIMO_V2, "\"hybrid_layer_pattern\": [0, 1]", "hybrid_layer_pattern", "1"},
        {MIMO_V2, "\"swa_num_key_value_heads\": 7", "7", "64"},
        {MIMO_V2, "\"n_shared_experts\": 1", "n_shared_experts", "1"},
        {MINIMAX_M2, "\"qk_norm_type\": \"per_head\"", "qk_norm_type", "per_head"},
        {MINIMAX_M2, "\"shared_intermediate_size\": 64", "shared_intermediate_size", "64"},
        {MINIMAX_M2, "\"attn_type_list\": [1, 0]", "attn_type_list", "0"},
        {MINIMAX_M2, "\"rotary_dim\": 63", "63", "128"},
        {QWEN3_MOE, "\"mlp_only_layers\": [48]", "mlp_only_layers", "48"},
        {QWEN3_MOE, "\"decoder_sparse_step\": 64", "num_hidden_layers", "48"},
        {QWEN3_MOE, "\"rope_scaling\": {\"rope_type\": \"proportional\", \"factor\": 2}", "rope_type",
         "proportional"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nib_model *model;
        struct nib_error err;
        nib_status status = create(cases[i].sizes, cases[i].option, &model, &err);
        if (status == NIB_OK)
            fail_msg("%s is accepted", cases[i].option);
        if (!strstr(err.message, cases[i].key) || !strstr(err.message, cases[i].value))
            fail_msg("%s: \"%s\"", cases[i].option, err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caches_are_what_theory_says),
        cmocka_unit_test(other_options_are_accepted),
        cmocka_unit_test(refusals_name_key_and_value),
    };
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
