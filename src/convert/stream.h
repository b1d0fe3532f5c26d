// One file of a plan from its first byte to its name.
#ifndef NIB_CONVERT_STREAM_H
#define NIB_CONVERT_STREAM_H

#include "convert/plan.h"

struct nib_stream {
    int threads;
    uint64_t done, total; // bytes of output, for progress
};

// Writes the file's header and data into the folder and gives it its name. Adds to the plan's report.
nib_status nib_stream_file(struct nib_plan *plan, size_t file, const char *folder, struct nib_stream *stream,
                           struct nib_error *err);

// Bytes of source that are worked on between two looks at the progress, and the most memory that takes with `threads`.
uint64_t nib_stream_chunk(const struct nib_plan *plan);
uint64_t nib_stream_memory(const struct nib_plan *plan, int threads);

#endif
