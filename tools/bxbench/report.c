/* SPDX-License-Identifier: MIT */
/*
 * A bench's results as a table or as one JSON object, from the same calls, so that the two cannot differ. One report is
 * open at a time; single-threaded, in the launcher.
 */
#include "bxbench.h"

#include <math.h>
#include <stdio.h>

#define COLUMN 14

static struct {
    bool json;
    bool first;             /* the next key of the object needs no comma */
    enum { LINES, HEAD, CELLS } table;
} report;

static void print(const char *key, const char *value, const char *text)
{
    if (report.json)
        printf("%s\"%s\": %s", report.first ? "" : ", ", key, value);
    else if (report.table == LINES)
        printf("  %-22s %*s%s%s\n", key, COLUMN, value, text[0] != '\0' ? "  " : "", text);
    else
        printf(" %*s", COLUMN, report.table == HEAD ? key : value);
    report.first = false;
}

static void write_number(char *text, size_t room, double value, int decimals)
{
    if (isfinite(value))
        snprintf(text, room, "%.*f", decimals, value);
    else
        snprintf(text, room, "%s", report.json ? "null" : "-");
}

void bench_number(const char *key, double value, int decimals, const char *text)
{
    char number[64];

    write_number(number, sizeof number, value, decimals);
    print(key, number, text);
}

void bench_numbers(const char *key, const double *values, int count, int decimals)
{
    char number[64];

    if (report.json)
        print(key, "[", "");
    else
        printf("  %-22s", key);
    for (int i = 0; i < count; i++) {
        write_number(number, sizeof number, values[i], decimals);
        printf("%s%s", !report.json ? " " : i > 0 ? ", " : "", number);
    }
    fputs(report.json ? "]" : "\n", stdout);
}

/* The value needs no escapes in JSON: it is a word of the program's. */
void bench_string(const char *key, const char *value, const char *text)
{
    char quoted[64];

    snprintf(quoted, sizeof quoted, "\"%s\"", value);
    print(key, report.json ? quoted : value, text);
}

void bench_open(const struct bench_options *options, const char *title)
{
    double cpus[BENCH_CPUS_MAX];

    report.json = options->json;
    report.first = true;
    if (report.json) {
        putchar('{');
        bench_string("bench", options->name, "");
    } else {
        printf("%s: %s\n", options->name, title);
    }
    for (int i = 0; i < options->cpu_count; i++)
        cpus[i] = options->cpus[i];
    bench_numbers("cpus", cpus, options->cpu_count, 0);
}

void bench_counts(const struct bench_run *run)
{
    bench_number("slices", (double)run->slices, 0, "of each kind, in turn");
    bench_number("calls", (double)run->calls, 0, "in each, of each caller");
}

void bench_rows(const char *key, int count, void (*row)(const void *context, int index), const void *context)
{
    if (report.json) {
        print(key, "[", "");
    } else {
        report.table = HEAD;
        putchar(' ');
        row(context, 0);
        putchar('\n');
        report.table = CELLS;
    }
    for (int i = 0; i < count; i++) {
        fputs(!report.json ? " " : i > 0 ? ", {" : "{", stdout);
        report.first = true;
        row(context, i);
        putchar(report.json ? '}' : '\n');
    }
    if (report.json)
        putchar(']');
    report.table = LINES;
    report.first = false;
}

void bench_close(void)
{
    if (report.json)
        puts("}");
    fflush(stdout);
}
