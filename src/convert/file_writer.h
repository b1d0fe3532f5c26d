// A file that has its name only once it is whole: written beside its place, made durable, then renamed.
#ifndef NIB_CONVERT_FILE_WRITER_H
#define NIB_CONVERT_FILE_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/status.h"

struct nib_file_writer {
    int fd;
    char *path, *partial; // where it will be, and where it is
    char *folder;
};

// Opens "folder/name.part" for `size` bytes, emptied if it is there. NIB_ERR_IO when another process is writing it, or
// when the disk has no room for it, as far as the file system can tell beforehand.
nib_status nib_file_begin(struct nib_file_writer *writer, const char *folder, const char *name, uint64_t size,
                          struct nib_error *err);

// Writes all of `bytes`; any number of threads may write to different places.
nib_status nib_file_put(struct nib_file_writer *writer, uint64_t offset, const void *data, size_t bytes,
                        struct nib_error *err);

// Starts writing that range to the disk without waiting for it.
void nib_file_flush(struct nib_file_writer *writer, uint64_t offset, uint64_t bytes);

// Makes the bytes durable and gives the file its name, in this order. The writer is closed either way.
nib_status nib_file_commit(struct nib_file_writer *writer, struct nib_error *err);

// Closes and removes it. Fine on a zero or a committed writer.
void nib_file_abandon(struct nib_file_writer *writer);

// All three steps for a small file.
nib_status nib_file_write(const char *folder, const char *name, const void *data, size_t bytes,
                          struct nib_error *err);

#endif
