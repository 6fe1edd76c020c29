/* SPDX-License-Identifier: MIT */
/*
 * A worker of a bench, and its calls of the echo.
 */
#ifndef BENCH_WORKER_H
#define BENCH_WORKER_H

#include "bare.h"
#include "boxcar.h"

/* A worker of a bench: creates the job, registers the echo, pins itself and starts. setup, which may be
 * NULL, registers more. */
typedef int (*bench_setup_fn)(struct bx_job *job, void *context);
int bench_worker_start(const struct bx_options *options, int cpu, bench_setup_fn setup, void *context,
                       struct bx_job **job);
/* Shuts down and destroys. Returns the worker's exit status: `status`, unless that is 0. */
int bench_worker_end(struct bx_job *job, int status);
/* Serves until the others leave, then leaves; the worker's exit status. */
int bench_worker_serve(struct bx_job *job);
/* bx_spawn. True if no worker failed; else a line on stderr names one that did. */
bool bench_spawn(int world_size, const struct bx_options *common, bx_worker_fn fn, void *context);

/* One call of the echo: sends `number` in 64 bytes and checks that it comes back. 0, or -errno after a line on
 * stderr. */
int bench_call(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
               uint64_t number);
void bench_fill(struct bx_msg *args, uint64_t number);
bool bench_holds(const struct bx_msg *reply, uint64_t number);

/* Both workers of a bench that measures one pair beside the bare echo: rank 1 serves on cpus[1], which the
 * echo uses too; rank 0 runs slices(bench, job) on cpus[0]. The worker's exit status. */
typedef int (*bench_slices_fn)(const void *bench, struct bx_job *job);
int bench_pair_worker(const struct bx_options *options, struct bench_bare *bare, const int cpus[2],
                      bench_slices_fn slices, const void *bench);

#endif
