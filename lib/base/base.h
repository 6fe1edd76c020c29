/* SPDX-License-Identifier: MIT */
/*
 * The private header of the room base, which every room of lib/ uses: struct bx_job, with the fields that never change
 * and a pointer to each room's part; the first checks of public functions; clocks; errors. lib/README.md is the map.
 *
 * Fields are marked by who may access them:
 *     start   written before bx_job_start returns, and never afterwards
 *     lock    under job->run->lock
 *     role    by the thread that holds the progress role
 */
#ifndef BXI_BASE_H
#define BXI_BASE_H

#include "boxcar.h"

#include "compiler.h"
#include "lock.h"
#include "shm/atomic.h"
#include "shm/fork.h"
#include "shm/layout.h"
#include "shm/segment.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BXI_TEXT_BYTES 512          /* of an error's sentence */

/* ---- The job ------------------------------------------------------------------------------------- */

struct bxi_boot;
struct bxi_device;
struct bxi_lend;
struct bxi_net;
struct bxi_observe;
struct bxi_rpc;
struct bxi_rrefs;
struct bxi_run;

enum bxi_phase { BXI_CREATED = 1, BXI_STARTED, BXI_STOPPING, BXI_STOPPED };

/* A worker in this process. Each part is defined in the header of its room, so a room reaches its own part and those
 * of the rooms below it. */
struct bx_job {
    struct bxi_run *run;                        /* start, all pointers: run/run.h */
    struct bxi_rpc *rpc;                        /* rpc/rpc.h */
    struct bxi_rrefs *rrefs;                    /* rref/rref.h */
    struct bxi_lend *lend;                      /* lend/lend.h */
    struct bxi_device *device;                  /* device/device.h */
    struct bxi_observe *observe;                /* observe/observe.h */
    struct bxi_boot *boot;                      /* job/job.h */
    struct bxi_net *net;                        /* net/net.h; NULL: all workers are on this host */
    struct bxi_control *control;                /* the segment's; NULL before bx_job_start */
    bxi_a64 *counters;                          /* the segment's; observe->private_counters before */
    int rank;                                   /* start, all below */
    int world_size;
    int root;                                   /* the lowest rank on this host: 0, unless there are several hosts */
    uint32_t fork_generation;
    uint64_t serial;                            /* of the job within the process */
    uint64_t instance;
    struct bxi_segment segment;
    struct bx_options options;                  /* defaults filled in; strings are the job's own */
    char job_name[BXI_NAME_BYTES];
    char name[BXI_NAME_BYTES];

    _Alignas(BXI_LINE) bxi_a32 phase;           /* enum bxi_phase; from STARTED on lock, read without */
};

/* ---- check.c: what public functions check first ---------------------------------------------------- */

/* The job belongs to a parent process. */
static inline bool bxi_job_is_forked(const struct bx_job *job)
{
    /* Relaxed: written in a child while it has one thread. */
    return bxi_load_relaxed(&bxi_forks) != job->fork_generation;
}
/* 0, or -EINVAL (NULL), BX_E_FORKED, BX_E_STATE, BX_E_SHUTDOWN with a sentence. */
int bxi_job_check(const struct bx_job *job);
/* The same for functions that are allowed in every phase: 0, -EINVAL, BX_E_FORKED. */
int bxi_job_check_any(const struct bx_job *job);
bool bxi_name_is_valid(const char *name);       /* of a job or a worker */
/* 1; 0: the variable is not set, or "", and value stays; -EINVAL with a sentence. */
int bxi_number_from_environment(const char *variable, uint64_t least, uint64_t most, uint64_t *value);

/* ---- clock.c --------------------------------------------------------------------------------------- */

uint64_t bxi_now_ns(void);                      /* CLOCK_MONOTONIC */
uint64_t bxi_coarse_ns(void);                   /* CLOCK_MONOTONIC_COARSE: cheap, up to 10 ms behind */
uint64_t bxi_thread_ns(void);                   /* CLOCK_THREAD_CPUTIME_ID: a system call */
uint64_t bxi_deadline_ns(uint64_t timeout_ns);  /* absolute; BX_FOREVER stays */

/* ---- error.c -------------------------------------------------------------------------------------- */

/* A public function was given NULL for an argument that it needs: -EINVAL with a sentence. */
int bxi_null(const char *function, const char *what) __attribute__((cold));
void bxi_clear_error(void);                     /* this thread's sentence becomes "" */
/* Keeps the thread's sentence while the engine runs code that the program did not call: handlers, callbacks, passes.
 * Between enter and leave the thread has another sentence, "" at first. Enter and leave nest. */
extern _Thread_local uint32_t bxi_error_level, bxi_error_owner;     /* depth; the level of the sentence */
void bxi_error_restore(void);                   /* the slow half of leave */
static inline void bxi_error_enter(void)
{
    bxi_error_level++;
}
static inline void bxi_error_leave(void)
{
    if (bxi_error_owner > --bxi_error_level)
        bxi_error_restore();
}
int bxi_fail_v(int code, const char *format, va_list args);
/* To the log hook, and to stderr if BX_LOG asks for the level. job says whose message it is; NULL: of the process. */
void bxi_log(const struct bx_job *job, int level, const char *format, ...) BX_PRINTF(3, 4);
int bxi_log_from_environment(void);             /* reads BX_LOG. -EINVAL with a sentence: it is none of its values */
bool bxi_log_prints(int level);                 /* BX_LOG asks for the level */
char *bxi_text(const char *format, ...) BX_PRINTF(1, 2);   /* malloc'ed; NULL: no memory */
/* A name that a program gave, shortened for a sentence: an overlong one is cut off and its length is added. */
struct bxi_brief {
    char text[80];
};
struct bxi_brief bxi_brief(const char *name);

#endif
