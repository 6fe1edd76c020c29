/* SPDX-License-Identifier: MIT */
/*
 * What remote workers tell: it is written into their twins, in the order of its numbers. Under the progress role. What
 * comes is input: what no worker sends cuts off the worker that it came from.
 *
 * A message that comes before its turn, or behind a frame whose tensors are under way, is kept until then. A large one
 * is fetched first.
 */
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

struct bxi_late {
    struct bxi_late *next;
    struct bxi_twin *twin;
    struct bxi_parcel_head head;
    size_t bytes;
    bool is_there;                      /* its data has come */
    unsigned char data[];
};

void bxi_in_nonsense(struct bxi_twin *twin, const char *what)
{
    bxi_error_enter();                  /* no call of the program's fails by it */
    bxi_peer_suspect(twin->job, twin->job->rpc->peers[twin->rank], what);
    bxi_error_leave();
}

/* ---- what takes effect --------------------------------------------------------------------------------- */

static bool take_functions(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data,
                           size_t bytes)
{
    uint32_t count = (uint32_t)(bytes / sizeof(struct bxi_function));

    if (bytes % sizeof(struct bxi_function) != 0 || head->index > BXI_FUNCTION_MAX ||
        count > BXI_FUNCTION_MAX - head->index)
        return false;
    memcpy(&twin->control->function[head->index], data, bytes);
    /* [functions] release, as in publish_functions: the rows are written. */
    bxi_store_release(&twin->control->header.function_count, head->index + count);
    return true;
}

static bxi_a64 *lease_words(const struct bxi_twin *twin)
{
    return (bxi_a64 *)(void *)((unsigned char *)twin->control + bxi_lease_offset(twin->job->rank));
}

/* As give_back of lend/loan.c, in the remote worker's name. */
static void give_back(struct bxi_twin *twin, uint64_t slot, uint64_t generation)
{
    bxi_a64 *count = &twin->control->pair[twin->job->rank].given_back;

    /* [lease.word] release, pairs with the acquire in collect_words. */
    bxi_store_release(&lease_words(twin)[slot], generation);
    /* [lease.count] release, pairs with the acquire in collect_words. */
    bxi_store_release(count, bxi_load_relaxed(count) + 1);
}

static bool take_returns(struct bxi_twin *twin, const unsigned char *data, size_t bytes)
{
    for (; bytes >= sizeof(struct bxi_parcel_return); bytes -= sizeof(struct bxi_parcel_return)) {
        struct bxi_parcel_return returned;

        memcpy(&returned, data, sizeof returned);
        data += sizeof returned;
        if (returned.slot >= BXI_LEASE_MAX)
            return false;
        give_back(twin, returned.slot, returned.generation);
    }
    return bytes == 0;
}

bool bxi_in_put(struct bxi_twin *twin, unsigned char *frame, uint32_t bytes)
{
    const int64_t clock_ns = twin->job->net->places[twin->rank].clock_ns;
    struct bxi_frame head;
    void *payload;

    /* What was read and is not published yet: its sender may know it from a frame. [peer.consumed] acquire, as in put of
     * rpc/out.c. */
    (void)bxi_ring_credit_hint(&twin->in, bxi_load_acquire(&twin->job->rpc->peers[twin->rank]->consumed));
    if (bytes < sizeof head || bxi_ring_reserve(&twin->in, bytes, &payload) < 0)
        return false;
    memcpy(&head, frame, sizeof head);
    if (head.deadline_ns != BX_FOREVER)
        head.deadline_ns += (uint64_t)clock_ns;
    memcpy(payload, &head, sizeof head);
    memcpy((unsigned char *)payload + sizeof head, frame + sizeof head, bytes - sizeof head);
    bxi_ring_commit(&twin->in, bytes);
    return true;
}

static bool take_frames(struct bxi_twin *twin, unsigned char *data, size_t bytes)
{
    bool good = true;

    bxi_ring_group_begin(&twin->in);
    while (good && bytes > 0) {
        uint64_t length;
        size_t padded;

        good = bytes >= sizeof length;
        if (!good)
            break;
        memcpy(&length, data, sizeof length);
        padded = (length + 7) & ~(size_t)7;
        good = length <= BXI_FRAME_MAX && padded <= bytes - sizeof length &&
               bxi_in_put(twin, data + sizeof length, (uint32_t)length);
        data += sizeof length + padded;
        bytes -= good ? sizeof length + padded : bytes;
    }
    bxi_ring_group_end(&twin->in);
    return good;
}

void bxi_in_words(struct bxi_twin *twin, const struct bxi_net_words *words)
{
    struct bx_job *job = twin->job;
    struct bxi_control *control = twin->control;
    struct bxi_pair *pair = &control->pair[job->rank];

    /* The tags are those of shm/layout.h; what each publishes is written before it. */
    bxi_store_release(&control->credit[job->rank].position, words->credit);        /* [ring.credit] release */
    bxi_store_relaxed(&pair->want_credit, words->want_credit);      /* [ring.want] relaxed: read in the next pass */
    bxi_store_relaxed(&pair->want_lease, words->want_lease);        /* [lease.want] relaxed: likewise */
    bxi_store_relaxed(&pair->refused_errno, words->refused_errno);  /* relaxed: before the next */
    bxi_store_release(&pair->refused_through, words->refused_through);      /* [pair.refused] release */
    bxi_store_release(&control->header.ending, words->ending);      /* [ending] release */
    bxi_store_release(&pair->open, words->open);                    /* [pair.open] release */
    bxi_store_release(&control->header.state, words->state);        /* [state] release */
    bxi_note(job->run, BXI_EVENT_SCAN);
}

static void take(struct bxi_twin *twin, const struct bxi_parcel_head *head, unsigned char *data, size_t bytes)
{
    bool good = true;

    if (head->kind == BXI_PARCEL_LEASE) {
        bxi_landing_begin(twin, head, data, bytes);     /* it also takes the words */
        return;
    }
    if (head->kind == BXI_PARCEL_FUNCTIONS)
        good = take_functions(twin, head, data, bytes);
    else if (head->kind == BXI_PARCEL_RETURNS)
        good = take_returns(twin, data, bytes);
    else
        good = take_frames(twin, data, bytes);
    if (!good)
        bxi_in_nonsense(twin, "it sent what no worker sends");
    else if (head->has_words)
        bxi_in_words(twin, &head->words);
}

/* ---- their turn ---------------------------------------------------------------------------------------- */

void bxi_in_next(struct bxi_twin *twin)
{
    while (twin->landing == NULL && twin->late != NULL && twin->late->head.number == twin->next &&
           twin->late->is_there) {
        struct bxi_late *late = twin->late;

        twin->late = late->next;
        twin->next++;
        take(twin, &late->head, late->data, late->bytes);
        free(late);
    }
}

static void is_fetched(void *context, int rc)
{
    struct bxi_late *late = context;
    struct bxi_twin *twin = late->twin;

    if (rc < 0) {
        bxi_in_nonsense(twin, "a message of it was lost on the way");
        return;
    }
    late->is_there = true;
    bxi_in_next(twin);
}

static void keep(struct bxi_twin *twin, const struct bxi_parcel_head *head, const void *data, size_t bytes,
                 struct bxi_wire_large *large)
{
    struct bxi_net *net = twin->job->net;
    struct bxi_late *late = bytes <= 2 * BXI_RING_BYTES ? malloc(sizeof *late + bytes) : NULL, **place = &twin->late;

    if (late == NULL) {
        if (large != NULL)
            net->ops->drop(net->wire, large);
        bxi_in_nonsense(twin, bytes <= 2 * BXI_RING_BYTES ? "no memory for a message of it" : "its messages are too large");
        return;
    }
    *late = (struct bxi_late){ .twin = twin, .head = *head, .bytes = bytes, .is_there = large == NULL };
    if (data != NULL)
        memcpy(late->data, data, bytes);
    while (*place != NULL && (*place)->head.number < head->number)
        place = &(*place)->next;
    late->next = *place;
    *place = late;
    if (large != NULL)
        net->ops->fetch(net->wire, large, late->data, bytes, is_fetched, late);
    else
        bxi_in_next(twin);
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

void bxi_in_arrived(void *context, const void *head_bytes, size_t bytes_of_head, const void *data, size_t bytes,
                    struct bxi_wire_large *large)
{
    struct bx_job *job = context;
    struct bxi_parcel_head head = { .from = 0 };
    struct bxi_twin *twin;

    if (bytes_of_head == sizeof head)
        memcpy(&head, head_bytes, sizeof head);
    twin = sender_of(job, &head, bytes_of_head);
    if (twin == NULL || bxi_load_relaxed(&job->rpc->peers[twin->rank]->state) != BXI_PEER_ALIVE) {
        if (large != NULL)
            job->net->ops->drop(job->net->wire, large);
        return;
    }
    bxi_counter_add(job, BXI_C_net_bytes_received, bytes_of_head + bytes);
    if (head.kind == BXI_PARCEL_PART)
        bxi_landing_part(twin, &head, data, bytes, large);
    else if (head.kind == BXI_PARCEL_DEATH && large == NULL)
        take_death(twin, head.number);
    else if (head.number < twin->next || head.kind < BXI_PARCEL_FRAMES || head.kind > BXI_PARCEL_LEASE) {
        if (large != NULL)
            job->net->ops->drop(job->net->wire, large);
        bxi_in_nonsense(twin, "it sent what no worker sends");
    } else
        keep(twin, &head, data, bytes, large);
}

/* ---- leases that this worker gives itself ----------------------------------------------------------------- */

static int give_back_handled(struct bxi_twin *twin)
{
    const struct bxi_peer *peer = twin->job->rpc->peers[twin->rank];
    int count = 0;

    while (twin->given != NULL && (peer->in.read_pos >= twin->given->end_pos ||
                                   bxi_load_relaxed((bxi_a32 *)&peer->state) != BXI_PEER_ALIVE)) {
        struct bxi_given *given = twin->given;

        twin->given = given->next;
        if (twin->given == NULL)
            twin->given_end = &twin->given;
        if (given->slot != BXI_NO_LEASE)
            give_back(twin, given->slot, given->generation);
        if (given->packed_bytes > 0)
            fallocate(twin->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)given->packed_offset,
                      (off_t)given->packed_bytes);
        free(given);
        count++;
    }
    return count;
}

int bxi_in_pass(struct bx_job *job)
{
    int total = 0;

    for (int rank = 0; rank < job->world_size; rank++)
        if (job->net->twins[rank] != NULL)
            total += give_back_handled(job->net->twins[rank]);
    if (total > 0)
        bxi_grants_reclaim(job);
    return total;
}

void bxi_in_forget(struct bxi_twin *twin)
{
    while (twin->late != NULL) {
        struct bxi_late *late = twin->late;

        twin->late = late->next;
        free(late);
    }
    while (twin->given != NULL) {
        struct bxi_given *given = twin->given;

        twin->given = given->next;
        free(given);
    }
}
