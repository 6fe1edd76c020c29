/* SPDX-License-Identifier: MIT */
/*
 * The flags of a program: a table that says of each what it takes and where that goes. Used once, by the
 * program's first process, before anything else. A wrong flag is answered by one sentence on stderr.
 */
#ifndef DEMOS_FLAGS_H
#define DEMOS_FLAGS_H

#include <stddef.h>
#include <stdint.h>

#define FLAGS_MAX 30

enum flag_kind {
    FLAG_SWITCH,    /* takes nothing; bool, set to true */
    FLAG_U64,       /* uint64_t from least to most */
    FLAG_INT,       /* int, the same */
    FLAG_REAL,      /* double from real_least to real_most */
    FLAG_CHOICE,    /* int: which of `choices`, a NULL-terminated list of words */
    FLAG_TEXT,      /* const char *, as it stands in argv; not empty */
    FLAG_FIGURE,    /* the same, a file name that ends in .svg or .png */
    FLAG_DEVICE,    /* int: cpu, cuda (DEVICE_CUDA) or cuda:N (N) */
};

enum { DEVICE_CPU = -2, DEVICE_CUDA = -1 };     /* the second: whichever the program takes */

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
    const char *help;               /* what --help prints */
    const struct flag *flags;       /* at most FLAGS_MAX, without --help and --version */
    size_t count;
};

/* "cpu", "cuda" or "cuda:3", in `text`, which it returns. */
#define FLAGS_DEVICE_BYTES 16
const char *flags_device_name(int device, char text[FLAGS_DEVICE_BYTES]);

/* 0, or 1 if the program has done what was asked (--help, --version), or -1 after a sentence. */
int flags_parse(const struct flags *flags, int argc, char **argv);

/* The sentence: "<program>: ...; see <program> --help". Gives -1. */
int flags_wrong(const struct flags *flags, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
