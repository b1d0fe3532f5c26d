// Any bytes as config.json: refused, or every getter answers every key.
#include <stdlib.h>
#include <string.h>

#include "nibble/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const struct nib_config *config, const char *key, size_t size)
{
    struct nib_error err = {0};
    int64_t integer;
    double real;
    bool flag;
    const char *text;
    size_t length = 0;
    nib_config_int(config, key, -100, 1 << 30, &integer, &err);
    nib_config_real_or(config, key, 1, 0, 1e9, &real, &err);
    nib_config_bool_or(config, key, true, &flag, &err);
    nib_config_string_or(config, key, "", &text, &err);
    if (nib_config_length(config, key, &length, &err) == NIB_OK)
        for (size_t i = 0; i <= length && i < 20; i++) {
            nib_config_int_at(config, key, i, 0, INT32_MAX, &integer, &err);
            if (nib_config_string_at(config, key, i, &text, &err) == NIB_OK && strlen(text) > size)
                abort();
        }
    if (nib_config_refuse(config, key, "not computed", &err) != NIB_ERR_UNSUPPORTED || strchr(err.message, '\n'))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {
        "hidden_size",
        "eos_token_id",
        "layer_types",
        "tie_word_embeddings",
        "hidden_act",
        "rope_theta",
        "rope_parameters.rope_type",
        "rope_scaling.factor",
        "quantization_config.quant_method",
        "quantization_config.weight_block_size",
        "text_config",
        "a.b.c",
        "",
        ".",
    };
    static const char *const layer_types[] = {NULL, "full_attention", "sliding_attention", "main", ""};
    struct nib_config *config = NULL;
    struct nib_error err = {0};
    nib_status status = nib_config_parse((const char *)data, size, "config.json", &config, &err);
    if (status != NIB_OK && (err.status != status || !err.message[0] || strchr(err.message, '\n')))
        abort();
    if (status == NIB_OK) {
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            ask(config, keys[i], size);
        for (size_t i = 0; i < sizeof layer_types / sizeof *layer_types; i++) {
            struct nib_rope_config rope;
            if (nib_config_rope(config, layer_types[i], (double)(i % 2), &rope, &err) == NIB_OK &&
                !(rope.theta > 0 && rope.factor > 0))
                abort();
        }
    }
    nib_config_free(config);
    return 0;
}
