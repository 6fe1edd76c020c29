/* SPDX-License-Identifier: MIT */
/*
 * The world's time and threads: clocks, sleeps, futexes, mutexes, condition variables, pthread_create and its like.
 */
#include "world.h"

#include <linux/futex.h>
#include <pthread.h>

#define KEYS 48

static unsigned keys;
static struct sim_clock onces;         /* what was before any pthread_once ended */
static void (*destructors[KEYS])(void *);

void sim_threads_reset(void)
{
    keys = 0;
    memset(&onces, 0, sizeof onces);
}

/* ---- time ------------------------------------------------------------------------------------------ */

int sim_clock_gettime(clockid_t clock, struct timespec *time);
int sim_nanosleep(const struct timespec *time, struct timespec *left);
int sim_sched_yield(void);

int sim_clock_gettime(clockid_t clock, struct timespec *time)
{
    uint64_t ns = (sim_schedule.now_ns += sim_schedule.tick_ns) + sim_clock_ahead_ns();

    sim_timerfds_fire();
    if (clock == CLOCK_REALTIME)
        ns += UINT64_C(1700000000) * NS_PER_S;
    if (clock == CLOCK_MONOTONIC_COARSE)
        ns -= ns % 1000000;
    *time = (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };
    return 0;
}

static bool never(void *unused)
{
    (void)unused;
    return false;
}

int sim_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    ENTER();
    sim_block("nanosleep", never, NULL, until(ns_of(time)));
    return 0;
}

int sim_sched_yield(void)
{
    ENTER();
    sim_yield();
    return 0;
}

/* ---- futexes, threads, locks ----------------------------------------------------------------------- */

static bool is_signalled(void *fiber)
{
    return ((struct sim_fiber *)fiber)->signalled;
}

/* Asleep on an address until wake. False: the time came. */
static bool sleep_on(const void *address, const char *why, uint64_t until_ns)
{
    if (sim_disturbs())
        return true;
    sim_self->signalled = false;
    sim_self->waits_on = address;
    return sim_block(why, is_signalled, sim_self, until_ns);
}

static int wake(const void *address, int most)
{
    int woken = 0;

    for (; woken < most; woken++) {
        struct sim_fiber *asleep[SIM_FIBERS];
        uint32_t count = 0;

        for (int i = 0; i < sim_fiber_count; i++)
            if (sim_fibers[i].state == SIM_BLOCKED && sim_fibers[i].can == is_signalled &&
                sim_fibers[i].waits_on == address && !sim_fibers[i].signalled)
                asleep[count++] = &sim_fibers[i];
        if (count == 0)
            break;
        asleep[sim_choose(count)]->signalled = true;
        sim_next = 1;
    }
    return woken;
}

long sim_futex(uint32_t *word, int operation, uint32_t value, const struct timespec *time)
{
    int command = operation & FUTEX_CMD_MASK;
    uint64_t until_ns = command == FUTEX_WAIT ? ns_of(time) : local_ns(time);

    if (command == FUTEX_WAKE)
        return wake(word, (int)value);
    if (__atomic_load_n(word, __ATOMIC_RELAXED) != value) {
        errno = EAGAIN;
        return -1;
    }
    if (command == FUTEX_WAIT)
        until_ns = until(until_ns);
    if (sleep_on(word, "futex", until_ns))
        return 0;
    errno = ETIMEDOUT;
    return -1;
}

/* What a mutex of the C library is here. */
struct mutex {
    uint32_t holder, depth;             /* number plus 1 */
    struct sim_clock *clock;
};

static bool is_free(void *mutex)
{
    return ((struct mutex *)mutex)->holder == 0;
}

/* When it is free. */
static void take(struct mutex *mutex)
{
    while (mutex->holder != 0)
        sim_block("mutex", is_free, mutex, SIM_FOREVER);
    mutex->holder = (uint32_t)sim_self->number + 1;
    sim_clock_join(&sim_self->clock, mutex->clock);
}

static void give_back(struct mutex *mutex)
{
    sim_release_to(mutex->clock);
    mutex->holder = 0;
}

static struct mutex *mutex_of(pthread_mutex_t *of)
{
    struct mutex *mutex = (struct mutex *)(void *)of;

    if (mutex->clock == NULL)
        mutex->clock = sim_memory(sizeof *mutex->clock);
    return mutex;
}

int sim_pthread_mutex_init(pthread_mutex_t *of, const pthread_mutexattr_t *attributes);
int sim_pthread_mutex_destroy(pthread_mutex_t *of);
int sim_pthread_mutex_lock(pthread_mutex_t *of);
int sim_pthread_mutex_trylock(pthread_mutex_t *of);
int sim_pthread_mutex_unlock(pthread_mutex_t *of);
int sim_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
int sim_pthread_cond_destroy(pthread_cond_t *cond);
int sim_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *of);
int sim_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *of, const struct timespec *time);
int sim_pthread_cond_signal(pthread_cond_t *cond);
int sim_pthread_cond_broadcast(pthread_cond_t *cond);
int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument);
int sim_pthread_join(pthread_t thread, void **result);
int sim_pthread_detach(pthread_t thread);
pthread_t sim_pthread_self(void);
int sim_pthread_once(pthread_once_t *once, void (*function)(void));
int sim_pthread_key_create(pthread_key_t *key, void (*destructor)(void *));
int sim_pthread_setspecific(pthread_key_t key, const void *value);
void *sim_pthread_getspecific(pthread_key_t key);
int sim_pthread_setcancelstate(int state, int *before);
int sim_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int sim_pthread_getname_np(pthread_t thread, char *name, size_t bytes);

int sim_pthread_mutex_init(pthread_mutex_t *of, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    memset(of, 0, sizeof *of);
    return 0;
}

int sim_pthread_mutex_destroy(pthread_mutex_t *of)
{
    (void)of;
    return 0;
}

int sim_pthread_mutex_lock(pthread_mutex_t *of)
{
    struct mutex *mutex = mutex_of(of);

    ENTER();
    if (sim_self == NULL)
        return 0;
    if (mutex->holder == (uint32_t)sim_self->number + 1)
        sim_fail("'%s' locks a mutex that it holds", sim_self->name);
    take(mutex);
    return 0;
}

int sim_pthread_mutex_trylock(pthread_mutex_t *of)
{
    struct mutex *mutex = mutex_of(of);

    ENTER();
    if (sim_self == NULL)
        return 0;
    if (mutex->holder != 0)
        return EBUSY;
    take(mutex);
    return 0;
}

int sim_pthread_mutex_unlock(pthread_mutex_t *of)
{
    struct mutex *mutex = mutex_of(of);

    ENTER();
    if (sim_self == NULL)
        return 0;
    give_back(mutex);
    sim_next = 1;
    return 0;
}

int sim_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
    (void)cond, (void)attributes;
    return 0;
}

int sim_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

int sim_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *of, const struct timespec *time)
{
    struct mutex *mutex = mutex_of(of);
    bool woken;

    ENTER();
    give_back(mutex);
    woken = sleep_on(cond, "condition", local_ns(time));
    take(mutex);
    return woken ? 0 : ETIMEDOUT;
}

int sim_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *of)
{
    return sim_pthread_cond_timedwait(cond, of, NULL);
}

int sim_pthread_cond_signal(pthread_cond_t *cond)
{
    ENTER();
    wake(cond, 1);
    return 0;
}

int sim_pthread_cond_broadcast(pthread_cond_t *cond)
{
    ENTER();
    wake(cond, INT_MAX);
    return 0;
}

int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument)
{
    static const char *const names[SIM_COPIES] = { "thread0", "thread1", "thread2", "thread3", "thread4" };

    (void)attributes;
    ENTER();
    if (sim_fails("pthread_create"))
        return EAGAIN;
    *thread = (pthread_t)sim_spawn(names[sim_self->worker], work, argument) + 1;
    return 0;
}

int sim_pthread_join(pthread_t thread, void **result)
{
    ENTER();
    sim_join((int)thread - 1);
    if (result != NULL)
        *result = sim_fibers[thread - 1].result;
    return 0;
}

int sim_pthread_detach(pthread_t thread)
{
    (void)thread;
    return 0;
}

pthread_t sim_pthread_self(void)
{
    return sim_self == NULL ? 1 : (pthread_t)sim_self->number + 1;
}

static bool once_is_done(void *once)
{
    return *(pthread_once_t *)once == 2;
}

int sim_pthread_once(pthread_once_t *once, void (*function)(void))
{
    ENTER();
    if (*once == PTHREAD_ONCE_INIT) {
        *once = 1;
        function();
        sim_release_to(&onces);
        *once = 2;
    } else {
        sim_block("once", once_is_done, once, SIM_FOREVER);
        sim_clock_join(&sim_self->clock, &onces);
    }
    return 0;
}

int sim_pthread_key_create(pthread_key_t *key, void (*destructor)(void *))
{
    if (sim_fails("pthread_key_create") || keys == KEYS)
        return EAGAIN;
    destructors[keys] = destructor;
    *key = keys++;
    return 0;
}

void sim_thread_ends(void)
{
    for (unsigned key = 0; key < keys; key++) {
        void *value = sim_self->own[key];

        sim_self->own[key] = NULL;
        if (value != NULL && destructors[key] != NULL)
            destructors[key](value);
    }
}

int sim_pthread_setspecific(pthread_key_t key, const void *value)
{
    if (value != NULL && sim_fails("pthread_setspecific"))
        return errno;
    sim_self->own[key] = (void *)(uintptr_t)value;
    return 0;
}

void *sim_pthread_getspecific(pthread_key_t key)
{
    return sim_self->own[key];
}

int sim_pthread_setcancelstate(int state, int *before)
{
    (void)state;
    if (before != NULL)
        *before = PTHREAD_CANCEL_ENABLE;
    return 0;
}

int sim_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    (void)prepare, (void)parent, (void)child;
    return 0;
}

int sim_pthread_getname_np(pthread_t thread, char *name, size_t bytes)
{
    (void)thread;
    snprintf(name, bytes, "sim");
    return 0;
}
