/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/nested.c: calls that a handler makes for its request have its deadline and end with it, over any number of
 * workers. test_on_cancel.c has the hook.
 *
 * Worker 0 calls a relay at worker 1, whose handler calls "stay" at worker 2. That one stays until its request is given
 * up: so each of these tests hangs if that is not passed on.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#define MANY 100
#define LONG_NS (30000 * HARNESS_MS)

enum { ENTERED, LEFT, RELAYED, RELEASED, DONE };                /* gates */
enum { RUNNING, CODE, CANCELLED, DEADLINE, LOOKS, SEEN = 16 };  /* values */

/* ---- worker 2 ------------------------------------------------------------------------------------ */

HARNESS_HANDLER(stay)
{
    harness_add(RUNNING, 1);
    harness_post(ENTERED);
    HARNESS_WAIT_WHILE(!bx_request_is_cancelled(request));
    harness_add(RUNNING, (uint64_t)-1);
    harness_post(LEFT);
    /* This answer may come before its caller has looked at the clock. */
    return bx_request_deadline_ns(request) <= bxi_now_ns() ? bx_fail(BX_E_TIMEOUT, "its deadline has passed") : 0;
}

/* Stays until RELEASED, whatever its caller does. */
HARNESS_HANDLER(stay_on)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    harness_store(CANCELLED, bx_request_is_cancelled(request));
    return 0;
}

/* ---- worker 1: the relays ------------------------------------------------------------------------ */

static const char *far(const struct bx_request *request)
{
    return bx_worker_name(bx_request_job(request), bx_job_rank(bx_request_job(request)) + 1);
}

static void note_end(int code, const char *text)
{
    static const char *const ends[] = { "cancelled it", "died", "left the job", "has passed", "left to the request" };

    harness_store(CODE, (uint64_t)-code);
    for (int i = 0; i < 5; i++)
        if (strstr(text, ends[i]) != NULL)
            harness_store(SEEN + i, 1);
    harness_post(RELAYED);
}

HARNESS_HANDLER(relay_sync)
{
    const struct bx_call_options patient = { .timeout_ns = BX_FOREVER };
    int rc = bx_rpc_sync(bx_request_job(request), far(request), context, NULL, &patient, NULL);

    HARNESS_CHECK(bx_request_is_cancelled(request));
    note_end(rc, bx_error_text());
    return rc;
}

/* As relay_sync, but its calls are async, and its thread waits for the last. */
HARNESS_HANDLER(relay_many)
{
    const struct bx_call_options patient = { .timeout_ns = BX_FOREVER };
    struct bx_job *job = bx_request_job(request);
    struct bx_future *futures[MANY];
    int rc = 0;

    HARNESS_EQ(bx_rpc_async(job, far(request), context, NULL, &patient, &futures[0]), 0);
    HARNESS_EQ(bx_rpc_many(job, far(request), "hold", MANY - 1, NULL, &patient, futures + 1), 0);
    harness_post(DONE);
    for (int i = MANY - 1; i >= 0; i--) {
        rc = bx_future_wait(futures[i], BX_FOREVER);
        HARNESS_CHECK(rc == BX_E_CANCELLED || rc == BX_E_TIMEOUT);
        if (i == 0)
            note_end(rc, bx_error_text());
        bx_future_release(futures[i]);
    }
    return rc;
}

HARNESS_CALLBACK(note_future)
{
    note_end(bx_future_error(future), bx_future_error_text(future));
    bx_future_release(future);
}

static int call_far(const struct bx_request *request, const char *function)
{
    const struct bx_call_options patient = { .timeout_ns = BX_FOREVER };
    struct bx_future *future = NULL;
    int rc = bx_rpc_async(bx_request_job(request), far(request), function, NULL, &patient, &future);

    return rc < 0 ? rc : bx_future_on_done(future, note_future, NULL);
}

/* Its own future is not the call's. */
HARNESS_ASYNC_HANDLER(relay_async)
{
    harness_never(request, args, reply, NULL);
    return call_far(request, context);
}

/* A callback, added in a callback that the handler has added, makes the call. */
static void call_stay(struct bx_future *future, void *context)
{
    const struct bx_call_options patient = { .timeout_ns = BX_FOREVER };
    struct bx_future *nested = NULL;
    struct bx_job *job = context;

    HARNESS_EQ(bx_future_error(future), 0);
    HARNESS_EQ(bx_rpc_async(job, "worker2", "stay", NULL, &patient, &nested), 0);
    HARNESS_EQ(bx_future_on_done(nested, note_future, NULL), 0);
}

HARNESS_THEN(call_again)
{
    OWN(future) *nested = NULL;

    nested = harness_async(context, "worker2", "echo");
    HARNESS_EQ(bx_future_on_done(nested, call_stay, context), 0);
    return 0;
}

HARNESS_ASYNC_HANDLER(relay_later)
{
    struct bx_job *job = bx_request_job(request);
    OWN(future) *first = NULL;

    harness_never(request, args, reply, NULL);
    first = harness_async(job, "worker2", "echo");
    bx_future_release(bx_future_then(first, call_again, job, NULL));
    return 0;
}

static int setup(struct bx_job *job)
{
    static char to_stay[] = "stay", to_relay[] = "relay_sync";
    bool last = bx_job_rank(job) + 2 >= bx_job_world_size(job);

    HARNESS_REGISTER(job, HARNESS_BLOCKING("stay", stay), HARNESS_BLOCKING("stay_on", stay_on),
                     HARNESS_INLINE("echo", harness_nothing), HARNESS_ASYNC("hold", harness_never));
    HARNESS_EQ(bx_register(job, "relay_sync", BX_BLOCKING, relay_sync, last ? to_stay : to_relay), 0);
    return HARNESS_REGISTER(job, { "relay_many", BX_BLOCKING, relay_many, NULL, to_stay },
                            { "relay_async", BX_INLINE, NULL, relay_async, to_stay },
                            HARNESS_ASYNC("relay_later", relay_later));
}

/* ---- why the request is given up ------------------------------------------------------------------- */

static void all_have_left(int code, int end)
{
    harness_await(LEFT, 1);
    harness_await(RELAYED, 1);
    HARNESS_EQ(harness_load(RUNNING), 0);
    HARNESS_EQ(harness_load(CODE), (uint64_t)-code);
    HARNESS_EQ(harness_load(SEEN + end), 1);
}

static const char *relay;

static void gives_up_after_300_ms(struct bx_job *job)
{
    const struct bx_call_options hasty = { .timeout_ns = 300 * HARNESS_MS };

    HARNESS_EQ(bx_rpc_sync(job, "worker1", relay, NULL, &hasty, NULL), BX_E_TIMEOUT);
    harness_await(LEFT, 1);
    harness_await(RELAYED, 1);
    HARNESS_EQ(harness_load(RUNNING), 0);
    HARNESS_EQ(harness_load(CODE), (uint64_t)-BX_E_TIMEOUT);
    /* The call's own deadline, the cancel, or the answer: whichever came first. */
    HARNESS_EQ(harness_load(SEEN + 3) + harness_load(SEEN + 4), 1);
}

static void try_relays(const char *const *names, int size, harness_fn body)
{
    for (; *names != NULL; names++) {
        relay = *names;
        harness_reset();
        harness_run(&(struct harness_world){ .size = size, .setup = setup, .body = { body } });
    }
}

static const char *const relays[] = { "relay_sync", "relay_many", "relay_async", "relay_later", NULL };

Test(nested, calls_end_at_the_deadline_of_the_request, .timeout = 60)
{
    try_relays(relays, 3, gives_up_after_300_ms);
}

static struct bx_future *begin(struct bx_job *job)
{
    struct bx_future *future = harness_async(job, "worker1", relay);

    harness_await(ENTERED, 1);
    if (strcmp(relay, "relay_many") == 0)
        harness_await(DONE, 1);
    return future;
}

static void cancels(struct bx_job *job)
{
    OWN(future) *future = begin(job);

    HARNESS_EQ(bx_future_cancel(future), 0);
    all_have_left(BX_E_CANCELLED, 0);
}

Test(nested, calls_are_cancelled_with_the_request, .timeout = 60)
{
    try_relays(relays, 3, cancels);
}

Test(nested, calls_are_cancelled_over_several_workers, .timeout = 60)
{
    static const char *const one[] = { "relay_sync", NULL };

    try_relays(one, 6, cancels);
    cr_expect_eq(harness_gate(RELAYED), 4);
}

static void dies(struct bx_job *job)
{
    harness_leaves_by_itself();
    bx_future_release(begin(job));
    raise(SIGKILL);
}

HARNESS_BODY(outlives)
{
    all_have_left(BX_E_CANCELLED, 1);
}

Test(nested, calls_are_cancelled_when_the_caller_is_killed, .timeout = 60)
{
    for (const char *const *name = relays; *name != NULL; name++) {
        relay = *name;
        harness_reset();
        harness_run(&(struct harness_world){
            .size = 3, .setup = setup, .body = { dies, outlives, harness_serve }, .dies = 1u << 0 });
    }
}

static void leaves(struct bx_job *job)
{
    harness_leaves_by_itself();
    bx_future_release(begin(job));
    HARNESS_EQ(bx_job_shutdown(job, 50 * HARNESS_MS), BX_E_TIMEOUT);
    bx_job_destroy(job);
    all_have_left(BX_E_CANCELLED, 2);
}

Test(nested, calls_are_cancelled_when_the_caller_leaves, .timeout = 60)
{
    try_relays(relays, 3, leaves);
}

/* ---- what goes on ---------------------------------------------------------------------------------- */

HARNESS_HANDLER(call_detached)
{
    const struct bx_call_options own = { .timeout_ns = BX_FOREVER, .flags = BX_CALL_DETACHED };
    int rc;

    /* The slot of a call for the request that has ended. */
    HARNESS_EQ(bx_rpc_sync(bx_request_job(request), "worker2", "echo", NULL, NULL, NULL), 0);
    rc = bx_rpc_sync(bx_request_job(request), "worker2", "stay_on", NULL, &own, NULL);
    HARNESS_CHECK(bx_request_is_cancelled(request));
    note_end(rc, "");
    return 0;
}

static struct bx_future *left_behind;

HARNESS_HANDLER(call_and_leave)
{
    return bx_rpc_async(bx_request_job(request), "worker2", "stay_on", NULL, NULL, &left_behind);
}

HARNESS_TEST(nested, detached_call_goes_on, 20, .size = 3, .setup = setup,
             .handlers = { HARNESS_BLOCKING("detached", call_detached) })
{
    struct bx_future *future = harness_async(job, "worker1", "detached");

    harness_await(ENTERED, 1);
    harness_cancel(future);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL), 0);       /* the cancel has been read */
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "echo", NULL, NULL, NULL), 0);
    harness_post(RELEASED);
    harness_await(RELAYED, 1);
    HARNESS_EQ(harness_load(CODE), 0);
    HARNESS_EQ(harness_load(CANCELLED), 0);
}

static void has_a_call_left(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    harness_post(RELEASED);
    HARNESS_EQ(bx_future_wait(left_behind, BX_FOREVER), 0);
    HARNESS_EQ(harness_load(CANCELLED), 0);
    bx_future_release(left_behind);
}

HARNESS_TEST(nested, call_goes_on_when_the_request_was_answered, 20, .size = 3, .setup = setup, .dies = 1u << 0,
             .handlers = { HARNESS_BLOCKING("leave_behind", call_and_leave) },
             .body = { NULL, has_a_call_left, harness_serve })
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "leave_behind", NULL, NULL, NULL), 0);
    raise(SIGKILL);
}

HARNESS_HANDLER(call_for_oneway)
{
    struct bx_job *job = bx_request_job(request);

    harness_post(ENTERED);
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, 0));
    HARNESS_CHECK(!bx_request_is_cancelled(request));
    note_end(bx_rpc_sync(job, "worker2", "echo", NULL, NULL, NULL), "");
    return 0;
}

HARNESS_BODY(awaits_the_relay)
{
    harness_await(RELAYED, 1);
    HARNESS_EQ(harness_load(CODE), 0);
}

HARNESS_TEST(nested, calls_of_a_oneway_request_go_on_when_its_caller_is_dead, 20, .size = 3, .setup = setup,
             .handlers = { HARNESS_BLOCKING("oneway", call_for_oneway) }, .dies = 1u << 0,
             .body = { NULL, awaits_the_relay, harness_serve })
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "oneway", NULL, NULL), 0);
    harness_await(ENTERED, 1);
    raise(SIGKILL);
}

/* Its list of calls does not grow with those that have ended. */
HARNESS_HANDLER(call_often)
{
    const struct bxi_waiting *waiting = (const struct bxi_waiting *)(const void *)request;
    struct bx_future *futures[MANY];

    for (int i = 0; i < 1000; i++)
        HARNESS_EQ(bx_rpc_sync(bx_request_job(request), "worker0", "echo", NULL, NULL, NULL), 0);
    HARNESS_CHECK(waiting->call_capacity > 0 && waiting->call_capacity <= 4);
    HARNESS_EQ(bx_rpc_many(bx_request_job(request), "worker0", "echo", MANY, NULL, NULL, futures), 0);
    harness_end_all(futures, MANY, 0);
    HARNESS_CHECK(waiting->call_capacity <= 4 * MANY);
    return 0;
}

HARNESS_TEST(nested, list_of_calls_forgets_those_that_have_ended, 20, .size = 2, .setup = setup,
             .handlers = { HARNESS_BLOCKING("often", call_often) })
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "often", NULL, NULL, NULL), 0);
}

/* ---- further calls --------------------------------------------------------------------------------- */

static const struct bx_type type = { .name = "thing" };

/* Calls of all kinds when the request is over. */
HARNESS_HANDLER(call_on)
{
    const struct bx_call_options own = { .flags = BX_CALL_DETACHED };
    struct bx_job *job = bx_request_job(request);
    struct bx_future *futures[2] = { NULL, NULL };
    struct bx_rref *rref = NULL, *made = NULL;

    harness_post(ENTERED);
    HARNESS_WAIT_WHILE(!bx_request_is_cancelled(request));
    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "echo", NULL, NULL, NULL), BX_E_CANCELLED);
    HARNESS_HAS(bx_error_text(), "'call_on' by worker 'worker0', which cancelled it");
    HARNESS_EQ(bx_rpc_async(job, "worker2", "echo", NULL, NULL, futures), BX_E_CANCELLED);
    HARNESS_EQ(bx_rpc_many(job, "worker2", "echo", 2, NULL, NULL, futures), BX_E_CANCELLED);
    HARNESS_EQ(bx_rpc_oneway(job, "worker2", "echo", NULL, NULL), BX_E_CANCELLED);
    HARNESS_EQ(bx_remote(job, "worker2", "echo", NULL, NULL, &made), BX_E_CANCELLED);
    HARNESS_EQ(bx_rref_sync(rref, "method", NULL, NULL, NULL), BX_E_CANCELLED);
    HARNESS_EQ(bx_rref_async(rref, "method", NULL, NULL, futures), BX_E_CANCELLED);
    HARNESS_CHECK(futures[0] == NULL && futures[1] == NULL && made == NULL);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "echo", NULL, &own, NULL), 0);
    HARNESS_EQ(bx_rref_sync(rref, "method", NULL, &own, NULL), 0);
    bx_rref_release(rref);
    harness_post(LEFT);
    return 0;
}

static int setup_calling_on(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "call_on", BX_BLOCKING, call_on, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &type, "method", BX_INLINE, harness_nothing, NULL), 0);
    return setup(job);
}

HARNESS_TEST(nested, call_fails_at_once_when_the_request_is_over, 20, .size = 3, .setup = setup_calling_on)
{
    struct bx_future *future = harness_async(job, "worker1", "call_on");

    harness_await(ENTERED, 1);
    harness_cancel(future);
    harness_await(LEFT, 1);
}

/* Fills the callee's slots with calls that are not for the request, then waits for room for one that is. */
HARNESS_HANDLER(wait_for_room)
{
    const struct bx_call_options own = { .timeout_ns = BX_FOREVER, .flags = BX_CALL_DETACHED };
    static struct bx_future *futures[BXI_CALLS_MAX - 1];
    struct bx_job *job = bx_request_job(request);

    HARNESS_EQ(bx_rpc_many(job, "worker2", "hold", BXI_CALLS_MAX - 1, NULL, &own, futures), 0);
    harness_post(ENTERED);
    note_end(bx_rpc_sync(job, "worker2", "echo", NULL, NULL, NULL), bx_error_text());
    for (int i = 0; i < BXI_CALLS_MAX - 1; i++)
        harness_cancel(futures[i]);
    harness_post(LEFT);
    return 0;
}

/* The first thread waits for a call with the 1024th slot, so the handler's thread does not lead: somebody must wake it.
 * The second posts DONE when the handler waits. */
static void wait_or_watch(struct bx_job *job, int index)
{
    if (index == 0) {
        HARNESS_EQ(bx_rpc_sync(job, "worker2", "stay_on", NULL, NULL, NULL), 0);
        return;
    }
    harness_await(ENTERED, 2);
    HARNESS_WAIT_WHILE(bxi_load_relaxed(&job->rpc->pool.blocked) == 0 || bxi_load_relaxed(&job->run->followers) == 0);
    harness_post(DONE);
}

static void watches_the_pool(struct bx_job *job)
{
    harness_threads(job, 2, wait_or_watch);
}

HARNESS_TEST(nested, wait_for_room_ends_with_the_request, 20, .size = 3, .setup = setup,
             .handlers = { HARNESS_BLOCKING("room", wait_for_room) }, .body = { NULL, watches_the_pool })
{
    OWN(future) *future = NULL;

    harness_await(ENTERED, 1);
    future = harness_async(job, "worker1", "room");
    harness_await(DONE, 1);
    HARNESS_EQ(bx_future_cancel(future), 0);
    harness_await(LEFT, 1);
    harness_post(RELEASED);
    HARNESS_EQ(harness_load(CODE), (uint64_t)-BX_E_CANCELLED);
}

/* ---- deadlines ------------------------------------------------------------------------------------- */

HARNESS_HANDLER(look)
{
    harness_store(DEADLINE, bx_request_deadline_ns(request));
    harness_add(LOOKS, 1);
    return 0;
}

/* The deadline with which the last call has come; `looks` calls have. */
static uint64_t seen(uint64_t looks)
{
    HARNESS_WAIT_WHILE(harness_load(LOOKS) < looks);
    HARNESS_EQ(harness_load(LOOKS), looks);
    harness_store(LOOKS, 0);
    return harness_load(DEADLINE);
}

HARNESS_HANDLER(call_all_ways)
{
    uint64_t own_ns = bx_request_deadline_ns(request);
    struct bx_job *job = bx_request_job(request);
    struct bx_future *futures[2];
    OWN(rref) *rref = NULL, *made = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker0", "look", NULL, NULL, NULL), 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_rpc_async(job, "worker0", "look", NULL, NULL, futures), 0);
    harness_end(futures[0], 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_rpc_many(job, "worker0", "look", 2, NULL, NULL, futures), 0);
    harness_end_all(futures, 2, 0);
    HARNESS_EQ(seen(2), own_ns);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "look", NULL, NULL), 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_sync(rref, "method", NULL, NULL, NULL), 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_rref_async(rref, "method", NULL, NULL, futures), 0);
    harness_end(futures[0], 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_rref_oneway(rref, "method", NULL, NULL), 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_remote(job, "worker0", "look", NULL, NULL, &made), 0);
    HARNESS_EQ(seen(1), own_ns);
    return 0;
}

HARNESS_HANDLER(call_with_options)
{
    const struct bx_call_options hasty = { .timeout_ns = LONG_NS / 2 }, forever = { .timeout_ns = BX_FOREVER },
                                 detached = { .flags = BX_CALL_DETACHED },
                                 unknown = { .flags = UINT64_C(1) << 63 | BX_CALL_DETACHED };
    uint64_t own_ns = bx_request_deadline_ns(request);
    struct bx_job *job = bx_request_job(request);

    HARNESS_EQ(bx_rpc_sync(job, "worker0", "look", NULL, &forever, NULL), 0);
    HARNESS_EQ(seen(1), own_ns);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "look", NULL, &hasty, NULL), 0);
    HARNESS_CHECK(seen(1) < own_ns);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "look", NULL, &detached, NULL), 0);
    HARNESS_CHECK(seen(1) > own_ns);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "look", NULL, &unknown, NULL), -EINVAL);
    HARNESS_HAS(bx_error_text(), "0x8000000000000000");
    return 0;
}

/* An inline handler: its call is for no request, also if the thread that runs it waits in a handler. */
HARNESS_HANDLER(call_for_none)
{
    OWN(future) *future = harness_async(bx_request_job(request), "worker0", "look");

    return 0;
}

HARNESS_HANDLER(bounce)
{
    return bx_rpc_sync(bx_request_job(request), "worker1", "call_for_none", NULL, NULL, NULL);
}

HARNESS_HANDLER(wait_while_others_call)
{
    uint64_t own_ns = bx_request_deadline_ns(request);
    struct bx_job *job = bx_request_job(request);

    for (int i = 0; i < 200; i++) {
        HARNESS_EQ(bx_rpc_sync(job, "worker0", "bounce", NULL, NULL, NULL), 0);
        HARNESS_CHECK(seen(1) > own_ns);
    }
    return bx_rpc_sync(job, "worker1", "call_for_none", NULL, NULL, NULL) < 0 || seen(1) <= own_ns ? -EDOM : 0;
}

/* In a callback of a handler that has returned. */
static void call_later(struct bx_future *future, void *context)
{
    OWN(future) *nested = NULL;

    HARNESS_EQ(bx_future_error(future), 0);
    nested = harness_async(context, "worker0", "look");
}

HARNESS_HANDLER(call_when_answered)
{
    OWN(future) *future = harness_async(bx_request_job(request), "worker0", "stay_on");

    HARNESS_EQ(bx_future_on_done(future, call_later, bx_request_job(request)), 0);
    return 0;
}

/* Called one-way. */
HARNESS_HANDLER(call_once)
{
    return bx_rpc_sync(bx_request_job(request), "worker0", "look", NULL, NULL, NULL);
}

static int setup_deadlines(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_BLOCKING("once", call_once), HARNESS_BLOCKING("stay_on", stay_on),
                     HARNESS_BLOCKING("answered", call_when_answered), HARNESS_INLINE("look", look));
    HARNESS_EQ(bx_register_method(job, &type, "method", BX_INLINE, look, NULL), 0);
    return HARNESS_REGISTER(job, HARNESS_BLOCKING("bounce", bounce), HARNESS_INLINE("call_for_none", call_for_none),
                            HARNESS_BLOCKING("all_ways", call_all_ways), HARNESS_BLOCKING("options", call_with_options),
                            HARNESS_BLOCKING("wait", wait_while_others_call));
}

static void calls(struct bx_job *job)
{
    const struct bx_call_options options = { .timeout_ns = LONG_NS };

    HARNESS_EQ(bx_rpc_sync(job, "worker1", relay, NULL, &options, NULL), 0);
}

/* Calls of every kind have the deadline of the request; one keeps an earlier deadline, and a detached one its own; a
 * call of an inline handler has its own. */
Test(nested, calls_have_the_deadline_of_the_request_or_their_own, .timeout = 60)
{
    static const char *const names[] = { "all_ways", "options", "wait" };

    for (int i = 0; i < 3; i++) {
        fprintf(stderr, "nested: %s\n", relay = names[i]);
        harness_reset();
        harness_run(&(struct harness_world){ .size = 2, .setup = setup_deadlines, .body = { calls } });
    }
}

HARNESS_TEST(nested, callback_of_an_answered_request_calls_for_none, 20, .size = 2, .setup = setup_deadlines)
{
    const struct bx_call_options options = { .timeout_ns = LONG_NS };
    uint64_t latest_ns;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "answered", NULL, &options, NULL), 0);
    latest_ns = bxi_now_ns() + LONG_NS;         /* the request's deadline was not later */
    harness_post(RELEASED);
    HARNESS_CHECK(seen(1) > latest_ns);
}

HARNESS_TEST(nested, call_for_a_oneway_request_has_its_own_deadline, 20, .size = 2, .setup = setup_deadlines)
{
    const struct bx_call_options options = { .timeout_ns = LONG_NS };

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "once", NULL, &options), 0);
    HARNESS_CHECK(seen(1) > bxi_now_ns() + LONG_NS);
}
