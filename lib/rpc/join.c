/* SPDX-License-Identifier: MIT */
/*
 * A process that takes the place of a dead worker: how a running worker attaches it. job/door.c has met it.
 *
 * The door's thread makes the peer (bxi_peer_attach), for mapping takes long. Then it hands the peer to the role and
 * waits in a futex. The role puts it in the place of the dead one, under run->lock. It does not wait with bxi_wait: in
 * a job with own_loop that would drive, and run handlers.
 *
 *     the rank's peer    DEAD or CORRUPT, ended --attached--> JOINING --its state is RUNNING--> ALIVE
 *                                                                     --LEFT, or its pidfd----> DEAD, ended
 *
 * The former peer stays as it was closed until the job is destroyed: what still points to it ends there.
 */
#include "rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- what a process gave about itself ------------------------------------------------------------ */

static int check_fds(const int *fds)
{
    /* Ringing must never block the thread that rings. */
    for (int i = BXI_BOOT_BELL; i <= BXI_BOOT_BELL_LEADER; i++)
        if ((fcntl(fds[i], F_GETFL) & (O_NONBLOCK | O_ACCMODE)) != (O_NONBLOCK | O_RDWR))
            return -EPROTO;
    if (syscall(SYS_pidfd_send_signal, fds[BXI_BOOT_PIDFD], 0, NULL, 0) < 0 && errno == EBADF)
        return -EPROTO;
    return 0;
}

int bxi_peer_attach(struct bx_job *job, struct bxi_peer *peer, const struct bxi_join *join)
{
    int rc = check_fds(join->fds);

    if (rc < 0)
        return rc;
    rc = bxi_segment_attach(&peer->view, join->fds[BXI_BOOT_SEGMENT], job->instance, join->rank, job->world_size);
    if (rc < 0)
        return rc;
    if (peer->view.control->header.generation != join->generation)
        rc = -EPROTO;
    else
        rc = bxi_arena_attach(&peer->lend->arena, join->fds[BXI_BOOT_ARENA], peer->view.control->header.arena_bytes);
    if (rc < 0) {
        bxi_segment_detach(&peer->view);
        return rc;
    }
    peer->rank = join->rank;
    peer->pid = join->pid;
    peer->generation = join->generation;
    snprintf(peer->name, sizeof peer->name, "%s", join->name);
    peer->bell.word = &peer->view.control->header.armed;
    peer->bell.fd[0] = join->fds[BXI_BOOT_BELL];
    peer->bell.fd[1] = join->fds[BXI_BOOT_BELL_LEADER];
    peer->pidfd = join->fds[BXI_BOOT_PIDFD];
    return 0;
}

/* ---- generations --------------------------------------------------------------------------------- */

int bxi_join_generation(const struct bx_job *job, int rank)
{
    return (int)bxi_load_relaxed(&job->rpc->joins.generation[rank]);       /* relaxed: a number that only grows */
}

void bxi_join_note_generation(struct bx_job *job, int rank, uint32_t generation)
{
    bxi_a32 *known = &job->rpc->joins.generation[rank];

    if (generation > bxi_load_relaxed(known))       /* relaxed: one thread writes it */
        bxi_store_relaxed(known, generation);
}

void bxi_join_set_generation(struct bx_job *job, int rank, uint32_t generation)
{
    struct bxi_peer *peer = job->rpc->peers[rank];

    peer->generation = generation;
    peer->lend->generation = job->rrefs->generation[rank] = (uint8_t)(generation > 0 ? generation - 1 : 0);
    bxi_join_note_generation(job, rank, generation);
}

uint8_t bxi_join_closed(const struct bx_job *job, int rank)
{
    uint8_t closed;

    bxi_lock(&job->run->lock);
    closed = job->rrefs->closed[rank];
    bxi_unlock(&job->run->lock);
    return closed;
}

void bxi_join_note_closed(struct bx_job *job, int rank, uint32_t closed)
{
    if (closed <= BXI_GENERATION_MAX && closed > job->rrefs->closed[rank])
        job->rrefs->closed[rank] = (uint8_t)closed;
}

void bxi_join_absent(struct bx_job *job, int rank, const char *name, uint32_t generation)
{
    static bxi_a64 no_bell;
    struct bxi_peer *peer = job->rpc->peers[rank];

    snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->rank = rank;
    bxi_join_set_generation(job, rank, generation);
    peer->pidfd = peer->bell.fd[0] = peer->bell.fd[1] = -1;
    peer->bell.word = &no_bell;
    peer->close_code = BX_E_PEER_DEAD;
    peer->state_word = BXI_STARTING;
    /* Relaxed, all: no other thread of the job exists yet. */
    bxi_store_relaxed(&peer->lend->is_gone, 1);
    bxi_store_relaxed(&peer->state, BXI_PEER_DEAD);
    bxi_store_relaxed(&peer->ended, 1);
    bxi_add_seq_cst(&job->rpc->lost, 1);            /* as count_gone in watch.c; bx_job_serve does not report it */
    bxi_add_seq_cst(&job->rpc->leavers, 1);
    bxi_add_seq_cst(&job->rpc->quiet, 1);
}

/* ---- the door's thread --------------------------------------------------------------------------- */

static void wake_door(struct bxi_joins *joins)
{
    /* [joins.waits] release, pairs with the acquire in wait_for_role: rc is written. */
    bxi_store_release(&joins->waits, 0);
    syscall(SYS_futex, &joins->waits, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void bxi_joins_stop(struct bx_job *job)
{
    struct bxi_joins *joins = &job->rpc->joins;

    bxi_lock(&job->run->lock);
    joins->ended = true;
    if (joins->peer != NULL) {
        joins->peer = NULL;
        joins->rc = BX_E_SHUTDOWN;
        wake_door(joins);
    }
    bxi_unlock(&job->run->lock);
}

static int wait_for_role(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_joins *joins = &job->rpc->joins;
    bool ended;

    bxi_lock(&job->run->lock);
    ended = joins->ended;
    if (!ended) {
        joins->peer = peer;
        bxi_store_relaxed(&joins->waits, 1);        /* relaxed: the lock releases it */
    }
    bxi_unlock(&job->run->lock);
    if (ended)
        return BX_E_SHUTDOWN;
    bxi_event(job->run, BXI_EVENT_JOIN);
    /* [joins.waits] acquire, pairs with the release in wake_door. */
    while (bxi_load_acquire(&joins->waits) != 0)
        job->run->system->wait_while_1(&joins->waits, BX_FOREVER);
    return joins->rc;
}

static void drop_peer(struct bxi_peer *peer)
{
    bxi_segment_detach(&peer->view);
    bxi_arena_view_release(peer->lend->arena);
    free(peer);
}

int bxi_join_attach(struct bx_job *job, const struct bxi_join *join)
{
    struct bxi_peer *peer = bxi_peer_create(join->rank);
    int rc;

    if (peer == NULL)
        return -ENOMEM;
    bxi_join_note_generation(job, join->rank, join->generation);
    rc = bxi_peer_attach(job, peer, join);
    if (rc < 0) {
        free(peer);
        return rc;
    }
    bxi_store_relaxed(&peer->state, BXI_PEER_JOINING);      /* relaxed: no other thread has it yet */
    peer->close_code = BX_E_PEER_DEAD;
    rc = wait_for_role(job, peer);
    if (rc < 0)
        drop_peer(peer);
    return rc;
}

/* ---- the role ------------------------------------------------------------------------------------ */

/* Puts the peer in the place of the one that is dead. No other process maps what is zeroed here: the new one gets the
 * descriptor of this segment afterwards. Lock. 0, -errno. */
static int take_place(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_peer *former = job->rpc->peers[peer->rank];
    int rc;

    if (bxi_load_relaxed(&former->ended) == 0)      /* relaxed: written by the role */
        return BX_E_RANK_TAKEN;
    bxi_returns_orphan(former->lend);
    rc = bxi_segment_forget_peer(&job->segment, peer->rank);
    if (rc < 0)
        return rc;
    bxi_grants_want_from(job, peer->rank);
    bxi_store_relaxed(&bxi_tables(job->control)->loans[peer->rank].borrowed, 0);    /* relaxed: for inspectors */
    peer->former = former;
    peer->lend->generation = peer->generation - 1;
    bxi_rref_peer_joins(job, peer->rank, (uint8_t)(peer->generation - 1));
    job->lend->peers[peer->rank] = peer->lend;
    job->rpc->peers[peer->rank] = peer;
    return 0;
}

static void tell(struct bx_job *job, int rank)
{
    const struct bxi_peer *peer = job->rpc->peers[rank];

    bxi_log(job, 2, "worker '%s' (rank %d, pid %u) is back: generation %u", peer->name, rank, peer->pid,
            peer->generation);
    bxi_worker_hook_run(job, &job->rpc->on_join, rank);
}

void bxi_joins_tell(const struct bxi_role *role, struct bx_job *job)
{
    uint64_t back[BXI_WORLD_MAX / 64];
    bool any = false;

    (void)role;
    bxi_lock(&job->run->lock);
    memcpy(back, job->rpc->joins.back, sizeof back);
    memset(job->rpc->joins.back, 0, sizeof back);
    bxi_unlock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++) {
        if ((back[rank / 64] >> rank % 64 & 1) == 0)
            continue;
        tell(job, rank);
        any = true;
    }
    if (any)
        bxi_wake(job->run, NULL);
}

void bxi_join_take(const struct bxi_role *role, struct bx_job *job)
{
    struct bxi_joins *joins = &job->rpc->joins;
    struct bxi_peer *peer;

    bxi_lock(&job->run->lock);
    peer = joins->peer;
    if (peer != NULL) {
        joins->peer = NULL;
        joins->rc = take_place(job, peer);
        wake_door(joins);
    }
    bxi_unlock(&job->run->lock);
    bxi_joins_tell(role, job);
    bxi_note(job->run, BXI_EVENT_SCAN);     /* it may run by now, and have rung before it was in the table */
}

/* Its states count again: undoes count_gone (watch.c) of the one before. */
static void count_back(struct bx_job *job, const struct bxi_peer *gone)
{
    while (gone->former != NULL && bxi_load_relaxed(&gone->state) == BXI_PEER_DEAD && gone->state_word == 0)
        gone = gone->former;        /* it never ran, and was not counted */
    bxi_add_seq_cst(&job->rpc->leavers, (uint32_t)-1);
    bxi_add_seq_cst(&job->rpc->quiet, (uint32_t)-1);
    if (gone->state_word < BXI_LEAVING)
        bxi_add_seq_cst(&job->rpc->lost, (uint32_t)-1);
}

bool bxi_join_promote(struct bx_job *job, struct bxi_peer *peer)
{
    /* [state] acquire, pairs with the releases in job/rejoin.c. */
    uint32_t state = bxi_load_acquire((bxi_a32 *)&peer->view.control->header.state);

    if (state == BXI_STARTING || state == BXI_LEFT)
        return false;
    count_back(job, peer->former);
    bxi_store_relaxed(&peer->state, BXI_PEER_ALIVE);        /* relaxed: read under the lock where it matters */
    job->rpc->joins.back[peer->rank / 64] |= UINT64_C(1) << peer->rank % 64;
    bxi_event(job->run, BXI_EVENT_JOIN);
    return true;
}

void bxi_joins_count(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++)
        if (bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_JOINING)      /* relaxed: under the lock */
            bxi_join_promote(job, job->rpc->peers[rank]);
    bxi_unlock(&job->run->lock);
}

void bxi_join_look(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer)
{
    (void)role;
    bxi_lock(&job->run->lock);
    if (bxi_load_relaxed(&peer->state) == BXI_PEER_JOINING && !bxi_join_promote(job, peer) &&
        /* [state] acquire, pairs with the releases in job/rejoin.c. */
        bxi_load_acquire((bxi_a32 *)&peer->view.control->header.state) == BXI_LEFT) {
        bxi_store_relaxed(&peer->state, BXI_PEER_DEAD);
        /* [peer.ended] as in bxi_deaths_close. */
        bxi_store_release(&peer->ended, 1);
    }
    bxi_unlock(&job->run->lock);
}

void bxi_join_died(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer)
{
    (void)role;
    bxi_lock(&job->run->lock);
    bxi_store_relaxed(&peer->state, BXI_PEER_DEAD);
    bxi_unlock(&job->run->lock);
    /* [peer.ended] as in bxi_deaths_close. */
    bxi_store_release(&peer->ended, 1);
}

/* ---- calls that wait for it ---------------------------------------------------------------------- */

struct join_waiter {
    struct bxi_waiter waiter;       /* first */
    const struct bx_job *job;
    int rank;
};

static bool can_be_called(struct bxi_waiter *waiter)
{
    const struct join_waiter *join = (const struct join_waiter *)(const void *)waiter;
    const struct bxi_peer *peer = join->job->rpc->peers[join->rank];
    /* Relaxed: whoever changes it wakes the waiters afterwards. */
    uint32_t state = bxi_load_relaxed(&peer->state);

    return state == BXI_PEER_ALIVE || state == BXI_PEER_LEFT;
}

int bxi_join_wait(struct bx_job *job, struct bxi_peer **peer, uint64_t deadline_ns, bool no_wait)
{
    struct join_waiter join = {
        .waiter = { .ready = can_be_called, .object = &job->rpc->joins, .deadline_ns = deadline_ns,
                    .shown = { .reason = BXI_FOR_ROOM, .to = (int16_t)(*peer)->rank } },
        .job = job,
        .rank = (*peer)->rank,
    };
    uint64_t began_ns;
    int rc;

    if (!job->options.rejoin)
        return bx_fail(-EINVAL, "BX_CALL_WAIT_JOIN is for jobs with options.rejoin: in job '%s' no worker comes back",
                       job->job_name);
    if (no_wait || can_be_called(&join.waiter))
        return 0;
    began_ns = bxi_now_ns();
    rc = bxi_wait(job->run, &join.waiter);
    *peer = job->rpc->peers[join.rank];
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "worker '%s' has died, and did not come back within %.3f s", (*peer)->name,
                       (double)(bxi_now_ns() - began_ns) / 1e9);
    return rc < 0 ? bx_fail(rc, "waiting for worker '%s' to come back: %s", (*peer)->name, bx_strerror(rc)) : 0;
}
