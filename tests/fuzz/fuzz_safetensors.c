// Any bytes as a safetensors file: it opens or is refused, and what opened can be read to its last byte.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nibble/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static void touch(const void *bytes, int64_t size)
{
    const uint8_t *at = bytes;
    if (!at || size <= 0)
        return;
    for (int64_t i = 0; i < size; i += 509)
        sink += at[i];
    sink += at[size - 1];
}

static void touch_experts(const struct nib_experts *experts)
{
    const struct nib_moe_weights *weights = &experts->weights;
    int64_t hidden = weights->hidden, intermediate = weights->intermediate;
    int64_t rows = (intermediate - 1) * weights->gate_up_row_stride + 1;
    int64_t bias = (int64_t)nib_dtype_size(weights->bias_dtype);
    for (int64_t e = 0; e < weights->n_experts; e++) {
        const struct nib_expert *expert = &weights->experts[e];
        touch(expert->gate, rows * hidden / 2);
        touch(expert->up, rows * hidden / 2);
        touch(expert->gate_scales, rows * hidden / 32);
        touch(expert->up_scales, rows * hidden / 32);
        touch(expert->down, hidden * intermediate / 2);
        touch(expert->down_scales, hidden * intermediate / 32);
        touch(expert->gate_bias, rows * bias);
        touch(expert->up_bias, rows * bias);
        touch(expert->down_bias, hidden * bias);
    }
}

static void use(struct nib_checkpoint *checkpoint)
{
    struct nib_error err;
    char name[1100];
    for (size_t i = 0; i < nib_checkpoint_count(checkpoint); i++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(checkpoint, i);
        touch(tensor->data, (int64_t)tensor->bytes);
        nib_tensor_describe(tensor, name, 40);
        snprintf(name, sizeof name, "%s", tensor->name);
        char *dot = strrchr(name, '.');
        if (dot)
            *dot = 0;
        struct nib_linear_view view;
        if (nib_checkpoint_linear(checkpoint, name, &view, &err) == NIB_OK)
            nib_linear_describe(&view, name, 40);
    }
    const char *const *prefixes;
    size_t count = 0;
    if (nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, &err) != NIB_OK)
        return;
    for (size_t i = 0; i <= count; i++) {
        struct nib_experts experts;
        if (nib_checkpoint_experts(checkpoint, i < count ? prefixes[i] : "", i & 1, &experts, &err) != NIB_OK)
            continue;
        touch_experts(&experts);
        nib_checkpoint_check_scales(checkpoint, &experts, &err);
    }
    nib_checkpoint_metadata(checkpoint, "format");
    nib_checkpoint_next_unused(checkpoint, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct nib_checkpoint *checkpoint = NULL;
    struct nib_error err = {0};
    nib_status status = nib_checkpoint_open(path, &checkpoint, &err);
    if (status == NIB_OK)
        use(checkpoint);
    else if (err.status != status || !err.message[0] || strchr(err.message, '\n'))
        abort();
    nib_checkpoint_close(checkpoint);
    close(fd);
    return 0;
}
