/* SPDX-License-Identifier: MIT */
/*
 * The wire as a source of run (run/run.h), and the thread of the net: it wakes whoever is to drive when the wire's
 * descriptor gets readable, reads the links, and ends the twins of the dead.
 *
 * Whoever drives enters UCX; the thread never does. Before a sleep the driver arms the wire, and then has the thread
 * look at its descriptor, once (EPOLLONESHOT): the thread sets an event, which rings.
 *
 * A death is told twice, by the wire to all that can be reached, and by the links to rank 0, which passes it on. Which
 * of the two comes first does not matter. What was lost, an end of the wire or a link, has net->timeout_ns until its
 * worker counts as dead: somebody on its host tells earlier, or its host is gone too.
 */
#include "meet.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WORDS_EVERY 16u                 /* passes: words that nobody announced */
#define TOKEN_WIRE 1000u
#define TOKEN_STOP 1001u
#define PINGS 4                         /* in net->timeout_ns */
#define CLOSE_NS UINT64_C(1000000000)   /* for the last messages */

/* ---- the source --------------------------------------------------------------------------------------- */

static int net_pass(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct bx_job *job = context;
    struct bxi_net *net = job->net;
    int handled = bxi_out_pass(job, net->passes++ % WORDS_EVERY == 0);

    (void)role, (void)waiter;
    handled += (int)net->ops->progress(net->wire);
    return handled + bxi_in_pass(job);
}

static bool net_peek(void *context, int times)
{
    struct bx_job *job = context;

    (void)times;
    return bxi_out_has_frames(job) || job->net->ops->progress(job->net->wire) != 0;
}

static bool net_ready(void *context, const struct bxi_role *role)
{
    struct bx_job *job = context;
    struct bxi_net *net = job->net;
    struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = TOKEN_WIRE };

    (void)role;
    if (bxi_out_waits(job) || net->ops->progress(net->wire) != 0 || !net->ops->arm(net->wire))
        return true;
    epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, net->ops->descriptor(net->wire), &event);
    return false;
}

static bool net_before_sleep(void *context, const struct bxi_role *role)
{
    struct bx_job *job = context;

    (void)role;
    return bxi_out_pass(job, true) + (int)job->net->ops->progress(job->net->wire) > 0;
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

/* ---- deaths -------------------------------------------------------------------------------------------- */

/* By every link but one. */
static void pass_on(struct bxi_net *net, uint64_t rank, const struct bxi_link *from)
{
    for (int i = 0; i < net->link_count; i++)
        if (&net->links[i] != from && net->links[i].fd >= 0)
            bxi_net_send(net->links[i].fd, &(struct bxi_net_message){ .kind = BXI_NET_DEATH, .value = rank }, NULL,
                         bxi_now_ns());
}

void bxi_net_tell_death(struct bx_job *job, int rank)
{
    /* [state] acquire, as in look_state. One that had left has told so itself, and that may still be under way. */
    if (job->net == NULL || !job->net->runs ||
        bxi_load_acquire((bxi_a32 *)&job->rpc->peers[rank]->view.control->header.state) == BXI_LEFT)
        return;
    bxi_store_relaxed(&job->net->dead_here[rank], 1);           /* relaxed: the bell is behind it */
    bxi_bell_ring(job->net->stop_fd);
    bxi_out_death(job, rank);
}

/* rc: of a hang-up, which the kernel sends when the process ends; or what an unreachable host gives, which is lost by
 * now. */
static void lose_link(struct bxi_net *net, struct bxi_link *link, int rc)
{
    epoll_ctl(net->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
    close(link->fd);
    link->fd = -1;
    link->host_is_lost = rc != -EPIPE && rc != -ECONNRESET;
    link->lost_ns = bxi_now_ns() - (link->host_is_lost ? net->timeout_ns : 0);
}

/* What is sent and not acknowledged for net->timeout_ns ends a link (TCP_USER_TIMEOUT). */
static void ping_links(struct bxi_net *net)
{
    for (int i = 0; i < net->link_count; i++) {
        struct bxi_link *link = &net->links[i];
        int rc = link->fd < 0 ? 0 : bxi_net_send(link->fd, &(struct bxi_net_message){ .kind = BXI_NET_PING }, NULL,
                                                 bxi_now_ns());

        if (rc < 0 && rc != -ETIMEDOUT)         /* that is of this call: it does not wait */
            lose_link(net, link, rc);
    }
}

static void read_link(struct bx_job *job, struct bxi_link *link)
{
    struct bxi_net *net = job->net;
    struct bxi_net_message message;
    int rc = link->fd < 0 ? -EPIPE : bxi_net_receive(link->fd, &message, NULL, 0, bxi_now_ns() + net->timeout_ns);

    if (rc == 0 && message.kind == BXI_NET_PING)
        return;
    if (rc < 0 || message.kind != BXI_NET_DEATH || message.value >= (uint64_t)job->world_size) {
        if (link->fd >= 0)
            lose_link(net, link, rc < 0 ? rc : -EPIPE);
        return;
    }
    if (net->twins[message.value] != NULL)
        bxi_twin_dies(net, net->twins[message.value]);
    if (job->rank == 0)
        pass_on(net, message.value, link);
}

/* It may have been lost since now_ns was read. */
static bool is_over(uint64_t lost_ns, uint64_t now_ns, uint64_t timeout_ns)
{
    return lost_ns != 0 && now_ns > lost_ns && now_ns - lost_ns >= timeout_ns;
}

/* Of the worker at its other end, or of all on that host. */
static void note_lost(struct bxi_net *net, const struct bxi_link *link)
{
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        struct bxi_twin *twin = net->twins[rank];
        bool shares_host = strcmp(net->places[rank].host, net->places[link->rank].host) == 0;

        if (twin == NULL || (rank != link->rank && !(link->host_is_lost && shares_host)))
            continue;
        bxi_lock(&net->lock);
        if (twin->lost_ns == 0 || link->lost_ns < twin->lost_ns)
            twin->lost_ns = link->lost_ns;
        bxi_unlock(&net->lock);
    }
}

/* What was lost for too long. When to look again. */
static uint64_t end_the_lost(struct bx_job *job)
{
    struct bxi_net *net = job->net;
    uint64_t now_ns = bxi_now_ns(), next_ns = BX_FOREVER;

    for (int i = 0; i < net->link_count; i++)
        if (net->links[i].lost_ns != 0)
            note_lost(net, &net->links[i]);
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_twin *twin = net->twins[rank];
        uint64_t lost_ns;

        if (twin == NULL)
            continue;
        bxi_lock(&net->lock);
        lost_ns = twin->end_fd >= 0 ? twin->lost_ns : 0;
        bxi_unlock(&net->lock);
        if (is_over(lost_ns, now_ns, net->timeout_ns)) {
            bxi_twin_dies(net, twin);
            if (job->rank == 0)
                pass_on(net, (uint64_t)rank, NULL);
        } else if (lost_ns != 0) {
            next_ns = bxi_least(next_ns, lost_ns + net->timeout_ns);
        }
    }
    return next_ns;
}

/* The deaths on this host. */
static void tell_links(struct bx_job *job)
{
    bxi_bell_drain(job->net->stop_fd);
    for (int rank = 0; rank < job->world_size; rank++)
        if (bxi_exchange(&job->net->dead_here[rank], 0) != 0)
            pass_on(job->net, (uint64_t)rank, NULL);
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void *run_net(void *argument)
{
    struct bx_job *job = argument;
    struct bxi_net *net = job->net;
    struct epoll_event events[64];
    uint64_t ping_ns = 0;

    bxi_cancel_off();
    for (;;) {
        uint64_t now_ns = bxi_now_ns(), next_ns;

        if (net->link_count > 0 && now_ns >= ping_ns) {
            ping_links(net);
            ping_ns = now_ns + net->timeout_ns / PINGS;
        }
        next_ns = bxi_least(end_the_lost(job), net->link_count > 0 ? ping_ns : BX_FOREVER);
        int timeout_ms = next_ns == BX_FOREVER ? -1 : next_ns <= now_ns ? 0 : (int)((next_ns - now_ns) / 1000000 + 1);
        int count = epoll_wait(net->epoll_fd, events, 64, timeout_ms);

        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 == TOKEN_WIRE)
                bxi_event(job->run, BXI_EVENT_NET);
            else if (events[i].data.u64 == TOKEN_STOP)
                tell_links(job);
            else
                read_link(job, &net->links[events[i].data.u64]);
        }
        /* [net.stops] acquire, pairs with the release in bxi_net_stop. */
        if (bxi_load_acquire(&net->stops) != 0)
            return NULL;
    }
}

static int watch(const struct bxi_net *net, int fd, uint32_t events, uint64_t token)
{
    struct epoll_event event = { .events = events, .data.u64 = token };

    return epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int bxi_net_start(struct bx_job *job)
{
    struct bxi_net *net = job->net;
    int rc;

    if (net == NULL)
        return 0;
    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    net->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = net->epoll_fd < 0 || net->stop_fd < 0 ? -errno : watch(net, net->stop_fd, EPOLLIN, TOKEN_STOP);
    if (rc == 0)
        rc = watch(net, net->ops->descriptor(net->wire), EPOLLONESHOT, TOKEN_WIRE);
    for (int i = 0; i < net->link_count && rc == 0; i++)
        rc = watch(net, net->links[i].fd, EPOLLIN, (uint64_t)i);
    if (rc == 0)
        rc = -bxi_thread_create(&net->thread, run_net, job);
    if (rc < 0)
        return bx_fail(rc, "what watches other hosts cannot be started: %s", bx_strerror(rc));
    net->runs = true;
    bxi_lock(&job->run->lock);
    bxi_run_add(job->run, &net_source, job);
    bxi_unlock(&job->run->lock);
    bxi_more_eager(job->run);           /* a reply to a remote worker needs this one to be awake */
    return 0;
}

/* ---- start and end ------------------------------------------------------------------------------------- */

struct words_waiter {
    struct bxi_waiter waiter;           /* first */
    struct bx_job *job;
};

static bool all_run(struct bxi_waiter *waiter)
{
    const struct bx_job *job = ((struct words_waiter *)(void *)waiter)->job;

    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_twin *twin = job->net->twins[rank];

        /* Relaxed, both: whoever drives writes them, and looks again. */
        if (twin != NULL && bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE &&
            bxi_load_relaxed(&twin->control->header.state) < BXI_RUNNING)
            return false;
    }
    return true;
}

int bxi_net_await(struct bx_job *job, uint64_t deadline_ns)
{
    struct words_waiter words = { .waiter = { .ready = all_run, .object = job->net, .deadline_ns = deadline_ns },
                                  .job = job };
    int rc;

    if (job->net == NULL)
        return 0;
    bxi_event(job->run, BXI_EVENT_NET);
    rc = bxi_wait(job->run, &words.waiter);
    return rc == 0 ? 0 : bx_fail(rc, "the workers of other hosts were not heard of: %s", bx_strerror(rc));
}

static bool all_are_told(struct bxi_waiter *waiter)
{
    const struct bx_job *job = ((struct words_waiter *)(void *)waiter)->job;

    for (int rank = 0; rank < job->world_size; rank++)
        /* Relaxed, both: as in all_run. */
        if (job->net->twins[rank] != NULL && bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE &&
            bxi_load_relaxed(&job->net->twins[rank]->told) != BXI_LEFT)
            return false;
    return true;
}

void bxi_net_tell_left(struct bx_job *job)
{
    struct words_waiter words = { .waiter = { .ready = all_are_told, .object = job->net,
                                              .deadline_ns = bxi_now_ns() + CLOSE_NS }, .job = job };

    if (job->net == NULL || !job->net->runs)
        return;
    bxi_event(job->run, BXI_EVENT_NET);
    bxi_wait(job->run, &words.waiter);
}

void bxi_net_stop(const struct bxi_role *role, struct bx_job *job)
{
    struct bxi_net *net = job->net;

    (void)role;
    if (net == NULL || !net->runs)
        return;
    net->runs = false;
    /* [net.stops] release, pairs with the acquire in run_net. */
    bxi_store_release(&net->stops, 1);
    bxi_bell_ring(net->stop_fd);
    pthread_join(net->thread, NULL);
    bxi_out_pass(job, true);            /* LEFT */
    for (int rank = 0; rank < job->world_size; rank++)
        if (net->twins[rank] != NULL)
            bxi_landing_drop_kept(net->twins[rank]);
    net->ops->close(net->wire, CLOSE_NS);
    net->wire = NULL;
}
