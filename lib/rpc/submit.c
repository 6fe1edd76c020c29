/* SPDX-License-Identifier: MIT */
/*
 * From a call to a record in the callee's ring; submit.h names the stages. Runs in the thread that calls.
 *
 * A call in flight holds one of 1024 slots of its callee. Its id is the slot and the slot's generation. A call that
 * ends before its reply (deadline, cancel) leaves a zombie: the slot stays taken until the late reply arrives. So a
 * callee never has more than 1024 requests of one caller, whatever the caller's deadlines are, and its queue of replies
 * is bounded although no reply is refused.
 */
#include "submit.h"

#include "base/options.h"
#include "mark.h"
#include "nested.h"

#include <errno.h>
#include <stdlib.h>

/* ---- names and options ------------------------------------------------------------------------- */

/* The deadline of the request for which the call is made, if that is earlier. */
BXI_COLD static void inherit_deadline(struct bxi_plan *plan)
{
    uint64_t deadline_ns = plan->made_for->request.deadline_ns, now_ns;

    if (deadline_ns >= plan->deadline_ns)
        return;
    now_ns = bxi_now_ns();
    plan->deadline_ns = deadline_ns;
    plan->timeout_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

void bxi_plan_timeout(struct bxi_plan *plan)
{
    plan->deadline_ns = plan->timeout_ns == BX_FOREVER ? BX_FOREVER : bxi_deadline_ns(plan->timeout_ns);
    if (__builtin_expect(plan->made_for != NULL, 0))
        inherit_deadline(plan);
}

/* Options that few calls have. */
static int take_flags(struct bxi_plan *plan, uint64_t flags)
{
    if (flags & BX_CALL_DETACHED)
        plan->made_for = NULL;
    plan->waits_join = (flags & BX_CALL_WAIT_JOIN) != 0;
    flags &= ~(uint64_t)(BX_CALL_DETACHED | BX_CALL_WAIT_JOIN);
    if (flags != 0)
        return bx_fail(-EINVAL, "bx_call_options.flags has bits 0x%llx that this library does not know",
                       (unsigned long long)flags);
    return 0;
}

BXI_COLD static int take_options(struct bxi_plan *plan, const struct bx_call_options *options)
{
    struct bx_call_options given = { 0 };
    int rc = bxi_options_copy(&given, sizeof given, options, "bx_call_options");

    if (rc < 0)
        return rc;
    plan->no_wait |= given.no_wait;
    if (given.timeout_ns != 0)
        plan->timeout_ns = given.timeout_ns;
    return given.flags != 0 ? take_flags(plan, given.flags) : 0;
}

BXI_COLD static int fail_with_args(const struct bxi_plan *plan)
{
    return bx_fail(plan->args->error, "the arguments for '%s' could not be written: %s",
                   bxi_brief(plan->function).text, bx_strerror(plan->args->error));
}

int bxi_plan(struct bx_job *job, struct bxi_plan *plan, const char *to, const struct bx_call_options *options)
{
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    if ((to == NULL && plan->peer == NULL) || plan->function == NULL)
        return bxi_null("the call", plan->function == NULL ? "the function's name" : "the worker's name");
    plan->no_wait = !bxi_may_wait();
    plan->timeout_ns = job->options.call_timeout_ns;
    plan->made_for = bxi_nested_of(job);
    if (options != NULL && (rc = take_options(plan, options)) < 0)
        return rc;
    if (plan->args != NULL && plan->args->error < 0)
        return fail_with_args(plan);
    if (plan->peer == NULL && (plan->peer = bxi_peer_find(job, to)) == NULL)
        return bxi_no_worker(job, to);
    plan->peer = bxi_join_latest(job, plan->peer);
    bxi_plan_timeout(plan);
    return __builtin_expect(plan->waits_join, 0) ? bxi_join_wait(job, &plan->peer, plan->deadline_ns, plan->no_wait)
                                                 : 0;
}

BXI_COLD static int fail_with_peer(const struct bx_job *job, const struct bxi_peer *peer, int code)
{
    char *text = bxi_peer_text(job, peer, code);

    bx_fail(code, "%s", text != NULL ? text : bx_strerror(code));
    free(text);
    return code;
}

int bxi_resolve(struct bx_job *job, struct bxi_plan *plan)
{
    struct bxi_peer *peer = plan->peer;

    /* Relaxed: set by the handler of SIGBUS. */
    if (bxi_load_relaxed(&job->segment.truncated) != 0)
        return bx_fail(BX_E_CORRUPT, "the segment of worker '%s' itself was truncated", job->name);
    if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE)
        return fail_with_peer(job, peer, peer->close_code);
    plan->function_index = plan->has_aim && plan->rrefs.value ? BXI_FUNCTION_VALUE
                                                              : bxi_function_find(job, peer, plan->function);
    /* Relaxed: set by the handler of SIGBUS, mostly in this thread and just now. */
    if (bxi_load_relaxed(&peer->view.truncated) != 0)
        return bxi_peer_suspect(job, peer, "its segment was truncated");
    if (plan->function_index == BX_E_CORRUPT)
        return bxi_peer_suspect(job, peer, "its function table is nonsense");
    return plan->function_index < 0 ? plan->function_index : 0;
}

/* ---- frame, slot, record ------------------------------------------------------------------------- */

/* The body, if it is not the bytes of the arguments alone. A reference to be made gets its id in the tail. */
BXI_COLD static void put_body(struct bx_job *job, const struct bxi_plan *plan, struct bxi_out *out)
{
    struct bxi_body *body = plan->body;

    bxi_body_put(body, out);
    if (plan->rrefs.makes != NULL)
        bxi_rref_name(job, plan->peer->rank, &plan->rrefs,
                      body->lends ? body->grant.body + body->grant.body_bytes : body->data + body->bytes);
}

static int put_oneway(struct bx_job *job, const struct bxi_plan *plan, struct bxi_out *out)
{
    int rc;

    out->head->id = bxi_call_began_ns(plan->deadline_ns, plan->timeout_ns);
    rc = bxi_peer_send(job, plan->peer, out);
    if (rc < 0)
        return rc;
    bxi_counter_add(job, BXI_C_oneways_sent, 1);
    bxi_trace_sent(job, plan->peer, out->head, plan->traced_ns);
    return 0;
}

static int put_request(struct bx_job *job, const struct bxi_plan *plan, struct bxi_call *call)
{
    struct bxi_peer *peer = plan->peer;
    struct bxi_frame head = { .kind = plan->kind, .flags = plan->flags, .function = (uint16_t)plan->function_index,
                              .deadline_ns = plan->deadline_ns };
    struct bxi_out out = { .head = &head, .body = bx_msg_data(plan->args), .body_bytes = bx_msg_bytes(plan->args),
                           .slot = -1, .may_queue = call != NULL, .own_bell = plan->own_bell };
    int rc;

    if (__builtin_expect(plan->body != NULL, 0))
        put_body(job, plan, &out);
    if (call == NULL)
        return put_oneway(job, plan, &out);
    if ((rc = bxi_slot_take(job, peer, call)) < 0)
        return rc;
    call->function = head.function;
    call->timeout_ns = plan->timeout_ns;
    call->sent_ns = head.function == BXI_FUNCTION_VALUE ? 0 : plan->sent_ns;       /* histograms are of functions */
    if (call->sent_ns != 0)
        head.flags |= BXI_FLAG_TIMED;
    head.id = peer->slots[call->slot].generation << 16 | call->slot;
    out.slot = call->slot;
    /* A synchronous caller watches its deadline itself. */
    rc = bxi_slot_watch(job, peer, call->slot, call->caller == NULL ? plan->deadline_ns : BX_FOREVER);
    if (rc == 0)
        rc = bxi_peer_send(job, peer, &out);
    if (rc < 0) {
        bxi_slot_free(peer, call->slot);
        return rc;
    }
    bxi_call_sent(job, call, &head);
    return 0;
}

/* A call that is made for a request. */
BXI_COLD static int put_nested(struct bx_job *job, const struct bxi_plan *plan, struct bxi_call *call)
{
    int rc = bxi_nested_reserve(plan->made_for);

    if (rc == 0)
        rc = put_request(job, plan, call);
    if (rc < 0 || call == NULL)
        return rc;
    call->inherits = plan->deadline_ns == plan->made_for->request.deadline_ns;
    bxi_nested_add(plan->made_for, call);
    return 0;
}

int bxi_put_request(struct bx_job *job, const struct bxi_plan *plan, struct bxi_call *call)
{
    return __builtin_expect(plan->made_for == NULL, 1) ? put_request(job, plan, call) : put_nested(job, plan, call);
}

/* ---- the lock and the bell ----------------------------------------------------------------------- */

static int submit_once(struct bx_job *job, struct bxi_plan *plan, struct bxi_call *call)
{
    int rc;

    /* A synchronous caller is about to take the role, and its passes ring the callee's bell when that is due. Any
     * other caller rings it now. */
    plan->own_bell = (call == NULL || call->caller == NULL) && !bxi_is_driving(job->run);
    bxi_lock(&job->run->lock);
    rc = bxi_ending_may_send(job);
    if (rc == 0)
        rc = bxi_resolve(job, plan);
    if (rc == 0)
        rc = bxi_put_request(job, plan, call);
    if (rc == 0 && plan->own_bell)
        bxi_bell_own(job, plan->peer);
    bxi_unlock(&job->run->lock);
    if (rc == 0 && plan->own_bell)
        bxi_bell_look_unlocked(job, plan->peer);
    return rc;
}

/* ---- no room --------------------------------------------------------------------------------------- */

struct room_waiter {
    struct bxi_waiter waiter;   /* first */
    struct bx_job *job;
    struct bxi_peer *peer;
    const struct bxi_grant *grant;
    struct bxi_waiting *made_for;
    bool oneway;
};

/* What the call lends, or NULL. */
static const struct bxi_grant *grant_of(const struct bxi_plan *plan)
{
    return plan->body != NULL && plan->body->lends ? &plan->body->grant : NULL;
}

static bool slot_is_free(struct bxi_waiter *waiter)
{
    struct room_waiter *room = (struct room_waiter *)(void *)waiter;
    bool ready;

    if (room->grant != NULL)
        bxi_grants_reclaim(room->job);
    bxi_lock(&room->job->run->lock);
    ready = room->oneway ? room->peer->queue_head == NULL && room->peer->wanted_bytes == 0
                         : room->peer->in_flight < BXI_CALLS_MAX;
    if (room->grant != NULL)
        ready = ready && bxi_grant_is_allowed(room->job, room->peer->lend, room->grant);
    ready = ready || bxi_load_relaxed(&room->peer->state) != BXI_PEER_ALIVE ||
            (room->made_for != NULL && bxi_nested_is_over(room->made_for));
    bxi_unlock(&room->job->run->lock);
    return ready;
}

static_assert(BXI_CALLS_MAX == 1024, "the sentences below name it");

/* Why a submission got -EAGAIN: part of a sentence. */
static const char *lacked(struct bx_job *job, const struct bxi_plan *plan, bool oneway)
{
    const struct bxi_grant *grant = grant_of(plan);
    bool loans;

    bxi_lock(&job->run->lock);
    loans = grant != NULL && !bxi_grant_is_allowed(job, plan->peer->lend, grant);
    bxi_unlock(&job->run->lock);
    return loans ? "as much as may be is on loan" : oneway ? "the ring is full" : "1024 calls are in flight";
}

static int wait_for_room(struct bx_job *job, const struct bxi_plan *plan, bool oneway)
{
    struct room_waiter room = {
        .waiter = { .ready = slot_is_free, .object = plan->peer, .deadline_ns = plan->deadline_ns,
                    .shown = { .reason = BXI_FOR_ROOM, .to = (int16_t)plan->peer->rank } },
        .job = job,
        .peer = plan->peer,
        .grant = grant_of(plan),
        .made_for = plan->made_for,
        .oneway = oneway,
    };
    int rc;

    if (room.grant != NULL)
        bxi_grants_want(job);
    if (plan->made_for != NULL)
        bxi_add(&plan->made_for->room_waits, 1);
    rc = bxi_wait(job->run, &room.waiter);
    if (plan->made_for != NULL)
        bxi_add(&plan->made_for->room_waits, (uint32_t)-1);
    if (room.grant != NULL)
        bxi_grants_unwant(job);
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "%s to worker '%s', and it stayed so for %.3f s; the worker is stopped or too slow",
                       lacked(job, plan, oneway), plan->peer->name, (double)plan->timeout_ns / 1e9);
    if (rc == BX_E_INTERRUPTED)
        return bx_fail(rc, "bx_job_interrupt ended a wait for room: %s to worker '%s'", lacked(job, plan, oneway),
                       plan->peer->name);
    return rc;
}

/* The call got -EAGAIN. */
BXI_COLD static int submit_again(struct bx_job *job, struct bxi_plan *plan, struct bxi_call *call)
{
    int rc;

    while (!plan->no_wait) {
        rc = wait_for_room(job, plan, call == NULL);
        if (rc < 0 || (rc = submit_once(job, plan, call)) != -EAGAIN)
            return rc;
    }
    bxi_poke(job->run);                 /* replies that no thread had to read yet may free slots */
    rc = submit_once(job, plan, call);
    return rc != -EAGAIN ? rc : bx_fail(-EAGAIN, "%s to worker '%s'", lacked(job, plan, call == NULL),
                                        plan->peer->name);
}

static inline int submit_or_wait(struct bx_job *job, struct bxi_plan *plan, struct bxi_call *call)
{
    int rc = submit_once(job, plan, call);

    return __builtin_expect(rc != -EAGAIN, 1) ? rc : submit_again(job, plan, call);
}

/* ---- a body that is more than the bytes of the arguments ------------------------------------------- */

BXI_COLD static int submit_body(struct bx_job *job, struct bxi_plan *plan, struct bxi_call *call)
{
    struct bxi_body body;
    int rc;

    if (!plan->has_aim)
        plan->rrefs = (struct bxi_rref_out){ .count = 0 };
    rc = bxi_body_make(job, plan->peer, plan->args, &plan->rrefs, &body);
    if (rc < 0)
        return rc;
    /* cppcheck-suppress autoVariables; taken out again below */
    plan->body = &body;
    rc = submit_or_wait(job, plan, call);
    plan->body = NULL;
    bxi_body_drop(&body);
    return rc;
}

int bxi_submit(struct bx_job *job, struct bxi_plan *plan, struct bxi_call *call)
{
    return __builtin_expect(!plan->has_aim && bxi_msg_is_plain(plan->args), 1) ? submit_or_wait(job, plan, call)
                                                                               : submit_body(job, plan, call);
}
