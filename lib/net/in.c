/* SPDX-License-Identifier: MIT */
/*
 * What remote workers tell: it is written into their twins, in the order of its numbers. Under the progress role. What
 * comes is input: what no worker sends cuts off the worker that it came from.
 *
 * A message that comes before its turn, or behind a frame whose tensors are under way, is kept until then. A large one
 * is fetched first.
 */
#include "net.h"

#include <stdlib.h>

#define LATE_BYTES_MAX ((size_t)64 << 20)      /* kept of one worker; those without frames have 150 bytes each */

struct bxi_late {
    struct bxi_late *next;
    struct bxi_twin *twin;
    struct bxi_parcel_head head;
    struct bxi_wire_operation fetch;
    size_t bytes;
    bool is_there;                      /* its data has come */
    bool is_lost;                       /* it could not be fetched */
    unsigned char data[];
};

/* The message whose turn it is. */
static void take(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data, size_t bytes)
{
    bool good = true;

    twin->next++;
    if (head->kind == BXI_PARCEL_LEASE) {
        bxi_landing_begin(twin, head, data, bytes);     /* it also takes the words */
        return;
    }
    if (head->kind == BXI_PARCEL_FUNCTIONS)
        good = bxi_in_functions(twin, head, data, bytes);
    else if (head->kind == BXI_PARCEL_RETURNS)
        good = bxi_in_returns(twin, data, bytes);
    else
        good = bxi_in_frames(twin, data, bytes);
    if (!good)
        bxi_in_nonsense(twin, "it sent what no worker sends");
    else if (head->has_words)
        bxi_in_words(twin, &head->words);
}

/* ---- their turn ---------------------------------------------------------------------------------------- */

/* What came before its turn, until one has to wait. */
static void take_next(struct bxi_twin *twin)
{
    while (twin->landing == NULL && twin->late != NULL && twin->late->head.number == twin->next &&
           twin->late->is_there) {
        struct bxi_late *late = twin->late;

        twin->late = late->next;
        if (twin->late == NULL)
            twin->last_late = NULL;
        twin->late_bytes -= sizeof *late + late->bytes;
        take(twin, &late->head, late->data, late->bytes);
        free(late);
    }
}

static void is_fetched(void *context, int rc)
{
    struct bxi_late *late = context;
    struct bxi_twin *twin = late->twin;

    if (rc < 0) {
        late->is_lost = true;
        bxi_in_not_fetched(twin, rc);
        return;
    }
    late->is_there = true;
    take_next(twin);
}

static void keep(struct bxi_twin *twin, const struct bxi_parcel_head *head, const void *data, size_t bytes,
                 struct bxi_wire_large *large)
{
    struct bxi_net *net = twin->job->net;
    struct bxi_late *late = bytes <= 2 * BXI_RING_BYTES ? bxi_net_memory(net, sizeof *late + bytes) : NULL;
    struct bxi_late **place = &twin->late;

    if (late == NULL) {
        if (large != NULL)
            net->ops->drop(net->wire, large);
        bxi_in_nonsense(twin, bytes > 2 * BXI_RING_BYTES ? "its messages are too large" : "no memory for one of it");
        return;
    }
    *late = (struct bxi_late){ .twin = twin, .head = *head, .fetch = { .done = is_fetched, .context = late },
                               .bytes = bytes, .is_there = large == NULL };
    if (data != NULL)
        memcpy(late->data, data, bytes);
    if (twin->last_late != NULL && twin->last_late->head.number < head->number)
        place = &twin->last_late->next;         /* as a rule */
    while (*place != NULL && (*place)->head.number < head->number)
        place = &(*place)->next;
    twin->late_bytes += sizeof *late + bytes;
    if (twin->late_bytes > LATE_BYTES_MAX || (*place != NULL && (*place)->head.number == head->number)) {
        free(late);
        if (large != NULL)
            net->ops->drop(net->wire, large);
        bxi_in_nonsense(twin, "it sent a message twice, or more than there is memory for");
        return;
    }
    late->next = *place;
    *place = late;
    if (late->next == NULL)
        twin->last_late = late;
    if (large != NULL)
        net->ops->fetch(net->wire, large, late->data, bytes, &late->fetch);
}

/* Clocks drift, and that of a machine that sleeps stands still. By this worker's, a message was sent between the one
 * that its echo is of and now. */
static void follow_clock(struct bxi_twin *twin, const struct bxi_parcel_head *head)
{
    int64_t *clock_ns = &twin->job->net->places[twin->rank].clock_ns;
    const int64_t least_ns = (int64_t)(head->echo_ns - head->stamp_ns);
    const int64_t most_ns = (int64_t)(twin->stamped_ns - head->stamp_ns);

    if (*clock_ns > most_ns)
        *clock_ns = most_ns;
    /* An echo that is to come: its clock jumped while it held that message. */
    else if (head->echo_ns != 0 && least_ns <= most_ns && *clock_ns < least_ns)
        *clock_ns = least_ns;
}

static struct bxi_twin *sender_of(const struct bx_job *job, const struct bxi_parcel_head *head, size_t bytes)
{
    if (bytes != sizeof *head || head->instance != job->instance || head->from >= job->world_size)
        return NULL;
    return job->net->twins[head->from];
}

/* The worker that is dead is on the sender's host. */
static void take_death(struct bxi_twin *from, uint64_t rank)
{
    struct bx_job *job = from->job;

    if (rank < (uint64_t)job->world_size && job->net->twins[rank] != NULL &&
        strcmp(job->net->places[rank].host, job->net->places[from->rank].host) == 0)
        bxi_twin_dies(job->net, job->net->twins[rank]);
    else
        bxi_in_nonsense(from, "it reports the death of a worker on another host");
}

static void take_cut(struct bxi_twin *from, uint64_t state)
{
    if (state == BXI_PEER_DEAD)
        bxi_twin_dies(from->job->net, from);
    else
        bxi_in_nonsense(from, "it has cut this one off");
}

void bxi_in_arrived(void *context, const void *head_at, size_t head_bytes, const void *data, size_t bytes,
                    struct bxi_wire_large *large)
{
    struct bx_job *job = context;
    struct bxi_parcel_head head = { .from = 0 };
    struct bxi_twin *twin;

    if (head_bytes == sizeof head)
        memcpy(&head, head_at, sizeof head);
    twin = sender_of(job, &head, head_bytes);
    if (twin == NULL || bxi_load_relaxed(&job->rpc->peers[twin->rank]->state) != BXI_PEER_ALIVE) {
        if (large != NULL)
            job->net->ops->drop(job->net->wire, large);
        if (twin != NULL && bxi_load_relaxed(&job->rpc->peers[twin->rank]->state) == BXI_PEER_DEAD)
            bxi_parcel_send_cut(twin);  /* it lives: what lay between was broken */
        return;
    }
    if (bytes > 0)                      /* words alone leave nothing to a pass */
        bxi_twin_activate(twin);
    bxi_net_show_received(twin, &head, head_bytes + bytes);
    follow_clock(twin, &head);
    if (head.kind == BXI_PARCEL_PART)
        bxi_landing_part(twin, &head, data, bytes, large);
    else if (head.kind == BXI_PARCEL_DEATH && large == NULL)
        take_death(twin, head.number);
    else if (head.kind == BXI_PARCEL_CUT && large == NULL)
        take_cut(twin, head.number);
    else if (head.number < twin->next || head.kind < BXI_PARCEL_FRAMES || head.kind > BXI_PARCEL_LEASE) {
        if (large != NULL)
            job->net->ops->drop(job->net->wire, large);
        bxi_in_nonsense(twin, "it sent what no worker sends");
    } else if (data != NULL && head.number == twin->next && twin->landing == NULL) {
        take(twin, &head, data, bytes);
        take_next(twin);
    } else {
        keep(twin, &head, data, bytes, large);
    }
}

/* ---- what frames had landed in ------------------------------------------------------------------------------ */

static void drop_first_landed(struct bxi_twin *twin)
{
    struct bxi_landed *landed = twin->landed;

    twin->landed = landed->next;
    if (twin->landed == NULL)
        twin->landed_end = &twin->landed;
    for (uint32_t i = 0; i < landed->count; i++)
        bxi_storage_release(landed->storages[i]);
    free(landed);
}

int bxi_in_let_go(struct bxi_twin *twin)
{
    const struct bxi_peer *peer = twin->job->rpc->peers[twin->rank];
    int count = 0;

    for (; twin->landed != NULL && (peer->in.read_pos >= twin->landed->end_pos ||
                                    bxi_load_relaxed((bxi_a32 *)&peer->state) != BXI_PEER_ALIVE); count++) {
        if (twin->landed->packed_bytes > 0)
            bxi_landing_drop_packed(twin, twin->landed->packed_offset, twin->landed->packed_bytes);
        drop_first_landed(twin);
    }
    return count;
}

/* Of one that is gone: what is kept of its messages, but for what the wire still writes to. */
static void drop_kept(struct bxi_twin *twin)
{
    struct bxi_late **place = &twin->late;

    twin->last_late = NULL;
    while (*place != NULL) {
        struct bxi_late *late = *place;

        if (!late->is_there && !late->is_lost) {
            place = &late->next;
            continue;
        }
        *place = late->next;
        free(late);
    }
    bxi_landing_drop_kept(twin);
    bxi_landing_end(twin);
}

/* Of a host that is silent nothing ends what is under way. There is no way to it any more. */
static void cut_end(struct bxi_twin *twin)
{
    if (twin->end == NULL || (twin->parts_under_way == 0 && twin->landing == NULL && twin->late == NULL))
        return;
    twin->job->net->ops->cut(twin->end);
    twin->end = NULL;
    twin->has_heard = true;
}

int bxi_in_pass(struct bx_job *job)
{
    int total = 0;

    for (int i = 0; i < job->net->active_count; i++) {
        struct bxi_twin *twin = job->net->remote[i];
        bxi_a32 *state = &job->rpc->peers[twin->rank]->state;

        /* Relaxed, both: this thread writes it. */
        if (bxi_load_relaxed(state) != BXI_PEER_ALIVE)
            drop_kept(twin);
        else
            take_next(twin);            /* a frame that they waited for may be complete */
        if (bxi_load_relaxed(state) == BXI_PEER_DEAD)
            cut_end(twin);
        total += bxi_in_let_go(twin);
    }
    return total;
}

void bxi_in_forget(struct bxi_twin *twin)
{
    while (twin->late != NULL) {
        struct bxi_late *late = twin->late;

        twin->late = late->next;
        free(late);
    }
    while (twin->landed != NULL)
        drop_first_landed(twin);
}
