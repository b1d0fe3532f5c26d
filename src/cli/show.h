// An answer on the terminal as it comes: what is said on stdout, reasoning on stderr, so that a pipe gets the answer
// alone. On a terminal reasoning is dim, and control characters (a model may write any) are made harmless.
#ifndef NIB_CLI_SHOW_H
#define NIB_CLI_SHOW_H

#include "nibble/chat.h"

struct show {
    bool silent;         // print nothing
    bool hide_reasoning; // or not that
    bool open, reasoning, dim;
    char last; // byte written in this message
};

void show_begin(struct show *show, const struct nib_message *message);
void show_text(struct show *show, struct nib_text text);
void show_end(struct show *show);

#endif
