/* SPDX-License-Identifier: MIT */
/*
 * boxcar_rref.h - references to objects of other workers. A part of boxcar.h, which includes it.
 */
#ifndef BOXCAR_H
#include "boxcar.h"
#elif !defined(BOXCAR_RREF_H)
#define BOXCAR_RREF_H

/* ---- References to objects ---------------------------------------------------------------------- */

/*
 * A reference to an object that the program has made, in this worker or in another one, its owner. References are
 * counted: create, remote and acquire return one, release drops one, and a message holds its own. The owner keeps the
 * object until no worker has a reference to it; then its type's destroy is called. References travel in messages, as
 * arguments and in replies, between any two workers.
 *
 * A method is a function that is registered for a type. It is called on a reference and runs at the owner, as any
 * other handler of its kind, with the object (bx_request_object).
 *
 *     static const struct bx_type counter_type = { .name = "counter", .destroy = free };
 *
 *     bx_register(job, "new_counter", BX_INLINE, new_counter, NULL);          owner: puts the object into its reply
 *     bx_register_method(job, &counter_type, "add", BX_INLINE, add, NULL);    owner
 *
 *     bx_remote(job, "ps", "new_counter", NULL, NULL, &counter);              anybody
 *     bx_rref_sync(counter, "add", args, NULL, &reply);
 *     bx_rref_release(counter);
 *
 * Death. References that a dead worker held are dropped, once every message that it had sent is read. Each use of a
 * reference whose owner has died fails with BX_E_PEER_DEAD; if it has left or was cut off, with the code of a call to
 * it. If the worker that called bx_remote is gone before the owner has read the call, each use of a reference to that
 * object by others fails with the code of a call to that worker: BX_E_SHUTDOWN if it has left. At bx_job_shutdown the
 * owner logs each object that another worker still refers to (counter rrefs_leaked), and destroys it; bx_job_destroy
 * does the same for its own references, after which a reference can only be released.
 */
/* Writes an object's value for bx_rref_to_here. It runs on the thread that makes progress, as an inline handler. */
typedef int (*bx_value_fn)(void *object, struct bx_msg *value);
struct bx_type {
    const char *name;           /* for errors and inspectors */
    bx_free_fn destroy;         /* of the object: its last reference is gone; any thread, must not wait; may be NULL. An
                                 * object whose last reference it drops is destroyed when it has returned */
    bx_value_fn value;          /* NULL: the object has no value to send */
};

/* Makes a reference to an object of this worker. type must live as long as the job. Returns one reference. On failure
 * the object is not destroyed. -ENOMEM. */
int bx_rref_create(struct bx_job *job, const struct bx_type *type, void *object, struct bx_rref **rref);
/* As bx_rref_create, put into a message: for the handler of bx_remote. On failure the object is not destroyed. */
int bx_msg_put_object(struct bx_job *job, struct bx_msg *msg, const struct bx_type *type, void *object);

/* Makes an object in worker `to`: calls a function there whose reply holds a reference to an object of that worker,
 * first. *rref can be used at once, and be passed on: calls on the object wait at its owner until it is made. If the
 * function fails, or does not answer within timeout_ns, each use of the reference fails with its error, those that
 * wait for the object too; an object that is made after that is destroyed. If no use was told of it, it is logged when
 * the reference is released. Blocks only for room; codes as bx_rpc_async. */
int bx_remote(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
              const struct bx_call_options *options, struct bx_rref **rref) BX_SINCE_0_2(bx_remote);

struct bx_rref *bx_rref_acquire(struct bx_rref *rref);          /* adds a reference; returns its argument */
void bx_rref_release(struct bx_rref *rref);                     /* drops a reference; NULL is allowed */
int bx_rref_owner(const struct bx_rref *rref);                  /* the owner's rank */
bool bx_rref_is_owner(const struct bx_rref *rref);              /* this worker is the owner */
/* The owner knows of this worker's reference. For the worker that called bx_remote, also: the object is made. */
bool bx_rref_is_confirmed(const struct bx_rref *rref);
/* Waits until the reference is confirmed. Blocks. 0; why it could not be made; BX_E_PEER_DEAD, BX_E_NO_OBJECT,
 * BX_E_TIMEOUT, BX_E_WOULD_DEADLOCK. */
int bx_rref_wait(struct bx_rref *rref, uint64_t timeout_ns);
/* The object itself, for its owner; valid while a reference is held. BX_E_TYPE: it is of another type; -EREMOTE: its
 * owner is another worker; -EAGAIN: it is not made yet; why it could not be made. */
int bx_rref_local(const struct bx_rref *rref, const struct bx_type *type, void **object);

/* Fetches the object's value, which its type writes (bx_type.value), also before the object is made. *value is the
 * caller's. Gradients stop here, also of a parameter (boxcar_dist.h); bx_msg_put_var carries them. Blocks. Codes of
 * bx_rpc_sync; BX_E_TYPE: the type has no value. */
int bx_rref_to_here(struct bx_rref *rref, const struct bx_call_options *options, struct bx_msg **value)
    BX_SINCE_0_2(bx_rref_to_here);
int bx_rref_to_here_async(struct bx_rref *rref, const struct bx_call_options *options, struct bx_future **future)
    BX_SINCE_0_2(bx_rref_to_here_async);

/* Call a method on the object: as bx_rpc_sync, bx_rpc_async, bx_rpc_oneway and bx_remote. BX_E_TYPE: the function is no
 * method, or one of another type; BX_E_NO_OBJECT; the error with which the object could not be made. */
int bx_rref_sync(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                 const struct bx_call_options *options, struct bx_msg **reply) BX_SINCE_0_2(bx_rref_sync);
int bx_rref_async(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                  const struct bx_call_options *options, struct bx_future **future) BX_SINCE_0_2(bx_rref_async);
int bx_rref_oneway(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                   const struct bx_call_options *options) BX_SINCE_0_2(bx_rref_oneway);
int bx_rref_remote(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                   const struct bx_call_options *options, struct bx_rref **made) BX_SINCE_0_2(bx_rref_remote);

/* As bx_register, bx_register_async and bx_register_batch, for calls on an object of the type. Names are shared with
 * functions. A method that is called without an object fails with BX_E_TYPE. */
int bx_register_method(struct bx_job *job, const struct bx_type *type, const char *name, enum bx_kind kind,
                       bx_handler_fn fn, void *context);
int bx_register_method_async(struct bx_job *job, const struct bx_type *type, const char *name, enum bx_kind kind,
                             bx_async_fn fn, void *context) BX_SINCE_0_2(bx_register_method_async);
void *bx_request_object(const struct bx_request *request);      /* NULL: the function is no method */

#endif
