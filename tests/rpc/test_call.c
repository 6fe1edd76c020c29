/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/call.c and lib/rpc/dispatch.c: calls of every kind to handlers of every kind, and their errors.
 * test_rpc_many.c and the simulator (`full`) have their order, test_call_end.c deadlines and cancelling, test_reply.c
 * and tests/lend/test_tensor_rpc.c messages of any size.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

/* ---- Functions of both workers --------------------------------------------------------------- */

HARNESS_HANDLER(who_calls)
{
    bx_msg_put_i64(reply, bx_request_caller(request));
    bx_msg_put_str(reply, bx_request_function(request));
    return bx_msg_put_u64(reply, bx_request_deadline_ns(request));
}

HARNESS_HANDLER(fail)
{
    int code = (int)bx_read_i64(args);

    bx_msg_put_str(reply, "nobody sees this");
    return bx_reader_left(args) > 0 ? bx_fail(code, "%s", bx_read_str(args)) : code;
}

HARNESS_ASYNC_HANDLER(at_once)
{
    struct bx_msg *value = bx_msg_create(0);

    bx_msg_put_i64(value, 2 * bx_read_i64(args));
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, value);
}

static struct bx_future *parked;

/* Blocks no thread: the next call of "unpark" completes the future. */
HARNESS_ASYNC_HANDLER(park)
{
    parked = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(parked);
    return 0;
}

HARNESS_HANDLER(unpark)
{
    int64_t value = bx_read_i64(args);

    if (value < 0)
        bx_future_fail(parked, (int)value, "nobody came");
    else
        bx_future_set(parked, harness_msg_i64(value));
    bx_future_release(parked);
    return 0;
}

HARNESS_ASYNC_HANDLER(refuse)
{
    return bx_fail(-ENOENT, "no future for this");
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("twice", harness_twice),
                            HARNESS_BLOCKING("twice_blocking", harness_twice), HARNESS_ASYNC("twice_async", at_once),
                            HARNESS_ASYNC("park", park), HARNESS_INLINE("unpark", unpark),
                            HARNESS_ASYNC("refuse", refuse), HARNESS_INLINE("who_calls", who_calls),
                            HARNESS_INLINE("echo", harness_echo_bytes), HARNESS_INLINE("fail", fail),
                            HARNESS_BLOCKING("fail_blocking", fail));
}

static const char *const doublers[] = { "twice", "twice_blocking", "twice_async" };

/* ---- Sync and one-way calls, also to oneself ------------------------------------------------ */

static void call_each_kind(struct bx_job *job)
{
    for (int to = 0; to < 2; to++)
        for (int kind = 0; kind < 3; kind++)
            for (int64_t i = 0; i < 50; i++)
                HARNESS_EQ(harness_call_i64(job, bx_worker_name(job, to), doublers[kind], i), 2 * i);
}

HARNESS_WORLD(call, reaches_every_kind_of_handler_at_another_worker_and_at_oneself, 20, .size = 2, .setup = setup,
              .body = { call_each_kind, call_each_kind });

static void ask_who(struct bx_job *job)
{
    struct bx_call_options forever = { .timeout_ns = BX_FOREVER };
    struct bx_msg *reply = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "who_calls", NULL, &forever, &reply), 0);

    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_EQ(bx_read_i64(&reader), bx_job_rank(job));
    HARNESS_CHECK(strcmp(bx_read_str(&reader), "who_calls") == 0);
    HARNESS_CHECK(bx_read_u64(&reader) == BX_FOREVER);
    HARNESS_EQ(reader.error, 0);
    bx_msg_destroy(reply);
    /* The reply is dropped. */
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "who_calls", NULL, NULL, NULL), 0);
}

HARNESS_WORLD(call, gives_the_handler_its_caller_function_and_deadline, 20, .size = 3, .setup = setup,
              .body = { ask_who, NULL, ask_who });

HARNESS_HANDLER(tick)
{
    harness_add(0, (uint64_t)bx_read_i64(args));
    harness_post(0);
    return args->error == 0 ? 0 : bx_fail(args->error, "one-way calls have nobody to tell");
}

HARNESS_TEST(call, one_way_waits_for_a_full_ring_and_brings_no_reply, 20, .size = 2,
             .handlers = { HARNESS_INLINE("tick", tick) })
{
    enum { MANY = 20000 };
    OWN(msg) *args = harness_msg_i64(1);
    uint64_t replies;

    for (int i = 0; i < MANY; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "tick", args, NULL), 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "tick", args, NULL), 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "tick", NULL, NULL), 0);       /* its handler fails */
    harness_await(0, MANY + 2);
    HARNESS_EQ(harness_load(0), MANY + 1);
    HARNESS_EQ(harness_counter(job, "oneways_sent"), MANY + 2);
    HARNESS_EQ(harness_counter(job, "calls_sent"), 0);
    replies = bxi_load_relaxed(&bxi_tables(job->control)->pair_counters[1].frames_received);
    HARNESS_EQ(replies, 0);
}

enum { EACH = 2000 };

/* Eight of these are a ring: whoever is woken by room may find that another one has taken it. */
static void call_one_way(struct bx_job *job, int index)
{
    static const char bytes[15000];
    OWN(msg) *args = harness_msg_i64(1);

    (void)index;
    bx_msg_put_bytes(args, bytes, sizeof bytes);
    for (int i = 0; i < EACH; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "tick", args, NULL), 0);
}

HARNESS_TEST(call, one_way_calls_of_several_threads_wait_for_room_again, 20, .size = 2,
             .handlers = { HARNESS_INLINE("tick", tick) })
{
    harness_threads(job, 5, call_one_way);
    harness_await(0, 5 * EACH);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static int call_fail(struct bx_job *job, const char *function, int code, const char *text)
{
    struct bx_msg *args = harness_msg_i64(code), *reply = NULL;

    if (text != NULL)
        bx_msg_put_str(args, text);

    int rc = bx_rpc_sync(job, "worker1", function, args, NULL, &reply);

    HARNESS_CHECK(reply == NULL);
    bx_msg_destroy(args);
    return rc;
}

HARNESS_TEST(call, carries_the_handler_s_code_and_text_back, 20, .size = 2, .setup = setup)
{
    static const char *const functions[] = { "fail", "fail_blocking" };

    for (int i = 0; i < 2; i++) {
        HARNESS_EQ(call_fail(job, functions[i], -EDOM, "row 3 has no state"), -EDOM);
        HARNESS_HAS(bx_error_text(), "row 3 has no state");
        HARNESS_HAS(bx_error_text(), "'worker1'");
        HARNESS_HAS(bx_error_text(), functions[i]);
        HARNESS_EQ(call_fail(job, functions[i], BX_E_HANDLER, NULL), BX_E_HANDLER);
        HARNESS_HAS(bx_error_text(), bx_strerror(BX_E_HANDLER));
        HARNESS_CHECK(strstr(bx_error_text(), "row 3") == NULL);
    }
}

HARNESS_TEST(call, whose_arguments_are_read_past_their_end_fails, 20, .size = 2, .setup = setup)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", NULL, NULL, NULL), BX_E_SHORT_MESSAGE);
    HARNESS_HAS(bx_error_text(), "twice");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice_blocking", NULL, NULL, NULL), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice_async", NULL, NULL, NULL), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "twice", NULL, NULL, NULL), BX_E_SHORT_MESSAGE);
}

HARNESS_TEST(call, to_an_async_handler_is_answered_when_its_future_is_done, 20, .size = 2, .setup = setup)
{
    struct bx_future *future = NULL;

    for (int64_t value = 5; value >= -5; value -= 5) {
        OWN(msg) *args = harness_msg_i64(value);

        future = harness_async(job, "worker1", "park");
        /* The handler has returned and holds no thread, so other calls are answered meanwhile. */
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 4), 8);
        HARNESS_CHECK(!bx_future_is_done(future));
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "unpark", args, NULL, NULL), 0);
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), value < 0 ? value : 0);
        if (value < 0)
            HARNESS_HAS(bx_future_error_text(future), "nobody came");
        bx_future_release(future);
    }
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "refuse", NULL, NULL, NULL), -ENOENT);
    HARNESS_HAS(bx_error_text(), "no future for this");
    HARNESS_EQ(harness_counter(job, "pool_threads"), 0);
}

HARNESS_TEST(call, given_a_message_in_error_returns_that_error, 20, .size = 2, .setup = setup)
{
    OWN(msg) *args = bx_msg_create(0);

    bx_msg_put_bytes(args, "x", SIZE_MAX - 64);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", args, NULL, NULL), -ENOMEM);
    HARNESS_HAS(bx_error_text(), "echo");
}

/* ---- Frames ---------------------------------------------------------------------------------- */

static void count_frames(struct bx_job *job)
{
    struct bxi_pair_counters *pair = &bxi_tables(job->control)->pair_counters[1];

    for (int i = 0; i < 1000; i++)
        harness_call_i64(job, "worker1", doublers[i % 3], i);
    HARNESS_EQ(bxi_load_relaxed(&pair->frames_sent), 1000);
    HARNESS_EQ(bxi_load_relaxed(&pair->frames_received), 1000);
    HARNESS_EQ(bxi_load_relaxed(&pair->bytes_sent), 1000 * (sizeof(struct bxi_frame) + 8));
    HARNESS_EQ(bxi_load_relaxed(&pair->bytes_received), 1000 * (sizeof(struct bxi_frame) + 8));
    HARNESS_EQ(harness_counter(job, "calls_sent"), 1000);
    HARNESS_EQ(harness_counter(job, "calls_completed"), 1000);
    HARNESS_EQ(harness_counter(job, "late_replies"), 0);
}

static void serve_and_count(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "requests_inline"), 334);
    HARNESS_EQ(harness_counter(job, "requests_blocking"), 333);
    HARNESS_EQ(harness_counter(job, "requests_async"), 333);
    HARNESS_EQ(harness_counter(job, "replies_sent"), 1000);
}

Test(call, is_one_request_frame_and_one_reply_frame, .timeout = 20)
{
    bxi_checked = false;            /* kinds of values would be counted too */
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { count_frames, serve_and_count } });
}
