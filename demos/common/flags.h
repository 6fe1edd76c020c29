/* SPDX-License-Identifier: MIT */
/*
 * The flags of a program: a table that gives for each flag the type of its value and where to store it. Used once, by
 * the program's first process. A wrong flag is answered by one sentence on stderr.
 */
#ifndef DEMOS_FLAGS_H
#define DEMOS_FLAGS_H

#include <stddef.h>
#include <stdint.h>

#define FLAGS_MAX 30

enum flag_kind {
    FLAG_SWITCH,    /* takes no value; sets a bool to true */
    FLAG_U64,       /* uint64_t from least to most */
    FLAG_INT,       /* int from least to most */
    FLAG_REAL,      /* double from real_least to real_most */
    FLAG_CHOICE,    /* int: index in `choices`, a NULL-terminated list of words */
    FLAG_TEXT,      /* const char *, pointing into argv: a file name; not empty */
    FLAG_LIST,      /* likewise, any text: the program reads the list */
    FLAG_FIGURE,    /* const char *, a file name that ends in .svg or .png */
    FLAG_DEVICE,    /* int: cpu (DEVICE_CPU), cuda (DEVICE_CUDA) or cuda:N (N) */
};

enum { DEVICE_CPU = -2, DEVICE_CUDA = -1 };     /* DEVICE_CUDA: the program chooses the GPU */

struct flag {
    const char *name;               /* without the dashes */
    enum flag_kind kind;
    void *value;                    /* written only if the flag is given */
    uint64_t least;
    uint64_t most;
    double real_least;
    double real_most;
    const char *const *choices;
};

struct flags {
    const char *program;
    const char *help;               /* the text of --help */
    const struct flag *flags;       /* at most FLAGS_MAX, without --help and --version */
    size_t count;
};

/* Writes "cpu", "cuda" or "cuda:3" to `text`, and returns it. */
#define FLAGS_DEVICE_BYTES 16
const char *flags_device_name(int device, char text[FLAGS_DEVICE_BYTES]);

/* 0; 1: --help or --version is done, and the program ends; -1 after a sentence on stderr. */
int flags_parse(const struct flags *flags, int argc, char **argv);

/* Prints "<program>: ...; see <program> --help" to stderr. Returns -1. */
int flags_wrong(const struct flags *flags, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
