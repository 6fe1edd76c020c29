/* SPDX-License-Identifier: MIT */
/*
 * What several commands print of a job and of a worker.
 */
#ifndef TOOLS_STAT_DESCRIBE_H
#define TOOLS_STAT_DESCRIBE_H

#include "state.h"

/* A line: rank, name, pid, state, activity; a second one if the worker cannot be read. */
void stat_worker_text(const struct stat_worker *worker);
/* The keys of a job and of a worker, without their brackets. */
void stat_json_job(const struct stat_job *job);
void stat_json_worker(const struct stat_worker *worker);

#endif
