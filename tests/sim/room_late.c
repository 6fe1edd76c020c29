/* SPDX-License-Identifier: MIT */
/*
 * Calls that end before their answer: deadlines, cancels, the death of a worker.
 *
 * Truth: a call ends with its answer, with BX_E_TIMEOUT when its deadline has passed, or with BX_E_CANCELLED if it was
 * cancelled, and no later than LATE_NS behind its deadline. Its callee hears of that: the future of an async handler
 * fails, a blocking handler stops. Calls on an object that is to come run in their order. The sentence of an error
 * stays until the next one.
 */
#include "room_job.h"

#include "boxcar.h"
#include "shm/atomic.h"

#define LATE_NS 500000000
#define KEPT 3

/* An answer that a handler has promised. */
struct promise {
    struct bx_future *future;
    int64_t value;
    bool object;
};
static bxi_a64 promises[KEPT];

struct counter {
    int64_t count;
};

static void sleep_ns(long ns)
{
    nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/* ---- the callee ------------------------------------------------------------------------------------- */

static void counter_ends(void *object)
{
    sim_count(OBJECTS, -1);
    free(object);
}

static const struct bx_type counter_type = { .name = "counter", .destroy = counter_ends };

static void fulfil(struct bx_job *job, struct promise *promise)
{
    struct bx_msg *value;
    struct counter *counter;

    if (promise == NULL)
        return;
    value = sim_msg();
    if (promise->object) {
        counter = sim_memory(sizeof *counter);
        sim_count(OBJECTS, 1);
        if (bx_msg_put_object(job, value, &counter_type, counter) < 0)      /* the job has ended */
            counter_ends(counter);
    } else {
        bx_msg_put_i64(value, 2 * promise->value);
    }
    bx_future_set(promise->future, value);
    bx_future_release(promise->future);
    free(promise);
}

static struct promise *take(uint32_t index, struct promise *by)
{
    return (void *)(uintptr_t)bxi_exchange(&promises[index], (uint64_t)(uintptr_t)by);
}

static void promise_ends(struct bx_future *future, void *context)
{
    (void)context;
    sim_note("promise %p ends with %d", (void *)future, bx_future_error(future));
    sim_count(PENDING, -1);
}

/* Context, if any: the answer is an object. */
static int later(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    struct bx_job *job = bx_request_job(request);
    struct promise *promise = sim_memory(sizeof *promise);

    promise->future = sim_future(job);
    promise->value = context == NULL ? bx_read_i64(args) : 0;
    promise->object = context != NULL;
    sim_count(PENDING, 1);
    sim_note("promise %p", (void *)promise->future);
    SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(promise->future, promise_ends, NULL));
    *reply = bx_future_acquire(promise->future);
    fulfil(job, take(sim_choose(KEPT), promise));
    return 0;
}

#define NEVER_MOST 64
static struct bx_future *nevers[NEVER_MOST];
static int never_count;

/* Only the caller ends it. */
static int never(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    (void)args, (void)context;
    struct bx_job *job = bx_request_job(request);

    *reply = sim_future(job);
    sim_count(PENDING, 1);
    sim_note("promise %p, never kept", (void *)*reply);
    SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(*reply, promise_ends, NULL));
    if (never_count < NEVER_MOST)
        nevers[never_count++] = bx_future_acquire(*reply);
    return 0;
}

/* Works until nobody wants the answer. */
static int watch(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)reply, (void)context;
    for (int i = 0; !bx_request_is_cancelled(request); i++) {
        if (i == 200 + (int)(sim_stopped_ns() / 5000000))
            sim_fail("a handler does not hear that nobody wants its answer");
        sleep_ns(5000000);
    }
    return -ECANCELED;
}

/* Hears of nothing. */
static int drowsy(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    sleep_ns(800000000);
    return -ECANCELED;
}

/* Asks the caller, and waits. */
static int nested(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_job *job = bx_request_job(request);
    struct bx_msg *own = sim_msg(), *answer = NULL;
    struct bx_reader reader;
    int rc;

    (void)context;
    bx_msg_put_i64(own, bx_read_i64(args));
    rc = bx_rpc_sync(job, sim_names[bx_request_caller(request)], "quick", own, NULL, &answer);
    bx_msg_destroy(own);
    if (rc < 0)
        return rc;
    reader = bx_msg_reader(answer);
    bx_msg_put_i64(reply, bx_read_i64(&reader));
    bx_msg_destroy(answer);
    return 0;
}

static int refuse(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    return bx_fail(BX_E_APPLICATION(1), "not today");
}

/* Calls on an object of one thread run in their order. */
static int step(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct counter *counter = bx_request_object(request);
    int64_t number = bx_read_i64(args);

    (void)context;
    if (number > counter->count && sim_refusal() != 0)
        counter->count = number;        /* some have failed */
    if (number != counter->count++)
        sim_fail("call %lld on an object overtakes another one", (long long)number);
    return bx_msg_put_i64(reply, 2 * number);
}

void sim_late_register(struct bx_job *job)
{
    SIM_AGAIN(job, "bx_register_async", bx_register_async(job, "later", BX_INLINE, later, NULL));
    SIM_AGAIN(job, "bx_register_async", bx_register_async(job, "object", BX_INLINE, later, promises));
    SIM_AGAIN(job, "bx_register_async", bx_register_async(job, "never", BX_INLINE, never, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "watch", BX_BLOCKING, watch, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "drowsy", BX_BLOCKING, drowsy, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "nested", BX_LOCKED, nested, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "quick", BX_INLINE, sim_double, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "refuse", BX_INLINE, refuse, NULL));
    SIM_AGAIN(job, "bx_register_method", bx_register_method(job, &counter_type, "step", BX_INLINE, step, NULL));
}

/* ---- the caller ------------------------------------------------------------------------------------- */

/* A call that is under way. */
struct late {
    int64_t value;
    uint64_t due_ns;                    /* SIM_FOREVER: no deadline */
    bool cancelled, refused;
    struct late *other;                 /* its callback cancels that one */
    struct bx_future *future;
};

static void ended(const struct late *late, struct bx_future *future)
{
    int rc = bx_future_error(future);
    struct bx_reader reader;

    if (rc == 0) {
        reader = bx_msg_reader(bx_future_value(future));
        if (bx_read_i64(&reader) != 2 * late->value || late->refused)
            sim_fail("a call has a wrong answer");
        return;
    }
    if (!(rc == BX_E_TIMEOUT && sim_now() >= late->due_ns) && !(rc == BX_E_CANCELLED && late->cancelled) &&
        !(rc == BX_E_APPLICATION(1) && late->refused) && !sim_is_allowed(rc) &&
        !(rc == -ECANCELED && sim_now() >= late->due_ns))       /* of watch, whose answer was faster */
        sim_fail("a call ends with %d: %s", rc, bx_future_error_text(future));
    if (late->due_ns != SIM_FOREVER && sim_now() > late->due_ns + LATE_NS + sim_stopped_ns() + sim_death_ns())
        sim_fail("a call ends %.6f s after its deadline", (double)(sim_now() - late->due_ns) / 1e9);
}

static void cancel(struct late *late)
{
    late->cancelled = true;
    bx_future_cancel(late->future);
}

static void late_called_back(struct bx_future *future, void *context)
{
    struct late *late = context;

    if (sim_truth(STOPPED_0 + (unsigned)sim_self->worker))
        sim_fail("a callback runs after the shutdown");
    ended(late, future);
    if (late->other != NULL)
        cancel(late->other);
    sim_count(CALLBACKS, -1);
    bx_future_release(future);
    bx_future_release(late->other != NULL ? late->other->future : NULL);
}

/* The call has a reference; NULL: its callee is dead. */
static struct late *begin_call(struct bx_job *job)
{
    static const char *const functions[] = { "quick", "nested", "refuse", "gather", "later", "never", "watch", "slow" };
    static const uint64_t timeouts[] = { 3000000, 20000000, 50000000, BX_FOREVER };
    uint32_t which = sim_choose(8), span = sim_choose(which < 4 ? 4 : 3);
    struct late *late = sim_memory(sizeof *late);
    struct bx_msg *args = sim_msg();
    int to = sim_another(job);

    late->value = 2 * (1 + sim_choose(100));
    late->refused = which == 2;
    late->due_ns = timeouts[span] == BX_FOREVER ? SIM_FOREVER : sim_now() + timeouts[span];
    bx_msg_put_i64(args, late->value);
    sim_count(SENT_TO_0 + (unsigned)to, which == 3 || which == 7);
    sim_count(GIVEN_UP, which == 3 || which == 7);
    sim_must(job, "bx_rpc_async", bx_rpc_async(job, sim_names[to], functions[which], args, &(struct bx_call_options){
                                                   .timeout_ns = timeouts[span] }, &late->future));
    bx_msg_destroy(args);
    return late->future != NULL ? late : NULL;
}

static void await(struct bx_job *job, struct late *late)
{
    int rc;

    if (sim_choose(4) == 0) {
        sleep_ns((long)(1 + sim_choose(4)) * 2500000);
        cancel(late);
    }
    bx_fail(-EINVAL, "mine");
    rc = bx_future_wait(late->future, BX_FOREVER);
    if (rc == 0 && strcmp(bx_error_text(), "mine") != 0 && sim_refusal() == 0)   /* else no memory for it */
        sim_fail("a sentence was replaced by '%s'", bx_error_text());
    if (rc != bx_future_error(late->future))
        sim_fail("a wait in '%s' returns %d", bx_job_name(job), rc);
    ended(late, late->future);
    bx_future_release(late->future);
}

static int add_one(struct bx_future *in, struct bx_msg *out, void *context)
{
    struct bx_reader reader = bx_msg_reader(bx_future_value(in));

    (void)context;
    return bx_msg_put_i64(out, bx_read_i64(&reader) + 1);
}

/* Two calls, and what is made of them. */
void sim_combine(struct bx_job *job)
{
    struct late *a = begin_call(job), *b = begin_call(job);
    struct bx_future *both[2], *made = NULL;
    uint32_t way = sim_choose(3);

    if (a == NULL || b == NULL) {
        bx_future_release(a != NULL ? a->future : b != NULL ? b->future : NULL);
        return;
    }
    both[0] = a->future;
    both[1] = b->future;
    for (int i = 0; made == NULL && i < 2; i++)
        made = way == 0 ? bx_future_all(job, both, 2) : way == 1 ? bx_future_any(job, both, 2)
                        : bx_future_then(a->future, add_one, NULL, NULL);
    if (made == NULL)
        sim_fail("no future is made of two: %s", bx_error_text());
    bx_future_wait(made, BX_FOREVER);
    if (way == 1 ? !bx_future_is_done(both[bx_future_index(made)]) : !bx_future_is_done(both[0]))
        sim_fail("what is made of futures is done before them");
    if (way == 2 && bx_future_error(made) == 0) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(made));

        if (bx_read_i64(&reader) != 2 * a->value + 1)
            sim_fail("a future of a future has a wrong value");
    }
    bx_future_release(made);
    await(job, b);
    await(job, a);
}

/* Callbacks that release the last references, and may cancel the next call. */
void sim_call_back(struct bx_job *job)
{
    struct late *a = begin_call(job), *b = begin_call(job);

    if (a == NULL || b == NULL) {
        bx_future_release(a != NULL ? a->future : b != NULL ? b->future : NULL);
        return;
    }
    if (sim_choose(2) == 0) {
        a->other = b;
        b->cancelled = true;
        bx_future_acquire(b->future);
    }
    sim_count(CALLBACKS, 2);
    SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(b->future, late_called_back, b));
    SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(a->future, late_called_back, a));
}

/* Calls on an object that may never be made. */
void sim_call_object(struct bx_job *job)
{
    static const char *const functions[] = { "object", "object", "never", "drowsy" };
    struct bx_call_options options = { .timeout_ns = 20000000 };
    struct bx_rref *rref = NULL;
    struct bx_future *future = NULL;
    uint64_t due_ns = sim_now() + options.timeout_ns;
    int64_t calls = 1 + sim_choose(4);

    sim_must(job, "bx_remote", bx_remote(job, sim_names[sim_another(job)], functions[sim_choose(4)], NULL, &options,
                                         &rref));
    if (rref == NULL)
        return;
    for (int64_t i = 0; i < calls; i++) {
        struct bx_msg *args = sim_msg();

        bx_msg_put_i64(args, i);
        if (i > 1)
            sleep_ns((long)sim_choose(3) * 1000000);
        if (sim_choose(4) != 0)
            bx_rref_oneway(rref, "step", args, NULL);
        else if (bx_rref_async(rref, "step", args, NULL, &future) == 0)
            bx_future_wait(future, BX_FOREVER);
        if (sim_now() > due_ns + LATE_NS + sim_stopped_ns() + sim_death_ns())
            sim_fail("a call on an object waits for one that does not come");
        bx_future_release(future);
        future = NULL;
        bx_msg_destroy(args);
    }
    bx_rref_release(rref);
}

void sim_begin_and_await(struct bx_job *job)
{
    struct late *late = begin_call(job);

    if (late != NULL)
        await(job, late);
}

static void release_last(struct bx_future *future, void *context)
{
    (void)context;
    bx_future_release(future);
}

void sim_fulfil_one(struct bx_job *job)
{
    struct bx_future *own = sim_future(job);

    SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(own, release_last, NULL));
    bx_future_set(own, sim_msg());
    fulfil(job, take(sim_choose(KEPT), NULL));
}

/* Keeps promises. */
void *sim_complete(void *argument)
{
    for (int i = 0; i < 6; i++) {
        sleep_ns((long)(1 + sim_choose(3)) * 1000000);
        fulfil(argument, take(sim_choose(KEPT), NULL));
    }
    return NULL;
}

/* Behind the shutdown. */
void sim_release_late(void)
{
    for (uint32_t i = 0; i < KEPT; i++) {
        struct promise *promise = take(i, NULL);

        if (promise != NULL && !bx_future_is_done(promise->future))
            sim_fail("a future that a handler has returned is pending behind the shutdown");
        bx_future_release(promise != NULL ? promise->future : NULL);
    }
    while (never_count > 0)
        bx_future_release(nevers[--never_count]);
}

void sim_late_end(void)
{
    uint64_t stopped = 0;

    sim_release_late();
    for (unsigned rank = 0; rank < WORKERS_MOST; rank++)
        stopped += sim_truth(STOPPED_0 + rank);
    if (sim_truth(PENDING) != 0 && stopped == sim_truth(SIZE) && !sim_one_left() && !sim_any_is_dead())
        sim_fail("%lld futures of handlers did not end", (long long)sim_truth(PENDING));
}
