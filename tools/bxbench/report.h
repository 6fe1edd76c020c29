/* SPDX-License-Identifier: MIT */
/*
 * What a bench reports.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "bxbench.h"

#include <stddef.h>

/* A table, or with --json an object, from the same calls. `text` explains the key in the table. A value that is not
 * finite was not measured: "-" or null. */
void bench_report_open(const struct bench_options *options, const char *title);
void bench_report_number(const char *key, double value, int decimals, const char *text);
void bench_report_numbers(const char *key, const double *values, size_t count, int decimals);
void bench_report_string(const char *key, const char *value, const char *text);
/* A list of objects with the same keys, a row of the table each; only numbers, whose text is unused. */
void bench_report_rows_open(const char *key);
void bench_report_row_open(void);
void bench_report_row_close(void);
void bench_report_rows_close(void);
void bench_report_close(void);

#endif
