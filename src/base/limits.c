#include "base/limits.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Reads a small file; false when it is not there.
static bool read_small(const char *path, char *text, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t size = fread(text, 1, capacity - 1, file);
    fclose(file);
    text[size] = 0;
    return true;
}

// The number that a text begins with, behind blanks; false when it is none, negative ones included.
static bool parse_number(const char *text, uint64_t *value)
{
    char *end;
    text += strspn(text, " \t");
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0;
}

// A file that holds one number; false when it is missing or says "max" or -1.
static bool read_number(const char *folder, const char *name, uint64_t *value)
{
    char path[2200], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_small(path, text, sizeof text) && parse_number(text, value);
}

// The process's group below the hierarchy of `controller` ("" is version 2's), from /proc/self/cgroup.
static bool own_group(const char *proc_root, const char *controller, char *group, size_t capacity)
{
    char path[1024], text[8192];
    snprintf(path, sizeof path, "%s/self/cgroup", proc_root);
    if (!read_small(path, text, sizeof text))
        return false;
    for (char *save, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = 0;
        names++;
        bool found = *controller == 0 && *names == 0;
        for (char *save2, *name = strtok_r(names, ",", &save2); name; name = strtok_r(NULL, ",", &save2))
            found |= strcmp(name, controller) == 0;
        if (found) {
            snprintf(group, capacity, "%s", where);
            return true;
        }
    }
    return false;
}

// Calls `visit` with the folder of the process's group and of every group above it.
static void each_group(const char *proc_root, const char *root, const char *controller,
                       void (*visit)(const char *folder, void *user), void *user)
{
    char group[1024] = "", folder[2100];
    own_group(proc_root, controller, group, sizeof group);
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s%s%s", root, *controller ? "/" : "", controller, group);
        visit(folder, user);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = 0; // inside a container the path may not exist; its parents, at last the root, do
    }
}

static void lower_cpu_limit(const char *folder, void *user)
{
    double *processors = user;
    char path[2200], text[64];
    uint64_t quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder); // version 2: quota and period
    const char *blank = read_small(path, text, sizeof text) ? strchr(text, ' ') : NULL;
    bool limited = blank && parse_number(text, &quota) && parse_number(blank, &period);
    if (!limited)
        limited =
            read_number(folder, "cpu.cfs_quota_us", &quota) && read_number(folder, "cpu.cfs_period_us", &period);
    if (limited && period > 0 && (double)quota / (double)period < *processors)
        *processors = (double)quota / (double)period;
}

int nib_cgroup_cpu_limit(const char *proc_root, const char *cgroup_root, int processors)
{
    double limit = processors;
    each_group(proc_root, cgroup_root, "", lower_cpu_limit, &limit);
    each_group(proc_root, cgroup_root, "cpu", lower_cpu_limit, &limit);
    int whole = (int)limit;
    return whole < limit ? whole + 1 : whole < 1 ? 1 : whole;
}

int nib_thread_limit(void)
{
    cpu_set_t set;
    long processors =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return nib_cgroup_cpu_limit("/proc", "/sys/fs/cgroup", processors < 1 ? 1 : (int)processors);
}

// The value of "key <number>" in a file of such lines.
static bool read_key(const char *folder, const char *name, const char *key, uint64_t *value)
{
    char path[2200], text[8192];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!read_small(path, text, sizeof text))
        return false;
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':'))
            return parse_number(line + length + 1, value);
    return false;
}

static void lower_memory(const char *folder, void *user)
{
    uint64_t *available = user, limit, used, cached = 0;
    bool v2 = read_number(folder, "memory.max", &limit) && read_number(folder, "memory.current", &used);
    if (!v2 && !(read_number(folder, "memory.limit_in_bytes", &limit) &&
                 read_number(folder, "memory.usage_in_bytes", &used)))
        return;
    // Inactive file pages are dropped before the limit bites.
    read_key(folder, "memory.stat", v2 ? "inactive_file" : "total_inactive_file", &cached);
    used = used > cached ? used - cached : 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < *available)
        *available = left;
}

uint64_t nib_memory_available_at(const char *proc_root, const char *cgroup_root)
{
    uint64_t kilobytes = 0, available = UINT64_MAX;
    if (read_key(proc_root, "meminfo", "MemAvailable", &kilobytes))
        available = kilobytes * 1024;
    each_group(proc_root, cgroup_root, "", lower_memory, &available);
    each_group(proc_root, cgroup_root, "memory", lower_memory, &available);
    return available;
}

uint64_t nib_memory_available(void)
{
    return nib_memory_available_at("/proc", "/sys/fs/cgroup");
}

// A line "KEY: n kB" of /proc/self/status, in bytes.
static uint64_t own_status(const char *key)
{
    uint64_t kilobytes = 0;
    read_key("/proc/self", "status", key, &kilobytes);
    return kilobytes * 1024;
}

uint64_t nib_memory_resident(void)
{
    return own_status("VmRSS");
}

uint64_t nib_memory_anonymous(void)
{
    return own_status("RssAnon");
}
