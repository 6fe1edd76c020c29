/* SPDX-License-Identifier: MIT */
/*
 * When is the job over? Workers that want to leave find out here, each for itself, from words in the segments.
 *
 * A one-way call is open nowhere, and the handler that it runs may send the next. So a worker that sees all others idle
 * may see some of them before and others after a request that moves among them. The rule counts frames, of all kinds,
 * by the positions in the rings. A worker *moves* when it sends or reads one. In its header it publishes one word:
 *
 *   round     A worker publishes round r when it has seen round r - 1 or a later one of all others, and then finds
 *             itself at rest: bxi_is_quiet is true, the role runs no handler, and nothing is unread in a ring to it.
 *   since     goes with it: the last round before whose publication it moved. From the publication of round `since` to
 *             that of the last one it did not move.
 *   over      is the job for a worker at round r if all have published round r or a later one, and `since` of all, its
 *             own too, is below r.
 *
 * Why that is right. Let all have published r, with `since` below r. Then each was at rest when it published r - 1, and
 * did not move until it published r, which was after all had published r - 1. So at the last publication of r - 1
 * nobody runs a handler. Nothing is unread either: a frame that was sent by then was sent before its sender published
 * r - 1. The receiver saw that publication, then looked into its rings, then published r. So it had read the frame by
 * then, and even before it published r - 1, for it did not move in between. Where nothing runs and nothing is unread,
 * nothing is sent any more (bxi_ending_may_send). With one round alone, a chain of one-way calls runs behind the reader
 * from worker to worker. A request that was read but waits for a thread of the pool keeps its worker from being quiet.
 *
 * Why it ends. While a worker moves it publishes no round, and nobody decides. When all are at rest for good, each
 * publishes the next round as soon as all have published the last one; after two of them `since` of all is below. Those
 * that have left or died, and those that this worker has cut off, are not waited for. A joiner that is attached and
 * does not run yet has published nothing, so all wait until it runs or gives up.
 *
 * Who sends meanwhile. Handlers, callbacks and the pool, as ever: the others serve until nothing runs anywhere. A
 * thread of the program that runs beside the shutdown may send as long as a request is served here, for its call may be
 * part of the answer; else it gets BX_E_SHUTDOWN. The check and the sending are one section of the lock, as are LEAVING
 * and the decision. So a request that is accepted is handled, unless its callee dies or leaves without the others.
 *
 * Killed behind any store: its words stay as they are. A worker that sees the death does not read them any more, and
 * drops the requests that it has not read by then.
 */
#include "rpc.h"

#include "shm/step.h"

static uint64_t word_of(uint32_t round, uint32_t since)
{
    return (uint64_t)round << 32 | since;
}

/* Of all rings to and from this worker. It grows with each frame that is sent or read. Lock and role. A joiner that
 * takes its place begins anew (join.c sets `published` then). */
static uint64_t positions(const struct bx_job *job)
{
    uint64_t sum = 0;

    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_peer *peer = job->rpc->peers[rank];

        sum += peer->in.read_pos + peer->out.write_pos;
    }
    return sum;
}

bool bxi_is_quiet(const struct bx_job *job)
{
    return job->rpc->calls_open == 0 && job->rpc->serving == 0 && bxi_rrefs_are_quiet(job) &&
           bxi_queues_are_empty(job);
}

/* ---- what a thread may do ------------------------------------------------------------------------- */

void bxi_ending_begin(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    bxi_store_relaxed(&job->rpc->ending.began, 1);          /* relaxed: bxi_event has the role look again */
    /* [state] release, pairs with the acquire in look_state. */
    bxi_store_release(&job->control->header.state, BXI_LEAVING);
    bxi_unlock(&job->run->lock);
    BXI_STEP("state.leaving");
    bxi_ring_all(job);
    BXI_STEP("state.leaving_rung");
    bxi_event(job->run, BXI_EVENT_SCAN);
}

int bxi_ending_allows(const struct bx_job *job)
{
    const struct bxi_ending *ending = &job->rpc->ending;
    int rc = bxi_job_check(job);

    /* Relaxed, both: written under the lock. */
    if (rc < 0 || bxi_load_relaxed((bxi_a32 *)&ending->began) == 0)
        return rc;
    if (bxi_load_relaxed((bxi_a32 *)&ending->over) == 0 && (job->rpc->serving > 0 || bxi_is_driving(job->run)))
        return 0;
    return bx_fail(BX_E_SHUTDOWN, "worker '%s' is leaving the job, and no request is being served in it", job->name);
}

void bxi_ending_changed(struct bx_job *job)
{
    if (bxi_load_relaxed(&job->rpc->ending.began) != 0)     /* relaxed: bxi_ending_begin sets the same event */
        bxi_event(job->run, BXI_EVENT_SCAN);
    else
        bxi_wake(job->run, &job->rpc->ending);
}

/* ---- rounds ----------------------------------------------------------------------------------------- */

static bool is_awaited(const struct bx_job *job, const struct bxi_peer *peer)
{
    uint32_t state = bxi_load_relaxed((bxi_a32 *)&peer->state);     /* relaxed: written under the lock */

    return peer->rank != job->rank && state == BXI_PEER_ALIVE;
}

static uint64_t ending_of(const struct bxi_peer *peer)
{
    /* [ending] acquire, pairs with the release in next_round: what that worker had sent by then is seen. */
    return bxi_load_acquire((bxi_a64 *)&peer->view.control->header.ending);
}

const struct bxi_peer *bxi_ending_late(const struct bx_job *job, int rank)
{
    const struct bxi_peer *peer = job->rpc->peers[rank];

    if (bxi_join_waits(job, rank))
        return job->rpc->joins.joining[rank];
    return is_awaited(job, peer) && ending_of(peer) >> 32 < job->rpc->ending.round ? peer : NULL;
}

/* Nor in one that its worker has opened, and this one has not yet. Role. */
static bool nothing_is_unread(const struct bx_job *job)
{
    const struct bxi_peer *self = job->rpc->peers[job->rank];

    if (self->in.read_pos != self->out.write_pos)
        return false;
    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_peer *peer = job->rpc->peers[rank];

        if (!is_awaited(job, peer))
            continue;
        /* [pair.open] relaxed: behind the acquire in ending_of it is 1 if that worker had sent anything. */
        if (peer->in_open ? bxi_ring_ready(&peer->in)
                          : bxi_load_relaxed((bxi_a64 *)&peer->view.control->pair[job->rank].open) != 0)
            return false;
    }
    return true;
}

/* Publishes the next round, or sets `over`. True: a round was published, and there may be another one to publish. */
static bool next_round(struct bx_job *job)
{
    struct bxi_ending *ending = &job->rpc->ending;
    bool over = ending->since < ending->round;

    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer;
        uint64_t word;

        if (!bxi_join_promote(job, rank) && bxi_join_waits(job, rank))
            return false;
        peer = job->rpc->peers[rank];
        if (!is_awaited(job, peer))
            continue;
        word = ending_of(peer);

        if ((uint32_t)word > word >> 32)
            bxi_peer_suspect(job, peer, "its rounds are nonsense");
        if (word >> 32 < ending->round)
            return false;
        over = over && (uint32_t)word < ending->round;
    }
    if (over)
        bxi_add_seq_cst(&ending->over, 1);      /* the load of `waiting` in bxi_wake is not made before it */
    /* The rings behind the words of the others. */
    if (over || !bxi_is_quiet(job) || !nothing_is_unread(job))
        return false;
    ending->round++;
    if (ending->since == 0 || ending->published != ending->checked)
        ending->since = ending->round;
    ending->published = ending->checked;
    /* [ending] release, pairs with the acquire in ending_of. */
    bxi_store_release(&job->control->header.ending, word_of(ending->round, ending->since));
    return true;
}

void bxi_ending_check(const struct bxi_role *role, struct bx_job *job)
{
    struct bxi_ending *ending = &job->rpc->ending;
    bool published = false, over;

    (void)role;
    if (bxi_load_relaxed(&ending->began) == 0 || bxi_load_relaxed(&ending->over) != 0)  /* relaxed: as in `ready` */
        return;
    bxi_lock(&job->run->lock);
    ending->checked = positions(job);
    while (next_round(job))
        published = true;
    over = bxi_load_relaxed(&ending->over) != 0;
    bxi_unlock(&job->run->lock);
    if (published) {
        BXI_STEP("ending.round");
        bxi_ring_all(job);
        BXI_STEP("ending.round_rung");
    }
    if (over)
        bxi_wake(job->run, ending);
}

bool bxi_ending_has_moved(struct bx_job *job)
{
    bool moved;

    bxi_lock(&job->run->lock);
    moved = positions(job) != job->rpc->ending.checked && bxi_load_relaxed(&job->rpc->ending.over) == 0;
    bxi_unlock(&job->run->lock);
    return moved;
}
