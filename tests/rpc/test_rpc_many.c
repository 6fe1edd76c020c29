/* SPDX-License-Identifier: MIT */
/*
 * bx_rpc_many (lib/rpc/call.c): calls that are sent together arrive in order, each with its own reply, and those that
 * cannot be sent leave no future. tests/shm/test_ring.c tests groups of records.
 */
#include "tests/harness/harness.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"

#define MOST 2500                   /* more than slots: 1024; and more than a ring holds */

enum { HELD = 0 };                  /* gates */

/* ---- The callee ------------------------------------------------------------------------------------ */

static int64_t expected;            /* the number that comes next */

/* Answers with twice the number that the arguments begin with. */
HARNESS_HANDLER(number)
{
    int64_t value = bx_read_i64(args);

    HARNESS_EQ(value, expected++);
    return bx_msg_put_i64(reply, 2 * value);
}

HARNESS_HANDLER(start_again)
{
    expected = bx_read_i64(args);
    return 0;
}

HARNESS_HANDLER(size_of)
{
    return bx_msg_put_i64(reply, (int64_t)bx_reader_left(args));
}

/* Each request has a deadline at or after that of the one before. */
HARNESS_HANDLER(later)
{
    static uint64_t latest_ns;
    uint64_t deadline_ns = bx_request_deadline_ns(request);

    HARNESS_CHECK(deadline_ns >= latest_ns);
    latest_ns = deadline_ns;
    usleep(100);
    return 0;
}

HARNESS_ASYNC_HANDLER(hold)
{
    harness_post(HELD);
    return harness_never(request, args, reply, context);
}

static struct bx_future *futures[MOST];

/* On the thread that makes progress, which rings no bell for itself. */
HARNESS_HANDLER(spread)
{
    return bx_rpc_many(bx_request_job(request), "worker1", "size", 5, NULL, NULL, futures);
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("spread", spread), HARNESS_INLINE("number", number),
                            HARNESS_INLINE("start", start_again), HARNESS_INLINE("size", size_of),
                            HARNESS_INLINE("later", later), HARNESS_ASYNC("hold", hold));
}

/* ---- The caller -------------------------------------------------------------------------------------- */

static struct bx_msg *args[MOST];

static const struct bx_msg *const *all_args(void)
{
    return (const struct bx_msg *const *)args;
}

static void make_args(int count)
{
    for (int i = 0; i < count; i++)
        args[i] = harness_msg_i64(i);
}

static void destroy_args(int count)
{
    for (int i = 0; i < count; i++)
        bx_msg_destroy(args[i]);
}

static void expect_i64(struct bx_future *future, int64_t value)
{
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    struct bx_reader reader = bx_msg_reader(bx_future_value(future));

    HARNESS_EQ(bx_read_i64(&reader), value);
    HARNESS_EQ(bx_reader_left(&reader), 0);
    bx_future_release(future);
}

static void send_so_many(struct bx_job *job, const char *to, int count)
{
    make_args(count);
    HARNESS_EQ(bx_rpc_sync(job, to, "start", count > 0 ? args[0] : NULL, NULL, NULL),
               count > 0 ? 0 : BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_rpc_many(job, to, "number", (size_t)count, all_args(), NULL, futures), 0);
    destroy_args(count);
    for (int i = 0; i < count; i++)
        expect_i64(futures[i], 2 * i);
}

static void send_many(struct bx_job *job)
{
    static const int counts[] = { 0, 1, 2, 63, 64, 65, 200, MOST };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        send_so_many(job, "worker1", counts[i]);
        send_so_many(job, "worker0", counts[i]);
    }
    HARNESS_EQ(harness_counter(job, "calls_sent"), harness_counter(job, "calls_completed"));
    /* What inspectors read. Nothing else is being sent, so the lock is not needed. */
    HARNESS_EQ(bxi_load_relaxed(&bxi_tables(job->control)->pair_counters[1].write_pos),
               job->rpc->peers[1]->out.write_pos);
    HARNESS_EQ(harness_counter(job, "calls_sent"), 2 * (1 + 2 + 63 + 64 + 65 + 200 + MOST) + 2 * 8);
}

HARNESS_WORLD(rpc_many, arrive_in_order_and_are_answered_each, 60, .size = 2, .setup = setup, .body = { send_many });

HARNESS_WORLD(rpc_many, arrive_in_order_though_the_callee_sleeps, 60, .size = 2, .setup = setup, .body = { send_many },
              .options = { .no_spin = true });

/* Of every third message 40,000 bytes, which need a lease; of every seventh nothing. */
HARNESS_TEST(rpc_many, may_need_leases_or_have_no_arguments, 30, .size = 2, .setup = setup)
{
    static const char bytes[40000];

    for (int i = 0; i < 300; i++) {
        args[i] = i % 7 == 0 ? NULL : bx_msg_create(0);
        if (i % 7 != 0)
            HARNESS_EQ(bx_msg_put_bytes(args[i], bytes, i % 3 == 0 ? sizeof bytes : (size_t)i), 0);
    }
    HARNESS_EQ(bx_rpc_many(job, "worker1", "size", 300, all_args(), NULL, futures), 0);
    for (int i = 0; i < 300; i++)
        expect_i64(futures[i], i % 7 == 0 ? 0 : i % 3 == 0 ? (int64_t)sizeof bytes : i);
    destroy_args(300);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "size", 3, NULL, NULL, futures), 0);
    for (int i = 0; i < 3; i++)
        expect_i64(futures[i], 0);
}

HARNESS_TEST(rpc_many, may_be_sent_by_an_inline_handler, 30, .size = 2, .setup = setup)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "spread", NULL, NULL, NULL), 0);
    for (int i = 0; i < 5; i++)
        expect_i64(futures[i], 0);
}

/* futures[0] to futures[sent - 1] are under way, and there is no other. */
static void expect_sent(int sent, int count)
{
    for (int i = 0; i < sent; i++)
        expect_i64(futures[i], 2 * i);
    for (int i = sent; i < count; i++)
        HARNESS_CHECK(futures[i] == NULL);
}

HARNESS_TEST(rpc_many, those_before_one_that_cannot_be_sent_are_under_way, 30, .size = 2, .setup = setup)
{
    make_args(100);
    HARNESS_EQ(bx_msg_put_bytes(args[70], "", SIZE_MAX), -ENOMEM);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "number", 100, all_args(), NULL, futures), -ENOMEM);
    HARNESS_HAS(bx_error_text(), "'number'");
    expect_sent(70, 100);
    destroy_args(100);
}

HARNESS_TEST(rpc_many, fail_as_a_call_does_and_leave_no_future, 30, .size = 2, .setup = setup)
{
    make_args(3);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "nothing", 3, all_args(), NULL, futures), BX_E_NO_FUNCTION);
    expect_sent(0, 3);
    HARNESS_EQ(bx_rpc_many(job, "nobody", "number", 3, all_args(), NULL, futures), BX_E_NO_WORKER);
    expect_sent(0, 3);
    HARNESS_EQ(bx_rpc_many(job, "nobody", "number", 0, NULL, NULL, NULL), BX_E_NO_WORKER);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "number", 0, NULL, NULL, NULL), 0);
    destroy_args(3);
}

HARNESS_TEST(rpc_many, more_than_may_be_in_flight_are_refused_where_nothing_may_wait, 30, .size = 2, .setup = setup)
{
    const struct bx_call_options no_wait = { .no_wait = true };

    HARNESS_EQ(bx_rpc_many(job, "worker1", "hold", 1100, NULL, &no_wait, futures), -EAGAIN);
    HARNESS_HAS(bx_error_text(), "1024 calls");
    harness_await(HELD, BXI_CALLS_MAX);
    for (int i = 0; i < 1100; i++)
        HARNESS_CHECK((futures[i] != NULL) == (i < BXI_CALLS_MAX));
    for (int i = 0; i < BXI_CALLS_MAX; i++)
        harness_cancel(futures[i]);
}

/* More than may be in flight: those that wait for room have a deadline of their own. */
HARNESS_TEST(rpc_many, that_wait_for_room_get_their_deadlines_then, 60, .size = 2, .setup = setup)
{
    HARNESS_EQ(bx_rpc_many(job, "worker1", "later", 1400, NULL, NULL, futures), 0);
    harness_end_all(futures, 1400, 0);
}

/* The first allocation fails, that of a call: none is sent. The 10th one fails: nine are sent, and then the rest. The
 * thread has freed no calls before, of which it could take some. */
static void run_out_of_memory(struct bx_job *job)
{
    make_args(100);
    memory_fails_in = 1;
    HARNESS_EQ(bx_rpc_many(job, "worker1", "number", 100, all_args(), NULL, futures), -ENOMEM);
    memory_fails_in = 0;
    expect_sent(0, 100);
    memory_fails_in = 10;
    HARNESS_EQ(bx_rpc_many(job, "worker1", "number", 100, all_args(), NULL, futures), 0);
    memory_fails_in = 0;
    expect_sent(100, 100);
    destroy_args(100);
}

Test(rpc_many, an_allocation_that_fails_ends_the_group_and_no_more, .timeout = 30)
{
    bxi_checked = false;            /* calls with kinds are not grouped */
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { run_out_of_memory } });
}
