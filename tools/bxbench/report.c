/* SPDX-License-Identifier: MIT */
/*
 * A bench's results as a table or as one JSON object, from the same calls, so that the two cannot differ. One report is
 * open at a time; single-threaded, in the launcher.
 */
#include "report.h"

#include "bxbench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COLUMN 14

static struct {
    bool json;
    bool first;             /* the next key or row needs no comma */
    bool in_rows;
    int row;
    size_t head_bytes;
    size_t line_bytes;
    char head[512];         /* of the table of rows: printed with the first row, once all keys came */
    char line[512];
} report;

static void key_of(const char *key)
{
    printf("%s\"%s\": ", report.first ? "" : ", ", key);
    report.first = false;
}

static void print_string(const char *value)
{
    putchar('"');
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\')
            putchar('\\');
        if ((unsigned char)*value >= ' ')
            putchar(*value);
    }
    putchar('"');
}

static void print_number(double value, int decimals)
{
    if (isfinite(value))
        printf("%.*f", decimals, value);
    else
        fputs("null", stdout);
}

void bench_report_open(const struct bench_options *options, const char *title)
{
    report.json = options->json;
    report.first = true;
    if (report.json)
        putchar('{');
    else
        printf("%s: %s\n", options->name, title);
    bench_report_string("bench", options->name, NULL);

    double cpus[BENCH_CPUS_MAX];

    for (int i = 0; i < options->cpu_count; i++)
        cpus[i] = options->cpus[i];
    bench_report_numbers("cpus", cpus, (size_t)options->cpu_count, 0);
}

static void cell(char *buffer, size_t *bytes, const char *text)
{
    size_t room = sizeof report.head - *bytes;
    int added = snprintf(buffer + *bytes, room, " %*s", COLUMN, text);

    if (added > 0)
        *bytes += (size_t)added < room ? (size_t)added : room - 1;
}

static void number_in_row(const char *key, double value, int decimals)
{
    char text[64] = "-";

    if (isfinite(value))
        snprintf(text, sizeof text, "%.*f", decimals, value);
    if (report.row == 0)
        cell(report.head, &report.head_bytes, key);
    cell(report.line, &report.line_bytes, text);
}

void bench_report_number(const char *key, double value, int decimals, const char *text)
{
    if (report.json) {
        key_of(key);
        print_number(value, decimals);
    } else if (report.in_rows) {
        number_in_row(key, value, decimals);
    } else if (isfinite(value)) {
        printf("  %-22s %*.*f  %s\n", key, COLUMN, decimals, value, text != NULL ? text : "");
    } else {
        printf("  %-22s %*s  %s\n", key, COLUMN, "-", text != NULL ? text : "");
    }
}

void bench_report_numbers(const char *key, const double *values, size_t count, int decimals)
{
    if (report.json) {
        key_of(key);
        putchar('[');
    } else {
        printf("  %-22s", key);
    }
    for (size_t i = 0; i < count; i++) {
        fputs(report.json ? (i > 0 ? ", " : "") : " ", stdout);
        print_number(values[i], decimals);
    }
    fputs(report.json ? "]" : "\n", stdout);
}

void bench_report_string(const char *key, const char *value, const char *text)
{
    if (report.json) {
        key_of(key);
        print_string(value);
    } else if (text != NULL) {
        printf("  %-22s %*s  %s\n", key, COLUMN, value, text);
    }
}

void bench_report_rows_open(const char *key)
{
    if (report.json) {
        key_of(key);
        putchar('[');
    }
    report.in_rows = true;
    report.row = 0;
    report.head_bytes = 0;
}

void bench_report_row_open(void)
{
    if (report.json)
        fputs(report.row > 0 ? ", {" : "{", stdout);
    report.first = true;
    report.line_bytes = 0;
}

void bench_report_row_close(void)
{
    if (report.json) {
        putchar('}');
    } else {
        if (report.row == 0)
            printf(" %s\n", report.head);
        printf(" %s\n", report.line);
    }
    report.row++;
}

void bench_report_rows_close(void)
{
    if (report.json)
        putchar(']');
    report.in_rows = false;
    report.first = false;
}

void bench_report_close(void)
{
    if (report.json)
        puts("}");
    fflush(stdout);
}
