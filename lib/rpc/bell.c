/* SPDX-License-Identifier: MIT */
/*
 * The bells that wake peers.
 *
 * The peer's bell word is not read after every frame. A peer that was awake at the last check very likely still is, and
 * its next frame carries how far it has read. If that covers what was sent, neither the fence nor the load of its word
 * (a cache miss) was needed. Otherwise the bell is checked BXI_DEFER_PASSES passes or BXI_DEFER_FRAMES frames later,
 * whichever comes first (a pass over many busy rings takes long), and in any case before this thread sleeps, leaves the
 * role, or returns to the program. The bell of a peer that was asleep at the last check is checked when the pass ends.
 *
 * Runs in any thread that sends. A thread that does not hold the role checks the bell of its own requests itself.
 */
#include "rpc.h"

void bxi_bell_due(struct bx_job *job, struct bxi_peer *peer, bool reply)
{
    if (!bxi_peers_any(&job->rpc->bells_due)) {
        /* Relaxed, both: any recent value will do. */
        bxi_store_relaxed(&job->rpc->bells_pass, bxi_load_relaxed(&job->run->pass));
        bxi_store_relaxed(&job->rpc->bells_frame, bxi_load_relaxed(&job->rpc->frames));
    }
    peer->replies_only = reply && (peer->replies_only || !bxi_peers_have(&job->rpc->bells_due, peer));
    bxi_peers_add(&job->rpc->bells_due, peer);
    peer->bell_pos = peer->out.write_pos;
    if (!peer->defer_bell)
        bxi_store_relaxed(&job->rpc->bells_urgent, 1);
}

bool bxi_bell_ring_sleeper(struct bx_job *job, struct bxi_peer *peer)
{
    bool rang = bxi_bell_look(&peer->bell, false) != 0;

    if (rang)
        bxi_counter_add(job, BXI_C_doorbells_rung, 1);
    return rang;
}

static void look(struct bx_job *job, struct bxi_peer *peer)
{
    bool rang = bxi_bell_look(&peer->bell, peer->replies_only) != 0;

    peer->defer_bell = !rang;
    bxi_counter_add(job, rang ? BXI_C_doorbells_rung : BXI_C_doorbells_saved, 1);
}

/* The bell of a frame that was counted as saved. Lock. */
static void ring_own(struct bx_job *job, struct bxi_peer *peer)
{
    if (!bxi_bell_ring_sleeper(job, peer))
        return;
    peer->defer_bell = false;
    bxi_counter_add(job, BXI_C_doorbells_saved, (uint64_t)-1);
}

void bxi_bell_own(struct bx_job *job, struct bxi_peer *peer)
{
    peer->defer_bell = true;
    bxi_counter_add(job, BXI_C_doorbells_saved, 1);
    if (!job->options.rejoin)
        return;
    /* Now: without the lock, the role may unmap the segment of one that died when its successor runs.
     * [bell.armed] the producers' fence, as in bxi_bells_flush. */
    bxi_fence_seq_cst();
    ring_own(job, peer);
}

void bxi_bell_look_unlocked(struct bx_job *job, struct bxi_peer *peer)
{
    if (job->options.rejoin)
        return;
    /* [bell.armed] the producers' fence, as in bxi_bells_flush: the exchange in bxi_unlock is one. */
    bxi_fence_seq_cst_behind_exchange();
    if (__builtin_expect(bxi_bell_armed(&peer->bell, false) == 0, 1))
        return;
    bxi_lock(&job->run->lock);
    ring_own(job, peer);
    bxi_unlock(&job->run->lock);
}

void bxi_bells_flush(struct bx_job *job)
{
    if (!bxi_peers_any(&job->rpc->bells_due))
        return;
    bxi_lock(&job->run->lock);
    /* [bell.armed] the producers' fence, pairs with the sleepers' in sleep_as_leader and arm_background: the
     * frames before it are seen by the sleeper's recheck, or the words below say that it sleeps. */
    bxi_fence_seq_cst();
    /* Relaxed, all: as in bxi_peers_add. */
    for (uint64_t words = bxi_load_relaxed(&job->rpc->bells_due.some); words != 0; words &= words - 1) {
        int i = __builtin_ctzll(words);
        uint64_t bits = bxi_load_relaxed(&job->rpc->bells_due.word[i]);

        for (; bits != 0; bits &= bits - 1)
            look(job, job->rpc->peers[i * 64 + __builtin_ctzll(bits)]);
        bxi_store_relaxed(&job->rpc->bells_due.word[i], 0);
    }
    bxi_store_relaxed(&job->rpc->bells_due.some, 0);
    bxi_store_relaxed(&job->rpc->bells_urgent, 0);
    bxi_unlock(&job->run->lock);
}

void bxi_bells_pass(struct bx_job *job)
{
    const struct bxi_run *run = job->run;

    /* Relaxed: this thread's own frames are in it; another thread flushes its own. */
    if (bxi_peers_any(&job->rpc->bells_due) &&
        (bxi_load_relaxed(&job->rpc->bells_urgent) != 0 || run->spin_ns == 0 ||
         bxi_load_relaxed(&run->pass) - bxi_load_relaxed(&job->rpc->bells_pass) >= BXI_DEFER_PASSES))
        bxi_bells_flush(job);
}

void bxi_ring_all(struct bx_job *job)
{
    bxi_lock(&job->run->lock);          /* while it is held, no peer's descriptors are closed */
    for (int rank = 0; rank < job->world_size; rank++)
        if (rank != job->rank && bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE)
            bxi_bell_ring(job->rpc->peers[rank]->bell.fd[0]);
    bxi_unlock(&job->run->lock);
}

void bxi_wanted_look(struct bx_job *job)
{
    /* [ring.want] the consumer's fence, pairs with the one in bxi_ring_want. */
    bxi_fence_seq_cst();
    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++) {
        struct bxi_peer *peer = job->rpc->in_peers[i];

        if (!bxi_ring_wanted(&peer->in))
            continue;
        bxi_lock(&job->run->lock);
        bxi_bell_ring_sleeper(job, peer);
        bxi_unlock(&job->run->lock);
    }
}
