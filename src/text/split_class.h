// Translating the parts of a split pattern that stand for one character: escapes and classes.
#ifndef NIB_TEXT_SPLIT_CLASS_H
#define NIB_TEXT_SPLIT_CLASS_H

#include "text/tokenizer_parts.h"

struct nib_pattern_reader {
    const char *pattern; // [size] valid UTF-8
    size_t size, at;
    enum nib_regex_dialect dialect;
    struct nib_bytes *out;
    struct nib_error *err;
};

// split_pattern.c
bool nib_pattern_begins(const struct nib_pattern_reader *reader, const char *prefix);
nib_status nib_pattern_refuse(const struct nib_pattern_reader *reader, const char *what);

// Reads the escape sequence at the reader, one that may also stand in a class, and appends its translation to `out`.
// *categories, unless NULL, becomes the general categories it stands for, one bit each, or 0 if it is something else.
nib_status nib_pattern_escape(struct nib_pattern_reader *reader, struct nib_bytes *out, uint32_t *categories);

// The items of a class equal to \w.
const char *nib_pattern_word_items(const struct nib_pattern_reader *reader, bool in_class);

// Reads the class at the reader's '['.
nib_status nib_pattern_class(struct nib_pattern_reader *reader);

#endif
