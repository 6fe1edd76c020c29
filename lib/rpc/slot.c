/* SPDX-License-Identifier: MIT */
/*
 * Slots: the calls in flight to a peer, at most 1024, and their rows in the segment, where inspectors look. Any thread,
 * under the lock.
 *
 * An id is a slot and its generation, so the reply to a call that has ended is not taken for the next one's. A call
 * that ends before its reply leaves a zombie: its slot is free once the late reply has come.
 */
#include "mark.h"

#include <errno.h>
#include <stdlib.h>

/* Rows of the segment for the slots. Where the segment has no room for more, calls go on without. */
BXI_COLD static void grow_rows(struct bx_job *job, struct bxi_peer *peer)
{
    uint64_t offset = bxi_calls_offset(peer->rank);

    if (bxi_segment_allocate(&job->segment, offset, peer->slot_count * sizeof(struct bxi_call_row)) < 0)
        return;
    peer->rows = bxi_segment_at(&job->segment, offset);
    peer->row_count = peer->slot_count;
}

BXI_COLD static int grow_slots(struct bxi_peer *peer)
{
    uint32_t count = peer->slot_count == 0 ? 16 : peer->slot_count * 2;

    if (peer->slot_count >= BXI_CALLS_MAX)
        return -EAGAIN;

    struct bxi_slot *slots = realloc(peer->slots, count * sizeof *slots);

    if (slots == NULL)
        return -ENOMEM;
    for (uint32_t i = peer->slot_count; i < count; i++)
        slots[i] = (struct bxi_slot){ .next_free = (uint16_t)(i + 1), .generation = 1 };
    peer->slots = slots;
    peer->free_slot = (uint16_t)peer->slot_count;
    peer->slot_count = count;
    return 0;
}

int bxi_slot_take(struct bx_job *job, struct bxi_peer *peer, struct bxi_call *call)
{
    if (peer->free_slot == peer->slot_count) {
        int rc = grow_slots(peer);

        if (rc < 0)
            return rc;
        grow_rows(job, peer);
    }

    struct bxi_slot *slot = &peer->slots[peer->free_slot];

    call->peer = peer;
    call->slot = peer->free_slot;
    peer->free_slot = slot->next_free;
    slot->state = BXI_SLOT_LIVE;
    slot->call = call;
    slot->end_pos = BX_FOREVER;
    peer->in_flight++;
    return 0;
}

int bxi_slot_watch(struct bx_job *job, struct bxi_peer *peer, uint16_t index, uint64_t deadline_ns)
{
    peer->slots[index].deadline_ns = deadline_ns;
    if (bxi_deadline_is_watched(peer, deadline_ns))
        return 0;
    peer->timer.fire = bxi_calls_due;
    return bxi_timer_set(job->run, &peer->timer, deadline_ns);
}

void bxi_slot_free(struct bxi_peer *peer, uint16_t index)
{
    struct bxi_slot *slot = &peer->slots[index];

    if (index < peer->row_count)
        bxi_store_relaxed(&peer->rows[index].id, 0);    /* relaxed: for inspectors */
    slot->state = BXI_SLOT_FREE;
    slot->call = NULL;
    slot->generation = slot->generation % UINT32_MAX + 1;       /* 32 bits, and never 0: an id of 0 is none */
    slot->next_free = peer->free_slot;
    peer->free_slot = index;
    peer->in_flight--;
}

struct bxi_call *bxi_call_take(struct bx_job *job, struct bxi_peer *peer, uint16_t index, bool keep)
{
    struct bxi_call *call = peer->slots[index].call;

    job->rpc->calls_open--;
    if (keep) {
        peer->slots[index].state = BXI_SLOT_ZOMBIE;
        peer->slots[index].call = NULL;
        if (index < peer->row_count)    /* relaxed: for inspectors */
            bxi_store_relaxed(&peer->rows[index].id, bxi_load_relaxed(&peer->rows[index].id) | BXI_CALL_GIVEN_UP);
    } else {
        bxi_slot_free(peer, index);
    }
    return call;
}

uint64_t bxi_call_began_ns(uint64_t deadline_ns, uint64_t timeout_ns)
{
    return deadline_ns != BX_FOREVER ? deadline_ns - timeout_ns : bxi_coarse_ns();
}

static void show_call(struct bxi_peer *peer, const struct bxi_call *call, uint64_t deadline_ns)
{
    struct bxi_call_row *row = peer->rows + call->slot;
    uint64_t since_ns = bxi_call_began_ns(deadline_ns, call->timeout_ns);

    /* Relaxed: published by the store of the id. */
    bxi_store_relaxed(&row->since, since_ns << 8 | call->function);
    bxi_store_relaxed(&row->deadline_ns, deadline_ns);
    bxi_store_relaxed(&row->end_pos, peer->slots[call->slot].end_pos);
    /* Release, for inspectors in other processes: the words above are of this call. */
    bxi_store_release(&row->id, call->id);
}

void bxi_call_sent(struct bx_job *job, struct bxi_call *call, const struct bxi_frame *head)
{
    call->id = head->id;
    bxi_calls_count_sent(job, 1);
    bxi_call_shown(job, call, head);
}

void bxi_calls_count_sent(struct bx_job *job, size_t count)
{
    job->rpc->calls_open += (uint32_t)count;
    bxi_counter_add(job, BXI_C_calls_sent, count);
}

void bxi_call_shown(struct bx_job *job, struct bxi_call *call, const struct bxi_frame *head)
{
    bxi_trace_sent(job, call->peer, head, 0);
    if (call->slot < call->peer->row_count)
        show_call(call->peer, call, head->deadline_ns);
}
