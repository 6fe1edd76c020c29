/* SPDX-License-Identifier: MIT */
/*
 * The ways to call: bx_rpc_sync, bx_rpc_async, bx_rpc_oneway. group.c has bx_rpc_many, submit.c the way of a call into
 * the callee's ring, call_end.c the way from a reply to a future. Runs in the thread that calls.
 *
 * A synchronous call lies on its caller's stack, and allocates nothing but its reply. The thread that takes a call out
 * of its slot, under the lock, completes it; no other thread touches it from then on.
 */
#include "mark.h"
#include "submit.h"

#include "shm/backoff.h"

#include <errno.h>
#include <stdlib.h>

static bool call_ready(struct bxi_waiter *waiter)
{
    return bxi_future_is_done(waiter->object);
}

/* Why a wait for the answer ended: rc, with its sentence. */
BXI_COLD static int no_answer(const struct bxi_call *call, const char *function, int rc)
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
        .future = { .refs = 1, .heard = 0, .callbacks = NULL, .job = job, .value = NULL, .text = NULL, .code = 0,
                    .is_call = true },
        .peer = NULL, .caller = caller, .timeout_ns = 0, .sent_ns = 0, .traced_ns = bxi_trace_now(job), .id = 0,
        .slot = 0, .function = 0, .wants_value = wants_value, .inherits = false, .next = NULL, .value = NULL,
    };
}

/* Waits for the answer of a call that was sent. */
static int await(struct bxi_call *call, const char *function, uint64_t deadline_ns, struct bx_msg **reply)
{
    struct bx_job *job = call->future.job;
    struct bxi_waiter waiter = { .ready = call_ready, .object = &call->future, .deadline_ns = deadline_ns,
                                 .shown = { .reason = BXI_FOR_CALL, .to = (int16_t)call->peer->rank, .id = call->id },
                                 .straight = call->peer->is_remote ? NULL : bxi_reply_poll,
                                 .needs_others = bxi_call_needs_others };
    int rc = bxi_wait(job->run, &waiter);

    if (rc < 0) {
        if (bxi_call_give_up(job, call, rc == BX_E_INTERRUPTED ? BX_E_CANCELLED : BX_E_TIMEOUT)) {
            bxi_trace_waited(call, call->peer, rc);
            return no_answer(call, function, rc);
        }
        for (uint32_t turns = 0; !bxi_future_is_done(&call->future);)
            bxi_back_off(&turns);       /* another thread completes it */
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

static int call_and_wait(struct bx_job *job, struct bxi_plan *plan, struct bx_msg **reply)
{
    struct bxi_call call;
    int rc;

    init_call(&call, job, bxi_this_thread(), reply != NULL);
    if ((rc = bxi_submit(job, plan, &call)) < 0) {
        bxi_bells_flush(job);
        bxi_trace_waited(&call, plan->peer, rc);
        return rc;
    }
    return await(&call, plan->function, plan->deadline_ns, reply);
}

/* A call on an object goes to the object's owner. */
static void aim(struct bx_job *job, struct bxi_plan *plan, const struct bxi_aim *at)
{
    if (at == NULL)
        return;
    plan->rrefs = (struct bxi_rref_out){ .makes = at->makes, .target = at->target, .value = at->value };
    plan->has_aim = true;
    if (at->target != NULL)
        plan->peer = job->rpc->peers[bxi_rref_id_owner(at->target->id)];
}

BXI_FLAT int bxi_rpc_sync(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                          const struct bx_msg *args, const struct bx_call_options *options, struct bx_msg **reply)
{
    struct bxi_plan plan;
    int rc;

    bxi_plan_begin(&plan, BXI_REQUEST, function, args);
    aim(job, &plan, at);
    rc = bxi_plan(job, &plan, to, options);
    if (rc < 0)
        return rc;
    if (!bxi_may_wait())
        return bx_fail(BX_E_WOULD_DEADLOCK, "a handler that is not blocking, a batch body or a callback "
                                            "called '%s' and would wait; register it as BX_BLOCKING, or "
                                            "use bx_rpc_async", bxi_brief(function).text);
    plan.sent_ns = bxi_hist_begin(job);
    return call_and_wait(job, &plan, reply);
}

int bx_rpc_sync(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                const struct bx_call_options *options, struct bx_msg **reply)
{
    return bxi_out(bxi_rpc_sync(job, to, NULL, function, args, options, reply));
}

struct bxi_call *bxi_call_make(struct bx_job *job)
{
    struct bxi_call *call = bxi_call_alloc();

    if (call == NULL)
        bx_fail(-ENOMEM, "no memory for a call");
    else
        init_call(call, job, NULL, true);
    return call;
}

BXI_FLAT int bxi_rpc_async(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                           const struct bx_msg *args, const struct bx_call_options *options, struct bx_future **future)
{
    struct bxi_plan plan;
    struct bxi_call *call;
    int rc;

    bxi_plan_begin(&plan, BXI_REQUEST, function, args);
    aim(job, &plan, at);
    rc = future != NULL ? bxi_plan(job, &plan, to, options) : bxi_null("the call", "the place for the future");
    if (rc < 0)
        return rc;
    if ((call = bxi_call_make(job)) == NULL)
        return -ENOMEM;
    plan.sent_ns = bxi_hist_begin(job);
    rc = bxi_submit(job, &plan, call);
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

int bxi_rpc_oneway(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                   const struct bx_msg *args, const struct bx_call_options *options)
{
    struct bxi_plan plan;
    int rc;

    bxi_plan_begin(&plan, BXI_ONEWAY, function, args);
    aim(job, &plan, at);
    rc = bxi_plan(job, &plan, to, options);

    if (rc < 0)
        return rc;
    plan.traced_ns = bxi_trace_now(job);
    return bxi_out(bxi_submit(job, &plan, NULL));
}

int bx_rpc_oneway(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                  const struct bx_call_options *options)
{
    return bxi_rpc_oneway(job, to, NULL, function, args, options);
}

static int member_call(struct bx_job *job, const char *to, const char *function, uint8_t flags)
{
    struct bxi_plan plan;
    int rc;

    bxi_plan_begin(&plan, BXI_REQUEST, function, NULL);
    plan.flags = flags;
    rc = bxi_plan(job, &plan, to, NULL);
    if (rc < 0)
        return rc;
    if (!bxi_may_wait())
        return bx_fail(BX_E_WOULD_DEADLOCK, "joining or leaving the batch '%s' waits; not from a handler "
                                            "that is not blocking", bxi_brief(function).text);
    return bxi_out(call_and_wait(job, &plan, NULL));
}

int bx_batch_join(struct bx_job *job, const char *to, const char *function)
{
    return member_call(job, to, function, BXI_FLAG_JOIN);
}

int bx_batch_leave(struct bx_job *job, const char *to, const char *function)
{
    return member_call(job, to, function, BXI_FLAG_LEAVE);
}
