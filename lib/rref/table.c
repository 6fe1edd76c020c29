/* SPDX-License-Identifier: MIT */
/*
 * References: the table of those that this process has, their counts, and what happens when nothing needs one any more.
 * rref.h has the protocol.
 *
 * A reference is in the table from when its id is known until it is settled. One that the table has is found, and gets
 * another reference, under the lock only; the last one is dropped under the lock. So a reference that is found lives.
 *
 * Any thread. Objects are destroyed without the lock (bxi_rref_do_after).
 */
#include "rref.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t chain_of(uint64_t id, uint32_t size)
{
    return (uint32_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> 40) & (size - 1);
}

/* ---- the table (lock) ------------------------------------------------------------------------------ */

struct bx_rref *bxi_rref_find(struct bx_job *job, uint64_t id)
{
    struct bx_rref *rref;

    if (job->rrefs->table_size == 0)
        return NULL;
    rref = job->rrefs->table[chain_of(id, job->rrefs->table_size)];
    while (rref != NULL && rref->id != id)
        rref = rref->next;
    return rref;
}

static int grow(struct bxi_rrefs *rrefs)
{
    uint32_t size = rrefs->table_size == 0 ? 64 : rrefs->table_size * 2;
    struct bx_rref **table = calloc(size, sizeof(struct bx_rref *));

    if (table == NULL)
        return rrefs->table_size == 0 ? -ENOMEM : 0;        /* the chains get longer */
    for (uint32_t i = 0; i < rrefs->table_size; i++) {
        for (struct bx_rref *rref = rrefs->table[i], *next; rref != NULL; rref = next) {
            struct bx_rref **chain = &table[chain_of(rref->id, size)];

            next = rref->next;
            rref->next = *chain;
            *chain = rref;
        }
    }
    free(rrefs->table);
    rrefs->table = table;
    rrefs->table_size = size;
    return 0;
}

struct bx_rref *bxi_rref_new(struct bx_job *job, uint64_t id)
{
    struct bx_rref *rref = calloc(1, sizeof *rref);

    if (rref == NULL)
        return NULL;
    rref->id = id;
    rref->since_ns = bxi_now_ns();
    rref->parked_end = &rref->parked;
    atomic_init(&rref->state, BXI_RREF_TO_COME);
    atomic_init(&rref->job, job);
    return rref;
}

int bxi_rref_reserve(struct bx_job *job)
{
    return job->rrefs->count >= job->rrefs->table_size ? grow(job->rrefs) : 0;
}

int bxi_rref_insert(struct bx_job *job, struct bx_rref *rref)
{
    struct bxi_rrefs *rrefs = job->rrefs;
    struct bx_rref **chain;

    if (bxi_rref_reserve(job) < 0)
        return -ENOMEM;
    chain = &rrefs->table[chain_of(rref->id, rrefs->table_size)];
    rref->next = *chain;
    *chain = rref;
    rrefs->count++;
    bxi_rref_show(job, rref);
    return 0;
}

bool bxi_rref_make_entries(const struct bx_job *job, struct bx_rref *rref)
{
    if (rref->entries == NULL)
        rref->entries = calloc((size_t)job->world_size + 1, sizeof *rref->entries);
    return rref->entries != NULL;
}

static void take_out(struct bx_job *job, struct bx_rref *rref)
{
    struct bxi_rrefs *rrefs = job->rrefs;
    struct bx_rref **link = &rrefs->table[chain_of(rref->id, rrefs->table_size)];

    while (*link != rref)
        link = &(*link)->next;
    *link = rref->next;
    rrefs->count--;
    bxi_rref_hide(job, rref);
}

/* ---- the end of a reference (lock) -------------------------------------------------------------------- */

static int call_destroy(void *context)
{
    const struct bxi_object *object = context;

    object->type->destroy(object->object);
    return 0;
}

void bxi_rref_say(struct bxi_rref_after *after, int level, const char *format, ...)
{
    struct bxi_rref_said *said = malloc(sizeof *said);
    va_list args;

    if (said == NULL)
        return;
    said->level = level;
    va_start(args, format);
    vsnprintf(said->text, sizeof said->text, format, args);
    va_end(args);
    said->next = NULL;
    if (after->said != NULL)
        after->last_said->next = said;
    else
        after->said = said;
    after->last_said = said;
}

static void log_said(const struct bx_job *job, struct bxi_rref_after *after)
{
    while (after->said != NULL) {
        struct bxi_rref_said *said = after->said;

        after->said = said->next;
        bxi_log(job, said->level, "%s", said->text);
        free(said);
    }
}

/* A destructor may drop the last reference to another object: that one is destroyed when it has returned, so a list of
 * a million objects needs no stack. */
static void destroy_all(struct bxi_object *list)
{
    static _Thread_local struct bxi_object *doomed;
    static _Thread_local bool is_destroying;

    while (list != NULL) {
        struct bxi_object *object = list;

        list = object->next;
        object->next = doomed;
        doomed = object;
    }
    if (is_destroying)
        return;
    is_destroying = true;
    while (doomed != NULL) {
        struct bxi_object *object = doomed;

        doomed = object->next;
        if (object->type->destroy != NULL) {
            bxi_error_enter();
            bxi_no_wait_enter();
            bxi_call_user(call_destroy, object);
            bxi_no_wait_leave();
            bxi_error_leave();
        }
        free(object);
    }
    is_destroying = false;
}

void bxi_rref_do_after(struct bx_job *job, struct bxi_rref_after *after)
{
    log_said(job, after);
    if (after->sent)
        job->rrefs->ops->flush(job);
    if (after->destroy != NULL)
        destroy_all(after->destroy);
    after->destroy = NULL;
    after->sent = false;
    if (after->take_back)
        job->rrefs->ops->take_back(job, after->since_ns);
    after->take_back = false;
}

void bxi_rref_send(struct bx_job *job, int rank, const struct bxi_rref_frame *frame, struct bxi_rref_after *after)
{
    int rc;

    if (job->rrefs->ended || !job->rrefs->ops->is_alive(job, rank))
        return;
    rc = job->rrefs->ops->send(job, rank, frame);
    after->sent = true;
    if (rc < 0)
        bxi_rref_say(after, 0, "a reference of worker '%s' may outlive its last use: nothing can be sent to worker "
                               "'%s': %s", job->name, job->rrefs->ops->name(job, rank), bx_strerror(rc));
}

static void free_rref(struct bx_rref *rref)
{
    free(rref->entries);
    free(rref->text);
    free(rref);
}

static void drop_object(struct bx_rref *rref, struct bxi_rref_after *after)
{
    struct bxi_object *object = rref->object;

    rref->object = NULL;
    if (object == NULL || --object->refs > 0)
        return;
    object->next = after->destroy;
    after->destroy = object;
}

void bxi_rref_settle(struct bx_job *job, struct bx_rref *rref, struct bxi_rref_after *after)
{
    /* Relaxed: the last reference is dropped, and one is added, under the lock. */
    if (bxi_load_relaxed(&rref->refs) > 0 || rref->pins > 0 || rref->entering || rref->entry_sum > 0)
        return;
    if (rref->counted > 0)
        bxi_rref_send(job, bxi_rref_id_owner(rref->id),
                      &(struct bxi_rref_frame){ .op = BXI_RREF_LEAVE, .id = rref->id, .value = (int32_t)rref->counted },
                      after);
    take_out(job, rref);
    if (rref->object != NULL)
        bxi_counter_add(job, BXI_C_rrefs_destroyed, 1);
    if (rref->unmade && bxi_load_relaxed(&rref->heard) == 0)        /* relaxed: the last reference was dropped */
        bxi_rref_say(after, 1, "a reference was released unused, and its object could not be made: %s", rref->text);
    drop_object(rref, after);
    free_rref(rref);
}

void bxi_rref_drop(struct bx_job *job, struct bx_rref *rref, struct bxi_rref_after *after)
{
    if (bxi_add_seq_cst(&rref->refs, (uint32_t)-1) == 1)
        bxi_rref_settle(job, rref, after);
}

void bxi_rref_fail(struct bx_rref *rref, int code, const char *text)
{
    if (bxi_rref_state(rref) == BXI_RREF_FAILED)
        return;
    rref->code = code;
    rref->text = strdup(text != NULL && text[0] != '\0' ? text : bx_strerror(code));
    bxi_rref_set_state(rref, BXI_RREF_FAILED);
}

void bxi_rref_fail_with_owner(struct bx_job *job, struct bx_rref *rref)
{
    int owner = bxi_rref_id_owner(rref->id), code = job->rrefs->ops->why_closed(job, owner);
    char text[256];

    snprintf(text, sizeof text, "worker '%s' (rank %d)%s, which owns the object, %s", job->rrefs->ops->name(job, owner),
             owner, job->rrefs->ops->on_host(job, owner),
             code == BX_E_PEER_DEAD ? "died" : code == BX_E_SHUTDOWN ? "has left the job" : "was cut off");
    bxi_rref_fail(rref, code, text);
}

/* ---- made by this worker ------------------------------------------------------------------------------- */

static int check_type(const struct bx_type *type)
{
    if (type == NULL || type->name == NULL)
        return bx_fail(-EINVAL, "an object needs a type, and the type a name");
    return 0;
}

int bx_rref_create(struct bx_job *job, const struct bx_type *type, void *object, struct bx_rref **rref)
{
    struct bxi_object *holder;
    struct bx_rref *made;
    int rc = bxi_job_check(job);

    if (rc < 0 || (rc = check_type(type)) < 0)
        return rc;
    if (rref == NULL)
        return bxi_null(__func__, "the place for the reference");
    holder = malloc(sizeof *holder);
    made = bxi_rref_new(job, 0);
    if (holder == NULL || made == NULL)
        goto no_memory;
    *holder = (struct bxi_object){ .refs = 1, .type = type, .object = object };
    made->object = holder;
    bxi_store_relaxed(&made->refs, 1);
    bxi_rref_set_state(made, BXI_RREF_THERE);
    bxi_lock(&job->run->lock);
    made->id = bxi_rref_next_id(job, job->rank);
    rc = job->rrefs->made[job->rank] == BXI_RREF_COUNT_MASK ? -EOVERFLOW : bxi_rref_insert(job, made);
    if (rc == 0) {
        job->rrefs->made[job->rank]++;
        bxi_counter_add(job, BXI_C_rrefs_made, 1);
    }
    bxi_unlock(&job->run->lock);
    if (rc < 0)
        goto no_memory;
    *rref = made;
    return 0;

no_memory:
    free(holder);
    free(made);
    return rc == -EOVERFLOW ? bx_fail(rc, "worker '%s' has made all references that it can name", job->name)
                            : bx_fail(-ENOMEM, "no memory for a reference");
}

void bxi_rref_forget_object(struct bx_rref *rref)
{
    free(rref->object);
    rref->object = NULL;
}

/* ---- counts --------------------------------------------------------------------------------------------- */

struct bx_rref *bx_rref_acquire(struct bx_rref *rref)
{
    if (rref != NULL)
        bxi_add(&rref->refs, 1);
    return rref;
}

/* True if a reference other than the last was dropped. */
static bool drop_not_last(struct bx_rref *rref)
{
    uint32_t refs = bxi_load_relaxed(&rref->refs);

    while (refs > 1)
        /* Sequentially consistent: what this thread did with the object comes before the destructor. */
        if (atomic_compare_exchange_weak(&rref->refs, &refs, refs - 1))
            return true;
    return false;
}

void bxi_rref_release(struct bx_rref *rref)
{
    struct bxi_rref_after after = { .sent = false };
    struct bx_job *job;

    if (rref == NULL || drop_not_last(rref))
        return;
    job = atomic_load(&rref->job);
    if (job == NULL) {                          /* it has outlived its job */
        if (bxi_add_seq_cst(&rref->refs, (uint32_t)-1) == 1)
            free_rref(rref);
        return;
    }
    if (bxi_job_is_forked(job))
        return;
    bxi_lock(&job->run->lock);
    bxi_rref_drop(job, rref, &after);
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}

void bx_rref_release(struct bx_rref *rref)
{
    bxi_rref_release(rref);
    bxi_out(0);
}

void bxi_rref_release_all(struct bx_rref *const *rrefs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bxi_rref_release(rrefs[i]);
}

/* ---- questions ------------------------------------------------------------------------------------------ */

int bxi_rref_check(const struct bx_rref *rref, const char *function)
{
    struct bx_job *job;

    if (rref == NULL)
        return bxi_null(function, "the reference");
    job = bxi_rref_job(rref);
    if (job == NULL)
        return bx_fail(BX_E_SHUTDOWN, "the reference has outlived its job");
    if (bxi_job_is_forked(job))
        return bxi_job_check(job);
    if (bxi_rref_state(rref) != BXI_RREF_FAILED)
        return 0;
    bxi_store_relaxed(&((struct bx_rref *)(uintptr_t)rref)->heard, 1);      /* relaxed: read after the last release */
    return bx_fail(rref->code, "%s", rref->text != NULL ? rref->text : bx_strerror(rref->code));
}

int bx_rref_owner(const struct bx_rref *rref)
{
    return rref != NULL ? bxi_rref_id_owner(rref->id) : bxi_null(__func__, "the reference");
}

bool bx_rref_is_owner(const struct bx_rref *rref)
{
    const struct bx_job *job = bxi_rref_job(rref);

    return job != NULL && bxi_rref_id_owner(rref->id) == job->rank;
}

bool bx_rref_is_confirmed(const struct bx_rref *rref)
{
    return rref != NULL && bxi_rref_state(rref) == BXI_RREF_THERE;
}

int bx_rref_local(const struct bx_rref *rref, const struct bx_type *type, void **object)
{
    int rc = bxi_rref_check(rref, __func__);

    if (rc < 0 || (rc = check_type(type)) < 0)
        return rc;
    if (object == NULL)
        return bxi_null(__func__, "the place for the object");
    if (!bx_rref_is_owner(rref))
        return bx_fail(-EREMOTE, "the object is in worker %d; call a method on it, or bx_rref_to_here",
                       bxi_rref_id_owner(rref->id));
    if (bxi_rref_state(rref) == BXI_RREF_TO_COME)
        return bx_fail(-EAGAIN, "the object is not made yet");
    if (rref->object->type != type)
        return bx_fail(BX_E_TYPE, "the object is of type '%s', not '%s'", rref->object->type->name, type->name);
    *object = rref->object->object;
    return 0;
}

struct confirm_waiter {
    struct bxi_waiter waiter;       /* first */
    const struct bx_rref *rref;
};

static bool is_decided(struct bxi_waiter *waiter)
{
    return bxi_rref_state(((struct confirm_waiter *)(void *)waiter)->rref) != BXI_RREF_TO_COME;
}

int bx_rref_wait(struct bx_rref *rref, uint64_t timeout_ns)
{
    struct confirm_waiter confirm = {
        .waiter = { .ready = is_decided, .object = rref, .shown = { .reason = BXI_FOR_FUTURE } },
        .rref = rref,
    };
    struct bx_job *job;
    int rc = bxi_rref_check(rref, __func__);

    if (rc < 0 || bxi_rref_state(rref) == BXI_RREF_THERE)
        return rc;
    job = atomic_load(&rref->job);
    confirm.waiter.deadline_ns = bxi_deadline_ns(timeout_ns);
    rc = bxi_out(bxi_wait(job->run, &confirm.waiter));
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "worker '%s' did not confirm a reference within %.3f s",
                       job->rrefs->ops->name(job, bxi_rref_id_owner(rref->id)), (double)timeout_ns / 1e9);
    if (rc < 0)
        return bx_fail(rc, "waiting for a reference: %s", bx_strerror(rc));
    return bxi_rref_check(rref, __func__);
}

/* ---- the end of the job ----------------------------------------------------------------------------------- */

static void orphan(struct bx_job *job, struct bx_rref *rref, struct bxi_rref_after *after)
{
    if (rref->object != NULL && bxi_load_relaxed(&rref->refs) > 0) {
        bxi_counter_add(job, BXI_C_rrefs_leaked, 1);
        bxi_log(job, 1, "an object of type '%s' is destroyed though worker '%s' itself still refers to it",
                rref->object->type->name, job->name);
    }
    while (rref->passers != NULL) {
        struct bxi_passer *passer = rref->passers;

        rref->passers = passer->next;
        free(passer);
    }
    drop_object(rref, after);
    rref->row = NULL;                           /* the segment goes */
    atomic_store(&rref->job, NULL);
    if (bxi_load_relaxed(&rref->refs) == 0)
        free_rref(rref);
}

static void free_pins(struct bxi_pin **pins)
{
    while (*pins != NULL) {
        struct bxi_pin *pin = *pins;

        *pins = pin->next;
        free(pin);
    }
}

void bxi_rrefs_destroy(struct bx_job *job)
{
    struct bxi_rrefs *rrefs = job->rrefs;
    struct bxi_rref_after after = { .sent = false };

    for (uint32_t i = 0; i < rrefs->table_size; i++) {
        for (struct bx_rref *rref = rrefs->table[i], *next; rref != NULL; rref = next) {
            next = rref->next;
            orphan(job, rref, &after);
        }
    }
    free(rrefs->table);
    rrefs->table = NULL;
    rrefs->table_size = 0;
    free(rrefs->needs);
    for (int rank = 0; rank < job->world_size; rank++)
        free_pins(&rrefs->pins[rank]);
    free_pins(&rrefs->spare_pins);
    bxi_rref_do_after(NULL, &after);
}
