/* SPDX-License-Identifier: MIT */
/*
 * The pool that runs blocking handlers and the bodies of blocking batches.
 *
 * It runs tasks (struct bxi_task) and knows nothing else of them. A task is submitted by the role and run by a thread
 * of the pool.
 *
 * A thread that has run a handler takes the role before it answers, if it is free, and drives the worker for the time
 * of a spin: the caller's next request is then read and run by one thread, without a bell or a wake-up. It gives the
 * role up before it runs the task. The bell is then armed for the background thread, which wakes if something comes
 * meanwhile. A thread that finds nothing is parked, and the background thread hands the next task over. With
 * options.own_loop all are parked at once, for the program drives there.
 *
 * A thread is made when there is work and none is idle, up to options.pool_threads (16) that are not blocked in a wait.
 * A thread that waits does not count, so nested calls never starve. There are 256 threads at most: when all of them are
 * blocked in waits, a task is refused with BX_E_BUSY instead of being queued behind them for ever.
 *
 * Tasks of BX_LOCKED handlers would only wait for each other's lock, so no thread is woken for one while another may be
 * back soon: it has the role, or was woken for such a task or began one less than SOON_NS ago. The queue is then looked
 * at after that time, by a timer. If no task was taken meanwhile, one more thread is woken, and the next look comes
 * after twice the time: the program may hold that lock for long. A look is two wake-ups of the background thread, so
 * there is none for the one task that the thread with the role is about to take.
 *
 * Threads are woken behind the pass that submitted their tasks, when its thread has given the role up, if it can. The
 * kernel may give a woken thread the CPU of the one that wakes it: it would run the task, find the role taken and be
 * parked, and each request would need two wake-ups. So the background thread does not spin either after it has woken a
 * thread of the pool.
 *
 * Handlers that wait for each other in a way that the engine does not see may fill the pool, while the one that they
 * wait for is in the queue. So a queue that all threads are too busy for is looked at too: if no task has been taken
 * from it for a second, that is logged, once, and shown in the segment until one is taken.
 */
#include "rpc.h"

#include "observe/trace.h"
#include "shm/cancel.h"
#include "shm/guard.h"

#include <errno.h>
#include <stdio.h>

static _Thread_local struct bx_job *pool_job;       /* whose pool this thread belongs to */
static _Thread_local const struct bxi_role *kept;   /* the role, from an answer until drive_on; else NULL */

#define SOON_NS UINT64_C(100000)
#define LATE_NS UINT64_C(3200000)       /* the longest time between two looks while more threads are woken */
#define CHECK_NS UINT64_C(1000000000)

/* Of pool.lock. Wakes the threads that were called; not before, for they would wait for the lock. */
static void unlock(struct bxi_pool *pool)
{
    uint32_t calls = pool->calls;

    pool->calls = 0;
    pthread_mutex_unlock(&pool->lock);
    for (; calls > 0; calls--)
        pthread_cond_signal(&pool->cond);
}

void bxi_pool_call(struct bx_job *job)
{
    pthread_mutex_lock(&job->rpc->pool.lock);
    unlock(&job->rpc->pool);
}

/* ---- tasks ------------------------------------------------------------------------------------- */

/* pool.lock. */
static void show_moving(struct bx_job *job)
{
    if (job->rpc->pool.stuck)
        bxi_store_relaxed(&bxi_tables(job->control)->now.pool_stuck_ns, 0);     /* relaxed: for inspectors */
    job->rpc->pool.stuck = false;
}

static void unqueue(struct bxi_pool *pool, struct bxi_task *task)
{
    if (task->prev != NULL)
        task->prev->next = task->next;
    else
        pool->head = task->next;
    if (task->next != NULL)
        task->next->prev = task->prev;
    else
        pool->tail = task->prev;
    task->queued = false;
    pool->queued--;
    bxi_store_relaxed(&pool->ready, pool->queued > 0);      /* relaxed: as in is_ready */
}

static struct bxi_task *take_task(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    struct bxi_task *task = pool->head;

    pool->taken++;
    pool->locked_ns = task->locked ? bxi_now_ns() : 0;
    show_moving(job);
    unqueue(pool, task);
    return task;
}

static bool may_leave_pool(struct bx_job *job);

void bxi_pool_answers(struct bx_job *job)
{
    if (pool_job == job && kept == NULL && !job->options.own_loop)
        kept = bxi_role_early(job->run);
}

static bool is_ready(struct bxi_waiter *waiter)
{
    bxi_a32 *ready = &((struct bxi_pool *)(uintptr_t)waiter->object)->ready;

    return bxi_load_relaxed(ready) != 0;        /* relaxed: the queue is read under the lock */
}

/* pool.lock, which it releases meanwhile. */
static void drive_on(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    struct bxi_waiter waiter = { .ready = is_ready, .object = pool, .deadline_ns = BX_FOREVER };

    pool->idle++;
    pool->one_drives = true;
    unlock(pool);
    bxi_drive_on(kept, &waiter);
    kept = NULL;
    bxi_cancel_off();               /* if a handler has switched it on */
    pthread_mutex_lock(&pool->lock);
    pool->one_drives = false;
    pool->idle--;
}

static void *run_thread(void *argument)
{
    struct bx_job *job = argument;
    struct bxi_pool *pool = &job->rpc->pool;

    pool_job = job;
    bxi_report_waits(true);
    bxi_cancel_off();               /* a handler may switch it on, and is stopped if it is cancelled */
    bxi_trace_thread("pool");
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->head == NULL && !pool->stop) {
            pool->idle++;
            pthread_cond_wait(&pool->cond, &pool->lock);
            pool->idle--;
        }
        if (pool->head == NULL)
            break;

        struct bxi_task *task = take_task(job);
        uint64_t mine = pool->taken;

        unlock(pool);
        task->run(job, task);
        bxi_cancel_off();           /* if the handler has switched it on */
        pthread_mutex_lock(&pool->lock);
        if (pool->taken == mine)
            pool->locked_ns = 0;
        if (kept != NULL)
            drive_on(job);
        if (bxi_leaving != NULL && may_leave_pool(job))
            break;
    }
    unlock(pool);
    return NULL;
}

/* ---- growth (pool.lock) ----------------------------------------------------------------------------- */

/* A thread is about to come for a task. */
static void note_called(struct bx_job *job)
{
    job->rpc->pool.locked_ns = bxi_now_ns();
}

static int add_thread(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    int rc = bxi_thread_create(&pool->thread[pool->threads], run_thread, job);

    if (rc != 0)
        return -rc;
    note_called(job);
    pool->threads++;
    bxi_add(&job->counters[BXI_C_pool_threads], 1);
    return 0;
}

/* A thread for the queue, if it needs one more: wakes one, or makes one if that is allowed. 0; or an error if no thread
 * is left that could run the queue: why none could be made. */
static int call_thread(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    uint32_t blocked = bxi_load_relaxed(&pool->blocked);
    int rc = 0;

    if (pool->idle > pool->one_drives && pool->queued > pool->one_drives) {
        note_called(job);
        pool->calls++;
    }
    if (pool->queued <= pool->idle || pool->stop)
        return 0;
    if (pool->threads < BXI_POOL_MAX && pool->threads - blocked < (uint32_t)job->options.pool_threads)
        rc = add_thread(job);
    if (pool->threads == blocked)
        return rc < 0 ? rc : BX_E_BUSY;
    return 0;
}

/* This thread left in a handler of the program. True if it may end: another thread runs the queue, and this one is
 * detached. False if it goes on as before: the pool is being stopped and its queue is to be run, or no other thread can
 * be made. */
static bool may_leave_pool(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    uint32_t i = 0;

    if (!pool->stop) {
        while (!pthread_equal(pool->thread[i], pthread_self()))
            i++;
        pool->thread[i] = pool->thread[--pool->threads];
        if (call_thread(job) == 0) {
            pthread_cond_signal(&pool->cond);       /* now: nobody joins this thread, and then the pool may be gone */
            pool->calls = 0;
            pthread_detach(pthread_self());
            return true;
        }
        pool->thread[pool->threads++] = pthread_self();
    }
    bxi_leaving = NULL;
    return false;
}

/* Whether a thread is about to look at the queue: none is woken for a locked task. */
static bool one_comes_soon(const struct bxi_pool *pool)
{
    return pool->one_drives || (pool->locked_ns != 0 && bxi_now_ns() - pool->locked_ns < SOON_NS);
}

static int enqueue(struct bx_job *job, struct bxi_task *task, bool waits)
{
    struct bxi_pool *pool = &job->rpc->pool;
    int rc;

    if (pool->stop)
        return BX_E_SHUTDOWN;
    task->next = NULL;
    task->prev = pool->tail;
    if (pool->tail != NULL)
        pool->tail->next = task;
    else
        pool->head = task;
    pool->tail = task;
    task->queued = true;
    pool->queued++;
    bxi_store_relaxed(&pool->ready, 1);     /* relaxed: as in is_ready */
    rc = waits ? 0 : call_thread(job);
    if (rc < 0)
        unqueue(pool, task);
    return rc;
}

/* ---- a queue that does not move --------------------------------------------------------------------- */

static void check_due(void *context, struct bxi_timer *timer)
{
    struct bx_job *job = context;

    (void)timer;
    bxi_event(job->run, BXI_EVENT_POOL);
}

static void watch_queue(struct bx_job *job, uint64_t after_ns)
{
    uint64_t at_ns = bxi_now_ns() + after_ns;

    bxi_lock(&job->run->lock);
    job->rpc->pool.timer.fire = check_due;
    bxi_timer_set(job->run, &job->rpc->pool.timer, at_ns);     /* -ENOMEM: no look */
    bxi_unlock(&job->run->lock);
}

/* pool.lock. For inspectors. */
static void show_stuck(struct bx_job *job, uint32_t busy)
{
    struct bxi_now *now = &bxi_tables(job->control)->now;

    /* Relaxed, both: published by the store of pool_stuck_ns. */
    bxi_store_relaxed(&now->pool_busy, busy);
    bxi_store_relaxed(&now->pool_waiting, job->rpc->pool.queued);
    if (!job->rpc->pool.stuck)
        /* Release, for inspectors in other processes: the words above are there. */
        bxi_store_release(&now->pool_stuck_ns, bxi_now_ns() - CHECK_NS);
    job->rpc->pool.stuck = true;
}

/* pool.lock. Looks at a queue that is not empty: a task that has waited since the last look gets one more thread, as
 * long as that gives one. Returns when the next look is due. */
static uint64_t next_look_ns(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    uint32_t before = pool->threads;

    if (pool->look_ns >= CHECK_NS)
        return CHECK_NS;
    if (pool->taken != pool->taken_seen)
        return SOON_NS;
    if (call_thread(job) < 0 || (pool->idle <= pool->one_drives && pool->threads == before))
        return CHECK_NS;
    return bxi_least(2 * pool->look_ns, LATE_NS);
}

void bxi_pool_look(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;
    uint64_t now_ns = bxi_now_ns(), after_ns;
    uint32_t busy, waiting;
    bool stands, tell;

    pthread_mutex_lock(&pool->lock);
    waiting = pool->queued;
    pool->look_ns = after_ns = waiting > 0 && !pool->stop ? next_look_ns(job) : 0;
    /* Relaxed: a thread that begins or ends to wait right now may be counted or not. */
    busy = pool->threads - pool->idle - bxi_load_relaxed(&pool->blocked);
    if (pool->taken != pool->taken_seen)
        pool->seen_ns = now_ns;
    stands = waiting > 0 && now_ns - pool->seen_ns >= CHECK_NS;
    tell = stands && !pool->stuck;
    if (stands)
        show_stuck(job, busy);
    if (waiting == 0)
        show_moving(job);               /* the queue was cancelled */
    pool->taken_seen = pool->taken;
    unlock(pool);
    if (tell)
        bxi_log(job, 1, "all %u threads of the pool of worker '%s' have been busy for a second, %u %s; if its "
                   "handlers wait for each other, give it more: options.pool_threads, BX_POOL_THREADS", busy,
                job->name, waiting, waiting == 1 ? "request waits" : "requests wait");
    if (after_ns > 0)
        watch_queue(job, after_ns);
}

/* pool.lock. The time after which the caller has to have the queue looked at; 0: that is not needed, or soon enough.
 * The thread that drives takes the first task itself. */
static uint64_t begin_watch(struct bxi_pool *pool, bool waits)
{
    uint64_t after_ns = waits && pool->queued > pool->one_drives ? SOON_NS : pool->queued > pool->idle ? CHECK_NS : 0;

    if (after_ns == 0 || (pool->look_ns != 0 && pool->look_ns <= after_ns))
        return 0;
    if (pool->look_ns == 0) {
        pool->taken_seen = pool->taken;
        pool->seen_ns = bxi_now_ns();
    }
    pool->look_ns = after_ns;
    return after_ns;
}

/* ---- submitting ------------------------------------------------------------------------------------- */

int bxi_pool_submit(struct bx_job *job, struct bxi_task *task)
{
    struct bxi_pool *pool = &job->rpc->pool;
    uint64_t after_ns = 0;
    bool waits;
    int rc;

    pthread_mutex_lock(&pool->lock);
    waits = task->locked && one_comes_soon(pool);
    rc = enqueue(job, task, waits);
    if (rc == 0)
        after_ns = begin_watch(pool, waits);
    job->run->calls |= pool->calls > 0;
    pthread_mutex_unlock(&pool->lock);
    if (after_ns > 0)
        watch_queue(job, after_ns);
    return rc;
}

const char *bxi_pool_why(int rc, char text[BXI_POOL_WHY_BYTES])
{
    if (rc == BX_E_BUSY || rc == BX_E_SHUTDOWN)
        return NULL;
    if (rc == -ENOBUFS)
        snprintf(text, BXI_POOL_WHY_BYTES, "%d of its one-way calls wait already", BXI_CALLS_MAX);
    else
        snprintf(text, BXI_POOL_WHY_BYTES, "no thread can be made for it: %s; see ulimit -u, the cgroup's pids.max "
                                           "and memory", bx_strerror(rc));
    return text;
}

bool bxi_pool_take(struct bx_job *job, struct bxi_task *task)
{
    struct bxi_pool *pool = &job->rpc->pool;
    bool queued;

    pthread_mutex_lock(&pool->lock);
    queued = task->queued;
    if (queued)
        unqueue(pool, task);
    unlock(pool);
    return queued;
}

/* ---- threads that wait ------------------------------------------------------------------------- */

bool bxi_pool_owns_thread(const struct bx_job *job)
{
    return pool_job == job;
}

/* A list by next. */
static struct bxi_task *take_all(struct bxi_pool *pool)
{
    struct bxi_task *tasks = pool->head;

    for (struct bxi_task *task = tasks; task != NULL; task = task->next)
        unqueue(pool, task);
    return tasks;
}

static void refuse_all(struct bx_job *job, struct bxi_task *tasks, int code)
{
    while (tasks != NULL) {
        struct bxi_task *task = tasks;

        tasks = task->next;
        task->refuse(job, task, code);
    }
}

/* If this was the last thread that did not wait, and no other can be made, the queue is refused: this thread may wait
 * for a request that is queued. */
bool bxi_pool_block(void)
{
    struct bx_job *job = pool_job;

    if (job == NULL)
        return false;
    bxi_add(&job->rpc->pool.blocked, 1);
    pthread_mutex_lock(&job->rpc->pool.lock);
    job->rpc->pool.locked_ns = 0;
    int rc = call_thread(job);
    struct bxi_task *stuck = rc < 0 ? take_all(&job->rpc->pool) : NULL;
    unlock(&job->rpc->pool);
    refuse_all(job, stuck, rc);
    return true;
}

void bxi_pool_unblock(void)
{
    if (pool_job != NULL)
        bxi_add(&pool_job->rpc->pool.blocked, (uint32_t)-1);
}

void bxi_pool_stop(struct bx_job *job)
{
    struct bxi_pool *pool = &job->rpc->pool;

    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->cond);
    unlock(pool);
    for (uint32_t i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_mutex_lock(&pool->lock);        /* the background thread may look at the queue */
    pool->threads = 0;
    unlock(pool);
}
