/* SPDX-License-Identifier: MIT */
/*
 * Writes what a remote worker tells into its twin, as that worker would write its own segment. Under the progress role.
 * What comes is input, and checked.
 */
#include "net.h"

#include <errno.h>

void bxi_in_nonsense(struct bxi_twin *twin, const char *what)
{
    bxi_error_enter();                  /* no call of the program's fails by it */
    bxi_peer_suspect(twin->job, twin->job->rpc->peers[twin->rank], what);
    bxi_error_leave();
}

void bxi_in_not_fetched(struct bxi_twin *twin, int rc)
{
    if (rc == -ENOMEM)
        bxi_in_nonsense(twin, "no memory for a message of it");
    else
        bxi_twin_lost(twin->job, twin);
}

bool bxi_in_functions(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data,
                      size_t bytes)
{
    uint32_t count = (uint32_t)(bytes / sizeof(struct bxi_function));

    if (bytes % sizeof(struct bxi_function) != 0 || head->index > BXI_FUNCTION_MAX ||
        count > BXI_FUNCTION_MAX - head->index)
        return false;
    memcpy(&twin->control->function[head->index], data, bytes);
    bxi_net_show_functions(twin, head->index, count);
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

bool bxi_in_returns(struct bxi_twin *twin, const unsigned char *data, size_t bytes)
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

bool bxi_in_put(struct bxi_twin *twin, const unsigned char *frame, uint32_t bytes)
{
    const int64_t clock_ns = twin->job->net->places[twin->rank].clock_ns;
    struct bxi_frame head;
    void *payload;

    /* What was read and is not published yet: its sender may know it from a frame.
     * [peer.consumed] acquire, as in put (rpc/out.c). */
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

bool bxi_in_frames(struct bxi_twin *twin, const unsigned char *data, size_t bytes)
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
        data += good ? sizeof length + padded : 0;
        bytes -= good ? sizeof length + padded : 0;
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
    bxi_store_release(&control->header.ending, words->common.ending);   /* [ending] release */
    bxi_store_release(&pair->open, words->open);                    /* [pair.open] release */
    bxi_store_release(&control->header.state, words->common.state);     /* [state] release */
    if (words->common.state == BXI_LEFT)
        bxi_twin_dies(job->net, twin);          /* it reads nothing of this worker any more */
    bxi_note(job->run, BXI_EVENT_SCAN);
}
