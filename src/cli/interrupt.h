// Ctrl-C while a model answers: the first asks to stop, a second before the program has reacted ends it.
#ifndef NIB_CLI_INTERRUPT_H
#define NIB_CLI_INTERRUPT_H

#include <stdbool.h>

void interrupt_catch(void); // from now on SIGINT is counted; reads of a terminal return early
bool interrupted(void);     // since the last interrupt_clear
void interrupt_clear(void);

#endif
