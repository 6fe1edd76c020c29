/* SPDX-License-Identifier: MIT */
/*
 * bx_rpc_many: calls of one function that are sent together, under one lock and with one bell, several of them in a
 * record where they are small (packed.h). Runs in the thread that calls.
 */
#include "mark.h"
#include "packed.h"

#include <errno.h>

/* What is submitted under one lock, in about ten microseconds at most. */
#define GROUP_MAX 64                /* calls */
#define GROUP_BYTES (BXI_RING_BYTES / 4)

/* Its frame depends on nothing but itself. */
static inline bool is_plain(const struct bx_msg *args)
{
    return bxi_msg_is_plain(args) && bx_msg_error(args) == 0;
}

/* Submits the first `made` calls, until one fails; how many. Lock. */
static size_t submit_group(struct bx_job *job, struct bxi_plan *plan, const struct bxi_group *group, size_t made,
                           int *rc)
{
    size_t sent = 0;
    bool packs;

    if ((*rc = bxi_ending_may_send(job)) < 0 || (*rc = bxi_resolve(job, plan)) < 0)       /* as in submit_once */
        return 0;
    /* Relaxed: written under the lock. The first calls of all to a peer open its ring, and are not grouped. */
    packs = bxi_load_relaxed(&plan->peer->out_open) != 0;
    if (packs)
        bxi_ring_group_begin(&plan->peer->out);
    packs = packs && plan->made_for == NULL;
    while (sent < made) {
        struct bxi_group rest = { .args = group->args != NULL ? group->args + sent : NULL,
                                  .futures = group->futures + sent, .count = made - sent };
        int packed = packs ? bxi_packed_send(job, plan, &rest) : 0;

        packs = packs && packed >= 0;           /* a full ring does not get room under the lock */
        if (packed > 0) {
            sent += (size_t)packed;
            continue;
        }
        plan->args = bxi_group_args(group, sent);
        plan->sent_ns = bxi_hist_begin(job);
        if ((*rc = bxi_put_request(job, plan, bxi_group_call(group, sent))) < 0)
            break;
        sent++;
    }
    bxi_peer_group_end(job, plan->peer);
    if (sent > 0 && plan->own_bell)
        bxi_bell_own(job, plan->peer);
    return sent;
}

/* Sends the first calls of a group together. How many; 0 with *rc: -EAGAIN if the first has to be sent by itself, or an
 * error with a sentence. */
static size_t send_group(struct bx_job *job, struct bxi_plan *plan, const struct bxi_group *group, int *rc)
{
    size_t made = 0, bytes = 0, sent;

    *rc = -EAGAIN;
    for (; made < group->count && made < GROUP_MAX && bytes < GROUP_BYTES; made++) {
        const struct bx_msg *args = bxi_group_args(group, made);
        struct bxi_call *call;

        if (!is_plain(args))
            break;
        bytes += bx_msg_bytes(args);
        call = bxi_call_make(job);
        if (call == NULL) {
            *rc = -ENOMEM;
            break;
        }
        group->futures[made] = &call->future;
    }
    if (made == 0)
        return 0;
    plan->own_bell = !bxi_is_driving(job->run);
    bxi_lock(&job->run->lock);
    sent = submit_group(job, plan, group, made, rc);
    bxi_unlock(&job->run->lock);
    if (sent > 0 && plan->own_bell)
        bxi_bell_look_unlocked(job, plan->peer);
    for (size_t i = sent; i > 0; i--)   /* backwards: slices of one thread nest, or do not overlap */
        bxi_trace_async_sent(bxi_group_call(group, i - 1));
    for (size_t i = sent; i < made; i++) {
        bxi_call_free(bxi_group_call(group, i));
        group->futures[i] = NULL;
    }
    return sent;
}

int bx_rpc_many(struct bx_job *job, const char *to, const char *function, size_t count,
                const struct bx_msg *const *args, const struct bx_call_options *options, struct bx_future **futures)
{
    struct bxi_plan plan;
    int rc;

    for (size_t i = 0; futures != NULL && i < count; i++)
        futures[i] = NULL;
    bxi_plan_begin(&plan, BXI_REQUEST, function, NULL);
    rc = futures != NULL || count == 0 ? bxi_plan(job, &plan, to, options)
                                       : bxi_null("the calls", "the place for the futures");
    for (size_t done = 0; rc >= 0 && done < count;) {
        struct bxi_group rest = { .args = args != NULL ? args + done : NULL, .futures = futures + done,
                                  .count = count - done };
        size_t sent;

        if (done > 0)
            bxi_plan_timeout(&plan);    /* those before may have waited for room */
        sent = send_group(job, &plan, &rest, &rc);
        if (sent == 0 && rc == -EAGAIN) {
            rc = bxi_rpc_async(job, to, NULL, plan.function, bxi_group_args(&rest, 0), options, rest.futures);
            sent = 1;
        } else if (sent > 0) {
            rc = 0;                 /* what stopped the group stops the next one, or is over */
        }
        done += sent;
    }
    return bxi_out(rc);
}
