#include "cli/units.h"

#include <stdio.h>

struct size_text size_text(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct size_text size;
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(size.text, sizeof size.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return size;
}
