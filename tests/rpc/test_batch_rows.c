/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/batch.c: the rows that a batch takes when more than max_rows wait, when some are past their deadline, and
 * when there is no thread for its body.
 */
#include "batch_fixture.h"

/* ---- More than max_rows ------------------------------------------------------------------------- */

static int setup_two_rows(struct bx_job *job)
{
    return setup_with(job, &(struct bx_batch_options){ .blocking = true, .max_rows = 2 }, 0);
}

static void call_first(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1), 2);
}

/* Four workers call while the body of the first two rows runs. */
static void call_meanwhile(struct bx_job *job)
{
    harness_await(BODY_ENTERED, 1);

    struct bx_future *future = begin(job, 1, 0);

    await_arrived(job, 6);
    harness_post(BODY_GO);
    HARNESS_EQ(harness_end_i64(future), 2);
}

Test(batch_rows, are_never_more_than_max_rows, .timeout = 20)
{
    harness_store(BODY_WAITS, 1);
    harness_run(&(struct harness_world){
        .size = 7, .setup = setup_two_rows,
        .body = { NULL, call_first, call_first, call_meanwhile, call_meanwhile, call_meanwhile, call_meanwhile } });
    cr_expect_eq(harness_load(RUNS), 3);
    for (int run = 0; run < 3; run++)
        cr_expect(harness_load(RECORD + run) > 9 && harness_load(RECORD + run) < 99, "run %d had the callers %d", run,
                  (int)harness_load(RECORD + run));
}

/* ---- Deadlines ---------------------------------------------------------------------------------- */

static int setup_two_members(struct bx_job *job)
{
    return setup_with(job, NULL, 2);
}

static void call_and_expire(struct bx_job *job)
{
    struct bx_future *future = begin(job, 100, 0);

    await_arrived(job, 1);
    harness_post(READY);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_TIMEOUT);
    HARNESS_HAS(bx_future_error_text(future), "before the batch ran");
    bx_future_release(future);
    harness_await(DONE, 1);
}

static void call_beside_the_expired(struct bx_job *job)
{
    harness_await(TOUCHED, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 5), 5);
    harness_post(DONE);
}

/* The waiting row's deadline passes, but its caller does not cancel, as if it were stopped. */
HARNESS_TEST(batch_rows, past_their_deadline_are_not_run_even_if_not_cancelled, 20, .size = 3,
             .setup = setup_two_members, .body = { NULL, call_and_expire, call_beside_the_expired },
             .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 2 }))
{
    harness_await(READY, 1);
    bxi_lock(&job->run->lock);
    HARNESS_CHECK(job->rpc->batchers->head != NULL);
    job->rpc->batchers->head->request.deadline_ns = 1;
    bxi_unlock(&job->run->lock);
    harness_post(TOUCHED);
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "requests_expired"), 1);
    HARNESS_EQ(harness_counter(job, "batch_rows"), 1);
}

/* ---- No thread for the body --------------------------------------------------------------------- */

static int setup_blocking(struct bx_job *job)
{
    return setup_with(job, &(struct bx_batch_options){ .blocking = true, .max_rows = 2 }, 0);
}

static void set_stack_bytes(size_t bytes)
{
    pthread_attr_t attributes;

    HARNESS_EQ(pthread_attr_init(&attributes), 0);
    HARNESS_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
    HARNESS_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
}

static void fail_and_call_again(struct bx_job *job)
{
    OWN(msg) *args = harness_msg_i64(1);

    harness_await(READY, 1);
    HARNESS_CHECK(bx_rpc_sync(job, "worker0", "sum", args, NULL, NULL) < 0);
    harness_post(DONE);
    harness_await(TOUCHED, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1), 2);
}

/* No thread can be made while the default stack is larger than the address space. */
HARNESS_TEST(batch_rows, fail_if_there_is_no_thread_and_later_rows_run, 20, .size = 3, .setup = setup_blocking,
             .body = { NULL, fail_and_call_again, fail_and_call_again },
             .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 12 }))
{
    set_stack_bytes((size_t)1 << 50);
    harness_post(READY);
    harness_await(DONE, 2);
    set_stack_bytes((size_t)1 << 20);
    harness_post(TOUCHED);
    HARNESS_EQ(bx_job_serve(job), 0);
}

/* ---- The timer of the oldest row, and rows that are cancelled ------------------------------------ */

static int setup_patient(struct bx_job *job)
{
    return setup_with(job, &(struct bx_batch_options){ .flush_after_ns = UINT64_C(3600000000000) }, 2);
}

/* Waits until that many rows wait at the owner. The last must be of that rank (-1: any), and the flush timer must be
 * set if there are rows. */
static void await_rows(struct bx_job *job, uint32_t rows, int rank)
{
    struct bxi_batcher *batcher = job->rpc->batchers;
    bool are_there = false;

    while (!are_there) {
        sched_yield();
        bxi_lock(&job->run->lock);
        are_there = batcher->waiting == rows;
        if (are_there && rows > 0 && rank >= 0)
            HARNESS_EQ(batcher->tail->request.peer->rank, rank);
        if (are_there)
            HARNESS_EQ(batcher->timer.heap_index != 0, rows > 0);
        bxi_unlock(&job->run->lock);
    }
}

static void cancel_at(struct bx_job *job, int gate)
{
    struct bx_future *future = begin(job, 1, 0);

    harness_await(gate, 1);
    harness_cancel(future);
    harness_await(DONE, 1);
}

static void cancel_first(struct bx_job *job)
{
    cancel_at(job, READY);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1), 3);
}

static void call_at_last(struct bx_job *job)
{
    harness_await(DONE, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 2), 3);
}

static void cancel_second(struct bx_job *job)
{
    cancel_at(job, TOUCHED);
}

HARNESS_TEST(batch_rows, that_are_cancelled_or_run_clear_the_flush_timer, 20, .size = 4, .setup = setup_patient,
             .body = { NULL, cancel_first, call_at_last, cancel_second })
{
    await_rows(job, 2, -1);
    harness_post(READY);                /* worker 1 cancels; its call has the same id as that of worker 3 */
    await_rows(job, 1, 3);
    harness_post(TOUCHED);              /* worker 3 cancels */
    await_rows(job, 0, -1);
    harness_post(DONE);                 /* both members call */
    HARNESS_WAIT_WHILE(harness_load(RUNS) == 0);
    await_rows(job, 0, -1);
    HARNESS_EQ(bx_job_serve(job), 0);
}

/* ---- Replies that cannot be written ------------------------------------------------------------- */

HARNESS_BATCH(overflow)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++)
        bx_msg_put_bytes(bx_batch_reply(batch, row), "", SIZE_MAX - 64);
    return 0;
}

static int setup_overflow(struct bx_job *job)
{
    return bx_register_batch(job, "overflow", overflow, NULL, NULL);
}

static void call_overflow(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "overflow", NULL, NULL, NULL), -ENOMEM);
}

HARNESS_WORLD(batch_rows, whose_reply_cannot_be_made_fail, 20, .size = 2, .setup = setup_overflow,
              .body = { NULL, call_overflow });

/* ---- Members that are dead ---------------------------------------------------------------------- */

static int setup_one_member(struct bx_job *job)
{
    return setup_with(job, NULL, 1);
}

static bool has_members(struct bx_job *job)
{
    bool has;

    bxi_lock(&job->run->lock);
    has = job->rpc->batchers->members[0] != 0;
    bxi_unlock(&job->run->lock);
    return has;
}

HARNESS_TEST(batch_rows, of_the_dead_are_not_waited_for_again, 20, .size = 2, .setup = setup_one_member,
             .dies = 1u << 1, .body = { NULL, harness_die })
{
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, 1));         /* it is counted as dead at this moment, or was */
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_batch_add_member(job, "sum", 1), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "rank 1");
    HARNESS_WAIT_WHILE(has_members(job));                   /* the dead leave behind that moment */
    HARNESS_EQ(bx_batch_remove_member(job, "sum", 1), 0);
}

/* ---- A cancel ------------------------------------------------------------------------------------ */

static int setup_three_members(struct bx_job *job)
{
    return setup_with(job, NULL, 3);
}

static void wait_with_a_row(struct bx_job *job)
{
    struct bx_future *future = begin(job, 1, 0);

    harness_store(RECORD + 8, ((const struct bxi_call *)(const void *)future)->id);
    await_arrived(job, 1);
    harness_post(READY);
    harness_end(future, 0);
}

/* The row has the same id as that of the other worker. */
static void cancel_a_row_and_send_another(struct bx_job *job)
{
    struct bx_future *future;

    harness_await(READY, 1);
    future = begin(job, 10, 0);
    HARNESS_EQ(((const struct bxi_call *)(const void *)future)->id, harness_load(RECORD + 8));
    await_arrived(job, 2);
    harness_cancel(future);
    await_arrived(job, 2);              /* a call behind the cancel, so the cancel has been handled */
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 100), 1101);
}

static void complete_the_batch(struct bx_job *job)
{
    harness_await(READY, 1);
    await_arrived(job, 3);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1000), 1101);
}

HARNESS_WORLD(batch_rows, of_another_caller_stay_when_one_is_cancelled, 20, .size = 4, .setup = setup_three_members,
              .body = { NULL, wait_with_a_row, cancel_a_row_and_send_another, complete_the_batch },
              .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 123 }));
