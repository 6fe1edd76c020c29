/* SPDX-License-Identifier: MIT */
/*
 * The way out: frames into a peer's ring or, while that is full, into a private queue.
 *
 * Runs in any thread that sends, under run->lock. The queue is bounded: a request needs one of 1024 slots, a reply
 * answers one of the caller's 1024, and one-way calls are never queued. So a thread that consumes a ring never waits
 * for room, and two full rings cannot block each other.
 */
#include "rpc.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/statvfs.h>

/* ---- frames that wait ---------------------------------------------------------------------------- */

/* The payload of the largest: an ASK. */
static size_t spare_bytes(const struct bx_job *job)
{
    return sizeof(struct bxi_frame) + (size_t)job->world_size;
}

/* NULL: no memory, nor a spare one that is large enough. Lock. */
static struct bxi_queued *make_queued(struct bx_job *job, size_t payload_bytes)
{
    struct bxi_queued *queued = malloc(sizeof *queued + payload_bytes);

    if (queued != NULL) {
        queued->spare = false;
    } else if (payload_bytes <= spare_bytes(job) && job->rpc->spare != NULL) {
        queued = job->rpc->spare;
        job->rpc->spare = queued->next;
    }
    return queued;
}

static void free_queued(struct bx_job *job, struct bxi_queued *queued)
{
    if (!queued->spare) {
        free(queued);
        return;
    }
    queued->next = job->rpc->spare;
    job->rpc->spare = queued;
}

int bxi_spares_create(struct bx_job *job)
{
    size_t room = (sizeof(struct bxi_queued) + spare_bytes(job) + 15) / 16 * 16;

    job->rpc->spares = calloc(BXI_SPARE_FRAMES, room);
    if (job->rpc->spares == NULL)
        return bx_fail(-ENOMEM, "no memory for frames that wait");
    for (size_t i = 0; i < BXI_SPARE_FRAMES; i++) {
        struct bxi_queued *queued = (struct bxi_queued *)(void *)(job->rpc->spares + i * room);

        queued->spare = true;
        free_queued(job, queued);
    }
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------------- */

static int no_room(const struct bxi_peer *peer, int rc)
{
    struct statvfs shm = { 0 };

    statvfs("/dev/shm", &shm);

    double mib = (double)shm.f_blocks * (double)shm.f_frsize / 1048576;
    double mib_free = (double)shm.f_bavail * (double)shm.f_frsize / 1048576;

    return bx_fail(BX_E_NO_SPACE, "the ring to worker '%s' needs %u KiB of /dev/shm, which has %.1f of %.1f "
                                  "MiB free (%s); make it larger (mount -o remount,size=, docker "
                                  "--shm-size)", peer->name, BXI_OPEN_BYTES / 1024, mib_free, mib,
                   bx_strerror(rc));
}

/* A call to oneself takes the same way as any other, through a ring in private memory. */
static unsigned char *open_loop(struct bxi_peer *peer)
{
    peer->lend->loop_words = calloc(BXI_LEASE_MAX * 3 + 1, sizeof *peer->lend->loop_words);
    peer->loop = aligned_alloc(64, BXI_RING_BYTES);
    if (peer->lend->loop_words == NULL || peer->loop == NULL) {
        free(peer->lend->loop_words);
        free(peer->loop);
        peer->lend->loop_words = NULL;
        return peer->loop = NULL;
    }
    return memset(peer->loop, 0, BXI_RING_BYTES);
}

BXI_COLD int bxi_peer_open_out(struct bx_job *job, struct bxi_peer *peer)
{
    bool self = peer->rank == job->rank;
    struct bxi_pair *pair = &job->control->pair[peer->rank];
    const struct bxi_control *theirs = self ? job->control : peer->view.control;
    unsigned char *base;

    if (bxi_load_relaxed(&peer->out_open))      /* relaxed: written under the lock */
        return 0;
    if (self) {
        base = open_loop(peer);
        if (base == NULL)
            return bx_fail(-ENOMEM, "no memory for a call to oneself");
    } else {
        int rc = bxi_segment_open_ring(&job->segment, peer->rank);

        if (rc < 0)
            return no_room(peer, rc);
        base = bxi_segment_at(&job->segment, bxi_ring_offset(peer->rank));
    }
    bxi_ring_writer_init(&peer->out, base, BXI_RING_BYTES, 0, &theirs->credit[job->rank].position,
                         &pair->want_credit);
    peer->defer_bell = true;
    /* [peer.out_open] release, pairs with the acquire in bxi_way_back. */
    bxi_store_release(&peer->out_open, 1);
    /* [pair.open] release, pairs with the acquire in look_open: the first commit word is zero before. */
    bxi_store_release(&pair->open, 1);
    bxi_count(&job->rpc->pair_changes, 1);
    if (self)
        bxi_event(job->run, BXI_EVENT_SCAN);
    else
        bxi_bell_ring(peer->bell.fd[0]);
    return 0;
}

/* ---- sending ----------------------------------------------------------------------------------- */

static void count_sent(struct bxi_pair_counters *counters, const struct bxi_peer *peer, uint64_t payload_bytes)
{
    uint64_t fill = peer->out.write_pos - peer->out.credit;

    bxi_count(&counters->frames_sent, 1);
    bxi_count(&counters->bytes_sent, payload_bytes);
    /* Relaxed: counters for inspectors. */
    bxi_store_relaxed(&counters->write_pos, bxi_ring_published(&peer->out));
    if (fill > bxi_load_relaxed(&counters->high_water_bytes))
        bxi_store_relaxed(&counters->high_water_bytes, fill);
}

static void note_sent(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out)
{
    count_sent(&bxi_tables(job->control)->pair_counters[peer->rank], peer, sizeof *out->head + out->body_bytes);
    if (out->slot >= 0)
        peer->slots[out->slot].end_pos = peer->out.write_pos;
    if (out->lease >= 0)
        peer->lend->grants.slots[out->lease].end_pos = peer->out.write_pos;
    if (!out->own_bell)
        bxi_bell_due(job, peer, bxi_kind_is_reply(out->head->kind));
}

/* Puts a frame into the ring. 0, -EAGAIN, BX_E_CORRUPT. */
static int put(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out)
{
    int rc;

    /* [peer.consumed] acquire, pairs with the release in bxi_frames_note: this credit says that the bytes
     * before it have been copied out. */
    out->head->consumed = bxi_load_acquire(&peer->consumed);
    rc = bxi_ring_put(&peer->out, out->head, out->body, out->body_bytes);
    if (rc == -EPROTO)
        return bxi_peer_suspect(job, peer, "it claims to have read what was never sent");
    if (rc < 0)
        return rc;
    note_sent(job, peer, out);
    return 0;
}

bool bxi_peer_send_plain(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out)
{
    return peer->queue_head == NULL && put(job, peer, out) == 0;
}

void bxi_peer_group_end(struct bx_job *job, struct bxi_peer *peer)
{
    bxi_ring_group_end(&peer->out);
    /* Relaxed: a counter for inspectors. */
    bxi_store_relaxed(&bxi_tables(job->control)->pair_counters[peer->rank].write_pos, peer->out.write_pos);
}

static int enqueue(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out)
{
    size_t payload_bytes = sizeof *out->head + out->body_bytes;
    struct bxi_queued *queued = make_queued(job, payload_bytes);

    if (queued == NULL)
        return bx_fail(-ENOMEM, "no memory for a frame of %zu bytes to worker '%s'", payload_bytes,
                       peer->name);
    queued->next = NULL;
    queued->payload_bytes = (uint32_t)payload_bytes;
    queued->slot = out->slot;
    queued->lease = out->lease;
    memcpy(queued->payload, out->head, sizeof *out->head);
    if (out->body_bytes > 0)
        memcpy(queued->payload + sizeof *out->head, out->body, out->body_bytes);
    if (peer->queue_tail != NULL)
        peer->queue_tail->next = queued;
    else
        peer->queue_head = queued;
    peer->queue_tail = queued;
    if (out->slot >= 0)
        peer->slots[out->slot].end_pos = BX_FOREVER;
    bxi_peers_add(&job->rpc->starved, peer);
    bxi_counter_add(job, BXI_C_queued_frames, 1);
    return 0;
}

/* Asks the ring's consumer for a bell when there is room: it rings this worker, and the thread that wakes moves the
 * queue on. The holder of the role asks before it sleeps or leaves the role. Another thread asks now, for the holder
 * may sleep, or there may be none. */
static void ask_for_room(struct bx_job *job, struct bxi_peer *peer, uint64_t payload_bytes)
{
    if (!bxi_is_driving(job->run) && bxi_ring_want(&peer->out, payload_bytes))
        bxi_event(job->run, BXI_EVENT_SCAN);         /* room came meanwhile, so no bell will */
}

/* The ring has no room, or other frames wait for it. */
BXI_COLD static int queue_or_want(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out)
{
    bxi_count(&bxi_tables(job->control)->pair_counters[peer->rank].times_full, 1);
    if (out->may_queue) {
        int rc = enqueue(job, peer, out);

        if (rc == 0)
            ask_for_room(job, peer, peer->queue_head->payload_bytes);
        return rc;
    }
    peer->wanted_bytes = (uint32_t)(sizeof *out->head + out->body_bytes);
    bxi_peers_add(&job->rpc->starved, peer);
    ask_for_room(job, peer, peer->queue_head != NULL ? peer->queue_head->payload_bytes : peer->wanted_bytes);
    return -EAGAIN;
}

static int send_or_queue(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out)
{
    int rc = peer->queue_head == NULL ? put(job, peer, out) : -EAGAIN;

    return __builtin_expect(rc != -EAGAIN, 1) ? rc : queue_or_want(job, peer, out);
}

/* True if the peer has left and reads no more, though the role has not closed it yet: a loan to it would stay out until
 * its process ends. */
static bool has_left(const struct bx_job *job, const struct bxi_peer *peer)
{
    /* [state] acquire, as in look_state. */
    return peer->rank != job->rank && bxi_load_acquire((bxi_a32 *)&peer->view.control->header.state) == BXI_LEFT;
}

/* A frame with a loan, or with references. */
BXI_COLD static int send_with_more(struct bx_job *job, struct bxi_peer *peer, struct bxi_out *out)
{
    int rc;

    if (out->rrefs != NULL && (rc = bxi_rref_prepare(job, peer->rank, out->rrefs)) < 0)
        return rc != -ENOMEM ? rc : bx_fail(rc, "no memory for the references of a message to worker '%s'", peer->name);
    if (out->grant != NULL) {
        if (has_left(job, peer))
            return bx_fail(BX_E_SHUTDOWN, "worker '%s' (rank %d) has left the job", peer->name, peer->rank);
        if ((rc = bxi_grant_enter(job, peer->lend, out->grant)) < 0)
            return rc;
        out->lease = rc;
        out->head->flags |= BXI_FLAG_LEASE | (out->grant->device || out->grant->staged ? BXI_FLAG_DEVICE : 0);
        out->body = out->grant->body;
        out->body_bytes = out->grant->body_bytes;
    }
    rc = send_or_queue(job, peer, out);
    if (rc == 0 && out->rrefs != NULL)
        bxi_rref_sent(job, peer->rank, out->rrefs, out->head->id,
                      out->slot < 0 ? peer->out.write_pos : BX_FOREVER);
    if (out->grant == NULL)
        return rc;
    if (rc == 0)
        bxi_grant_sent(job, peer->lend, out->grant);
    else
        bxi_grant_undo(job, peer->lend, out->grant);
    return rc;
}

int bxi_peer_send(struct bx_job *job, struct bxi_peer *peer, struct bxi_out *out)
{
    int rc;

    out->lease = -1;
    /* Relaxed: written under the lock. A frame of the references' protocol has no caller who could send it again. */
    if (__builtin_expect(!bxi_load_relaxed(&peer->out_open), 0) && (rc = bxi_peer_open_out(job, peer)) < 0)
        return out->head->kind == BXI_RREF ? enqueue(job, peer, out) : rc;
    return __builtin_expect(out->rrefs == NULL && out->grant == NULL, 1) ? send_or_queue(job, peer, out)
                                                                         : send_with_more(job, peer, out);
}

/* ---- full rings -------------------------------------------------------------------------------- */

bool bxi_peer_flush_queue(struct bx_job *job, struct bxi_peer *peer)
{
    bool moved = false;

    while (peer->queue_head != NULL && bxi_load_relaxed(&peer->out_open) && !has_left(job, peer)) {
        struct bxi_queued *queued = peer->queue_head;
        struct bxi_frame head;
        struct bxi_out out = { .head = &head, .slot = queued->slot, .lease = queued->lease };

        memcpy(&head, queued->payload, sizeof head);
        out.body = queued->payload + sizeof head;
        out.body_bytes = queued->payload_bytes - sizeof head;
        if (put(job, peer, &out) < 0)
            return moved;
        if (queued->slot >= 0 && (uint32_t)queued->slot < peer->row_count)      /* relaxed: for inspectors */
            bxi_store_relaxed(&peer->rows[queued->slot].end_pos, peer->out.write_pos);
        peer->queue_head = queued->next;
        if (peer->queue_head == NULL)
            peer->queue_tail = NULL;
        free_queued(job, queued);
        moved = true;
    }
    return moved;
}

void bxi_peer_drop_queue(struct bx_job *job, struct bxi_peer *peer)
{
    while (peer->queue_head != NULL) {
        struct bxi_queued *queued = peer->queue_head;

        peer->queue_head = queued->next;
        free_queued(job, queued);
    }
    peer->queue_tail = NULL;
}

bool bxi_queues_are_empty(const struct bx_job *job)
{
    for (int rank = 0; rank < job->world_size; rank++)
        if (job->rpc->peers[rank]->queue_head != NULL && !has_left(job, job->rpc->peers[rank]))
            return false;
    return true;
}

/* No frame and no caller waits for room in its ring any more. */
static void end_starvation(struct bx_job *job, struct bxi_peer *peer)
{
    bxi_peers_remove(&job->rpc->starved, peer);
    if (bxi_load_relaxed(&peer->out_open))
        bxi_ring_unwant(&peer->out);
}

/* One starved peer; true if a frame moved or a one-way caller may try again. */
static bool move_queue(struct bx_job *job, struct bxi_peer *peer, bool before_sleep)
{
    /* Relaxed, here and above: written under the lock. The ring could not be opened when the first frame came. */
    if (!bxi_load_relaxed(&peer->out_open) && bxi_load_relaxed(&peer->state) == BXI_PEER_ALIVE &&
        bxi_peer_open_out(job, peer) < 0)
        return false;

    bool moved = bxi_peer_flush_queue(job, peer);
    uint64_t wanted = peer->queue_head != NULL ? peer->queue_head->payload_bytes : peer->wanted_bytes;

    if (wanted == 0 || bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE) {
        end_starvation(job, peer);
        peer->wanted_bytes = 0;
        return true;
    }
    if (before_sleep && bxi_ring_want(&peer->out, wanted))
        moved |= bxi_peer_flush_queue(job, peer);
    if (peer->queue_head == NULL && peer->wanted_bytes > 0 &&
        /* No reserve: the padding that it publishes belongs to the next frame, whatever its size (N3 of net/net.h). */
        bxi_ring_has_room(&peer->out, peer->wanted_bytes)) {
        peer->wanted_bytes = 0;
        moved = true;
    }
    if (peer->queue_head == NULL && peer->wanted_bytes == 0) {
        end_starvation(job, peer);
        return true;
    }
    return moved;
}

bool bxi_queues_move_any(struct bx_job *job, bool before_sleep)
{
    bool moved = false;
    bool woken[BXI_WORKERS_MAX] = { false };

    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = job->rpc->peers[rank];

        if (bxi_peers_have(&job->rpc->starved, peer))
            moved |= woken[rank] = move_queue(job, peer, before_sleep);
    }
    bxi_unlock(&job->run->lock);
    for (int rank = 0; moved && rank < job->world_size; rank++)
        if (woken[rank])
            bxi_wake(job->run, job->rpc->peers[rank]);
    if (moved)
        bxi_quiet_changed(job);
    return moved;
}

int bxi_peer_consumed(struct bx_job *job, struct bxi_peer *peer, uint64_t consumed)
{
    if (!bxi_load_relaxed(&peer->out_open))     /* relaxed: written under the lock */
        return consumed == 0 ? 0 : BX_E_CORRUPT;
    /* A reply may lie unread while one-way calls go round the ring many times. Its piggybacked position is then any
     * number of laps old: ignore what is behind `credit`. */
    if (consumed != peer->out.credit && peer->out.credit - consumed <= INT64_MAX)
        return 0;
    if (bxi_ring_credit_hint(&peer->out, consumed) < 0)
        return BX_E_CORRUPT;
    if (bxi_peers_have(&job->rpc->bells_due, peer) && consumed - peer->bell_pos <= INT64_MAX) {
        bxi_peers_remove(&job->rpc->bells_due, peer);
        bxi_counter_add(job, BXI_C_bells_unneeded, 1);
    }
    return 0;
}
