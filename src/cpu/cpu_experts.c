// moe: the MoE layer call, on inputs rounded to bf16 unless the device is exact.
#include "cpu/cpu_device.h"
#include "ops/expert_bytes.h"

void nib_cpu_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
                 const struct nib_moe *moe)
{
    int64_t tokens = device->step->n_tokens;
    if (device->error.status)
        return;
    if (moe->dense) {
        device->expert_bytes_read += nib_dense_moe_run(
            moe->dense,
            &(struct nib_dense_moe_call){device, nib_cpu_linear, device->step->n_tokens,
                                         device->options.max_tokens, y, x, routes, device->moe_scratch});
        return;
    }
    bool exact = device->options.exact;
    if (!exact) {
#pragma omp parallel for num_threads(nib_cpu_threads(device, tokens *x.width))
        for (int64_t t = 0; t < tokens; t++)
            device->kernels->round_bf16(nib_buffer_row(x, t), x.width, device->rounded + t * x.width);
    }
    struct nib_moe_call call = {
        .tokens = tokens,
        .top_k = routes.top_k,
        .threads = device->options.threads,
        .x_dtype = exact ? NIB_F32 : NIB_BF16,
        .x = exact ? x.data : device->rounded,
        .expert_ids = routes.expert_ids,
        .routing_weights = routes.weights,
        .y_dtype = NIB_F32,
        .y = y.data,
        .scratch = device->moe_scratch,
        .scratch_bytes = device->moe_scratch_bytes,
    };
    device->expert_bytes_read +=
        moe->expert_bytes * (uint64_t)nib_distinct_experts(routes.expert_ids, tokens * routes.top_k,
                                                           moe->first_expert, moe->n_experts);
    nib_moe_run(moe->plan, &call, &device->error);
}
