#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t asked;

static void on_interrupt(int number)
{
    if (asked) {
        signal(number, SIG_DFL);
        raise(number);
    }
    asked = 1;
}

void interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = on_interrupt}; // without SA_RESTART
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool interrupted(void)
{
    return asked;
}

void interrupt_clear(void)
{
    asked = 0;
}
