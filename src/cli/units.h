// Numbers as people read them.
#ifndef NIB_CLI_UNITS_H
#define NIB_CLI_UNITS_H

#include <stddef.h>
#include <stdint.h>

struct size_text {
    char text[24];
};

// "512 B", "1.5 KiB", "12.6 MiB", "60.8 GiB".
struct size_text size_text(uint64_t bytes);

#endif
