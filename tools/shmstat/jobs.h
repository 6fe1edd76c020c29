/* SPDX-License-Identifier: MIT */
/*
 * The jobs of this user, found by their names in /dev/shm, and private copies of what their workers show.
 *
 * Everything is read with pread into memory of this process: a segment that is truncated meanwhile is a short read and
 * not a SIGBUS. Nothing of it is trusted: an index, a length or a text is checked before it is used. Nothing is written
 * to anybody's memory and nobody is locked out: the owner lock is only asked about; `reap --yes` alone takes it.
 */
#ifndef TOOLS_STAT_JOBS_H
#define TOOLS_STAT_JOBS_H

#include "observe/tables.h"
#include "shm/layout.h"
#include "shm/segment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One object in /dev/shm. */
struct stat_object {
    bool exists;
    bool alive;                 /* the owner lock is held */
    int fd;                     /* -1 once the job is closed */
    uint64_t bytes;             /* size of the file */
    uint64_t held;              /* pages that it takes, in bytes */
    bool on_tmpfs;
};

enum stat_found {
    STAT_ABSENT,                /* there is an arena, but no segment */
    STAT_BLANK,                 /* being made, or its owner was killed while it made it */
    STAT_OTHER_VERSION,         /* version, uid, pid and rank are known */
    STAT_NOISE,                 /* problem says why */
    STAT_READABLE,              /* control is there */
};

struct stat_worker {
    int rank;                   /* from the file's name */
    struct stat_object segment;
    struct stat_object arena;
    enum stat_found found;
    char problem[200];          /* a sentence, unless it is READABLE */
    uint32_t layout_version;
    uint32_t pid;
    uint32_t state;             /* enum bxi_state; 0 if it is not known */
    char process;               /* a letter of stat_thread_state; 0 if dead or not known */
    char name[BXI_NAME_BYTES];  /* printable; "" if it is not known */
    struct bxi_control *control;                        /* a private copy; NULL unless READABLE */
    /* Copied after the controls of all workers: credit is never behind what control says was written. */
    struct bxi_credit credit[BXI_WORKERS_MAX];
    struct bxi_pair_counters received[BXI_WORKERS_MAX];
    /* By the ring's rank, after stat_unread_read: age of the oldest unread frame; < 0: there is none; NAN: not
     * known. */
    double unread_s[BXI_WORKERS_MAX];
    struct bxi_hist *hists;     /* after stat_hists_read: private copies; NULL if there are none */
    uint32_t hist_count;
    struct bxi_object_row *objects;     /* after stat_objects_read: private copies, the oldest first; NULL: none */
    uint32_t object_count;
    struct bxi_remote_row *remotes;     /* private copies, by rank: remote.h; NULL: its job has one host */
    uint32_t remote_count;
    struct stat_gpu *gpu;       /* after stat_gpus_read, in one block of memory; NULL if it has no GPU open */
};

struct stat_job {
    char name[BXI_NAME_BYTES];
    uint64_t instance;
    struct stat_worker *workers[BXI_WORKERS_MAX];         /* by rank; NULL where nothing was found */
    bool twin;                  /* another job found has the same name */
    struct stat_call *calls;    /* after stat_calls_read, the oldest first */
    size_t call_count;
    struct stat_findings *findings;     /* of check, while it prints them */
};

struct stat_jobs {
    struct stat_job *list;      /* by name, then instance */
    size_t count;
};

/* Finds the jobs of this user by the names in /dev/shm, and keeps those that `select` names: a job's name, or
 * NAME.INSTANCE; NULL for all. 0, -errno. */
int stat_jobs_find(struct stat_jobs *jobs, const char *select);
void stat_jobs_free(struct stat_jobs *jobs);

/* Opens and copies what the workers of the job show. The descriptors stay open until stat_job_close. -ENOMEM. */
int stat_job_read(struct stat_job *job);
void stat_job_close(struct stat_job *job);

/* Reads exactly that many bytes of an open object. 0, -ENODATA if it is shorter, -errno. */
int stat_pread(const struct stat_object *object, void *to, uint64_t bytes, uint64_t offset);
/* Of a segment of that many bytes the control pages that are allocated; *control is zero before. As stat_pread. */
int stat_control_read(const struct stat_object *object, uint64_t bytes, struct bxi_control *control);
/* A letter of /proc/PID/task/THREAD/stat; 0 if it is not known. The thread PID has that of the process. */
char stat_thread_state(uint32_t pid, uint64_t thread);

/* A word of a private copy. */
static inline uint64_t stat_word(const bxi_a64 *word)
{
    /* Relaxed: nobody else writes the copy. */
    return bxi_load_relaxed((bxi_a64 *)word);
}

/* Of a set of ranks, a bit each: which has none from BXI_SHOWN_MAX on. */
static inline bool stat_bit(const bxi_a64 *bits, int rank)
{
    return rank < BXI_SHOWN_MAX && (stat_word(&bits[rank / 64]) >> rank % 64 & 1);
}

static inline uint32_t stat_word32(const bxi_a32 *word)
{
    /* Relaxed: nobody else writes the copy. */
    return bxi_load_relaxed((bxi_a32 *)word);
}

/* A counter of a READABLE worker. */
static inline uint64_t stat_counter(const struct stat_worker *worker, enum bxi_counter which)
{
    return stat_word(&bxi_tables(worker->control)->counters[which]);
}

#endif
