/* SPDX-License-Identifier: MIT */
/*
 * The subcommands of shmstat, a file each of the same name (top.c, why.c, ...), and the options that main gives them.
 */
#ifndef TOOLS_SHMSTAT_H
#define TOOLS_SHMSTAT_H

#include <stdbool.h>

enum stat_exit {
    STAT_FINE = 0,
    STAT_FOUND = 1,             /* check: violations; reap: something could not be removed */
    STAT_USAGE = 2,
    STAT_NOTHING = 3,           /* no such job, or nothing of it could be read */
};

/* Of top. Numbers are 0 if they are not given. */
struct stat_top_options {
    bool batch, once;           /* text on stdout, and no keys */
    double count;               /* the same, so many pictures; else until a signal */
    double width;               /* 0: the terminal's, else 80 */
    double interval_s;          /* 0: 1 s */
    double stuck_s;             /* 0: 10 s */
    const char *view, *sort, *filter;
};

struct stat_options {
    const char *select;         /* a job's name, or name.instance; NULL for all */
    const char *subject;        /* of why: a worker's name or rank, or a call */
    bool json;
    bool prometheus;
    bool yes;
    struct stat_top_options top;
};

/* Each returns an exit status. */
int stat_ls(const struct stat_options *options);
int stat_show(const struct stat_options *options);
int stat_check(const struct stat_options *options);
int stat_reap(const struct stat_options *options);
int stat_calls(const struct stat_options *options);
int stat_rrefs(const struct stat_options *options);
int stat_why(const struct stat_options *options);
int stat_gpu(const struct stat_options *options);
int stat_top(const struct stat_options *options);
int stat_prometheus(const struct stat_options *options);    /* show --prometheus */

#endif
