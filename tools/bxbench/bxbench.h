/* SPDX-License-Identifier: MIT */
/*
 * What the files of bxbench share: flags, clock, statistics, a barrier, the bare limits, the report.
 *
 * How a bench is built: the launcher maps a result area shared with its children, runs bx_spawn with a
 * worker function that fills it, and reports from it when all workers have ended. A bare limit is
 * measured by one of the workers against an echo process that this worker forks before its job exists,
 * on the core of the Boxcar callee; whoever has no slice sleeps. The area is written by several
 * processes with ordinary read-modify-writes: it is the bench's, not Boxcar's.
 */
#ifndef BENCH_H
#define BENCH_H

#include "boxcar.h"
#include "shm/atomic.h"
#include "shm/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

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
    bool no_pairs;
    bool stats_off;
    bool dry_run;
    int cpus[BENCH_CPUS_MAX];       /* first: the caller's; second: the callee's */
    int cpu_count;
    int64_t slices;                 /* 0 in this and the next: the bench's own default */
    int64_t calls;                  /* in a slice; of each caller where there are several */
    int64_t inflight;
    int64_t callers;
    int64_t workers;
    int64_t gap_us;
    int64_t tensors;
    int64_t bytes;                  /* of all tensors of a message */
    int64_t sets;
    int64_t threads;
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
int bench_accumulate(const struct bench_options *options);
int bench_gpu(const struct bench_options *options);
int bench_stats(const struct bench_options *options);
/* Becomes the bxbench whose engine keeps nothing for shmstat, which takes these arguments. Returns only where
 * there is none, with 1. */
int bench_stats_off(char **argv);

/* What the engine of this very program keeps: a mask, see lib/base/base.h. */
#ifndef BXI_STATS
#define BXI_STATS 7
#endif

/* Messages a second of one run of ucx_perftest; 0 after having said why there are none. */
double bench_ucx_rate(const struct bench_options *options);

/* ---- Clock ------------------------------------------------------------------------------------- */

extern bool bench_clock_is_counter;     /* the processor's counter; else CLOCK_MONOTONIC */

void bench_clock_init(void);
const char *bench_clock_name(void);
double bench_clock_ns_per_tick(void);   /* calibrated from init until now */
double bench_clock_cost_ns(void);       /* of one bench_ticks() */
double bench_clock_step_ticks(void);    /* it goes forward by no less: 10 ns on some processors */
uint64_t bench_now_ns(void);            /* CLOCK_MONOTONIC */

/* Read between two calls, so that each latency holds one read. No fence: it would hide a part of the
 * round trip behind its own cost, in the bare echo and in the call alike. */
static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    if (bench_clock_is_counter)
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    if (bench_clock_is_counter) {
        uint64_t ticks;

        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return bench_now_ns();
}

static inline uint32_t bench_ticks_since(uint64_t before)
{
    uint64_t ticks = bench_ticks() - before;

    return ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

/* ---- Statistics -------------------------------------------------------------------------------- */

double bench_median(double *values, size_t count);                  /* sorts; 0 of nothing */
void bench_sort(uint32_t *ticks, size_t count);
uint32_t bench_percentile(const uint32_t *sorted, size_t count, double percent);
/* The median of ticks that are known to a step only: interpolated within the step that holds it. */
double bench_middle(const uint32_t *sorted, size_t count);

/* ---- Processes --------------------------------------------------------------------------------- */

/* Memory shared with children; zeroed, prefaulted, never freed. Ends the program where there is none, or
 * where more than 1 GB is asked for. */
void *bench_map(size_t bytes);
int bench_pin(int cpu);                                             /* the calling thread; 0, -errno */
int bench_pin_all(const struct bench_options *options);             /* to all of them */
void bench_say(const char *format, ...) BX_PRINTF(1, 2);            /* "bxbench: ..." on stderr */
int bench_fail(const char *what, int code);     /* says it with the library's sentence; returns 1 */

/* Forks a child that dies with this process. 0 in the child, a pid, or -errno. */
pid_t bench_fork(void);
/* Waits for it at most timeout_ns, then kills it. Its exit status, or -1. */
int bench_reap(pid_t pid, uint64_t timeout_ns);

/* Sleeps while *word is value, at most timeout_ns; false when that has passed. */
bool bench_sleep_while(bxi_a32 *word, uint32_t value, uint64_t timeout_ns);
void bench_wake(bxi_a32 *word);

/* Starts a program whose output goes to fd, or nowhere where that is -1. cpu: where it is pinned, and its
 * complaints are not shown; or -1. A pid, or -errno. */
pid_t bench_start_program(int cpu, int fd, char *const *argv);
/* Runs one for at most half a minute and takes its output, terminated. Its exit status, or -1. */
int bench_run_program(int cpu, char *const *argv, char *text, size_t room);

/* All `count` processes wait until the last has come. 0, or -ETIMEDOUT with a message on stderr. */
struct bench_barrier {
    bxi_a32 phase;
    bxi_a32 arrived;
};
int bench_barrier_wait(struct bench_barrier *barrier, int count);

/* A worker of a bench: creates the job, registers the echo, pins itself and starts. setup, which may be
 * NULL, registers more. */
typedef int (*bench_setup_fn)(struct bx_job *job, void *context);
int bench_worker_start(const struct bx_options *options, int cpu, bench_setup_fn setup, void *context,
                       struct bx_job **job);
/* Shuts down and destroys; the worker's exit status, `status` where that is not 0 already. */
int bench_worker_end(struct bx_job *job, int status);
/* Serves until the others leave, then leaves; the worker's exit status. */
int bench_worker_serve(struct bx_job *job);
/* bx_spawn; true if all went well, else it says who failed. */
bool bench_spawn(int world_size, const struct bx_options *common, bx_worker_fn fn, void *context);

/* One call of the echo: sends `number` in 64 bytes, checks that it comes back. 0, or a failure said. */
int bench_call(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
               uint64_t number);
void bench_fill(struct bx_msg *args, uint64_t number);
bool bench_holds(const struct bx_msg *reply, uint64_t number);

/* ---- Tensors ----------------------------------------------------------------------------------- */

#define BENCH_TENSORS 161           /* parameters of ResNet-50 with 30 classes ... */
#define BENCH_TENSORS_BYTES 94278008    /* ... and what they take */
#define BENCH_TENSOR_BYTES_MIN 64

/* `count` tensors of `bytes` in all, as ResNet-50's parameters are sized: those themselves with the two
 * numbers above, else the list taken as often as needed and each scaled. Made before the fork. */
struct bench_plan {
    size_t count;
    size_t bytes;
    struct bench_plan_tensor {
        size_t bytes;
        int ndim;                   /* a convolution's has four, the first of them long */
    } *tensors;
};
/* 0, or 2 having said that so few bytes are not enough for so many. */
int bench_plan_make(struct bench_plan *plan, int64_t count, int64_t bytes);
/* f32, or u8 where 4 does not divide its bytes (the last only); in the job's arena, or on the heap. */
int bench_plan_create(const struct bench_plan *plan, size_t index, struct bx_job *job,
                      struct bx_tensor **tensor);
uint64_t bench_shm_room(void);      /* bytes free in /dev/shm; UINT64_MAX where nobody knows */

/* ---- The bare limits --------------------------------------------------------------------------- */

enum bare_kind {
    BARE_LINE = 1,      /* a cache line there and back */
    BARE_ECHO = 2,      /* frames of 64 bytes echoed over rings, as fast as they come */
    BARE_STOP = 3,
};

struct bench_bare;

/* An area with `clients` pairs of rings; made before the processes that use it are forked. */
struct bench_bare *bench_bare_create(int clients);
/* Forks the echo process on `cpu`; it sleeps until an order comes. 0, or a failure said. */
int bench_bare_start(struct bench_bare *bare, int cpu);
/* Orders the echo to serve `rounds` round trips (of all clients together). */
void bench_bare_order(struct bench_bare *bare, enum bare_kind kind, uint64_t rounds);
int bench_bare_stop(struct bench_bare *bare);

/* Both workers of a bench that measures one pair beside the bare echo: rank 1 serves on cpus[1], where the
 * echo is too; rank 0 runs slices(bench, job) on cpus[0]. The worker's exit status. */
typedef int (*bench_slices_fn)(const void *bench, struct bx_job *job);
int bench_pair_worker(const struct bx_options *options, struct bench_bare *bare, const int cpus[2],
                      bench_slices_fn slices, const void *bench);

/* The client's side; positions live on from slice to slice, so init it once. */
struct bench_bare_client {
    struct bxi_ring_writer out;
    struct bxi_ring_reader in;
};
void bench_bare_client_init(struct bench_bare_client *client, struct bench_bare *bare, int index);
/* rounds round trips of a cache line; mean ticks of one, or 0 if the echo does not answer. */
double bench_bare_line(struct bench_bare *bare, uint64_t rounds);
/* 0, -ETIMEDOUT, -EPROTO. */
int bench_bare_send(struct bench_bare_client *client, uint64_t number);
int bench_bare_receive(struct bench_bare_client *client, uint64_t number);

/* ---- The report -------------------------------------------------------------------------------- */

/* A table, or with --json an object: whatever is reported goes to both by one call. `text` says in the
 * table what the key means. A value that is not finite was not measured: "-" and null. */
void bench_report_open(const struct bench_options *options, const char *title);
void bench_report_number(const char *key, double value, int decimals, const char *text);
void bench_report_numbers(const char *key, const double *values, size_t count, int decimals);
void bench_report_string(const char *key, const char *value, const char *text);
/* A list of objects with the same keys, a row of the table each; only numbers, whose text is unused. */
void bench_report_rows_open(const char *key);
void bench_report_row_open(void);
void bench_report_row_close(void);
void bench_report_rows_close(void);
void bench_report_close(void);

#endif
