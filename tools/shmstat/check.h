/* SPDX-License-Identifier: MIT */
/*
 * shmstat check, in parts: check.c is the subcommand and holds control pages against their invariants; check_ring.c
 * walks a ring and what lies behind it, check_tables.c the tables that only inspectors read, check_gpu.c device memory.
 */
#ifndef TOOLS_STAT_CHECK_H
#define TOOLS_STAT_CHECK_H

#include "jobs.h"

struct stat_violation {
    const char *invariant;      /* "I7" of shm/layout.h, "G2" of gpu/README.md */
    int rank;
    int peer;                   /* -1 if it is about no pair */
    char text[240];
};

struct stat_findings {
    struct stat_violation *list;
    size_t count;
    uint64_t dropped;           /* violations beyond those listed */
    uint64_t workers;
    uint64_t rings;
    uint64_t records;
    uint64_t unsettled;         /* rings that moved in every attempt to walk them */
};

/* A worker of a job, and what is found wrong with it. */
struct stat_check {
    const struct stat_job *job;
    const struct stat_worker *worker;
    struct stat_findings *findings;
};

/* Lists a violation unless it is right; peer: -1 or whom it is about besides. Returns is_right. */
bool stat_expect(const struct stat_check *check, bool is_right, const char *invariant, int peer, const char *format,
                 ...) __attribute__((format(printf, 5, 6)));

/* check_ring.c: ring `to` of the worker, whose open word is 1 (I6, I7, I8), and behind it the lease words (I10) and the
 * rows of calls (I12). */
void stat_check_ring(const struct stat_check *check, int to);
void stat_check_leases(const struct stat_check *check, int to);
void stat_check_calls(const struct stat_check *check, int to);
/* Where the producer of that ring stands now; false if it cannot be read. */
bool stat_write_end(const struct stat_worker *worker, int to, uint64_t *end);

/* check_tables.c: the requests that it serves (I11), its histograms (I13), its objects (I15), and its rows of remote
 * workers (I17). */
void stat_check_served(const struct stat_check *check);
void stat_check_hists(const struct stat_check *check);
void stat_check_objects(const struct stat_check *check);
void stat_check_remotes(const struct stat_check *check);

/* check_gpu.c: its device memory, and what it holds of others' (G1, G2, G4, G6, G7). */
void stat_check_gpu(const struct stat_check *check);

#endif
