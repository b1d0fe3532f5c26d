#include "cli/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define WIDTH 720.0
#define HEIGHT 420.0
#define LEFT 64.0
#define RIGHT 24.0
#define TOP 48.0
#define BOTTOM 56.0

struct frame {
    double x_low, x_high, y_high;
};

static double place_x(const struct frame *f, double x)
{
    double span = log(f->x_high) - log(f->x_low);
    double at = span > 0 ? (log(x) - log(f->x_low)) / span : 0.5;
    return LEFT + at * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct frame *f, double y)
{
    return HEIGHT - BOTTOM - y / f->y_high * (HEIGHT - TOP - BOTTOM);
}

// 1, 2 or 5 times a power of ten, so that about five steps reach `high`.
static double tick_step(double high)
{
    double power = pow(10, floor(log10(high / 5))), rest = high / 5 / power;
    return power * (rest > 5 ? 10 : rest > 2 ? 5 : rest > 1 ? 2 : 1);
}

static void draw_axes(FILE *out, const struct frame *f, const double *x, int n, const char *x_label,
                      const char *y_label)
{
    double step = tick_step(f->y_high);
    for (double y = 0; y <= f->y_high * 1.0001; y += step)
        fprintf(out,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                LEFT, place_y(f, y), WIDTH - RIGHT, place_y(f, y), LEFT - 8, place_y(f, y) + 4, y);
    for (int i = 0; i < n; i++)
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n", place_x(f, x[i]),
                HEIGHT - BOTTOM + 18, x[i]);
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 12, x_label);
    fprintf(out, "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2, y_label);
}

static void draw_line(FILE *out, const struct frame *f, const double *x, int n, const struct plot_line *line,
                      int index)
{
    static const char *const colors[] = {"#777", "#0b62a4", "#c0392b", "#2e8b57", "#8e44ad"};
    const char *color = colors[index % 5];
    fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", color,
            line->dashed ? " stroke-dasharray=\"6 4\"" : "");
    for (int i = 0; i < n; i++)
        if (isfinite(line->y[i]))
            fprintf(out, "%.1f,%.1f ", place_x(f, x[i]), place_y(f, line->y[i]));
    double key_y = TOP - 14, key_x = LEFT + 8 + 160 * index;
    fprintf(out,
            "\"/>\n<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>"
            "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            key_x, key_y, key_x + 24, key_y, color, line->dashed ? " stroke-dasharray=\"6 4\"" : "", key_x + 30,
            key_y + 4, line->name);
}

nib_status plot_write(const char *path, const char *title, const char *x_label, const char *y_label,
                      const double *x, int n, const struct plot_line *lines, int n_lines, struct nib_error *err)
{
    struct frame frame = {.x_low = x[0], .x_high = x[n - 1], .y_high = 1e-9};
    for (int l = 0; l < n_lines; l++)
        for (int i = 0; i < n; i++)
            if (isfinite(lines[l].y[i]) && lines[l].y[i] > frame.y_high)
                frame.y_high = lines[l].y[i];
    FILE *out = fopen(path, "w");
    if (!out)
        return nib_fail(err, NIB_ERR_IO, "%s: %s", path, strerror(errno));
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
            "<text x=\"%.1f\" y=\"20\" font-size=\"15\">%s</text>\n",
            WIDTH, HEIGHT, LEFT, title);
    draw_axes(out, &frame, x, n, x_label, y_label);
    for (int l = 0; l < n_lines; l++)
        draw_line(out, &frame, x, n, &lines[l], l);
    fprintf(out, "</svg>\n");
    bool written = !ferror(out);
    if (fclose(out) != 0 || !written)
        return nib_fail(err, NIB_ERR_IO, "%s: could not be written", path);
    return NIB_OK;
}
