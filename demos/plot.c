/* SPDX-License-Identifier: MIT */
/*
 * Draws seconds over world size, a line for each mode, by handing gnuplot a script. Run by the
 * launcher: the check before training, so that nobody trains for a figure that cannot be drawn.
 */
#include "reinforce.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_in_path(const char *program)
{
    const char *path = getenv("PATH");
    char *copy = strdup(path != NULL ? path : ""), *rest = NULL;
    bool found = false;

    for (char *dir = copy == NULL ? NULL : strtok_r(copy, ":", &rest); dir != NULL && !found;
         dir = strtok_r(NULL, ":", &rest)) {
        char file[PATH_MAX];
        int length = snprintf(file, sizeof(file), "%s/%s", dir, program);

        found = length > 0 && (size_t)length < sizeof(file) && access(file, X_OK) == 0;
    }
    free(copy);
    return found;
}

/* Without creating it: a run that is interrupted leaves no empty figure behind. */
static bool is_writable(const char *path)
{
    struct stat status;
    char copy[PATH_MAX];

    if (stat(path, &status) == 0) {
        errno = S_ISDIR(status.st_mode) ? EISDIR : 0;
        return errno == 0 && access(path, W_OK) == 0;
    }
    if (errno != ENOENT)
        return false;
    if (strlen(path) >= sizeof(copy)) {
        errno = ENAMETOOLONG;
        return false;
    }
    strcpy(copy, path);
    return access(dirname(copy), W_OK) == 0;
}

int reinforce_plot_check(const char *path)
{
    if (!is_in_path("gnuplot")) {
        fputs("reinforce: --plot needs gnuplot, which is not installed; it comes with the package "
              "gnuplot-nox (Debian, Ubuntu) or gnuplot (elsewhere)\n", stderr);
        return -1;
    }
    if (!is_writable(path)) {
        fprintf(stderr, "reinforce: the figure %s cannot be written: %s\n", path, strerror(errno));
        return -1;
    }
    return 0;
}

/* gnuplot's single quotes: nothing is special inside but the quote, which is doubled. */
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

static void write_script(FILE *script, const char *path, const struct reinforce_outcome *outcomes,
                         size_t count)
{
    static const char *const TITLE[REINFORCE_MODES] = { "batch", "no batch" };
    int least = outcomes[0].world_size, most = outcomes[count - 1].world_size;
    const char *separator = "plot ";

    if (strcmp(path + strlen(path) - 4, ".svg") == 0)
        fputs("set terminal svg size 800,500 background 'white'\n", script);
    else
        fputs("if (strstrt(GPVAL_TERMINALS, 'pngcairo')) { set terminal pngcairo size 800,500 } "
              "else { set terminal png size 800,500 }\n", script);
    fputs("set output ", script);
    write_quoted(script, path);
    fputs("\nset title 'Batched CartPole: one agent, the others observers'\n"
          "set xlabel 'world size'\nset ylabel 'seconds'\nset key top left\n"
          "set grid y\nset yrange [0:*]\n", script);
    fprintf(script, "set xrange [%d.5:%d.5]\nset xtics %d\n", least - 1, most,
            1 + (most - least) / 16);
    for (int mode = 0; mode < REINFORCE_MODES; mode++) {
        fprintf(script, "$mode%d << EOD\n", mode);
        for (size_t i = 0; i < count; i++) {
            const struct reinforce_timing *timing = &outcomes[i].timing[mode];

            if (timing->ran)
                fprintf(script, "%d %.6f\n", outcomes[i].world_size, timing->seconds);
        }
        fputs("EOD\n", script);
    }
    for (int mode = 0; mode < REINFORCE_MODES; mode++) {
        if (!outcomes[0].timing[mode].ran)
            continue;
        fprintf(script, "%s$mode%d using 1:2 with linespoints lw 2 pt 7 title '%s'", separator,
                mode, TITLE[mode]);
        separator = ", ";
    }
    fputs("\nset output\n", script);
}

int reinforce_plot(const char *path, const struct reinforce_outcome *outcomes, size_t count)
{
    /* gnuplot may end before it has read everything. */
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    FILE *script = popen("gnuplot", "we");
    int status = -1;

    if (script != NULL) {
        write_script(script, path, outcomes, count);
        status = pclose(script);
    }
    signal(SIGPIPE, before);
    if (status != 0) {
        fprintf(stderr, "reinforce: gnuplot did not draw %s\n", path);
        return -1;
    }
    return 0;
}
