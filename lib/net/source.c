/* SPDX-License-Identifier: MIT */
/*
 * The wire as a source of run (run/run.h). Whoever drives enters UCX. Before it sleeps or gives the role up it arms the
 * wire, and then has the thread of the net (links.c) watch its descriptor, once (EPOLLONESHOT): that sets an event,
 * which rings. While somebody drives, that thread does not watch: each message would wake it, at the cost of its sender
 * and its receiver (a call took 1.5 times as long as UCX's round trip, and takes 1.2).
 *
 * UCX enters the kernel by functions that are cancellation points, so a thread that is in the wire is not cancelled.
 */
#include "net.h"
#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define WORDS_EVERY 16u                 /* passes: words that nobody announced */
#define RESERVE_BYTES (4 * BXI_RING_BYTES)      /* a message of two rings' bytes is the largest that is kept */
#define CLOSE_NS UINT64_C(1000000000)   /* for the last messages */
#define ARRIVED_ROUNDS 128              /* of progress: those that live send on */

/* ---- the source --------------------------------------------------------------------------------------- */

/* That thread clears the flag behind its look and before its event. If it has looked and not cleared it yet, the wire
 * stays unwatched here, but the event follows, and with it a pass. */
static void watch_wire(struct bxi_net *net, bool watches)
{
    struct epoll_event event = { .events = EPOLLONESHOT | (watches ? (uint32_t)EPOLLIN : 0),
                                 .data.u64 = BXI_TOKEN_WIRE };

    /* Relaxed, both: the role's, but for that thread's 0. */
    if (bxi_load_relaxed(&net->wire_is_watched) == watches)
        return;
    bxi_store_relaxed(&net->wire_is_watched, watches);
    epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, net->ops->descriptor(net->wire), &event);
}

static int progress(struct bxi_net *net)
{
    const int count = (int)net->ops->progress(net->wire);

    net->wire_stirs = count > 0;
    return count;
}

static int net_pass(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    BXI_UNCANCELLED;
    struct bx_job *job = context;
    struct bxi_net *net = job->net;
    int handled;

    (void)role, (void)waiter;
    if (net->reserve == NULL)
        net->reserve = malloc(RESERVE_BYTES);
    watch_wire(net, false);
    handled = bxi_in_pass(job) + bxi_out_pass(job, net->passes++ % WORDS_EVERY == 0);
    return handled + progress(net);     /* last: what the others began may be done by it alone */
}

static void take_arrived(struct bx_job *job)
{
    BXI_UNCANCELLED;

    for (int i = 0; i < ARRIVED_ROUNDS && progress(job->net) > 0; i++)
        bxi_in_pass(job);
}

static bool net_peek(void *context, int times)
{
    BXI_UNCANCELLED;
    struct bx_job *job = context;

    (void)times;
    return bxi_out_has_frames(job) || progress(job->net) > 0;
}

static bool net_ready(void *context, const struct bxi_role *role)
{
    BXI_UNCANCELLED;
    struct bx_job *job = context;
    struct bxi_net *net = job->net;

    (void)role;
    if (bxi_out_waits(job))
        return true;
    net->wire_stirs = net->wire_stirs || !net->ops->arm(net->wire);
    if (!net->wire_stirs)
        watch_wire(net, true);
    return net->wire_stirs;
}

static bool net_before_sleep(void *context, const struct bxi_role *role)
{
    BXI_UNCANCELLED;
    struct bx_job *job = context;

    (void)role;
    return bxi_out_pass(job, true) + progress(job->net) > 0;
}

/* The wire's descriptor is readable: the pass that follows looks. */
static void net_handle(void *context, const struct bxi_role *role, uint32_t event)
{
    (void)context, (void)role, (void)event;
}

static const struct bxi_source_ops net_source = {
    .events = BXI_EVENT_NET,
    .handle = net_handle,
    .pass = net_pass,
    .peek = net_peek,
    .ready = net_ready,
    .before_sleep = net_before_sleep,
};

/* ---- start and end ------------------------------------------------------------------------------------- */

void bxi_net_start(struct bx_job *job)
{
    struct bxi_net *net = job->net;

    if (net == NULL)
        return;
    job->rpc->take_arrived = take_arrived;
    bxi_links_run(net);
    bxi_lock(&job->run->lock);
    bxi_run_add(job->run, &net_source, job);
    bxi_unlock(&job->run->lock);
    bxi_more_eager(job->run);           /* a reply to a remote worker needs this one to be awake */
}

struct left_waiter {
    struct bxi_waiter waiter;           /* first */
    struct bx_job *job;
};

static bool all_are_told(struct bxi_waiter *waiter)
{
    const struct bx_job *job = ((struct left_waiter *)(void *)waiter)->job;

    for (int rank = 0; rank < job->world_size; rank++)
        /* Relaxed, both: whoever drives writes them, and looks again. */
        if (job->net->twins[rank] != NULL && bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE &&
            bxi_load_relaxed(&job->net->twins[rank]->told) != BXI_LEFT)
            return false;
    return true;
}

void bxi_net_tell_left(struct bx_job *job)
{
    struct left_waiter left = { .waiter = { .ready = all_are_told, .object = job->net,
                                            .deadline_ns = bxi_now_ns() + CLOSE_NS }, .job = job };

    if (job->net == NULL || !bxi_links_are_run(job->net))
        return;
    bxi_event(job->run, BXI_EVENT_NET);
    bxi_wait(job->run, &left.waiter);
}

void bxi_net_stop(const struct bxi_role *role, struct bx_job *job)
{
    struct bxi_net *net = job->net;

    (void)role;
    if (net == NULL || !bxi_links_are_run(net))
        return;
    bxi_links_stop(net);
    bxi_out_pass(job, true);            /* LEFT */
    for (int rank = 0; rank < job->world_size; rank++)
        if (net->twins[rank] != NULL)
            bxi_landing_drop_kept(net->twins[rank]);
    net->ops->close(net->wire, CLOSE_NS);
    net->wire = NULL;
}
