/* SPDX-License-Identifier: MIT */
/*
 * What future.c (one future) and gather.c (all and any of several) share.
 */
#ifndef BXI_FUTURE_H
#define BXI_FUTURE_H

#include "rpc.h"

struct bxi_gather;

struct bxi_callback {
    struct bxi_callback *next;
    void (*run)(struct bx_future *future, struct bxi_callback *callback);   /* frees the callback */
    bx_done_fn done;
    bx_then_fn then;
    void *context;
    struct bx_future *owner;    /* while it is in a thread's queue: its future; one reference */
    struct bx_future *child;    /* of then; one reference */
    bool sees_errors;
    size_t index;
};

struct bxi_made {               /* a future that is no call: of bx_future_create, then, all and any */
    struct bx_future future;    /* first */
    bxi_a32 claimed;            /* 1 once a thread completes it */
    bool listed;                /* future_lock, these three */
    struct bxi_made *next, *prev;
    struct bxi_gather *gather;  /* of all and any, one reference; else NULL */
};
static inline struct bxi_made *bxi_made_of(struct bx_future *future)      /* that is no call */
{
    return (struct bxi_made *)(void *)future;
}

/* ---- future.c ---------------------------------------------------------------------------------- */

/* Adds a callback, or runs it at once. */
void bxi_callback_add(struct bx_future *future, struct bxi_callback *callback);
/* Removes it from a future of which the caller has a reference. False: it has run, or will. */
bool bxi_callback_remove(struct bx_future *future, struct bxi_callback *callback);

/* ---- gather.c ---------------------------------------------------------------------------------- */

/* The future of a gather is done: removes its callbacks from the futures that are still pending. */
void bxi_gather_end(struct bxi_gather *gather);
/* A reference to the future of a gather is released; true if that is done. False: the caller releases one. */
bool bxi_gather_released(struct bxi_gather *gather, struct bx_future *future);
void bxi_gather_release(struct bxi_gather *gather);

#endif
