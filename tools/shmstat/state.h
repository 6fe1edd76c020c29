/* SPDX-License-Identifier: MIT */
/*
 * What follows from the private copies of a job (jobs.h).
 */
#ifndef TOOLS_STAT_STATE_H
#define TOOLS_STAT_STATE_H

#include "jobs.h"

/* The next worker of the job after that one, by rank, or the first after NULL: of all that were found, of those that
 * are READABLE. NULL behind the last. */
struct stat_worker *stat_next(const struct stat_job *job, const struct stat_worker *worker);
struct stat_worker *stat_next_reader(const struct stat_job *job, const struct stat_worker *worker);
const struct stat_worker *stat_reader(const struct stat_job *job, uint32_t rank);    /* NULL: not READABLE */
bool stat_worker_alive(const struct stat_worker *worker);
/* Which process of its rank it is in the job, from 1; 0 if it is not known. */
uint32_t stat_generation(const struct stat_worker *worker);
/* Its rank had a process before, and it has not joined the job yet, which runs. */
bool stat_is_joining(const struct stat_worker *worker);
bool stat_is_stopped(const struct stat_worker *worker);      /* by a signal, or a debugger */
bool stat_job_alive(const struct stat_job *job);
const char *stat_job_state(const struct stat_job *job);
/* The number of workers, from the first readable one; else as many as were found. */
int stat_job_size(const struct stat_job *job);
/* The ranks that have not come, of a job that lives and is starting: how many, into missing. Else 0. */
size_t stat_job_missing(const struct stat_job *job, uint64_t missing[BXI_WORKERS_MAX]);
/* "rank 1 has not come", "ranks 1, 3, 4 have not come"; false if none is missing. */
bool stat_job_missing_text(const struct stat_job *job, char *text, size_t bytes);
uint64_t stat_job_started_ns(const struct stat_job *job);       /* CLOCK_REALTIME; 0 if it is not known */
const char *stat_state_name(uint32_t state);
const char *stat_who_name(uint64_t armed);
const char *stat_kind_name(uint32_t kind);
/* What its process does: "awake", "spinning", "asleep", "stopped", "dead"; "unknown" if it cannot be read. */
const char *stat_activity(const struct stat_worker *worker);
/* Threads of its pool that run a handler now. */
int stat_pool_busy(const struct stat_worker *worker);
const char *stat_peer_name(const struct stat_job *job, int rank);       /* "": it is not known */
/* "rank 3" for a worker whose name is not known. Valid until the fourth call after. */
const char *stat_rank_name(const struct stat_job *job, int rank);

/* Bytes of ring `to` that the worker wrote and the peer has not given free; false if the peer cannot be read. */
bool stat_ring_fill(const struct stat_job *job, const struct stat_worker *worker, int to, uint64_t *fill);

#endif
