#include "cli/bus_error.h"

#include <signal.h>
#include <unistd.h>

static void on_bus_error(int number)
{
    (void)number;
    static const char text[] =
        "nibble: the system could not read a page of a file (a disk error, or a file that was cut "
        "short meanwhile)\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(1);
}

void explain_bus_errors(void)
{
    signal(SIGBUS, on_bus_error);
}
