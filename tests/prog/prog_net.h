/* SPDX-License-Identifier: MIT */
/*
 * What prog_net and prog_net_end share: checks that print and count their failures, a barrier, and where each worker
 * is.
 * Included by one file of each program.
 */
#ifndef PROG_NET_H
#define PROG_NET_H

#include "tests/harness/handlers.h"

#include "boxcar.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORLD_MOST BX_WORKERS_MAX
#define MS UINT64_C(1000000)

static struct bx_job *job;
static int rank, size;
static char host_of[WORLD_MOST][64];            /* by rank, since start() */
static bool starts_quietly;                     /* nobody calls anybody: two hosts by turns */
static int failures;
static struct libc_code {
    unsigned char of[6][16];                    /* the first bytes of functions */
} libc_code;                                    /* before the start */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;       /* failures, and what the programs say */

#define EXPECT(condition, ...) expect(condition, #condition, __LINE__, __VA_ARGS__)

BX_PRINTF(4, 5) static bool expect(bool holds, const char *condition, int line, const char *format, ...)
{
    char text[512];
    va_list list;

    if (holds)
        return true;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    pthread_mutex_lock(&mutex);
    if (failures++ < 20)
        printf("failed: rank %d, line %d: %s: %s\n", rank, line, condition, text);
    pthread_mutex_unlock(&mutex);
    return false;
}

/* The same in every namespace and every process. */
static uint64_t now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static inline void nap_ms(int ms)
{
    struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

    while (nanosleep(&left, &left) < 0)
        ;
}

static uint64_t counter(const char *name)
{
    uint64_t value = 0;
    int rc = bx_counter(job, name, &value);

    EXPECT(rc == 0, "counter %s: %s", name, bx_error_text());
    return value;
}

static inline bool is_remote(int other)
{
    return strcmp(host_of[other], host_of[rank]) != 0;
}

/* ---- functions of every worker ------------------------------------------------------------------------- */

static int adds[WORLD_MOST];                    /* by rank: its calls of this */

static int add(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t a, b;
    int rc = bx_read(args, "ii", &a, &b);

    (void)context;
    __atomic_add_fetch(&adds[bx_request_caller(request)], 1, __ATOMIC_RELAXED);
    return rc < 0 ? rc : bx_msg_put(reply, "i", a + b);
}

static int tell_host(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const char *host = getenv("BX_HOST");

    (void)request, (void)args, (void)context;
    return bx_msg_put_str(reply, host == NULL ? "" : host);
}

/* Asks another worker. */
static int tell_host_of(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    char *host = NULL;
    int rc = bx_call(job, bx_rank((int)bx_read_i64(args)), "host", ">s", &host);

    (void)request, (void)context;
    if (rc == 0)
        rc = bx_msg_put_str(reply, host);
    free(host);
    return rc;
}

/* Rank 0's: answers all when all have called. Handlers of one worker that are async run one at a time. */
static int meet(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    static struct bx_future *waiting[WORLD_MOST];
    static int count;

    (void)request, (void)args, (void)context;
    *reply = bx_future_create(job);
    waiting[count++] = bx_future_acquire(*reply);
    if (count < size)
        return 0;
    for (int i = 0; i < count; i++) {
        bx_future_set(waiting[i], NULL);
        bx_future_release(waiting[i]);
    }
    count = 0;
    return 0;
}

/* Back come all bytes and all tensors. */
static inline int echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    size_t bytes = bx_reader_left(args);

    (void)request, (void)context;
    bx_msg_put_bytes(reply, bx_read_bytes(args, bytes), bytes);
    while (bx_reader_tensors_left(args) > 0)
        bx_msg_put_tensor(reply, bx_read_tensor(args));
    return bx_msg_error(reply);
}

/* Does not answer. */
static inline int hold(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply,
                       void *context)
{
    (void)request, (void)args, (void)context;
    *reply = bx_future_create(job);
    return bx_future_acquire(*reply) != NULL ? 0 : -1;          /* kept: it is not abandoned */
}

#define FUNCTIONS(...) (const struct harness_handler[]){ __VA_ARGS__, HARNESS_INLINE(NULL, NULL) }

static int register_all(int rc, const struct harness_handler *at)
{
    for (; rc == 0 && at->name != NULL; at++)
        rc = at->async != NULL ? bx_register_async(job, at->name, at->kind, at->async, at->context)
                               : bx_register(job, at->name, at->kind, at->fn, at->context);
    return rc;
}

static void barrier(void)
{
    int rc = bx_rpc_sync(job, bx_rank(0), "meet", NULL, NULL, NULL);

    EXPECT(rc == 0, "barrier: %s", bx_error_text());
}

static inline int64_t call_add(int to, int64_t a, int64_t b)
{
    int64_t sum = -1;
    int rc = bx_call(job, bx_rank(to), "add", "ii>i", a, b, &sum);

    EXPECT(rc == 0 && sum == a + b, "%d of %d, %s", (int)sum, (int)(a + b), rc == 0 ? "" : bx_error_text());
    return sum;
}

static inline struct bx_future *send_bytes(int to, const char *function, const unsigned char *data, size_t bytes)
{
    struct bx_future *answer = NULL;
    struct bx_msg *args = bx_msg_create(0);

    EXPECT(bx_msg_put_bytes(args, data, bytes) == 0 &&
           bx_rpc_async(job, bx_rank(to), function, args, NULL, &answer) == 0, "%s", bx_error_text());
    bx_msg_destroy(args);
    return answer;
}

/* They have come back. */
static inline void check_answer(int to, struct bx_future *answer, const unsigned char *data, size_t bytes)
{
    int rc = bx_future_wait(answer, BX_FOREVER);
    struct bx_reader reader = bx_msg_reader(bx_future_value(answer));

    EXPECT(rc == 0 && bx_reader_left(&reader) == bytes &&
           (bytes == 0 || memcmp(bx_read_bytes(&reader, bytes), data, bytes) == 0),
           "%zu bytes to %d: %s", bytes, to, rc == 0 ? "others came back" : bx_future_error_text(answer));
    bx_future_release(answer);
}

/* ---- libc's code ------------------------------------------------------------------------------------------- */

/* A library that hears of what is mapped by writing over these, as UCX does, crashes threads that are in them. */
static struct libc_code read_libc_code(void)
{
    static const char *const names[] = { "mmap", "munmap", "mremap", "madvise", "brk", "sbrk" };
    struct libc_code code;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        memcpy(code.of[i], dlsym(RTLD_NEXT, names[i]), sizeof code.of[i]);
    return code;
}

/* ---- start and end ---------------------------------------------------------------------------------------- */

/* rc: of creating the job. False: that or the start failed, its sentence is printed, and the job is destroyed. */
static bool start(int rc, const struct harness_handler *functions)
{
    libc_code = read_libc_code();
    if (rc == 0) {
        rank = bx_job_rank(job);    /* others call before bx_job_start returns */
        size = bx_job_world_size(job);
    }
    rc = register_all(rc, FUNCTIONS(HARNESS_INLINE("add", add), HARNESS_INLINE("host", tell_host),
                                    HARNESS_BLOCKING("host_of", tell_host_of), HARNESS_ASYNC("meet", meet)));
    rc = register_all(rc, functions);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc < 0) {
        printf("cannot start: %s: %s\n", bx_error_name(rc), bx_error_text());
        bx_job_destroy(job);
        return false;
    }
    for (int other = 0; other < size; other++) {
        char *host = NULL;

        if (starts_quietly) {
            snprintf(host_of[other], sizeof host_of[other], "%d", other % 2);
            continue;
        }
        /* By way of one that may just be in bx_job_start: it knows all functions. */
        if (EXPECT(bx_call(job, bx_rank((rank + 1) % size), "host_of", "i>s", other, &host) == 0, "%s",
                   bx_error_text()))
            snprintf(host_of[other], sizeof host_of[other], "%s", host);
        EXPECT(strcmp(bx_worker_host(job, other), host_of[other]) == 0, "%s", bx_worker_host(job, other));
        free(host);
    }
    printf("started\n");
    return true;
}

/* Nothing is on loan, soon. */
static inline void check_loans(uint64_t timeout_ms)
{
    struct bx_loans loans = { 0 };

    EXPECT(bx_loans_wait(job, -1, 0, timeout_ms * MS) == 0, "%s", bx_error_text());
    EXPECT(bx_job_loans(job, -1, &loans) == 0 && loans.leases == 0 && loans.borrowed == 0, "%d lent, %d borrowed",
           (int)loans.leases, (int)loans.borrowed);
}

/* Leaves with the others, and checks what then must hold. */
static void leave(void)
{
    uint64_t from_ns = now_ns();
    struct libc_code code;
    int rc = bx_job_shutdown(job, 0);

    EXPECT(rc == 0, "shutdown: %s: %s", bx_error_name(rc), bx_error_text());
    EXPECT(now_ns() - from_ns < 10000 * MS, "the shutdown took %u ms", (unsigned)((now_ns() - from_ns) / MS));
    EXPECT(counter("rescued") == 0, "a wake-up was lost");
    EXPECT(counter("timers_late") == 0, "a deadline was found late");
    code = read_libc_code();
    EXPECT(memcmp(&code, &libc_code, sizeof code) == 0, "UCX has written over functions of libc");
}

/* The exit status. */
static int close_job(void)
{
    bx_job_destroy(job);
    printf(failures == 0 ? "done\n" : "%d checks failed\n", failures);
    return failures == 0 ? 0 : 1;
}

static inline int end(void)
{
    leave();
    return close_job();
}

#endif
