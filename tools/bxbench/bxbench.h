/* SPDX-License-Identifier: MIT */
/*
 * What the files of bxbench share.
 *
 * How a subcommand works: it fills a struct bench_run and calls bench_run_job. The launcher maps what the run measures
 * into memory that it shares with its children, starts the bare echo on the core of the Boxcar callee, and starts the
 * job. In each worker that calls, the kinds of slices take turns; the others serve. When all have ended, the launcher
 * prints the figures. A process that has no part in the current slice sleeps. Several processes write the shared memory
 * with ordinary read-modify-writes: it belongs to the bench, not to Boxcar.
 */
#ifndef BENCH_H
#define BENCH_H

#include "boxcar.h"
#include "clock.h"
#include "shm/atomic.h"
#include "shm/ring.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_MESSAGE_BYTES 64      /* of a request and of a reply */
#define BENCH_CPUS_MAX 128
#define BENCH_SLICES_MAX 1000
#define BENCH_INFLIGHT_MAX 512      /* with lazy credit, more would fill the bare rings both ways at once */
#define BENCH_TENSOR_BYTES_MIN 64
#define BENCH_WAIT_NS UINT64_C(60000000000)     /* the most that one process waits for another */
#define BENCH_ECHO "echo"

/* ---- Subcommands ---------------------------------------------------------------------------------- */

struct bench_options {
    const char *name;               /* of the subcommand */
    bool json;
    bool ucx;
    bool cork;
    bool no_pairs;
    bool veth;
    bool dry_run;
    int cpus[BENCH_CPUS_MAX];       /* first: the caller's; second: the callee's */
    int cpu_count;
    int64_t slices;
    int64_t calls;                  /* in a slice, of each caller */
    int64_t inflight;
    int64_t callers;
    int64_t workers;
    int64_t gap_us;
    int64_t tensors;
    int64_t bytes;                  /* of all tensors of a message; 0: not given */
    int64_t device;                 /* ordinal of a GPU */
    double seconds;
};

/* Each returns the exit status. */
int bench_pingpong(struct bench_options *options);
int bench_sleep(struct bench_options *options);
int bench_rate(struct bench_options *options);
int bench_fanin(struct bench_options *options);
int bench_batch(struct bench_options *options);
int bench_idle(struct bench_options *options);
int bench_start(struct bench_options *options);
int bench_handover(struct bench_options *options);
int bench_rref(struct bench_options *options);
int bench_gpu(struct bench_options *options);
int bench_net(struct bench_options *options);

/* ---- process.c: memory that processes share, cores, child processes ---------------------------------- */

/* Memory shared with children; zeroed, prefaulted, never freed. Ends the program if there is none, or if more than 1
 * GB is requested. */
void *bench_map(size_t bytes);
int bench_pin(const int *cpus, int count);                          /* the calling thread; 0, -errno */
void bench_say(const char *format, ...) BX_PRINTF(1, 2);            /* "bxbench: ..." on stderr */
int bench_fail(const char *what, int code);     /* the same, with the library's sentence for the code; returns 1 */
uint64_t bench_shm_room(void);                  /* bytes free in /dev/shm; UINT64_MAX if not known */
/* Forks a child that dies with this process. 0 in the child, a pid, or -errno. */
pid_t bench_fork(void);
/* Waits for it at most timeout_ns, then kills it. Its exit status, or -1. */
int bench_reap(pid_t pid, uint64_t timeout_ns);
int bench_port(void);                           /* the next TCP port that this process uses: another one each time */
/* ---- bare.c: what two processes reach over a cache line, or over two rings, without Boxcar --------- */

enum bench_bare_kind {
    BENCH_BARE_LINE = 1,        /* round trips of a cache line */
    BENCH_BARE_ECHO = 2,        /* frames of 64 bytes echoed over rings, as fast as they come */
    BENCH_BARE_ECHO_PAUSED = 3, /* the same; both sides make a pause between two polls */
    BENCH_BARE_STOP = 4,
};
struct bench_bare;

/* An area with `clients` pairs of rings, and the echo process, which sleeps until an order comes. NULL after a line on
 * stderr. */
struct bench_bare *bench_bare_start(int clients, int cpu);
/* Orders the echo to serve `rounds` round trips (of all clients together). */
void bench_bare_order(struct bench_bare *bare, enum bench_bare_kind kind, uint64_t rounds);
/* Within timeout_ns. True if it has done all that was ordered. */
bool bench_bare_stop(struct bench_bare *bare, uint64_t timeout_ns);

/* The client's side. Positions continue from slice to slice: init it once. */
struct bench_bare_client {
    const struct bench_bare *bare;
    struct bxi_ring_writer out;
    struct bxi_ring_reader in;
};
void bench_bare_client_init(struct bench_bare_client *client, struct bench_bare *bare, int index);
/* rounds round trips of a cache line; mean ticks of one, or 0 if the echo does not answer. */
double bench_bare_line(struct bench_bare *bare, uint64_t rounds);
/* 0, -ETIMEDOUT, -EPROTO. */
int bench_bare_send(struct bench_bare_client *client, uint64_t number);
int bench_bare_receive(struct bench_bare_client *client, uint64_t number);

/* ---- series.c: times, and what is made of them ----------------------------------------------------- */

struct bench_series {
    uint32_t *ticks;                /* of each call, slice after slice; NULL: only a mean is kept */
    double *middle;                 /* of each slice: the median of its calls, or the mean */
    size_t slices;
    size_t calls;                   /* in a slice, of all callers */
};

double bench_median(double *values, size_t count);                  /* sorts; 0 of nothing */
void bench_sort(uint32_t *ticks, size_t count);
void bench_series_make(struct bench_series *series, size_t slices, size_t calls);
/* Finds the slices' medians, then sorts all calls. */
void bench_series_close(struct bench_series *series);
/* Nanoseconds: the median over slices, and a percentile of all calls. NAN of a series that was not made. */
double bench_middle_ns(const struct bench_series *series);
double bench_percentile_ns(const struct bench_series *series, double percent);
/* Medians over neighbouring slices: of a over b, and of a less b. */
double bench_ratio(const struct bench_series *a, const struct bench_series *b);
double bench_over_ns(const struct bench_series *a, const struct bench_series *b);

/* ---- run.c: the driver of slices ------------------------------------------------------------------- */

#define BENCH_SERIES_MAX 16
#define BENCH_VALUES_MAX 4
#define BENCH_KINDS_MAX 4

struct bench_run;

/* A worker that calls. */
struct bench_caller {
    const struct bench_run *run;
    struct bx_job *job;
    const char *job_name;
    struct bx_msg *args;
    const char *to;                 /* worker 1 */
    uint64_t number;                /* of the last call */
    int index;                      /* among the callers */
    struct bench_bare_client bare;
    void *own;                      /* the subcommand's */
};

/* Runs one slice: kind is its place in run->kinds, and that of its series. 0, or 1 after a line on stderr. */
typedef int (*bench_slice_fn)(struct bench_caller *caller, int kind, int64_t slice);

struct bench_run {
    const struct bench_options *options;
    bench_slice_fn kinds[BENCH_KINDS_MAX];      /* take turns; NULL behind the last */
    int64_t slices;                 /* of each kind, over all jobs */
    int64_t first, last;            /* this job's: from first, which may be -1 to warm up, to last; last 0: all */
    int64_t calls;                  /* in a slice, of each caller */
    int workers, callers;           /* worker 1 serves, and with one caller the later ones too; as many: all call */
    bool with_bare;
    int series_count;
    unsigned means;                 /* bit i: series i has only a mean for each slice */
    struct bx_options common;       /* of all workers */
    int (*setup)(struct bx_job *job, void *context);        /* may register more */
    int (*begin)(struct bench_caller *caller);              /* as a slice, before the first */
    int (*end)(struct bench_caller *caller, int status);    /* behind the last; called after a failure too */
    void (*after)(void);            /* in each worker, when it has left the job */
    int (*spawn)(const struct bx_spawn_options *options, bx_worker_fn fn, void *context);   /* NULL: bx_spawn */
    void *context;                  /* of setup; the subcommand's */
    /* Made by bench_run_job, shared: */
    struct bench_series series[BENCH_SERIES_MAX];
    double (*values)[BX_WORLD_MAX + 1];         /* rows of what else a subcommand finds, often by rank */
    pthread_barrier_t *barrier;     /* of the callers */
    struct bench_bare *bare;
};

/* Runs the job. False after a line on stderr. */
bool bench_run_job(struct bench_run *run);
/* One call of the echo, or of a function that does the same: sends a number in 64 bytes and checks that it comes back.
 * 0, or -errno after a line on stderr. */
int bench_call(struct bench_caller *caller, const char *function);
int bench_call_all(struct bench_caller *caller);                    /* each other worker, once */
void bench_fill(struct bx_msg *args, uint64_t number);
bool bench_holds(const struct bx_msg *reply, uint64_t number);
/* A counter of worker 1; the tensor bytes that both workers have copied. 0, or an error code. */
int bench_counter(struct bench_caller *caller, const char *name, double *value);
int bench_copied(struct bench_caller *caller, double *bytes);

/* ---- ucx.c: ucx_perftest beside a subcommand --------------------------------------------------------- */

struct bench_ucx {
    const char *test;               /* its -t */
    const char *flags;              /* of the client, beside -t and -p */
    const char *column;             /* of its line "Final:", as awk names it */
    const char *at[2];              /* commands that run the server, and the client, on their hosts; "": here */
    const char *address;            /* of the server */
};
/* One run on the bench's cores: that column; 0 after a line on stderr. */
double bench_ucx(const struct bench_options *options, const struct bench_ucx *ucx);

/* rate.c: calls in flight, as a kind of slice whose series has means. begin warms up. */
int bench_rate_begin(struct bench_caller *caller, int kind);
int bench_rate_slice(struct bench_caller *caller, int kind, int64_t slice);
int bench_rate_end(struct bench_caller *caller, int status);

/* Where a slice's ticks of this caller belong; NULL for slice -1. */
static inline uint32_t *bench_place(const struct bench_caller *caller, int series, int64_t slice)
{
    const struct bench_run *run = caller->run;

    return slice < 0 ? NULL : run->series[series].ticks + (slice * run->callers + caller->index) * run->calls;
}

/* What bench_each times: one bare echo, one call. */
static inline int bench_echo_bare(struct bench_caller *caller)
{
    uint64_t number = ++caller->number;
    int rc = bench_bare_send(&caller->bare, number);

    if (rc == 0)
        rc = bench_bare_receive(&caller->bare, number);
    if (rc < 0)
        bench_fail("the bare echo", rc);
    return rc;
}
static inline int bench_echo(struct bench_caller *caller)
{
    return bench_call(caller, BENCH_ECHO);
}

/* Times each `one` of a slice, after `warm` that do not count: the other side has to wake up. ticks NULL: only those.
 * rest may be NULL. Always inlined, so that neither is called through a pointer. */
__attribute__((always_inline)) static inline int bench_each(struct bench_caller *caller, int64_t warm, uint32_t *ticks,
                                                            int (*one)(struct bench_caller *caller),
                                                            void (*rest)(const struct bench_caller *caller))
{
    int64_t calls = ticks != NULL ? caller->run->calls : 0;

    for (int64_t i = -warm; i < calls; i++) {
        if (rest != NULL)
            rest(caller);

        uint64_t before = bench_ticks();

        if (one(caller) < 0)
            return 1;
        if (i >= 0)
            ticks[i] = bench_ticks_since(before);
    }
    return 0;
}

/* ---- report.c: what a subcommand prints ------------------------------------------------------------- */

/* A table, or with --json an object, from the same calls. `text` explains the key in the table. A value that is not
 * finite was not measured: "-" or null. */
void bench_open(const struct bench_options *options, const char *title);
void bench_number(const char *key, double value, int decimals, const char *text);
void bench_numbers(const char *key, const double *values, int count, int decimals);
void bench_string(const char *key, const char *value, const char *text);
void bench_counts(const struct bench_run *run);                     /* slices and calls */
/* A list of objects with the same keys, a row of the table each. row calls bench_number. */
void bench_rows(const char *key, int count, void (*row)(const void *context, int index), const void *context);
void bench_close(void);

#endif
