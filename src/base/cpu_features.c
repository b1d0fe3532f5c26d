#include "base/cpu_features.h"

#include <cpuid.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

// State components in XCR0 that the system must save: SSE and AVX; opmask and both halves of zmm; tile state.
#define XCR0_AVX 0x6u
#define XCR0_AVX512 0xe6u
#define XCR0_AMX 0x60000u

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

static const char *const tier_names[NIB_CPU_TIER_COUNT] = {"ref",        "avx2",       "avx512",
                                                           "avx512vnni", "avx512bf16", "amx"};

static pthread_once_t detected = PTHREAD_ONCE_INIT;
static enum nib_cpu_tier highest;

static bool bits(uint32_t word, uint32_t wanted)
{
    return (word & wanted) == wanted;
}

static uint32_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static enum nib_cpu_tier detect(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bits(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
        return NIB_CPU_REF;
    uint32_t xcr0 = read_xcr0();
    if (!bits(xcr0, XCR0_AVX) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bits(b, bit_AVX2 | bit_BMI2))
        return NIB_CPU_REF;
    const uint32_t avx512_b = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (!bits(xcr0, XCR0_AVX512) || !bits(b, avx512_b) || !bits(c, bit_AVX512VBMI))
        return NIB_CPU_AVX2;
    if (!bits(c, 1u << 11 /* AVX512_VNNI */))
        return NIB_CPU_AVX512;
    uint32_t a1, b1, c1, d1;
    if (!__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) || !bits(a1, 1u << 5 /* AVX512_BF16 */))
        return NIB_CPU_AVX512VNNI;
    if (!bits(xcr0, XCR0_AMX) || !bits(d, 1u << 24 | 1u << 22 /* AMX-TILE, AMX-BF16 */))
        return NIB_CPU_AVX512BF16;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0)
        return NIB_CPU_AVX512BF16;
    return NIB_CPU_AMX;
}

static void detect_once(void)
{
    highest = detect();
}

const char *nib_cpu_tier_name(enum nib_cpu_tier tier)
{
    return tier_names[tier];
}

bool nib_cpu_has(enum nib_cpu_tier tier)
{
    pthread_once(&detected, detect_once);
    return tier <= highest;
}

static const char *named_tier(void)
{
    const char *name = getenv("NIBBLE_CPU");
    return name && *name ? name : NULL;
}

nib_status nib_cpu_pick_tier(enum nib_cpu_tier *tier, struct nib_error *err)
{
    pthread_once(&detected, detect_once);
    *tier = highest;
    const char *wanted = named_tier();
    if (!wanted)
        return NIB_OK;
    for (int i = 0; i < NIB_CPU_TIER_COUNT; i++) {
        if (strcmp(wanted, tier_names[i]) != 0)
            continue;
        if (!nib_cpu_has((enum nib_cpu_tier)i))
            return nib_fail(err, NIB_ERR_UNSUPPORTED, "NIBBLE_CPU=%s: this CPU or system reaches %s at most",
                            wanted, tier_names[highest]);
        *tier = (enum nib_cpu_tier)i;
        return NIB_OK;
    }
    return nib_fail(err, NIB_ERR_ARGUMENT,
                    "NIBBLE_CPU=%s: not one of ref, avx2, avx512, avx512vnni, avx512bf16, amx", wanted);
}

bool nib_cpu_prefers_integers(void)
{
    uint32_t a, b, c, d;
    return !named_tier() && __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx &&
           c == signature_INTEL_ecx && d == signature_INTEL_edx;
}
