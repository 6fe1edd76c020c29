/* SPDX-License-Identifier: MIT */
/*
 * boxcar.h - workers on one host call each other's functions through shared memory.
 *
 *     static int add(const struct bx_request *request, struct bx_reader *args,
 *                    struct bx_msg *reply, void *context)
 *     {
 *         int64_t a = bx_read_i64(args), b = bx_read_i64(args);
 *
 *         return bx_msg_put_i64(reply, a + b);
 *     }
 *     ...
 *     struct bx_job *job = NULL;
 *     int rc = bx_job_create(&(struct bx_options){ 0 }, &job);   // BX_JOB, BX_RANK, BX_WORLD_SIZE, BX_NAME
 *     rc = bx_register(job, "add", BX_INLINE, add, NULL);
 *     rc = bx_job_start(job);                                    // returns when every worker is there
 *     rc = bx_rpc_sync(job, "worker1", "add", args, NULL, &reply);
 *     rc = bx_job_shutdown(job, 0);                              // all leave together
 *     bx_job_destroy(job);
 *
 * Errors.   A function that returns int returns 0, a count or a negative code. That is -errno where the call itself is
 *           at fault, as the C library would say it: an argument, the memory, a limit, or the object that it was given
 *           (-EALREADY, -EREMOTE). It is one of BX_ERRORS for what becomes of a job, a worker, a call or a message. A
 *           handler may have codes of its own (BX_E_APPLICATION). Outputs are set on success only. bx_error_text() is
 *           a sentence about the last failure in the calling thread; a failed future keeps a sentence of its own. The
 *           library never exits or aborts. Its messages go to the log hook. It prints on stderr only what the
 *           environment asks for: these messages (BX_LOG), and why a worker is not traced (BX_TRACE).
 *           Common codes, not repeated below: -EINVAL for a NULL that is not documented as allowed (functions that
 *           return a pointer, bool, number or text return NULL, false, 0 or ""; void functions do nothing). BX_E_FORKED
 *           (below). Of functions that need a running job: BX_E_STATE before bx_job_start, BX_E_SHUTDOWN after the end
 *           or a failed start.
 * Threads.  A job, a future and a counter may be used from any thread. A message and a reader belong to one thread at a
 *           time. The library holds no lock while it runs the program's code.
 *           A thread that waits (bx_rpc_sync, bx_future_wait) or polls (bx_future_is_done) makes progress: inline and
 *           async handlers, batch bodies and callbacks may run on it, so it must hold no lock that they take.
 * Blocking. A function does not block unless its comment says "Blocks". Inside inline and async handlers, batch bodies
 *           that are not blocking, and callbacks nothing may wait: a function that would have to wait there returns
 *           BX_E_WOULD_DEADLOCK, or -EAGAIN if it waits for room to send.
 * Exit.     A handler, batch body or callback may call pthread_exit. The request it was answering fails with
 *           BX_E_HANDLER, the worker continues, and the thread ends when it has left the library; a thread of the
 *           library is replaced. This is not allowed in a bx_free_fn or in the log hook.
 *           Cancellation is deferred inside the library: a thread that is cancelled in bx_rpc_sync ends after that has
 *           returned. In a handler or a callback it may be cancelled at a cancellation point of the program's code,
 *           with the same effect as pthread_exit. The library's own threads, which also run blocking handlers, have
 *           cancellation disabled. Asynchronous cancelability is not supported.
 * Signals.  Call nothing of the library in a signal handler but bx_job_interrupt: it may need a lock that the
 *           interrupted thread holds. Waits go on after a handler has run, unless that has called bx_job_interrupt. The
 *           library's threads block all signals that are not faults.
 *           bx_job_start installs a SIGBUS handler for the whole process: a truncated segment then reads as zeros, and
 *           other faults go to the handler that was there before. A handler that is installed later must do the same.
 * C++.      No exception may leave a handler, hook or callback: it ends the process, or leaves the library locked.
 * Lifetime. The caller owns what a function returns through an output, unless the comment says otherwise.
 * Death.    When a worker dies, every future that waits for it fails with BX_E_PEER_DEAD and a sentence with its name,
 *           within milliseconds. The other workers continue.
 * Fork.     Fork workers before bx_job_create. After a fork the child gets BX_E_FORKED (NULL, false) from every call on
 *           the job and on its pending futures, and must not use them in any other way. It does not keep the job: the
 *           library closes what the child got of it (pthread_atfork). A child of a bare system call that goes on
 *           without exec keeps it: the job's name stays taken until it ends. The child reads the tensors in host memory
 *           that its parent had, its own and borrowed ones. It may write to its own, copy on write: nobody else sees
 *           that. They have their bytes for as long as the parent holds the tensor; the child may see what is written
 *           there next. The memory of those arenas is free when the child has ended too. A child that is forked
 *           after bx_job_shutdown shares the parent's own tensors: each sees what the other writes.
 * Versions. Options structs begin with struct_bytes: 0, or sizeof the struct in the header that the program is compiled
 *           with. Every other field left at 0 means the default. If the header is newer than the library, fields that
 *           the library does not know must be 0, else BX_E_VERSION. A program that finds functions by dlsym sets
 *           struct_bytes, or finds NAME_0_2 (BX_SINCE_0_2): for NAME, 0 is the size of version 0.1, and newer fields
 *           are not read. lib/ABI.md has the rules.
 */
#ifndef BOXCAR_H
#define BOXCAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BX_VERSION_MAJOR 0
#define BX_VERSION_MINOR 2
#define BX_VERSION_PATCH 0

#define BX_WORLD_MIN 2      /* of a job whose workers call each other; since 0.2 one worker may be a job too */
#define BX_WORLD_MAX 128    /* workers of a job on one host */
#define BX_WORKERS_MAX 1024 /* on all its hosts; since 0.2 */
#define BX_NAME_MAX 31      /* bytes of a name. A function's: any but 0; a job's and a worker's: bx_options */
#define BX_MSG_MAX (UINT64_C(1) << 30)  /* bytes of a message without tensors; more is BX_E_TOO_LARGE */
#define BX_TENSORS_MAX 1048576          /* tensors in a message; more is BX_E_TOO_LARGE */
#define BX_RREFS_MAX 1024               /* references in a message; more is BX_E_TOO_LARGE */
#define BX_DIMS_MAX 8       /* dimensions of a tensor */
#define BX_LEASES_MAX 1024  /* messages with tensors that one worker may have borrowed from another at a time */
#define BX_FOREVER UINT64_MAX

#if defined(__GNUC__)
#define BX_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define BX_PRINTF(text, first)
#endif

/* Of a function that has changed since 0.1: its symbol, NAME_0_2. For that a struct_bytes of 0 stands for the size in
 * this header. The symbol NAME is the function of 0.1, for programs compiled with 0.1. */
#define BX_SINCE_0_2(name) __asm__(#name "_0_2")

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)    /* the library is built with hidden visibility */
#endif

struct bx_job;
struct bx_tensor;
struct bx_msg;
struct bx_rref;
struct bx_future;

/* Frees a context of the program. Any thread may call it; it must not wait. */
typedef void (*bx_free_fn)(void *context);

/* ---- Errors ------------------------------------------------------------------------------------ */

/* One list makes the codes and their texts (bx_strerror). */
#define BX_ERRORS(X)                                                                                \
    X(BX_E_PEER_DEAD, -10001, "the worker called has died")                                         \
    X(BX_E_CORRUPT, -10002, "the peer's shared memory holds nonsense, it was cut off")              \
    X(BX_E_TOO_LARGE, -10003, "the message is too large")                                           \
    X(BX_E_WOULD_DEADLOCK, -10004, "waiting here would stop the thread that completes the wait")    \
    X(BX_E_BUSY, -10005, "every thread of the callee's pool is blocked in a wait")                  \
    X(BX_E_NO_FUNCTION, -10006, "the worker has no function of that name")                          \
    X(BX_E_NO_WORKER, -10007, "the job has no worker of that name")                                 \
    X(BX_E_TIMEOUT, -10008, "the deadline passed")                                                  \
    X(BX_E_CANCELLED, -10009, "the call was cancelled")                                             \
    X(BX_E_SHORT_MESSAGE, -10010, "a message was read past its end")                                \
    X(BX_E_NAME_TAKEN, -10011, "the name is taken")                                                 \
    X(BX_E_RANK_TAKEN, -10012, "the rank is taken")                                                 \
    X(BX_E_RANK_MISSING, -10013, "a rank did not come in time")                                     \
    X(BX_E_WORLD_SIZE, -10014, "the world size is wrong")                                           \
    X(BX_E_VERSION, -10015, "the peer speaks another version")                                      \
    X(BX_E_FORKED, -10016, "the process was forked after the job was created")                      \
    X(BX_E_SHUTDOWN, -10017, "the job or the worker is shutting down")                              \
    X(BX_E_REFUSED, -10018, "the callee could not open its reply ring")                             \
    X(BX_E_NO_SPACE, -10019, "/dev/shm is full")                                                    \
    X(BX_E_DESCRIPTORS, -10020, "the limit of open files is too low")                               \
    X(BX_E_SOCKET_DIR, -10021, "the socket directory cannot be used")                               \
    X(BX_E_JOB_RUNNING, -10022, "a job of that name is running")                                    \
    X(BX_E_WORKER_FAILED, -10023, "a worker ended badly")                                           \
    X(BX_E_INTERRUPTED, -10024, "a signal or bx_job_interrupt asked for the end")                   \
    X(BX_E_STATE, -10025, "the call does not fit the job's state")                                  \
    X(BX_E_HANDLER, -10026, "the handler failed")                                                   \
    X(BX_E_ABANDONED, -10027, "the future was released before anybody completed it")                \
    X(BX_E_URING, -10028, "io_uring was asked for and is not to be had")                            \
    X(BX_E_ON_LOAN, -10029, "as much is on loan to other workers as may be")                        \
    X(BX_E_ARENA_FULL, -10030, "the worker's arena is full")                                        \
    X(BX_E_TYPE, -10031, "an object or a value is of another type")                                 \
    X(BX_E_NO_OBJECT, -10032, "the object is gone, or was never made")                              \
    X(BX_E_LONG_MESSAGE, -10033, "a message has more than was to be read")

enum bx_error {
#define BX_ERROR_ENUM(name, value, text) name = value,
    BX_ERRORS(BX_ERROR_ENUM)
#undef BX_ERROR_ENUM
};

/* Codes of applications, n from 0 to BX_APPLICATION_ERRORS - 1. The library makes and changes none of them: what a
 * handler returns arrives at the caller. */
#define BX_E_APPLICATION(n) (-20000 - (n))
#define BX_APPLICATION_ERRORS 10000

/* Gives a code of BX_E_APPLICATION a name and a text, for bx_error_name and bx_strerror. Both are copied. It holds for
 * this process until it ends, without a job too. Only the code travels: each worker registers the codes that it wants
 * to name, and a code that is not registered reads "application error 3". name has 1 to BX_NAME_MAX bytes. 0 again for
 * the same name and text; -EEXIST: the code has another name or text; -EINVAL: the code or the name; -ENOMEM. */
int bx_error_register(int code, const char *name, const char *text);

/* The version of the library that runs, "0.2.0". Never NULL. */
const char *bx_version(void);

/* The general text of a code ("the deadline passed"), for -errno, BX_E_* and what bx_error_register names. Never NULL.
 * The storage is static or thread-local: the next call in the same thread may overwrite it. */
const char *bx_strerror(int code);

/* The name of a code: "BX_E_TIMEOUT", "-EAGAIN" and the like for errno, or the registered name. Never NULL. Storage as
 * bx_strerror. */
const char *bx_error_name(int code);

/* A sentence about the last failure in this thread, with names and numbers; "" if there was none. It is valid until
 * the next bx_ call of this thread that fails. Handlers and callbacks that run on this thread meanwhile do not change
 * it: each has a sentence of its own. */
const char *bx_error_text(void);

/* The code of that failure, for functions that return NULL; 0 if there was none. */
int bx_error_code(void);

/* Sets this thread's sentence and returns code. A handler fails with a text of its own this way:
 * `return bx_fail(-EINVAL, "row %d has no state", row);`. */
int bx_fail(int code, const char *format, ...) BX_PRINTF(2, 3);

/* Sets the hook for messages that no call returns (a peer's death, a pool that is stuck). level: 0 error, 1 warning,
 * 2 information. NULL, the default, means silence, unless BX_LOG is set (bx_job_create). Call it before bx_job_create.
 * The hook runs on any thread of the process that is inside the library; it must not call bx_ functions that wait. */
typedef void (*bx_log_fn)(int level, const char *text, void *context);
void bx_set_log(bx_log_fn log, void *context);

#include "boxcar_tensor.h"

/* ---- Messages ---------------------------------------------------------------------------------- */

/* A message has bytes, and tensors and references beside them. Each kind is read in the order in which it was written.
 * Values are packed without padding or tags, in the host's byte order. A writer's error is sticky: after the first
 * failure every put returns it, and so does a call that is given the message.
 *
 * So an f64 that is read as an i64 goes unnoticed. BX_CHECKED=1 in the environment makes it an error, for tests: the
 * kind of each value travels beside the bytes (8 bytes more a value), and a reader whose values have kinds gets
 * BX_E_TYPE if it reads one as another kind, or less or more than one. What put_bytes wrote may be read as anything,
 * any value by bx_read_bytes, and f32 and f32s as each other. Values that came from a worker without BX_CHECKED, and
 * messages of nearly BX_MSG_MAX bytes with the kinds, are read unchecked. An empty call takes about twice as long. */

/* Makes an empty message with room for reserve_bytes; it grows as needed. The caller owns it. NULL: out of memory. */
struct bx_msg *bx_msg_create(size_t reserve_bytes);
void bx_msg_destroy(struct bx_msg *msg);            /* NULL is allowed */
void bx_msg_clear(struct bx_msg *msg);              /* empties it: keeps the memory, clears the error */

/* Append a value. put_str writes the length (u32) and the bytes; put_bytes and put_f32s write the bytes alone, so the
 * reader must know their number. -ENOMEM. */
int bx_msg_put_i64(struct bx_msg *msg, int64_t value);
int bx_msg_put_u64(struct bx_msg *msg, uint64_t value);
int bx_msg_put_i32(struct bx_msg *msg, int32_t value);
int bx_msg_put_f64(struct bx_msg *msg, double value);
int bx_msg_put_f32(struct bx_msg *msg, float value);
int bx_msg_put_f32s(struct bx_msg *msg, const float *values, size_t count);
int bx_msg_put_str(struct bx_msg *msg, const char *text);
int bx_msg_put_bytes(struct bx_msg *msg, const void *data, size_t bytes);

/* Appends a tensor; the message holds a reference. Sending a tensor in the arena of the job that sends costs the same
 * for a kilobyte and a gigabyte, also a strided view; a view on loan keeps the whole block of its tensor. One that is
 * on loan from a third worker is passed on without a copy: this worker keeps its loan until the receiver has returned
 * its own, or until its process ends if it leaves before (counters tensors_passed_on, passed_on_bytes). A call with it
 * may fail with BX_E_PEER_DEAD or BX_E_SHUTDOWN if the owner dies or leaves meanwhile. One in host memory that is on
 * loan from the receiver goes back without a copy too: the receiver gets a read-only view of its own memory, which it
 * may write by its own tensor. Any other is copied into that arena, or on its device, once per send (tensors_copied,
 * tensor_bytes_copied). -ENOMEM. */
int bx_msg_put_tensor(struct bx_msg *msg, struct bx_tensor *tensor);

/* Appends a reference to an object; the message holds a reference of its own. Sending the message passes it on: the
 * object lives until the receiver has dropped it. -EINVAL: of another job; -ENOMEM. */
int bx_msg_put_rref(struct bx_msg *msg, struct bx_rref *rref);

size_t bx_msg_tensors(const struct bx_msg *msg);    /* how many tensors; 0 for NULL */
size_t bx_msg_rrefs(const struct bx_msg *msg);      /* how many references; 0 for NULL */
size_t bx_msg_bytes(const struct bx_msg *msg);      /* payload bytes so far; 0 for NULL */
const void *bx_msg_data(const struct bx_msg *msg);  /* payload; valid until next put, clear, destroy */
int bx_msg_error(const struct bx_msg *msg);         /* the sticky error, 0 if none */
/* Fails a message, for a writer of the program's own that cannot write all its values: code < 0 becomes the sticky
 * error, unless there is one. Returns the sticky error. -EINVAL: code >= 0, and the message has not failed. */
int bx_msg_fail(struct bx_msg *msg, int code);

/* A cursor over a message, which it borrows. It may be copied. Reading past the end returns 0, NULL or "" and sets
 * error to BX_E_SHORT_MESSAGE; the error is sticky. If a handler returns 0 and its args reader has an error, the call
 * fails with that code and the thread's sentence. */
struct bx_reader {
    const unsigned char *data;
    size_t bytes;
    size_t pos;
    int error;
    struct bx_tensor *const *tensors;   /* the ones not read yet */
    size_t tensor_count;
    struct bx_rref *const *rrefs;       /* the ones not read yet; with BX_CHECKED it may point elsewhere */
    size_t rref_count;
};
struct bx_reader bx_msg_reader(const struct bx_msg *msg);      /* NULL is an empty message */
int64_t bx_read_i64(struct bx_reader *reader);
uint64_t bx_read_u64(struct bx_reader *reader);
int32_t bx_read_i32(struct bx_reader *reader);
double bx_read_f64(struct bx_reader *reader);
float bx_read_f32(struct bx_reader *reader);
int bx_read_f32s(struct bx_reader *reader, float *values, size_t count);   /* copies; 0 or the error */
const char *bx_read_str(struct bx_reader *reader);             /* terminated; points into the message */
const void *bx_read_bytes(struct bx_reader *reader, size_t bytes);         /* points into the message */
size_t bx_reader_left(const struct bx_reader *reader);          /* bytes; 0 after an error, likewise tensors */
size_t bx_reader_tensors_left(const struct bx_reader *reader);
/* The next tensor; NULL past the last. The message owns it: acquire it to keep it longer than the message. The message
 * of a handler's args, of a batch row and of an async handler's args ends when the handler or body returns. */
struct bx_tensor *bx_read_tensor(struct bx_reader *reader);
/* The next reference; NULL past the last. The message owns it, as a tensor: bx_rref_acquire keeps it longer. */
struct bx_rref *bx_read_rref(struct bx_reader *reader);

/* ---- The job ----------------------------------------------------------------------------------- */

enum bx_wait {
    BX_WAIT_AUTO = 0,       /* io_uring, else epoll; BX_WAIT=uring|epoll in the environment forces one. The background
                             * thread; a thread of the program sleeps in ppoll(2) */
    BX_WAIT_URING = 1,      /* BX_E_URING if the kernel refuses it */
    BX_WAIT_EPOLL = 2,
};

struct bx_options {
    size_t struct_bytes;
    const char *job;            /* BX_JOB. 1 to BX_NAME_MAX of A-Z a-z 0-9 _ - . and no . at the beginning */
    const char *name;           /* BX_NAME; the same characters; default "worker<rank>" */
    int rank;                   /* 0 .. world_size-1; BX_RANK */
    int world_size;             /* 1 .. BX_WORKERS_MAX, of which a host has at most BX_WORLD_MAX. 0: job, name, rank and
                                 * world size come from the environment */
    uint64_t start_timeout_ns;  /* until all workers have come; default 30 s */
    uint64_t call_timeout_ns;   /* of calls without a timeout of their own; default 60 s; BX_FOREVER */
    uint64_t spin_ns;           /* most that a thread spins before it sleeps; default 100 us, adapted */
    bool no_spin;               /* sleep at once */
    enum bx_wait wait;
    bool own_loop;              /* no background thread: the program polls bx_job_fd and calls bx_progress */
    uint64_t arena_bytes;       /* most bytes of its tensors; default 64 GiB, BX_ARENA_BYTES. This is address space:
                                 * pages are taken from /dev/shm as tensors are made */
    uint64_t loan_bytes_max;    /* most bytes of its tensors on loan at a time; default: no bound */
    int pool_threads;           /* most blocking handlers and batch bodies that run at a time, 1 to 256, not counting
                                 * those that wait in a call or for a future; default 16, BX_POOL_THREADS. Threads are
                                 * made when they are needed, 256 at most */
    uint64_t rejoin;            /* since 0.2; BX_REJOIN=1. Not 0: a new process may take the rank of a worker that died
                                 * (bx_job_start). All workers of a job give the same. 64 bits: no padding of 0.1 */
};

/* Makes a worker: checks the options, opens its descriptors. options is only read; NULL takes all from the environment.
 * Register functions and make tensors next, then call bx_job_start. The caller destroys the job. -EINVAL: the sentence
 * names the option; BX_E_WORLD_SIZE; BX_E_VERSION; BX_E_URING; BX_E_DESCRIPTORS: 3 x world_size + 64 descriptors are
 * unavailable (with rejoin 6 x, with several hosts 4 x); -ENOMEM; -errno.
 *
 * Further variables; boxcar(7) has all: BX_LOG=error|warn|info prints the log's messages of that level and worse on
 * stderr, a line each. BX_CHECKED=1 checks that values are read as they were written. BX_HIST=all|off sets how many
 * calls shmstat's histograms measure. BX_TRACE=FILE, with BX_TRACE_EVENTS, writes a timeline of all workers
 * (boxcar_trace.h); a job that cannot write it starts all the same. A program with more rights than its caller
 * (set-user-ID and the like) ignores BX_LOG and what names a file. */
int bx_job_create(const struct bx_options *options, struct bx_job **job) BX_SINCE_0_2(bx_job_create);

/* Meets the other workers, also those of other hosts (BX_ROOT in boxcar(7)). Blocks until all world_size workers are
 * there, at most start_timeout_ns. Call it once.
 * BX_E_RANK_MISSING: the sentence names the ranks that did not come. BX_E_NAME_TAKEN, BX_E_RANK_TAKEN: also by a job
 * that runs. BX_E_PEER_DEAD: a worker died while starting. BX_E_WORKER_FAILED (under bx_spawn): a worker ended before
 * the job had started; the sentence has its name and how it ended. BX_E_WORLD_SIZE, BX_E_VERSION, BX_E_SOCKET_DIR,
 * BX_E_JOB_RUNNING, BX_E_NO_SPACE. -EFBIG, -ENOMEM: RLIMIT_FSIZE or RLIMIT_AS forbid the segment or an arena (the
 * sentence says which). -EINVAL: two workers differ in options.rejoin, or are in different time namespaces.
 * With options.rejoin it first searches for a job of that name that runs and in which this worker's rank is dead. If
 * there is one, the worker joins it, under the same name: it meets the workers that live, and returns when all of them
 * have attached it. A call that another worker begins after that is to this one: it does not fail with BX_E_PEER_DEAD
 * for the worker before. bx_worker_is_alive and bx_on_join may be later. Nobody else fails if this does not succeed.
 * BX_E_RANK_TAKEN: the rank lives; BX_E_RANK_MISSING: the sentence names a worker that did not answer in time;
 * BX_E_SHUTDOWN: the job is ending; -EINVAL: another name than the rank had before; -EOVERFLOW: the rank was taken 32
 * times. Since 0.2.
 * If one worker fails to start, the start of all that wait fails at once, with its code and its sentence. Without
 * bx_spawn nobody notices that a program was never started: the log hook gets the missing ranks after two seconds,
 * and every ten seconds after that. A job whose start failed can only be destroyed. */
int bx_job_start(struct bx_job *job);

/* Serves calls until another worker begins its shutdown. For a worker whose main thread has nothing else to do. Blocks.
 * 0: a worker begins its shutdown, or no other is left. BX_E_PEER_DEAD, BX_E_CORRUPT: a worker died or was cut off;
 * the sentence names it. Each is reported once: call again to go on serving. BX_E_SHUTDOWN: another thread shut the job
 * down; BX_E_WOULD_DEADLOCK. */
int bx_job_serve(struct bx_job *job);

/* Leaves the job together with the others: waits until this worker's calls are done and its handlers have answered,
 * serves the others until nothing runs or is under way in any worker, then stops. timeout_ns 0 means 30 s. Dead workers
 * are not waited for. Until then handlers and callbacks call other workers as ever, one-way too, and what they call
 * runs. Another thread may call meanwhile. Once this worker's own calls are done, its calls fail with BX_E_SHUTDOWN,
 * unless a handler of this worker is at work. A call that was accepted runs, unless its callee dies, or leaves by
 * bx_job_destroy alone or at the end of its timeout_ns. Where options.rejoin is set, no worker joins from here on; one
 * that was joining is waited for, until it has left too or has given up.
 * Blocks. After it returns no handler or callback of this job runs or will run, on any thread; only bx_job_destroy may
 * follow. BX_E_TIMEOUT: the sentence names the worker that did not come; the job has stopped all the same and its names
 * are removed. BX_E_WOULD_DEADLOCK: called from a handler of any kind, a batch body or a callback; BX_E_STATE: another
 * thread shuts the job down. After these two nothing has changed. */
int bx_job_shutdown(struct bx_job *job, uint64_t timeout_ns);

/* Frees the job. A job that was not shut down leaves at once: its peers see BX_E_SHUTDOWN. NULL is allowed. No other
 * thread may be in a function of the job, or complete one of its futures: join such threads first. Blocks until threads
 * of the library have ended. Called from a handler, a batch body or a callback it does nothing but log an error. */
void bx_job_destroy(struct bx_job *job);

/* Ends this worker's waits, so that the program can leave in order. From the call with true on, each wait returns
 * BX_E_INTERRUPTED: those under way, at once, and those that begin later, unless what they wait for is there already.
 * With false, waits work again. It holds for bx_job_start (which fails), bx_job_serve, every function whose comment
 * says "Blocks" and that waits for other workers, and for blocking handlers as well; not for bx_job_shutdown,
 * bx_job_destroy and bx_gpu_open. A call that waits for its reply is cancelled; a future, a reference or a loan lives
 * on. own_loop: bx_job_fd becomes readable. NULL is allowed, and in the child of a fork it does nothing.
 * From any thread and any signal handler, from bx_job_create until bx_job_destroy is called; errno is kept. A program
 * that ends on Ctrl-C; under bx_spawn take SIGTERM, which workers get from the launcher, grace_ns before SIGKILL:
 *
 *     static struct bx_job *job;
 *     static void on_signal(int number) { (void)number; bx_job_interrupt(job, true); }
 *     ...
 *     signal(SIGINT, on_signal);
 *     while ((rc = work(job)) == 0)            // BX_E_INTERRUPTED ends it
 *         ;
 *     signal(SIGINT, SIG_DFL);
 *     rc = bx_job_shutdown(job, timeout_ns);   // serves the others until they leave too
 */
void bx_job_interrupt(struct bx_job *job, bool on);

int bx_job_rank(const struct bx_job *job);                           /* rank of this worker */
int bx_job_world_size(const struct bx_job *job);                     /* how many workers it has, dead ones too */
const char *bx_job_name(const struct bx_job *job);                   /* this worker's name */
const char *bx_worker_name(const struct bx_job *job, int rank);      /* of a rank; NULL: none, or before the start */
int bx_worker_rank(const struct bx_job *job, const char *name);      /* the rank of a worker, or BX_E_NO_WORKER */
/* Returns a name of the worker of a rank, in every job: "#3". Each function that takes a worker's name takes it. Never
 * NULL; of a rank that is 0 to 127 the text is static, of another one the thread's. */
const char *bx_rank(int rank);
bool bx_worker_is_alive(const struct bx_job *job, int rank);            /* it has not died, left or been cut off */
/* How many processes have had this rank, with the one that has it now: 1, or more if workers have come back
 * (options.rejoin). 0: it is not known, or before the start. -EINVAL: no such rank. Since 0.2. */
int bx_worker_generation(const struct bx_job *job, int rank);
/* The host of a worker of a job of several hosts: what BX_HOST says there, else the boot id and the file system of
 * /dev/shm. Of a job of one host "". NULL: there is no such rank. The job's memory. Since 0.2. */
const char *bx_worker_host(const struct bx_job *job, int rank);

/* Sets the hook that is called once for each peer that dies, on the thread that makes progress; it must not wait. One
 * hook a job; NULL removes it. Call it before bx_job_start, else BX_E_STATE. */
typedef void (*bx_death_fn)(struct bx_job *job, int rank, void *context);
int bx_on_death(struct bx_job *job, bx_death_fn fn, void *context);

/* Sets the hook that is called once for each worker that comes back (options.rejoin), when it can be called; otherwise
 * as bx_on_death. What the rank's last worker was lent, referred to or a member of is gone. Since 0.2. */
typedef void (*bx_join_fn)(struct bx_job *job, int rank, void *context);
int bx_on_join(struct bx_job *job, bx_join_fn fn, void *context);

/* For a program with an event loop of its own (own_loop). bx_job_fd: a descriptor that is readable when bx_progress has
 * work; the job owns it. BX_E_STATE: own_loop is not set, or before the start. bx_progress makes progress and returns
 * the number of frames, timers and callbacks handled. It may be called without own_loop too, and returns 0 if another
 * thread makes progress. */
int bx_job_fd(const struct bx_job *job);
int bx_progress(struct bx_job *job);

/* Reads a counter of this worker by its name in lib/base/counters.h ("calls_sent", "doorbells_rung", "waits_epoll",
 * "rescued", ...). -ENOENT: no such counter. */
int bx_counter(const struct bx_job *job, const char *name, uint64_t *value);

/* ---- The arena and its loans --------------------------------------------------------------------- */

struct bx_arena_info {
    size_t struct_bytes;
    uint64_t size_bytes;        /* options.arena_bytes, rounded */
    uint64_t used_bytes;        /* of blocks in use, on loan or not, with the waste of size classes */
    uint64_t committed_bytes;   /* what the arena holds of /dev/shm */
    uint64_t high_water_bytes;  /* largest used_bytes since the start or the last trim */
};
/* Collects returned leases, then fills info. Zero info first: struct_bytes is read. No codes but the common ones. */
int bx_job_arena(struct bx_job *job, struct bx_arena_info *info);

/* Returns unused memory to /dev/shm. Without it an arena keeps what it once needed, for speed. */
int bx_arena_trim(struct bx_job *job);

struct bx_loans {
    size_t struct_bytes;
    uint64_t leases;            /* on loan now, one a message */
    uint64_t bytes;             /* of their tensors; a block on two leases counts twice */
    uint64_t oldest_ns;         /* age of the oldest; 0: none */
    uint64_t granted;           /* leases since the start */
    uint64_t returned;          /* of them, returned by the borrower */
    uint64_t taken_back;        /* of them, reclaimed because the borrower died */
    uint64_t borrowed;          /* the other way: leases of that worker that this one holds */
};
/* Collects returned leases, then fills loans with what this worker has on loan to one worker by its rank, itself
 * included, or to all (-1). What workers that had the rank before still have on loan counts. Zero loans first:
 * struct_bytes is read. -EINVAL: no such rank. */
int bx_job_loans(struct bx_job *job, int rank, struct bx_loans *loans);

/* Waits until at most `leases` leases are on loan to that worker (-1: to all), counted as by bx_job_loans. Blocks. The
 * leases of one that has left or was cut off return when its process ends. BX_E_TIMEOUT, BX_E_WOULD_DEADLOCK,
 * BX_E_SHUTDOWN; -EINVAL: no rank. */
int bx_loans_wait(struct bx_job *job, int rank, uint64_t leases, uint64_t timeout_ns);

/* ---- Handlers ---------------------------------------------------------------------------------- */

/* The request that a handler answers. It is valid until the handler returns. */
struct bx_request;
struct bx_job *bx_request_job(const struct bx_request *request);
int bx_request_caller(const struct bx_request *request);                 /* rank */
const char *bx_request_function(const struct bx_request *request);
uint64_t bx_request_deadline_ns(const struct bx_request *request);       /* CLOCK_MONOTONIC, or BX_FOREVER */

/* True once the caller has given the request up: it cancelled the call, the deadline has passed, or the caller has died
 * or left. The calls that the handler has made for the request end then (below, Calls), and its answer is dropped. Only
 * an answer that comes before the caller's own timer has run at the deadline is still the call's result. A blocking
 * handler polls this in a long computation; it costs about the read of a clock. An inline handler learns of the
 * deadline only, since the thread that would read the cancel is its own. Always false for a one-way call, whose caller
 * does not wait. Since 0.2. */
bool bx_request_is_cancelled(const struct bx_request *request);

/* Sets the hook of a blocking handler, for example to end a wait in other code: fn runs once when the caller gives the
 * request up, on the thread that makes progress, or at once on this thread if that has happened. No lock is held; fn
 * must not wait. Calls that fn makes are not made for the request.
 * A request has one hook: another fn replaces it, NULL removes it. When this returns, the hook before does not run any
 * more, for this waits until it has returned. The same is done when the handler has returned, before the answer is
 * sent. By then the handler's own variables are gone: if context is one of them, remove the hook before.
 * -EINVAL: the handler is not blocking (the future of an async one has bx_future_on_done); -ENOMEM. Since 0.2. */
typedef void (*bx_cancel_fn)(void *context);
int bx_request_on_cancel(const struct bx_request *request, bx_cancel_fn fn, void *context);

enum bx_kind {
    BX_INLINE = 1,      /* for short handlers: runs on the thread that makes progress, must not wait */
    BX_BLOCKING = 2,    /* runs on the pool, may call and wait. If handlers wait for each other in another way (a
                         * condition variable, a pipe), options.pool_threads must be at least the number that wait at a
                         * time: further requests are queued. A queue that has not moved for a second is logged;
                         * shmstat why shows it */
    BX_LOCKED = 3,      /* as BX_BLOCKING, for handlers that compute under one lock, as those of an interpreter do: no
                         * thread of the pool is woken for a request while the thread that began the last one may be
                         * back at once. It is after 0.1 ms, or when that thread waits for another call */
};

/* A handler reads args, writes reply and returns 0, or a negative code, with bx_fail for a text of its own. A code of
 * the program's own is a BX_E_APPLICATION; -1 is -EPERM, "Operation not permitted". It borrows all of them. The caller
 * gets the code and the text, with this worker's name and the function's in front. A positive value counts as 0. The
 * answer to a one-way call is dropped; its failure goes to the log hook. */
typedef int (*bx_handler_fn)(const struct bx_request *request, struct bx_reader *args,
                             struct bx_msg *reply, void *context);

/* An async handler returns a future whose value becomes the reply; the library takes over the reference. It runs on the
 * thread that makes progress, must not wait, and holds no thread until the future is done. When the caller's deadline
 * passes, or the caller cancels, dies or leaves, the library fails the future with BX_E_CANCELLED, BX_E_PEER_DEAD or
 * BX_E_SHUTDOWN: bx_future_on_done reports that, and a later bx_future_set returns -EALREADY. So it does, with
 * BX_E_CANCELLED, if the request fails otherwise: the handler returns an error as well, or memory is out. The future
 * may be that of a call of the handler's own (bx_rpc_async): then that call is cancelled too. */
typedef int (*bx_async_fn)(const struct bx_request *request, struct bx_reader *args,
                           struct bx_future **reply, void *context);

/* Registers a function; name is copied, context is passed to each run. If it is registered before bx_job_start, every
 * worker finds it from its first call on; later is allowed too. -EEXIST: the name is taken; -ENOSPC: 128 functions;
 * -EINVAL: the name, or no function. */
int bx_register(struct bx_job *job, const char *name, enum bx_kind kind, bx_handler_fn fn,
                void *context);
/* As bx_register. BX_BLOCKING: for a handler that computes, calls or waits before it has a future: fn runs on the pool,
 * and its thread is free once it has returned. If the library fails the future while fn still runs, it fails as soon as
 * fn returns it. */
int bx_register_async(struct bx_job *job, const char *name, enum bx_kind kind, bx_async_fn fn, void *context)
    BX_SINCE_0_2(bx_register_async);

/* ---- Calls ------------------------------------------------------------------------------------- */

struct bx_call_options {
    size_t struct_bytes;
    uint64_t timeout_ns;    /* 0: the job's call_timeout_ns; BX_FOREVER */
    bool no_wait;           /* -EAGAIN instead of waiting for room or for leases */
    uint64_t flags;         /* of enum bx_call_flag; since 0.2 */
};
enum bx_call_flag {         /* any other bit: -EINVAL */
    BX_CALL_DETACHED = 1,   /* made for no request: see Calls for a request */
    BX_CALL_WAIT_JOIN = 2,  /* to a worker that is known to be dead: wait until it has come back (options.rejoin, else
                             * -EINVAL), until the deadline. With no_wait, or where nothing may wait: BX_E_PEER_DEAD. A
                             * call that was sent to a worker which then dies fails all the same: it may have run */
};

/* Calls for a request. A call of any kind that a blocking or async handler makes on its own thread is made for the
 * request that it answers. So is a call in a callback that was added there (bx_future_on_done, then), until the request
 * is answered. Such a call has the request's deadline if its own is later. When the caller gives the request up
 * (bx_request_is_cancelled), the calls for it that are not done fail, with a sentence that names the request: with
 * BX_E_TIMEOUT if its deadline has passed, else with BX_E_CANCELLED; so does each further one. Their callees are told,
 * and so it goes on through any number of workers. A thread that waits for such a call returns at once.
 * What is still under way when the request has been answered goes on, with the deadline that it has. A call that is to
 * outlive the request is made with BX_CALL_DETACHED.
 * Not made for a request: calls in inline handlers and batch bodies, in other threads of a handler, of another job than
 * the request's, and for one-way calls, whose caller waits for nothing. A program does it itself there:
 * bx_request_deadline_ns, bx_future_cancel. */

/* Room. 1024 calls may be in flight to one worker. A message with tensors, or with more bytes than a frame of 16 KiB,
 * also takes a lease of the callee: at most BX_LEASES_MAX of them and loan_bytes_max bytes. If a bound is reached, a
 * call waits until its deadline; with no_wait, or where nothing may wait, it returns -EAGAIN. A reply that reaches a
 * bound of leases fails at the caller with BX_E_ON_LOAN. */

/* Calls a function of worker `to`, a name or bx_rank(n), and waits for the reply. That may be the caller itself. args
 * is borrowed and may be NULL. *reply is owned by the caller; reply may be NULL. Calls run at most once and are never
 * retried; requests of one worker to another arrive in the order sent. Blocks.
 * Returns what the handler returned, or BX_E_TIMEOUT, BX_E_PEER_DEAD, BX_E_NO_WORKER, BX_E_NO_FUNCTION,
 * BX_E_TOO_LARGE, BX_E_REFUSED, BX_E_NO_SPACE, BX_E_ARENA_FULL, BX_E_ON_LOAN, BX_E_BUSY, BX_E_CORRUPT, BX_E_SHUTDOWN,
 * -EAGAIN. -EAGAIN and -ENOMEM also come from a callee that cannot create a thread for a blocking handler (the
 * sentence says so). BX_E_WOULD_DEADLOCK: called where nothing may wait. */
int bx_rpc_sync(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                const struct bx_call_options *options, struct bx_msg **reply) BX_SINCE_0_2(bx_rpc_sync);

/* As bx_rpc_sync, without the wait: *future is the caller's to release, and gets the codes of the call. Blocks only for
 * room. Releasing the future does not end the call: cancel it, or this worker's shutdown waits for its answer. Returned
 * at once, without a future: BX_E_NO_WORKER, BX_E_NO_FUNCTION, BX_E_TOO_LARGE, BX_E_PEER_DEAD, BX_E_CORRUPT,
 * BX_E_NO_SPACE, BX_E_ARENA_FULL, BX_E_ON_LOAN, -EAGAIN, -ENOMEM; BX_E_TIMEOUT: no room until the deadline. */
int bx_rpc_async(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                 const struct bx_call_options *options, struct bx_future **future) BX_SINCE_0_2(bx_rpc_async);

/* count calls of one function, as bx_rpc_async with args[i] and futures[i] in turn, but sent together, in groups of up
 * to 64: a group costs one lock and one bell, and the callee sees it at once. What needs a lease or has references goes
 * by itself. args, or any args[i], may be NULL. 0, or the code of the first that could not be sent: those before it are
 * under way, its future and all behind it are NULL. */
int bx_rpc_many(struct bx_job *job, const char *to, const char *function, size_t count,
                const struct bx_msg *const *args, const struct bx_call_options *options, struct bx_future **futures)
    BX_SINCE_0_2(bx_rpc_many);

/* Sends a request without a reply; no error of the callee comes back. 0: the frame is in the ring. Blocks only for room
 * in the ring, with -EAGAIN as above. Codes as bx_rpc_async. */
int bx_rpc_oneway(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                  const struct bx_call_options *options) BX_SINCE_0_2(bx_rpc_oneway);

/* ---- Futures ----------------------------------------------------------------------------------- */

/* A value that is set once or failed once. Reference-counted: create, then, chain, all, any and the calls return one
 * reference, acquire adds one, release drops one. A future that nobody can complete any more, because its maker has
 * released it, fails with BX_E_ABANDONED. A future belongs to its job: bx_job_destroy fails pending ones with
 * BX_E_SHUTDOWN; afterwards a future may only be read and released. If the last reference is released and nothing has
 * told of the error (a wait, a callback, bx_future_error, bx_future_value), it is logged, but for BX_E_CANCELLED,
 * BX_E_ABANDONED and BX_E_SHUTDOWN. */

/* Makes a pending future. job may be NULL: then nobody can wait for it. NULL: out of memory, or the job ends. */
struct bx_future *bx_future_create(struct bx_job *job);
struct bx_future *bx_future_acquire(struct bx_future *future);
void bx_future_release(struct bx_future *future);               /* NULL is allowed */

/* Complete a future; its callbacks run on this thread. set takes value over, also if it fails; value may be NULL, and
 * if it has a sticky error the future fails with that. fail: code < 0, else -EINVAL; text may be NULL. -EALREADY: the
 * future was done. -EINVAL: it is a call's (bx_rpc_async), which only its reply or bx_future_cancel ends. */
int bx_future_set(struct bx_future *future, struct bx_msg *value);
int bx_future_fail(struct bx_future *future, int code, const char *text);

/* Fails the future with BX_E_CANCELLED. A request that still waits at the callee (pool, batch) is not run. -EALREADY:
 * the future was done. */
int bx_future_cancel(struct bx_future *future);

/* Waits until the future is done, at most timeout_ns. Blocks. 0: it was set; its code if it failed; BX_E_TIMEOUT: it is
 * not done, and lives on; BX_E_WOULD_DEADLOCK: it is not done and nothing may wait here. done makes progress before it
 * returns false. */
int bx_future_wait(struct bx_future *future, uint64_t timeout_ns);
bool bx_future_is_done(const struct bx_future *future);
int bx_future_error(const struct bx_future *future);            /* 0: set, or not done */
const char *bx_future_error_text(const struct bx_future *future);  /* "" unless failed; the future owns it */
const struct bx_msg *bx_future_value(const struct bx_future *future);  /* NULL unless set; the future owns it */

/* Adds a callback: fn runs once, on the thread that completes the future, or at once on this thread if it is done. No
 * lock is held; fn must not wait. -ENOMEM. */
typedef void (*bx_done_fn)(struct bx_future *future, void *context);
int bx_future_on_done(struct bx_future *future, bx_done_fn fn, void *context);

/* Returns a future of what fn makes of this one's value: fn writes `out` and returns 0, or a negative code. An error
 * skips fn and fails the new future too. then_any calls fn for errors as well (bx_future_error(in)), and fn may turn
 * them into a value. fn runs as in bx_future_on_done. free_context, which may be NULL, runs once with the context, when
 * fn has returned or is skipped. The new future is done after that, unless the program completes or cancels it before.
 * NULL: out of memory, or the job ends; then free_context does not run. */
typedef int (*bx_then_fn)(struct bx_future *in, struct bx_msg *out, void *context);
struct bx_future *bx_future_then(struct bx_future *future, bx_then_fn fn, void *context, bx_free_fn free_context)
    BX_SINCE_0_2(bx_future_then);
struct bx_future *bx_future_then_any(struct bx_future *future, bx_then_fn fn, void *context, bx_free_fn free_context)
    BX_SINCE_0_2(bx_future_then_any);

/* Returns a future of what fn begins with this one's value: fn makes a call, say, and returns 0 and the call's future
 * in *next; the library takes over the reference. The new future ends as *next does: with its value, which is not
 * copied, or its code and text. It fails with the error of `future` (fn is skipped) or of fn, and with BX_E_HANDLER if
 * *next is NULL. If it is cancelled, or the caller of the async handler that returned it gives up, fn is skipped, or
 * *next is cancelled, whoever else has it; `future` goes on. fn and free_context run as in bx_future_then. Two
 * futures that wait for each other are never done; *next that is the new future itself fails it with -EDEADLK. */
typedef int (*bx_chain_fn)(struct bx_future *in, struct bx_future **next, void *context);
struct bx_future *bx_future_chain(struct bx_future *future, bx_chain_fn fn, void *context, bx_free_fn free_context);

/* Combine futures. all: done when all are; its value is an empty message; it fails with the first failure, once all are
 * done. any: done when one future is; its value is the index, an i64; it fails if that one failed. When the result is
 * done, or is released and has no callbacks, its callbacks are removed from the futures that are pending. count 0: all
 * is done at once, any is NULL. job may be NULL, as in bx_future_create. NULL: out of memory, or the job ends. */
struct bx_future *bx_future_all(struct bx_job *job, struct bx_future *const *futures, size_t count);
struct bx_future *bx_future_any(struct bx_job *job, struct bx_future *const *futures, size_t count);

/* Which future ended a bx_future_any, by its value or its failure. -1: none has, or it is not made by bx_future_any. */
int64_t bx_future_index(const struct bx_future *any);

/* What the i-th future of a bx_future_all became, also if another one failed. NULL and 0 before `all` is done, if it
 * was cancelled before the i-th was done, and for a future that is not made by bx_future_all. `all` holds a reference
 * to each future from when that is done until `all` itself is released: so long the values are valid. */
const struct bx_msg *bx_future_all_value(const struct bx_future *all, size_t i);
int bx_future_all_error(const struct bx_future *all, size_t i);

#include "boxcar_rref.h"
#include "boxcar_call.h"

/* ---- Batches ----------------------------------------------------------------------------------- */

/* A batch gathers calls of one function and answers them together. The body runs when every living member has a row,
 * or there are max_rows rows, or the oldest row has waited flush_after_ns. A batch has at most one row of each worker;
 * rows are in the order of the callers' ranks. A second call by one worker, and a call while the body runs, join the
 * next batch. A row whose deadline has passed is left out. */
struct bx_batch;
struct bx_batch_options {
    size_t struct_bytes;
    size_t max_rows;            /* default: only members bound it */
    uint64_t flush_after_ns;    /* default: no limit */
    bool blocking;              /* run the body on the pool, where it may wait */
};
typedef int (*bx_batch_fn)(struct bx_batch *batch, void *context);  /* a code < 0 fails every row */
/* Registers a function whose calls are answered in batches. Codes as bx_register; BX_E_VERSION, -ENOMEM. */
int bx_register_batch(struct bx_job *job, const char *name, bx_batch_fn fn, void *context,
                      const struct bx_batch_options *options);
int bx_register_method_batch(struct bx_job *job, const struct bx_type *type, const char *name, bx_batch_fn fn,
                             void *context, const struct bx_batch_options *options);

/* Members are the workers that a batch waits for, until they leave or die; when the last one does, what waits is run.
 * Without members only max_rows and flush_after_ns end a batch (without these too, every call is a batch of its own).
 * add and remove are for the worker that registered the function, before or after the start: -ENOENT: no such batch;
 * -EINVAL: no such rank; BX_E_PEER_DEAD (add). join and leave are calls that the member makes, in order with its other
 * calls: they block, with the codes of bx_rpc_sync. */
int bx_batch_add_member(struct bx_job *job, const char *function, int rank);
int bx_batch_remove_member(struct bx_job *job, const char *function, int rank);
int bx_batch_join(struct bx_job *job, const char *to, const char *function);
int bx_batch_leave(struct bx_job *job, const char *to, const char *function);

/* What the body uses, until it returns. A row that is not there: -EINVAL, NULL, or an empty reader. */
size_t bx_batch_rows(const struct bx_batch *batch);
int bx_batch_caller(const struct bx_batch *batch, size_t row);             /* rank */
struct bx_reader bx_batch_args(const struct bx_batch *batch, size_t row);
void *bx_batch_object(const struct bx_batch *batch, size_t row);           /* that the row was called on; or NULL */
struct bx_msg *bx_batch_reply(struct bx_batch *batch, size_t row);         /* to write into; the batch owns it */
int bx_batch_reply_i64(struct bx_batch *batch, size_t row, int64_t value);
int bx_batch_fail_row(struct bx_batch *batch, size_t row, int code, const char *text);

/* ---- Launch ------------------------------------------------------------------------------------ */

/* The body of a worker process: gets its options (job, name, rank, world size filled in), creates and starts the job
 * itself, and returns the exit status of the process. */
typedef int (*bx_worker_fn)(const struct bx_options *options, void *context);

struct bx_spawn_options {
    size_t struct_bytes;
    const char *job;                    /* default: a unique name made from the pid */
    int world_size;                     /* 1 .. BX_WORLD_MAX */
    const char *const *names;           /* world_size names, by rank; default "worker<rank>" */
    uint64_t grace_ns;                  /* from the first failure to SIGTERM, and from there to SIGKILL; default 1 s */
    const struct bx_options *options;   /* all other fields of every worker's options; may be NULL */
    int restart;                        /* most times that each worker is started again when it dies, 0 to 31; since
                                         * 0.2. More than 0 sets `rejoin` in all workers' options */
};

struct bx_spawn_report {
    int failed_rank;            /* the first that ended badly; -1: none */
    int exit_status;            /* its exit status; -1: a signal ended it */
    int term_signal;            /* that signal, else 0 */
    int interrupt_signal;       /* the SIGINT or SIGTERM that the launcher got, else 0 */
};

/* Forks world_size workers, as direct children in the order of their ranks, and waits for all of them. Blocks. Call it
 * from the only thread of a process that has no job. options is only read; report may be NULL. The workers die with
 * the launcher. When one ends badly the others get grace_ns to end by themselves, then SIGTERM, then SIGKILL; a SIGINT
 * or SIGTERM to the launcher ends them too. What they left in /dev/shm is removed.
 * With `restart` a worker that ends badly inside the job is forked again at once (after a wait of 0.1 to 5 s if it died
 * within a second, twice and more in a row), with the same options, and joins the job while others are in it. That is
 * no failure, unless its restarts are used up, or the job ends before it has come back. Each restart is a line of the
 * log (bx_set_log; BX_LOG in the launcher's environment).
 * 0: every worker returned 0. BX_E_WORKER_FAILED: one did not, or exited with status 0 inside the job, which the others
 * see as a death; the sentence and report say who and how. BX_E_INTERRUPTED: a signal ended the job. -EINVAL,
 * BX_E_WORLD_SIZE, BX_E_NAME_TAKEN, BX_E_VERSION; -errno of fork or mmap. */
int bx_spawn(const struct bx_spawn_options *options, bx_worker_fn fn, void *context,
             struct bx_spawn_report *report) BX_SINCE_0_2(bx_spawn);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
