/* SPDX-License-Identifier: MIT */
/*
 * bx_job_interrupt (lib/run/interrupt.c): each function that waits ends with BX_E_INTERRUPTED, asleep or not, leader or
 * follower, from another thread and from a signal handler; and afterwards calls work again.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"
#include "run/drive.h"

#include <sys/time.h>

enum { HALTED, GO_ON, CALLED, ANSWERED, ENDS };        /* gates */
enum { ENDED, TID, PID };               /* values */

/* ---- What worker 1 has --------------------------------------------------------------------------- */

/* Holds the progress role of its worker: nothing is answered meanwhile. */
HARNESS_HANDLER(halt)
{
    harness_post(HALTED);
    harness_await(GO_ON, harness_gate(HALTED));
    return 0;
}

/* A blocking handler, which waits for a call of its own. */
HARNESS_HANDLER(call_back)
{
    harness_post(CALLED);
    return bx_rpc_sync(bx_request_job(request), "worker0", "never", NULL, NULL, NULL);
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("halt", halt), HARNESS_BLOCKING("call_back", call_back),
                     HARNESS_ASYNC("never", harness_never));
    HARNESS_EQ(bx_register_batch(job, "batch", harness_no_rows, NULL, NULL), 0);
    return loans_setup(job);
}

/* ---- Each function that waits -------------------------------------------------------------------- */

static struct bx_future *pending;       /* nobody completes it */
static struct bx_future *calls[BXI_CALLS_MAX];
static const struct bx_call_options ends = { .timeout_ns = 1000 * HARNESS_MS };    /* the shutdown waits for it */

static int wait_in_a_call(struct bx_job *job)
{
    return bx_rpc_sync(job, "worker1", "never", NULL, NULL, NULL);
}

static int wait_for_a_future(struct bx_job *job)
{
    (void)job;
    return bx_future_wait(pending, BX_FOREVER);
}

static int serve(struct bx_job *job)
{
    return bx_job_serve(job);
}

static int wait_for_room(struct bx_job *job)
{
    struct bx_future *one_more = NULL;
    int rc;

    for (int i = 0; i < BXI_CALLS_MAX; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "never", NULL, NULL, &calls[i]), 0);
    rc = bx_rpc_async(job, "worker1", "never", NULL, NULL, &one_more);
    HARNESS_CHECK(one_more == NULL);
    if (rc == BX_E_INTERRUPTED)
        HARNESS_HAS(bx_error_text(), "1024 calls are in flight to worker 'worker1'");
    for (int i = 0; i < BXI_CALLS_MAX; i++)
        harness_cancel(calls[i]);
    return rc;
}

static int wait_for_loans(struct bx_job *job)
{
    return bx_loans_wait(job, -1, 0, BX_FOREVER);
}

static int wait_for_a_reference(struct bx_job *job)
{
    OWN(rref) *rref = NULL;

    HARNESS_EQ(bx_remote(job, "worker1", "never", NULL, &ends, &rref), 0);
    return bx_rref_wait(rref, BX_FOREVER);
}

static int wait_for_a_value(struct bx_job *job)
{
    OWN(rref) *rref = NULL;
    struct bx_msg *value = NULL;
    int rc;

    HARNESS_EQ(bx_remote(job, "worker1", "never", NULL, &ends, &rref), 0);
    rc = bx_rref_to_here(rref, NULL, &value);
    HARNESS_CHECK(value == NULL);
    return rc;
}

/* Worker 1 reads nothing meanwhile. */
static int wait_to_join(struct bx_job *job)
{
    int rc;

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "halt", NULL, NULL), 0);
    rc = bx_batch_join(job, "worker1", "batch");
    harness_await(HALTED, 1);
    harness_post(GO_ON);
    return rc;
}

static int (*const waits[])(struct bx_job *job) = {
    wait_in_a_call, wait_for_a_future, serve, wait_for_room, wait_for_loans, wait_for_a_reference, wait_for_a_value,
    wait_to_join,
};
#define WAITS (sizeof waits / sizeof waits[0])

/* ---- From another thread ------------------------------------------------------------------------- */

/* Until the job's table of waits has so many rows: their threads are about to sleep, or drive for long. Then until
 * each of them sleeps. */
static void await_waits(struct bx_job *job, int count, bool asleep)
{
    int found;

    do {
        found = 0;
        sched_yield();
        for (int i = 0; i < BXI_WAITS_MAX; i++) {
            uint32_t tid = (uint32_t)bxi_load_seq_cst(&bxi_tables(job->control)->wait[i].thread);

            found += tid != 0 && (!asleep || harness_thread_state(getpid(), tid) == 'S');
        }
    } while (found < count);
}

struct interrupter {
    struct bx_job *job;
    int waits;                          /* that it awaits */
    bool asleep;
};

static void *interrupt(void *context)
{
    struct interrupter *one = context;

    await_waits(one->job, one->waits, one->asleep);
    bx_job_interrupt(one->job, true);
    return NULL;
}

/* Something is on loan as long as this runs. */
static void borrow(struct bx_job *job, bool begin)
{
    HARNESS_EQ(harness_call(job, "worker1", begin ? "keep" : "drop",
                            begin ? loans_msg(job, 0, 1, 100) : harness_msg_i64(1)), begin ? 1 : 0);
}

static void interrupted_while_it_waits(struct bx_job *job)
{
    bool asleep = job->options.no_spin;
    pthread_t thread;

    borrow(job, true);
    pending = bx_future_create(job);
    for (size_t i = 0; i < WAITS; i++) {
        struct interrupter one = { job, 1, asleep };

        HARNESS_EQ(pthread_create(&thread, NULL, interrupt, &one), 0);
        HARNESS_EQ(waits[i](job), BX_E_INTERRUPTED);
        pthread_join(thread, NULL);
        HARNESS_HAS(bx_error_text(), "bx_job_interrupt");
        bx_job_interrupt(job, false);
        HARNESS_EQ(harness_call_i64(job, "worker1", "echo", (int64_t)i), (int64_t)i);
        /* A wait that begins later ends too. */
        bx_job_interrupt(job, true);
        HARNESS_EQ(waits[i](job), BX_E_INTERRUPTED);
        bx_job_interrupt(job, false);
        HARNESS_EQ(harness_call_i64(job, "worker1", "echo", -1), -1);
    }
    HARNESS_EQ(bx_future_is_done(pending), false);
    bx_future_release(pending);
    borrow(job, false);
    bx_job_interrupt(job, true);        /* the shutdown goes on all the same */
}

/* Asleep in io_uring, in epoll, spinning; without a background thread, as a program with a loop of its own is. */
Test(interrupt, ends_each_wait, .timeout = 120)
{
    static const struct bx_options ways[] = {
        { .no_spin = true, .wait = BX_WAIT_AUTO }, { .no_spin = true, .wait = BX_WAIT_EPOLL },
        { .spin_ns = 300 * HARNESS_MS }, { .own_loop = true, .no_spin = true },
    };

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        fprintf(stderr, "interrupt: way %zu\n", i);
        harness_reset();
        harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { interrupted_while_it_waits },
                                             .options = ways[i] });
    }
}

/* ---- From a signal handler ------------------------------------------------------------------------ */

static struct bx_job *of_handler;
static volatile sig_atomic_t kept_errno = 1;

static void on_signal(int number)
{
    (void)number;
    errno = EDOM;
    bx_job_interrupt(of_handler, true);
    if (errno != EDOM)
        kept_errno = 0;
}

/* ThreadSanitizer runs the handler when the thread next enters a function that it knows; a futex is none. */
static void skip_if_signals_are_late(void)
{
#if defined(__SANITIZE_THREAD__)
    cr_skip("ThreadSanitizer holds signals back while a thread sleeps in a futex");
#endif
}

static void install(struct bx_job *job, int number)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESTART };

    of_handler = job;
    HARNESS_EQ(sigaction(number, &action, NULL), 0);
}

/* Several threads link and unlink themselves, so that the timer's signals hit them with the list's lock held too. */
static void wait_under_fire(struct bx_job *job, int index)
{
    for (int round = 0; round < 300; round++) {
        if (index == 0)
            bx_job_interrupt(job, false);
        HARNESS_EQ(index % 2 == 0 ? bx_future_wait(pending, BX_FOREVER) : wait_in_a_call(job), BX_E_INTERRUPTED);
    }
    harness_add(ENDED, 1);
}

static void interrupted_by_a_timer(struct bx_job *job)
{
    struct itimerval often = { { 0, 200 }, { 0, 200 } }, no_more = { 0 };

    pending = bx_future_create(job);
    install(job, SIGALRM);
    HARNESS_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
    harness_threads(job, 4, wait_under_fire);
    HARNESS_EQ(setitimer(ITIMER_REAL, &no_more, NULL), 0);
    bx_job_interrupt(job, false);
    HARNESS_CHECK(kept_errno);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
    bx_future_release(pending);
}

Test(interrupt, from_a_signal_handler_ends_every_wait, .timeout = 100)
{
    skip_if_signals_are_late();
    for (int spins = 0; spins <= 1; spins++) {
        harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { interrupted_by_a_timer },
                                             .options = { .no_spin = spins == 0 } });
        harness_reset();
    }
}

static void served_until_a_signal(struct bx_job *job)
{
    install(job, SIGINT);
    harness_store(PID, (uint64_t)getpid());
    HARNESS_EQ(bx_job_serve(job), BX_E_INTERRUPTED);
    harness_post(ENDS);
    HARNESS_EQ(signal(SIGINT, SIG_DFL) == on_signal, 1);
}

HARNESS_BODY(send_a_signal)
{
    while (harness_load(PID) == 0)
        sched_yield();
    HARNESS_EQ(harness_kill((pid_t)harness_load(PID), SIGINT), 0);
    harness_await(ENDS, 1);             /* a worker that leaves would end the serving too */
}

/* Both leave in order, and nothing is left. */
Test(interrupt, ends_a_server_on_sigint, .timeout = 60)
{
    skip_if_signals_are_late();
    for (int wait = BX_WAIT_AUTO; wait <= BX_WAIT_EPOLL; wait += BX_WAIT_EPOLL - BX_WAIT_AUTO) {
        harness_run(&(struct harness_world){ .size = 2, .setup = setup, .options = { .wait = (enum bx_wait)wait },
                                             .body = { served_until_a_signal, send_a_signal } });
        harness_reset();
    }
}

/* ---- Handlers; the program's own loop --------------------------------------------------------------- */

static void interrupt_the_pool(struct bx_job *job)
{
    harness_await(CALLED, 1);
    await_waits(job, 1, true);
    bx_job_interrupt(job, true);
    HARNESS_EQ(bx_job_serve(job), BX_E_INTERRUPTED);
    harness_post(ENDS);
    harness_await(ANSWERED, 1);
    bx_job_interrupt(job, false);
    harness_serve(job);
}

HARNESS_TEST(interrupt, ends_the_wait_of_a_blocking_handler, 60, .size = 2, .setup = setup,
             .body = { NULL, interrupt_the_pool }, .options = { .no_spin = true })
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "call_back", NULL, NULL, NULL), BX_E_INTERRUPTED);
    harness_post(ANSWERED);
    harness_await(ENDS, 1);             /* a worker that leaves would end the serving too */
}

HARNESS_TEST(interrupt, makes_the_descriptor_of_an_own_loop_readable, 60, .size = 2, .setup = setup,
             .options = { .own_loop = true, .no_spin = true })
{
    struct pollfd readable = { .fd = bx_job_fd(job), .events = POLLIN };

    while (poll(&readable, 1, 0) > 0)
        HARNESS_CHECK(bx_progress(job) >= 0);
    bx_job_interrupt(job, true);
    HARNESS_EQ(poll(&readable, 1, 0), 1);
    while (poll(&readable, 1, 0) > 0)
        HARNESS_CHECK(bx_progress(job) >= 0);
    bx_job_interrupt(job, false);
    HARNESS_EQ(poll(&readable, 1, 0), 0);
}

/* ---- The start --------------------------------------------------------------------------------------- */

static void *interrupt_the_start(void *context)
{
    struct bx_job *job = context;

    while (harness_thread_state(getpid(), harness_load(TID)) != 'S')
        sched_yield();
    bx_job_interrupt(job, true);
    return NULL;
}

/* The other rank never comes. */
static void start_alone(int rank, bool before)
{
    struct bx_options options = { .job = harness_job_name(), .rank = rank, .world_size = 2,
                                  .start_timeout_ns = BX_FOREVER };
    struct bx_job *job = NULL;
    pthread_t thread;

    harness_store(TID, (uint64_t)gettid());
    cr_assert_eq(bx_job_create(&options, &job), 0);
    if (before)
        bx_job_interrupt(job, true);
    else
        cr_assert_eq(pthread_create(&thread, NULL, interrupt_the_start, job), 0);
    cr_expect_eq(bx_job_start(job), BX_E_INTERRUPTED);
    cr_expect(strstr(bx_error_text(), "bx_job_interrupt ended the start of worker") != NULL, "%s", bx_error_text());
    if (!before)
        pthread_join(thread, NULL);
    bx_job_destroy(job);
    cr_expect_eq(harness_left_behind(), 0);
}

Test(interrupt, ends_the_start, .timeout = 60)
{
    for (int rank = 0; rank < 2; rank++)
        for (int before = 0; before < 2; before++)
            start_alone(rank, before == 1);
}
