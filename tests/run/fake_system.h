/* SPDX-License-Identifier: MIT */
/*
 * A clock and a sleep for tests of lib/run: struct bxi_system without time and without the kernel's sleepers. The clock
 * moves when the test says so, or, where `alone` is set, to the end of each sleep. Sleepers watch real eventfds.
 */
#ifndef TESTS_FAKE_SYSTEM_H
#define TESTS_FAKE_SYSTEM_H

#include "tests/harness/test.h"
#include "run/drive.h"

#define SLEEPERS_MAX 4
#define SLEEPS_MAX 64

struct bxi_sleeper {
    int fd[2];
    uint64_t token[2];
    int count;
    bool asleep;
    uint64_t until_ns;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool alone;                         /* the thread under test is the only one */
    uint64_t now_ns;
    struct bxi_sleeper sleepers[SLEEPERS_MAX];
    int sleeper_count;
    int sleeps;                         /* ever begun */
    uint64_t slept_until_ns[SLEEPS_MAX];
    int following;                      /* threads in their futex */
    int followed;                       /* sleeps there, ever begun */
    void (*in_sleep)(void);             /* what another process does in the next sleep */
    bool bell_is_late;                  /* what polling for a late bell finds */
    bxi_a32 destroyed;                  /* sleepers; each takes 20 ms */
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static inline uint64_t fake_now_ns(void)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t now_ns = fake.now_ns;
    pthread_mutex_unlock(&fake.lock);
    return now_ns;
}

static inline void move_clock(uint64_t now_ns)
{
    pthread_mutex_lock(&fake.lock);
    fake.now_ns = now_ns;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static inline int fake_create(enum bxi_sleeper_kind kind, struct bxi_sleeper **sleeper)
{
    (void)kind;
    pthread_mutex_lock(&fake.lock);
    *sleeper = &fake.sleepers[fake.sleeper_count++];
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static inline void fake_destroy(struct bxi_sleeper *sleeper)
{
    (void)sleeper;
    usleep(20000);
    bxi_add(&fake.destroyed, 1);
}

static inline enum bxi_sleeper_kind fake_kind(const struct bxi_sleeper *sleeper)
{
    (void)sleeper;
    return BXI_SLEEPER_EPOLL;
}

static inline int fake_watch(struct bxi_sleeper *sleeper, int fd, uint64_t token)
{
    sleeper->fd[sleeper->count] = fd;
    sleeper->token[sleeper->count++] = token;
    return 0;
}

static inline void fake_forget(struct bxi_sleeper *sleeper, uint64_t token)
{
    for (int i = 0; i < sleeper->count; i++)
        if (sleeper->token[i] == token)
            sleeper->fd[i] = -1;
}

static inline int readable(const struct bxi_sleeper *sleeper, uint64_t *tokens)
{
    int found = 0;

    for (int i = 0; i < sleeper->count; i++) {
        struct pollfd one = { .fd = sleeper->fd[i], .events = POLLIN };

        if (poll(&one, 1, 0) == 1)
            tokens[found++] = sleeper->token[i];
    }
    return found;
}

static inline int fake_wait(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most)
{
    int found;

    (void)most;
    if (fake.in_sleep != NULL) {
        void (*fn)(void) = fake.in_sleep;

        fake.in_sleep = NULL;
        fn();
    }
    pthread_mutex_lock(&fake.lock);
    sleeper->until_ns = timeout_ns == UINT64_MAX ? BX_FOREVER : fake.now_ns + timeout_ns;
    sleeper->asleep = true;
    if (fake.sleeps < SLEEPS_MAX)
        fake.slept_until_ns[fake.sleeps] = sleeper->until_ns;
    fake.sleeps++;
    pthread_cond_broadcast(&fake.changed);
    while ((found = readable(sleeper, tokens)) == 0 && fake.now_ns < sleeper->until_ns) {
        if (fake.alone && sleeper->until_ns == BX_FOREVER)
            cr_assert_fail("sleeps for ever");
        if (fake.alone)
            fake.now_ns = sleeper->until_ns;
        else
            pthread_cond_wait(&fake.changed, &fake.lock);
    }
    sleeper->asleep = false;
    pthread_mutex_unlock(&fake.lock);
    return found;
}

/* The leader's, of whom there is one at a time. */
static inline int fake_sleep_on(struct pollfd *fds, nfds_t count, uint64_t timeout_ns)
{
    static struct bxi_sleeper *leader;
    uint64_t tokens[2];

    if (leader == NULL)
        fake_create(BXI_SLEEPER_POLL, &leader);
    leader->count = 0;
    for (nfds_t i = 0; i < count; i++)
        fake_watch(leader, fds[i].fd, i);
    fake_wait(leader, timeout_ns, tokens, 2);
    return poll(fds, count, 0);
}

static inline int fake_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    (void)fds, (void)count, (void)timeout_ms;
    return fake.bell_is_late;
}

static inline void fake_wait_while_1(bxi_a32 *word, uint64_t deadline_ns)
{
    pthread_mutex_lock(&fake.lock);
    fake.following++;
    fake.followed++;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    bxi_real_system.wait_while_1(word, deadline_ns);
    pthread_mutex_lock(&fake.lock);
    fake.following--;
    pthread_mutex_unlock(&fake.lock);
}

static inline ssize_t ring_and_tell(int fd, const void *data, size_t bytes)
{
    ssize_t rc = write(fd, data, bytes);

    pthread_mutex_lock(&fake.lock);
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

static inline void fake_yield(void)
{
}

static const struct bxi_system fake_system = {
    .now_ns = fake_now_ns, .coarse_ns = fake_now_ns, .thread_ns = fake_now_ns, .yield = fake_yield,
    .create = fake_create, .destroy = fake_destroy, .kind = fake_kind, .watch = fake_watch, .forget = fake_forget,
    .wait = fake_wait, .sleep_on = fake_sleep_on, .poll = fake_poll, .wait_while_1 = fake_wait_while_1,
};

/* ---- A host that wants to know nothing ------------------------------------------------------------ */

static inline void host_before_sleep(void *context)
{
    (void)context;
}

static inline void host_readable(void *context, uint64_t token)
{
    (void)context, (void)token;
}

static inline bool host_is_not_crowded(void *context)
{
    (void)context;
    return false;
}

static inline void host_wait(void *context, struct bxi_waiter *waiter)
{
    (void)context, (void)waiter;
}

static inline uint64_t host_sleeps(void *context, enum bxi_sleeps who)
{
    (void)context, (void)who;
    return 0;
}

static inline void host_woke(void *context, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung, uint64_t began_ns)
{
    (void)context, (void)who, (void)by, (void)rung, (void)began_ns;
}

static struct bxi_host fake_host = {
    .readable = host_readable, .thread_begins = host_before_sleep, .call = host_before_sleep,
    .is_crowded = host_is_not_crowded,
    .wait_begins = host_wait, .wait_lasts = host_wait, .wait_ends = host_wait,
    .before_sleep = host_before_sleep, .sleeps = host_sleeps, .woke = host_woke,
};

/* ---- A run without a job, and its sources ---------------------------------------------------------- */

static struct bxi_run run;
static bxi_a64 armed, spins, counters[BXI_COUNTER_COUNT];

static inline void begin_run(struct bxi_run *one, const struct bxi_system *system, uint64_t spin_ns)
{
    bxi_bell_write = ring_and_tell;
    fake.now_ns = 1;
    bxi_run_init(one, &(struct bxi_run_setup){ .host = &fake_host, .system = system, .name = "fake",
                                               .counters = counters, .spin_ns = spin_ns });
    cr_assert_eq(bxi_run_open_bells(one), 0);
    bxi_run_attach(one, &armed, counters, &spins);
    one->cpus = 1;
}

static inline void add_source(const struct bxi_source_ops *ops, void *context)
{
    bxi_lock(&run.lock);
    bxi_run_add(&run, ops, context);
    bxi_unlock(&run.lock);
}

static inline void end_run(void)
{
    bxi_run_fini(&run);
}

/* Until so many threads sleep in sleepers, the earliest of them until then (or whenever: 0). */
static inline void await_sleepers(int count, uint64_t until_ns)
{
    pthread_mutex_lock(&fake.lock);
    for (;;) {
        uint64_t earliest_ns = BX_FOREVER;
        int asleep = 0;

        for (int i = 0; i < fake.sleeper_count; i++) {
            struct bxi_sleeper *sleeper = &fake.sleepers[i];
            uint64_t tokens[2];

            /* One that is about to wake is awake. */
            if (!sleeper->asleep || fake.now_ns >= sleeper->until_ns || readable(sleeper, tokens) > 0)
                continue;
            asleep++;
            earliest_ns = bxi_least(earliest_ns, sleeper->until_ns);
        }
        if (asleep == count && (until_ns == 0 || earliest_ns == until_ns))
            break;
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
    pthread_mutex_unlock(&fake.lock);
}

static inline void await_followers(int count)
{
    pthread_mutex_lock(&fake.lock);
    while (fake.following < count)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

#endif
