/* SPDX-License-Identifier: MIT */
/*
 * Calls: from bx_rpc_* to a frame in the callee's ring. call_end.c has the way from a reply to a future. Runs in the
 * thread that calls.
 *
 * A call in flight holds one of 1024 slots of its callee. Its id is the slot and the slot's generation. A call that
 * ends before its reply (deadline, cancel) leaves a zombie: the slot stays taken until the late reply arrives. So a
 * callee never has more than 1024 requests of one caller, whatever the caller's deadlines are, and its queue of replies
 * is bounded although no reply is refused.
 *
 * A synchronous call lies on its caller's stack, and allocates nothing but its reply. The thread that takes a call out
 * of its slot, under the lock, completes it; no other thread touches it from then on.
 */
#include "base/options.h"
#include "mark.h"
#include "nested.h"
#include "straight.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

struct request_plan {           /* a call's arguments, checked */
    struct bxi_peer *peer;
    const char *function;
    const struct bx_msg *args;
    struct bxi_grant *grant;        /* what args lend; NULL if they lend nothing */
    uint64_t timeout_ns;
    uint64_t deadline_ns;
    uint64_t sent_ns;               /* if the call is measured */
    uint64_t traced_ns;             /* if it is a one-way call, and traced: when the program called */
    struct bxi_rref_out rrefs;      /* the references of args, and what the call is for */
    struct bxi_waiting *made_for;   /* the request for which it is made, or NULL */
    unsigned char *body;            /* malloc'ed: the bytes of args and what comes behind them, if anything does */
    size_t body_bytes;
    bool no_wait;
    bool waits_join;                /* BX_CALL_WAIT_JOIN */
    uint8_t kind;
    uint8_t flags;
};

/* ---- sending ----------------------------------------------------------------------------------- */

/* The references of the arguments; the body with its tail is made later. */
static int plan_rrefs(struct bx_job *job, struct request_plan *out)
{
    out->rrefs.rrefs = out->args != NULL ? out->args->rrefs : NULL;
    out->rrefs.count = bx_msg_rrefs(out->args);
    for (size_t i = 0; i < out->rrefs.count; i++)
        if (atomic_load(&out->rrefs.rrefs[i]->job) != job)
            return bx_fail(-EINVAL, "the arguments for '%s' hold a reference of another job, or of one that has ended",
                           bxi_brief(out->function).text);
    return 0;
}

/* The deadline of the request for which the call is made, if that is earlier. Not inlined: most calls are for none. */
__attribute__((noinline)) static void inherit_deadline(struct request_plan *plan)
{
    uint64_t deadline_ns = plan->made_for->request.deadline_ns, now_ns;

    if (deadline_ns >= plan->deadline_ns)
        return;
    now_ns = bxi_now_ns();
    plan->deadline_ns = deadline_ns;
    plan->timeout_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

static inline void begin_timeout(struct request_plan *plan)
{
    plan->deadline_ns = plan->timeout_ns == BX_FOREVER ? BX_FOREVER : bxi_deadline_ns(plan->timeout_ns);
    if (__builtin_expect(plan->made_for != NULL, 0))
        inherit_deadline(plan);
}

/* Options that few calls have. */
static int take_flags(struct request_plan *plan, uint64_t flags)
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

static int plan(struct bx_job *job, struct request_plan *out, const char *to,
                const struct bx_call_options *options)
{
    struct bx_call_options given = { 0 };
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    if ((to == NULL && out->peer == NULL) || out->function == NULL)
        return bxi_null("the call", out->function == NULL ? "the function's name" : "the worker's name");
    if ((rc = bxi_options_copy(&given, sizeof given, BXI_CALL_OPTIONS_0_1, options, "bx_call_options")) < 0)
        return rc;
    if (out->args != NULL && out->args->error < 0)
        return bx_fail(out->args->error, "the arguments for '%s' could not be written: %s",
                       bxi_brief(out->function).text, bx_strerror(out->args->error));
    if (out->args != NULL && out->args->rref_count > 0 && (rc = plan_rrefs(job, out)) < 0)
        return rc;
    if (out->peer == NULL)
        out->peer = bxi_peer_find(job, to);
    if (out->peer == NULL)
        return bx_fail(BX_E_NO_WORKER, "the job '%s' has no worker '%s'", job->job_name, bxi_brief(to).text);
    out->no_wait = given.no_wait || !bxi_may_wait();
    out->timeout_ns = given.timeout_ns != 0 ? given.timeout_ns : job->options.call_timeout_ns;
    out->made_for = bxi_nested_in();
    if (__builtin_expect(given.flags != 0, 0) && (rc = take_flags(out, given.flags)) < 0)
        return rc;
    begin_timeout(out);
    return __builtin_expect(out->waits_join, 0) ? bxi_join_wait(job, &out->peer, out->deadline_ns, out->no_wait) : 0;
}

static int set_deadline(struct bx_job *job, struct bxi_peer *peer, uint16_t slot, uint64_t deadline_ns)
{
    peer->slots[slot].deadline_ns = deadline_ns;
    if (deadline_ns == BX_FOREVER || (peer->timer.heap_index != 0 && peer->timer.at_ns <= deadline_ns))
        return 0;
    peer->timer.fire = bxi_calls_due;
    return bxi_timer_set(job->run, &peer->timer, deadline_ns);
}

static int fail_with_peer(const struct bx_job *job, const struct bxi_peer *peer, int code)
{
    char *text = bxi_peer_text(job, peer, code);

    bx_fail(code, "%s", text != NULL ? text : bx_strerror(code));
    free(text);
    return code;
}

/* The body, if it is not the bytes of the arguments alone. A reference to be made gets its id in the tail. */
static void put_tails(struct bx_job *job, const struct request_plan *plan, struct bxi_frame *head, struct bxi_out *out)
{
    if (plan->body != NULL) {
        out->body = plan->body;
        out->body_bytes = plan->body_bytes;
    }
    if (bxi_rref_tail_bytes(&plan->rrefs) == 0)
        return;
    head->flags |= BXI_FLAG_RREFS;
    out->rrefs = &plan->rrefs;
    if (plan->rrefs.makes != NULL)
        bxi_rref_name(job, plan->peer->rank, &plan->rrefs,
                      plan->grant != NULL ? plan->grant->body + plan->grant->body_bytes
                                          : plan->body + plan->body_bytes);
}

/* Lock. call is NULL for one-way calls. 0, -EAGAIN: no slot or no room, or an error with a sentence. */
static int submit_locked(struct bx_job *job, const struct request_plan *plan, struct bxi_call *call)
{
    struct bxi_peer *peer = plan->peer;
    struct bxi_frame head = { .kind = plan->kind, .flags = plan->flags, .deadline_ns = plan->deadline_ns };
    struct bxi_out out = { .head = &head, .body = bx_msg_data(plan->args), .body_bytes = bx_msg_bytes(plan->args),
                           .slot = -1, .may_queue = call != NULL, .grant = plan->grant };
    int index, rc;

    /* Relaxed: set by the handler of SIGBUS. */
    if (bxi_load_relaxed(&job->segment.truncated) != 0)
        return bx_fail(BX_E_CORRUPT, "the segment of worker '%s' itself was truncated", job->name);
    if (bxi_load_relaxed(&peer->state) != BXI_PEER_ALIVE)
        return fail_with_peer(job, peer, peer->close_code);
    index = plan->rrefs.value ? BXI_FUNCTION_VALUE : bxi_function_find(job, peer, plan->function);
    /* Relaxed: set by the handler of SIGBUS, mostly in this thread and just now. */
    if (bxi_load_relaxed(&peer->view.truncated) != 0)
        return bxi_peer_suspect(job, peer, "its segment was truncated");
    if (index < 0)
        return index == BX_E_CORRUPT ? bxi_peer_suspect(job, peer, "its function table is nonsense") : index;
    head.function = (uint16_t)index;
    put_tails(job, plan, &head, &out);
    if (call == NULL) {
        head.id = bxi_call_began_ns(plan->deadline_ns, plan->timeout_ns);
        rc = bxi_peer_send(job, peer, &out);
        if (rc < 0)
            return rc;
        bxi_counter_add(job, BXI_C_oneways_sent, 1);
        bxi_trace_sent(job, peer, &head, plan->traced_ns);
        return 0;
    }
    if ((rc = bxi_slot_take(job, peer, call)) < 0)
        return rc;
    call->function = head.function;
    call->timeout_ns = plan->timeout_ns;
    call->sent_ns = plan->rrefs.value ? 0 : plan->sent_ns;     /* histograms are of functions */
    if (call->sent_ns != 0)
        head.flags |= BXI_FLAG_TIMED;
    head.id = peer->slots[call->slot].generation << 16 | call->slot;
    out.slot = call->slot;
    rc = set_deadline(job, peer, call->slot, call->caller == NULL ? plan->deadline_ns : BX_FOREVER);
    if (rc < 0 || (rc = bxi_peer_send(job, peer, &out)) < 0)
        goto undo;
    bxi_call_sent(job, call, &head);
    return 0;

undo:
    bxi_slot_free(peer, call->slot);
    return rc;
}

struct room_waiter {
    struct bxi_waiter waiter;   /* first */
    struct bx_job *job;
    struct bxi_peer *peer;
    const struct bxi_grant *grant;
    struct bxi_waiting *made_for;
    bool oneway;
};

static bool has_room(struct bxi_waiter *waiter)
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
static const char *lacked(struct bx_job *job, const struct request_plan *plan, bool oneway)
{
    bool loans;

    bxi_lock(&job->run->lock);
    loans = plan->grant != NULL && !bxi_grant_is_allowed(job, plan->peer->lend, plan->grant);
    bxi_unlock(&job->run->lock);
    return loans ? "as much as may be is on loan" : oneway ? "the ring is full" : "1024 calls are in flight";
}

static int wait_for_room(struct bx_job *job, const struct request_plan *plan, bool oneway)
{
    struct room_waiter room = {
        .waiter = { .ready = has_room, .object = plan->peer, .deadline_ns = plan->deadline_ns,
                    .shown = { .reason = BXI_FOR_ROOM, .to = (int16_t)plan->peer->rank } },
        .job = job,
        .peer = plan->peer,
        .grant = plan->grant,
        .made_for = plan->made_for,
        .oneway = oneway,
    };
    int rc;

    if (plan->grant != NULL)
        bxi_grants_want(job);
    if (plan->made_for != NULL)
        bxi_add(&plan->made_for->room_waits, 1);
    rc = bxi_wait(job->run, &room.waiter);
    if (plan->made_for != NULL)
        bxi_add(&plan->made_for->room_waits, (uint32_t)-1);
    if (plan->grant != NULL)
        bxi_grants_unwant(job);
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "%s to worker '%s', and it stayed so for %.3f s; the worker is stopped or too slow",
                       lacked(job, plan, oneway), plan->peer->name, (double)plan->timeout_ns / 1e9);
    if (rc == BX_E_INTERRUPTED)
        return bx_fail(rc, "bx_job_interrupt ended a wait for room: %s to worker '%s'", lacked(job, plan, oneway),
                       plan->peer->name);
    return rc;
}

/* The same for a call that is made for a request. */
static int submit_nested(struct bx_job *job, const struct request_plan *plan, struct bxi_call *call)
{
    int rc = bxi_nested_reserve(plan->made_for);

    if (rc == 0)
        rc = submit_locked(job, plan, call);
    if (rc < 0 || call == NULL)
        return rc;
    call->inherits = plan->deadline_ns == plan->made_for->request.deadline_ns;
    bxi_nested_add(plan->made_for, call);
    return 0;
}

/* A synchronous caller is about to take the role, and its passes ring the callee's bell when that is due. Any other
 * caller rings it now. */
static int submit_once(struct bx_job *job, const struct request_plan *plan, struct bxi_call *call)
{
    int rc;

    bxi_lock(&job->run->lock);
    rc = bxi_job_check(job);            /* here too: after bxi_calls_fail nobody ends the job's calls any more */
    if (rc == 0)
        rc = __builtin_expect(plan->made_for == NULL, 1) ? submit_locked(job, plan, call)
                                                         : submit_nested(job, plan, call);
    if (rc == 0 && (call == NULL || call->caller == NULL) && !bxi_is_driving(job->run))
        bxi_bell_now(job, plan->peer);
    bxi_unlock(&job->run->lock);
    return rc;
}

static int submit_or_wait(struct bx_job *job, const struct request_plan *plan, struct bxi_call *call)
{
    for (;;) {
        int rc = submit_once(job, plan, call);

        if (rc != -EAGAIN)
            return rc;
        if (!plan->no_wait) {
            rc = wait_for_room(job, plan, call == NULL);
            if (rc < 0)
                return rc;
            continue;
        }
        bxi_poke(job->run);              /* replies that no thread had to read yet may free slots */
        rc = submit_once(job, plan, call);
        if (rc != -EAGAIN)
            return rc;
        return bx_fail(-EAGAIN, "%s to worker '%s'", lacked(job, plan, call == NULL), plan->peer->name);
    }
}

static int submit_lending(struct bx_job *job, struct request_plan *plan, struct bxi_call *call)
{
    struct bxi_grant grant;
    int rc = bxi_grant_message(job, plan->peer->lend, plan->args, &grant);

    if (rc < 0)
        return rc;
    if ((rc = bxi_grant_add_rrefs(&grant, &plan->rrefs)) < 0) {
        bxi_grant_drop(&grant);
        return rc;
    }
    bxi_grants_reclaim(job);
    /* cppcheck-suppress autoVariables; taken out again below */
    plan->grant = &grant;
    rc = submit_or_wait(job, plan, call);
    plan->grant = NULL;
    bxi_grant_drop(&grant);
    return rc;
}

static int submit(struct bx_job *job, struct request_plan *plan, struct bxi_call *call)
{
    size_t tail_bytes = bxi_rref_tail_bytes(&plan->rrefs);
    bool has_kinds = bxi_has_kinds(plan->args);
    int rc;

    if (has_kinds)
        plan->flags |= BXI_FLAG_KINDS;
    if (bxi_needs_lease(plan->args, tail_bytes))
        return submit_lending(job, plan, call);
    if (tail_bytes == 0 && !has_kinds)
        return submit_or_wait(job, plan, call);
    plan->body = bxi_body_with_tails(plan->args, &plan->rrefs, &plan->body_bytes);
    if (plan->body == NULL)
        return bx_fail(-ENOMEM, "no memory for the %s of a call", tail_bytes > 0 ? "references" : "arguments");
    rc = submit_or_wait(job, plan, call);
    free(plan->body);
    return rc;
}

/* ---- the three ways to call -------------------------------------------------------------------- */

static bool call_ready(struct bxi_waiter *waiter)
{
    return bxi_future_is_done(waiter->object);
}

/* Why a wait for the answer ended: rc, with its sentence. */
static int no_answer(const struct bxi_call *call, const char *function, int rc)
{
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "worker '%s' did not answer '%s' within %.3f s%s", call->peer->name, function,
                       (double)call->timeout_ns / 1e9, bxi_call_whose_time(call));
    if (rc == BX_E_INTERRUPTED)
        return bx_fail(rc, "bx_job_interrupt ended the call of '%s' in worker '%s'", function, call->peer->name);
    return bx_fail(rc, "worker '%s' is shutting down", call->future.job->name);
}

/* caller: as in struct bxi_call. Each member is named: gcc makes stores of that, and a call of memset of fewer. */
static inline void init_call(struct bxi_call *call, struct bx_job *job, const char *caller, bool wants_value)
{
    *call = (struct bxi_call){
        .future = { .refs = 1, .callbacks = NULL, .job = job, .value = NULL, .text = NULL, .code = 0, .is_call = true },
        .peer = NULL, .caller = caller, .timeout_ns = 0, .sent_ns = 0, .traced_ns = bxi_trace_now(job), .id = 0,
        .slot = 0, .function = 0, .wants_value = wants_value, .inherits = false, .next = NULL,
    };
}

/* Waits for the answer of a call that was sent. */
static int await(struct bxi_call *call, const char *function, uint64_t deadline_ns, struct bx_msg **reply)
{
    struct bx_job *job = call->future.job;
    struct bxi_waiter waiter = { .ready = call_ready, .object = &call->future, .deadline_ns = deadline_ns,
                                 .shown = { .reason = BXI_FOR_CALL, .to = (int16_t)call->peer->rank, .id = call->id },
                                 .straight = bxi_straight_reply, .needs_others = bxi_call_needs_others };
    int rc = bxi_wait(job->run, &waiter);

    if (rc < 0) {
        if (bxi_call_give_up(job, call, rc == BX_E_INTERRUPTED ? BX_E_CANCELLED : BX_E_TIMEOUT)) {
            bxi_trace_waited(call, call->peer, rc);
            return no_answer(call, function, rc);
        }
        while (!bxi_future_is_done(&call->future))
            sched_yield();
    }
    rc = call->future.code;
    bxi_trace_waited(call, call->peer, rc);
    if (rc < 0)
        bx_fail(rc, "%s", bx_future_error_text(&call->future));
    else if (reply != NULL)
        *reply = call->future.value;
    free(call->future.text);
    return rc;
}

static int call_and_wait(struct bx_job *job, struct request_plan *plan, struct bx_msg **reply)
{
    struct bxi_call call;
    int rc;

    init_call(&call, job, bxi_this_thread(), reply != NULL);
    if ((rc = submit(job, plan, &call)) < 0) {
        bxi_bells_flush(job);
        bxi_trace_waited(&call, plan->peer, rc);
        return rc;
    }
    return await(&call, plan->function, plan->deadline_ns, reply);
}

/* A call on an object goes to the object's owner. */
static void aim(struct bx_job *job, struct request_plan *request, const struct bxi_aim *at)
{
    if (at == NULL)
        return;
    request->rrefs = (struct bxi_rref_out){ .makes = at->makes, .target = at->target, .value = at->value };
    request->peer = at->peer;
    if (at->target != NULL)
        request->peer = job->rpc->peers[bxi_rref_id_owner(at->target->id)];
}

/* It needs no lease, names no references and carries no kinds, so its frame depends on nothing but itself. */
static inline bool is_plain(const struct bx_msg *args)
{
    return !bxi_needs_lease(args, 0) && bx_msg_rrefs(args) == 0 && bx_msg_error(args) == 0 && !bxi_has_kinds(args);
}

/* The worker to which bxi_straight_call may try a call without options. NULL: it goes the general way, which says what
 * is wrong with it, if anything is. */
static inline struct bxi_peer *straight_to(struct bx_job *job, const char *to, const struct bxi_aim *at,
                                           const char *function, const struct bx_msg *args)
{
    /* Relaxed: bxi_straight_call looks again, under the lock. */
    if (job == NULL || function == NULL || bxi_job_is_forked(job) || bxi_load_relaxed(&job->phase) != BXI_STARTED ||
        bxi_trace_is_on(job) || bxi_nested_in() != NULL || !is_plain(args))
        return NULL;
    if (at != NULL)
        return at->target == NULL && at->makes == NULL && !at->value ? at->peer : NULL;
    return to != NULL ? bxi_peer_find(job, to) : NULL;
}

int bxi_rpc_sync(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                 const struct bx_msg *args, const struct bx_call_options *options, struct bx_msg **reply)
{
    struct bxi_peer *peer = options == NULL && bxi_may_wait() ? straight_to(job, to, at, function, args) : NULL;

    if (peer != NULL) {
        struct bxi_call call;
        uint64_t deadline_ns;

        init_call(&call, job, bxi_this_thread(), reply != NULL);
        if ((deadline_ns = bxi_straight_call(&call, peer, function, args)) != 0)
            return await(&call, function, deadline_ns, reply);
    }

    struct request_plan request = { .function = function, .args = args, .kind = BXI_REQUEST };
    int rc;

    aim(job, &request, at);
    rc = plan(job, &request, to, options);
    if (rc < 0)
        return rc;
    if (!bxi_may_wait())
        return bx_fail(BX_E_WOULD_DEADLOCK, "a handler that is not blocking, a batch body or a callback "
                                            "called '%s' and would wait; register it as BX_BLOCKING, or "
                                            "use bx_rpc_async", bxi_brief(function).text);
    request.sent_ns = bxi_hist_begin(job);
    return call_and_wait(job, &request, reply);
}

int bx_rpc_sync(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                const struct bx_call_options *options, struct bx_msg **reply)
{
    return bxi_out(bxi_rpc_sync(job, to, NULL, function, args, options, reply));
}

int bx_rpc_sync_rank(struct bx_job *job, int rank, const char *function, const struct bx_msg *args,
                     const struct bx_call_options *options, struct bx_msg **reply)
{
    struct bxi_aim at = { .peer = NULL };
    int rc = bxi_peer_of_rank(job, rank, &at.peer);

    return bxi_out(rc < 0 ? rc : bxi_rpc_sync(job, NULL, &at, function, args, options, reply));
}

/* A call whose future is the program's; NULL: no memory, with a sentence. */
static struct bxi_call *make_call(struct bx_job *job)
{
    struct bxi_call *call = bxi_call_alloc();

    if (call == NULL)
        bx_fail(-ENOMEM, "no memory for a call");
    else
        init_call(call, job, NULL, true);
    return call;
}

/* The straight way of a call without options. False: it did not go; nothing was done, and if no memory is left, the
 * general way says so. */
BXI_FLAT static bool async_straight(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                                    const struct bx_msg *args, struct bx_future **future)
{
    struct bxi_peer *peer = straight_to(job, to, at, function, args);
    struct bxi_call *call;

    if (peer == NULL || (call = bxi_call_alloc()) == NULL)
        return false;
    init_call(call, job, NULL, true);
    if (bxi_straight_call(call, peer, function, args) == 0) {
        bxi_call_free(call);
        return false;
    }
    *future = &call->future;
    return true;
}

int bxi_rpc_async(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                  const struct bx_msg *args, const struct bx_call_options *options, struct bx_future **future)
{
    if (options == NULL && future != NULL && async_straight(job, to, at, function, args, future))
        return 0;

    struct request_plan request = { .function = function, .args = args, .kind = BXI_REQUEST };
    struct bxi_call *call;
    int rc;

    aim(job, &request, at);
    rc = future != NULL ? plan(job, &request, to, options) : bxi_null("the call", "the place for the future");
    if (rc < 0)
        return rc;
    if ((call = make_call(job)) == NULL)
        return -ENOMEM;
    request.sent_ns = bxi_hist_begin(job);
    rc = submit(job, &request, call);
    if (rc < 0) {
        bxi_call_free(call);
        return rc;
    }
    bxi_trace_async_sent(call);
    *future = &call->future;
    return 0;
}

int bx_rpc_async(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                 const struct bx_call_options *options, struct bx_future **future)
{
    return bxi_out(bxi_rpc_async(job, to, NULL, function, args, options, future));
}

int bx_rpc_async_rank(struct bx_job *job, int rank, const char *function, const struct bx_msg *args,
                      const struct bx_call_options *options, struct bx_future **future)
{
    struct bxi_aim at = { .peer = NULL };
    int rc = bxi_peer_of_rank(job, rank, &at.peer);

    return bxi_out(rc < 0 ? rc : bxi_rpc_async(job, NULL, &at, function, args, options, future));
}

/* ---- many calls together ------------------------------------------------------------------------ */

/* What is submitted under one lock, in about ten microseconds at most. */
#define GROUP_MAX 64                /* calls */
#define GROUP_BYTES (BXI_RING_BYTES / 4)

struct group {
    const struct bx_msg *const *args;   /* or NULL */
    struct bx_future **futures;         /* those that are sent get theirs, the others stay NULL */
    size_t count;
};

static const struct bx_msg *args_of(const struct group *group, size_t i)
{
    return group->args != NULL ? group->args[i] : NULL;
}

BXI_FLAT static bool submit_straight(struct bx_job *job, const struct request_plan *plan, int function,
                                     struct bxi_call *call)
{
    struct bxi_frame head = { .kind = BXI_REQUEST, .function = (uint16_t)function, .deadline_ns = plan->deadline_ns };
    struct bxi_out out = { .head = &head, .body = bx_msg_data(plan->args), .body_bytes = bx_msg_bytes(plan->args),
                           .lease = -1 };

    call->timeout_ns = plan->timeout_ns;
    call->sent_ns = plan->sent_ns;
    return bxi_straight_send(job, plan->peer, &out, call);
}

/* Sends the calls from `sent` on in one frame, as bxi_packed_send. Lock. */
static int send_packed(struct bx_job *job, const struct request_plan *plan, int function, const struct group *group,
                          size_t sent, size_t made)
{
    return bxi_packed_send(job, plan->peer, &(struct bxi_packable){
        .args = group->args != NULL ? group->args + sent : NULL, .futures = group->futures + sent,
        .count = made - sent, .timeout_ns = plan->timeout_ns, .deadline_ns = plan->deadline_ns,
        .function = (uint16_t)function });
}

/* Submits the first `made` calls, until one fails; how many. Lock. */
static size_t submit_group(struct bx_job *job, struct request_plan *plan, const struct group *group, size_t made,
                           int *rc)
{
    struct bxi_call *call;
    size_t sent = 0;
    int function;
    bool packs;

    *rc = bxi_job_check(job);           /* as in submit_once */
    if (*rc < 0)
        return 0;
    /* Relaxed: written under the lock. The first calls of all to a peer open its ring, and are not grouped. */
    if (bxi_load_relaxed(&plan->peer->out_open))
        bxi_ring_group_begin(&plan->peer->out);
    function = plan->made_for == NULL ? bxi_straight_function(job, plan->peer, plan->function) : -1;
    packs = function >= 0;
    while (sent < made) {
        int packed = packs ? send_packed(job, plan, function, group, sent, made) : 0;

        packs = packs && packed >= 0;           /* a full ring does not get room under the lock */
        if (packed > 0) {
            sent += (size_t)packed;
            continue;
        }
        plan->args = args_of(group, sent);
        plan->sent_ns = bxi_hist_begin(job);
        call = (struct bxi_call *)(void *)group->futures[sent];
        *rc = function >= 0 && submit_straight(job, plan, function, call) ? 0
              : plan->made_for == NULL ? submit_locked(job, plan, call) : submit_nested(job, plan, call);
        if (*rc < 0)
            break;
        sent++;
    }
    bxi_peer_group_end(job, plan->peer);
    if (sent > 0 && !bxi_is_driving(job->run))
        bxi_bell_now(job, plan->peer);
    return sent;
}

/* Sends the first calls of a group together. How many; 0 with *rc: -EAGAIN if the first has to be sent by itself, or an
 * error with a sentence. */
static size_t send_group(struct bx_job *job, struct request_plan *plan, const struct group *group, int *rc)
{
    size_t made = 0, bytes = 0, sent;

    *rc = -EAGAIN;
    for (; made < group->count && made < GROUP_MAX && bytes < GROUP_BYTES && is_plain(args_of(group, made)); made++) {
        struct bxi_call *call = make_call(job);

        bytes += bx_msg_bytes(args_of(group, made));

        if (call == NULL) {
            *rc = -ENOMEM;
            break;
        }
        group->futures[made] = &call->future;
    }
    if (made == 0)
        return 0;
    bxi_lock(&job->run->lock);
    sent = submit_group(job, plan, group, made, rc);
    bxi_unlock(&job->run->lock);
    for (size_t i = sent; i > 0; i--)   /* backwards: slices of one thread nest, or do not overlap */
        bxi_trace_async_sent((struct bxi_call *)(void *)group->futures[i - 1]);
    for (size_t i = sent; i < made; i++) {
        bxi_call_free((struct bxi_call *)(void *)group->futures[i]);
        group->futures[i] = NULL;
    }
    return sent;
}

/* The request has a peer, or `to` names one. */
static int send_many(struct bx_job *job, struct request_plan *request, const char *to,
                     const struct bx_call_options *options, const struct group *all)
{
    int rc = all->futures != NULL || all->count == 0 ? plan(job, request, to, options)
                                                     : bxi_null("the calls", "the place for the futures");

    for (size_t done = 0; rc >= 0 && done < all->count;) {
        struct group rest = { .args = all->args != NULL ? all->args + done : NULL, .futures = all->futures + done,
                              .count = all->count - done };
        size_t sent;

        if (done > 0)
            begin_timeout(request);     /* those before may have waited for room */
        sent = send_group(job, request, &rest, &rc);
        if (sent == 0 && rc == -EAGAIN) {
            rc = bxi_rpc_async(job, NULL, &(struct bxi_aim){ .peer = request->peer }, request->function,
                               args_of(&rest, 0), options, rest.futures);
            sent = 1;
        } else if (sent > 0) {
            rc = 0;                 /* what stopped the group stops the next one, or is over */
        }
        done += sent;
    }
    return bxi_out(rc);
}

static struct group group_of(size_t count, const struct bx_msg *const *args, struct bx_future **futures)
{
    for (size_t i = 0; futures != NULL && i < count; i++)
        futures[i] = NULL;
    return (struct group){ .args = args, .futures = futures, .count = count };
}

int bx_rpc_many(struct bx_job *job, const char *to, const char *function, size_t count,
                const struct bx_msg *const *args, const struct bx_call_options *options, struct bx_future **futures)
{
    struct request_plan request = { .function = function, .kind = BXI_REQUEST };
    struct group all = group_of(count, args, futures);

    return send_many(job, &request, to, options, &all);
}

int bx_rpc_many_rank(struct bx_job *job, int rank, const char *function, size_t count,
                     const struct bx_msg *const *args, const struct bx_call_options *options,
                     struct bx_future **futures)
{
    struct request_plan request = { .function = function, .kind = BXI_REQUEST };
    struct group all = group_of(count, args, futures);
    int rc = bxi_peer_of_rank(job, rank, &request.peer);

    return rc < 0 ? rc : send_many(job, &request, NULL, options, &all);
}

int bxi_rpc_oneway(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                   const struct bx_msg *args, const struct bx_call_options *options)
{
    struct request_plan request = { .function = function, .args = args, .kind = BXI_ONEWAY };
    int rc;

    aim(job, &request, at);
    rc = plan(job, &request, to, options);

    if (rc < 0)
        return rc;
    request.traced_ns = bxi_trace_now(job);
    return bxi_out(submit(job, &request, NULL));
}

int bx_rpc_oneway(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                  const struct bx_call_options *options)
{
    return bxi_rpc_oneway(job, to, NULL, function, args, options);
}

int bx_rpc_oneway_rank(struct bx_job *job, int rank, const char *function, const struct bx_msg *args,
                       const struct bx_call_options *options)
{
    struct bxi_aim at = { .peer = NULL };
    int rc = bxi_peer_of_rank(job, rank, &at.peer);

    return rc < 0 ? rc : bxi_rpc_oneway(job, NULL, &at, function, args, options);
}

static int member_call(struct bx_job *job, const char *to, const char *function, uint8_t flags)
{
    struct request_plan request = { .function = function, .kind = BXI_REQUEST, .flags = flags };
    int rc = plan(job, &request, to, NULL);

    if (rc < 0)
        return rc;
    if (!bxi_may_wait())
        return bx_fail(BX_E_WOULD_DEADLOCK, "joining or leaving the batch '%s' waits; not from a handler "
                                            "that is not blocking", bxi_brief(function).text);
    return bxi_out(call_and_wait(job, &request, NULL));
}

int bx_batch_join(struct bx_job *job, const char *to, const char *function)
{
    return member_call(job, to, function, BXI_FLAG_JOIN);
}

int bx_batch_leave(struct bx_job *job, const char *to, const char *function)
{
    return member_call(job, to, function, BXI_FLAG_LEAVE);
}
