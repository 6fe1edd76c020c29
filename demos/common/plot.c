/* SPDX-License-Identifier: MIT */
/*
 * Draws lines by piping a script to gnuplot. Run by a program's first process: the check before its work, the drawing
 * after it.
 */
#include "plot.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int plot_check(const char *program, const char *path)
{
    int file;

    if (system("command -v gnuplot >/dev/null") != 0) {
        fprintf(stderr, "%s: --plot needs gnuplot, which is not installed; it comes with the package "
                "gnuplot-nox (Debian, Ubuntu) or gnuplot (elsewhere)\n", program);
        return -1;
    }
    file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) {
        fprintf(stderr, "%s: the figure %s cannot be written: %s\n", program, path, strerror(errno));
        return -1;
    }
    close(file);
    return 0;
}

/* In gnuplot's single quotes only the quote is special; it is doubled. */
static void write_quoted(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputc('\'', script);
        fputc(*text, script);
    }
    fputc('\'', script);
}

static void write_range(FILE *script, const struct plot *plot)
{
    int least = INT_MAX, most = INT_MIN;

    for (size_t i = 0; i < plot->points; i++) {
        int x = 0;

        plot->point(plot->context, 0, i, &x);
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    fprintf(script, "set xrange [%.1f:%.1f]\nset xtics %d\n", least - 0.5, most + 0.5,
            1 + (most - least) / 16);
}

static void write_script(FILE *script, const struct plot *plot, const char *path)
{
    const char *const label[][2] = { { "\nset title ", plot->title }, { "\nset xlabel ", plot->x_label },
                                     { "\nset ylabel ", plot->y_label } };
    size_t line_count = plot->lines[1] != NULL ? 2 : 1;

    if (strcmp(path + strlen(path) - 4, ".svg") == 0)
        fputs("set terminal svg size 800,500 background 'white'\n", script);
    else
        fputs("if (strstrt(GPVAL_TERMINALS, 'pngcairo')) { set terminal pngcairo size 800,500 } "
              "else { set terminal png size 800,500 }\n", script);
    fputs("set output ", script);
    write_quoted(script, path);
    for (size_t i = 0; i < sizeof(label) / sizeof(label[0]); i++) {
        fputs(label[i][0], script);
        write_quoted(script, label[i][1]);
    }
    fputs("\nset key outside bottom center horizontal\nset grid y\nset yrange [0:*]\n", script);
    write_range(script, plot);
    for (size_t line = 0; line < line_count; line++) {
        fprintf(script, "$line%zu << EOD\n", line);
        for (size_t i = 0; i < plot->points; i++) {
            int x = 0;
            double y = plot->point(plot->context, line, i, &x);

            fprintf(script, "%d %.6f\n", x, y);
        }
        fputs("EOD\n", script);
    }
    for (size_t line = 0; line < line_count; line++) {
        fprintf(script, "%s$line%zu using 1:2 with linespoints lw 2 pt 7 title ", line == 0 ? "plot " : ", ",
                line);
        write_quoted(script, plot->lines[line]);
    }
    fputs("\nset output\n", script);
}

int plot_draw(const struct plot *plot, const char *path)
{
    if (plot->points == 0) {
        fprintf(stderr, "%s: there is nothing to draw\n", plot->program);
        return -1;
    }
    /* gnuplot may end before it has read the whole script. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *script = popen("gnuplot", "we");
    int status = -1;

    if (script != NULL) {
        write_script(script, plot, path);
        status = pclose(script);
    }
    signal(SIGPIPE, before);
    if (status != 0) {
        fprintf(stderr, "%s: gnuplot did not draw %s\n", plot->program, path);
        return -1;
    }
    return 0;
}
