/* SPDX-License-Identifier: MIT */
/*
 * Sleeping: the system calls behind it, the sleepers, and the sleeper that a thread owns.
 *
 * A leader sleeps in a sleeper of its own thread, because io_uring's rings belong to the thread that made them. The
 * thread-local `own` holds it; no other file can reach it. It is made for the job that the thread first leads, and made
 * again for another job. It goes with its thread, or with the job if this thread destroys that.
 *
 *     NONE     there is no sleeper: before the first sleep, and after one could not be made
 *     USABLE   it watches the bell of the job `serial`
 *     ENDED    the destructor of the thread's key has run: for good. The program's destructors may run after it and
 *              wait; the thread then sleeps in poll(2), because a sleeper that was made now might never be destroyed
 *              (the C library runs destructors four times at most)
 */
#include "drive.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS UINT64_C(250000000)
#define LATE_MS 250
#define HELD_UP_MS 1000

/* ---- the system's ------------------------------------------------------------------------------ */

static void wait_while_1(bxi_a32 *word, uint64_t deadline_ns)
{
    struct timespec until = { .tv_sec = (time_t)(deadline_ns / 1000000000),
                              .tv_nsec = (long)(deadline_ns % 1000000000) };

    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, 1, deadline_ns == BX_FOREVER ? NULL : &until, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

static void yield(void)
{
    sched_yield();
}

const struct bxi_system bxi_real_system = {
    .now_ns = bxi_now_ns,
    .coarse_ns = bxi_coarse_ns,
    .thread_ns = bxi_thread_ns,
    .yield = yield,
    .create = bxi_sleeper_create,
    .destroy = bxi_sleeper_destroy,
    .kind = bxi_sleeper_kind,
    .watch = bxi_sleeper_watch,
    .forget = bxi_sleeper_forget,
    .wait = bxi_sleeper_wait,
    .poll = poll,
    .wait_while_1 = wait_while_1,
};

/* ---- sleepers ---------------------------------------------------------------------------------- */

int bxi_make_sleeper(const struct bxi_run *run, const struct bxi_watched *watched, int count,
                     struct bxi_sleeper **sleeper)
{
    int rc = run->system->create(run->sleeper_kind, sleeper);

    if (rc < 0)
        return rc;
    for (int i = 0; rc == 0 && i < count; i++)
        rc = run->system->watch(*sleeper, watched[i].fd, watched[i].token);
    if (rc < 0)
        run->system->destroy(*sleeper);
    return rc;
}

static const char *name_of(enum bxi_sleeper_kind kind)
{
    return kind == BXI_SLEEPER_URING ? "io_uring" : kind == BXI_SLEEPER_EPOLL ? "epoll" : "poll(2)";
}

/* Counts a sleep that has ended, and shows it to the host. */
static void woke(struct bxi_run *run, enum bxi_sleeps who, enum bxi_sleeper_kind kind, bool rung, uint64_t began_ns)
{
    bool uring = kind == BXI_SLEEPER_URING;

    run->host->woke(run->context, who, uring ? BXI_SLEEPS_BY_URING : BXI_SLEEPS_BY_EPOLL, rung, began_ns);
    bxi_add(&run->counters[uring ? BXI_C_waits_uring : BXI_C_waits_epoll], 1);
    bxi_add(&run->counters[BXI_C_wakeups], 1);
}

int bxi_sleep(struct bxi_run *run, const struct bxi_sleep *sleep, uint64_t timeout_ns, uint64_t *tokens)
{
    const struct bxi_system *system = run->system;
    enum bxi_sleeper_kind before = system->kind(sleep->sleeper), after;
    uint64_t began_ns = run->host->sleeps(run->context, sleep->who);
    int count = system->wait(sleep->sleeper, timeout_ns, tokens, BXI_SLEEPER_FDS);

    after = system->kind(sleep->sleeper);
    woke(run, sleep->who, after, count > 0, began_ns);
    if (after != before)
        bxi_log(NULL, 1, "a thread of worker '%s' sleeps with %s from now on: %s has failed", run->name, name_of(after),
                name_of(before));
    if (count < 0 && !*sleep->failed)
        bxi_log(NULL, 0, "a thread of worker '%s' cannot sleep until a doorbell rings (%s), and looks every 10 ms "
                   "instead", run->name, bx_strerror(count));
    *sleep->failed |= count < 0;
    return count;
}

/* ---- the sleeper of a thread ------------------------------------------------------------------- */

static _Thread_local struct {
    enum { NONE, USABLE, ENDED } state;
    bool failed;                    /* a failure of it is in the log */
    struct bxi_sleeper *sleeper;    /* USABLE */
    uint64_t serial;                /* USABLE: of the run that it is for */
    const struct bxi_system *system;    /* USABLE: that made it */
} own;
static pthread_key_t own_key;       /* its value, a sleeper, makes the C library call end_own */
static int own_key_error;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static void destroy_own(void)
{
    if (own.state != USABLE)
        return;
    own.system->destroy(own.sleeper);
    own.sleeper = NULL;
    own.state = NONE;
}

void bxi_drop_own_sleeper(const struct bxi_run *run)
{
    if (own.serial == run->serial)
        destroy_own();
}

/* The thread ends. */
static void end_own(void *sleeper)
{
    (void)sleeper;
    destroy_own();
    own.state = ENDED;
}

static void make_own_key(void)
{
    own_key_error = pthread_key_create(&own_key, end_own);
}

/* This thread's sleeper for the run; NULL if there is none: no memory, no key, or the thread ends. */
static struct bxi_sleeper *own_sleeper(struct bxi_run *run)
{
    if (own.state == ENDED || (own.state == USABLE && own.serial == run->serial))
        return own.sleeper;
    pthread_once(&own_once, make_own_key);
    destroy_own();
    if (own_key_error != 0)
        return NULL;

    const struct bxi_watched watched[] = { { run->bell_fd[1], BXI_TOKEN_BELL }, { run->loop_fd, BXI_TOKEN_LOOP } };
    struct bxi_sleeper *sleeper = NULL;

    if (bxi_make_sleeper(run, watched, run->loop_fd >= 0 ? 2 : 1, &sleeper) < 0)
        return NULL;
    if (pthread_setspecific(own_key, sleeper) != 0) {
        run->system->destroy(sleeper);
        return NULL;
    }
    own.sleeper = sleeper;
    own.serial = run->serial;
    own.system = run->system;
    own.failed = false;
    own.state = USABLE;
    return sleeper;
}

/* A thread without a sleeper: poll(2), a second at most. It passes over a loop_fd of -1. */
static bool poll_as_leader(struct bxi_run *run, uint64_t timeout_ns)
{
    struct pollfd fds[] = { { .fd = run->bell_fd[1], .events = POLLIN }, { .fd = run->loop_fd, .events = POLLIN } };
    uint64_t began_ns = run->host->sleeps(run->context, BXI_SLEEPS_LEADER);
    int count = run->system->poll(fds, 2, timeout_ns / 1000000 < 1000 ? (int)(timeout_ns / 1000000) + 1 : 1000);

    bxi_bell_drain(run->bell_fd[1]);
    if (run->loop_fd >= 0)
        bxi_read_loop(run);
    woke(run, BXI_SLEEPS_LEADER, BXI_SLEEPER_POLL, count > 0, began_ns);
    return count > 0;
}

bool bxi_sleep_as_leader(const struct bxi_role *role, uint64_t timeout_ns)
{
    struct bxi_run *run = bxi_run_of(role);
    struct bxi_sleep sleep = { own_sleeper(run), BXI_SLEEPS_LEADER, &own.failed };
    uint64_t tokens[BXI_SLEEPER_FDS];
    int count;

    if (sleep.sleeper == NULL)
        return poll_as_leader(run, timeout_ns);
    count = bxi_sleep(run, &sleep, timeout_ns, tokens);
    for (int i = 0; i < count; i++) {
        if (tokens[i] == BXI_TOKEN_BELL)
            bxi_bell_drain(run->bell_fd[1]);
        else
            bxi_read_loop(run);
    }
    return count > 0;
}

/* ---- late wake-ups ----------------------------------------------------------------------------- */

/* Two things are announced by ringing: a deadline that is set before the end of a sleep, and the thread that makes a
 * waiter ready rings. If the bell comes while this polls it, the thread that rings was held up: a busy machine is not
 * a lost wake-up. The background thread, which rings a leader when the deadline comes, may be held up too: of a process
 * that was stopped and goes on, both wake at the same time. */
void bxi_count_late(struct bxi_run *run, uint64_t until_ns, int bell_fd, struct bxi_waiter *waiter)
{
    struct pollfd bell = { .fd = bell_fd, .events = POLLIN };
    uint64_t next_ns = bxi_next_timer_ns(run), now_ns = run->system->now_ns();
    /* BXI_EVENT_TIMER: the holder of the role has been told, and comes to it when its handler returns. */
    bool timer = next_ns < until_ns && next_ns < now_ns && now_ns - next_ns > LATE_NS &&
                 (bxi_load_relaxed(&run->events) & BXI_EVENT_TIMER) == 0;
    bool ready = waiter != NULL && until_ns != waiter->deadline_ns && waiter->ready(waiter);

    if ((!timer && !ready) || run->system->poll(&bell, 1, timer ? HELD_UP_MS : LATE_MS) != 0)
        return;
    if (timer)
        bxi_add(&run->counters[BXI_C_timers_late], 1);
    if (ready)
        bxi_run_count(run, BXI_C_rescued);
}
