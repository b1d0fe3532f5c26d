// Which instruction sets may run here: what CPUID reports and the system also saves on a context switch (XCR0).
#ifndef NIB_BASE_CPU_FEATURES_H
#define NIB_BASE_CPU_FEATURES_H

#include <stdbool.h>

#include "nibble/status.h"

// Tiers of kernels, each including the ones before it. A kernel file's suffix is its tier's name.
enum nib_cpu_tier {
    NIB_CPU_REF,        // any x86-64
    NIB_CPU_AVX2,       // AVX2, FMA, F16C, BMI2
    NIB_CPU_AVX512,     // AVX-512 F, BW, DQ, VL, VBMI
    NIB_CPU_AVX512VNNI, // and AVX-512 VNNI
    NIB_CPU_AVX512BF16, // and AVX-512 BF16
    NIB_CPU_AMX,        // and AMX tiles with BF16
    NIB_CPU_TIER_COUNT
};

const char *nib_cpu_tier_name(enum nib_cpu_tier tier);

// Whether this CPU and this system can run the tier. For NIB_CPU_AMX this asks the kernel, once, to let the process
// use tile registers.
bool nib_cpu_has(enum nib_cpu_tier tier);

// The tier to use: the highest there is, or the one that the environment variable NIBBLE_CPU names.
// NIB_ERR_ARGUMENT for a name that is no tier, NIB_ERR_UNSUPPORTED for a tier that cannot run here.
nib_status nib_cpu_pick_tier(enum nib_cpu_tier *tier, struct nib_error *err);

// Whether products of integers are to be taken for bf16 ones: on Intel's CPUs, where one of bf16 takes two cycles (measured on
// a Xeon of 2023), unless NIBBLE_CPU names a tier.
bool nib_cpu_prefers_integers(void);

#endif
