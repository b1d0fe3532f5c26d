// A small line chart as SVG.
#ifndef NIB_CLI_PLOT_H
#define NIB_CLI_PLOT_H

#include <stdbool.h>

#include "nibble/status.h"

struct plot_line {
    const char *name;
    const double *y; /* [n]; what is not finite is left out */
    bool dashed;
};

// x is drawn on a logarithmic scale with a tick at each value, y from zero.
nib_status plot_write(const char *path, const char *title, const char *x_label, const char *y_label,
                      const double *x /* [n], ascending, > 0 */, int n, const struct plot_line *lines, int n_lines,
                      struct nib_error *err);

#endif
