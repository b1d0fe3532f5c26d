#include "convert/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/path.h"

static nib_status fail(const struct nib_file_writer *writer, const char *what, struct nib_error *err)
{
    return nib_fail(err, NIB_ERR_IO, "%s: cannot %s: %s", writer->partial, what, strerror(errno));
}

static void release(struct nib_file_writer *writer)
{
    if (writer->fd >= 0 && writer->path)
        close(writer->fd);
    free(writer->path);
    free(writer->partial);
    free(writer->folder);
    *writer = (struct nib_file_writer){.fd = -1};
}

static bool make_names(struct nib_file_writer *writer, const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + sizeof "/.part";
    *writer = (struct nib_file_writer){.fd = -1, .folder = strdup(folder), .path = nib_path_join(folder, name)};
    writer->partial = malloc(bytes);
    if (!writer->folder || !writer->path || !writer->partial)
        return false;
    stpcpy(stpcpy(writer->partial, writer->path), ".part");
    return true;
}

// Room is claimed beforehand, so that a full disk shows before hours of work. Where the file system cannot say, the
// writes will.
static nib_status claim_room(struct nib_file_writer *writer, uint64_t size, struct nib_error *err)
{
    if (size == 0 || fallocate(writer->fd, 0, 0, (off_t)size) == 0)
        return NIB_OK;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)
        return nib_fail(err, NIB_ERR_IO, "%s: no room for %llu bytes: %s", writer->partial,
                        (unsigned long long)size, strerror(errno));
    return NIB_OK;
}

nib_status nib_file_begin(struct nib_file_writer *writer, const char *folder, const char *name, uint64_t size,
                          struct nib_error *err)
{
    if (!make_names(writer, folder, name)) {
        release(writer);
        nib_fail_memory(err, strlen(folder) + strlen(name), "a file name");
        return NIB_ERR_MEMORY;
    }
    writer->fd = open(writer->partial, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (writer->fd < 0) {
        fail(writer, "create", err);
        release(writer);
        return NIB_ERR_IO;
    }
    // The lock ends with the process that holds it, however that ends.
    if (flock(writer->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        nib_fail(err, NIB_ERR_IO, "%s: another process is writing it", writer->partial);
        release(writer);
        return NIB_ERR_IO;
    }
    nib_status status = ftruncate(writer->fd, 0) == 0 ? NIB_OK : fail(writer, "empty", err);
    if (status == NIB_OK)
        status = claim_room(writer, size, err);
    if (status != NIB_OK)
        nib_file_abandon(writer);
    return status;
}

nib_status nib_file_put(struct nib_file_writer *writer, uint64_t offset, const void *data, size_t bytes,
                        struct nib_error *err)
{
    const char *next = data;
    while (bytes > 0) {
        ssize_t written = pwrite(writer->fd, next, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written == 0)
            errno = ENOSPC;
        if (written <= 0)
            return fail(writer, "write", err);
        next += written;
        offset += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return NIB_OK;
}

void nib_file_flush(struct nib_file_writer *writer, uint64_t offset, uint64_t bytes)
{
    sync_file_range(writer->fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
}

static nib_status sync_folder(const struct nib_file_writer *writer, struct nib_error *err)
{
    int fd = open(writer->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return nib_fail(err, NIB_ERR_IO, "%s: cannot open: %s", writer->folder, strerror(errno));
    // Some file systems cannot sync a folder and say EINVAL; then there is nothing more to do.
    bool failed = fsync(fd) != 0 && errno != EINVAL;
    int reason = errno;
    close(fd);
    return failed ? nib_fail(err, NIB_ERR_IO, "%s: cannot sync: %s", writer->folder, strerror(reason)) : NIB_OK;
}

nib_status nib_file_commit(struct nib_file_writer *writer, struct nib_error *err)
{
    nib_status status = fsync(writer->fd) == 0 ? NIB_OK : fail(writer, "sync", err);
    if (status == NIB_OK && rename(writer->partial, writer->path) != 0)
        status = fail(writer, "rename", err);
    if (status != NIB_OK) {
        nib_file_abandon(writer);
        return status;
    }
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) != 0)
        status = nib_fail(err, NIB_ERR_IO, "%s: cannot close: %s", writer->path, strerror(errno));
    if (status == NIB_OK)
        status = sync_folder(writer, err);
    if (status != NIB_OK)
        unlink(writer->path);
    release(writer);
    return status;
}

void nib_file_abandon(struct nib_file_writer *writer)
{
    if (writer->partial && writer->fd >= 0)
        unlink(writer->partial);
    release(writer);
}

nib_status nib_file_write(const char *folder, const char *name, const void *data, size_t bytes,
                          struct nib_error *err)
{
    struct nib_file_writer writer;
    nib_status status = nib_file_begin(&writer, folder, name, bytes, err);
    if (status != NIB_OK)
        return status;
    status = nib_file_put(&writer, 0, data, bytes, err);
    if (status != NIB_OK) {
        nib_file_abandon(&writer);
        return status;
    }
    return nib_file_commit(&writer, err);
}
