/* SPDX-License-Identifier: MIT */
/*
 * boxcar_dist.h - backward passes and optimizers across the workers of a job. A part of libboxcar_autograd, above
 * boxcar.h and boxcar_autograd.h.
 *
 *     trainer                                                  parameter server, which has the object `table`
 *
 *     bx_context_create(dist, &context);                       static int forward(request, args, reply, dist)
 *     bx_msg_put_context(args, context);                       {
 *     bx_msg_put_tensor(args, indices);                            bx_read_context(dist, args, &context);
 *     bx_rref_sync(table, "forward", args, NULL, &reply);          indices = bx_read_tensor(args);
 *     emb = bx_read_var(context, tape, &reader);                   emb = bx_var_embedding(tape, weight, indices);
 *     loss = ...;                                                  bx_msg_put_var(reply, context, emb);
 *     bx_context_backward(context, &loss, NULL, 1, false, 0);      bx_tape_clear(tape);
 *     bx_dist_optim_step(optim, context);                          bx_context_release(context);
 *     bx_context_end(context);                                 }
 *
 * A context is one forward and backward pass over several workers. Variables travel in messages, as arguments or in
 * replies, of any kind of call: putting one records a send node, reading it a receive node, whose gradient goes the
 * other way. The worker that made the context runs the backward pass and ends the context.
 *
 * Counting is exact: first the pass finds out, from the roots, which nodes of which workers take part; then each node
 * runs when all gradients that it will get are there. What the roots do not depend on takes no part, is not waited for,
 * and nothing is sent for it. Gradients travel as tensors on loan, those that are ready together in one message; a node
 * that takes long does not hold back the gradients that were ready before it, so workers compute side by side.
 * They are kept by the context (bx_context_grads), on the worker that has the parameter. In the timeline of BX_TRACE a
 * pass is a slice `backward` with the context's id, and arrows through the workers (lib/README.md).
 *
 * Errors.   If a worker that takes part dies, or its part fails, the context fails on all of them with that error, and
 *           is freed there: bx_context_error. Common codes: -EINVAL for a NULL, BX_E_CANCELLED for a context that
 *           has ended; those of calls.
 * Lifetime. References to contexts and to struct bx_dist are counted by the caller's create, read and acquire. A worker
 *           keeps what it has of a context until its maker ends it, or dies. End contexts before bx_job_shutdown, which
 *           waits for them.
 * Threads.  Any thread. One backward pass of a context runs at a time; several contexts run at once.
 */
#ifndef BOXCAR_DIST_H
#define BOXCAR_DIST_H

#include "boxcar_autograd.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

struct bx_dist;
struct bx_context;

/* ---- A worker's part ------------------------------------------------------------------------------- */

/* Registers the functions with which the workers' passes talk to each other, autograd.*: every worker of the job does
 * it, before bx_job_start. The caller destroys it after bx_job_destroy. Codes of bx_register; -ENOMEM. */
int bx_dist_create(struct bx_job *job, struct bx_dist **dist);
void bx_dist_destroy(struct bx_dist *dist);             /* NULL is allowed */
size_t bx_dist_contexts(struct bx_dist *dist);          /* how many this worker has */

/* ---- Contexts -------------------------------------------------------------------------------------- */

/* Makes a context, with one reference. -ENOMEM; BX_E_STATE before bx_job_start. */
int bx_context_create(struct bx_dist *dist, struct bx_context **context);
uint64_t bx_context_id(const struct bx_context *context);       /* the maker's rank << 48 | a counter */
/* Ends the context on all workers, and drops this reference. Calls tied to it (bx_context_call) end with
 * BX_E_CANCELLED. For the maker; another worker only drops its reference. NULL is allowed. */
void bx_context_end(struct bx_context *context);
struct bx_context *bx_context_acquire(struct bx_context *context);
void bx_context_release(struct bx_context *context);            /* NULL is allowed */
/* Why the context failed, with its sentence. 0: it has not; BX_E_CANCELLED: it was ended. */
int bx_context_error(struct bx_context *context);

/* Puts the context into a message, and takes it out: *context is found, or made if this worker did not have it, with
 * one reference. BX_E_CANCELLED: it has ended, or why it failed; sticky, as every error of a writer. */
int bx_msg_put_context(struct bx_msg *msg, struct bx_context *context);
int bx_read_context(struct bx_dist *dist, struct bx_reader *reader, struct bx_context **context);

/* Appends a variable: its value, and if it requires a gradient, a send node that keeps the variable until the context
 * ends. Send the message once: each receiver's gradient counts. Errors are sticky. BX_E_CANCELLED: the context has
 * ended, or why it failed. */
int bx_msg_put_var(struct bx_msg *msg, struct bx_context *context, struct bx_var *var);
/* The next variable of the message: a receive node, if it requires a gradient. The tape holds it. NULL after a
 * sentence, and the tape has failed. */
struct bx_var *bx_read_var(struct bx_context *context, struct bx_tape *tape, struct bx_reader *reader);

/* Ties a call to the context: if that ends or fails first, the call is cancelled. The context keeps a reference until
 * then, or until the call is done. -ENOMEM; BX_E_CANCELLED: it has ended, and the call is cancelled. */
int bx_context_call(struct bx_context *context, struct bx_future *call);

/* ---- Backward -------------------------------------------------------------------------------------- */

/* Computes the gradients of the roots, as bx_backward, over all workers. Returns when all of them are done, at the
 * latest after timeout_ns, 0: the job's call_timeout_ns, for each of the two phases: finding out who takes part, and
 * computing. Blocks. The codes of bx_backward for its arguments and for nodes of this worker:
 * the context lives on. Any other failure fails the context everywhere: BX_E_PEER_DEAD, BX_E_TIMEOUT, and what a
 * node of another worker returned. BX_E_STATE: a pass of this context runs; -EINVAL: another worker made it. */
int bx_context_backward(struct bx_context *context, struct bx_var *const *roots, struct bx_tensor *const *root_grads,
                        size_t count, bool retain, uint64_t timeout_ns);
/* This worker's gradients of the context, which owns them. They change while a pass runs. */
struct bx_grads *bx_context_grads(struct bx_context *context);

/* ---- Optimizers ------------------------------------------------------------------------------------ */

/* References to parameters: a leaf that requires a gradient, as an object. The object keeps a reference of the
 * variable. bx_rref_to_here fetches the value, a tensor, and gradients stop there: for a gradient, call a method of the
 * object that answers by bx_msg_put_var. */
const struct bx_type *bx_param_type(void);
int bx_param_rref(struct bx_job *job, struct bx_var *param, struct bx_rref **rref);

/* One local optimizer at each owner of the parameters: sgd or adam, the other is NULL. Blocks. The caller destroys it.
 * -EINVAL: no parameters, a parameter twice, both kinds or none; BX_E_TYPE: a reference is to no parameter; codes of
 * calls. */
struct bx_dist_optim;
int bx_dist_optim_create(struct bx_dist *dist, struct bx_rref *const *params, size_t count,
                         const struct bx_optim_sgd *sgd, const struct bx_optim_adam *adam,
                         struct bx_dist_optim **optim);
void bx_dist_optim_destroy(struct bx_dist_optim *optim);        /* NULL is allowed */
/* One step of all owners at once, with their gradients of the context; steps of one owner run one after the other.
 * Blocks until all are done. The first failure: BX_E_PEER_DEAD, BX_E_CANCELLED, the codes of bx_optim_step; or why the
 * context ended or failed meanwhile: then some owners may have made no step. */
int bx_dist_optim_step(struct bx_dist_optim *optim, struct bx_context *context);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
