/* SPDX-License-Identifier: MIT */
/*
 * What the tests of references share: counters as objects, functions that make them and methods on them. MADE and
 * DESTROYED count in all workers.
 */
#ifndef TESTS_RREF_FIXTURE_H
#define TESTS_RREF_FIXTURE_H

#include "tests/harness/harness.h"

enum { MADE, DESTROYED };                   /* values */
enum { MAY_BE_MADE, BEING_MADE };           /* gates */

struct counter {
    int64_t value;                          /* any thread, atomically */
};

static inline int64_t alive(void)
{
    return (int64_t)(harness_load(MADE) - harness_load(DESTROYED));
}

static inline void await_alive(int64_t count)
{
    HARNESS_WAIT_WHILE(alive() != count);
}

static inline void destroy_counter(void *object)
{
    struct counter *counter = object;

    counter->value = INT64_MIN;             /* who uses it now is found out */
    free(counter);
    harness_add(DESTROYED, 1);
}

static inline int counter_value(void *object, struct bx_msg *value)
{
    return bx_msg_put_i64(value, __atomic_load_n(&((struct counter *)object)->value, __ATOMIC_SEQ_CST));
}

static const struct bx_type counter_type = { .name = "counter", .destroy = destroy_counter, .value = counter_value };
static const struct bx_type valueless_type = { .name = "valueless", .destroy = destroy_counter };

static inline struct counter *new_counter_of(int64_t value)
{
    struct counter *counter = malloc(sizeof *counter);

    counter->value = value;
    harness_add(MADE, 1);
    return counter;
}

/* ---- Functions ------------------------------------------------------------------------------------------- */

static inline int put_counter(const struct bx_request *request, struct bx_msg *reply, const struct bx_type *type,
                              int64_t value)
{
    struct counter *counter = new_counter_of(value);
    int rc = bx_msg_put_object(bx_request_job(request), reply, type, counter);

    if (rc < 0)
        destroy_counter(counter);
    return rc;
}

HARNESS_HANDLER(new_counter)
{
    return put_counter(request, reply, &counter_type, bx_read_i64(args));
}

HARNESS_HANDLER(new_valueless)
{
    return put_counter(request, reply, &valueless_type, bx_read_i64(args));
}

HARNESS_HANDLER(new_slow)
{
    harness_post(BEING_MADE);
    harness_await(MAY_BE_MADE, 1);
    return new_counter(request, args, reply, context);
}

HARNESS_HANDLER(new_failing)
{
    return bx_fail(-EDOM, "no counters today");
}

HARNESS_HANDLER(new_nothing)
{
    return bx_msg_put_i64(reply, 1);
}

HARNESS_ASYNC_HANDLER(new_async_failing)
{
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_fail(bx_future_acquire(*reply), -EDOM, "failed later");
}

/* ---- Methods --------------------------------------------------------------------------------------------- */

static inline int64_t add_and_get(struct counter *counter, struct bx_reader *args)
{
    return __atomic_add_fetch(&counter->value, bx_read_i64(args), __ATOMIC_SEQ_CST);
}

HARNESS_HANDLER(add)
{
    return bx_msg_put_i64(reply, add_and_get(bx_request_object(request), args));
}

HARNESS_ASYNC_HANDLER(add_async)
{
    struct bx_msg *value = bx_msg_create(8);

    bx_msg_put_i64(value, add_and_get(bx_request_object(request), args));
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, value);
}

static inline int add_batch(struct bx_batch *batch, void *context)
{
    (void)context;
    HARNESS_CHECK(bx_batch_object(batch, bx_batch_rows(batch)) == NULL);
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        bx_batch_reply_i64(batch, row, add_and_get(bx_batch_object(batch, row), &args));
    }
    return 0;
}

HARNESS_HANDLER(twin)
{
    const struct counter *counter = bx_request_object(request);

    return put_counter(request, reply, &counter_type, counter->value);
}

/* ---- Functions that get references ------------------------------------------------------------------------ */

static inline int64_t number_in(const struct bx_msg *msg)
{
    struct bx_reader reader = bx_msg_reader(msg);

    return bx_read_i64(&reader);
}

/* Adds 1 to the counter, wherever it is, and answers its value. */
static inline int add_one(struct bx_rref *rref, struct bx_msg *reply)
{
    struct bx_msg *one = harness_msg_i64(1), *value = NULL;
    int rc = bx_rref_sync(rref, "add", one, NULL, &value);

    bx_msg_destroy(one);
    if (rc < 0)
        return rc;
    rc = bx_msg_put_i64(reply, number_in(value));
    bx_msg_destroy(value);
    return rc;
}

/* The same, and sends the reference back. */
HARNESS_HANDLER(use_blocking)
{
    struct bx_rref *rref = bx_read_rref(args);
    int rc = add_one(rref, reply);

    return rc < 0 ? rc : bx_msg_put_rref(reply, rref);
}

static inline int reply_with(struct bx_future *in, struct bx_msg *out, void *context)
{
    OWN(rref) *rref = context;
    int rc = bx_future_error(in);

    if (rc == 0)
        rc = bx_msg_put_i64(out, number_in(bx_future_value(in)));
    if (rc == 0)
        rc = bx_msg_put_rref(out, rref);
    return rc;
}

HARNESS_ASYNC_HANDLER(use_async)
{
    struct bx_rref *rref = bx_read_rref(args);
    OWN(future) *future = NULL;
    struct bx_msg *one = harness_msg_i64(1);
    int rc = bx_rref_async(rref, "add", one, NULL, &future);

    bx_msg_destroy(one);
    if (rc < 0)
        return rc;
    *reply = bx_future_then_any(future, reply_with, bx_rref_acquire(rref), NULL);
    return 0;
}

static inline int use_batch(struct bx_batch *batch, void *context)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);
        int rc = use_blocking(NULL, &args, bx_batch_reply(batch, row), context);

        if (rc < 0)
            bx_batch_fail_row(batch, row, rc, bx_error_text());
    }
    return 0;
}

static struct bx_rref *kept_rref;

HARNESS_HANDLER(keep)
{
    kept_rref = bx_rref_acquire(bx_read_rref(args));
    return 0;
}

HARNESS_HANDLER(use_kept)
{
    return add_one(kept_rref, reply);
}

HARNESS_HANDLER(kept)
{
    return bx_msg_put_rref(reply, kept_rref);
}

HARNESS_HANDLER(drop_kept)
{
    bx_rref_release(kept_rref);
    kept_rref = NULL;
    return 0;
}

static inline int setup(struct bx_job *job)
{
    const struct bx_batch_options at_once = { .max_rows = 1 }, blocking = { .max_rows = 1, .blocking = true };

    HARNESS_REGISTER(job, HARNESS_INLINE("new_counter", new_counter), HARNESS_INLINE("new_valueless", new_valueless),
                     HARNESS_BLOCKING("new_slow", new_slow), HARNESS_BLOCKING("new_failing", new_failing),
                     HARNESS_INLINE("new_nothing", new_nothing), HARNESS_ASYNC("new_async_failing", new_async_failing));
    HARNESS_EQ(bx_register_method(job, &counter_type, "add", BX_INLINE, add, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &counter_type, "add_blocking", BX_BLOCKING, add, NULL), 0);
    HARNESS_EQ(bx_register_method_async(job, &counter_type, "add_async", BX_INLINE, add_async, NULL), 0);
    HARNESS_EQ(bx_register_method_batch(job, &counter_type, "add_batch", add_batch, NULL, &at_once), 0);
    HARNESS_EQ(bx_register_method(job, &counter_type, "twin", BX_INLINE, twin, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &valueless_type, "other_method", BX_INLINE, add, NULL), 0);
    HARNESS_REGISTER(job, HARNESS_BLOCKING("use", use_blocking), HARNESS_BLOCKING("use_blocking", use_blocking),
                     HARNESS_ASYNC("use_async", use_async));
    HARNESS_EQ(bx_register_batch(job, "use_batch", use_batch, NULL, &blocking), 0);
    return HARNESS_REGISTER(job, HARNESS_INLINE("keep", keep), HARNESS_BLOCKING("use_kept", use_kept),
                            HARNESS_INLINE("kept", kept), HARNESS_INLINE("drop_kept", drop_kept));
}

/* ---- Callers ---------------------------------------------------------------------------------------------- */

static inline struct bx_rref *remote(struct bx_job *job, const char *to, const char *function, int64_t value)
{
    OWN(msg) *args = harness_msg_i64(value);
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_remote(job, to, function, args, NULL, &rref), 0);
    return rref;
}

static inline int64_t add_to(struct bx_rref *rref, int64_t value)
{
    OWN(msg) *args = harness_msg_i64(value), *reply = NULL;

    HARNESS_EQ(bx_rref_sync(rref, "add", args, NULL, &reply), 0);
    return number_in(reply);
}

static inline int64_t value_of(struct bx_rref *rref)
{
    OWN(msg) *reply = NULL;

    HARNESS_EQ(bx_rref_to_here(rref, NULL, &reply), 0);
    return number_in(reply);
}

static inline struct bx_rref *own_counter(struct bx_job *job, int64_t value)
{
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_rref_create(job, &counter_type, new_counter_of(value), &rref), 0);
    return rref;
}

static inline struct bx_msg *msg_of(struct bx_rref *rref)
{
    struct bx_msg *msg = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_rref(msg, rref), 0);
    return msg;
}

/* Calls "keep" of another worker; drops the reference if `drops`. */
static inline void give(struct bx_job *job, const char *to, struct bx_rref *rref, bool drops)
{
    struct bx_msg *args = msg_of(rref);

    HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, NULL, NULL), 0);
    bx_msg_destroy(args);
    if (drops)
        bx_rref_release(rref);
}

static inline int64_t use_of(struct bx_job *job, const char *worker)
{
    return harness_call(job, worker, "use_kept", NULL);
}

static inline void drop_of(struct bx_job *job, const char *worker)
{
    HARNESS_EQ(bx_rpc_sync(job, worker, "drop_kept", NULL, NULL, NULL), 0);
}

#endif
