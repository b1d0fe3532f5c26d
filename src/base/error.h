// Filling in a caller's nib_error.
#ifndef NIB_BASE_ERROR_H
#define NIB_BASE_ERROR_H

#include "nibble/status.h"

// Formats the message into `err` (which may be NULL) and returns `status`, so that a failing function ends in
// `return nib_fail(err, NIB_ERR_…, "…", …)`. Control bytes of the text (it may quote a hostile file) become '?'.
nib_status nib_fail(struct nib_error *err, nib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "prefix: " in front of the message already in `err` and returns its status.
nib_status nib_fail_context(struct nib_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// For out-of-memory, with the number of bytes and what they were for. Inline, so that whoever reads the code (a static
// analyser too) sees that it never returns NIB_OK.
static inline nib_status nib_fail_memory(struct nib_error *err, unsigned long long bytes, const char *what)
{
    nib_fail(err, NIB_ERR_MEMORY, "out of memory: %llu bytes for %s", bytes, what);
    return NIB_ERR_MEMORY;
}

#endif
