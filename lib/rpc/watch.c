/* SPDX-License-Identifier: MIT */
/*
 * Watching the peers: rings that open, states, refusals, deaths, memory that turned to nonsense; and
 * reading their rings. All of it under the progress role: source.c hands it to run.
 *
 * A peer ends in one of three ways: it leaves (its state word), it dies (its pidfd), or it is cut off because its
 * memory fails a check. In the first two cases the frames that it had published are read first: replies count, requests
 * are dropped and counted. Then every call to it fails, and batches stop waiting for it. If it died, its names in
 * /dev/shm are removed; of rank 0 its lock file too.
 */
#include "packed.h"

#include <errno.h>

#define RING_FRAMES 4096            /* a full ring holds 2048; the bound is for a peer whose memory still changes */

/* ---- reading ----------------------------------------------------------------------------------- */

/* Frames were handled; meanwhile a peer may sleep and wait for the answer to an earlier one. Checked at every eighth
 * frame only, for mostly no bell is due. */
static void ring_overdue(struct bx_job *job, int handled)
{
    uint64_t before = bxi_load_relaxed(&job->rpc->frames);      /* relaxed: written by the role */
    uint64_t frames = before + (uint64_t)handled;

    bxi_store_relaxed(&job->rpc->frames, frames);
    /* Relaxed: this thread's own frames are in it; another thread flushes its own. */
    if (frames / 8 != before / 8 && frames - bxi_load_relaxed(&job->rpc->bells_frame) >= BXI_DEFER_FRAMES)
        bxi_bells_flush(job);
}

/* Handles one frame, or some plain replies; *count says how many, the items of a packed frame. 0, BX_E_CORRUPT. */
static int read_some(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, int most, int *count)
{
    const void *payload;
    uint32_t payload_bytes;
    int rc = bxi_ring_peek(&peer->in, &payload, &payload_bytes);

    *count = rc != 0;
    if (rc <= 0)
        return rc;
    if (bxi_kind_is_reply(*(const uint8_t *)payload))
        bxi_packed_flush(job);          /* its callback may take long */
    if (bxi_kind_is_packed(*(const uint8_t *)payload)) {
        rc = bxi_packed_arrived(role, job, peer, payload, payload_bytes);
        *count = rc > 0 ? rc : 1;
        return rc > 0 ? 0 : rc;
    }
    if (*(const uint8_t *)payload == BXI_REPLY && (rc = bxi_replies_read(role, job, peer, most)) > 0) {
        *count = rc;
        return 0;
    }
    rc = bxi_dispatch(role, job, peer, payload, payload_bytes);
    *count = rc != -EAGAIN;
    return rc;
}

int bxi_read_ring(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, struct bxi_waiter *waiter,
                  int most)
{
    int handled = 0;

    if (peer->lend->held != NULL && !peer->draining && bxi_device_is_pending(peer->lend->held))
        return 0;
    bxi_packed_begin(job, peer);
    while (handled < most) {
        int count, rc = read_some(role, job, peer, most - handled, &count);

        if (count == 0)
            break;
        handled += count;
        ring_overdue(job, count);
        if (rc < 0) {
            bxi_peer_close(role, job, peer, BXI_PEER_CORRUPT);
            break;
        }
        if (waiter != NULL && waiter->ready(waiter))
            break;
    }
    bxi_packed_end(job);
    /* Relaxed: set by the handler of SIGBUS, mostly in this very thread. */
    if (handled == 0 &&
        (bxi_load_relaxed(&peer->view.truncated) != 0 ||
         (peer->lend->arena != NULL && bxi_load_relaxed(&peer->lend->arena->truncated) != 0)))
        bxi_peer_close(role, job, peer, BXI_PEER_CORRUPT);
    return handled;
}

static void open_in(struct bx_job *job, struct bxi_peer *peer, const void *base, const bxi_a64 *want_credit)
{
    uint32_t count = bxi_load_relaxed(&job->rpc->in_count);

    bxi_ring_reader_init(&peer->in, base, BXI_RING_BYTES, 0, &job->control->credit[peer->rank].position,
                         want_credit);
    peer->in_open = true;
    job->rpc->in_peers[count] = peer;
    bxi_store_relaxed(&job->rpc->in_count, count + 1);   /* relaxed: others only ask whether there are any */
}

static void close_in(struct bx_job *job, struct bxi_peer *peer)
{
    uint32_t count = bxi_load_relaxed(&job->rpc->in_count), at = 0;

    if (!peer->in_open)
        return;
    peer->in_open = false;
    while (job->rpc->in_peers[at] != peer)
        at++;
    job->rpc->in_peers[at] = job->rpc->in_peers[count - 1];
    bxi_store_relaxed(&job->rpc->in_count, count - 1);
}

/* ---- the end of a peer ------------------------------------------------------------------------- */

static void drain(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer)
{
    peer->draining = true;
    for (int frames = 0; frames < RING_FRAMES && peer->in_open; frames++)
        if (bxi_read_ring(role, job, peer, NULL, 1) == 0)
            break;
}

/* Nothing more is borrowed from its arena. What is borrowed stays mapped until it is released. */
static void drop_arena(struct bxi_peer *peer)
{
    if (peer->lend->arena != NULL)
        bxi_arena_view_release(peer->lend->arena);
    peer->lend->arena = NULL;
    bxi_store_relaxed(&peer->lend->is_gone, 1);     /* relaxed: a thread that sees it late passes on, and learns */
}

/* Its leases: at once, or when no worker holds what it passed on. */
static void take_back(struct bx_job *job, struct bxi_peer *peer)
{
    if (bxi_grants_wait_for_round(job, peer->lend))
        bxi_rref_ask_for_leases(job);
    else
        bxi_grants_take_back(job, peer->lend);
}

static void count_gone(struct bx_job *job, struct bxi_peer *peer, enum bxi_peer_state state)
{
    uint32_t state_word = peer->state_word;

    if (state != BXI_PEER_LEFT) {
        job->rpc->dead[bxi_load_relaxed(&job->rpc->deaths) % BXI_WORKERS_MAX] = (struct bxi_dead){
            peer, peer->pid, state == BXI_PEER_DEAD ? BX_E_PEER_DEAD : BX_E_CORRUPT };
        /* [deaths] sequentially consistent, pairs with the load in serve_ready: the rank is read after it. Before lost:
         * bx_job_serve, which sees that the last other worker is lost, must see that it has died. */
        bxi_add_seq_cst(&job->rpc->deaths, 1);
    }
    /* Lost before leavers: serve_ready must not take this one for a worker that leaves. */
    if (state_word < BXI_LEAVING)
        bxi_add_seq_cst(&job->rpc->lost, 1);
    /* Sequentially consistent, all: the load of `waiting` in bxi_wake is not made before them, so either a waiter that
     * counts itself sees them, or it is woken. */
    if (state_word < BXI_LEAVING)
        bxi_add_seq_cst(&job->rpc->leavers, 1);
}

struct hook_call {
    struct bx_job *job;
    int rank;
    const struct bxi_worker_hook *hook;
};

static int call_hook(void *context)
{
    const struct hook_call *call = context;

    call->hook->fn(call->job, call->rank, call->hook->context);
    return 0;
}

void bxi_worker_hook_run(struct bx_job *job, const struct bxi_worker_hook *hook, int rank)
{
    if (hook->fn == NULL)
        return;
    bxi_no_wait_enter();
    bxi_call_user(call_hook, &(struct hook_call){ job, rank, hook });
    bxi_no_wait_leave();
}

void bxi_peer_close(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                    enum bxi_peer_state state)
{
    static const int codes[] = { [BXI_PEER_DEAD] = BX_E_PEER_DEAD, [BXI_PEER_LEFT] = BX_E_SHUTDOWN,
                                 [BXI_PEER_CORRUPT] = BX_E_CORRUPT };

    if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE)
        return;
    bxi_joins_tell(role, job);          /* the program hears that it is back before it hears that it died */
    if (state != BXI_PEER_CORRUPT) {
        drain(role, job, peer);
        if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE)
            return;                 /* its last frames were nonsense */
    }
    if (state != BXI_PEER_LEFT)     /* before any thread can see that it is gone */
        bxi_counter_add(job, state == BXI_PEER_DEAD ? BXI_C_peers_dead : BXI_C_peers_corrupt, 1);
    bxi_lock(&job->run->lock);
    peer->close_code = codes[state];
    peer->lend->is_corrupt = state == BXI_PEER_CORRUPT;
    peer->lend->has_left = state == BXI_PEER_LEFT;
    bxi_store_relaxed(&peer->state, state);     /* relaxed: read under the lock where it matters */
    bxi_count(&job->rpc->pair_changes, 1);
    bxi_peer_drop_queue(job, peer);
    bxi_unlock(&job->run->lock);
    bxi_grants_unsent(job, peer->lend);
    close_in(job, peer);
    drop_arena(peer);
    bxi_loan_drop_held(peer->lend);
    if (state == BXI_PEER_DEAD) {
        bxi_devices_peer_died(job, peer->lend);
        take_back(job, peer);
    }
    bxi_rref_peer_gone(job, peer->rank);
    count_gone(job, peer, state);
    if (state != BXI_PEER_LEFT)
        bxi_log(job, state == BXI_PEER_DEAD ? 1 : 0, "worker '%s' (rank %d, pid %u) %s", peer->name, peer->rank,
                peer->pid, state == BXI_PEER_DEAD ? "died" : "was cut off: its memory holds nonsense");
    bxi_calls_fail(job, peer, codes[state], BX_FOREVER);
    bxi_waiting_peer_gone(job, peer, codes[state]);
    bxi_quiet_changed(job);
    bxi_batches_leave(job, peer->rank);
    if (state != BXI_PEER_LEFT)
        bxi_worker_hook_run(job, &job->rpc->on_death, peer->rank);
    bxi_wake(job->run, &job->rpc->leavers);
}

/* ---- a scan of all peers ----------------------------------------------------------------------- */

static void look_refused(struct bx_job *job, struct bxi_peer *peer)
{
    const struct bxi_pair *pair = &peer->view.control->pair[job->rank];
    /* [pair.refused] acquire, pairs with the release in refuse (dispatch.c). */
    uint64_t through = bxi_load_acquire((bxi_a64 *)&pair->refused_through);

    if (through == peer->refused_seen)
        return;
    peer->refused_seen = through;
    bxi_rref_refused(job, peer->rank, through);         /* before the slots of the calls are free */
    bxi_calls_fail(job, peer, BX_E_REFUSED, through);
    bxi_grants_refused(job, peer->lend, through);
}

static void look_open(struct bx_job *job, struct bxi_peer *peer)
{
    bool self = peer->rank == job->rank;
    const struct bxi_control *theirs = self ? job->control : peer->view.control;
    const struct bxi_pair *pair = &theirs->pair[job->rank];

    /* [pair.open] acquire, pairs with the release in bxi_peer_open_out: the ring's pages are there. */
    if (peer->in_open || bxi_load_acquire((bxi_a64 *)&pair->open) != 1)
        return;
    open_in(job, peer, self ? peer->loop : bxi_segment_view_at(&peer->view, bxi_ring_offset(job->rank)),
            &pair->want_credit);
    if (self)
        return;
    look_refused(job, peer);            /* what it had refused before; it refuses nothing any more */
    bxi_rref_opened(job, peer->rank);
}

static void look_state(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer)
{
    /* [state] acquire, pairs with the releases in bx_job_start, ending.c and shutdown.c. */
    uint32_t state = bxi_load_acquire((bxi_a32 *)&peer->view.control->header.state);
    uint32_t before = peer->state_word;

    if (state == before)
        return;
    if (state < before || state > BXI_LEFT) {
        bxi_peer_close(role, job, peer, BXI_PEER_CORRUPT);
        return;
    }
    /* Sequentially consistent, as in count_gone. */
    if (state >= BXI_LEAVING && before < BXI_LEAVING)
        bxi_add_seq_cst(&job->rpc->leavers, 1);
    peer->state_word = state;
    if (state == BXI_LEFT) {
        look_open(job, peer);       /* the ring may have been opened after the last look and before the state */
        bxi_peer_close(role, job, peer, BXI_PEER_LEFT);
    } else {
        bxi_wake(job->run, &job->rpc->leavers);
    }
}

void bxi_scan(const struct bxi_role *role, struct bx_job *job)
{
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer;

        bxi_join_look(role, job, rank);
        peer = job->rpc->peers[rank];
        if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE)
            continue;
        look_open(job, peer);
        if (rank == job->rank)
            continue;
        look_refused(job, peer);
        look_state(role, job, peer);
    }
}

/* First, because a hook, or a thread whose lock is wanted, may block in the GPU's driver behind such a stream. */
static void release_streams(struct bx_job *job)
{
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = job->rpc->peers[rank];

        /* Relaxed: a death that is missed has an event of its own. */
        if (bxi_load_relaxed(&peer->death_seen) == BXI_PEER_DEAD && rank != job->rank)
            bxi_devices_peer_release(job, peer->lend);
    }
}

void bxi_deaths_close(const struct bxi_role *role, struct bx_job *job)
{
    release_streams(job);
    bxi_joins_close(role, job);
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = job->rpc->peers[rank];
        uint32_t seen = bxi_load_relaxed(&peer->death_seen);

        if (seen == 0)
            continue;
        seen = bxi_exchange(&peer->death_seen, 0);
        /* Also of one that was cut off before, or died between its last state and its own unlink. */
        if (seen == BXI_PEER_DEAD && bxi_load_relaxed(&peer->ended) == 0)
            job->rpc->remove_names(job, rank);
        if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE) {
            if (seen == BXI_PEER_DEAD) {
                bxi_devices_peer_died(job, peer->lend);
                take_back(job, peer);           /* it had left, or was cut off, with loans */
                bxi_store_release(&peer->ended, 1);     /* [peer.ended] as below */
            }
            continue;
        }
        if (seen == BXI_PEER_DEAD && rank != job->rank) {
            if (peer->is_remote)
                job->rpc->take_arrived(job);    /* the news of its death may be read before it */
            look_open(job, peer);   /* what it published before it died counts */
            look_state(role, job, peer);            /* it may have left before it exited */
        }
        bxi_peer_close(role, job, peer, (enum bxi_peer_state)seen);
        if (seen == BXI_PEER_DEAD)
            /* [peer.ended] release, pairs with the acquire in the door's is_free: names and state are done with. */
            bxi_store_release(&peer->ended, 1);
    }
}

/* ---- the end of the job ------------------------------------------------------------------------ */

/* What a frame brought is left over otherwise. */
static void leave_unread(struct bx_job *job, struct bxi_peer *peer, const void *payload, uint32_t bytes)
{
    struct { struct bxi_frame frame; struct bxi_lease_head lease; } head;

    if (bytes < sizeof head.frame)
        return;
    memcpy(&head, payload, bytes < sizeof head ? bytes : sizeof head);
    if (head.frame.kind == BXI_RREF)
        bxi_rref_arrived(job, peer->rank, &(struct bxi_rref_frame){
            .op = (enum bxi_rref_op)head.frame.flags, .id = head.frame.id, .value = head.frame.code });
    else if (peer->rank == job->rank && (head.frame.flags & BXI_FLAG_RREFS))
        bxi_rref_unread(job, (const unsigned char *)payload + sizeof head.frame, bytes - sizeof head.frame);
    if (bytes >= sizeof head && (head.frame.flags & BXI_FLAG_LEASE) && bxi_load_relaxed(&peer->out_open))
        bxi_loan_return_unread(job, peer->rank, head.lease.slot, head.lease.generation);
}

void bxi_frames_unread(const struct bxi_role *role, struct bx_job *job)
{
    struct bxi_peer *self = job->rpc->peers[job->rank];

    (void)role;
    look_open(job, self);
    for (int i = 0; i < (int)bxi_load_relaxed(&job->rpc->in_count); i++) {
        struct bxi_peer *peer = job->rpc->in_peers[i];
        const void *payload;
        uint32_t bytes;

        if (peer->lend->held != NULL && bxi_ring_peek(&peer->in, &payload, &bytes) == 1)
            bxi_ring_advance(&peer->in, bytes);         /* its lease goes back with the loan, once */
        bxi_loan_drop_held(peer->lend);
        for (int frames = 0; frames < RING_FRAMES && bxi_ring_peek(&peer->in, &payload, &bytes) == 1; frames++) {
            bxi_ring_advance(&peer->in, bytes);
            leave_unread(job, peer, payload, bytes);
        }
    }
    for (const struct bxi_queued *queued = self->queue_head; queued != NULL; queued = queued->next)
        leave_unread(job, self, queued->payload, queued->payload_bytes);
}
