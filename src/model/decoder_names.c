// What a decoder's tensors are called, and how many bytes they are.
#include <stdio.h>
#include <string.h>

#include "model/decoder.h"

const struct nib_decoder_names nib_usual_names = {
    .embedding = "model.embed_tokens.weight",
    .norm = "model.norm.weight",
    .head = "lm_head",
    .attention_norm = "model.layers.%lld.input_layernorm.weight",
    .q = "model.layers.%lld.self_attn.q_proj",
    .k = "model.layers.%lld.self_attn.k_proj",
    .v = "model.layers.%lld.self_attn.v_proj",
    .o = "model.layers.%lld.self_attn.o_proj",
    .q_norm = "model.layers.%lld.self_attn.q_norm.weight",
    .k_norm = "model.layers.%lld.self_attn.k_norm.weight",
    .sinks = "model.layers.%lld.self_attn.sinks",
    .q_a = "model.layers.%lld.self_attn.q_a_proj",
    .q_a_norm = "model.layers.%lld.self_attn.q_a_layernorm.weight",
    .q_b = "model.layers.%lld.self_attn.q_b_proj",
    .kv_a = "model.layers.%lld.self_attn.kv_a_proj_with_mqa",
    .kv_a_norm = "model.layers.%lld.self_attn.kv_a_layernorm.weight",
    .kv_b = "model.layers.%lld.self_attn.kv_b_proj",
    .mlp_norm = "model.layers.%lld.post_attention_layernorm.weight",
    .gate = "model.layers.%lld.mlp.gate_proj",
    .up = "model.layers.%lld.mlp.up_proj",
    .down = "model.layers.%lld.mlp.down_proj",
    .shared_gate = "model.layers.%lld.mlp.shared_experts.gate_proj",
    .shared_up = "model.layers.%lld.mlp.shared_experts.up_proj",
    .shared_down = "model.layers.%lld.mlp.shared_experts.down_proj",
    .router = "model.layers.%lld.mlp.gate",
    .correction = "model.layers.%lld.mlp.gate.e_score_correction_bias",
    .experts = "model.layers.%lld.mlp.experts",
    .expert_gate = "gate_proj",
    .expert_up = "up_proj",
    .expert_down = "down_proj",
};

struct nib_tensor_name nib_decoder_name(const struct nib_decoder *decoder, const char *pattern, int64_t layer,
                                        const char *ending)
{
    struct nib_tensor_name name;
    const char *number = strstr(pattern, "%lld");
    if (number)
        snprintf(name.text, sizeof name.text, "%s%.*s%lld%s%s", decoder->prefix, (int)(number - pattern), pattern,
                 (long long)layer, number + 4, ending);
    else
        snprintf(name.text, sizeof name.text, "%s%s%s", decoder->prefix, pattern, ending);
    return name;
}

uint64_t nib_weight_bytes(const struct nib_weight *weight)
{
    if (!weight->data)
        return 0;
    uint64_t scales = 0;
    if (weight->scales)
        scales = (uint64_t)((weight->rows + weight->block_rows - 1) / weight->block_rows *
                            ((weight->cols + weight->block_cols - 1) / weight->block_cols)) *
                 sizeof(float);
    if (weight->exponents)
        scales = (uint64_t)(weight->rows * weight->cols / NIB_MX_BLOCK);
    return (uint64_t)weight->rows * nib_weight_row_bytes(weight) + scales;
}
