/* SPDX-License-Identifier: MIT */
/*
 * The subcommands of bxbench, and the options that main gives them.
 *
 * How a bench works: the launcher maps a result area that it shares with its children, runs bx_spawn with a worker
 * function that fills the area, and reports from it when all workers have ended. One of the workers measures the bare
 * limit against an echo process, which it forks before its job exists, on the core of the Boxcar callee. A process
 * that has no part in the current slice sleeps. Several processes write the area with ordinary read-modify-writes: it
 * belongs to the bench, not to Boxcar.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_MESSAGE_BYTES 64      /* of a request and of a reply */
#define BENCH_CPUS_MAX 128
#define BENCH_SLICES_MAX 1000
#define BENCH_INFLIGHT_MAX 512      /* with lazy credit, more would fill the bare rings both ways at once */
#define BENCH_WAIT_NS UINT64_C(60000000000)     /* the most that one process waits for another */
#define BENCH_FUNCTION "echo"

struct bench_options {
    const char *name;               /* of the subcommand */
    bool json;
    bool ucx;
    bool cork;
    bool no_pairs;
    bool dry_run;
    int cpus[BENCH_CPUS_MAX];       /* first: the caller's; second: the callee's */
    int cpu_count;
    int64_t slices;                 /* slices and calls: 0 for the bench's own default */
    int64_t calls;                  /* in a slice, of each caller */
    int64_t inflight;
    int64_t callers;
    int64_t workers;
    int64_t gap_us;
    int64_t tensors;
    int64_t bytes;                  /* of all tensors of a message */
    int64_t device;                 /* ordinal of a GPU */
    double seconds;
};

/* Each returns the exit status. */
int bench_pingpong(const struct bench_options *options);
int bench_sleep(const struct bench_options *options);
int bench_rate(const struct bench_options *options);
int bench_fanin(const struct bench_options *options);
int bench_batch(const struct bench_options *options);
int bench_idle(const struct bench_options *options);
int bench_start(const struct bench_options *options);
int bench_handover(const struct bench_options *options);
int bench_rref(const struct bench_options *options);
int bench_gpu(const struct bench_options *options);

#endif
