/* SPDX-License-Identifier: MIT */
/*
 * Passes across workers. The files build on each other in this order: dist_part.c, context.c, dist_out.c, send.c,
 * dist_in.c, dist_pass.c, dist_optim.c, dist.c. The words:
 *
 *     context     one forward and backward pass; its maker has it, and each worker that read it from a message
 *     join        the call of a worker to the maker when it gets to know a context. Its answer is the context's end. So
 *                 the maker's death ends the context here, and this worker's death fails it there
 *     send        a variable put into a message; its number is its place in the context's list, from 1
 *     receive     a node without edges: the variable as the reader of the message has it
 *
 * A backward pass, by its maker:
 *
 *  1. autograd.discover, from the roots: each worker claims the nodes that lead to the sends it is told of, and tells
 *     the workers of the receives that it finds. A worker answers the first who told it when all whom it told have
 *     answered, and others at once; so the answer to the maker means that all is found, with the set of workers
 *     (Dijkstra and Scholten, 1980).
 *  2. autograd.run, to each of the set, the maker too; the answer comes when all nodes of that worker have run and
 *     its calls are answered, or have failed; each such call has the deadline of the pass. autograd.grads: the
 *     gradients of a worker's sends, or that there is none; it runs what is ready, and the gradients that come out go
 *     to the next workers the same way: together, but after a slow node at once.
 *
 * discover and grads run with the progress role. discover only walks; grads queues what came, and computes if that
 * takes less time than a thread of the pool to wake up; else the pool computes (autograd.work). None waits for another
 * worker, so a pass that crosses between two workers a thousand times needs no more threads, and hardly more calls in
 * flight, than one that crosses once.
 *
 * In the timeline of BX_TRACE (category autograd) a pass is a slice `backward` at the maker, with `discover` over the
 * first phase, and a span `backward` at each other worker, from the first discover until its part is done. A walk is a
 * slice `discover`, a run of nodes a slice `gradients`. Arrows lead through the pass in time: from the maker's slice
 * over all walks and runs to a slice `done`, which the maker records when all parts are done.
 *
 * Locks: dist->lock, the table of contexts; context->lock, its lists and its end; context->running, the nodes of its
 * pass. context->lock is taken while running is held, or dist->lock, to count; no other pair. None is held while
 * another worker is waited for. bx_trace_end is called with them: it waits for nobody.
 */
#ifndef BXI_DIST_H
#define BXI_DIST_H

#include "autograd.h"
#include "boxcar_dist.h"
#include "boxcar_trace.h"

#include <pthread.h>

#define BXI_CHAINS 64
#define BXI_RANK_WORDS (BX_WORKERS_MAX / 64)

struct search;

struct bx_dist {
    struct bx_job *job;
    pthread_mutex_t lock;
    struct bx_context *chains[BXI_CHAINS];      /* lock; each with a reference */
    uint64_t made;                              /* lock */
};

/* A gradient on its way out. */
struct bxi_outgoing {
    int rank;
    uint32_t send;
    struct bx_tensor *grad;                     /* NULL: there is none */
};

/* One that has come. */
struct bxi_incoming {
    uint32_t send;
    struct bx_tensor *grad;                     /* NULL: there is none */
};

struct bxi_dist_pass {
    struct bxi_pass pass;                       /* first */
    uint64_t number;
    uint64_t began_ns;                          /* for the trace; 0: none runs, or this worker is the maker */
    uint64_t awaited;                           /* gradients of sends, or their absence, that have not come */
    struct bxi_node **unseen;                   /* the nodes found from here on were not searched for receives */
    uint64_t elements;                          /* of its nodes */
    struct bxi_outgoing *out;
    size_t out_count, out_capacity;
    struct bxi_incoming *in;                    /* context->lock, to unsent: not taken yet */
    size_t in_count, in_capacity;
    bool unsent;                                /* an inline handler had no room to send all of `out` */
    bool handed;                                /* context->lock: autograd.work was called, and has not begun */
    size_t unsettled;                           /* context->lock: calls of the part, and 1 until its nodes have run */
    int code;                                   /* context->lock: it failed here */
    char *text;
    struct bx_future *done;                     /* context->lock: the answer to autograd.run */
    bxi_a32 is_done;                            /* written under context->lock */
};

struct bx_context {
    bxi_a32 refs;
    struct bx_dist *dist;
    uint64_t id;
    struct bx_context *next;                    /* dist->lock */
    struct bx_grads *grads;                     /* running */
    pthread_mutex_t running;
    struct bxi_dist_pass *pass;                 /* running, and lock to set it */
    uint64_t passes;                            /* the maker: running */

    pthread_mutex_t lock;                       /* all below */
    bool ended;
    int code;                                   /* why it ended */
    char *text;
    struct bx_var **sends;
    size_t send_count, send_capacity;
    struct bx_future **joins;                   /* the maker: of the other workers */
    size_t join_count, join_capacity;
    struct bx_future **calls;                   /* tied to it */
    size_t call_count, call_capacity;
    struct search *search;                      /* dist_pass.c; NULL: none is open */
};

/* ---- dist_part.c -------------------------------------------------------------------------------------- */

bool bxi_dist_is_done(const struct bxi_dist_pass *pass);
bool bxi_dist_has_ended(struct bx_context *context);
void bxi_dist_set_pass(struct bx_context *context, struct bxi_dist_pass *pass);        /* running; frees the last one */
void bxi_dist_unlock_running(struct bx_context *context);       /* and frees the pass, if the context has ended */
/* context->lock. This worker's part is done. Returns the future that answers autograd.run; the caller completes and
 * releases it. NULL: there is none yet, or the part was done. */
struct bx_future *bxi_dist_part_done(struct bx_context *context, int code);
/* Records a slice of the pass of that number in the trace, from began_ns (bx_trace_begin) until now. 0: it has none. */
extern const struct bx_slice bxi_slice_backward, bxi_slice_search, bxi_slice_discover, bxi_slice_gradients,
    bxi_slice_done, bxi_slice_part;
void bxi_dist_trace(const struct bx_context *context, const struct bx_slice *slice, uint64_t number, uint64_t began_ns,
                    int code);
/* Ends this worker's part of the pass of that number: answers autograd.run, now or when it comes. */
void bxi_dist_finish_part(struct bx_context *context, uint64_t number, int code, const char *text);
/* A call is made that the part waits for; it was answered, or the nodes have run: the last of them ends the part. */
void bxi_dist_unsettle(struct bx_context *context, uint64_t number);
void bxi_dist_settle(struct bx_context *context, uint64_t number);
/* Frees the pass of a context that has ended, unless a thread runs it: that one will. */
void bxi_dist_pass_drop(struct bx_context *context);

/* ---- context.c --------------------------------------------------------------------------------------- */

struct bx_context *bxi_context_find(struct bx_dist *dist, uint64_t id);    /* one reference; NULL */
void bxi_context_take_out(struct bx_context *context);         /* of the table, and drops its reference */
/* Ends it here, and if this worker made it, everywhere. code 0: it was ended; else it failed. Once. */
void bxi_context_finish(struct bx_context *context, int code, const char *text);
/* 0, or why it ended, with the sentence. */
int bxi_context_check(struct bx_context *context);
int bxi_context_rank(const struct bx_context *context);         /* the maker's */
/* If the future fails, so does the context. */
int bxi_context_needs(struct bx_context *context, struct bx_future *future);
/* Makes room for one more in an array of pointers. */
int bxi_room(void *array, size_t count, size_t *capacity, size_t bytes);
int bxi_join_answer(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *dist);

/* ---- send.c ------------------------------------------------------------------------------------------- */

extern const struct bxi_op bxi_receive_op;
/* A node was found and gets no gradient: the send of a receive waits for word of that. */
void bxi_receive_none(struct bxi_node *node, struct bxi_pass *pass);
/* The variable of a send, one reference. NULL after a sentence: the context has ended. */
struct bx_var *bxi_send_of(struct bx_context *context, uint32_t number);
struct bxi_receive {
    struct bx_context *context;                 /* one reference */
    int rank, generation;
    uint32_t send;
};

/* ---- dist_out.c --------------------------------------------------------------------------------------- */

/* If this call of this worker's part of the pass fails, so does the part. Takes the future. < 0: it could not be tied,
 * and may go on. */
int bxi_dist_tie(struct bx_context *context, uint64_t number, struct bx_future *future);

/* Adds a gradient to what the running pass sends; takes the reference, NULL: none. */
int bxi_dist_put_out(struct bx_context *context, int rank, uint32_t send, struct bx_tensor *grad);
/* running. Sends what was added. What could not be sent stays in the list: -EAGAIN in an inline handler. */
int bxi_dist_send_out(struct bx_context *context);

/* ---- dist_in.c ---------------------------------------------------------------------------------------- */

int bxi_dist_grads(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *dist);
int bxi_dist_work(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *dist);
/* running. Runs what is ready, and sends what came out; ends this worker's part when all has run. is_inline: nothing
 * may wait. */
int bxi_dist_run_ready(struct bx_context *context, bool is_inline);
/* Without `running`, which the caller had: takes the gradients that came meanwhile, until there are none. */
void bxi_dist_run_queue(struct bx_context *context, bool is_inline);

/* ---- dist_pass.c -------------------------------------------------------------------------------------- */

int bxi_dist_discover(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *dist);
int bxi_dist_run(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *dist);

/* ---- dist_optim.c ------------------------------------------------------------------------------------- */

int bxi_dist_optim_register(struct bx_dist *dist);

#endif
