#include "engine/devices.h"

#include <string.h>

const struct nib_ops *nib_find_device(const char *name)
{
    const struct nib_ops *const devices[] = {nib_cpu_ops(), nib_ref_ops()};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(devices[i]->name, name) == 0)
            return devices[i];
    return NULL;
}
