/* SPDX-License-Identifier: MIT */
/*
 * Packed frames: several plain requests to one function, or several plain replies, in one record of a ring. frame.h has
 * the format. A small call of its own takes two lines of the ring in each direction, and a lock, a bell and a look at
 * the credit at both sides. In a packed frame of 16 calls of 64 bytes it takes a line and a sixth, and a sixteenth of
 * the rest.
 *
 * Requests are packed by bx_rpc_many. Replies are packed by the role, to requests that came packed, and to those of a
 * peer to which so many replies are under way that it does not wait for the next (struct bxi_peer, streams). A reply
 * is held back only while the role handles further requests of the same ring, which it has already found there, to
 * inline handlers, and for as many of these as run in about 2 us by the last measurement. So a call that is alone is
 * answered at once. But a reply that is held back waits for the handler that runs, should that take long for once; and
 * is lost if it kills its process.
 *
 * What does not fit (a long body, tensors, an error, a call that is measured) travels in a frame of its own between
 * packed ones; requests keep their order.
 */
#ifndef BXI_PACKED_H
#define BXI_PACKED_H

#include "submit.h"

#include <string.h>

#define BXI_PACKED_BODY 256u        /* bytes of a message that is packed, at most: of a longer one the head is cheap. A
                                     * multiple of 8 */
#define BXI_PACKED_BYTES 4096u      /* of the items of a frame: a thirty-second of a ring */

/* Reads items one after the other. */
struct bxi_cursor {
    const unsigned char *data;      /* of the items; those of replies lie in the peer's ring */
    size_t bytes;                   /* of all */
    size_t at;
    uint64_t id;                    /* of the item that was read last */
    const unsigned char *body;
    size_t body_bytes;
};

/* A few moves of 16 bytes: gcc makes a loop of words of a memcpy that it knows to be short. */
static inline void bxi_copy_small(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t at = 0;

    if (bytes < 16) {
        memcpy(to, from, bytes & 15);
        return;
    }
    for (; at + 16 < bytes; at += 16)
        memcpy(to + at, from + at, 16);
    memcpy(to + bytes - 16, from + bytes - 16, 16);
}

static inline size_t bxi_item_bytes(size_t body_bytes)
{
    return sizeof(uint64_t) + ((body_bytes + 7) & ~(size_t)7);
}

/* False: there is no whole item. */
static inline bool bxi_item_next(struct bxi_cursor *items)
{
    size_t left = items->bytes - items->at, bytes;
    uint64_t word;

    if (left < sizeof word)
        return false;
    memcpy(&word, items->data + items->at, sizeof word);
    bytes = bxi_item_bytes(word & 0xffff);
    if (bytes > left || bytes > bxi_item_bytes(BXI_PACKED_BODY))
        return false;
    items->id = word >> 16;
    items->body = items->data + items->at + sizeof word;
    items->body_bytes = word & 0xffff;
    items->at += bytes;
    return true;
}

struct bxi_items {
    uint64_t first_id;
    uint32_t count;
    uint32_t bytes;
    _Alignas(BXI_LINE) unsigned char data[BXI_PACKED_BYTES];
};

struct bxi_packed {
    struct bxi_items requests;      /* lock */
    struct bxi_items replies;       /* role, to limit: items that wait for others */
    struct bxi_peer *peer;          /* whose requests are answered together; NULL: nobody's */
    uint64_t consumed;              /* as the last of these requests said */
    uint64_t began_ns;              /* when the handler of the first of them began */
    uint32_t limit;                 /* so many replies are sent at once: as many handlers as run in about 2 us */
};

struct bxi_packed *bxi_packed_create(void);        /* NULL: no memory; free frees it */

/* ---- requests ------------------------------------------------------------------------------------ */

/* Calls of one function, whose arguments are nothing but bytes. */
struct bxi_group {
    const struct bx_msg *const *args;   /* or NULL */
    struct bx_future **futures;         /* those that are sent get theirs, the others stay NULL */
    size_t count;
};
static inline const struct bx_msg *bxi_group_args(const struct bxi_group *group, size_t i)
{
    return group->args != NULL ? group->args[i] : NULL;
}
static inline struct bxi_call *bxi_group_call(const struct bxi_group *group, size_t i)
{
    return (struct bxi_call *)(void *)group->futures[i];
}
/* Sends the first calls, which are initialised, in one frame, as many as are small. How many, at least two. 0: fewer
 * are, or nobody watches their deadline; -EAGAIN: the ring has no room for the frame. Then nothing was done. Lock; the
 * ring is open. */
int bxi_packed_send(struct bx_job *job, const struct bxi_plan *plan, const struct bxi_group *calls);

/* Handles a frame of kind BXI_REQUESTS or BXI_REPLIES that lies in the peer's ring. How many items; BX_E_CORRUPT. */
int bxi_packed_arrived(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, const void *payload,
                       uint32_t payload_bytes);

/* ---- replies (role) ------------------------------------------------------------------------------ */

/* The frames of the peer's ring are about to be read, and have been: what is held back is sent. */
static inline void bxi_packed_begin(struct bx_job *job, struct bxi_peer *peer)
{
    job->rpc->packed->peer = peer->streams ? peer : NULL;
}
void bxi_packed_flush(struct bx_job *job);
static inline void bxi_packed_end(struct bx_job *job)
{
    if (job->rpc->packed->replies.count > 0)
        bxi_packed_flush(job);
    job->rpc->packed->peer = NULL;
}

/* The handler of a request is about to run. */
static inline void bxi_packed_time(struct bx_job *job)
{
    struct bxi_packed *packed = job->rpc->packed;

    if (packed->peer != NULL && packed->replies.count == 0)
        packed->began_ns = bxi_now_ns();
}

/* Takes the reply to a request. False: it is to be sent by itself, and nothing was done. */
bool bxi_packed_add(const struct bx_request *request, const struct bx_msg *reply);

#endif
