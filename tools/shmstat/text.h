/* SPDX-License-Identifier: MIT */
/*
 * Text for people, on stdout: figures with units, names, lines of 80 columns; and the clock that ages come from.
 */
#ifndef TOOLS_STAT_TEXT_H
#define TOOLS_STAT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns static memory that is valid until the eighth call after. */
const char *stat_bytes_text(uint64_t bytes);                /* "1.5 MiB" */
const char *stat_time_text(double seconds);                 /* "1.23 us", "20.1 ms": at most eight characters */
/* A name in at most so many characters; if it is cut, the last two are "..". */
const char *stat_cut_text(const char *name, size_t most);

/* Copies at most bytes - 1 characters, anything unprintable as '?'. */
void stat_printable(char *to, size_t bytes, const char *from, size_t from_bytes);

uint64_t stat_now_ns(int clock);
double stat_since(uint64_t then_ns, int clock);             /* seconds; 0 for a time in the future */

/* Prints words one after the other and begins a new line, indented, before the 80th column. Without a word it prints
 * nothing: the label comes with the first. */
struct stat_flow {
    char label[32];
    int indent;
    int column;                 /* 0: nothing is printed yet */
    bool comma;                 /* comes before the next piece, unless that is the first */
};

void stat_flow_begin(struct stat_flow *flow, const char *label);
/* One piece, which is never broken. */
void stat_flow_add(struct stat_flow *flow, const char *format, ...) __attribute__((format(printf, 2, 3)));
void stat_flow_words(struct stat_flow *flow, const char *text);     /* a sentence, broken between any two words */
void stat_flow_end(struct stat_flow *flow);

#endif
