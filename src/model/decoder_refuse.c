// Options that change what a model computes and that nothing here computes. A config may have them if they say what is
// done here anyway; otherwise it is refused by key and value. Keys beyond these mean nothing to an inference and are not
// looked at.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/decoder.h"

nib_status nib_decoder_only(const struct nib_config *config, const char *key, const char *wanted,
                            struct nib_error *err)
{
    const char *value;
    char why[96];
    nib_status status = nib_config_string_or(config, key, wanted, &value, err);
    if (status || strcmp(value, wanted) == 0)
        return status;
    snprintf(why, sizeof why, "only \"%s\" is computed here", wanted);
    return nib_config_refuse(config, key, why, err);
}

nib_status nib_decoder_only_numbers(const struct nib_config *config, const struct nib_fixed_number *numbers,
                                    size_t count, struct nib_error *err)
{
    for (size_t i = 0; i < count; i++) {
        bool flag = false;
        double value = numbers[i].value;
        struct nib_error no_flag;
        char why[96];
        if (!nib_config_has(config, numbers[i].key))
            continue;
        nib_status status = nib_config_bool(config, numbers[i].key, &flag, &no_flag);
        if (status == NIB_OK)
            value = flag;
        else if ((status = nib_config_real(config, numbers[i].key, -INFINITY, INFINITY, &value, err)))
            return status;
        if (value == numbers[i].value)
            continue;
        snprintf(why, sizeof why, "only %g is computed here", numbers[i].value);
        return nib_config_refuse(config, numbers[i].key, why, err);
    }
    return NIB_OK;
}

nib_status nib_decoder_only_whole_rotation(const struct nib_config *config, struct nib_error *err)
{
    static const struct nib_fixed_number numbers[] = {{"partial_rotary_factor", 1},
                                                      {"rope_parameters.partial_rotary_factor", 1},
                                                      {"rope_scaling.partial_rotary_factor", 1}};
    return nib_decoder_only_numbers(config, numbers, sizeof numbers / sizeof *numbers, err);
}

nib_status nib_decoder_only_full_attention(const struct nib_config *config, struct nib_error *err)
{
    const char *type;
    size_t n = 0;
    nib_status status = NIB_OK;
    if (nib_config_has(config, "sliding_window"))
        return nib_config_refuse(config, "sliding_window", "every layer of this model sees all tokens here", err);
    if (nib_config_has(config, "layer_types"))
        status = nib_config_length(config, "layer_types", &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        status = nib_config_string_at(config, "layer_types", i, &type, err);
        if (!status && strcmp(type, "full_attention") != 0)
            status =
                nib_config_refuse(config, "layer_types", "every layer of this model sees all tokens here", err);
    }
    return status;
}

nib_status nib_decoder_refuse_others(const struct nib_config *config, struct nib_error *err)
{
    static const struct nib_fixed_number numbers[] = {
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"router_logit_softcapping", 0},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"logits_scaling", 1},
        {"attn_output_gate", 0},
        {"index_topk", 0},
        {"hc_mult", 1},
        {"zero_expert_num", 0},
        {"qk_layernorm", 0},
        {"use_qk_layernorm", 0},
        {"postnorm", 0},
        {"use_parallel_residual", 0},
        {"alibi", 0},
    };
    return nib_decoder_only_numbers(config, numbers, sizeof numbers / sizeof *numbers, err);
}
