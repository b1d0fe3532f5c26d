// Files are mapped, so a disk that cannot read a page, or a file that is cut short meanwhile, shows as SIGBUS.
#ifndef NIB_CLI_BUS_ERROR_H
#define NIB_CLI_BUS_ERROR_H

// From here on such a signal ends the process with a line on stderr and exit code 1.
void explain_bus_errors(void);

#endif
