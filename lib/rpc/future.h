/* SPDX-License-Identifier: MIT */
/*
 * What future.c (one future) and gather.c (those that depend on others) share.
 */
#ifndef BXI_FUTURE_H
#define BXI_FUTURE_H

#include "nested.h"

struct bxi_gather;

struct bxi_callback {
    struct bxi_callback *next;
    void (*run)(struct bx_future *future, struct bxi_callback *callback);   /* frees the callback */
    union {
        bx_done_fn done;
        bx_then_fn then;
        bx_chain_fn chain;
    };
    void *context;
    bx_free_fn free_context;    /* of then; or NULL */
    struct bx_future *owner;    /* its future, one reference: of a call from the start, else while it is in a thread's
                                 * queue */
    struct bx_future *child;    /* of then; one reference */
    struct bxi_waiting *made_for;   /* the request for which it was added, one reference; or NULL */
    bool sees_errors;
    size_t index;
};

struct bxi_made {               /* a future that is no call: of bx_future_create, then, chain, all and any */
    struct bx_future future;    /* first */
    bxi_a32 claimed;            /* 1 once a thread completes it */
    struct bxi_made *next, *prev;   /* future_lock; of a job, until it is done */
    struct bxi_gather *gather;  /* of chain, all and any, one reference; else NULL */
};
static inline struct bxi_made *bxi_made_of(struct bx_future *future)      /* that is no call */
{
    return (struct bxi_made *)(void *)future;
}

/* ---- future.c ---------------------------------------------------------------------------------- */

/* Completes a future that is no call, in two steps. claim: one thread wins, for the others it is done. finish: by that
 * thread; takes text (malloc'ed) and value. */
bool bxi_future_claim(struct bx_future *future);
void bxi_future_finish(struct bx_future *future, int code, char *text, struct bx_msg *value);
char *bxi_future_text(const struct bx_future *future);     /* a copy of the sentence of one that is done; or NULL */
/* For a public function: an error, with a sentence, if a callback cannot be added. */
int bxi_future_check_callback(const struct bx_future *future, bool has_fn, const char *function);

/* Adds a callback, or runs it at once. */
void bxi_callback_add(struct bx_future *future, struct bxi_callback *callback);
/* Calls fn(future, b, c), the program's, for the request of the handler that added the callback. As bxi_call_user. */
int bxi_callback_call(const struct bxi_callback *callback, struct bx_future *future, void *b, void *c, bxi_user_fn fn);
/* Removes it from a future of which the caller has a reference. False: it has run, or will. */
bool bxi_callback_remove(struct bx_future *future, struct bxi_callback *callback);

/* ---- gather.c ---------------------------------------------------------------------------------- */

/* The future of a gather is done: removes its callbacks from the futures that are still pending, or cancels the inner
 * one of a chain. */
void bxi_gather_end(struct bxi_gather *gather);
/* A reference to the future of a gather is released; true if that is done. False: the caller releases one. */
bool bxi_gather_released(struct bxi_gather *gather, struct bx_future *future);
/* True if the value of its future, which is done, belongs to another one, to which it has a reference. */
bool bxi_gather_lends_value(const struct bxi_gather *gather);
void bxi_gather_release(struct bxi_gather *gather);

#endif
