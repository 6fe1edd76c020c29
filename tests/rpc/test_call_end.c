/* SPDX-License-Identifier: MIT */
/*
 * Calls that do not end by a reply in time: deadlines, and calls that wait for room. A handler that does not answer
 * waits at a gate of the shared memory, or holds its future; no test sleeps to let something else happen. Calls that
 * are cancelled: test_packed.c, test_pool_cancel.c, and tests/sim (late).
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { ENTERED, RELEASED, READY };                      /* gates */

HARNESS_HANDLER(stuck)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    return bx_msg_put_i64(reply, 1);
}

static struct bx_future *held[BXI_CALLS_MAX];
static int held_count;

HARNESS_ASYNC_HANDLER(hold)
{
    HARNESS_CHECK(held_count < BXI_CALLS_MAX);
    held[held_count] = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(held[held_count++]);
    return 0;
}

HARNESS_HANDLER(let_go)
{
    int64_t how_many = bx_read_i64(args);

    for (; how_many > 0 && held_count > 0; how_many--) {
        OWN(future) *future = held[--held_count];

        bx_future_set(future, NULL);
    }
    return 0;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_BLOCKING("stuck", stuck), HARNESS_INLINE("twice", harness_twice),
                            HARNESS_ASYNC("hold", hold), HARNESS_INLINE("let_go", let_go));
}

/* Calls one-way, which takes no slot. */
static void send_let_go(struct bx_job *job, int how_many)
{
    OWN(msg) *args = harness_msg_i64(how_many);

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "let_go", args, NULL), 0);
}

/* Calls until the late replies have arrived, one for each call that ended here before its answer. A call whose deadline
 * passed may have been ended by the callee's answer instead, which is not counted as late. */
static void await_late_replies(struct bx_job *job)
{
    uint64_t wanted = harness_counter(job, "calls_timed_out") + harness_counter(job, "calls_cancelled");

    while (harness_counter(job, "late_replies") < wanted)
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    HARNESS_EQ(harness_counter(job, "late_replies"), wanted);
}

/* ---- Deadlines ------------------------------------------------------------------------------- */

/* True if one more call than before has entered the handler. Only such a call can be ended by nothing but its caller:
 * the callee answers a request that is read too late. The test repeats that call with twice the time. */
static bool has_entered(uint32_t *entered)
{
    uint32_t now = harness_gate(ENTERED);
    bool has = now > *entered;

    *entered = now;
    return has;
}

static void says_how_long(const char *text, uint64_t timeout_ns)
{
    char seconds[32];

    snprintf(seconds, sizeof seconds, "%.3f s", (double)timeout_ns / 1e9);
    HARNESS_HAS(text, "'worker1'");
    HARNESS_HAS(text, "'stuck'");
    HARNESS_HAS(text, seconds);
}

HARNESS_TEST(call_end, by_deadline_drops_and_counts_the_late_reply, 20, .size = 2, .setup = setup)
{
    struct bx_call_options options = { .timeout_ns = 5 * HARNESS_MS };
    struct bx_msg *reply = NULL;
    struct bx_future *future = NULL;
    uint32_t entered = 0;
    uint64_t calls = 0;

    do {
        options.timeout_ns *= 2;
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "stuck", NULL, &options, &reply), BX_E_TIMEOUT);
        HARNESS_CHECK(reply == NULL);
        calls++;
    } while (!has_entered(&entered));
    says_how_long(bx_error_text(), options.timeout_ns);
    do {
        bx_future_release(future);
        options.timeout_ns *= 2;
        future = harness_start(job, "worker1", "stuck", NULL, options.timeout_ns);
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_TIMEOUT);
        calls++;
    } while (!has_entered(&entered));
    says_how_long(bx_future_error_text(future), options.timeout_ns);
    HARNESS_EQ(bx_future_cancel(future), -EALREADY);
    bx_future_release(future);
    HARNESS_CHECK(harness_counter(job, "calls_timed_out") >= 2);
    HARNESS_CHECK(harness_counter(job, "calls_timed_out") <= calls);
    /* The two calls in the handler cannot have been answered. */
    HARNESS_CHECK(harness_counter(job, "late_replies") + 2 <= harness_counter(job, "calls_timed_out"));

    harness_post(RELEASED);
    await_late_replies(job);
    HARNESS_CHECK(harness_counter(job, "late_replies") >= 2);
}

HARNESS_TEST(call_end, by_the_deadline_of_the_job_if_the_call_has_none, 20, .size = 2, .setup = setup,
             .options = { .call_timeout_ns = 15 * HARNESS_MS })
{
    uint32_t entered = 0;

    do
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "stuck", NULL, NULL, NULL), BX_E_TIMEOUT);
    while (!has_entered(&entered));
    says_how_long(bx_error_text(), 15 * HARNESS_MS);

    struct bx_future *future = harness_start(job, "worker1", "stuck", NULL, 0);

    harness_end(future, BX_E_TIMEOUT);
    harness_post(RELEASED);
    /* The default deadline holds for "twice" too, which may miss it under load. */
    while (harness_counter(job, "late_replies") < harness_counter(job, "calls_timed_out"))
        bx_rpc_sync(job, "worker1", "twice", NULL, &(struct bx_call_options){ .timeout_ns = BX_FOREVER }, NULL);
}

/* ---- The most calls in flight ---------------------------------------------------------------- */

static struct bx_future *in_flight[BXI_CALLS_MAX];

static void fill_the_slots(struct bx_job *job)
{
    for (int i = 0; i < BXI_CALLS_MAX; i++)
        in_flight[i] = harness_start(job, "worker1", "hold", NULL, BX_FOREVER);
}

static void empty_the_slots(struct bx_job *job)
{
    send_let_go(job, BXI_CALLS_MAX);
    harness_end_all(in_flight, BXI_CALLS_MAX, 0);
}

HARNESS_TEST(call_end, with_eagain_if_1024_are_in_flight_and_it_may_not_wait, 20, .size = 2, .setup = setup)
{
    struct bx_call_options no_wait = { .no_wait = true }, hasty = { .timeout_ns = 10 * HARNESS_MS };
    struct bx_future *future = NULL;

    fill_the_slots(job);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "hold", NULL, &no_wait, &future), -EAGAIN);
    HARNESS_CHECK(future == NULL);
    HARNESS_HAS(bx_error_text(), "1024");
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", NULL, &no_wait, NULL), -EAGAIN);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "hold", NULL, &hasty, &future), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "1024");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", NULL, &hasty, NULL), BX_E_TIMEOUT);
    /* The bound is for each pair of workers: calls to another worker still succeed. */
    HARNESS_EQ(harness_call_i64(job, "worker0", "twice", 4), 8);
    empty_the_slots(job);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 4), 8);
}

static void call_one_more(struct bx_job *job, int index)
{
    if (index > 0) {
        harness_post(READY);
        if (index % 2 == 0) {
            HARNESS_EQ(harness_call_i64(job, "worker1", "twice", index), 2 * index);
        } else {
            struct bx_future *future = harness_start(job, "worker1", "stuck", NULL, BX_FOREVER);

            harness_end(future, 0);
        }
        return;
    }
    harness_await(READY, 4);
    for (int i = 0; i < 5; i++)
        send_let_go(job, 1);
    harness_await(ENTERED, 2);
    harness_post(RELEASED);
}

HARNESS_TEST(call_end, later_if_1024_are_in_flight_and_it_waits_for_a_slot, 20, .size = 2, .setup = setup)
{
    fill_the_slots(job);
    harness_threads(job, 5, call_one_more);
    empty_the_slots(job);
}
