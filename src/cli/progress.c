#include "cli/progress.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 28
#define FIRST_AFTER 0.5 // seconds: shorter work shows nothing
#define REDRAW_EVERY 0.1

double nib_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void nib_progress_begin(struct nib_progress *progress, const char *label, int64_t total, const char *unit)
{
    *progress = (struct nib_progress){.label = label, .total = total, .unit = unit, .started = nib_seconds()};
    progress->drawn = progress->started + FIRST_AFTER - REDRAW_EVERY;
}

void nib_progress_update(struct nib_progress *progress, int64_t done)
{
    double now = nib_seconds(), elapsed = now - progress->started;
    if (progress->total <= 0 || now - progress->drawn < REDRAW_EVERY || !isatty(STDERR_FILENO))
        return;
    progress->drawn = now;
    progress->visible = true;
    double share = (double)done / (double)progress->total, rate = (double)done / elapsed;
    int filled = (int)(share * BAR_WIDTH);
    fprintf(stderr, "\r\033[K%s ", progress->label);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputs(i < filled ? "━" : "─", stderr);
    fprintf(stderr, " %3.0f%%  %.0f %s/s", 100 * share, rate, progress->unit);
    if (done > 0 && share < 1)
        fprintf(stderr, "  %.0f s left", elapsed * (1 - share) / share);
    fflush(stderr);
}

bool nib_progress_of_bytes(void *progress, uint64_t bytes, uint64_t total)
{
    struct nib_progress *bar = progress;
    if (!bar->unit)
        nib_progress_begin(bar, bar->label, (int64_t)(total >> 20), "MiB");
    nib_progress_update(bar, (int64_t)(bytes >> 20));
    return true;
}

void nib_progress_end(struct nib_progress *progress)
{
    if (progress->visible)
        fputs("\r\033[K", stderr);
    progress->visible = false;
}
