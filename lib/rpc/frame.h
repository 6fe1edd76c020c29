/* SPDX-License-Identifier: MIT */
/*
 * A frame: the head with which a record of a ring begins. The body follows: a message's bytes, a lease's head, or an
 * error's sentence. rpc.h includes this for the engine, shmstat to compute how long a frame has lain unread. It is not
 * in shm/, whose rings carry bytes of any meaning.
 */
#ifndef BXI_FRAME_H
#define BXI_FRAME_H

#include "shm/ring.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum bxi_frame_kind {
    BXI_REQUEST = 1,
    BXI_ONEWAY = 2,
    BXI_REPLY = 3,          /* code 0: the value; code < 0: an error, the body is its sentence */
    BXI_CANCEL = 4,         /* no thread waits for the call any more; code: BX_E_CANCELLED or BX_E_TIMEOUT */
    BXI_RREF = 5,           /* of the protocol of references (rref/rref.h): flags is the op, code its value */
    BXI_REQUESTS = 6,       /* several requests to one function, packed; code: how many, id: of the first */
    BXI_REPLIES = 7,        /* several values, likewise */
};
/*
 * The body of a packed frame is items, one behind the other, each as if it were a frame of its own with the same head:
 *
 *     +0   its id (high 48 bits), bytes of its body (low 16)
 *     +8   its body, and up to 7 bytes of zeros, so that the next item lies at a multiple of 8
 *
 * No flag is set: items are bytes and nothing else.
 */
#define BXI_ITEMS_MAX 64
static inline bool bxi_kind_is_packed(uint8_t kind)
{
    return kind == BXI_REQUESTS || kind == BXI_REPLIES;
}
static inline bool bxi_kind_is_reply(uint8_t kind)
{
    return kind == BXI_REPLY || kind == BXI_REPLIES;
}
enum bxi_frame_flags {
    BXI_FLAG_JOIN = 1,      /* a batch, by its function */
    BXI_FLAG_LEAVE = 2,
    BXI_FLAG_LEASE = 4,     /* the body begins with a struct bxi_lease_head */
    BXI_FLAG_TIMED = 8,     /* a request: asks for the times of its handler; a reply: sent_ns and function have them */
    BXI_FLAG_DEVICE = 16,   /* with LEASE: some of its tensors lie in device memory */
    BXI_FLAG_RREFS = 32,    /* the body ends with references and a struct bxi_rref_tail */
    BXI_FLAG_KINDS = 64,    /* the message's bytes end with the kinds of its values (checked.c) */
};

struct bxi_frame {
    uint8_t kind;
    uint8_t flags;
    uint16_t function;      /* index into the callee's table, or BXI_FUNCTION_VALUE; of a timed reply: bxi_span_pack of
                             * the handler's time */
    int32_t code;
    uint64_t id;            /* generation (32 bits) << 16 | slot, chosen by the caller; of a one-way call: when it was
                             * sent */
    uint64_t consumed;      /* how far the sender has read the receiver's ring: piggybacked credit */
    union {                 /* CLOCK_MONOTONIC */
        uint64_t deadline_ns;   /* of requests; BX_FOREVER */
        uint64_t sent_ns;       /* of others: about when, for inspectors; of a timed reply: when the handler ended */
    };
};
static_assert(sizeof(struct bxi_frame) == BXI_HEAD_BYTES, "a frame is a head of a record");

#endif
