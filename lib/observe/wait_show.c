/* SPDX-License-Identifier: MIT */
/*
 * Which threads wait, and for what: the segment's table `wait`, in which shmstat finds the call that a handler's thread
 * waits for. The engine itself never reads it.
 *
 * A wait takes a row when it lasts: before its first sleep, or after 256 passes; a thread of the pool takes one at
 * once. So a call that is answered while its caller spins costs nothing here. The process alone knows which rows are
 * taken; a thread writes only the row that it has taken. A process that is killed leaves its rows as they were;
 * inspectors see by the owner lock that no thread of it waits.
 */
#include "observe.h"

#include <unistd.h>

uint64_t bxi_thread_id(void)
{
    static _Thread_local uint64_t thread;
    static _Thread_local uint32_t forks;
    uint32_t now = bxi_load_relaxed(&bxi_forks);        /* relaxed: written in a child that has one thread */

    if (thread == 0 || forks != now) {
        thread = (uint64_t)gettid();
        forks = now;
    }
    return thread;
}

/* Takes a free row; -1: there is none. */
static int take_row(struct bx_job *job)
{
    for (int word = 0; word < BXI_WAIT_WORDS; word++) {
        /* [wait.rows] relaxed: a guess, which the exchange checks. */
        uint64_t taken = bxi_load_relaxed(&job->observe->wait_rows[word]);

        while (~taken != 0 && word * 64 + __builtin_ctzll(~taken) < BXI_WAITS_MAX) {
            int bit = __builtin_ctzll(~taken);

            /* [wait.rows] acquire, pairs with the release in bxi_wait_hide: the thread that had the row has written
             * to it for the last time. */
            if (bxi_cas(&job->observe->wait_rows[word], &taken, taken | UINT64_C(1) << bit))
                return word * 64 + bit;
        }
    }
    return -1;
}

void bxi_wait_show(struct bx_job *job, struct bxi_wait_shown *shown)
{
    uint64_t reason = shown->reason != 0 ? shown->reason : BXI_FOR_JOB;
    bool names_worker = (reason == BXI_FOR_CALL || reason == BXI_FOR_ROOM || reason == BXI_FOR_LOANS) && shown->to >= 0;
    struct bxi_wait_row *row;
    int index;

    if (shown->row != 0 || (index = take_row(job)) < 0)
        return;
    shown->row = (uint8_t)(index + 1);
    row = &bxi_tables(job->control)->wait[index];
    /* Relaxed: published by the store of the thread. */
    bxi_store_relaxed(&row->id, reason == BXI_FOR_CALL ? shown->id : 0);
    bxi_store_relaxed(&row->to, names_worker ? (uint64_t)shown->to : BXI_WAIT_NOBODY);
    bxi_store_relaxed(&row->since_ns, bxi_coarse_ns());
    /* Release, for inspectors in other processes: the words above are of this wait. */
    bxi_store_release(&row->thread, bxi_thread_id() | reason << 32);
}

void bxi_wait_hide(struct bx_job *job, struct bxi_wait_shown *shown)
{
    int index = shown->row - 1;

    bxi_store_relaxed(&bxi_tables(job->control)->wait[index].thread, 0);       /* relaxed: for inspectors */
    shown->row = 0;
    /* [wait.rows] release, pairs with the acquire in take_row: the row is written no more. */
    bxi_add(&job->observe->wait_rows[index / 64], -(UINT64_C(1) << index % 64));
}
