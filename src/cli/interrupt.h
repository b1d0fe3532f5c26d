// Ctrl-C while a model answers: the first asks to stop, a second before the program has reacted ends it.
#ifndef NIB_CLI_INTERRUPT_H
#define NIB_CLI_INTERRUPT_H

#include <stdbool.h>

void interrupt_catch(void); // from now on
bool interrupted(void);     // since the last interrupt_clear
void interrupt_clear(void);

// Waits until `fd` can be read (or is closed); false when Ctrl-C comes first, or has come already.
bool interrupt_wait_readable(int fd);

#endif
