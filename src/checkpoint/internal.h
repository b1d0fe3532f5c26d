// What a nib_checkpoint holds.
#ifndef NIB_CHECKPOINT_INTERNAL_H
#define NIB_CHECKPOINT_INTERNAL_H

#include "checkpoint/safetensors.h"
#include "nibble/checkpoint.h"

struct nib_checkpoint {
    char *path; // without a slash at its end
    struct nib_config *config, *generation;
    struct nib_safetensors *files; /* [file_count] */
    size_t file_count;
    struct nib_tensor *tensors; /* [count] by name */
    bool *used;                 /* [count] */
    size_t count;
    const char **prefixes; /* [prefix_count] of expert groups; NULL until asked for */
    size_t prefix_count;
    struct nib_owned *owned; // memory that is handed out and goes with the checkpoint
};

// Zeroed memory that lives as long as the checkpoint, or NULL.
void *nib_checkpoint_allocate(struct nib_checkpoint *checkpoint, size_t bytes);

// The index of the first tensor whose name is not less than `name`.
size_t nib_checkpoint_lower_bound(const struct nib_checkpoint *checkpoint, const char *name);

void nib_checkpoint_mark(struct nib_checkpoint *checkpoint, const struct nib_tensor *tensor); // NULL is fine

// The shards of a folder: opens all files, checks the index where there is one.
nib_status nib_checkpoint_open_folder(struct nib_checkpoint *checkpoint, struct nib_error *err);

// Opens `count` files into checkpoint->files.
nib_status nib_checkpoint_open_files(struct nib_checkpoint *checkpoint, char *const *paths /* [count] */,
                                     size_t count, struct nib_error *err);

#endif
