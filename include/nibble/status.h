// Status values and the error message that every fallible nibble function fills in.
#ifndef NIBBLE_STATUS_H
#define NIBBLE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// What happened. Zero is success; values are stable across releases.
typedef enum nib_status {
    NIB_OK = 0,
    NIB_ERR_ARGUMENT = 1,    // the caller passed something that cannot work
    NIB_ERR_IO = 2,          // the system refused to open, read, write or map
    NIB_ERR_FORMAT = 3,      // a file's bytes are not what its format demands
    NIB_ERR_UNSUPPORTED = 4, // well formed, but nothing here computes it
    NIB_ERR_NOT_FOUND = 5,   // a named file, tensor or key does not exist
    NIB_ERR_MEMORY = 6,      // out of memory, or a plan that would not fit
    NIB_ERR_LIMIT = 7,       // a stated limit (context, sequences, sizes) was exceeded
    NIB_ERR_CANCELLED = 8,   // the caller's callback asked to stop
} nib_status;

#define NIB_ERROR_CAPACITY 1024

// The caller owns it, usually on the stack, and passes its address; NULL means the message is not wanted.
// On success it is left alone. `message` is one line without a newline and names the file, the tensor or
// field, and the numbers.
struct nib_error {
    nib_status status;
    char message[NIB_ERROR_CAPACITY];
};

// The status as a short English phrase, never NULL.
const char *nib_status_name(nib_status status);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
