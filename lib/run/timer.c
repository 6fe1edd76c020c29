/* SPDX-License-Identifier: MIT */
/*
 * Deadlines: a binary heap of timers that lie inside peers (the earliest of their calls, call.c), batches and
 * the pool (its check of a queue that may stand still). Under run->lock; fired by the thread that drives.
 *
 * A thread that sleeps notes until when: the background thread, or own_loop's timer_fd, in background_until_ns. A
 * timer that is set earlier than that changes it under the same lock, and rings the background thread. A leader that
 * sleeps knows only of the timers that were there before; the background thread rings it when a later one is due
 * (BXI_EVENT_TIMER). The simulator checks this (role), and tests/run/test_loop_timer.c of a loop.
 */
#include "drive.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <time.h>

/* ---- the heap ---------------------------------------------------------------------------------- */

static void place(struct bxi_timers *timers, uint32_t index, struct bxi_timer *timer)
{
    timers->heap[index] = timer;
    timer->heap_index = index;
}

static void sift_up(struct bxi_timers *timers, uint32_t index, struct bxi_timer *timer)
{
    while (index > 1 && timers->heap[index / 2]->at_ns > timer->at_ns) {
        place(timers, index, timers->heap[index / 2]);
        index /= 2;
    }
    place(timers, index, timer);
}

static void sift_down(struct bxi_timers *timers, uint32_t index, struct bxi_timer *timer)
{
    for (;;) {
        uint32_t child = index * 2;

        if (child > timers->count)
            break;
        if (child < timers->count && timers->heap[child + 1]->at_ns < timers->heap[child]->at_ns)
            child++;
        if (timers->heap[child]->at_ns >= timer->at_ns)
            break;
        place(timers, index, timers->heap[child]);
        index = child;
    }
    place(timers, index, timer);
}

int bxi_heap_set(struct bxi_timers *timers, struct bxi_timer *timer, uint64_t at_ns)
{
    if (timer->heap_index != 0)
        bxi_heap_clear(timers, timer);
    if (timers->count + 1 >= timers->capacity) {
        uint32_t capacity = timers->capacity == 0 ? 64 : timers->capacity * 2;
        struct bxi_timer **heap = realloc(timers->heap, capacity * sizeof *heap);

        if (heap == NULL)
            return -ENOMEM;
        timers->heap = heap;
        timers->capacity = capacity;
    }
    timer->at_ns = at_ns;
    sift_up(timers, ++timers->count, timer);
    return 0;
}

void bxi_heap_clear(struct bxi_timers *timers, struct bxi_timer *timer)
{
    uint32_t index = timer->heap_index;

    if (index == 0)
        return;
    timer->heap_index = 0;

    struct bxi_timer *last = timers->heap[timers->count--];

    if (last == timer)
        return;
    if (index > 1 && timers->heap[index / 2]->at_ns > last->at_ns)
        sift_up(timers, index, last);
    else
        sift_down(timers, index, last);
}

uint64_t bxi_heap_next_ns(const struct bxi_timers *timers)
{
    return timers->count == 0 ? BX_FOREVER : timers->heap[1]->at_ns;
}

/* ---- until when threads sleep ------------------------------------------------------------------- */

/* Lock, so that timer_fd and background_until_ns change together, and never to a later time than the heap's top. */
static void set_until(struct bxi_run *run, uint64_t at_ns)
{
    struct itimerspec when = { { 0, 0 }, { 0, 0 } };

    run->background_until_ns = at_ns;
    if (run->timer_fd < 0)
        return;
    if (at_ns != BX_FOREVER) {
        when.it_value.tv_sec = (time_t)(at_ns / 1000000000);
        when.it_value.tv_nsec = (long)(at_ns % 1000000000);
    }
    timerfd_settime(run->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Lock. The background thread, or own_loop's timer_fd, must wake for the first deadline. */
static void wake_for_first(struct bxi_run *run)
{
    uint64_t next = bxi_heap_next_ns(&run->timers);

    if (next >= run->background_until_ns)
        return;
    set_until(run, next);
    if (run->loop_fd < 0)
        bxi_bell_ring(run->bell_fd[0]);
}

int bxi_timer_set(struct bxi_run *run, struct bxi_timer *timer, uint64_t at_ns)
{
    int rc;

    assert(bxi_lock_is_held(&run->lock));
    rc = bxi_heap_set(&run->timers, timer, at_ns);
    if (rc == 0)
        wake_for_first(run);
    return rc;
}

void bxi_timer_clear(struct bxi_run *run, struct bxi_timer *timer)
{
    assert(bxi_lock_is_held(&run->lock));
    bxi_heap_clear(&run->timers, timer);
}

uint64_t bxi_next_timer_ns(struct bxi_run *run)
{
    uint64_t next;

    bxi_lock(&run->lock);
    next = bxi_heap_next_ns(&run->timers);
    bxi_unlock(&run->lock);
    return next;
}

uint64_t bxi_until_when(struct bxi_run *run, uint64_t now_ns)
{
    uint64_t next;

    bxi_lock(&run->lock);
    next = bxi_heap_next_ns(&run->timers);
    /* [events] sequentially consistent, pairs with the exchange in hand_out_events: the holder that takes the event
     * fires what is due after this, and rings for the next one. */
    if (run->loop_fd < 0 && next <= now_ns && (bxi_load_seq_cst(&run->events) & BXI_EVENT_TIMER) != 0)
        next = BX_FOREVER;
    if (next != run->background_until_ns)
        set_until(run, next);
    bxi_unlock(&run->lock);
    return next;
}

/* ---- firing (role) ----------------------------------------------------------------------------- */

bool bxi_fire_timers(const struct bxi_role *role, uint64_t now_ns)
{
    struct bxi_run *run = bxi_run_of(role);
    bool fired = false;

    bxi_lock(&run->lock);
    while (bxi_heap_next_ns(&run->timers) <= now_ns) {
        struct bxi_timer *timer = run->timers.heap[1];

        bxi_heap_clear(&run->timers, timer);
        timer->fire(run->context, timer);
        fired = true;
    }
    bxi_unlock(&run->lock);
    if (!fired)
        return false;
    BXI_FOR_SOURCES(run, timers_fired)
        source->ops->timers_fired(source->context, role);
    return true;
}

void bxi_timers_due(const struct bxi_role *role)
{
    struct bxi_run *run = bxi_run_of(role);

    bxi_fire_timers(role, run->system->now_ns());
    bxi_lock(&run->lock);
    if (run->loop_fd < 0)
        wake_for_first(run);
    else
        set_until(run, bxi_heap_next_ns(&run->timers));     /* timer_fd was read, and is not set any more */
    bxi_unlock(&run->lock);
}
