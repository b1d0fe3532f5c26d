// moe: the MoE layer call, on inputs rounded to bf16 unless the device is exact.
#include "cpu/cpu_device.h"

void nib_cpu_moe(struct nib_device *device, struct nib_buffer y, struct nib_buffer x, struct nib_routes routes,
                 const struct nib_moe *moe)
{
    const struct nib_cpu_device *cpu = nib_cpu_of(device);
    int64_t tokens = device->step->n_tokens;
    if (device->error.status)
        return;
    bool rounds = !moe->dense && !device->options.exact;
    if (rounds) {
#pragma omp parallel for num_threads(nib_host_threads(device, tokens *x.width))
        for (int64_t t = 0; t < tokens; t++)
            cpu->kernels->round_bf16(nib_buffer_row(x, t), x.width, cpu->rounded + t * x.width);
    }
    nib_host_run_moe(device, y, x, rounds ? cpu->rounded : NULL, routes, moe);
}
