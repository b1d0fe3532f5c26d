// A library to preload: makes chosen system calls fail, do half their work, or be the last thing the process does.
//
// NIB_FAULT is "CALL:WHAT:N": the N-th use of CALL (pwrite, fsync, rename, fallocate, open, mmap, epoll_ctl of a listening
// socket; or "any" of them) fails with WHAT (EIO, ENOSPC, …), or kills the process (KILL), or takes a tenth of a second
// (SLOW), and with "+" behind N so do all later ones.
// "pwrite:SHORT:N" writes only half of what is asked; "mmap:SHORT:N" maps a file and then cuts it to half its length. NIB_FAULT_COUNT names a file that gets the number of calls seen.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_long seen;

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static int error_of(const char *name)
{
    static const struct {
        const char *name;
        int value;
    } errors[] = {
        {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"ENOMEM", ENOMEM}, {"EOPNOTSUPP", EOPNOTSUPP}, {"EINTR", EINTR}};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strncmp(name, errors[i].name, strlen(errors[i].name)) == 0)
            return errors[i].value;
    return 0;
}

// What is to happen at this use of `call`: 0 nothing, -1 half the work, else an error number. May not return.
static int fault_at(const char *call)
{
    const char *fault = getenv("NIB_FAULT");
    const char *what = fault ? strchr(fault, ':') : NULL, *number = what ? strchr(what + 1, ':') : NULL;
    if (!number)
        return 0;
    size_t length = (size_t)(what - fault);
    if (strncmp(fault, "any", length) != 0 && (strlen(call) != length || strncmp(fault, call, length) != 0))
        return 0;
    long at = strtol(number + 1, NULL, 10), now = atomic_fetch_add(&seen, 1) + 1;
    bool later = number[strlen(number) - 1] == '+';
    if (later ? now < at : now != at)
        return 0;
    if (strncmp(what + 1, "KILL", 4) == 0)
        raise(SIGKILL);
    if (strncmp(what + 1, "SLOW", 4) == 0)
        usleep(100 * 1000);
    return strncmp(what + 1, "SHORT", 5) == 0 ? -1 : error_of(what + 1);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = next("pwrite");
    int fault = fault_at("pwrite");
    if (fault > 0) {
        errno = fault;
        return -1;
    }
    return real(fd, data, fault < 0 && bytes > 1 ? bytes / 2 : bytes, offset);
}

EXPORT int fsync(int fd)
{
    int (*real)(int);
    *(void **)&real = next("fsync");
    int fault = fault_at("fsync");
    errno = fault > 0 ? fault : errno;
    return fault > 0 ? -1 : real(fd);
}

EXPORT int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *);
    *(void **)&real = next("rename");
    int fault = fault_at("rename");
    errno = fault > 0 ? fault : errno;
    return fault > 0 ? -1 : real(from, to);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int (*real)(int, int, off_t, off_t);
    *(void **)&real = next("fallocate");
    int fault = fault_at("fallocate");
    errno = fault > 0 ? fault : errno;
    return fault > 0 ? -1 : real(fd, mode, offset, bytes);
}

EXPORT void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off_t);
    *(void **)&real = next("mmap");
    // Only the program's own maps of files: the loader and malloc are not under test.
    int fault = fd >= 0 && protection == PROT_READ && flags == MAP_SHARED ? fault_at("mmap") : 0;
    errno = fault > 0 ? fault : errno;
    if (fault > 0)
        return MAP_FAILED;
    if (fault < 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        void *mapped = real(address, bytes, protection, flags, fd, offset);
        return truncate(path, (off_t)(bytes / 2)) == 0 ? mapped : MAP_FAILED;
    }
    return real(address, bytes, protection, flags, fd, offset);
}

EXPORT int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...);
    *(void **)&real = next("open");
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    int fault = strstr(path, "safetensors") || strstr(path, ".part") ? fault_at("open") : 0;
    errno = fault > 0 ? fault : errno;
    return fault > 0 ? -1 : real(path, flags, mode);
}

EXPORT int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    int (*real)(int, int, int, struct epoll_event *);
    *(void **)&real = next("epoll_ctl");
    int listens = 0;
    socklen_t size = sizeof listens;
    bool listener = getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens;
    int fault = listener ? fault_at("epoll_ctl") : 0;
    errno = fault > 0 ? fault : errno;
    return fault > 0 ? -1 : real(epoll, operation, fd, event);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("NIB_FAULT_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld\n", atomic_load(&seen));
        fclose(file);
    }
}
