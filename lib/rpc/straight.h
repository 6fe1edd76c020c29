/* SPDX-License-Identifier: MIT */
/*
 * The straight way of plain frames (straight.c). Under the role, but for calls.
 */
#ifndef BXI_STRAIGHT_H
#define BXI_STRAIGHT_H

#include "packed.h"

/* Sends a call without options, whose arguments are nothing but bytes. Its deadline; 0: something is unusual, and
 * nothing was done. */
uint64_t bxi_straight_call(struct bxi_call *call, struct bxi_peer *peer, const char *function,
                           const struct bx_msg *args);
/* The same for one call of a group, under the lock. First the index of its function: negative, the group goes the
 * general way. Then each call; false as above. out: head with function and deadline, body. */
int bxi_straight_function(struct bx_job *job, struct bxi_peer *peer, const char *function);
bool bxi_straight_send(struct bx_job *job, struct bxi_peer *peer, struct bxi_out *out, struct bxi_call *call);

struct bxi_body {
    const void *data;           /* in the peer's ring */
    size_t bytes;
};
/* Handles a plain request. False: it is not plain, and nothing was done. */
bool bxi_straight_request(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                          const struct bxi_frame *head, const struct bxi_body *body);
/* Handles plain replies to async calls, `most` of them at most, until another frame comes. How many. */
int bxi_straight_replies(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, int most);
/* The same of items of packed frames. The requests of a frame with this head (kind BXI_REQUEST), all of which have been
 * copied to job->rpc->frame: false if they are not plain, and nothing was done; else *handled are the items that were
 * whole. The open async call of a reply, which has got its value, or NULL; lock. Calls that were taken out of their
 * slots. */
bool bxi_straight_items(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                        struct bxi_cursor *items, int32_t *handled);
struct bxi_call *bxi_straight_value(struct bxi_peer *peer, uint64_t id, const void *body, size_t body_bytes);
void bxi_straight_complete(struct bx_job *job, struct bxi_call *const *calls, int count);
/* struct bxi_waiter's `straight`, of a synchronous call: its object is the call's future. */
bool bxi_straight_reply(struct bxi_waiter *waiter, const struct bxi_role *role);

#endif
