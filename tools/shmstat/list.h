/* SPDX-License-Identifier: MIT */
/*
 * What the commands do first and last.
 */
#ifndef TOOLS_STAT_LIST_H
#define TOOLS_STAT_LIST_H

#include "jobs.h"
#include "shmstat.h"

/* Finds the jobs that were asked for, and reads none. STAT_FINE; STAT_NOTHING after a line on stderr, if the one asked
 * for does not exist. */
int stat_find(struct stat_jobs *jobs, const struct stat_options *options);
/* What stands before and behind a list of jobs. */
void stat_list_open(const struct stat_jobs *jobs, const struct stat_options *options, const char *command);
void stat_list_close(const struct stat_options *options);
/* stat_find and stat_list_open; after STAT_FINE, stat_list_close and stat_jobs_free. */
int stat_list_begin(struct stat_jobs *jobs, const struct stat_options *options, const char *command);
void stat_list_end(struct stat_jobs *jobs, const struct stat_options *options);
/* A line on stderr: there was no memory to read that job. STAT_NOTHING. */
int stat_no_memory(const struct stat_job *job);

#endif
