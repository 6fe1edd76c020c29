/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the engine share: a world of workers, each a process that runs a function of the test, and shared
 * memory with gates at which they wait for each other.
 *
 *     HARNESS_HANDLER(add) { return bx_msg_put_i64(reply, bx_read_i64(args) + 1); }
 *     static int setup(struct bx_job *job) { return bx_register(job, "add", BX_INLINE, add, NULL); }
 *
 *     HARNESS_TEST(call, adds, 20, .size = 2, .setup = setup)
 *     {
 *         HARNESS_EQ(harness_call_i64(job, "worker1", "add", 4), 5);      // in worker 0
 *     }
 *
 * Every worker creates the job, runs setup, starts the job, runs body[rank], shuts down and destroys the job. At the
 * end harness_run asserts:
 * - each worker ended well, except those that the test lets die;
 * - the counters rescued (wake-ups) and timers_late are zero;
 * - everything that was on loan has been returned;
 * - no segment, arena or socket of the job is left.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include "handlers.h"
#include "test.h"
#include "boxcar.h"

#define HARNESS_BODIES 8
#define HARNESS_HANDLERS 4
#define HARNESS_ENV 3
#define HARNESS_GATES 64
#define HARNESS_VALUES 256
#define HARNESS_MS UINT64_C(1000000)

typedef void (*harness_fn)(struct bx_job *job);

/* A table of values in the memory that the test shares with its workers: see below. */
struct harness_value {
    int index;                          /* -1: the end */
    uint64_t is;
};
#define HARNESS_TABLE(...) (const struct harness_value[]){ __VA_ARGS__, { -1, 0 } }

struct harness_world {
    int size;
    int (*setup)(struct bx_job *job);   /* between create and start, in every worker; < 0 fails the worker */
    struct harness_handler handlers[HARNESS_HANDLERS + 1];      /* registered before setup is called */
    harness_fn body[HARNESS_BODIES];    /* by rank; NULL: serves until another worker shuts down */
    struct bx_options options;          /* of every worker: wait, spin, timeouts */
    const char *const *names;
    uint32_t dies;                      /* bit r: rank r ends badly on purpose */
    const char *env[HARNESS_ENV + 1];   /* "NAME=VALUE": put into this process's environment before; "NAME": removed */
    unsigned shm_kib;                   /* 0, or harness_mount_shm before */
    const struct harness_value *store, *expect;     /* stored before; what values are afterwards: constants */
};

/* Registers what the table names. Returns 0; an error ends the worker. */
int harness_register(struct bx_job *job, const struct harness_handler *handlers);
#define HARNESS_REGISTER(job, ...) \
    harness_register(job, (const struct harness_handler[]){ __VA_ARGS__, HARNESS_INLINE(NULL, NULL) })

/* Runs the world and asserts the list above. One test may run several worlds, one after the other. */
void harness_run(const struct harness_world *world);

/* A test that runs one world; its timeout in seconds, then the fields of struct harness_world. What follows is body[0],
 * with `job`. */
#define HARNESS_TEST(suite, name, timeout_s, ...) \
    static void suite##_##name##_in_worker_0(struct bx_job *job); \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        struct harness_world world = { __VA_ARGS__ }; \
\
        world.body[0] = suite##_##name##_in_worker_0; \
        harness_run(&world); \
    } \
    static void suite##_##name##_in_worker_0(__attribute__((unused)) struct bx_job *job)

/* The same for a world whose bodies are named: nothing follows but a semicolon. */
#define HARNESS_WORLD(suite, name, timeout_s, ...) \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        harness_run(&(struct harness_world){ __VA_ARGS__ }); \
    } \
    _Static_assert((timeout_s) > 0, "a test has a time limit")

/* Heads of handlers, with `request`, `args`, `reply` and `context`; of callbacks, with `future` and `context`; of
 * functions for bx_future_then, with `in`, `out` and `context`; of batches, with `batch` and `context`; and of bodies,
 * with `job`. What they name need not be used. */
#define HARNESS_UNUSED __attribute__((unused))
#define HARNESS_HANDLER(name) HARNESS_HANDLER_OF(name, struct bx_msg *)
#define HARNESS_ASYNC_HANDLER(name) HARNESS_HANDLER_OF(name, struct bx_future **)
#define HARNESS_HANDLER_OF(name, reply_type) \
    static int name(HARNESS_UNUSED const struct bx_request *request, HARNESS_UNUSED struct bx_reader *args, \
                    HARNESS_UNUSED reply_type reply, HARNESS_UNUSED void *context)
#define HARNESS_CALLBACK(name) \
    static void name(HARNESS_UNUSED struct bx_future *future, HARNESS_UNUSED void *context)
#define HARNESS_THEN(name) \
    static int name(HARNESS_UNUSED struct bx_future *in, HARNESS_UNUSED struct bx_msg *out, \
                    HARNESS_UNUSED void *context)
#define HARNESS_BATCH(name) static int name(HARNESS_UNUSED struct bx_batch *batch, HARNESS_UNUSED void *context)
#define HARNESS_BODY(name) static void name(HARNESS_UNUSED struct bx_job *job)

/* The same without assertions, and without `expect`, for processes outside of Criterion. Returns 0, or -1 after a line
 * on stderr. */
int harness_try(const struct harness_world *world);
/* Its `env`, for what reads the environment before. */
void harness_environ(const struct harness_world *world);

/* A body calls this first if it shuts down and destroys its job itself, or if its process ends without that. Such a
 * body calls harness_check_rescued and harness_check_loans itself. */
void harness_leaves_by_itself(void);
/* What the last one does of that: checks the counters, shuts down and destroys the job. */
void harness_leave(struct bx_job *job);
/* Checks that the counters rescued and timers_late are zero. */
void harness_check_rescued(const struct bx_job *job);
/* Waits until this worker has nothing on loan. A borrower returns what it holds when it ends. */
void harness_check_loans(struct bx_job *job);

/* The name of this process's job, or the name that the next harness_run will give. */
const char *harness_job_name(void);

/* "<prefix><pid>-<salt>", the same in each call of this process and of those that it forks later: for other names in
 * shared memory. An earlier test of the same pid may have left its own. */
void harness_name(char *name, size_t room, const char *prefix);

/* How many files of harness_job_name() are left in /dev/shm and in the socket directory. Prints each. */
int harness_left_behind(void);

/* ---- Memory shared by the test and its workers; zero at first -------------------------------- */

/* A gate is a counter. post adds 1; await sleeps until it is at least `least`. */
void harness_post(int gate);
void harness_await(int gate, uint32_t least);
uint32_t harness_gate(int gate);

void harness_store(int index, uint64_t value);
uint64_t harness_load(int index);
uint64_t harness_add(int index, uint64_t n);        /* returns the value before */
void harness_reset(void);                           /* sets all gates and values to zero, between two worlds */

/* ---- Helpers, bodies and handlers that many tests need --------------------------------------- */

/* Runs fn(job, 0) .. fn(job, count - 1), each on a thread, and joins them. */
void harness_threads(struct bx_job *job, int count, void (*fn)(struct bx_job *job, int index));
uint64_t harness_counter(const struct bx_job *job, const char *name);
/* Calls, destroys args and returns the i64 of the reply; fails if the call does. */
int64_t harness_call(struct bx_job *job, const char *to, const char *function, struct bx_msg *args);
/* The same, but returns the reply. */
struct bx_msg *harness_ask(struct bx_job *job, const char *to, const char *function, struct bx_msg *args);
/* harness_call with one i64 as args. */
int64_t harness_call_i64(struct bx_job *job, const char *to, const char *function, int64_t value);
struct bx_msg *harness_msg_i64(int64_t value);
/* Begins a call, destroys args and returns its future. timeout_ns is that of struct bx_call_options. */
struct bx_future *harness_start(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
                                uint64_t timeout_ns);
/* The same without args and options. */
struct bx_future *harness_async(struct bx_job *job, const char *to, const char *function);
/* Waits until the future has ended with that code, and releases it. */
void harness_end(struct bx_future *future, int code);
void harness_end_all(struct bx_future *const *futures, int count, int code);
/* The same with a value: the i64 of it. */
int64_t harness_end_i64(struct bx_future *future);
/* Cancels the future, which was not done, and releases it. */
void harness_cancel(struct bx_future *future);

/* Waits for what has no gate. The thread sleeps between two looks, so that it leaves the processors to those that it
 * waits for. */
#define HARNESS_WAIT_WHILE(condition) while (condition) usleep(100)

/* As kill, for a worker that is not a child of the caller: it may have ended, and its pid may be another process's by
 * now. Signals no process outside of this test's process group. 0, or -1. */
int harness_kill(pid_t pid, int signal_number);
/* The state of a thread, as the letter in /proc; '?' if it has ended. */
char harness_thread_state(pid_t pid, uint64_t tid);

/* Sends SIGSTOP and waits until all threads of the process have stopped. A thread stops when it is scheduled next. */
void harness_stop(pid_t pid);
void harness_await_stopped(pid_t pid);

/* Workers of the world that runs: the process, harness_kill of it, harness_stop of it. */
pid_t harness_pid(int rank);
void harness_signal(int rank, int signal_number);
void harness_stop_worker(int rank);

/* Gives this process a /dev/shm of its own of that size. Skips the test if it lacks the rights. */
void harness_mount_shm(unsigned kib);
/* Another size of the same, by a worker. */
void harness_resize_shm(uint64_t bytes);
/* Room for the control pages of two workers and for so many halves of rings with their lease words. Rings are
 * staggered, so one may touch a page more. */
#define HARNESS_HALF_RINGS(halves) \
    ((unsigned)(2 * bxi_control_used(2) / 1024 + (halves) * ((BXI_RING_BYTES + BXI_LEASE_BYTES) / 1024 + 8) / 2))

/* Bodies. serve: serves until another worker shuts down, whatever dies or is cut off before. die: kills itself. */
void harness_serve(struct bx_job *job);
void harness_die(struct bx_job *job);

/* Handlers. They answer the i64 of the request; twice that; the bytes of the request; nothing. */
int harness_echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int harness_twice(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int harness_echo_bytes(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int harness_nothing(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
/* An async handler that never answers. It keeps a reference until the future ends, so that it is not abandoned. */
int harness_never(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context);
/* A blocking handler: posts gate HARNESS_HELD, and returns when HARNESS_GO is posted. */
enum harness_gates { HARNESS_HELD = HARNESS_GATES - 2, HARNESS_GO };
int harness_hold(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
/* The body of a batch. It answers each row with an empty reply. */
int harness_no_rows(struct bx_batch *batch, void *context);

/* ---- Checks for workers: one that fails prints a line on stderr and ends the process ---------- */

_Noreturn void harness_failed(const char *file, int line, const char *format, ...) BX_PRINTF(3, 4);
void harness_eq(const char *file, int line, const char *text, long long actual, long long expected);
void harness_has(const char *file, int line, const char *text, const char *part);

#define HARNESS_CHECK(condition) \
    ((condition) ? (void)0 : harness_failed(__FILE__, __LINE__, "%s is not so", #condition))
#define HARNESS_EQ(actual, expected) \
    harness_eq(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
#define HARNESS_HAS(text, part) harness_has(__FILE__, __LINE__, (text), (part))

#endif
