#include "cli/interrupt.h"

#include <errno.h>
#include <poll.h>
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

// The signal may come between the look at `asked` and the wait, or reach another thread: hence the look every 50 ms.
bool interrupt_wait_readable(int fd)
{
    struct pollfd input = {.fd = fd, .events = POLLIN};
    int ready = 0;
    while (!asked && (ready == 0 || (ready < 0 && errno == EINTR)))
        ready = poll(&input, 1, 50);
    return !asked;
}
