/* SPDX-License-Identifier: MIT */
/*
 * Packed frames (lib/rpc/packed.c): calls that are sent together, and replies that wait for one another, travel in few
 * frames, and each call still gets its own reply, or error, at the right time. Then packed frames that no engine wrote.
 */
#include "tests/harness/hostile.h"

#include "rpc/packed.h"

#define MOST 200
#define SMALL 64                    /* bytes of arguments of which 52 fit a frame */

enum { HELD };                      /* a gate, beside those of hostile.h */

/* ---- The callee ------------------------------------------------------------------------------------ */

static int64_t expected;

/* Answers the bytes that it got. The first 8 of them are a number, one more than that of the call before. */
HARNESS_HANDLER(in_order)
{
    size_t bytes = bx_reader_left(args);
    const void *data = bx_read_bytes(args, bytes);
    int64_t number;

    memcpy(&number, data, sizeof number);
    HARNESS_EQ(number, number == 0 ? 0 : expected);
    expected = number + 1;
    return bx_msg_put_bytes(reply, data, bytes);
}

/* The next call waits until gate HELD has been posted as often as the argument says. */
HARNESS_HANDLER(hold)
{
    harness_await(HELD, (uint32_t)bx_read_i64(args));
    return 0;
}

/* Fails for every third number. */
HARNESS_HANDLER(moody)
{
    int64_t value = bx_read_i64(args);

    return value % 3 == 0 ? bx_fail(-EDOM, "%lld is a multiple of three", (long long)value)
                          : bx_msg_put_i64(reply, value);
}

/* Takes so many microseconds. */
HARNESS_HANDLER(slow)
{
    int64_t us = bx_read_i64(args);

    if (us > 0)
        usleep((useconds_t)us);
    harness_add(0, 1);
    return 0;
}

static int twice_later(const struct bx_request *request, struct bx_reader *args, struct bx_future **future,
                       void *context)
{
    struct bx_msg *value = bx_msg_create(0);

    (void)context;
    bx_msg_put_i64(value, 2 * bx_read_i64(args));
    *future = bx_future_create(bx_request_job(request));
    return bx_future_set(*future, value);
}

static int rows_twice(struct bx_batch *batch, void *context)
{
    (void)context;
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        HARNESS_EQ(bx_batch_reply_i64(batch, row, 2 * bx_read_i64(&args)), 0);
    }
    return 0;
}

static int setup(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "nothing", BX_INLINE, harness_nothing, NULL), 0);      /* the function of forgeries */
    HARNESS_REGISTER(job, HARNESS_INLINE("in_order", in_order), HARNESS_INLINE("hold", hold),
                     HARNESS_INLINE("moody", moody), HARNESS_INLINE("slow", slow),
                     HARNESS_INLINE("twice", harness_twice), HARNESS_BLOCKING("on the pool", harness_twice),
                     HARNESS_ASYNC("later", twice_later), HARNESS_ASYNC("never", harness_never));
    return bx_register_batch(job, "rows", rows_twice, NULL,
                             &(struct bx_batch_options){ .flush_after_ns = 1 * HARNESS_MS });
}

/* ---- The caller ------------------------------------------------------------------------------------- */

static struct bx_msg *args[MOST];
static struct bx_future *futures[MOST];

static void send(struct bx_job *job, const char *to, const char *function, int count)
{
    HARNESS_EQ(bx_rpc_many(job, to, function, (size_t)count, (const struct bx_msg *const *)args, NULL, futures), 0);
}

/* Arguments whose first 8 bytes are their number. */
static void make_args(int count, size_t (*bytes_of)(int i))
{
    unsigned char data[2000];

    for (int64_t i = 0; i < count; i++) {
        size_t bytes = bytes_of((int)i);

        memset(data, (int)i, sizeof data);
        memcpy(data, &i, sizeof i);
        args[i] = bx_msg_create(0);
        HARNESS_EQ(bx_msg_put_bytes(args[i], data, bytes), 0);
    }
}

static size_t eight(int i)
{
    (void)i;
    return 8;
}

static size_t small(int i)
{
    (void)i;
    return SMALL;
}

/* Most are packed; some are too long for that, and some replies need memory of their own. */
static size_t mixed(int i)
{
    return i % 13 == 5 ? 1000 : i % 7 == 3 ? BXI_PACKED_BODY : i % 11 == 4 ? BXI_PACKED_BODY + 1 : 8 + (size_t)i % 90;
}

static void release(int count)
{
    for (int i = 0; i < count; i++) {
        bx_msg_destroy(args[i]);
        bx_future_release(futures[i]);
    }
}

static void expect_same(int i)
{
    const struct bx_msg *value;

    HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), 0);
    value = bx_future_value(futures[i]);
    HARNESS_EQ(bx_msg_bytes(value), bx_msg_bytes(args[i]));
    HARNESS_EQ(memcmp(bx_msg_data(value), bx_msg_data(args[i]), bx_msg_bytes(value)), 0);
}

static struct bxi_pair_counters *counters_of(struct bx_job *job)
{
    return &bxi_tables(job->control)->pair_counters[1];
}

static uint64_t frames_sent(struct bx_job *job)
{
    return bxi_load_relaxed(&counters_of(job)->frames_sent);
}

/* 52 of them fit a frame; a few are measured, and travel by themselves. */
HARNESS_TEST(packed, small_calls_that_are_sent_together_travel_in_few_frames, 30, .size = 2, .setup = setup)
{
    uint64_t before;

    make_args(MOST, small);
    send(job, "worker1", "in_order", 2);        /* opens the ring */
    for (int i = 0; i < 2; i++) {
        expect_same(i);
        bx_future_release(futures[i]);
    }
    before = frames_sent(job);
    send(job, "worker1", "in_order", MOST);
    HARNESS_CHECK(frames_sent(job) - before < MOST / 4);
    for (int i = 0; i < MOST; i++)
        expect_same(i);
    release(MOST);
}

static void all_sizes(struct bx_job *job, const char *to)
{
    make_args(MOST, mixed);
    for (int round = 0; round < 20; round++) {
        send(job, to, "in_order", MOST);
        for (int i = 0; i < MOST; i++) {
            expect_same(i);
            bx_future_release(futures[i]);
        }
    }
    memset(futures, 0, sizeof futures);
    release(MOST);
}

HARNESS_TEST(packed, calls_of_any_size_keep_their_order_and_their_replies, 60, .size = 2, .setup = setup)
{
    all_sizes(job, "worker1");
    all_sizes(job, "worker0");
    HARNESS_EQ(harness_counter(job, "calls_sent"), harness_counter(job, "calls_completed"));
    HARNESS_EQ(job->rpc->calls_open, 0);
}

/* The callee stands still in the first call. Meanwhile the others are sent one by one, and all lie in the ring: it
 * answers more than a kilobyte of them singly, and then in packed frames. */
HARNESS_TEST(packed, replies_to_a_peer_that_does_not_wait_for_the_next_travel_in_few_frames, 30, .size = 2,
             .setup = setup)
{
    uint64_t before;
    struct bx_future *held;

    make_args(MOST, small);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    before = bxi_load_relaxed(&counters_of(job)->frames_received);
    held = harness_start(job, "worker1", "hold", harness_msg_i64(1), 0);
    for (int i = 0; i < MOST; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "in_order", args[i], NULL, &futures[i]), 0);
    harness_post(HELD);
    harness_end(held, 0);
    for (int i = 0; i < MOST; i++)
        expect_same(i);
#ifndef __SANITIZE_THREAD__     /* there a handler takes more than the 2 us for which replies are held back: packed.h */
    HARNESS_CHECK(bxi_load_relaxed(&counters_of(job)->frames_received) - before < MOST * 3 / 4);
#else
    (void)before;
#endif
    release(MOST);
}

HARNESS_TEST(packed, a_call_that_fails_fails_alone, 30, .size = 2, .setup = setup)
{
    make_args(MOST, eight);
    send(job, "worker1", "moody", MOST);
    for (int i = 0; i < MOST; i++) {
        if (i % 3 != 0) {
            expect_same(i);
            continue;
        }
        HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), -EDOM);
        HARNESS_HAS(bx_future_error_text(futures[i]), "is a multiple of three");
    }
    release(MOST);
}

static void expect_twice(int count)
{
    for (int i = 0; i < count; i++) {
        struct bx_reader value;

        HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), 0);
        value = bx_msg_reader(bx_future_value(futures[i]));
        HARNESS_EQ(bx_read_i64(&value), 2 * i);
    }
}

HARNESS_TEST(packed, calls_of_handlers_of_every_kind_are_answered, 30, .size = 2, .setup = setup)
{
    static const char *const functions[] = { "twice", "on the pool", "later", "rows" };

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        make_args(100, eight);
        send(job, "worker1", functions[i], 100);
        expect_twice(100);
        release(100);
    }
    make_args(3, eight);
    send(job, "worker1", "none of that name", 0);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "none of that name", 3, (const struct bx_msg *const *)args, NULL, futures),
               BX_E_NO_FUNCTION);
    release(3);
}

/* Callbacks run for the replies of one packed frame; that of the first cancels the third. */
static int called;

static void count_call(struct bx_future *future, void *context)
{
    (void)context;
    HARNESS_EQ(bx_future_error(future), 0);
    called++;
}

static void cancel_third(struct bx_future *future, void *context)
{
    count_call(future, context);
    HARNESS_EQ(bx_future_cancel(futures[3]), 0);
}

HARNESS_TEST(packed, callbacks_run_and_cancel_what_came_with_them, 30, .size = 2, .setup = setup)
{
    OWN(future) *held = NULL;

    make_args(20, eight);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    held = harness_start(job, "worker1", "hold", harness_msg_i64(1), 0);
    send(job, "worker1", "twice", 20);
    HARNESS_EQ(bx_future_on_done(futures[1], cancel_third, NULL), 0);
    for (int i = 2; i < 20; i += 2)
        HARNESS_EQ(bx_future_on_done(futures[i], count_call, NULL), 0);
    harness_post(HELD);
    HARNESS_EQ(bx_future_wait(futures[3], BX_FOREVER), BX_E_CANCELLED);
    for (int i = 0; i < 20; i++)
        HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), i == 3 ? BX_E_CANCELLED : 0);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);    /* the late reply has been read */
    HARNESS_EQ(called, 10);
    HARNESS_EQ(harness_counter(job, "late_replies"), 1);
    release(20);
}

/* Fast calls first, so that many replies wait for each other; then one hundred that take a millisecond each. The first
 * of these is answered long before the last has run. */
HARNESS_TEST(packed, a_reply_does_not_wait_for_handlers_that_take_long, 60, .size = 2, .setup = setup)
{
    uint64_t ran;

    for (int i = 0; i < 100; i++)
        args[i] = harness_msg_i64(0);
    for (int round = 0; round < 20; round++) {
        send(job, "worker1", "slow", 100);
        harness_end_all(futures, 100, 0);
    }
    for (int i = 0; i < 100; i++) {
        bx_msg_destroy(args[i]);
        args[i] = harness_msg_i64(1000);
    }
    ran = harness_load(0);
    send(job, "worker1", "slow", 100);
    HARNESS_EQ(bx_future_wait(futures[0], BX_FOREVER), 0);
    HARNESS_CHECK(harness_load(0) - ran < 50);
    for (int i = 0; i < 100; i++)
        HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), 0);
    release(100);
}

/* The callee sends a kilobyte of replies, and then handles a request whose answer takes a while: what it has held back
 * by then is sent first. */
static int post_and_hold(const struct bx_request *request, struct bx_reader *values, struct bx_future **future,
                         void *context)
{
    (void)request, (void)values, (void)context;
    harness_await(HELD, 2);
    *future = bx_future_create(bx_request_job(request));
    return bx_future_set(*future, NULL);
}

HARNESS_TEST(packed, replies_are_sent_before_a_handler_that_is_not_inline_runs, 30, .size = 2, .setup = setup,
             .handlers = { HARNESS_ASYNC("post", post_and_hold) })
{
    struct bx_future *first, *last;

    make_args(100, small);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    first = harness_start(job, "worker1", "hold", harness_msg_i64(1), 0);
    for (int i = 0; i < 100; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "in_order", args[i], NULL, &futures[i]), 0);
    last = harness_start(job, "worker1", "post", bx_msg_create(0), 0);
    harness_post(HELD);
    for (int i = 0; i < 100; i++)
        expect_same(i);                 /* while the callee stands in "post" */
    HARNESS_CHECK(!bx_future_is_done(last));
    harness_post(HELD);
    HARNESS_EQ(bx_future_wait(last, BX_FOREVER), 0);
    bx_future_release(first);
    bx_future_release(last);
    release(100);
}

/* The same before a callback: the reply to a call of worker 1 lies behind the requests, and its callback waits until
 * they have been answered. */
static struct bx_future *owed;

static int owe(const struct bx_request *request, struct bx_reader *values, struct bx_future **future, void *context)
{
    (void)values, (void)context;
    *future = bx_future_create(bx_request_job(request));
    owed = bx_future_acquire(*future);
    harness_post(READY);
    return 0;
}

static void wait_for_gate(struct bx_future *future, void *context)
{
    (void)future, (void)context;
    harness_await(FINISHED, 1);
}

static void asks_and_serves(struct bx_job *job)
{
    struct bx_future *future = harness_async(job, "worker0", "owe");

    HARNESS_EQ(bx_future_on_done(future, wait_for_gate, NULL), 0);
    harness_end(future, 0);
}

HARNESS_TEST(packed, replies_are_sent_before_a_callback_runs, 30, .size = 2, .setup = setup,
             .handlers = { HARNESS_ASYNC("owe", owe) }, .body = { NULL, asks_and_serves })
{
    struct bx_future *first;

    make_args(100, small);
    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    first = harness_start(job, "worker1", "hold", harness_msg_i64(1), 0);
    for (int i = 0; i < 100; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "in_order", args[i], NULL, &futures[i]), 0);
    HARNESS_EQ(bx_future_set(owed, NULL), 0);
    bx_future_release(owed);
    harness_post(HELD);
    for (int i = 0; i < 100; i++)
        expect_same(i);                 /* while worker 1 stands in its callback */
    harness_post(FINISHED);
    harness_end(first, 0);
    release(100);
}

/* ---- Packed frames that no engine wrote ---------------------------------------------------------------- */

struct forgery {
    uint8_t kind, flags;
    int32_t code;
    uint64_t words[12];             /* the items */
    size_t bytes;
};
#define ITEM(id, bytes) ((uint64_t)(id) << 16 | (bytes))
#define HELD_ID (UINT64_C(1) << 16)     /* of the call that worker 0 has in flight */

static struct forgery forgery;

static void forge(struct bx_job *job)
{
    struct bxi_frame head = { .kind = forgery.kind, .flags = forgery.flags, .code = forgery.code,
                              .deadline_ns = BX_FOREVER };

    HARNESS_CHECK(put_frame(job, &head, forgery.words, forgery.bytes));
}

static void expect_cut_off(struct bx_job *job)
{
    struct bx_future *future = NULL;

    harness_await(READY, 1);
    future = harness_async(job, "worker1", "never");
    strikes_now();
    harness_end(future, BX_E_CORRUPT);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    HARNESS_EQ(harness_call_i64(job, "worker2", "twice", 7), 14);
    harness_post(FINISHED);
}

Test(packed, frames_that_hold_nonsense_cut_their_sender_off, .timeout = 60)
{
    static const struct forgery forgeries[] = {
        { BXI_REQUESTS, 0, 0, { 0 }, 0 },
        { BXI_REQUESTS, 0, 1, { 0 }, 0 },                                       /* no item */
        { BXI_REQUESTS, 0, -1, { ITEM(65536, 0) }, 8 },
        { BXI_REQUESTS, 0, BXI_ITEMS_MAX + 1, { ITEM(65536, 0) }, 8 },
        { BXI_REQUESTS, 0, 2, { ITEM(65536, 0) }, 8 },
        { BXI_REQUESTS, 0, 1, { ITEM(65536, 9) }, 16 },                         /* longer than the frame */
        { BXI_REQUESTS, 0, 1, { ITEM(65536, 0xffff) }, 16 },
        { BXI_REQUESTS, 0, 1, { ITEM(65536, 0), 0 }, 16 },                      /* shorter */
        { BXI_REQUESTS, 0, 1, { ITEM(65536, 0) }, 4 },
        { BXI_REQUESTS, BXI_FLAG_LEASE, 1, { ITEM(65536, 0) }, 8 },
        { BXI_REPLIES, 0, 0, { 0 }, 0 },
        { BXI_REPLIES, 0, 1, { 0 }, 0 },
        { BXI_REPLIES, 0, 1, { ITEM(HELD_ID, 9) }, 16 },
        { BXI_REPLIES, 0, 1, { ITEM(HELD_ID, BXI_PACKED_BODY + 8) }, 16 },
        { BXI_REPLIES, 0, 1, { ITEM(77 << 16, 0) }, 8 },                        /* another generation */
        { BXI_REPLIES, 0, 1, { ITEM(HELD_ID | 15, 0) }, 8 },                    /* a free slot */
        { BXI_REPLIES, 0, 1, { ITEM(HELD_ID | 0xffff, 0) }, 8 },
        { BXI_REPLIES, BXI_FLAG_TIMED, 1, { ITEM(HELD_ID, 0) }, 8 },
    };

    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        forgery = forgeries[i];
        harness_reset();
        run_hostile(setup, forge, expect_cut_off);
    }
}

/* The first item ends the call; the second, of the same id, is nonsense. */
static void expect_answer_and_cut_off(struct bx_job *job)
{
    struct bx_future *future = NULL;

    harness_await(READY, 1);
    future = harness_async(job, "worker1", "never");
    strikes_now();
    harness_end(future, 0);
    HARNESS_WAIT_WHILE(harness_counter(job, "peers_corrupt") == 0);
    HARNESS_EQ(harness_call_i64(job, "worker2", "twice", 7), 14);
    harness_post(FINISHED);
}

Test(packed, the_items_before_nonsense_count, .timeout = 30)
{
    forgery = (struct forgery){ BXI_REPLIES, 0, 2, { ITEM(HELD_ID, 0), ITEM(HELD_ID, 0) }, 16 };
    run_hostile(setup, forge, expect_answer_and_cut_off);
}
