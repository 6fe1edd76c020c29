/* SPDX-License-Identifier: MIT */
/*
 * The calls in flight of a job, put together from what caller and callee show.
 */
#ifndef TOOLS_STAT_FLIGHT_H
#define TOOLS_STAT_FLIGHT_H

#include "jobs.h"

enum stat_where {
    STAT_QUEUED = 0,    /* at the caller: the ring has no room */
    STAT_IN_RING,       /* unread */
    STAT_INLINE,        /* an inline or async handler runs, with the callee's progress role */
    STAT_POOL,          /* waits for a thread */
    STAT_THREAD,        /* a blocking handler runs */
    STAT_BATCH,         /* waits for other rows */
    STAT_BODY,          /* the batch's body runs */
    STAT_FUTURE,        /* the handler has returned, its future is not done */
    STAT_OBJECT,        /* waits until the object is made that it is called on */
    STAT_ANSWERED,      /* the reply is on its way */
    STAT_REMOTE,        /* it has left for a worker on another host */
    STAT_UNKNOWN,       /* the callee cannot be read */
    STAT_WHERES,
};

struct stat_call {
    int from, to;
    uint64_t id;
    uint32_t function;          /* of the callee's */
    double age_s;
    double left_s;              /* until its deadline; < 0: it has passed */
    bool has_deadline;
    bool given_up;              /* by its caller */
    enum stat_where where;
    uint64_t thread;            /* of THREAD and BODY; 0 if it is not known */
};

/* Whose calls: all, or those of living workers whose counters say that some are in flight. A worker's rows are 32 KiB
 * for each ring: idle workers then cost no such read, however many rings are open. */
enum stat_callers { STAT_ALL_CALLERS, STAT_BUSY_CALLERS };

/* Reads the job's calls; its descriptors must be open. Ages are those at now_ns (CLOCK_MONOTONIC). -ENOMEM. */
int stat_calls_read(struct stat_job *job, enum stat_callers callers, uint64_t now_ns);

const char *stat_where_name(enum stat_where where);     /* "in_ring" */
/* "1-0-65536": caller, callee, id. Valid until the next call. */
const char *stat_call_name(const struct stat_call *call);
/* A function's name, printable; "?" if it is not known. Valid until the next call. */
const char *stat_function_name(const struct stat_job *job, int rank, uint32_t function);

/* The ranks whose rows the batch `function` of worker `rank` waits for: how many, into missing; 0 if it is no batch. */
size_t stat_batch_missing(const struct stat_job *job, int rank, uint32_t function, uint64_t missing[BXI_WORKERS_MAX]);

#endif
