// How fast this machine reads memory now: the yardstick beside every measured kernel.
#ifndef NIB_BASE_BANDWIDTH_H
#define NIB_BASE_BANDWIDTH_H

#include <stddef.h>

// Reads `bytes` bytes once with `threads` threads, each its own stretch (base/read_stream.h), and returns bytes per second. `bytes` should be far over the caches, or were not read for
// long. Machines that share their memory with others change from one second to the next, so measure beside what is
// compared, not once.
double nib_bandwidth_read(const void *data, size_t bytes, int threads);

// Seconds of a clock that never goes back.
double nib_clock(void);

#endif
