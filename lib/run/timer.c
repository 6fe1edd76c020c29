/* SPDX-License-Identifier: MIT */
/*
 * Deadlines: a binary heap of timers that lie inside peers (the earliest of their calls, call.c), batches and
 * the pool (its look at a queue that may stand still). Under the job's lock; fired by whoever drives (progress.c).
 */
#include "run.h"

#include <errno.h>
#include <stdlib.h>

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

int bxi_timer_set(struct bxi_timers *timers, struct bxi_timer *timer, uint64_t at_ns)
{
    if (timer->heap_index != 0)
        bxi_timer_clear(timers, timer);
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

void bxi_timer_clear(struct bxi_timers *timers, struct bxi_timer *timer)
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

uint64_t bxi_timers_next_ns(const struct bxi_timers *timers)
{
    return timers->count == 0 ? BX_FOREVER : timers->heap[1]->at_ns;
}
