// Strings that end an answer, found across the borders of tokens. Text that may still turn out to be the beginning of
// one is held back until it is decided, so that no part of a stop string is ever shown.
#ifndef NIB_TEXT_STOP_STRINGS_H
#define NIB_TEXT_STOP_STRINGS_H

#include "nibble/tokenizer.h"

#define NIB_MAX_STOP_STRINGS 16
#define NIB_MAX_STOP_BYTES 1024 // of one string

struct nib_stop_string {
    char *bytes;       /* [size] */
    uint16_t *failure; /* [size] length of the longest proper border of bytes[0 .. i] */
    size_t size;
    size_t matched; // bytes of it that the text ends in
};

// Start from {0}.
struct nib_stop_strings {
    struct nib_stop_string items[NIB_MAX_STOP_STRINGS]; /* [count] */
    size_t count;
    struct nib_bytes held; // the text's end that is the beginning of a stop string
};

// Adds one. NIB_ERR_ARGUMENT when it is empty or too long or there are too many.
nib_status nib_stop_strings_add(struct nib_stop_strings *stop, const char *bytes /* [size] */, size_t size,
                                struct nib_error *err);

// Appends to `out` what of the text so far can be shown. `*stopped` becomes true when a stop string is complete: the one
// that ends first, and the longest of those that end together; what stood before it has then been appended, what
// follows is dropped, and the next push begins another text. The result does not depend on how the text was cut.
nib_status nib_stop_strings_push(struct nib_stop_strings *stop, const char *bytes /* [size] */, size_t size,
                                 struct nib_bytes *out, bool *stopped, struct nib_error *err);

// The text is over: appends what was held back.
nib_status nib_stop_strings_flush(struct nib_stop_strings *stop, struct nib_bytes *out, struct nib_error *err);

void nib_stop_strings_reset(struct nib_stop_strings *stop); // for another text, with the same strings
void nib_stop_strings_free(struct nib_stop_strings *stop);  // leaves none

#endif
