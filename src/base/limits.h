// What this process may use of the machine: processors and memory, as affinity and control groups grant them.
#ifndef NIB_BASE_LIMITS_H
#define NIB_BASE_LIMITS_H

#include <stdint.h>

// min(processors in the affinity mask, control-group CPU quota rounded up), at least 1.
int nib_thread_limit(void);

// min(MemAvailable, what the control groups still grant), in bytes. Clean page cache counts as available.
uint64_t nib_memory_available(void);

// Resident memory of this process in bytes, and of it what no file backs (heap, stacks); 0 when the system does not say.
uint64_t nib_memory_resident(void);
uint64_t nib_memory_anonymous(void);

// The same with the files' roots as parameters, for tests. `cgroup_root` is normally "/sys/fs/cgroup" and
// `proc_root` "/proc"; versions 1 and 2 of control groups are read, every level from the process's own group up.
int nib_cgroup_cpu_limit(const char *proc_root, const char *cgroup_root, int processors);
uint64_t nib_memory_available_at(const char *proc_root, const char *cgroup_root);

#endif
