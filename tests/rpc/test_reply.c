/* SPDX-License-Identifier: MIT */
/*
 * The way of a reply to its call (lib/rpc/reply.c), and of a call into the ring (lib/rpc/submit.c): whatever the size
 * of a reply, whoever calls, and whatever lies between small replies, each call gets its own. Calls of a worker to
 * itself find their replies in the ring in any case; whether the reply of another worker comes while its caller polls
 * is a matter of nanoseconds, so those are made many times.
 */
#include "tests/harness/harness.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"
#include "run/drive.h"

#include <malloc.h>

#define BYTES_MOST 300
#define HELD 200

static unsigned char bytes[BYTES_MOST];

/* Writes 40,000 bytes, takes them back, and answers how much memory its reply had when it was called. */
HARNESS_HANDLER(swell)
{
    static const char much[40000];
    size_t capacity = reply->capacity;

    bx_msg_put_bytes(reply, much, sizeof much);
    bx_msg_clear(reply);
    return bx_msg_put_i64(reply, (int64_t)capacity);
}

/* Whether this worker polls its caller's ring less often. */
HARNESS_HANDLER(streams)
{
    return bx_msg_put_i64(reply, request->peer->streams);
}

/* Answers when the caller has posted once more at gate 0. */
HARNESS_HANDLER(hold)
{
    static uint32_t held;

    harness_await(0, ++held);
    return 0;
}

static int setup(struct bx_job *job)
{
    for (int i = 0; i < BYTES_MOST; i++)
        bytes[i] = (unsigned char)(i * 7 + 1);
    return HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo_bytes), HARNESS_INLINE("swell", swell),
                            HARNESS_INLINE("streams", streams),
                            HARNESS_INLINE("hold", hold), HARNESS_INLINE("nothing", harness_nothing));
}

/* What echo gets, and answers: so many bytes, from an offset that differs from call to call. */
static size_t size_of(int i)
{
    return (size_t)i % (BYTES_MOST - 8);
}

static struct bx_msg *args_of(int i)
{
    struct bx_msg *args = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_bytes(args, bytes + i % 8, size_of(i)), 0);
    return args;
}

static void expect_bytes(const struct bx_msg *value, int i)
{
    HARNESS_EQ(bx_msg_bytes(value), size_of(i));
    HARNESS_EQ(memcmp(bx_msg_data(value), bytes + i % 8, size_of(i)), 0);
}

static void call_sizes(struct bx_job *job, const char *to)
{
    for (int i = 0; i < 2 * BYTES_MOST; i++) {
        OWN(msg) *args = args_of(i), *reply = NULL;

        HARNESS_EQ(bx_rpc_sync(job, to, "echo", args, NULL, &reply), 0);
        expect_bytes(reply, i);
        HARNESS_EQ(bx_rpc_sync(job, to, "echo", args, NULL, NULL), 0);
    }
}

HARNESS_TEST(reply, replies_of_any_size_come_back, 60, .size = 2, .setup = setup)
{
    for (int i = 0; i < 10; i++)
        call_sizes(job, "worker1");
    call_sizes(job, "worker0");
}

/* Their values stay while other calls come and go; between them a synchronous call overtakes none. */
static void hold_values(struct bx_job *job, const char *to)
{
    struct bx_future *futures[HELD];

    for (int i = 0; i < HELD; i++) {
        struct bx_msg *args = args_of(i);

        HARNESS_EQ(bx_rpc_async(job, to, "echo", args, NULL, &futures[i]), 0);
        bx_msg_destroy(args);
        if (i % 50 == 49) {
            HARNESS_EQ(bx_rpc_sync(job, to, "nothing", NULL, NULL, NULL), 0);
            HARNESS_CHECK(bx_future_is_done(futures[i]));
        }
    }
    for (int i = 0; i < 3000; i++)
        HARNESS_EQ(bx_rpc_sync(job, to, "nothing", NULL, NULL, NULL), 0);
    for (int i = HELD - 1; i >= 0; i--) {
        HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), 0);
        expect_bytes(bx_future_value(futures[i]), i);
        bx_future_acquire(futures[i]);
        bx_future_release(futures[i]);
        expect_bytes(bx_future_value(futures[i]), i);
        bx_future_release(futures[i]);
    }
}

HARNESS_TEST(reply, values_stay_as_long_as_their_futures, 60, .size = 2, .setup = setup)
{
    struct bxi_control *peer1 = (struct bxi_control *)(uintptr_t)job->rpc->peers[1]->view.control;

    hold_values(job, "worker1");
    hold_values(job, "worker0");
    HARNESS_EQ(harness_counter(job, "calls_sent"), harness_counter(job, "calls_completed"));
    HARNESS_EQ(job->rpc->calls_open, 0);
    /* Nothing is under way: what the peer has sent has been read. */
    HARNESS_EQ(bxi_load_relaxed(&bxi_tables(job->control)->pair_counters[1].frames_received),
               bxi_load_relaxed(&bxi_tables(peer1)->pair_counters[0].frames_sent));
}

HARNESS_TEST(reply, a_reply_that_was_large_gives_its_memory_back, 30, .size = 2, .setup = setup)
{
    for (int i = 0; i < 3; i++)
        HARNESS_CHECK(harness_call(job, "worker1", "swell", NULL) <= (int64_t)BXI_FRAME_MAX);
}

static void make_thousand(struct bx_job *job)
{
    static struct bx_future *futures[1000];

    for (int i = 0; i < 1000; i++)
        futures[i] = harness_async(job, "worker1", "nothing");
    for (int i = 0; i < 1000; i++)
        bx_future_release(futures[i]);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "nothing", NULL, NULL, NULL), 0);
}

/* 64 of them are kept, with room for a reply; and slots are made. That a thread frees them at its end, and a reply a
 * call that was released, is the simulator's (calls, late). */
HARNESS_TEST(reply, a_thread_keeps_few_of_the_calls_that_it_frees, 60, .size = 2, .setup = setup)
{
    size_t before = mallinfo2().uordblks;

    make_thousand(job);
    HARNESS_CHECK(mallinfo2().uordblks < before + 1000 * sizeof(struct bxi_call));
}

/* No memory for a call: it is not sent, and the next one is. */
HARNESS_TEST(reply, a_call_without_memory_is_not_sent, 20, .size = 2, .setup = setup)
{
    struct bx_future *future;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "nothing", NULL, NULL, NULL), 0);
    HARNESS_EQ(strcmp(bx_error_text(), ""), 0);
    memory_fails_in = 1;
    HARNESS_EQ(bx_rpc_async(job, "worker1", "nothing", NULL, NULL, &future), -ENOMEM);
    HARNESS_EQ(memory_fails_in, 0);
    future = harness_async(job, "worker1", "nothing");
    harness_end(future, 0);
}

enum { ASKED = 1, LEFT_ALONE };             /* gates */

static struct bx_future *answer;

HARNESS_ASYNC_HANDLER(later)
{
    answer = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(answer);
    harness_post(ASKED);
    return 0;
}

static void asks(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "later", NULL, NULL, NULL), -ENOMEM);
    harness_post(LEFT_ALONE);
}

/* Nor for the queue of a full ring: then a reply becomes an error, which is small enough for a spare frame. */
HARNESS_TEST(reply, without_room_and_memory_is_an_error, 20, .size = 2, .setup = setup,
             .handlers = { HARNESS_ASYNC("later", later) }, .body = { NULL, asks })
{
    const struct bx_call_options at_once = { .no_wait = true };
    struct bx_msg *value = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_bytes(value, bytes, BYTES_MOST), 0);
    harness_await(ASKED, 1);
    HARNESS_WAIT_WHILE(bxi_load_relaxed(&job->run->role) != 0);     /* relaxed: the handler runs, or has just ended */
    harness_stop_worker(1);
    while (bx_rpc_oneway(job, "worker1", "nothing", NULL, &at_once) == 0)
        ;
    memory_fails_in = 1;
    HARNESS_EQ(bx_future_set(answer, value), 0);
    HARNESS_EQ(memory_fails_in, 0);
    bx_future_release(answer);
    harness_signal(1, SIGCONT);
    harness_await(LEFT_ALONE, 1);
}

/* A call is done, and its job freed by another thread, while this thread releases it: the job is not read. Here it
 * cannot be, and the call is not done yet, as it was a moment before. */
Test(reply, a_call_that_is_released_does_not_read_its_job, .timeout = 10)
{
    void *gone = mmap(NULL, sizeof(struct bx_job), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct bxi_call *call = calloc(1, sizeof *call);

    cr_assert(gone != MAP_FAILED && call != NULL);
    call->future = (struct bx_future){ .refs = 1, .job = gone };
    call->future.is_call = true;
    bx_future_release(&call->future);
    cr_expect(bxi_load_relaxed(&call->future.callbacks) == BXI_UNWANTED);   /* its completer frees it */
    free(call);
    munmap(gone, sizeof(struct bx_job));
}

/* ---- Streams ----------------------------------------------------------------------------------------- */

#define STREAM 40

static struct bx_future *start(struct bx_job *job, const char *function)
{
    return harness_start(job, "worker1", function, args_of(64), 0);
}

/* The callee stands still in the first call, so no reply can be read while the others are sent; and in the third. */
HARNESS_TEST(reply, a_caller_with_many_calls_in_flight_polls_less_often, 60, .size = 2, .setup = setup)
{
    const struct bxi_peer *peer = job->rpc->peers[1];
    struct bx_future *futures[STREAM];

    for (int i = 0; i < STREAM; i++)
        futures[i] = start(job, i == 0 || i == 2 ? "hold" : "nothing");
    HARNESS_CHECK(!peer->streams);
    harness_post(0);
    HARNESS_EQ(bx_future_wait(futures[1], BX_FOREVER), 0);
    HARNESS_CHECK(peer->streams);
    harness_post(0);
    harness_end_all(futures, STREAM, 0);
    HARNESS_CHECK(!peer->streams);
}

/* The caller reads no answer until all have been sent: this thread has the role meanwhile. */
HARNESS_TEST(reply, a_callee_whose_answers_lie_unread_polls_less_often, 60, .size = 2, .setup = setup)
{
    struct bxi_control *peer1 = (struct bxi_control *)(uintptr_t)job->rpc->peers[1]->view.control;
    struct bx_future *futures[STREAM];
    const struct bxi_role *role;
    struct bx_reader value;

    HARNESS_EQ(harness_call(job, "worker1", "streams", bx_msg_create(0)), 0);
    HARNESS_WAIT_WHILE((role = bxi_take_role(job->run)) == NULL);
    for (int i = 0; i < STREAM; i++)
        futures[i] = start(job, "echo");
    while (bxi_load_relaxed(&bxi_tables(peer1)->counters[BXI_C_replies_sent]) < STREAM + 1)    /* some are packed */
        sched_yield();

    struct bx_future *late = start(job, "streams");

    bxi_leave_role(role, true);
    HARNESS_EQ(bx_future_wait(late, BX_FOREVER), 0);
    value = bx_msg_reader(bx_future_value(late));
    HARNESS_EQ(bx_read_i64(&value), 1);
    bx_future_release(late);
    harness_end_all(futures, STREAM, 0);
    /* The answer to a call that is measured, one of 64, goes another way, which does not look. */
    for (int i = 0; i < 2; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "nothing", NULL, NULL, NULL), 0);
    HARNESS_EQ(harness_call(job, "worker1", "streams", bx_msg_create(0)), 0);
}
