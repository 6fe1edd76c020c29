/* SPDX-License-Identifier: MIT */
/*
 * A process that takes the place of a dead worker: how a running worker attaches it. job/door.c has met it.
 *
 * The door's thread makes the peer (bxi_peer_attach), for mapping takes long. Then it hands the peer to the role and
 * waits in a futex. It does not wait with bxi_wait: in a job with own_loop that would drive, and run handlers.
 *
 * A worker is a rank and a generation. The place of a rank, rpc->peers[rank], has the last worker of the rank that ran.
 * One that is attached and does not run yet is in no place: it is nobody's peer, it has no part in counts and rounds,
 * and if it never runs it leaves nothing behind. It takes its place under the lock, at the first moment at which its
 * state matters: in a scan, or when a thread asks whether the rank lives.
 *
 *     joins.joining[rank]    NULL --attached--> JOINING --its state is RUNNING--> takes the place, ALIVE
 *                                                       --GAVE_UP--> DEAD: the next that is attached replaces it
 *                                                       --its pidfd--> NULL
 *     rpc->peers[rank]       ALIVE --closed (watch.c)--> DEAD, LEFT or CORRUPT --its process has ended--> `ended`
 *                                  --the next one runs--> former
 *     former                 --nothing needs it--> joins.spare[rank], for the next that is attached
 *
 * What is closed. The workers of a rank run one after the other: the next is attached only when the process of the last
 * has ended, everywhere. So those before the one in the place are closed, that one is closed if it is not ALIVE, and
 * later ones are not. bxi_rref_closed (rref/rref.h) is this sentence, and the only answer to the question.
 *
 * A former peer is needed by leases that are out to it (a round may have to end first), by loans of its tensors, and by
 * its requests that are not answered yet. When none is left, the role closes its descriptors and unmaps its segment.
 * Threads without the lock may still have a pointer to the struct. So structs are freed at the end of the job only, and
 * used again for the same rank: such a thread reads a state under the lock, and at worst calls the successor. In a
 * worker with an open GPU, threads in the driver read the mapping and the struct: both stay, and only the descriptors
 * are closed.
 */
#include "rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- what a process gave about itself ------------------------------------------------------------ */

/* A pidfd; or what a worker gives that gets none: a pipe, for reading (job/machine.c). */
static bool is_end_of_process(int fd)
{
    struct stat status = { 0 };

    if (syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno != EBADF)
        return true;
    fstat(fd, &status);
    return S_ISFIFO(status.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
}

static int check_fds(const int *fds)
{
    /* Ringing must never block the thread that rings. */
    for (int i = BXI_BOOT_BELL; i <= BXI_BOOT_BELL_LEADER; i++)
        if ((fcntl(fds[i], F_GETFL) & (O_NONBLOCK | O_ACCMODE)) != (O_NONBLOCK | O_RDWR))
            return -EPROTO;
    return fds[BXI_BOOT_PIDFD] < 0 || is_end_of_process(fds[BXI_BOOT_PIDFD]) ? 0 : -EPROTO;
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

uint32_t bxi_join_ran(struct bx_job *job, int rank)
{
    uint32_t generation;

    bxi_lock(&job->run->lock);
    bxi_join_promote(job, rank);
    generation = job->rpc->peers[rank]->generation;
    bxi_unlock(&job->run->lock);
    return generation;
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

/* Puts a struct that nothing needs to those for the next workers of its rank. Lock. */
static void put_spare(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_peer **spare = &job->rpc->joins.spare[peer->rank];

    peer->lend->former = *spare != NULL ? (*spare)->lend : NULL;
    *spare = peer;
}

static struct bxi_peer *take_struct(struct bx_job *job, int rank)
{
    struct bxi_peer *peer;

    bxi_lock(&job->run->lock);
    peer = job->rpc->joins.spare[rank];
    if (peer != NULL) {
        job->rpc->joins.spare[rank] = bxi_peer_former(peer);
        bxi_peer_renew(peer);
    }
    bxi_unlock(&job->run->lock);
    return peer != NULL ? peer : bxi_peer_create(rank);
}

/* Bells and pidfd stay the caller's. */
static void drop_peer(struct bx_job *job, struct bxi_peer *peer)
{
    peer->bell.fd[0] = peer->bell.fd[1] = peer->pidfd = 0;
    bxi_segment_detach(&peer->view);
    if (peer->lend->arena != NULL)
        bxi_arena_view_release(peer->lend->arena);
    peer->lend->arena = NULL;
    bxi_lock(&job->run->lock);
    put_spare(job, peer);
    bxi_unlock(&job->run->lock);
}

int bxi_join_attach(struct bx_job *job, const struct bxi_join *join, struct bxi_peer **joiner)
{
    struct bxi_peer *peer = join->generation <= BXI_GENERATION_MAX ? take_struct(job, join->rank) : NULL;
    int rc;

    if (peer == NULL)
        return join->generation <= BXI_GENERATION_MAX ? -ENOMEM : -EPROTO;
    peer->close_code = BX_E_PEER_DEAD;
    rc = bxi_peer_attach(job, peer, join);
    if (rc == 0) {
        peer->lend->generation = peer->generation - 1;
        bxi_store_relaxed(&peer->state, BXI_PEER_JOINING);      /* relaxed: the lock of wait_for_role releases it */
        rc = wait_for_role(job, peer);
    }
    if (rc < 0)
        drop_peer(job, peer);
    else
        *joiner = peer;
    return rc;
}

/* ---- the role ------------------------------------------------------------------------------------ */

bool bxi_join_waits(const struct bx_job *job, int rank)
{
    /* [joining] acquire, pairs with the release in let_join: its state is read after it. */
    struct bxi_peer *peer = bxi_load_acquire(&job->rpc->joins.joining[rank]);

    return peer != NULL && bxi_load_relaxed(&peer->state) == BXI_PEER_JOINING;   /* relaxed: a late answer will do */
}

/* Lock, under which alone peers are rung. */
static void close_descriptors(struct bxi_peer *peer)
{
    int *fds[] = { &peer->bell.fd[0], &peer->bell.fd[1], &peer->pidfd };

    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] > 0)
            close(*fds[i]);
        *fds[i] = 0;
    }
}

/* Of a peer that is in no place, and that nothing needs; its process has ended, or has given up. Role, lock. */
static void let_go(struct bx_job *job, struct bxi_peer *peer)
{
    close_descriptors(peer);
    bxi_timer_clear(job->run, &peer->timer);
    bxi_grants_destroy(peer->lend);
    bxi_returns_close(peer->lend);
    if (peer->lend->arena != NULL)
        bxi_arena_view_release(peer->lend->arena);
    peer->lend->arena = NULL;
    bxi_segment_detach(&peer->view);
    put_spare(job, peer);
}

/* No other process maps what is zeroed here: the new one gets the descriptor of this segment afterwards. Lock. 0,
 * -errno. */
static int let_join(struct bx_job *job, struct bxi_peer *peer)
{
    _Atomic(struct bxi_peer *) *place = &job->rpc->joins.joining[peer->rank];
    struct bxi_peer *before = *place;
    int rc = bxi_segment_forget_peer(&job->segment, peer->rank);

    if (rc < 0)
        return rc;
    bxi_grants_want_from(job, peer->rank);
    bxi_store_relaxed(&bxi_tables(job->control)->loans[peer->rank].borrowed, 0);    /* relaxed: for inspectors */
    bxi_join_note_generation(job, peer->rank, peer->generation);
    /* [joining] release, pairs with the acquire in bxi_join_waits: state and generation are written. */
    bxi_store_release(place, peer);
    if (before != NULL)
        let_go(job, before);
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
    uint64_t back[BXI_WORKERS_MAX / 64];
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
    struct bxi_peer *peer, *former;

    bxi_lock(&job->run->lock);
    peer = joins->peer;
    former = peer != NULL ? job->rpc->peers[peer->rank] : NULL;
    bxi_unlock(&job->run->lock);
    /* It has ended, and nobody else joins the rank: the door has seen that, and its thread alone attaches. */
    if (former != NULL)
        bxi_returns_orphan(former->lend);           /* without the lock, which is taken inside its own */
    bxi_lock(&job->run->lock);
    if (former != NULL && joins->peer == peer) {    /* else bxi_joins_stop came between */
        joins->peer = NULL;
        /* Those that are there when the shutdown begins leave together, and no more. Relaxed: it leaves STARTED under
         * the lock. */
        joins->rc = bxi_load_relaxed(&job->phase) != BXI_STARTED ? BX_E_SHUTDOWN : let_join(job, peer);
        wake_door(joins);
    }
    bxi_unlock(&job->run->lock);
    bxi_formers_release(role, job);
    bxi_joins_tell(role, job);
    bxi_note(job->run, BXI_EVENT_SCAN);     /* it may run by now, and have rung before it was in the table */
}

/* Its states count again: undoes count_gone (watch.c) of the one before. */
static void count_back(struct bx_job *job, const struct bxi_peer *gone)
{
    bxi_add_seq_cst(&job->rpc->leavers, (uint32_t)-1);
    if (gone->state_word < BXI_LEAVING)
        bxi_add_seq_cst(&job->rpc->lost, (uint32_t)-1);
}

bool bxi_join_promote(struct bx_job *job, int rank)
{
    struct bxi_peer *peer = job->rpc->joins.joining[rank], *former = job->rpc->peers[rank];
    uint32_t state;

    if (peer == NULL || bxi_load_relaxed(&peer->state) != BXI_PEER_JOINING)     /* relaxed: written under the lock */
        return false;
    /* [state] acquire, pairs with the releases in job/rejoin.c. */
    state = bxi_load_acquire((bxi_a32 *)&peer->view.control->header.state);
    if (state <= BXI_STARTING || state >= BXI_GAVE_UP)
        return false;
    count_back(job, former);
    bxi_rref_peer_joins(job, rank, (uint8_t)peer->lend->generation);
    peer->lend->former = former->lend;
    bxi_store_relaxed(&peer->state, BXI_PEER_ALIVE);        /* relaxed: read under the lock where it matters */
    job->lend->peers[rank] = peer->lend;
    job->rpc->peers[rank] = peer;
    job->rpc->joins.joining[rank] = NULL;
    job->rpc->ending.published = UINT64_MAX;        /* the positions are others now */
    job->rpc->joins.back[rank / 64] |= UINT64_C(1) << rank % 64;
    bxi_event(job->run, BXI_EVENT_JOIN);
    return true;
}

void bxi_join_look(const struct bxi_role *role, struct bx_job *job, int rank)
{
    struct bxi_peer *peer;

    (void)role;
    if (!bxi_join_waits(job, rank))
        return;
    bxi_lock(&job->run->lock);
    peer = job->rpc->joins.joining[rank];
    if (peer != NULL && !bxi_join_promote(job, rank) &&
        /* [state] acquire, pairs with the releases in job/rejoin.c. */
        bxi_load_acquire((bxi_a32 *)&peer->view.control->header.state) == BXI_GAVE_UP)
        bxi_store_relaxed(&peer->state, BXI_PEER_DEAD);     /* relaxed: as in bxi_join_waits */
    bxi_unlock(&job->run->lock);
}

void bxi_joins_close(const struct bxi_role *role, struct bx_job *job)
{
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = job->rpc->joins.joining[rank];

        if (peer == NULL || bxi_load_relaxed(&peer->death_seen) == 0)      /* relaxed: the event is behind it */
            continue;
        bxi_join_look(role, job, rank);             /* it may have run before it died */
        if (job->rpc->joins.joining[rank] == NULL)
            continue;
        if (bxi_join_waits(job, rank))              /* else it gave up, and the names may be those of the next */
            job->rpc->remove_names(job, rank);
        bxi_lock(&job->run->lock);
        job->rpc->joins.joining[rank] = NULL;
        let_go(job, peer);
        bxi_unlock(&job->run->lock);
    }
}

/* ---- former peers ------------------------------------------------------------------------------------ */

/* Lock. */
static bool is_needed(const struct bxi_peer *peer)
{
    const struct bxi_lend_peer *lend = peer->lend;

    return lend->grants.count > 0 || lend->waits_for_round || !bxi_returns_are_done(lend) || peer->in_flight > 0 ||
           peer->serving > 0 || peer->serving_oneways > 0;
}

void bxi_formers_release(const struct bxi_role *role, struct bx_job *job)
{
    (void)role;
    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = job->rpc->peers[rank], *former;

        while ((former = bxi_peer_former(peer)) != NULL) {
            bool needed = is_needed(former);

            if (needed || bxi_devices_of(job) != NULL)
                peer = former;
            else
                peer->lend->former = former->lend->former;
            if (!needed && peer == former)
                close_descriptors(former);
            else if (!needed)
                let_go(job, former);
        }
    }
    bxi_unlock(&job->run->lock);
}

/* ---- calls to it ---------------------------------------------------------------------------------- */

struct bxi_peer *bxi_join_successor(struct bx_job *job, struct bxi_peer *peer)
{
    const int rank = peer->rank;

    bxi_lock(&job->run->lock);
    bxi_join_promote(job, rank);
    peer = job->rpc->peers[rank];
    bxi_unlock(&job->run->lock);
    return peer;
}

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
