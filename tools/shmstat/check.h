/* SPDX-License-Identifier: MIT */
/*
 * shmstat check, in parts: check.c is the subcommand and holds control pages against their invariants; check_ring.c
 * walks a ring and what lies behind it, check_tables.c the tables that only inspectors read, check_gpu.c device memory.
 * findings.c collects what they find.
 */
#ifndef TOOLS_STAT_CHECK_H
#define TOOLS_STAT_CHECK_H

#include "jobs.h"

struct stat_violation {
    char series;                /* 'I' of shm/layout.h, 'G' of gpu/README.md */
    int invariant;
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

/* Where it is: invariant number of worker, about `to` or -1. */
#define STAT_AT(letter, number, worker, to) \
    (&(struct stat_violation){ .series = (letter), .invariant = (number), .rank = (worker)->rank, .peer = (to) })
#define AT(number, worker, to) STAT_AT('I', number, worker, to)

void stat_violate(struct stat_findings *findings, const struct stat_violation *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* check_ring.c: ring `to` of the worker, whose open word is 1 (I6, I7, I8), and behind it the lease words (I10) and the
 * rows of calls (I12). */
void stat_check_ring(const struct stat_job *job, const struct stat_worker *worker, int to,
                     struct stat_findings *findings);
void stat_check_leases(const struct stat_job *job, const struct stat_worker *worker, int to,
                       struct stat_findings *findings);
void stat_check_calls(const struct stat_worker *worker, int to, struct stat_findings *findings);
/* Where the producer of that ring stands now; false if it cannot be read. */
bool stat_write_end(const struct stat_worker *worker, int to, uint64_t *end);

/* check_tables.c: the requests that it serves (I11), its histograms (I13), and its objects (I15). */
void stat_check_served(const struct stat_worker *worker, struct stat_findings *findings);
void stat_check_hists(const struct stat_job *job, const struct stat_worker *worker, struct stat_findings *findings);
void stat_check_objects(const struct stat_worker *worker, struct stat_findings *findings);

/* check_gpu.c: its device memory, and what it holds of others' (G1 to G4, G6, G7). */
void stat_check_gpu(const struct stat_job *job, const struct stat_worker *worker, struct stat_findings *findings);

#endif
