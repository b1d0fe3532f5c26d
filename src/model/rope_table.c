// Rotary frequencies. YaRN: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (2023),
// section 3. llama3: Llama Team, "The Llama 3 Herd of Models" (2024), as its reference code
// writes it. The fp32 order of operations follows what the transformers library evaluates.
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "model/model.h"

// The (fractional) pair index whose wavelength makes `rotations` turns over the original context.
static double correction_index(const struct nib_rope_config *rope, int64_t dims, double rotations)
{
    const double tau = 6.283185307179586;
    return (double)dims * log(rope->original_context / (rotations * tau)) / (2 * log(rope->theta));
}

static void yarn(const struct nib_rope_config *rope, int64_t dims, float *inv_freq)
{
    double low = correction_index(rope, dims, rope->beta_fast),
           high = correction_index(rope, dims, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(dims - 1));
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < dims / 2; i++) {
        float extrapolated = inv_freq[i], interpolated = 1.0f / ((float)rope->factor * (1.0f / inv_freq[i]));
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f); // share that is not interpolated
        inv_freq[i] = interpolated * (1.0f - keep) + extrapolated * keep;
    }
}

// Long waves are stretched, short ones kept, and those between blended.
static void llama3(const struct nib_rope_config *rope, int64_t dims, float *inv_freq)
{
    const float tau = 6.283185307179586f;
    float factor = (float)rope->factor, context = (float)rope->original_context;
    float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor;
    for (int64_t i = 0; i < dims / 2; i++) {
        float wave = tau / inv_freq[i];
        float keep = (context / wave - low) / (float)(rope->high_freq_factor - rope->low_freq_factor);
        if (wave > context / low)
            inv_freq[i] /= factor;
        else if (!(wave < context / high))
            inv_freq[i] = (1.0f - keep) * inv_freq[i] / factor + keep * inv_freq[i];
    }
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_scale(const struct nib_rope_config *rope)
{
    if (rope->attention_factor > 0)
        return rope->attention_factor;
    if (rope->mscale != 0 && rope->mscale_all_dim != 0)
        return yarn_mscale(rope->factor, rope->mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
    return yarn_mscale(rope->factor, 1);
}

nib_status nib_rope_table(const struct nib_config *config, const struct nib_rope_config *rope, int64_t dims,
                          float *inv_freq, float *scale, struct nib_error *err)
{
    *scale = 1.0f;
    for (int64_t i = 0; i < dims / 2; i++)
        inv_freq[i] = 1.0f / powf((float)rope->theta, (float)(2 * i) / (float)dims);
    // The dynamic stretch begins behind max_position_embeddings, which no context exceeds.
    if (strcmp(rope->type, "default") == 0 || strcmp(rope->type, "dynamic") == 0)
        return NIB_OK;
    if (strcmp(rope->type, "linear") == 0) {
        for (int64_t i = 0; i < dims / 2; i++)
            inv_freq[i] /= (float)rope->factor;
        return NIB_OK;
    }
    if (strcmp(rope->type, "yarn") == 0) {
        yarn(rope, dims, inv_freq);
        *scale = (float)yarn_scale(rope);
        return NIB_OK;
    }
    if (strcmp(rope->type, "llama3") == 0) {
        llama3(rope, dims, inv_freq);
        return NIB_OK;
    }
    return nib_fail(err, NIB_ERR_UNSUPPORTED,
                    "%s: rope_type \"%s\" is not computed here (default, dynamic, linear, llama3, yarn are)",
                    nib_config_name(config), rope->type);
}
