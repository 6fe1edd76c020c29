/* SPDX-License-Identifier: MIT */
/*
 * bx_rpc_many: calls of one function that are sent together, under one lock and with one bell, several of them in a
 * record where they are small (packed.h). Runs in the thread that calls.
 */
#include "mark.h"
#include "packed.h"
#include "submit.h"

#include <errno.h>

/* What is submitted under one lock, in about ten microseconds at most. */
#define GROUP_MAX 64                /* calls */
#define GROUP_BYTES (BXI_RING_BYTES / 4)

struct group {
    const struct bx_msg *const *args;   /* or NULL */
    struct bx_future **futures;         /* those that are sent get theirs, the others stay NULL */
    size_t count;
};

/* It needs no lease, names no references and carries no kinds, so its frame depends on nothing but itself. */
static inline bool is_plain(const struct bx_msg *args)
{
    return !bxi_needs_lease(args, 0) && bx_msg_rrefs(args) == 0 && bx_msg_error(args) == 0 && !bxi_has_kinds(args);
}

static const struct bx_msg *args_of(const struct group *group, size_t i)
{
    return group->args != NULL ? group->args[i] : NULL;
}

/* Sends the calls from `sent` on in one frame, as bxi_packed_send. Lock. */
static int send_packed(struct bx_job *job, const struct bxi_plan *plan, const struct group *group, size_t sent,
                       size_t made)
{
    return bxi_packed_send(job, plan->peer, &(struct bxi_packable){
        .args = group->args != NULL ? group->args + sent : NULL, .futures = group->futures + sent,
        .count = made - sent, .timeout_ns = plan->timeout_ns, .deadline_ns = plan->deadline_ns,
        .function = (uint16_t)plan->function_index, .own_bell = plan->own_bell });
}

/* Submits the first `made` calls, until one fails; how many. Lock. */
static size_t submit_group(struct bx_job *job, struct bxi_plan *plan, const struct group *group, size_t made, int *rc)
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
        int packed = packs ? send_packed(job, plan, group, sent, made) : 0;

        packs = packs && packed >= 0;           /* a full ring does not get room under the lock */
        if (packed > 0) {
            sent += (size_t)packed;
            continue;
        }
        plan->args = args_of(group, sent);
        plan->sent_ns = bxi_hist_begin(job);
        if ((*rc = bxi_put_request(job, plan, (struct bxi_call *)(void *)group->futures[sent])) < 0)
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
static size_t send_group(struct bx_job *job, struct bxi_plan *plan, const struct group *group, int *rc)
{
    size_t made = 0, bytes = 0, sent;

    *rc = -EAGAIN;
    for (; made < group->count && made < GROUP_MAX && bytes < GROUP_BYTES && is_plain(args_of(group, made)); made++) {
        struct bxi_call *call = bxi_call_make(job);

        bytes += bx_msg_bytes(args_of(group, made));

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
        bxi_trace_async_sent((struct bxi_call *)(void *)group->futures[i - 1]);
    for (size_t i = sent; i < made; i++) {
        bxi_call_free((struct bxi_call *)(void *)group->futures[i]);
        group->futures[i] = NULL;
    }
    return sent;
}

static int send_many(struct bx_job *job, struct bxi_plan *plan, const char *to,
                     const struct bx_call_options *options, const struct group *all)
{
    int rc = all->futures != NULL || all->count == 0 ? bxi_plan(job, plan, to, options)
                                                     : bxi_null("the calls", "the place for the futures");

    for (size_t done = 0; rc >= 0 && done < all->count;) {
        struct group rest = { .args = all->args != NULL ? all->args + done : NULL, .futures = all->futures + done,
                              .count = all->count - done };
        size_t sent;

        if (done > 0)
            bxi_plan_timeout(plan);     /* those before may have waited for room */
        sent = send_group(job, plan, &rest, &rc);
        if (sent == 0 && rc == -EAGAIN) {
            rc = bxi_rpc_async(job, to, NULL, plan->function, args_of(&rest, 0), options, rest.futures);
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
    struct bxi_plan plan;
    struct group all = group_of(count, args, futures);

    bxi_plan_begin(&plan, BXI_REQUEST, function, NULL);
    return send_many(job, &plan, to, options, &all);
}
