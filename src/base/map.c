#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define LARGE_PAGE ((size_t)2 << 20)

void *nib_map_pages(size_t size, int protection, int flags, int fd)
{
    if (size < LARGE_PAGE || size > SIZE_MAX - LARGE_PAGE)
        return mmap(NULL, size, protection, flags, fd, 0);
    // A large page of the file must lie at a multiple of its size, which not every file system sees to.
    uint8_t *room = mmap(NULL, size + LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return room;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    size_t before = -(uintptr_t)room % LARGE_PAGE, after = size + LARGE_PAGE - before;
    void *mapped = mmap(room + before, size, protection, flags | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
        int error = errno;
        munmap(room, size + LARGE_PAGE);
        errno = error;
        return MAP_FAILED;
    }
    if (before > 0)
        munmap(room, before);
    if (after > whole)
        munmap(room + before + whole, after - whole);
    madvise(mapped, size, MADV_HUGEPAGE);
    return mapped;
}

static nib_status map_descriptor(struct nib_map *map, int fd, const char *path, struct nib_error *err)
{
    static const uint8_t nothing[1];
    struct stat info;
    if (fstat(fd, &info) != 0)
        return nib_fail(err, NIB_ERR_IO, "%s: cannot stat: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return nib_fail(err, NIB_ERR_IO, "%s: is a directory, not a file", path);
    if (!S_ISREG(info.st_mode))
        return nib_fail(err, NIB_ERR_IO, "%s: not a regular file", path);
    const uint8_t *data = nothing;
    if (info.st_size > 0) {
        void *mapped = nib_map_pages((size_t)info.st_size, PROT_READ, MAP_SHARED, fd);
        if (mapped == MAP_FAILED)
            return nib_fail(err, NIB_ERR_IO, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size,
                            strerror(errno));
        data = mapped;
    }
    char *copy = strdup(path);
    if (!copy) {
        if (info.st_size > 0)
            munmap((void *)data, (size_t)info.st_size);
        return nib_fail_memory(err, strlen(path) + 1, "a file name");
    }
    *map = (struct nib_map){.path = copy, .data = data, .size = (uint64_t)info.st_size};
    return NIB_OK;
}

nib_status nib_map_open(struct nib_map *map, const char *path, struct nib_error *err)
{
    *map = (struct nib_map){0};
    // Without O_NONBLOCK opening a FIFO would wait for a writer.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return nib_fail(err, errno == ENOENT || errno == ENOTDIR ? NIB_ERR_NOT_FOUND : NIB_ERR_IO,
                        "%s: cannot open: %s", path, strerror(errno));
    nib_status status = map_descriptor(map, fd, path, err);
    close(fd);
    return status;
}

void nib_map_close(struct nib_map *map)
{
    if (map->size > 0)
        munmap((void *)map->data, (size_t)map->size);
    free(map->path);
    *map = (struct nib_map){0};
}

void nib_map_advise(const struct nib_map *map, uint64_t offset, uint64_t length, enum nib_map_advice advice)
{
    static const int system_advice[] = {
        [NIB_MAP_NORMAL] = MADV_NORMAL,      [NIB_MAP_SEQUENTIAL] = MADV_SEQUENTIAL,
        [NIB_MAP_RANDOM] = MADV_RANDOM,      [NIB_MAP_WILL_NEED] = MADV_WILLNEED,
        [NIB_MAP_DONT_NEED] = MADV_DONTNEED,
    };
    if (offset >= map->size)
        return;
    if (length > map->size - offset)
        length = map->size - offset;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t begin = offset & ~(page - 1), end = offset + length;
    if (advice == NIB_MAP_DONT_NEED) {
        begin = (offset + page - 1) & ~(page - 1);
        // The file's last page has nothing behind its end that anyone could still want.
        if (end != map->size)
            end &= ~(page - 1);
    }
    if (begin < end)
        madvise((void *)(map->data + begin), (size_t)(end - begin), system_advice[advice]);
}
