/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the engine share: a world of workers, each a process with a function of its own, and
 * a piece of memory in which they wait for one another.
 *
 *     static int setup(struct bx_job *job) { return bx_register(job, "add", BX_INLINE, add, NULL); }
 *     static void caller(struct bx_job *job) { HARNESS_EQ(bx_rpc_sync(job, "worker1", ...), 0); }
 *
 *     Test(call, adds, .timeout = 20)
 *     {
 *         harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { caller } });
 *     }
 *
 * Every worker creates the job, runs setup, starts, runs body[rank], shuts down and destroys. What
 * harness_run holds at the end of every test: each worker ended well (but those that the test lets die),
 * no wake-up was rescued and no deadline found late, all that was on loan is back, and neither a segment nor a
 * socket of the job is left.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include "boxcar.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HARNESS_BODIES 8
#define HARNESS_GATES 64
#define HARNESS_VALUES 256
#define HARNESS_MS UINT64_C(1000000)

typedef void (*harness_fn)(struct bx_job *job);

struct harness_world {
    int size;
    int (*setup)(struct bx_job *job);   /* between create and start, in every worker; < 0 fails it */
    harness_fn body[HARNESS_BODIES];    /* by rank; NULL: serves until another worker shuts down */
    struct bx_options options;          /* of every worker: wait, spin, timeouts */
    const char *const *names;
    uint32_t dies;                      /* bits of the ranks that end badly on purpose */
};

/* Runs the world and asserts what is said above. One test may run several, one after the other. */
void harness_run(const struct harness_world *world);

/* The same without assertions, for processes that are not Criterion's: 0, or -1 with a line on stderr. */
int harness_try(const struct harness_world *world);

/* In a body that shuts down and destroys its job itself, or leaves it to the end of the process: called
 * first. It then checks harness_check_rescued and harness_check_loans by itself. */
void harness_leaves_by_itself(void);
void harness_check_rescued(const struct bx_job *job);
/* Waits until this worker has nothing on loan: as each of the others ends it gives back what it held. */
void harness_check_loans(struct bx_job *job);

/* The name that the job of this process has, or the next harness_run will give. */
const char *harness_job_name(void);

/* Fails if anything of harness_job_name() is left in /dev/shm or among the sockets: how many. */
int harness_left_behind(void);

/* ---- Memory shared by the test and its workers; zero at first -------------------------------- */

/* A gate counts; await sleeps until it has come to `least`. */
void harness_post(int gate);
void harness_await(int gate, uint32_t least);
uint32_t harness_gate(int gate);

void harness_store(int index, uint64_t value);
uint64_t harness_load(int index);
uint64_t harness_add(int index, uint64_t n);        /* the value before */
void harness_reset(void);                           /* all to zero again, between two worlds of a test */

/* ---- Small things that many tests need ------------------------------------------------------- */

/* Runs fn(job, 0) .. fn(job, count - 1), each on a thread, and joins them. */
void harness_threads(struct bx_job *job, int count, void (*fn)(struct bx_job *job, int index));
uint64_t harness_counter(const struct bx_job *job, const char *name);
/* Calls, destroys args and returns the i64 of the reply; fails if the call does. */
int64_t harness_call(struct bx_job *job, const char *to, const char *function, struct bx_msg *args);
/* The same with one i64 as args. */
int64_t harness_call_i64(struct bx_job *job, const char *to, const char *function, int64_t value);
struct bx_msg *harness_msg_i64(int64_t value);
/* The same call without the wait. args are destroyed; timeout_ns as in struct bx_call_options. */
struct bx_future *harness_start(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
                                uint64_t timeout_ns);

/* Sends SIGSTOP, and waits until the process has stopped: it does so when it next runs. */
void harness_stop(pid_t pid);
void harness_await_stopped(pid_t pid);

/* Gives this process a /dev/shm of its own of that size. Skips the test if it lacks the rights. */
void harness_mount_shm(unsigned kib);

/* Bodies: serves until the others have shut down, died or been cut off; dies of SIGKILL. */
void harness_serve(struct bx_job *job);
void harness_die(struct bx_job *job);

/* Handlers: answers the i64 that came; twice that; the bytes that came; nothing. */
int harness_echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int harness_twice(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int harness_echo_bytes(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int harness_nothing(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
/* Async: never answers. It keeps a reference, so that the future is not abandoned. */
int harness_never(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context);
/* A batch's body that answers no row with a value. */
int harness_no_rows(struct bx_batch *batch, void *context);

/* ---- Checks for workers: a line on stderr and the end of the process ------------------------- */

_Noreturn void harness_failed(const char *file, int line, const char *format, ...) BX_PRINTF(3, 4);
void harness_eq(const char *file, int line, const char *text, long long actual, long long expected);
void harness_has(const char *file, int line, const char *text, const char *part);

#define HARNESS_CHECK(condition) \
    ((condition) ? (void)0 : harness_failed(__FILE__, __LINE__, "%s is not so", #condition))
#define HARNESS_EQ(actual, expected) \
    harness_eq(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
#define HARNESS_HAS(text, part) harness_has(__FILE__, __LINE__, (text), (part))

#endif
