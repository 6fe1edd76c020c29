/* SPDX-License-Identifier: MIT */
/*
 * RPC as a source of run (run/run.h): rings, full queues, deferred bells and leases that a thread waits for; and, by
 * events, peers, batches and the pool. Under the progress role, but for flush.
 *
 * One source, not one for each: a pass of an empty call finds work in the rings alone, and every further source costs
 * it an indirect call in each pass and each recheck (1.1 ns of 165).
 */
#include "nested.h"

static int pass(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bx_job *job = context;
    int handled = 0;

    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++) {
        handled += bxi_read_ring(role, job, job->rpc->in_peers[i], waiter, BXI_FRAMES_A_PASS);
        if (handled > 0 && waiter != NULL && waiter->ready(waiter))
            break;
    }
    handled += bxi_queues_move(job, false);
    handled += bxi_grants_reclaim_wanted(job);
    bxi_bells_pass(job);
    return handled;
}

/* Its next frame waits for device memory, which an event announces. */
static bool is_held(const struct bxi_peer *peer)
{
    return peer->lend->held != NULL && bxi_device_is_pending(peer->lend->held);
}

#define STREAM_PAUSES 8             /* about 200 ns: what the last of a stream's frames may wait */

static bool all_stream(const struct bxi_rpc *rpc, int count)
{
    for (int i = 0; i < count; i++)
        if (!rpc->in_peers[i]->streams)
            return false;
    return count > 0;
}

/* Each look takes the line of the next commit word away from the core that is about to write it. So there is a pause
 * between two: an empty call takes 250 instead of 290 ns where a line takes 100, and 690 instead of 720 where it takes
 * 600. A peer with many frames under way writes one record after the other, and nobody waits for the very next, so its
 * ring is looked at less often: where lines are slow (500 ns), that made four times as many calls a second. Not while
 * another ring is open that does not stream: its reader would wait too. */
static bool peek(void *context, int times)
{
    const struct bxi_rpc *rpc = ((struct bx_job *)context)->rpc;
    int count = (int)bxi_load_relaxed(&rpc->in_count);

    if (all_stream(rpc, count)) {
        for (int i = 0; i < STREAM_PAUSES; i++)
            bxi_pause();
        times = 1;
    }
    for (; times > 0; times--)
        for (int i = 0; i < count; i++)
            if (bxi_ring_ready(&rpc->in_peers[i]->in) && !is_held(rpc->in_peers[i]))
                return true;
    return false;
}

static bool ready(void *context, const struct bxi_role *role)
{
    struct bx_job *job = context;
    bool moved;

    (void)role;
    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++) {
        const struct bxi_peer *peer = job->rpc->in_peers[i];

        if (bxi_ring_ready(&peer->in) && !is_held(peer))
            return true;
    }
    /* A consumer that published credit before this thread armed saw that it is wanted, but nobody to ring. A thread
     * that leaves the role without a sleep has not set the want word yet. */
    moved = bxi_queues_move(job, true);
    /* Relaxed: bxi_ending_begin sets the event that is noted here. */
    if (bxi_load_relaxed(&job->rpc->ending.began) != 0 && bxi_ending_has_moved(job)) {
        bxi_note(job->run, BXI_EVENT_SCAN);
        moved = true;
    }
    return bxi_grants_reclaim_wanted(job) || moved;
}

static void flush(void *context)
{
    bxi_bells_flush(context);
}

/* Publishes credit, and rings the producers that wait for it. */
static bool before_sleep(void *context, const struct bxi_role *role)
{
    struct bx_job *job = context;
    bool published = false, moved;

    (void)role;
    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++)
        published |= bxi_ring_publish(&job->rpc->in_peers[i]->in);
    if (published)
        bxi_wanted_look(job);
    moved = bxi_queues_move(job, true);
    return bxi_grants_reclaim_wanted(job) || moved;
}

static void timers_fired(void *context, const struct bxi_role *role)
{
    (void)role;
    bxi_calls_expire(context);
    bxi_hooks_run(context);
}

static uint64_t next_deadline_ns(void *context, uint64_t now_ns)
{
    const struct bx_job *job = context;

    /* Relaxed: only whether there are any rings. */
    return bxi_load_relaxed(&job->rpc->in_count) > 0 ? now_ns + BXI_WATCHDOG_NS : BX_FOREVER;
}

static void watchdog(void *context, const struct bxi_role *role)
{
    (void)role;
    bxi_grants_reclaim_wanted(context);
}

static void handle(void *context, const struct bxi_role *role, uint32_t event)
{
    struct bx_job *job = context;

    if (event == BXI_EVENT_SCAN)
        bxi_scan(role, job);
    else if (event == BXI_EVENT_DEATH)
        bxi_deaths_close(role, job);
    else if (event == BXI_EVENT_BATCH)
        bxi_batches_look(job);
    else if (event == BXI_EVENT_POOL)
        bxi_pool_look(job);
    else if (event == BXI_EVENT_OBJECT)
        bxi_objects_unpark(role, job);
    else if (event == BXI_EVENT_JOIN)
        bxi_join_take(role, job);
    else
        bxi_rref_answer_rounds(job);
    if (event == BXI_EVENT_SCAN || event == BXI_EVENT_DEATH)
        bxi_ending_check(role, job);
}

const struct bxi_source_ops bxi_rpc_source = {
    .events = BXI_EVENT_SCAN | BXI_EVENT_DEATH | BXI_EVENT_BATCH | BXI_EVENT_POOL |
              BXI_EVENT_OBJECT | BXI_EVENT_PASSED | BXI_EVENT_JOIN,
    .handle = handle,
    .pass = pass,
    .peek = peek,
    .ready = ready,
    .flush = flush,
    .before_sleep = before_sleep,
    .timers_fired = timers_fired,
    .next_deadline_ns = next_deadline_ns,
    .watchdog = watchdog,
};
