/* SPDX-License-Identifier: MIT */
/*
 * Memory that processes share, cores, child processes, and how they wait for each other.
 */
#ifndef BENCH_PROCESS_H
#define BENCH_PROCESS_H

#include "boxcar.h"
#include "bxbench.h"
#include "shm/atomic.h"

#include <sys/types.h>

/* Memory shared with children; zeroed, prefaulted, never freed. Ends the program if there is none, or if more than 1
 * GB is requested. */
void *bench_map(size_t bytes);
int bench_pin(int cpu);                                             /* the calling thread; 0, -errno */
int bench_pin_all(const struct bench_options *options);             /* to all of them */
void bench_say(const char *format, ...) BX_PRINTF(1, 2);            /* "bxbench: ..." on stderr */
int bench_fail(const char *what, int code);     /* the same, with the library's sentence for the code; returns 1 */

/* Forks a child that dies with this process. 0 in the child, a pid, or -errno. */
pid_t bench_fork(void);
/* Waits for it at most timeout_ns, then kills it. Its exit status, or -1. */
int bench_reap(pid_t pid, uint64_t timeout_ns);

/* Sleeps while *word is value, at most timeout_ns; false after a timeout. */
bool bench_sleep_while(bxi_a32 *word, uint32_t value, uint64_t timeout_ns);
void bench_wake(bxi_a32 *word);

/* Starts a program. fd: where its output goes; -1: nowhere. cpu: the core that it is pinned to, which also discards its
 * stderr; or -1. A pid, or -errno. */
pid_t bench_start_program(int cpu, int fd, char *const *argv);
/* Runs a program for at most half a minute and returns its output in text, terminated. Its exit status, or -1. */
int bench_run_program(int cpu, char *const *argv, char *text, size_t room);

/* All `count` processes wait until the last has come. 0, or -ETIMEDOUT with a message on stderr. */
struct bench_barrier {
    bxi_a32 phase;
    bxi_a32 arrived;
};
int bench_barrier_wait(struct bench_barrier *barrier, int count);

#endif
