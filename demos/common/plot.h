/* SPDX-License-Identifier: MIT */
/*
 * A figure of lines over whole numbers, drawn by gnuplot.
 */
#ifndef DEMOS_PLOT_H
#define DEMOS_PLOT_H

#include <stddef.h>

struct plot {
    const char *program;    /* prefix of messages on stderr */
    const char *title;
    const char *x_label;
    const char *y_label;
    const char *lines[2];   /* their titles; the second may be NULL */
    size_t points;          /* of each line */
    /* Point i of a line: sets *x, and returns y. */
    double (*point)(const void *context, size_t line, size_t i, int *x);
    const void *context;
};

/* Checks, before the work starts, that a figure can be drawn to this path, which ends in .svg or .png, and creates the
 * file. 0, or -1 after a sentence on stderr. */
int plot_check(const char *program, const char *path);

/* Draws the figure. 0, or -1 after a sentence on stderr. */
int plot_draw(const struct plot *plot, const char *path);

#endif
