// The choice of the kernel for a MoE layer on this CPU.
#include <string.h>

#include "base/cpu_features.h"
#include "base/error.h"
#include "cpu/moe_tier.h"
#include "ops/moe_ref.h"

// Best first.
static const struct nib_moe_tier *const tiers[] = {&nib_moe_amx, &nib_moe_avx512bf16, &nib_moe_avx512vnni,
                                                   &nib_moe_avx512, &nib_moe_avx2};
#define N_TIERS (sizeof tiers / sizeof *tiers)

struct choice {
    const struct nib_moe_kernel *kernel;
    const char *why;
};

static nib_status pick_by_name(const char *name, bool exact, struct choice *choice, struct nib_error *err)
{
    *choice = (struct choice){&nib_moe_ref, "asked for by name"};
    for (size_t i = 0; i < N_TIERS; i++) {
        const struct nib_moe_kernel *kernel = &tiers[i]->kernel;
        if (strcmp(name, kernel->name) != 0)
            continue;
        if (exact && !kernel->takes_f32)
            return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: kernel %s rounds activations to bf16", name);
        if (!nib_cpu_has(tiers[i]->tier))
            return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: kernel %s cannot run on this CPU", name);
        choice->kernel = kernel;
        return NIB_OK;
    }
    if (strcmp(name, nib_moe_ref.name) != 0)
        return nib_fail(err, NIB_ERR_UNSUPPORTED, "moe: there is no kernel %s", name);
    return NIB_OK;
}

static bool is_passed_over(enum nib_cpu_tier tier)
{
    return tier == NIB_CPU_AVX512BF16 && nib_cpu_prefers_integers();
}

static nib_status pick_best(bool exact, struct choice *choice, struct nib_error *err)
{
    enum nib_cpu_tier highest;
    nib_status status = nib_cpu_pick_tier(&highest, err);
    *choice = (struct choice){&nib_moe_ref, "no faster kernel runs on this CPU, or NIBBLE_CPU=ref"};
    for (size_t i = 0; !status && i < N_TIERS; i++) {
        if (tiers[i]->tier > highest || is_passed_over(tiers[i]->tier) || (exact && !tiers[i]->kernel.takes_f32))
            continue;
        *choice =
            (struct choice){&tiers[i]->kernel, exact ? "the best with fp32 activations" : "the best for this CPU"};
        break;
    }
    return status;
}

nib_status nib_moe_plan_create(const struct nib_moe_weights *weights, const struct nib_moe_config *config,
                               struct nib_moe_plan **plan, struct nib_error *err)
{
    struct choice choice;
    *plan = NULL;
    nib_status status = config->kernel ? pick_by_name(config->kernel, config->exact, &choice, err)
                                       : pick_best(config->exact, &choice, err);
    return status ? status : nib_moe_plan_make(weights, config, choice.kernel, choice.why, plan, err);
}

size_t nib_moe_scratch_bound(int64_t hidden, int64_t intermediate, int64_t n_experts, int64_t tokens,
                             int64_t top_k, int threads)
{
    struct nib_moe_plan shape = {
        .weights = {.hidden = hidden, .intermediate = intermediate, .n_experts = n_experts},
        .kernel = &nib_moe_ref};
    size_t most = nib_moe_scratch_bytes(&shape, tokens, top_k, threads);
    for (size_t i = 0; i < N_TIERS; i++) {
        shape.kernel = &tiers[i]->kernel;
        size_t bytes = nib_moe_scratch_bytes(&shape, tokens, top_k, threads);
        if (nib_cpu_has(tiers[i]->tier) && bytes > most)
            most = bytes;
    }
    return most;
}
