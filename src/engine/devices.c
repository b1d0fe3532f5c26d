#include "engine/devices.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

// "cuda:1" is device 1 of the kind "cuda".
static bool split_name(const char *name, size_t *length, int *ordinal)
{
    const char *colon = strchr(name, ':');
    *length = colon ? (size_t)(colon - name) : strlen(name);
    *ordinal = 0;
    if (!colon)
        return true;
    if (strlen(colon) > 4 || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return false;
    *ordinal = atoi(colon + 1);
    return true;
}

nib_status nib_find_device(const char *name, const struct nib_ops **ops, int *ordinal, struct nib_error *err)
{
    const struct nib_ops *const devices[] = {nib_cpu_ops(), nib_ref_ops(), nib_cuda_ops()};
    size_t length;
    if (split_name(name, &length, ordinal)) {
        for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
            if (devices[i] && strlen(devices[i]->name) == length && strncmp(devices[i]->name, name, length) == 0 &&
                (*ordinal == 0 || devices[i]->memory_available)) {
                *ops = devices[i];
                return NIB_OK;
            }
        if (!nib_cuda_ops() && length == 4 && strncmp(name, "cuda", 4) == 0)
            return nib_fail(err, NIB_ERR_UNSUPPORTED,
                            "this build has no CUDA (configure with -DNIB_CUDA=ON where the toolkit is)");
    }
    return nib_fail(err, NIB_ERR_UNSUPPORTED, "there is no device \"%s\" (cpu, ref, cuda or cuda:N)", name);
}
