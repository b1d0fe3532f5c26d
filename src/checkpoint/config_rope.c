// The three ways in which configs write rotary settings, read into one.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"
#include "nibble/checkpoint.h"

// Where the settings stand: keys are prefix + name, such as "rope_parameters.sliding_attention." + "factor".
struct rope_source {
    const struct nib_config *config;
    char prefix[192];
};

static const char *join(const struct rope_source *source, const char *name, char *key /* [256] */)
{
    snprintf(key, 256, "%s%s", source->prefix, name);
    return key;
}

static nib_status read_setting(const struct rope_source *source, const char *name, double fallback, double low,
                               double high, double *value, struct nib_error *err)
{
    char key[256];
    return nib_config_real_or(source->config, join(source, name, key), fallback, low, high, value, err);
}

// Beside the other settings or, failing that, at the config's top level.
static nib_status read_shared(const struct rope_source *source, const char *name, double fallback, double low,
                              double high, double *value, struct nib_error *err)
{
    nib_status status = nib_config_real_or(source->config, name, fallback, low, high, value, err);
    return status == NIB_OK ? read_setting(source, name, *value, low, high, value, err) : status;
}

// As transformers has it, "rope_scaling" counts where both are there, unless it is empty.
static nib_status locate(struct rope_source *source, const char *layer_type, struct nib_error *err)
{
    const struct nib_config *config = source->config;
    bool scaling = nib_config_has_members(config, "rope_scaling") || !nib_config_has(config, "rope_parameters");
    const char *object = scaling ? "rope_scaling" : "rope_parameters";
    if (nib_config_has(config, object) && !nib_config_is_object(config, object))
        return nib_fail(err, NIB_ERR_FORMAT, "%s: \"%s\" is not an object", nib_config_name(config), object);
    snprintf(source->prefix, sizeof source->prefix, "%s.", object);
    if (!layer_type || strlen(layer_type) > 100)
        return NIB_OK;
    char key[160];
    snprintf(key, sizeof key, "%s.%s", object, layer_type);
    if (nib_config_is_object(config, key))
        snprintf(source->prefix, sizeof source->prefix, "%s.", key);
    return NIB_OK;
}

static nib_status read_type(const struct rope_source *source, const char **type, struct nib_error *err)
{
    char key[256];
    nib_status status = nib_config_string_or(source->config, join(source, "type", key), "default", type, err);
    if (status == NIB_OK)
        status = nib_config_string_or(source->config, join(source, "rope_type", key), *type, type, err);
    return status;
}

static nib_status read_theta(const struct rope_source *source, double absent, double *theta, struct nib_error *err)
{
    char key[256];
    nib_status status = read_shared(source, "rope_theta", absent, 1e-6, 1e15, theta, err);
    if (status == NIB_OK && *theta == 0)
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: neither \"%s\" nor \"rope_theta\"",
                        nib_config_name(source->config), join(source, "rope_theta", key));
    return status;
}

// OpenAI's own config.json has no object for them; its YaRN ramp is never rounded to whole dimensions.
static nib_status read_original(const struct nib_config *config, struct nib_rope_config *rope,
                                struct nib_error *err)
{
    nib_status status = nib_config_real(config, "rope_scaling_factor", 1e-6, 1e9, &rope->factor, err);
    if (status == NIB_OK)
        status = nib_config_real_or(config, "rope_ntk_alpha", 1, 1e-6, 1e9, &rope->beta_slow, err);
    if (status == NIB_OK)
        status = nib_config_real_or(config, "rope_ntk_beta", 32, 1e-6, 1e9, &rope->beta_fast, err);
    if (status == NIB_OK)
        status = nib_config_real(config, "initial_context_length", 1, 1e15, &rope->original_context, err);
    rope->type = "yarn";
    rope->truncate = false;
    return status;
}

// Between the two, llama3 blends; they are turns over the original context.
static nib_status require_band(const struct rope_source *source, const struct nib_rope_config *rope,
                               struct nib_error *err)
{
    char low[256], high[256];
    if (rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor)
        return NIB_OK;
    return nib_fail(err, NIB_ERR_FORMAT, "%s: \"%s\" is %g and \"%s\" %g: llama3 needs 0 < low < high",
                    nib_config_name(source->config), join(source, "low_freq_factor", low), rope->low_freq_factor,
                    join(source, "high_freq_factor", high), rope->high_freq_factor);
}

// YaRN may say how far by the two contexts instead, as transformers reads it.
static void derive_factor(const struct rope_source *source, double context, struct nib_rope_config *rope)
{
    char key[256];
    if (strcmp(rope->type, "yarn") == 0 && !nib_config_has(source->config, join(source, "factor", key)) &&
        rope->original_context >= 1 && context > rope->original_context)
        rope->factor = context / rope->original_context;
}

// A type that stretches the context says how far, and most from where: without, it would silently be no stretch at all.
static nib_status require_stretch(const struct rope_source *source, const struct nib_rope_config *rope,
                                  struct nib_error *err)
{
    char key[256];
    if (strcmp(rope->type, "default") == 0)
        return NIB_OK;
    if (rope->factor == 1 && !nib_config_has(source->config, join(source, "factor", key)))
        return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no \"%s\", which rope_type \"%s\" needs",
                        nib_config_name(source->config), key, rope->type);
    bool llama3 = strcmp(rope->type, "llama3") == 0;
    if ((llama3 || strcmp(rope->type, "yarn") == 0) && rope->original_context < 1)
        return nib_fail(err, NIB_ERR_NOT_FOUND,
                        "%s: neither \"%s\" nor \"max_position_embeddings\", which rope_type \"%s\" needs",
                        nib_config_name(source->config), join(source, "original_max_position_embeddings", key),
                        rope->type);
    return llama3 ? require_band(source, rope, err) : NIB_OK;
}

nib_status nib_config_rope(const struct nib_config *config, const char *layer_type, double absent_theta,
                           struct nib_rope_config *rope, struct nib_error *err)
{
    struct rope_source source = {.config = config};
    const struct {
        const char *name;
        double fallback, low, high;
        double *value;
    } settings[] = {
        {"factor", 1, 1e-6, 1e9, &rope->factor},
        {"beta_fast", 32, 1e-6, 1e9, &rope->beta_fast},
        {"beta_slow", 1, 1e-6, 1e9, &rope->beta_slow},
        {"mscale", 0, 0, 1e6, &rope->mscale},
        {"mscale_all_dim", 0, 0, 1e6, &rope->mscale_all_dim},
        {"attention_factor", 0, 0, 1e6, &rope->attention_factor},
        {"low_freq_factor", 0, 0, 1e9, &rope->low_freq_factor},
        {"high_freq_factor", 0, 0, 1e9, &rope->high_freq_factor},
    };
    *rope = (struct nib_rope_config){0};
    nib_status status = locate(&source, layer_type, err);
    if (status == NIB_OK)
        status = read_type(&source, &rope->type, err);
    if (status == NIB_OK)
        status = read_theta(&source, absent_theta, &rope->theta, err);
    for (size_t i = 0; status == NIB_OK && i < sizeof settings / sizeof *settings; i++)
        status = read_setting(&source, settings[i].name, settings[i].fallback, settings[i].low, settings[i].high,
                              settings[i].value, err);
    if (status == NIB_OK)
        status = read_shared(&source, "partial_rotary_factor", 1, 0, 1, &rope->partial_rotary_factor, err);
    double context = 0;
    if (status == NIB_OK)
        status = nib_config_real_or(config, "max_position_embeddings", 0, 0, 1e15, &context, err);
    if (status == NIB_OK)
        status = read_shared(&source, "original_max_position_embeddings", context, 0, 1e15,
                             &rope->original_context, err);
    char key[256];
    if (status == NIB_OK)
        status = nib_config_bool_or(config, join(&source, "truncate", key), true, &rope->truncate, err);
    if (status == NIB_OK)
        derive_factor(&source, context, rope);
    if (status == NIB_OK)
        status = require_stretch(&source, rope, err);
    if (status == NIB_OK && nib_config_has(config, "rope_scaling_factor") &&
        !nib_config_has(config, "rope_parameters") && !nib_config_has(config, "rope_scaling"))
        status = read_original(config, rope, err);
    return status;
}

bool nib_config_has_rope(const struct nib_config *config, const char *layer_type, const char *name)
{
    struct rope_source source = {.config = config};
    char key[256];
    return nib_config_has(config, name) ||
           (locate(&source, layer_type, NULL) == NIB_OK && nib_config_has(config, join(&source, name, key)));
}
