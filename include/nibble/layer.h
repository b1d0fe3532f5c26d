// What one layer of a running model is, and which kernels it runs: for reports.
#ifndef NIBBLE_LAYER_H
#define NIBBLE_LAYER_H

#include <stdint.h>

// The strings live as long as the engine.
struct nib_layer_summary {
    char attention[64];
    const char *expert_layout; // NULL: no experts
    const char *moe_kernel, *moe_reason, *linear_kernel, *linear_reason;
    uint64_t expert_bytes, dense_bytes;
};

#endif
