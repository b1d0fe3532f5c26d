// A progress bar on stderr, silent when stderr is no terminal or the work is short.
#ifndef NIB_CLI_PROGRESS_H
#define NIB_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct nib_progress {
    const char *label;
    int64_t total; // units of work
    const char *unit;
    double started, drawn; // seconds of the monotonic clock
    bool visible;
};

double nib_seconds(void); // the monotonic clock

void nib_progress_begin(struct nib_progress *progress, const char *label, int64_t total, const char *unit);
void nib_progress_update(struct nib_progress *progress, int64_t done);
// For callbacks that are told of bytes: the first one begins, in MiB. `progress` starts with nothing but a label.
bool nib_progress_of_bytes(void *progress, uint64_t bytes, uint64_t total);
void nib_progress_end(struct nib_progress *progress); // clears the line

#endif
