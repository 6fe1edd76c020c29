/* SPDX-License-Identifier: MIT */
/*
 * What this worker tells remote ones: it reads its own segment as each of them would, and sends what is new. Under the
 * progress role.
 *
 * One round for a worker: under run->lock the words, and up to which position the ring to it is written. Then, in this
 * order: leases that this worker gives back, rows of functions, the frames up to there, and with the last message the
 * words (N2 of net.h). Frames that do not lend go many in one message; one that does goes alone (landing.c).
 *
 * What is sent lies in parcels until the wire is done with it, so the ring's room is the receiver's to give back.
 */
#include "net.h"

#include <stdlib.h>

#define PARCEL_BYTES 16384u             /* of frames in one message, unless one frame alone is larger */

/* Gives it its number. */
static void send_next(struct bxi_twin *twin, struct bxi_parcel *parcel)
{
    parcel->head.number = twin->number++;
    bxi_parcel_send(twin, parcel);
}

/* ---- words ------------------------------------------------------------------------------------------- */

static struct bxi_net_common read_common(const struct bx_job *job)
{
    const struct bxi_header *header = &job->control->header;
    /* Relaxed, all: written by this process, under the lock or by the role. */
    const uint32_t state = bxi_load_relaxed((bxi_a32 *)&header->state);

    return (struct bxi_net_common){
        .state = state == BXI_STARTING ? BXI_RUNNING : state,   /* as the twin of this worker is made */
        .function_count = bxi_load_relaxed((bxi_a32 *)&header->function_count),
        .ending = bxi_load_relaxed((bxi_a64 *)&header->ending),
    };
}

static bool are_common(const struct bxi_net_common *some, const struct bxi_net_common *others)
{
    return memcmp(some, others, sizeof *some) == 0;
}

/* Lock. */
static struct bxi_net_words read_words(const struct bx_job *job, int rank)
{
    const struct bxi_control *control = job->control;
    const struct bxi_pair *pair = &control->pair[rank];

    return (struct bxi_net_words){
        .common = read_common(job),
        /* Relaxed, all: as above. */
        .open = bxi_load_relaxed((bxi_a64 *)&pair->open),
        .want_credit = bxi_load_relaxed((bxi_a64 *)&pair->want_credit),
        .refused_through = bxi_load_relaxed((bxi_a64 *)&pair->refused_through),
        .refused_errno = bxi_load_relaxed((bxi_a64 *)&pair->refused_errno),
        .want_lease = bxi_load_relaxed((bxi_a64 *)&pair->want_lease),
        .credit = bxi_load_relaxed((bxi_a64 *)&control->credit[rank].position),
    };
}

static bool are_new(const struct bxi_twin *twin, const struct bxi_net_words *words)
{
    return memcmp(words, &twin->sent, sizeof *words) != 0;
}

static uint64_t given_back(const struct bxi_twin *twin)
{
    /* [lease.count] acquire, pairs with the release in give_back: the words that it counts are seen. */
    return bxi_load_acquire((bxi_a64 *)&twin->job->control->pair[twin->rank].given_back);
}

/* False: no memory; it is tried again. */
static bool send_functions(struct bxi_twin *twin, uint32_t count)
{
    uint32_t first = twin->sent.common.function_count;
    size_t bytes = (count - first) * sizeof(struct bxi_function);
    struct bxi_parcel *parcel;

    if (count == first)
        return true;
    parcel = bxi_parcel_make(twin, BXI_PARCEL_FUNCTIONS, bytes);
    if (parcel == NULL)
        return false;
    parcel->head.index = first;
    parcel->bytes = bytes;
    memcpy(parcel->data, &twin->job->control->function[first], bytes);
    send_next(twin, parcel);
    return true;
}

static bool send_returns(struct bxi_twin *twin)
{
    const uint64_t count = given_back(twin);
    const bxi_a64 *words;
    struct bxi_parcel *parcel;

    /* Relaxed: this ring is opened by this process before it borrows. */
    if (count == twin->given_back || bxi_load_relaxed(&twin->job->control->pair[twin->rank].open) == 0)
        return true;
    words = bxi_segment_leases(&twin->job->segment, twin->rank);
    parcel = bxi_parcel_make(twin, BXI_PARCEL_RETURNS, BXI_LEASE_MAX * sizeof(struct bxi_parcel_return));
    if (parcel == NULL)
        return false;
    for (uint32_t i = 0, first = twin->last_returned; i < BXI_LEASE_MAX && twin->given_back != count; i++) {
        const uint32_t slot = (first + i) % BXI_LEASE_MAX;
        /* Relaxed: behind the acquire of the count. */
        const struct bxi_parcel_return returned = { slot, bxi_load_relaxed((bxi_a64 *)&words[slot]) };

        if (returned.generation == twin->returned[slot])
            continue;
        twin->returned[slot] = returned.generation;
        twin->last_returned = slot;
        twin->given_back++;             /* of a slot that was returned twice: the rest is looked at in vain */
        memcpy(parcel->data + parcel->bytes, &returned, sizeof returned);
        parcel->bytes += sizeof returned;
    }
    twin->given_back = count;
    if (parcel->bytes > 0)
        send_next(twin, parcel);
    else
        free(parcel);
    return true;
}

/* ---- frames ------------------------------------------------------------------------------------------ */

static bool lends(const void *payload)
{
    const struct bxi_frame *frame = payload;

    return (frame->kind == BXI_REQUEST || frame->kind == BXI_ONEWAY || frame->kind == BXI_REPLY) &&
           (frame->flags & BXI_FLAG_LEASE) != 0;
}

static void add(struct bxi_parcel *parcel, const void *payload, uint32_t bytes)
{
    const uint64_t length = bytes;
    const size_t padded = (bytes + 7u) & ~(size_t)7;

    memcpy(parcel->data + parcel->bytes, &length, sizeof length);
    memset(parcel->data + parcel->bytes + sizeof length + padded - 8, 0, 8);
    memcpy(parcel->data + parcel->bytes + sizeof length, payload, bytes);
    parcel->bytes += sizeof length + padded;
}

/* One message of words alone is under way at a time: to a worker that is stopped they would pile up. The last ones
 * go. */
static bool words_wait(const struct bxi_twin *twin)
{
    return twin->words_under_way && bxi_links_are_run(twin->job->net);
}

/* Sends one message, with up to PARCEL_BYTES of frames that end at or before until. How many; -1: no memory. words: go
 * with it if it is the last one; NULL: none. */
static int send_some(struct bxi_twin *twin, uint64_t until, const struct bxi_net_words *words)
{
    struct bxi_parcel *parcel;
    const void *payload;
    uint32_t bytes;
    bool is_lease = false;
    int frames = 0;

    if (words == NULL && twin->out.read_pos == until)
        return 0;
    /* A frame takes no more of a parcel than of the ring. */
    parcel = bxi_parcel_make(twin, BXI_PARCEL_FRAMES,
                             bxi_least(until - twin->out.read_pos, PARCEL_BYTES + BXI_FRAME_MAX + 16));
    if (parcel == NULL)
        return -1;
    while (!is_lease && twin->out.read_pos < until && parcel->bytes < PARCEL_BYTES &&
           bxi_ring_peek(&twin->out, &payload, &bytes) == 1 && twin->out.read_pos + bxi_record_bytes(bytes) <= until) {
        is_lease = lends(payload);
        if (is_lease && (frames > 0 || bxi_out_must_wait(twin, payload))) {
            is_lease = false;           /* the next message is its own */
            break;
        }
        twin->out.read_pos += bxi_record_bytes(bytes);
        frames++;
        add(parcel, payload, bytes);
    }
    if (is_lease)
        parcel->head.kind = BXI_PARCEL_LEASE;
    if (words != NULL && twin->out.read_pos >= until && (frames > 0 || !words_wait(twin))) {
        parcel->head.has_words = 1;
        parcel->is_words = frames == 0;
        twin->words_under_way |= parcel->is_words;
        parcel->head.words = twin->sent = *words;
        bxi_store_relaxed(&twin->told, words->common.state);    /* relaxed: who waits for it looks again */
    }
    if (frames == 0 && parcel->head.has_words == 0) {
        free(parcel);
        return 0;
    }
    send_next(twin, parcel);
    if (is_lease)
        bxi_out_lease(twin, payload, twin->number - 1);     /* it lies in the ring until its receiver has read it */
    return frames + (words != NULL);
}

static void open_out(struct bxi_twin *twin)
{
    struct bx_job *job = twin->job;

    bxi_ring_reader_init(&twin->out, bxi_segment_at(&job->segment, bxi_ring_offset(twin->rank)), BXI_RING_BYTES, 0,
                         &twin->out_credit, &job->control->pair[twin->rank].want_credit);
    twin->out_open = true;
    bxi_twin_activate(twin);
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

static bool is_alive(const struct bxi_twin *twin)
{
    /* Relaxed: a guess is enough, here and in the next. */
    return bxi_load_relaxed(&twin->job->rpc->peers[twin->rank]->state) == BXI_PEER_ALIVE;
}

static bool has_frames(struct bxi_twin *twin)
{
    if (!twin->out_open && bxi_load_relaxed(&twin->job->control->pair[twin->rank].open) == 1)
        open_out(twin);
    return twin->out_open && !twin->waits_for_parts && bxi_ring_ready(&twin->out);
}

/* A round. How much was sent. */
static int send_to(struct bxi_twin *twin)
{
    struct bx_job *job = twin->job;
    struct bxi_net_words words;
    uint64_t until;
    bool new_words;
    int total = 0, some = 1;

    bxi_in_let_go(twin);        /* before it hears of any frame that it was handled, or refused */
    bxi_lock(&job->run->lock);
    words = read_words(job, twin->rank);
    until = bxi_load_relaxed(&job->rpc->peers[twin->rank]->out_open)
                ? bxi_ring_published(&job->rpc->peers[twin->rank]->out) : 0;
    bxi_unlock(&job->run->lock);
    new_words = are_new(twin, &words);
    if (!has_frames(twin) && !new_words && given_back(twin) == twin->given_back)
        return 0;
    if (!send_returns(twin) || twin->waits_for_parts || (words_wait(twin) && !has_frames(twin)) ||
        !send_functions(twin, words.common.function_count))
        return 0;
    while (some > 0 && (twin->out.read_pos < until || new_words)) {
        some = send_some(twin, until, new_words ? &words : NULL);
        total += some > 0 ? some : 0;
        if (!are_new(twin, &words))
            new_words = false;
    }
    return total;
}

static bool is_to_hear(const struct bxi_twin *twin)
{
    /* Relaxed: this thread writes it. */
    return !twin->has_heard &&
           bxi_load_relaxed((bxi_a32 *)&twin->job->rpc->peers[twin->rank]->state) == BXI_PEER_CORRUPT;
}

static uint64_t pair_changes(const struct bx_job *job)
{
    /* Relaxed: whoever opens a ring rings this worker's bell; the role closes peers. */
    return bxi_load_relaxed(&job->rpc->pair_changes);
}

/* Since the last pass: of a twin that may not be active yet. */
static bool pair_has_changed(const struct bx_job *job)
{
    return pair_changes(job) != job->net->changes_seen;
}

static void note_told(struct bxi_net *net, const struct bxi_net_common *common)
{
    for (int i = net->active_count; i < net->remote_count; i++)
        if (is_alive(net->remote[i]) && !are_common(&net->remote[i]->sent.common, common))
            return;
    net->told = *common;
}

/* Active twins alone, unless there is something new for all. */
int bxi_out_pass(struct bx_job *job, bool look_at_words)
{
    struct bxi_net *net = job->net;
    const struct bxi_net_common common = read_common(job);
    const uint64_t changes = pair_changes(job);
    const bool all = changes != net->changes_seen || (look_at_words && !are_common(&common, &net->told));
    int total = 0;

    if (changes != net->changes_seen)
        bxi_bell_ring(net->stop_fd);    /* the links' thread may be the hub from now on */
    net->changes_seen = changes;
    for (int i = 0; i < (all ? net->remote_count : net->active_count); i++) {
        struct bxi_twin *twin = net->remote[i];

        if (is_alive(twin) && (all || look_at_words || has_frames(twin)))
            total += send_to(twin);
        if ((all || look_at_words) && is_to_hear(twin))
            bxi_parcel_send_cut(twin);
    }
    if (all)
        note_told(net, &common);
    return total;
}

bool bxi_out_has_frames(struct bx_job *job)
{
    for (int i = 0; i < job->net->active_count; i++)
        if (is_alive(job->net->remote[i]) && has_frames(job->net->remote[i]))
            return true;
    return pair_has_changed(job);
}

bool bxi_out_waits(struct bx_job *job)
{
    const struct bxi_net *net = job->net;
    const struct bxi_net_common common = read_common(job);
    const int count = are_common(&common, &net->told) ? net->active_count : net->remote_count;

    for (int i = 0; i < count; i++) {
        struct bxi_twin *twin = net->remote[i];
        struct bxi_net_words words;

        if (is_to_hear(twin))
            return true;
        if (!is_alive(twin))
            continue;
        if (has_frames(twin) || given_back(twin) != twin->given_back)
            return true;
        if (twin->waits_for_parts || words_wait(twin))
            continue;                   /* the words go behind its frames, or behind the last ones */
        bxi_lock(&job->run->lock);
        words = read_words(job, twin->rank);
        bxi_unlock(&job->run->lock);
        if (are_new(twin, &words))
            return true;
    }
    return pair_has_changed(job);
}

void bxi_out_death(struct bx_job *job, int dead)
{
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_twin *twin = job->net->twins[rank];
        struct bxi_parcel *parcel = twin != NULL && is_alive(twin) ? bxi_parcel_make(twin, BXI_PARCEL_DEATH, 0) : NULL;

        if (parcel == NULL)
            continue;
        parcel->head.number = (uint64_t)dead;
        bxi_parcel_send(twin, parcel);
    }
}
