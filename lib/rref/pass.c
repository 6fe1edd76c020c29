/* SPDX-License-Identifier: MIT */
/*
 * References in messages: the tail of a frame, what the sender counts when the frame is out, and what the receiver
 * makes of it. rref.h has the protocol.
 *
 * The sender counts under the lock, in the section that puts the frame into the ring or its queue (bxi_rref_sent); all
 * memory for that was taken before (bxi_rref_prepare). The receiver, the role, takes what a frame brings before it
 * decides what becomes of the frame; a request that is refused afterwards drops its references as any other.
 */
#include "rref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the tail ---------------------------------------------------------------------------------------- */

static unsigned char *put_id(unsigned char *to, const struct bx_rref *rref)
{
    memcpy(to, &rref->id, 8);
    return to + 8;
}

void bxi_rref_write_tail(const struct bxi_rref_out *out, void *end)
{
    struct bxi_rref_tail tail = {
        .count = (uint32_t)out->count,
        .flags = (uint8_t)((out->makes != NULL ? BXI_RREF_MAKES : 0) | (out->target != NULL ? BXI_RREF_TARGET : 0) |
                           (out->value ? BXI_RREF_VALUE : 0)),
    };
    unsigned char *to = (unsigned char *)end - bxi_rref_tail_bytes(out);

    if (out->makes != NULL)
        to = put_id(to, out->makes);
    if (out->target != NULL)
        to = put_id(to, out->target);
    for (size_t i = 0; i < out->count; i++)
        to = put_id(to, out->rrefs[i]);
    memcpy(to, &tail, sizeof tail);
}

/* ---- the sender (lock) --------------------------------------------------------------------------------- */

void bxi_rref_name(struct bx_job *job, int owner, const struct bxi_rref_out *out, void *end)
{
    out->makes->id = bxi_rref_next_id(job, owner);
    put_id((unsigned char *)end - bxi_rref_tail_bytes(out), out->makes);
}

static int reserve_pins(struct bxi_rrefs *rrefs, uint32_t count)
{
    while (rrefs->spare_pin_count < count) {
        struct bxi_pin *made = malloc(sizeof *made);

        if (made == NULL)
            return -ENOMEM;
        made->next = rrefs->spare_pins;
        rrefs->spare_pins = made;
        rrefs->spare_pin_count++;
    }
    return 0;
}

int bxi_rref_prepare(struct bx_job *job, int to, const struct bxi_rref_out *out)
{
    uint32_t pins = 0;

    /* The owner has died since the caller looked, and its rank is taken again. */
    if (out->target != NULL && !bxi_rref_is_of(job, to, out->target->id))
        return bxi_rref_check(out->target, "a call on an object");
    if (out->makes != NULL && job->rrefs->made[to] == BXI_RREF_COUNT_MASK)
        return bx_fail(-EOVERFLOW, "worker '%s' has made all objects in worker '%s' that it can name", job->name,
                       job->rrefs->ops->name(job, to));
    if (out->makes != NULL && bxi_rref_reserve(job) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < out->count; i++) {
        struct bx_rref *rref = out->rrefs[i];
        bool ours = bxi_rref_is_ours(job, rref->id);

        if (to == job->rank || bxi_rref_is_of(job, to, rref->id))
            continue;
        if (ours && !bxi_rref_make_entries(job, rref))
            return -ENOMEM;
        pins += !ours || !job->rrefs->opened[to];
    }
    return reserve_pins(job->rrefs, pins);
}

/* Appended: KEPTs come about in the order of the messages, so the search for a pin is short. Nothing bounds the list
 * but the references for which KEPT is missing: when a worker that was stopped went on, 10,000 KEPTs took 22 to 107 ms,
 * and 360 to 700 ms with the newest pin first. */
static void pin(struct bx_job *job, int to, const struct bxi_pin *pin)
{
    struct bxi_rrefs *rrefs = job->rrefs;
    struct bxi_pin *made = rrefs->spare_pins, *last = rrefs->last_pin[to];

    rrefs->spare_pins = made->next;
    rrefs->spare_pin_count--;
    *made = *pin;
    made->prev = last;
    if (last != NULL)
        last->next = made;
    else
        rrefs->pins[to] = made;
    rrefs->last_pin[to] = made;
}

static void count_sent(struct bx_job *job, int to, const struct bxi_pin *message)
{
    struct bx_rref *rref = message->rref;

    if (to == job->rank) {
        bxi_add(&rref->refs, 1);
    } else if (bxi_rref_is_ours(job, rref->id)) {
        bxi_rref_add_entries(job, rref, to, 1);
        if (!job->rrefs->opened[to])
            pin(job, to, message);
    } else if (!bxi_rref_is_of(job, to, rref->id)) {
        pin(job, to, message);
        rref->pins++;
        job->rrefs->pending++;
    }
}

void bxi_rref_sent(struct bx_job *job, int to, const struct bxi_rref_out *out, uint64_t call, uint64_t end_pos)
{
    if (out->makes != NULL) {
        job->rrefs->made[to]++;
        bxi_counter_add(job, BXI_C_rrefs_made, 1);
        if (to == job->rank)
            bxi_add(&out->makes->refs, 1);
        else
            out->makes->counted = 1;
        bxi_rref_insert(job, out->makes);
    }
    if (out->target != NULL)
        bxi_store_relaxed(&out->target->heard, 1);          /* relaxed, as below: by the call's own error */
    if (out->target != NULL && to == job->rank)
        bxi_add(&out->target->refs, 1);
    for (size_t i = 0; i < out->count; i++)
        bxi_store_relaxed(&out->rrefs[i]->heard, 1);        /* relaxed: by those that the message goes to */
    for (size_t i = 0; i < out->count; i++)
        count_sent(job, to, &(struct bxi_pin){ .rref = out->rrefs[i], .call = call, .end_pos = end_pos });
}

/* ---- the receiver (role; lock) -------------------------------------------------------------------------- */

static const char no_memory[] = "no memory for the references of the call that was to make the object";

/* One that is not in the table: it is put there, with no references. NULL: no memory. */
static struct bx_rref *find_or_add(struct bx_job *job, uint64_t id)
{
    struct bx_rref *rref = bxi_rref_find(job, id);

    if (rref != NULL)
        return rref;
    rref = bxi_rref_new(job, id);
    if (rref != NULL && bxi_rref_insert(job, rref) < 0) {
        free(rref);
        return NULL;
    }
    return rref;
}

/* It is no object that is to come. Of each maker at most BXI_RREF_UNSEEN_MAX requests can be on their way, so whoever
 * names ids that nobody made gets no more memory than for those. */
static bool is_gone(const struct bx_job *job, uint64_t id)
{
    uint64_t count = id & BXI_RREF_COUNT_MASK, seen = job->rrefs->seen[bxi_rref_id_maker(id)];

    return bxi_rref_id_maker(id) == job->rank || !bxi_rref_is_made_by(job, bxi_rref_id_maker(id), id) ||
           count <= seen || count > seen + BXI_RREF_UNSEEN_MAX;
}

bool bxi_rref_is_forged(const struct bx_job *job, int from, uint64_t id)
{
    return from != job->rank && bxi_rref_is_made_by(job, from, id) &&
           (id & BXI_RREF_COUNT_MASK) > job->rrefs->seen[from];
}

/* An id that this worker would have made, and has not. Whoever passed it may have been passed it. */
static bool was_never_made(const struct bx_job *job, uint64_t id)
{
    int owner = bxi_rref_id_owner(id);

    return bxi_rref_is_made_by(job, job->rank, id) && bxi_rref_is_of(job, owner, id) &&
           (id & BXI_RREF_COUNT_MASK) > job->rrefs->made[owner];
}

struct bx_rref *bxi_rref_of_ours(struct bx_job *job, uint64_t id)
{
    struct bx_rref *rref = bxi_rref_find(job, id);
    bool maker_lives;

    if (rref != NULL)
        return rref;
    rref = find_or_add(job, id);
    if (rref == NULL)
        return NULL;
    maker_lives = job->rrefs->ops->is_alive(job, bxi_rref_id_maker(id));
    if (is_gone(job, id))
        bxi_rref_fail(rref, BX_E_NO_OBJECT, NULL);
    else if (!maker_lives)
        bxi_rref_lost_maker(job, rref);
    return rref;
}

/* NULL: no memory. */
static struct bxi_passer *passer_of(struct bx_rref *rref, int rank)
{
    struct bxi_passer *passer = rref->passers;

    while (passer != NULL && passer->rank != rank)
        passer = passer->next;
    if (passer != NULL || (passer = calloc(1, sizeof *passer)) == NULL)
        return passer;
    passer->rank = rank;
    passer->next = rref->passers;
    return rref->passers = passer;
}

/* False: no memory, and nothing was counted or sent. */
static bool is_passed(struct bx_job *job, int from, struct bx_rref *rref, struct bxi_rref_after *after)
{
    bool enters = rref->counted == 0 && !rref->entering && bxi_rref_state(rref) != BXI_RREF_FAILED;
    int owner = bxi_rref_id_owner(rref->id);
    struct bxi_passer *passer;

    if (enters && !bxi_rref_owner_lives(job, rref->id)) {
        bxi_rref_fail_with_owner(job, rref);
        enters = false;
    }
    if (!enters && !rref->entering) {
        bxi_rref_send(job, from, &(struct bxi_rref_frame){ .op = BXI_RREF_KEPT, .id = rref->id }, after);
        return true;
    }
    passer = passer_of(rref, from);
    if (passer == NULL)
        return false;
    passer->count++;
    if (!enters)
        return true;
    bxi_counter_add(job, BXI_C_rrefs_entered, 1);
    bxi_rref_send(job, owner, &(struct bxi_rref_frame){ .op = BXI_RREF_ENTER, .id = rref->id }, after);
    rref->entering = true;
    job->rrefs->pending++;
    rref->counted = 1;
    return true;
}

/* There is no memory for a reference of a message: what its sender counted is undone. */
static void refuse(struct bx_job *job, int from, uint64_t id, struct bxi_rref_after *after)
{
    if (from == job->rank)
        bxi_rref_drop(job, bxi_rref_find(job, id), after);      /* the frame's */
    else if (bxi_rref_is_of(job, from, id))
        bxi_rref_send(job, from, &(struct bxi_rref_frame){ .op = BXI_RREF_LEAVE, .id = id, .value = 1 }, after);
    else if (!bxi_rref_is_ours(job, id))
        bxi_rref_send(job, from, &(struct bxi_rref_frame){ .op = BXI_RREF_KEPT, .id = id }, after);
}

/* The reference, with one more; NULL: no memory, and it is refused. */
static struct bx_rref *take(struct bx_job *job, int from, uint64_t id, struct bxi_rref_after *after)
{
    bool ours = bxi_rref_is_ours(job, id);
    struct bx_rref *rref;

    if (from == job->rank)
        return bxi_rref_find(job, id);          /* the frame has a reference */
    if (ours)
        rref = bxi_rref_of_ours(job, id);
    else
        rref = find_or_add(job, id);
    if (rref == NULL) {
        refuse(job, from, id, after);
        return NULL;
    }
    bxi_add(&rref->refs, 1);
    if (was_never_made(job, id))
        bxi_rref_fail(rref, BX_E_NO_OBJECT, NULL);      /* a use of it would cut this worker off */
    if (bxi_rref_is_of(job, from, id)) {
        /* Its maker waits for the answer to its request. One that has dropped the reference, and gets it back, has
         * had the answer. */
        if (bxi_rref_state(rref) == BXI_RREF_TO_COME &&
            (!bxi_rref_is_made_by(job, job->rank, id) || rref->counted == 0))
            bxi_rref_set_state(rref, BXI_RREF_THERE);
        if (++rref->counted == BXI_RREF_COUNTED_MAX) {
            bxi_rref_send(job, from, &(struct bxi_rref_frame){ .op = BXI_RREF_LEAVE, .id = id,
                                                               .value = BXI_RREF_COUNTED_MAX - 1 }, after);
            rref->counted = 1;
        }
    } else if (!ours && !is_passed(job, from, rref, after)) {
        bxi_rref_drop(job, rref, after);
        refuse(job, from, id, after);
        return NULL;
    }
    return rref;
}

/* There is no memory for the object that a request makes, or for its maker's entry. */
static void refuse_makes(struct bx_job *job, int from, uint64_t id, struct bxi_rref_after *after)
{
    struct bx_rref *rref = bxi_rref_find(job, id);

    if (from != job->rank) {
        job->rrefs->seen[from] = id & BXI_RREF_COUNT_MASK;
        job->rrefs->unmade[from]++;
    }
    if (rref == NULL)
        return;
    bxi_rref_made(job, rref, -ENOMEM, no_memory, NULL);
    if (from == job->rank)
        bxi_rref_drop(job, rref, after);
    else
        bxi_rref_settle(job, rref, after);
}

/* The request that makes an object has come: its maker has an entry. NULL: no memory, and it is refused. */
static struct bx_rref *take_makes(struct bx_job *job, int from, uint64_t id, struct bxi_rref_after *after)
{
    struct bx_rref *rref;

    if (from == job->rank) {
        rref = bxi_rref_find(job, id);
        if (rref != NULL)
            rref->is_making = true;
        return rref;
    }
    job->rrefs->seen[from] = id & BXI_RREF_COUNT_MASK;
    rref = find_or_add(job, id);
    if (rref == NULL || !bxi_rref_make_entries(job, rref)) {
        refuse_makes(job, from, id, after);
        return NULL;
    }
    rref->is_making = true;
    bxi_rref_add_entries(job, rref, from, 1);
    bxi_add(&rref->refs, 1);
    return rref;
}

static bool is_valid(const struct bx_job *job, int from, const struct bxi_rref_tail *tail, const uint64_t *ids)
{
    size_t at = 0;

    if ((tail->flags & BXI_RREF_MAKES) && (tail->flags & BXI_RREF_TARGET) && ids[0] == ids[1])
        return false;                   /* it would wait for itself */
    if (tail->flags & BXI_RREF_MAKES) {
        uint64_t id = ids[at++];

        if (!bxi_rref_is_id(job, id) || !bxi_rref_is_ours(job, id) || !bxi_rref_is_made_by(job, from, id) ||
            (from != job->rank && (id & BXI_RREF_COUNT_MASK) <= job->rrefs->seen[from]))
            return false;
    }
    if ((tail->flags & BXI_RREF_TARGET) &&
        (!bxi_rref_is_id(job, ids[at]) || !bxi_rref_is_ours(job, ids[at]) || bxi_rref_is_forged(job, from, ids[at])))
        return false;
    at += (tail->flags & BXI_RREF_TARGET) != 0;
    for (uint32_t i = 0; i < tail->count; i++)
        if (!bxi_rref_is_id(job, ids[at + i]))
            return false;
    return true;
}

static size_t id_count(const struct bxi_rref_tail *tail)
{
    return tail->count + ((tail->flags & BXI_RREF_MAKES) != 0) + ((tail->flags & BXI_RREF_TARGET) != 0);
}

/* The ids before a tail lie in so many bytes; and the flags make sense. */
static bool fits(const struct bxi_rref_tail *tail, size_t bytes)
{
    return tail->count <= BX_RREFS_MAX && id_count(tail) > 0 && id_count(tail) * 8 <= bytes &&
           (tail->flags & ~(BXI_RREF_MAKES | BXI_RREF_TARGET | BXI_RREF_VALUE)) == 0 &&
           (tail->flags & (BXI_RREF_TARGET | BXI_RREF_VALUE)) != BXI_RREF_VALUE;
}

/* Lock. False: no memory for one of them. */
static bool take_all(struct bx_job *job, int from, const struct bxi_rref_tail *tail, const uint64_t *ids,
                     struct bxi_rref_in *in, struct bxi_rref_after *after)
{
    bool complete = true;

    if (tail->flags & BXI_RREF_MAKES)
        complete &= (in->makes = take_makes(job, from, *ids++, after)) != NULL;
    if (tail->flags & BXI_RREF_TARGET) {
        in->target = from == job->rank ? bxi_rref_find(job, *ids) : bxi_rref_of_ours(job, *ids);
        if (in->target != NULL && from != job->rank)
            bxi_add(&in->target->refs, 1);
        complete &= in->target != NULL;
        ids++;
    }
    for (uint32_t i = 0; i < tail->count; i++) {
        struct bx_rref *rref = take(job, from, ids[i], after);

        if (rref != NULL)
            in->rrefs[in->count++] = rref;
    }
    return complete && in->count == tail->count;
}

static int take_tail(const void *body, size_t *body_bytes, struct bxi_rref_tail *tail)
{
    if (*body_bytes < sizeof *tail)
        return BX_E_CORRUPT;
    memcpy(tail, (const unsigned char *)body + *body_bytes - sizeof *tail, sizeof *tail);
    if (!fits(tail, *body_bytes - sizeof *tail))
        return BX_E_CORRUPT;
    *body_bytes -= sizeof *tail + id_count(tail) * 8;
    return 0;
}

/* The tail with its ids. */
static int take_ids(const void *body, size_t *body_bytes, struct bxi_rref_tail *tail, uint64_t ids[BX_RREFS_MAX + 2])
{
    if (take_tail(body, body_bytes, tail) < 0)
        return BX_E_CORRUPT;
    memcpy(ids, (const unsigned char *)body + *body_bytes, id_count(tail) * 8);
    return 0;
}

int bxi_rref_skip(const void *body, size_t *body_bytes)
{
    struct bxi_rref_tail tail;

    return take_tail(body, body_bytes, &tail);
}

/* The request that makes it goes without an answer: its caller is cut off. */
static void never_made(struct bx_rref *makes)
{
    struct bx_job *job = atomic_load(&makes->job);
    bool was_making;

    if (job == NULL)
        return;
    bxi_lock(&job->run->lock);
    was_making = makes->is_making;
    if (was_making)
        bxi_rref_made(job, makes, BX_E_CORRUPT, BXI_RREF_NO_MAKER, NULL);
    bxi_unlock(&job->run->lock);
    if (was_making)
        bxi_wake(job->run, makes);
}

static void drop_taken(const struct bxi_rref_in *in)
{
    if (in->makes != NULL)
        never_made(in->makes);
    bxi_rref_release_all(in->rrefs, in->count);
    bxi_rref_release(in->target);
    bxi_rref_release(in->makes);
}

void bxi_rref_in_release(struct bxi_rref_in *in)
{
    if (in == NULL)
        return;
    drop_taken(in);
    free(in);
}

int bxi_rref_open(struct bx_job *job, int from, const void *body, size_t *body_bytes, struct bxi_rref_in **in)
{
    struct bx_rref *rrefs[BX_RREFS_MAX];
    struct bxi_rref_in taken = { .rrefs = rrefs }, *made;
    struct bxi_rref_after after = { .sent = false };
    struct bxi_rref_tail tail;
    uint64_t ids[BX_RREFS_MAX + 2];
    bool complete;

    if (take_ids(body, body_bytes, &tail, ids) < 0)
        return BX_E_CORRUPT;
    made = malloc(sizeof *made + tail.count * sizeof *rrefs);
    bxi_lock(&job->run->lock);
    if (!is_valid(job, from, &tail, ids)) {
        bxi_unlock(&job->run->lock);
        free(made);
        return BX_E_CORRUPT;
    }
    complete = take_all(job, from, &tail, ids, &taken, &after) && made != NULL;
    if (!complete && taken.makes != NULL)
        bxi_rref_made(job, taken.makes, -ENOMEM, no_memory, NULL);
    bxi_unlock(&job->run->lock);
    if (!complete)
        bxi_wake(job->run, NULL);
    bxi_rref_do_after(job, &after);
    if (!complete) {
        drop_taken(&taken);
        free(made);
        return -ENOMEM;
    }
    *made = taken;
    made->value = (tail.flags & BXI_RREF_VALUE) != 0;
    made->rrefs = memcpy(made + 1, rrefs, taken.count * sizeof *rrefs);
    *in = made;
    return 0;
}

int bxi_rref_drop_request(struct bx_job *job, int from, const void *body, size_t body_bytes, int code)
{
    struct bxi_rref_after after = { .sent = false };
    struct bx_rref *makes = NULL;
    struct bxi_rref_tail tail;
    uint64_t ids[BX_RREFS_MAX + 2];
    bool valid;

    if (take_ids(body, &body_bytes, &tail, ids) < 0)
        return BX_E_CORRUPT;
    bxi_lock(&job->run->lock);
    valid = is_valid(job, from, &tail, ids);
    if (valid && (tail.flags & BXI_RREF_MAKES) && (makes = take_makes(job, from, ids[0], &after)) != NULL) {
        makes->is_making = false;
        if (code < 0)
            bxi_rref_made(job, makes, code, "the call that was to make the object was refused", NULL);
        bxi_rref_drop(job, makes, &after);
    }
    bxi_unlock(&job->run->lock);
    if (makes != NULL)
        bxi_wake(job->run, NULL);
    bxi_rref_do_after(job, &after);
    return valid ? 0 : BX_E_CORRUPT;
}

void bxi_rref_unread(struct bx_job *job, const void *body, size_t body_bytes)
{
    struct bxi_rref_after after = { .sent = false };
    struct bxi_rref_tail tail;
    uint64_t ids[BX_RREFS_MAX + 2];

    if (take_ids(body, &body_bytes, &tail, ids) < 0)
        return;
    bxi_lock(&job->run->lock);
    for (size_t i = 0; i < id_count(&tail); i++)
        bxi_rref_drop(job, bxi_rref_find(job, ids[i]), &after);
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}

/* ---- an object is made (lock) ---------------------------------------------------------------------------- */

int bxi_rref_made(struct bx_job *job, struct bx_rref *makes, int code, const char *text, struct bx_rref *object)
{
    struct bxi_waiting *parked = makes->parked;

    if (code >= 0 && (object == NULL || !bxi_rref_is_ours(job, object->id) || object->object == NULL)) {
        text = "its reply holds no reference to an object of its worker";
        code = BX_E_HANDLER;
    }
    if (code < 0) {
        bxi_rref_fail(makes, code, text);
    } else if (bxi_rref_state(makes) == BXI_RREF_TO_COME) {
        makes->object = object->object;
        makes->object->refs++;
        bxi_rref_set_state(makes, BXI_RREF_THERE);
    }
    makes->is_making = false;
    makes->parked = NULL;
    makes->parked_end = &makes->parked;
    if (parked != NULL)
        job->rrefs->ops->unpark(job, parked);
    return code;
}

void bxi_rref_lost_maker(struct bx_job *job, struct bx_rref *makes)
{
    bxi_rref_made(job, makes, job->rrefs->ops->why_closed(job, bxi_rref_id_maker(makes->id)), BXI_RREF_NO_MAKER, NULL);
}
