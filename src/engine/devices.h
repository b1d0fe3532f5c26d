// The devices of this build.
#ifndef NIB_ENGINE_DEVICES_H
#define NIB_ENGINE_DEVICES_H

#include "ops/ops.h"

// "cpu", "ref", "cuda" or "cuda:N"; *ordinal is N. NIB_ERR_UNSUPPORTED with the reason when this build has no such device.
nib_status nib_find_device(const char *name, const struct nib_ops **ops, int *ordinal, struct nib_error *err);

#endif
