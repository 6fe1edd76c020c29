/* SPDX-License-Identifier: MIT */
/*
 * A call's way out, in stages: the callee's name becomes a peer and the function's name an index (bxi_plan, submit.c;
 * names.c), the call gets a slot (slot.c), a frame is made and becomes a record in the ring (submit.c, out.c), and the
 * bell is rung if the callee sleeps (bell.c). Any thread that calls.
 *
 * All calls take this way. What few of them have (options, references, loans, a request that they are made for, no room
 * in the ring) is a branch in its stage.
 */
#ifndef BXI_SUBMIT_H
#define BXI_SUBMIT_H

#include "rpc.h"

struct bxi_plan {                   /* what is to be sent, checked */
    struct bxi_peer *peer;
    const char *function;
    const struct bx_msg *args;
    struct bxi_body *body;          /* of args and rrefs; NULL: it is the bytes of args */
    uint64_t timeout_ns;
    uint64_t deadline_ns;
    uint64_t sent_ns;               /* if the call is measured */
    uint64_t traced_ns;             /* if it is a one-way call, and traced: when the program called */
    struct bxi_rref_out rrefs;      /* what the call is for, if has_aim; and the references of args, if it has a body */
    struct bxi_waiting *made_for;   /* the request for which it is made, or NULL */
    int function_index;             /* bxi_resolve */
    bool own_bell;                  /* as in struct bxi_out; set where it is submitted */
    bool no_wait;
    bool waits_join;                /* BX_CALL_WAIT_JOIN */
    bool has_aim;
    uint8_t kind;
    uint8_t flags;
};
/* Member by member: of an initialiser with so many zeros gcc makes `rep stos`, which takes about 12 ns to begin. */
static inline void bxi_plan_begin(struct bxi_plan *plan, uint8_t kind, const char *function, const struct bx_msg *args)
{
    plan->peer = NULL;
    plan->function = function;
    plan->args = args;
    plan->sent_ns = plan->traced_ns = 0;
    plan->body = NULL;
    plan->waits_join = plan->has_aim = false;
    plan->kind = kind;
    plan->flags = 0;
}

/* A call whose future is the program's; NULL: no memory, with a sentence. call.c. */
struct bxi_call *bxi_call_make(struct bx_job *job);

/* Completes what bxi_plan_begin began, perhaps with flags, references and a peer; `to` is read if it has no peer.
 * 0, or an error with a sentence. */
int bxi_plan(struct bx_job *job, struct bxi_plan *plan, const char *to, const struct bx_call_options *options);
void bxi_plan_timeout(struct bxi_plan *plan);       /* its time begins now */

/* Sends it; waits for a slot, for room and for leave to lend, unless plan->no_wait. call: NULL for a one-way call. 0;
 * -EAGAIN, or another error, with a sentence. */
int bxi_submit(struct bx_job *job, struct bxi_plan *plan, struct bxi_call *call);

/* The same in two steps, for a group of calls of one function, under the lock: the callee lives and has the function;
 * then each call. 0, or an error with a sentence; -EAGAIN: no slot, no room, or too much is on loan. */
int bxi_resolve(struct bx_job *job, struct bxi_plan *plan);
int bxi_put_request(struct bx_job *job, const struct bxi_plan *plan, struct bxi_call *call);

#endif
