/* SPDX-License-Identifier: MIT */
/*
 * The rows (row.h) of a job, of a worker and of its parts, for all forms of several subcommands.
 *
 * Of the functions with an index: a worker that is not READABLE has none of these rows.
 */
#ifndef TOOLS_STAT_DESCRIBE_H
#define TOOLS_STAT_DESCRIBE_H

#include "row.h"
#include "state.h"

/* One row each. The job; the worker, READABLE or not; all counters; those of device memory. */
int stat_job_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
int stat_worker_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
int stat_counter_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
int stat_gpu_counter_row(const struct stat_job *job, const struct stat_worker *worker, int index,
                         struct stat_row *row);
int stat_pool_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
int stat_arena_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);

/* By function index; by peer: rings that are open, loans with peers to whom anything was ever lent or borrowed. */
int stat_function_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
int stat_ring_row(const struct stat_job *job, const struct stat_worker *worker, int to, struct stat_row *row);
int stat_loan_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row);

/* Workers that are not READABLE, by rank: "rank" and "problem". */
int stat_problem_row(const struct stat_job *job, const struct stat_worker *none, int rank, struct stat_row *row);

/* A job as an object with the list "workers", of which the READABLE ones have these parts besides. */
void stat_job_json(const struct stat_job *job, const struct stat_part *parts);
/* "job NAME.INSTANCE: STATE", without the end of the line. */
void stat_job_text(const struct stat_job *job);
/* A line that says why the worker cannot be read; one for each of the job that cannot. */
void stat_problem_text(const struct stat_worker *worker);
void stat_problems_text(const struct stat_job *job);
/* A blank line and one with rank, name, pid, state and activity of each worker; below it, these parts of a READABLE
 * one, or why it cannot be read. */
void stat_workers_text(const struct stat_job *job, const struct stat_part *parts);

#endif
