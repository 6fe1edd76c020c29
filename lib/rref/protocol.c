/* SPDX-License-Identifier: MIT */
/*
 * Frames of the protocol, and what the death of a worker does to references. Run by the role; rref.h has the protocol.
 * All of it is input from another process: ids and counts that do not fit are refused, and the sender is cut off.
 */
#include "rref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets of ranks -------------------------------------------------------------------------------------- */

static bool has(const uint64_t *set, int rank)
{
    return (set[rank / 64] >> rank % 64 & 1) != 0;
}

static void put(uint64_t *set, int rank, bool is)
{
    uint64_t bit = UINT64_C(1) << rank % 64;

    set[rank / 64] = is ? set[rank / 64] | bit : set[rank / 64] & ~bit;
}

static bool is_empty(const uint64_t *set)
{
    for (int i = 0; i < BXI_RANK_WORDS; i++)
        if (set[i] != 0)
            return false;
    return true;
}

/* ---- every reference (lock) ------------------------------------------------------------------------------- */

/* Calls fn for each reference of the table; fn may settle the one that it gets, and no other. */
static void each(struct bx_job *job, void (*fn)(struct bx_job *, struct bx_rref *, int, struct bxi_rref_after *),
                 int rank, struct bxi_rref_after *after)
{
    for (uint32_t i = 0; i < job->rrefs->table_size; i++) {
        for (struct bx_rref *rref = job->rrefs->table[i], *next; rref != NULL; rref = next) {
            next = rref->next;
            fn(job, rref, rank, after);
        }
    }
}

/* ---- entries (the owner) ------------------------------------------------------------------------------- */

static int enter(struct bx_job *job, int from, uint64_t id, struct bxi_rref_after *after)
{
    struct bxi_rref_frame entered = { .op = BXI_RREF_ENTERED, .id = id };
    struct bx_rref *rref;

    if (bxi_rref_is_forged(job, from, id))
        return BX_E_CORRUPT;
    rref = bxi_rref_of_ours(job, id);
    if (rref == NULL || !bxi_rref_make_entries(job, rref)) {
        entered.value = -ENOMEM;
    } else if (bxi_rref_state(rref) == BXI_RREF_FAILED && rref->code == BX_E_NO_OBJECT) {
        entered.value = BX_E_NO_OBJECT;
    } else {
        bxi_rref_add_entries(job, rref, from, 1);
    }
    bxi_rref_send(job, from, &entered, after);
    if (rref != NULL)
        bxi_rref_settle(job, rref, after);
    return 0;
}

static int leave(struct bx_job *job, int from, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    struct bx_rref *rref = bxi_rref_find(job, frame->id);
    int64_t value = frame->value, held = rref != NULL && rref->entries != NULL ? rref->entries[from] : 0;

    if (value <= 0)
        return BX_E_CORRUPT;
    if (value == held + 1 && bxi_rref_id_maker(frame->id) == from && job->rrefs->unmade[from] > 0) {
        job->rrefs->unmade[from]--;     /* the maker's own: there was no memory for it */
        value--;
    }
    if (value > held)
        return BX_E_CORRUPT;
    if (value > 0) {
        bxi_rref_add_entries(job, rref, from, -value);
        bxi_rref_settle(job, rref, after);
    }
    return 0;
}

/* ---- answers (a holder) ---------------------------------------------------------------------------------- */

static void tell_passers(struct bx_job *job, struct bx_rref *rref, struct bxi_rref_after *after)
{
    while (rref->passers != NULL) {
        struct bxi_passer *passer = rref->passers;

        rref->passers = passer->next;
        for (; passer->count > 0; passer->count--)
            bxi_rref_send(job, passer->rank, &(struct bxi_rref_frame){ .op = BXI_RREF_KEPT, .id = rref->id }, after);
        free(passer);
    }
}

static int entered(struct bx_job *job, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    struct bx_rref *rref = bxi_rref_find(job, frame->id);

    if (rref == NULL || !rref->entering || frame->value > 0)
        return BX_E_CORRUPT;
    rref->entering = false;
    job->rrefs->pending--;
    if (frame->value < 0) {
        rref->counted--;
        bxi_rref_fail(rref, frame->value, NULL);
    } else if (bxi_rref_state(rref) == BXI_RREF_TO_COME) {
        bxi_rref_set_state(rref, BXI_RREF_THERE);
    }
    tell_passers(job, rref, after);
    return 0;
}

/* The pin of an object of this worker does not keep it alive: its entry does. */
static bool is_for_entry(const struct bx_job *job, const struct bxi_pin *pin)
{
    return bxi_rref_is_ours(job, pin->rref->id);
}

static void unpin(struct bx_job *job, int rank, struct bxi_pin *pin)
{
    if (pin->prev != NULL)
        pin->prev->next = pin->next;
    else
        job->rrefs->pins[rank] = pin->next;
    if (pin->next != NULL)
        pin->next->prev = pin->prev;
    else
        job->rrefs->last_pin[rank] = pin->prev;
    if (!is_for_entry(job, pin)) {
        pin->rref->pins--;
        job->rrefs->pending--;
    }
    free(pin);
}

static int kept(struct bx_job *job, int from, uint64_t id, struct bxi_rref_after *after)
{
    struct bxi_pin *pin = job->rrefs->pins[from];
    struct bx_rref *rref;

    while (pin != NULL && pin->rref->id != id)
        pin = pin->next;
    if (pin == NULL || is_for_entry(job, pin))
        return 0;                       /* a message that was refused, or more KEPTs than messages: no harm */
    rref = pin->rref;
    unpin(job, from, pin);
    bxi_rref_settle(job, rref, after);
    return 0;
}

/* By this worker: others may never close it, so no round would end. */
static bool is_cut_off(const struct bx_job *job, int rank)
{
    return !job->rrefs->ops->is_alive(job, rank) && job->rrefs->ops->why_closed(job, rank) == BX_E_CORRUPT;
}

/* ---- rounds ----------------------------------------------------------------------------------------------- */

static void answer_if_closed(struct bx_job *job, enum bxi_round_kind kind, int asker, struct bxi_rref_after *after)
{
    uint64_t round = job->rrefs->asked[kind][asker];

    if (round == 0)
        return;
    for (int rank = 0; rank < job->world_size; rank++) {
        uint8_t need = bxi_rref_need(job, kind, asker)[rank];

        if (rank != job->rank && need > 0 &&
            (bxi_rref_closed(job, rank) < need ||
             (kind == BXI_ROUND_LEASES && job->rrefs->ops->holds_passed(job, rank, need, job->rrefs->since_ns[asker]))))
            return;
    }
    job->rrefs->asked[kind][asker] = 0;
    bxi_rref_send(job, asker, &(struct bxi_rref_frame){ .op = BXI_RREF_ANSWER, .id = round, .value = (int32_t)kind },
                  after);
}

static void answer_all(struct bx_job *job, struct bxi_rref_after *after)
{
    for (int kind = 0; kind < BXI_ROUND_KINDS; kind++)
        for (int asker = 0; asker < job->world_size; asker++)
            answer_if_closed(job, (enum bxi_round_kind)kind, asker, after);
}

static size_t body_bytes(const struct bx_job *job, int kind)
{
    return (size_t)job->world_size + (kind == BXI_ROUND_LEASES ? sizeof(uint64_t) : 0);
}

static int ask(struct bx_job *job, int from, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    const unsigned char *body = frame->body;

    if (frame->value < 0 || frame->value >= BXI_ROUND_KINDS || frame->body_bytes != body_bytes(job, frame->value) ||
        frame->id == 0)
        return BX_E_CORRUPT;
    job->rrefs->asked[frame->value][from] = frame->id;
    memcpy(bxi_rref_need(job, (enum bxi_round_kind)frame->value, from), body, (size_t)job->world_size);
    if (frame->value == BXI_ROUND_LEASES)
        memcpy(&job->rrefs->since_ns[from], body + job->world_size, sizeof(uint64_t));
    answer_if_closed(job, (enum bxi_round_kind)frame->value, from, after);
    return 0;
}

static void drop_entries(struct bx_job *job, struct bx_rref *rref, int rank, struct bxi_rref_after *after)
{
    if (rref->entries == NULL || rref->entries[rank] == 0)
        return;
    bxi_rref_add_entries(job, rref, rank, -(int64_t)rref->entries[rank]);
    bxi_rref_settle(job, rref, after);
}

/* That worker is in the set of the last round. */
static bool is_in_set(const struct bx_job *job, enum bxi_round_kind kind, int rank, int generation)
{
    return generation < job->rrefs->rounds[kind].closed[rank];
}

static bool is_open(const struct bx_job *job, enum bxi_round_kind kind)
{
    return !is_empty(job->rrefs->rounds[kind].awaited);
}

/* All that wait, or the leases that it was for: whoever was closed since the round began has begun it anew. */
static void end_round(struct bx_job *job, enum bxi_round_kind kind, struct bxi_rref_after *after)
{
    if (kind == BXI_ROUND_LEASES) {
        after->take_back = true;
        after->since_ns = job->rrefs->rounds[kind].since_ns;
        return;
    }
    for (int rank = 0; rank < job->world_size; rank++)
        if (is_in_set(job, kind, rank, job->rrefs->generation[rank]))
            each(job, drop_entries, rank, after);
    each(job, drop_entries, job->world_size, after);
}

/* When all leave together, what one that has left still refers to is a leak: bxi_rrefs_end reports it. */
static bool has_left_with_us(const struct bx_job *job, int rank)
{
    return bxi_load_relaxed((bxi_a32 *)&job->phase) >= BXI_STOPPING &&  /* relaxed: set before this worker was quiet */
           job->rrefs->ops->why_closed(job, rank) == BX_E_SHUTDOWN;
}

/* Asks all living workers; a round that nobody must answer ends at once. All that are closed are in the set: what the
 * one that has died now had passed on, one that died before may have passed on. One that has left with us is not, but
 * others may still read the tensors that it has passed on. */
BXI_COLD static void begin_round(struct bx_job *job, enum bxi_round_kind kind, struct bxi_rref_after *after)
{
    struct bxi_round *round = &job->rrefs->rounds[kind];
    uint8_t body[BXI_RREF_NEED_MAX];
    const struct bxi_rref_frame frame = { .op = BXI_RREF_ASK, .id = ++round->number, .value = (int32_t)kind,
                                          .body = body, .body_bytes = body_bytes(job, kind) };

    for (int rank = 0; rank < job->world_size; rank++) {
        bool alive = job->rrefs->ops->is_alive(job, rank);

        put(round->awaited, rank, alive && rank != job->rank);
        round->closed[rank] = rank == job->rank ? 0 : bxi_rref_closed(job, rank);
        if (!alive && ((kind == BXI_ROUND_ENTRIES && has_left_with_us(job, rank)) || is_cut_off(job, rank)))
            round->closed[rank]--;      /* one that this worker cut off, others may never close */
    }
    round->since_ns = kind == BXI_ROUND_LEASES && is_open(job, kind) ? job->rrefs->ops->newest_waiting_ns(job) : 0;
    memcpy(body, round->closed, (size_t)job->world_size);
    memcpy(body + job->world_size, &round->since_ns, sizeof round->since_ns);
    for (int rank = 0; rank < job->world_size; rank++)
        if (has(round->awaited, rank))
            bxi_rref_send(job, rank, &frame, after);
    if (!is_open(job, kind))
        end_round(job, kind, after);
}

static int answer(struct bx_job *job, int from, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    struct bxi_round *round;

    if (frame->value < 0 || frame->value >= BXI_ROUND_KINDS)
        return BX_E_CORRUPT;
    round = &job->rrefs->rounds[frame->value];
    if (frame->id > round->number)
        return BX_E_CORRUPT;
    if (frame->id < round->number || !has(round->awaited, from))
        return 0;
    put(round->awaited, from, false);
    if (is_empty(round->awaited))
        end_round(job, (enum bxi_round_kind)frame->value, after);
    return 0;
}

/* from had passed a reference to a worker that is dead, and had no KEPT. It has an entry, unless there was no object
 * for its ENTER, and the answer is on its way. */
static int passed(struct bx_job *job, int from, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    struct bx_rref *rref = bxi_rref_find(job, frame->id);
    int dead = frame->value & BXI_RANK_MASK, generation = frame->value >> BXI_RANK_BITS, closed;

    if (frame->value < 0 || dead >= job->world_size || dead == job->rank || dead == from)
        return BX_E_CORRUPT;
    closed = bxi_rref_closed(job, dead);
    if (generation > job->rrefs->generation[dead])
        return BX_E_CORRUPT;
    if (rref == NULL || rref->entries == NULL || rref->entries[from] == 0)
        return 0;
    if (generation < job->rrefs->generation[dead])
        bxi_rref_add_entries(job, rref, job->world_size, 1);
    else if (is_cut_off(job, dead))
        return 0;
    else
        bxi_rref_add_entries(job, rref, dead, 1);
    if (generation < closed &&
        !(is_open(job, BXI_ROUND_ENTRIES) && is_in_set(job, BXI_ROUND_ENTRIES, dead, generation)))
        begin_round(job, BXI_ROUND_ENTRIES, after);
    return 0;
}

/* ---- a frame ---------------------------------------------------------------------------------------------- */

static int handle(struct bx_job *job, int from, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    switch (frame->op) {
    case BXI_RREF_ENTER:
        return bxi_rref_is_ours(job, frame->id) ? enter(job, from, frame->id, after) : BX_E_CORRUPT;
    case BXI_RREF_LEAVE:
        return bxi_rref_is_ours(job, frame->id) ? leave(job, from, frame, after) : BX_E_CORRUPT;
    case BXI_RREF_PASSED:
        return bxi_rref_is_ours(job, frame->id) ? passed(job, from, frame, after) : BX_E_CORRUPT;
    case BXI_RREF_ENTERED:
        return bxi_rref_id_owner(frame->id) == from ? entered(job, frame, after) : BX_E_CORRUPT;
    case BXI_RREF_KEPT:
        return kept(job, from, frame->id, after);
    case BXI_RREF_ASK:
        return ask(job, from, frame, after);
    case BXI_RREF_ANSWER:
        return answer(job, from, frame, after);
    }
    return BX_E_CORRUPT;
}

int bxi_rref_arrived(struct bx_job *job, int from, const struct bxi_rref_frame *frame)
{
    struct bxi_rref_after after = { .sent = false };
    struct bx_rref *rref = NULL;
    int rc;

    bxi_lock(&job->run->lock);
    if (frame->op < BXI_RREF_ASK && !bxi_rref_is_id(job, frame->id)) {
        bxi_unlock(&job->run->lock);
        return BX_E_CORRUPT;
    }
    if (frame->op == BXI_RREF_ENTERED && (rref = bxi_rref_find(job, frame->id)) != NULL)
        bxi_add(&rref->refs, 1);
    rc = handle(job, from, frame, &after);
    bxi_unlock(&job->run->lock);
    if (rref != NULL) {
        bxi_wake(job->run, rref);
        bxi_lock(&job->run->lock);
        bxi_rref_drop(job, rref, &after);
        bxi_unlock(&job->run->lock);
    }
    bxi_rref_do_after(job, &after);
    return rc;
}

/* ---- a worker is gone -------------------------------------------------------------------------------------- */

static void forget_passer(struct bx_rref *rref, int rank)
{
    for (struct bxi_passer **link = &rref->passers; *link != NULL; link = &(*link)->next) {
        struct bxi_passer *passer = *link;

        if (passer->rank != rank)
            continue;
        *link = passer->next;
        free(passer);
        return;
    }
}

/* Its objects are gone; so are the objects that it was to make. */
static void fail_one(struct bx_job *job, struct bx_rref *rref, int rank, struct bxi_rref_after *after)
{
    forget_passer(rref, rank);
    if (bxi_rref_id_owner(rref->id) == rank) {
        bxi_rref_fail_with_owner(job, rref);
        rref->counted = 0;
        job->rrefs->pending -= rref->entering;
        rref->entering = false;
        tell_passers(job, rref, after);
        bxi_rref_settle(job, rref, after);
    } else if (bxi_rref_is_ours(job, rref->id) && bxi_rref_id_maker(rref->id) == rank && !rref->is_making &&
               bxi_rref_state(rref) == BXI_RREF_TO_COME) {
        bxi_rref_lost_maker(job, rref);
    }
}

static bool has_entries(const struct bx_job *job, int rank)
{
    for (uint32_t i = 0; i < job->rrefs->table_size; i++)
        for (const struct bx_rref *rref = job->rrefs->table[i]; rref != NULL; rref = rref->next)
            if (rref->entries != NULL && rref->entries[rank] > 0)
                return true;
    return false;
}

/* A worker is closed: rounds that are open begin anew, for it may be awaited, and may have had what they are for. Its
 * own entries begin one. */
static void join_rounds(struct bx_job *job, int rank, struct bxi_rref_after *after)
{
    if (is_cut_off(job, rank))
        each(job, drop_entries, rank, after);
    if (is_open(job, BXI_ROUND_ENTRIES) || (!has_left_with_us(job, rank) && has_entries(job, rank)))
        begin_round(job, BXI_ROUND_ENTRIES, after);
    if (is_open(job, BXI_ROUND_LEASES))
        begin_round(job, BXI_ROUND_LEASES, after);
}

void bxi_rref_peer_gone(struct bx_job *job, int rank)
{
    struct bxi_rrefs *rrefs = job->rrefs;
    struct bxi_rref_after after = { .sent = false };
    int32_t whom = rank | (int32_t)rrefs->generation[rank] << BXI_RANK_BITS;

    bxi_lock(&job->run->lock);
    while (rrefs->pins[rank] != NULL) {
        struct bx_rref *rref = rrefs->pins[rank]->rref;

        if (is_for_entry(job, rrefs->pins[rank])) {
            unpin(job, rank, rrefs->pins[rank]);        /* a round drops the entry */
            continue;
        }
        if (bxi_rref_owner_lives(job, rref->id))
            bxi_rref_send(job, bxi_rref_id_owner(rref->id),
                          &(struct bxi_rref_frame){ .op = BXI_RREF_PASSED, .id = rref->id, .value = whom }, &after);
        unpin(job, rank, rrefs->pins[rank]);
        bxi_rref_settle(job, rref, &after);
    }
    each(job, fail_one, rank, &after);
    for (int kind = 0; kind < BXI_ROUND_KINDS; kind++)
        rrefs->asked[kind][rank] = 0;
    join_rounds(job, rank, &after);
    answer_all(job, &after);
    bxi_unlock(&job->run->lock);
    bxi_wake(job->run, NULL);
    bxi_rref_do_after(job, &after);
}

/* ---- the next worker of a rank runs -------------------------------------------------------------------------- */

static void make_older(struct bx_job *job, struct bx_rref *rref, int rank, struct bxi_rref_after *after)
{
    int64_t held = rref->entries != NULL ? rref->entries[rank] : 0;

    (void)after;
    if (held == 0)
        return;
    bxi_rref_add_entries(job, rref, rank, -held);
    bxi_rref_add_entries(job, rref, job->world_size, held);
}

void bxi_rref_peer_joins(struct bx_job *job, int rank, uint8_t generation)
{
    struct bxi_rrefs *rrefs = job->rrefs;

    each(job, make_older, rank, NULL);
    rrefs->generation[rank] = generation;
    rrefs->made[rank] = rrefs->seen[rank] = 0;
    rrefs->unmade[rank] = 0;
    rrefs->opened[rank] = false;
}

/* ---- a worker refuses, or opens its ring ------------------------------------------------------------------- */

void bxi_rref_refused(struct bx_job *job, int rank, uint64_t through_pos)
{
    struct bxi_rref_after after = { .sent = false };

    bxi_lock(&job->run->lock);
    for (struct bxi_pin *pin = job->rrefs->pins[rank], *next; pin != NULL; pin = next) {
        struct bx_rref *rref = pin->rref;

        next = pin->next;
        if (!job->rrefs->ops->is_before(job, rank, pin, through_pos))
            continue;
        if (is_for_entry(job, pin))
            bxi_rref_add_entries(job, rref, rank, -1);
        unpin(job, rank, pin);
        bxi_rref_settle(job, rref, &after);
    }
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}

void bxi_rref_opened(struct bx_job *job, int rank)
{
    bxi_lock(&job->run->lock);
    job->rrefs->opened[rank] = true;
    for (struct bxi_pin *pin = job->rrefs->pins[rank], *next; pin != NULL; pin = next) {
        next = pin->next;
        if (is_for_entry(job, pin))
            unpin(job, rank, pin);
    }
    bxi_unlock(&job->run->lock);
}

/* ---- leases ------------------------------------------------------------------------------------------------- */

void bxi_rref_ask_for_leases(struct bx_job *job)
{
    struct bxi_rref_after after = { .sent = false };

    bxi_lock(&job->run->lock);
    begin_round(job, BXI_ROUND_LEASES, &after);
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}

void bxi_rref_answer_rounds(struct bx_job *job)
{
    struct bxi_rref_after after = { .sent = false };

    bxi_lock(&job->run->lock);
    answer_all(job, &after);
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}

/* ---- the end of the job -------------------------------------------------------------------------------------- */

static void report(struct bx_job *job, struct bx_rref *rref, int unused, struct bxi_rref_after *after)
{
    (void)unused;
    if (rref->entries != NULL)
        bxi_rref_add_entries(job, rref, job->world_size, -(int64_t)rref->entries[job->world_size]);
    for (int rank = 0; rref->entries != NULL && rank < job->world_size; rank++) {
        if (rref->entries[rank] == 0)
            continue;
        if (rref->object != NULL) {
            bxi_counter_add(job, BXI_C_rrefs_leaked, 1);
            bxi_rref_say(after, 1, "worker '%s' still refers to an object of type '%s' of worker '%s', made %.1f s "
                                   "ago; it is destroyed", job->rrefs->ops->name(job, rank), rref->object->type->name,
                         job->name, (double)(bxi_now_ns() - rref->since_ns) / 1e9);
        }
        bxi_rref_add_entries(job, rref, rank, -(int64_t)rref->entries[rank]);
    }
    bxi_rref_settle(job, rref, after);
}

void bxi_rrefs_end(struct bx_job *job)
{
    struct bxi_rref_after after = { .sent = false };

    bxi_lock(&job->run->lock);
    job->rrefs->ended = true;
    each(job, report, 0, &after);
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}
