/* SPDX-License-Identifier: MIT */
/*
 * What the subcommands share: finding the jobs that were asked for, reading them, and what encloses a list of jobs.
 */
#ifndef TOOLS_STAT_LIST_H
#define TOOLS_STAT_LIST_H

#include "jobs.h"
#include "row.h"
#include "shmstat.h"

/* What is read of a job besides its control pages. */
enum stat_reads {
    STAT_READ_CALLS = 1,
    STAT_READ_GPUS = 2,
    STAT_READ_OBJECTS = 4,
    STAT_READ_HISTS = 8,
    STAT_READ_UNREAD = 16,
};

/* Finds the jobs that were asked for, and reads none. STAT_FINE; STAT_NOTHING after a line on stderr, if the one asked
 * for does not exist. */
int stat_find(struct stat_jobs *jobs, const struct stat_options *options);
/* Its descriptors stay open. STAT_FINE; STAT_NOTHING after a line on stderr: there was no memory. */
int stat_read(struct stat_job *job, unsigned reads);

/* Prints a job that was read; STAT_FINE, STAT_FOUND, or STAT_NOTHING if nothing of it could be read. */
typedef int (*stat_print_fn)(struct stat_job *job, const struct stat_options *options);
/* All of a subcommand: reads and prints one job after the other. STAT_FOUND if one of them is, STAT_NOTHING if all are
 * or the subject is nowhere. */
int stat_print_jobs(const struct stat_options *options, const char *command, unsigned reads, stat_print_fn print);

/* The same, of one whose JSON is each job with its workers and these parts of them. */
struct stat_command {
    const char *name;
    unsigned reads;
    const struct stat_part *parts;
    void (*text)(const struct stat_job *job);
};
int stat_run_command(const struct stat_command *command, const struct stat_options *options);

#endif
