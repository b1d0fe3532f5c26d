// The JSON behind a nib_config, for rooms that rewrite config.json.
#ifndef NIB_CHECKPOINT_CONFIG_H
#define NIB_CHECKPOINT_CONFIG_H

#include <jansson.h>

#include "nibble/checkpoint.h"

// The whole file's object, borrowed.
const json_t *nib_config_json(const struct nib_config *config);

// The value of `key` is there and is an object.
bool nib_config_is_object(const struct nib_config *config, const char *key);

// And has members.
bool nib_config_has_members(const struct nib_config *config, const char *key);

// `key`, of the config itself, is written as null: for the few where that says something else than its absence.
bool nib_config_is_null(const struct nib_config *config, const char *key);

// Whether the config says `name`, a rotary setting that may stand at the top level too ("partial_rotary_factor"), where
// nib_config_rope reads it for this type of layer.
bool nib_config_has_rope(const struct nib_config *config, const char *layer_type, const char *name);

#endif
