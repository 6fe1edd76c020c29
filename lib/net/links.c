/* SPDX-License-Identifier: MIT */
/*
 * Links: connections of the kernel's TCP beside the wire, of one worker, the hub, to each other one. They tell deaths,
 * and whether a host answers: its kernel does also for a worker that computes or is stopped. And the thread of the net,
 * which reads them, ends the twins of the dead, and wakes whoever is to drive when the wire's descriptor gets readable.
 * The thread never enters UCX.
 *
 * A death is told twice, by the wire to all that can be reached, and by the links to the hub, which passes it on. Which
 * of the two comes first does not matter. What was lost, an end of the wire or a link, has net->timeout_ns until its
 * worker counts as dead: somebody on its host tells earlier, or its host is gone too.
 *
 * The hub is the lowest rank that lives. The first one is rank 0, whose links are the connections of the meeting. When
 * it is gone, the next one connects to all others, and each other one to it: all but rank 0 listen at an address of
 * which the table told. Who connects shows the job's instance, as each message of the wire does. A worker takes a link
 * from whoever shows that, whatever it has heard of deaths itself.
 *
 *  L1  The hub has a link to each worker above it that is not known to be dead, and each worker one to its hub; or it
 *      tries to make one, with each ping. Nobody waits for the other side's: that may be stopped, lack a descriptor, or
 *      be gone. Where both have made one, both stay.
 *  L2  A link ends with an error if nothing of the other host answers, and by a hang-up if the other process ends.
 *      An attempt likewise, or within net->timeout_ns. The kernel tells an error once, to whichever call comes first.
 *  L3  By L1 and L2 the hub hears of each death above it, and each worker of its hub's. The hub tells each death that
 *      it knows of by each of its links, also by those that are made later.
 *
 * Who has lost its hub's host takes the workers there for dead by itself. It does not tell so when it is the hub then:
 * it makes links to them, and tells what these show. A worker that others take for dead hears so from whoever it
 * connects to. A hub that is stopped holds back what it alone can know.
 */
#include "meet.h"

#include "shm/cancel.h"
#include "shm/fork.h"
#include "shm/guard.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TOKEN_STOP (BXI_TOKEN_WIRE + 1)
#define TOKEN_LISTEN (BXI_TOKEN_WIRE + 2)
#define TOKEN_KNOCKING (BXI_TOKEN_WIRE + 3)     /* and BXI_KNOCKING - 1 behind it */
#define PINGS 4                         /* in net->timeout_ns */
#define UNREAD_MAX (4 * PINGS)

struct knock {
    struct bxi_net_message message;
    uint64_t instance;
};

static int watch(const struct bxi_net *net, int fd, uint32_t events, uint64_t token)
{
    struct epoll_event event = { .events = events, .data.u64 = token };

    return epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* ---- deaths -------------------------------------------------------------------------------------------- */

static int rank_at(const struct bxi_net *net, const struct bxi_link *link)
{
    return (int)(link - net->links) % BXI_WORKERS_MAX;
}

static bool is_open(const struct bxi_link *link)
{
    return link->fd >= 0 && link->since_ns == 0;
}

static bool is_unreachable(int rc)
{
    return rc == -ETIMEDOUT || rc == -EHOSTUNREACH || rc == -ENETUNREACH || rc == -EHOSTDOWN || rc == -ENETDOWN;
}

/* rc: what an unreachable host gives, which is lost by now; or of a hang-up, which the kernel sends when the process
 * ends, of nobody who listens, of nonsense. */
static void lose_link(struct bxi_net *net, struct bxi_link *link, int rc)
{
    epoll_ctl(net->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
    bxi_unshared_close(link->fd);
    link->fd = -1;
    link->since_ns = 0;
    link->host_is_lost = is_unreachable(rc);
    link->lost_ns = bxi_now_ns();
    if (link->host_is_lost)
        link->lost_ns -= bxi_least(net->timeout_ns, link->lost_ns - 1);
}

/* False: there is no room for it, as its reader is stopped; or the link was lost. */
static bool send_by(struct bxi_net *net, struct bxi_link *link, enum bxi_net_kind kind, int rank)
{
    const struct bxi_net_message message = { .kind = kind, .value = (uint64_t)rank };
    ssize_t sent = send(link->fd, &message, sizeof message, MSG_NOSIGNAL);

    if (sent < 0 && errno != EAGAIN)
        lose_link(net, link, -errno);
    else if (sent >= 0 && sent != sizeof message)       /* what follows a piece of one is nonsense to its reader */
        lose_link(net, link, -EPIPE);
    return sent == sizeof message;
}

static void note_death(struct bxi_net *net, int rank)
{
    if (!net->is_dead[rank])
        net->dead[net->deaths++] = (uint16_t)rank;
    net->is_dead[rank] = true;
    if (net->twins[rank] != NULL)
        bxi_twin_dies(net, net->twins[rank]);
}

/* The hub tells all; others, who of their host is dead, and whoever takes one for alive that is not. */
static void tell_deaths(struct bx_job *job)
{
    struct bxi_net *net = job->net;

    for (int i = 0; i < BXI_LINKS_MAX; i++) {
        struct bxi_link *link = &net->links[i];

        for (; is_open(link) && link->told < net->deaths; link->told++) {
            const int dead = net->dead[link->told];
            bool is_news = job->rank == net->hub || bxi_net_is_here(job, dead) || dead == rank_at(net, link);

            if (is_news && !send_by(net, link, BXI_NET_DEATH, dead))
                break;
        }
    }
}

void bxi_net_tell_death(struct bx_job *job, int rank)
{
    /* [state] acquire, as in look_state. One that had left has told so itself, and that may still be under way. */
    if (job->net == NULL || !bxi_links_are_run(job->net) ||
        bxi_load_acquire((bxi_a32 *)&job->rpc->peers[rank]->view.control->header.state) == BXI_LEFT)
        return;
    bxi_store_relaxed(&job->net->dead_here[rank], 1);           /* relaxed: the bell is behind it */
    bxi_bell_ring(job->net->stop_fd);
    bxi_out_death(job, rank);
}

static void note_deaths_here(struct bx_job *job)
{
    bxi_bell_drain(job->net->stop_fd);
    for (int rank = 0; rank < job->world_size; rank++)
        if (bxi_load_relaxed(&job->net->dead_here[rank]) != 0)      /* relaxed: the bell was before it */
            note_death(job->net, rank);
}

/* What is sent and not acknowledged for net->timeout_ns ends a link (TCP_USER_TIMEOUT); so does a connection that is
 * not made by then. The pings to a worker that is stopped stay in its kernel's buffer: a full one would end the link,
 * too. Who sends nothing for long is left to SO_KEEPALIVE, which is slower (bxi_meet_keep). */
static void ping_links(struct bxi_net *net)
{
    for (int i = 0; i < BXI_LINKS_MAX; i++) {
        struct bxi_link *link = &net->links[i];

        if (is_open(link) && link->unread++ < UNREAD_MAX)
            send_by(net, link, BXI_NET_PING, 0);
        else if (link->since_ns != 0 && bxi_now_ns() - link->since_ns >= net->timeout_ns)
            lose_link(net, link, -EHOSTUNREACH);
    }
}

/* More of the message that comes; the thread waits for none. 1: all of it is there; -EAGAIN; -EPIPE; -errno, which the
 * kernel tells once. */
static int receive_more(struct bxi_link *link)
{
    ssize_t got = recv(link->fd, (unsigned char *)&link->in + link->got, sizeof link->in - link->got, 0);

    if (got <= 0)
        return got == 0 ? -EPIPE : -errno;
    link->got = (link->got + (unsigned)got) % sizeof link->in;
    return link->got == 0 ? 1 : -EAGAIN;
}

static void read_link(struct bx_job *job, struct bxi_link *link)
{
    struct bxi_net *net = job->net;
    const int from = rank_at(net, link);
    uint64_t value;
    int rc = link->fd >= 0 ? receive_more(link) : -EAGAIN;

    if (rc == -EAGAIN)                  /* or the event is of a connection whose place this one has taken */
        return;
    link->unread = 0;
    value = link->in.value;
    if (rc == 1 && link->in.bytes != 0)
        rc = -EPIPE;
    if (rc == 1 && link->in.kind == BXI_NET_PING)
        return;
    if (rc < 0 || link->in.kind != BXI_NET_DEATH || value >= (uint64_t)job->world_size) {
        lose_link(net, link, rc < 0 ? rc : -EPIPE);
        return;
    }
    if (value == (uint64_t)job->rank && net->twins[from] != NULL)
        bxi_twin_dies(net, net->twins[from]);   /* it takes this one for dead */
    else if (net->twins[value] != NULL)
        note_death(net, (int)value);
}

/* It may have been lost since now_ns was read. */
static bool is_over(uint64_t lost_ns, uint64_t now_ns, uint64_t timeout_ns)
{
    return lost_ns != 0 && now_ns > lost_ns && now_ns - lost_ns >= timeout_ns;
}

/* Of the worker at its other end, or of all on that host. */
static void note_lost(struct bxi_net *net, const struct bxi_link *link)
{
    const int of = rank_at(net, link);

    for (int rank = 0; rank < BXI_WORKERS_MAX; rank++) {
        struct bxi_twin *twin = net->twins[rank];
        bool shares_host = strcmp(net->places[rank].host, net->places[of].host) == 0;

        if (twin == NULL || (rank != of && !(link->host_is_lost && shares_host)))
            continue;
        bxi_lock(&net->lock);
        if (twin->lost_ns == 0 || link->lost_ns < twin->lost_ns)
            twin->lost_ns = link->lost_ns;
        bxi_unlock(&net->lock);
    }
}

/* When a link between that worker and this one was lost; 0. */
static uint64_t link_lost_ns(const struct bxi_net *net, int rank)
{
    const uint64_t own_ns = net->links[rank].lost_ns;

    return own_ns != 0 ? own_ns : net->links[BXI_WORKERS_MAX + rank].lost_ns;
}

static bool has_left(const struct bxi_twin *twin)
{
    /* [state] acquire, as in look_state. */
    return bxi_load_acquire((bxi_a32 *)&twin->control->header.state) == BXI_LEFT;
}

/* What was lost for too long. When to look again. */
static uint64_t end_the_lost(struct bx_job *job)
{
    struct bxi_net *net = job->net;
    uint64_t now_ns = bxi_now_ns(), next_ns = BX_FOREVER;

    for (int i = 0; i < BXI_LINKS_MAX; i++)
        if (net->links[i].lost_ns != 0)
            note_lost(net, &net->links[i]);
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_twin *twin = net->twins[rank];
        uint64_t lost_ns;

        if (twin == NULL || net->is_dead[rank] || has_left(twin))
            continue;
        bxi_lock(&net->lock);
        lost_ns = twin->is_dead ? link_lost_ns(net, rank) : twin->lost_ns;
        bxi_unlock(&net->lock);
        if (!is_over(lost_ns, now_ns, net->timeout_ns))
            next_ns = lost_ns == 0 ? next_ns : bxi_least(next_ns, lost_ns + net->timeout_ns);
        else if (job->rank == net->hub && rank > job->rank)
            note_death(net, rank);
        else
            bxi_twin_dies(net, twin);
    }
    return next_ns;
}

/* ---- the hub -------------------------------------------------------------------------------------------- */

/* One of this host that no link reaches tells nothing. */
static bool lives(struct bx_job *job, int rank)
{
    struct bxi_net *net = job->net;
    bool is_lost = net->twins[rank] == NULL && link_lost_ns(net, rank) != 0;

    if (net->twins[rank] != NULL) {
        bxi_lock(&net->lock);
        is_lost = net->twins[rank]->is_dead;
        bxi_unlock(&net->lock);
    }
    /* Relaxed: of two workers that see this differently one connects in vain, or later. */
    return rank == job->rank || (!is_lost && bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE);
}

static void begin_link(struct bx_job *job, int rank, bool is_first)
{
    struct bxi_net *net = job->net;
    const struct sockaddr_in6 *at = &net->places[rank].listens;
    struct bxi_link *link = &net->links[rank];
    int fd = BXI_UNSHARED(socket(at->sin6_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), rc = -errno;

    if (fd >= 0) {
        bxi_meet_keep(fd, net->timeout_ns);
        rc = connect(fd, (const struct sockaddr *)at, bxi_address_bytes(at)) < 0 && errno != EINPROGRESS
                 ? -errno : watch(net, fd, EPOLLOUT, (uint64_t)rank);
    }
    if (rc < 0 && rc != -ECONNREFUSED && !is_unreachable(rc)) { /* it lacks a port, a descriptor or memory here */
        if (is_first)
            bxi_log(job, 1, "worker '%s' is not watched: %s", net->places[rank].name, bx_strerror(rc));
        bxi_unshared_close(fd);
        return;
    }
    *link = (struct bxi_link){ .fd = fd, .since_ns = bxi_now_ns() };
    if (rc < 0)
        lose_link(net, link, rc);
}

/* The kernel has connected it, or could not. */
static void open_link(struct bx_job *job, int rank)
{
    const struct knock knock = { .message = { .kind = BXI_NET_LINK, .value = (uint64_t)job->rank },
                                 .instance = job->instance };
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = (uint64_t)rank };
    struct bxi_link *link = &job->net->links[rank];
    socklen_t length = sizeof(int);
    int error = 0;

    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0 ||
        (error == 0 && send(link->fd, &knock, sizeof knock, MSG_NOSIGNAL) != sizeof knock))
        error = errno;
    link->since_ns = 0;
    epoll_ctl(job->net->epoll_fd, EPOLL_CTL_MOD, link->fd, &event);
    if (error != 0)
        lose_link(job->net, link, -error);
}

static bool is_to_be_watched(struct bx_job *job, int rank)
{
    const struct bxi_net *net = job->net;

    if (net->links[rank].fd >= 0 || net->links[BXI_WORKERS_MAX + rank].fd >= 0 || link_lost_ns(net, rank) != 0)
        return false;
    if (job->rank != net->hub)
        return rank == net->hub;
    /* One that this worker took for dead when another one was the hub is asked for. */
    return rank > job->rank && !net->is_dead[rank] &&
           (net->twins[rank] != NULL ? !has_left(net->twins[rank]) : lives(job, rank));
}

/* A new hub makes its links at once; the others give it the time until the next ping. */
static void keep_links(struct bx_job *job, bool pings)
{
    struct bxi_net *net = job->net;
    bool is_new;
    int hub = 0;

    /* Relaxed, both: what is about to leave waits for nobody. */
    if (bxi_load_relaxed(&job->control->header.state) == BXI_LEFT || bxi_load_relaxed(&job->rpc->ending.over) != 0)
        return;
    while (!lives(job, hub))
        hub++;
    is_new = hub != net->hub;
    net->hub = hub;
    for (int i = 0; i < BXI_LINKS_MAX && is_new; i++)
        net->links[i].told = 0;
    for (int rank = 0; rank < job->world_size && (is_new ? hub == job->rank : pings); rank++)
        if (is_to_be_watched(job, rank))
            begin_link(job, rank, is_new);
}

/* Who connects has shown nothing yet. There is room for all; each more takes the place of the oldest. Without a
 * descriptor for them they wait: also until the next ping, for the event comes once (EPOLLET). */
static void accept_knocks(struct bxi_net *net)
{
    for (int i = 0; i < BXI_WORKERS_MAX && net->listen_fd >= 0; i++) {    /* as many as listen_for_hub has room for */
        const int slot = (int)(net->knocks % BXI_KNOCKING);
        int fd = accept4(net->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return;
        net->knocks++;
        if (net->knocking[slot] >= 0)
            close(net->knocking[slot]);
        net->knocking[slot] = fd;
        watch(net, fd, EPOLLIN | EPOLLET, TOKEN_KNOCKING + (uint64_t)slot);
    }
}

static void read_knock(struct bx_job *job, int slot)
{
    struct bxi_net *net = job->net;
    struct knock knock;
    int fd = net->knocking[slot];
    ssize_t got = recv(fd, &knock, sizeof knock, MSG_PEEK);
    uint64_t rank = knock.message.value;
    struct bxi_link *link;

    if ((got < 0 && errno == EAGAIN) || (got > 0 && got < (ssize_t)sizeof knock))
        return;                         /* the rest comes */
    net->knocking[slot] = -1;
    if (got != sizeof knock || recv(fd, &knock, sizeof knock, 0) != got || knock.message.kind != BXI_NET_LINK ||
        knock.message.bytes != 0 || knock.instance != job->instance || rank >= (uint64_t)job->world_size ||
        rank == (uint64_t)job->rank) {
        close(fd);
        return;
    }
    link = &net->links[BXI_WORKERS_MAX + rank];
    bxi_meet_keep(fd, net->timeout_ns);
    bxi_unshared_close(link->fd);
    *link = (struct bxi_link){ .fd = BXI_UNSHARED(fd) };
    epoll_ctl(net->epoll_fd, EPOLL_CTL_MOD, fd,
              &(struct epoll_event){ .events = EPOLLIN, .data.u64 = (uint64_t)(link - net->links) });
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* It is not watched any more. */
static void wake_for_wire(struct bx_job *job)
{
    bxi_store_relaxed(&job->net->wire_is_watched, 0);           /* relaxed: the event is behind it */
    bxi_event(job->run, BXI_EVENT_NET);
}

static void take_event(struct bx_job *job, uint64_t token)
{
    struct bxi_net *net = job->net;

    if (token == BXI_TOKEN_WIRE)
        wake_for_wire(job);
    else if (token == TOKEN_STOP)
        note_deaths_here(job);
    else if (token == TOKEN_LISTEN)
        accept_knocks(net);
    else if (token >= TOKEN_KNOCKING && net->knocking[token - TOKEN_KNOCKING] >= 0)
        read_knock(job, (int)(token - TOKEN_KNOCKING));
    else if (token < BXI_LINKS_MAX && net->links[token].since_ns != 0)
        open_link(job, (int)token);
    else if (token < BXI_LINKS_MAX)
        read_link(job, &net->links[token]);
}

/* When to do so again, unless a link tells something. */
static uint64_t look_after_links(struct bx_job *job, uint64_t *ping_ns)
{
    struct bxi_net *net = job->net;
    const uint64_t now_ns = bxi_now_ns();
    const bool pings = now_ns >= *ping_ns;
    uint64_t next_ns;

    if (pings) {
        ping_links(net);
        accept_knocks(net);
        *ping_ns = now_ns + net->timeout_ns / PINGS;
    }
    next_ns = bxi_least(end_the_lost(job), *ping_ns);
    keep_links(job, pings);
    tell_deaths(job);
    return next_ns;
}

/* Waits for some. False: the links are to be looked after; they need it less often than the wire wakes. */
static bool take_events(struct bx_job *job, uint64_t next_ns)
{
    const uint64_t now_ns = bxi_now_ns();
    const int timeout_ms = next_ns <= now_ns ? 0 : (int)((next_ns - now_ns) / 1000000 + 1);
    struct epoll_event events[64];
    const int count = epoll_wait(job->net->epoll_fd, events, 64, timeout_ms);
    bool are_the_wire_s = count > 0 && now_ns < next_ns;

    for (int i = 0; i < count; i++) {
        take_event(job, events[i].data.u64);
        are_the_wire_s = are_the_wire_s && events[i].data.u64 == BXI_TOKEN_WIRE;
    }
    return are_the_wire_s;
}

static void *run_net(void *argument)
{
    struct bx_job *job = argument;
    struct bxi_net *net = job->net;
    uint64_t ping_ns = 0;

    bxi_cancel_off();
    /* [net.order] acquire, both: pairs with the releases in bxi_links_run and bxi_links_stop. */
    while (bxi_load_acquire(&net->order) == BXI_LINKS_WAIT)
        poll(&(struct pollfd){ .fd = net->stop_fd, .events = POLLIN }, 1, -1);
    while (bxi_load_acquire(&net->order) == BXI_LINKS_RUN) {
        const uint64_t next_ns = look_after_links(job, &ping_ns);

        while (take_events(job, next_ns))
            ;
    }
    return NULL;
}

int bxi_links_start(struct bx_job *job)
{
    struct bxi_net *net = job->net;
    int rc;

    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    net->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = net->epoll_fd < 0 || net->stop_fd < 0 ? -errno : watch(net, net->stop_fd, EPOLLIN, TOKEN_STOP);
    if (rc == 0)
        rc = watch(net, net->ops->descriptor(net->wire), EPOLLONESHOT, BXI_TOKEN_WIRE);
    if (rc == 0 && net->listen_fd >= 0)
        rc = watch(net, net->listen_fd, EPOLLIN | EPOLLET, TOKEN_LISTEN);
    for (int rank = 0; rank < job->world_size && rc == 0; rank++)
        if (net->links[rank].fd >= 0) {
            net->links[rank].fd = BXI_UNSHARED(net->links[rank].fd);    /* else it hangs up when a child ends, too */
            rc = watch(net, net->links[rank].fd, EPOLLIN, (uint64_t)rank);
        }
    bxi_store_relaxed(&net->order, BXI_LINKS_WAIT);     /* relaxed: the thread is made behind it */
    if (rc == 0)
        rc = -bxi_thread_create(&net->thread, run_net, job);
    if (rc < 0)
        bxi_store_relaxed(&net->order, BXI_LINKS_END);  /* relaxed: there is none */
    return rc == 0 ? 0 : bx_fail(rc, "what watches other hosts cannot be started: %s", bx_strerror(rc));
}

static void give_order(struct bxi_net *net, enum bxi_links_order order)
{
    bxi_store_release(&net->order, order);      /* [net.order] release, pairs with the acquires in run_net */
    bxi_bell_ring(net->stop_fd);
}

void bxi_links_run(struct bxi_net *net)
{
    give_order(net, BXI_LINKS_RUN);
}

void bxi_links_stop(struct bxi_net *net)
{
    if (bxi_load_relaxed(&net->order) == BXI_LINKS_END)     /* relaxed: start and end come one after the other */
        return;
    give_order(net, BXI_LINKS_END);
    pthread_join(net->thread, NULL);
}
