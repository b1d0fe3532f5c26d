// A file mapped read-only.
//
// The bytes are those of the file at the time they are touched: a file that another program cuts short while it is
// mapped ends this one with SIGBUS, as any mapping would.
#ifndef NIB_BASE_MAP_H
#define NIB_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/status.h"

struct nib_map {
    char *path;
    const uint8_t *data; /* [size]; never NULL once open, also for an empty file */
    uint64_t size;
};

// mmap of `size` bytes, at least 1, at a place where pages of 2 MiB fit, and a wish for such pages: weights that stream by
// then need a translation for 2 MiB instead of for 4 KiB. A kernel that cannot keep the file in them ignores the wish. `fd` -1
// and MAP_ANONYMOUS in `flags` for memory of its own. MAP_FAILED, with errno, like mmap; ended by munmap(place, size).
void *nib_map_pages(size_t size, int protection, int flags, int fd);

enum nib_map_advice { NIB_MAP_NORMAL, NIB_MAP_SEQUENTIAL, NIB_MAP_RANDOM, NIB_MAP_WILL_NEED, NIB_MAP_DONT_NEED };

// NIB_ERR_NOT_FOUND or NIB_ERR_IO, naming the path. On failure `map` is left closed (all zero).
nib_status nib_map_open(struct nib_map *map, const char *path, struct nib_error *err);

// Closing a closed (all zero) map is fine.
void nib_map_close(struct nib_map *map);

// A hint about bytes [offset, offset + length), cut to the file. DONT_NEED keeps pages that are only partly covered.
void nib_map_advise(const struct nib_map *map, uint64_t offset, uint64_t length, enum nib_map_advice advice);

#endif
