// The devices of this build.
#ifndef NIB_ENGINE_DEVICES_H
#define NIB_ENGINE_DEVICES_H

#include "ops/ops.h"

// "cpu" or "ref"; NULL when this build has no such device.
const struct nib_ops *nib_find_device(const char *name);

#endif
