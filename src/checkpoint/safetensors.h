// One safetensors file: u64 little-endian header length, JSON header, data. Offsets count from the header's end.
#ifndef NIB_CHECKPOINT_SAFETENSORS_H
#define NIB_CHECKPOINT_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/map.h"
#include "nibble/checkpoint.h"

struct nib_safetensors {
    struct nib_map map;
    json_t *metadata;           // __metadata__, or NULL
    char *names;                // all tensors' names, one after the other
    struct nib_tensor *tensors; /* [count] in the order of their data */
    size_t count;
    void **copies; /* [count] data that lay unaligned, NULL for the others; or NULL */
    uint64_t copied_bytes;
};

// What is accepted is what the format's reference reader accepts: a known element type, span = shape x type, data
// without overlap or hole up to the file's end. On failure `file` is left closed (all zero).
nib_status nib_safetensors_open(struct nib_safetensors *file, const char *path, struct nib_error *err);

// Closing a closed (all zero) file is fine.
void nib_safetensors_close(struct nib_safetensors *file);

// NULL when there is no __metadata__ or no such key.
const char *nib_safetensors_metadata(const struct nib_safetensors *file, const char *key);

#endif
