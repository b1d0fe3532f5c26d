// A checkpoint folder with random weights at a published model's shapes, held in memory: the same files, maps and code
// paths as a real one.
#ifndef NIB_CLI_SYNTHETIC_H
#define NIB_CLI_SYNTHETIC_H

#include <stdbool.h>

#include "nibble/status.h"

#define SYNTHETIC_PATH 1024

struct synthetic {
    char folder[SYNTHETIC_PATH]; // config.json and a link to the memory file
    int file;                    // the memory file's descriptor; 0: none
};

// `shape` is a name of synthetic_shapes(). Weights are drawn so that activations stay of order one through all layers; with
// `empty` none are, and the file takes no memory: for devices that make weights up themselves.
nib_status synthetic_create(struct synthetic *synthetic, const char *shape, bool empty, struct nib_error *err);
void synthetic_remove(struct synthetic *synthetic); // fine on a zero one

const char *synthetic_shapes(void); // "gpt-oss-20b|gpt-oss-120b|…"

#endif
