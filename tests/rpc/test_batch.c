/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/batch.c: which calls share a batch, and when its body runs.
 */
#include "batch_fixture.h"

/* Waits for the late replies of all calls that timed out or were cancelled here. A call whose deadline passed may have
 * been ended by the owner's answer instead: that one has no late reply. */
static void await_ends(struct bx_job *job)
{
    while (harness_counter(job, "late_replies") <
           harness_counter(job, "calls_timed_out") + harness_counter(job, "calls_cancelled"))
        harness_call_i64(job, "worker0", "arrived", 0);
}

/* ---- All members ----------------------------------------------------------------------------- */

static int setup_three(struct bx_job *job)
{
    return setup_with(job, NULL, 3);
}

static void call_in_rounds(struct bx_job *job)
{
    int rank = bx_job_rank(job);

    for (int64_t round = 0; round < 200; round++)
        HARNESS_EQ(harness_call_i64(job, "worker0", "sum", round * 10 + rank), round * 30 + 6);
}

HARNESS_TEST(batch, runs_when_every_member_has_a_row_and_orders_rows_by_rank, 20, .size = 4, .setup = setup_three,
             .body = { NULL, call_in_rounds, call_in_rounds, call_in_rounds })
{
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_load(RUNS), 200);
    HARNESS_EQ(harness_counter(job, "batches_run"), 200);
    HARNESS_EQ(harness_counter(job, "batch_rows"), 600);
    HARNESS_EQ(harness_counter(job, "requests_batched"), 600);
    for (int run = 0; run < 200; run++)
        HARNESS_EQ(harness_load(RECORD + run), 123);
}

static void call_twice_first(struct bx_job *job)
{
    struct bx_future *first = begin(job, 1, 0), *second = begin(job, 100, 0);

    await_arrived(job, 2);
    HARNESS_EQ(harness_load(RUNS), 0);
    harness_post(READY);
    HARNESS_EQ(harness_end_i64(first), 3);
    HARNESS_CHECK(!bx_future_is_done(second));
    harness_post(ARRIVED);
    HARNESS_EQ(harness_end_i64(second), 300);
}

static void call_twice_second(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 2), 3);
    harness_await(ARRIVED, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 200), 300);
}

static int setup_two(struct bx_job *job)
{
    return setup_with(job, NULL, 2);
}

HARNESS_WORLD(batch, keeps_a_second_call_of_one_member_for_the_next_batch, 20, .size = 3, .setup = setup_two,
              .body = { NULL, call_twice_first, call_twice_second },
              .expect = HARNESS_TABLE({ RUNS, 2 }, { RECORD, 12 }, { RECORD + 1, 12 }));

static bool needs_others(const struct bx_future *future)
{
    return bxi_call_needs_others(&(struct bxi_waiter){ .object = future });
}

static void await_need(const struct bx_future *future)
{
    HARNESS_WAIT_WHILE(!needs_others(future));
}

static void see_the_batch(struct bx_job *job)
{
    struct bx_future *row, *other = NULL;

    bxi_store_relaxed(&job->run->cpus_are_shared, 1);
    harness_store(BODY_WAITS, 1);
    row = begin(job, 1, 0);
    await_arrived(job, 1);
    HARNESS_CHECK(needs_others(row));
    other = harness_async(job, "worker0", "arrived");
    HARNESS_CHECK(!needs_others(other));
    bxi_store_relaxed(&job->run->cpus_are_shared, 0);
    HARNESS_CHECK(!needs_others(row));
    bxi_store_relaxed(&job->run->cpus_are_shared, 1);
    harness_post(READY);
    harness_await(BODY_ENTERED, 1);
    HARNESS_CHECK(!needs_others(row));              /* the body runs */
    harness_post(BODY_GO);
    HARNESS_EQ(harness_end_i64(row), 3);
    harness_end(other, 0);
    harness_store(BODY_WAITS, 0);
    harness_await(DONE, 1);
    row = begin(job, 10, 0);
    await_arrived(job, 3);
    harness_post(ARRIVED);
    HARNESS_EQ(harness_end_i64(row), 30);
}

static void complete_the_batch(struct bx_job *job)
{
    struct bx_future *row;

    bxi_store_relaxed(&job->run->cpus_are_shared, 1);
    harness_await(READY, 1);
    row = begin(job, 2, 0);
    HARNESS_EQ(bx_future_wait(row, BX_FOREVER), 0);
    await_need(row);                                /* the batch is empty, and the body has returned */
    harness_post(DONE);
    harness_await(ARRIVED, 1);
    HARNESS_CHECK(!needs_others(row));              /* another row of this worker would complete it */
    HARNESS_EQ(harness_end_i64(row), 3);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 20), 30);
}

HARNESS_WORLD(batch, is_seen_by_the_callers_of_its_rows, 20, .size = 3, .setup = setup_two,
              .body = { NULL, see_the_batch, complete_the_batch });

/* A batch of two rows, of any workers. */
static int setup_rows_of_two(struct bx_job *job)
{
    return setup_with(job, &(struct bx_batch_options){ .max_rows = 2 }, 0);
}

static void see_half_a_pair(struct bx_job *job)
{
    struct bx_future *row;

    bxi_store_relaxed(&job->run->cpus_are_shared, 1);
    row = begin(job, 1, 0);
    await_need(row);
    harness_post(READY);
    HARNESS_EQ(harness_end_i64(row), 3);
}

static void complete_the_pair(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 2), 3);
}

HARNESS_WORLD(batch, without_members_is_seen_by_the_callers_of_its_rows, 20, .size = 3, .setup = setup_rows_of_two,
              .body = { NULL, see_half_a_pair, complete_the_pair });

static void call_as_owner(struct bx_job *job)
{
    HARNESS_EQ(bx_batch_add_member(job, "sum", 0), 0);
    harness_post(READY);
    HARNESS_EQ(harness_end_i64(begin(job, 10, 0)), 13);
}

static void call_after_owner(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", bx_job_rank(job)), 13);
}

Test(batch, takes_rows_of_its_owner_too, .timeout = 20)
{
    harness_run(&(struct harness_world){
        .size = 3, .setup = setup_two, .body = { call_as_owner, call_after_owner, call_after_owner } });
    cr_expect_eq(harness_load(RECORD), 12);         /* 0, 1, 2 */
}

static void call_as_a_guest(struct bx_job *job)
{
    struct bx_future *future = begin(job, 100, 0);

    await_arrived(job, 1);
    HARNESS_EQ(harness_load(RUNS), 0);          /* no member has called */
    harness_post(READY);
    HARNESS_EQ(harness_end_i64(future), 103);
}

static void call_after_the_guest(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", bx_job_rank(job)), 103);
}

HARNESS_WORLD(batch, takes_rows_of_other_workers_with_those_of_its_members, 20, .size = 4, .setup = setup_two,
              .body = { NULL, call_after_the_guest, call_after_the_guest, call_as_a_guest },
              .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 123 }));

/* ---- max_rows, flush_after, no member -------------------------------------------------------- */

static int setup_alone(struct bx_job *job)
{
    return setup_with(job, NULL, 0);
}

static void call_alone(struct bx_job *job)
{
    for (int64_t i = 0; i < 50; i++)
        HARNESS_EQ(harness_call_i64(job, "worker0", "sum", i), i);
}

HARNESS_WORLD(batch, with_no_member_and_no_bound_makes_every_call_a_batch, 20, .size = 3, .setup = setup_alone,
              .body = { NULL, call_alone, call_alone }, .expect = HARNESS_TABLE({ RUNS, 100 }));

static int setup_flush(struct bx_job *job)
{
    return setup_with(job, &(struct bx_batch_options){ .flush_after_ns = 20 * HARNESS_MS }, 2);
}

static void call_and_be_flushed(struct bx_job *job)
{
    /* Member 2 never calls, so each of these calls waits for the flush. */
    for (int64_t i = 0; i < 3; i++) {
        uint64_t before_ns = bxi_now_ns();

        HARNESS_EQ(harness_call_i64(job, "worker0", "sum", i), i);
        HARNESS_CHECK(bxi_now_ns() - before_ns >= 20 * HARNESS_MS);
    }
}

HARNESS_WORLD(batch, runs_when_its_oldest_row_has_waited_for_flush_after, 20, .size = 3, .setup = setup_flush,
              .body = { NULL, call_and_be_flushed }, .expect = HARNESS_TABLE({ RUNS, 3 }));

/* ---- Members that join and leave ------------------------------------------------------------- */

static void wait_for_a_leaver(struct bx_job *job)
{
    struct bx_future *future = begin(job, 5, 0);

    await_arrived(job, 1);
    HARNESS_EQ(harness_load(RUNS), 0);
    harness_post(READY);
    HARNESS_EQ(harness_end_i64(future), 5);
    /* This worker is the only member now. */
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 6), 6);
    harness_post(DONE);
}

static void leave_and_join(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(bx_batch_leave(job, "worker0", "sum"), 0);
    harness_await(DONE, 1);
    HARNESS_EQ(bx_batch_leave(job, "worker0", "sum"), 0);       /* to leave twice is no error */
    HARNESS_EQ(bx_batch_join(job, "worker0", "sum"), 0);
    harness_post(DONE);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1), 8);
}

static void call_when_joined(struct bx_job *job)
{
    wait_for_a_leaver(job);
    harness_await(DONE, 2);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 7), 8);
}

HARNESS_WORLD(batch, follows_members_that_leave_and_join, 20, .size = 3, .setup = setup_two,
              .body = { NULL, call_when_joined, leave_and_join },
              .expect = HARNESS_TABLE({ RUNS, 3 }, { RECORD + 2, 12 }));

static void call_when_added(struct bx_job *job)
{
    harness_await(DONE, 2);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1), 8);
}

HARNESS_TEST(batch, follows_members_that_its_owner_removes_and_adds, 20, .size = 3, .setup = setup_two,
             .body = { NULL, call_when_joined, call_when_added }, .expect = HARNESS_TABLE({ RUNS, 3 }))
{
    harness_await(READY, 1);
    HARNESS_EQ(bx_batch_remove_member(job, "sum", 2), 0);
    harness_await(DONE, 1);
    HARNESS_EQ(bx_batch_add_member(job, "sum", 2), 0);
    harness_post(DONE);
    HARNESS_EQ(bx_batch_add_member(job, "sum", 3), -EINVAL);
    HARNESS_EQ(bx_batch_add_member(job, "sum", -1), -EINVAL);
    HARNESS_EQ(bx_batch_remove_member(job, "sum", 3), -EINVAL);
    HARNESS_EQ(bx_batch_add_member(job, "arrived", 1), -ENOENT);
    HARNESS_EQ(bx_batch_add_member(job, "product", 1), -ENOENT);
    HARNESS_HAS(bx_error_text(), "'product'");
}

/* Worker 2, no member, waits for the two that are. One goes by itself, the other is removed by the owner. */
static void leave_a_row_behind(struct bx_job *job)
{
    if (bx_job_rank(job) == 2)
        HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 5), 5);
    if (bx_job_rank(job) == 1) {
        await_arrived(job, 1);
        HARNESS_EQ(bx_batch_leave(job, "worker0", "sum"), 0);
        harness_post(READY);
    }
}

static int setup_eight_of_two(struct bx_job *job)
{
    int rc = setup_with(job, &(struct bx_batch_options){ .max_rows = 8, .flush_after_ns = BX_FOREVER }, 1);

    return rc == 0 && bx_job_rank(job) == 0 ? bx_batch_add_member(job, "sum", 0) : rc;
}

HARNESS_TEST(batch, runs_what_waits_when_its_last_member_has_gone, 20, .size = 3, .setup = setup_eight_of_two,
             .body = { NULL, leave_a_row_behind, leave_a_row_behind },
             .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 2 }))
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_load(RUNS), 0);
    HARNESS_EQ(bx_batch_remove_member(job, "sum", 0), 0);
}

static void join_wrongly(struct bx_job *job)
{
    HARNESS_EQ(bx_batch_join(job, "worker0", "arrived"), -EINVAL);
    HARNESS_EQ(bx_batch_leave(job, "worker0", "product"), BX_E_NO_FUNCTION);
    HARNESS_EQ(bx_batch_join(job, "nobody", "sum"), BX_E_NO_WORKER);
}

HARNESS_WORLD(batch, can_be_joined_only_if_it_exists, 20, .size = 2, .setup = setup_alone,
              .body = { NULL, join_wrongly });

/* ---- Dead members ---------------------------------------------------------------------------- */

/* Registers batches and makes worker 2, which is about to die, a member of each, until that is refused. None may wait
 * for worker 2 once its death has been seen. */
#define BATCHES 60

static int count_the_dead(struct bx_job *job)
{
    int count = 0;

    bxi_lock(&job->run->lock);
    for (const struct bxi_batcher *batcher = job->rpc->batchers; batcher != NULL; batcher = batcher->next)
        count += (batcher->members[0] & 4) != 0;
    bxi_unlock(&job->run->lock);
    return count;
}

HARNESS_BODY(die_when_told)
{
    harness_leaves_by_itself();
    harness_post(READY);
    pause();
}

HARNESS_TEST(batch, has_no_member_that_died_while_it_was_added, 20, .size = 3, .body = { NULL, NULL, die_when_told },
             .dies = 1u << 2)
{
    char name[16];
    int added = 0, rc = 0;

    harness_await(READY, 1);
    for (int i = 0; i < BATCHES; i++) {
        snprintf(name, sizeof name, "batch%d", i);
        HARNESS_EQ(bx_register_batch(job, name, add_up, NULL, NULL), 0);
        rc = bx_batch_add_member(job, name, 2);
        if (i == BATCHES / 2)
            harness_signal(2, SIGKILL);
        added += rc == 0;
        HARNESS_CHECK(rc == 0 || rc == BX_E_PEER_DEAD);
    }
    HARNESS_CHECK(added > BATCHES / 2);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_WAIT_WHILE((rc = bx_batch_add_member(job, "batch0", 2)) == 0);
    HARNESS_EQ(rc, BX_E_PEER_DEAD);
    HARNESS_EQ(count_the_dead(job), 0);
    /* As a thread that checked that the worker is alive before it died, and adds it now. */
    HARNESS_EQ(bxi_batch_member(job, job->rpc->batchers, 2, true), BX_E_PEER_DEAD);
    HARNESS_EQ(count_the_dead(job), 0);
}

static void die_with_a_row(struct bx_job *job)
{
    harness_leaves_by_itself();
    bx_future_release(begin(job, 100, 0));
    await_arrived(job, 2);
    harness_post(READY);
    pause();
}

static void live_without_a_row(struct bx_job *job)
{
    await_arrived(job, 2);
    harness_post(READY);
    /* Calls only after the death has been seen, so the dead worker's row must have been kept. */
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, 3));
    harness_await(DONE, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 1000), 1104);
}

static void outlive_and_sum(struct bx_job *job)
{
    struct bx_future *future = begin(job, 4, 0);

    harness_await(READY, 2);
    harness_signal(3, SIGKILL);
    HARNESS_EQ(harness_end_i64(future), 1104);
}

HARNESS_TEST(batch, keeps_the_rows_that_a_dead_member_had_sent, 20, .size = 4, .setup = setup_three,
             .body = { NULL, outlive_and_sum, live_without_a_row, die_with_a_row }, .dies = 1u << 3,
             .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 123 }))
{
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "'worker3'");
    HARNESS_EQ(harness_load(RUNS), 0);
    harness_post(DONE);
    HARNESS_EQ(bx_job_serve(job), 0);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void be_failed(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(1), *reply = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker0", "sum", args, NULL, &reply), -EDOM);
    HARNESS_CHECK(reply == NULL);
    HARNESS_HAS(bx_error_text(), "the tank is empty");
    HARNESS_HAS(bx_error_text(), "'sum'");
    HARNESS_HAS(bx_error_text(), "'worker0'");
    bx_msg_destroy(args);
}

HARNESS_WORLD(batch, whose_body_fails_fails_every_row, 20, .size = 4, .setup = setup_three,
              .body = { NULL, be_failed, be_failed, be_failed }, .store = HARNESS_TABLE({ FAIL_CODE, EDOM }),
              .expect = HARNESS_TABLE({ RUNS, 1 }));

HARNESS_BATCH(fail_some)
{
    HARNESS_EQ(bx_batch_rows(batch), 3);
    HARNESS_EQ(bx_batch_reply_i64(batch, 0, 10), 0);
    HARNESS_EQ(bx_batch_fail_row(batch, 1, -EDOM, "car 2 has no brakes"), 0);
    HARNESS_EQ(bx_batch_fail_row(batch, 2, BX_E_HANDLER, NULL), 0);

    /* Rows beyond the last one. */
    struct bx_reader none = bx_batch_args(batch, 3);

    HARNESS_EQ(bx_reader_left(&none), 0);
    HARNESS_EQ(bx_batch_caller(batch, 3), -EINVAL);
    HARNESS_CHECK(bx_batch_reply(batch, 3) == NULL);
    HARNESS_EQ(bx_batch_reply_i64(batch, 3, 0), -EINVAL);
    HARNESS_EQ(bx_batch_fail_row(batch, 3, -EDOM, NULL), -EINVAL);
    HARNESS_EQ(bx_batch_fail_row(batch, 0, 0, NULL), -EINVAL);
    return 0;
}

static int setup_fail_some(struct bx_job *job)
{
    return bx_register_batch(job, "some", fail_some, NULL, &(struct bx_batch_options){ .max_rows = 3 });
}

static void see_one_s_own_row(struct bx_job *job)
{
    static const int expected[] = { 0, 0, -EDOM, BX_E_HANDLER };
    static const char *const texts[] = { "", "", "car 2 has no brakes", "the handler failed" };
    struct bx_msg *reply = NULL;
    int rank = bx_job_rank(job);

    HARNESS_EQ(bx_rpc_sync(job, "worker0", "some", NULL, NULL, &reply), expected[rank]);
    if (rank == 1) {
        struct bx_reader reader = bx_msg_reader(reply);

        HARNESS_EQ(bx_read_i64(&reader), 10);
        bx_msg_destroy(reply);
    } else {
        HARNESS_HAS(bx_error_text(), texts[rank]);
    }
}

HARNESS_WORLD(batch, may_fail_single_rows, 20, .size = 4, .setup = setup_fail_some,
              .body = { NULL, see_one_s_own_row, see_one_s_own_row, see_one_s_own_row });

/* ---- Deadlines and cancelling ---------------------------------------------------------------- */

static void expire_and_call_again(struct bx_job *job)
{
    struct bx_future *future = begin(job, 1, 10 * HARNESS_MS);

    harness_end(future, BX_E_TIMEOUT);
    future = begin(job, 10, 0);
    /* Requests keep their order, so the second row has arrived. The expired one may be missing, if it was read too
     * late. */
    harness_call_i64(job, "worker0", "arrived", 0);
    HARNESS_EQ(harness_load(RUNS), 0);
    harness_post(READY);
    HARNESS_EQ(harness_end_i64(future), 12);
    await_ends(job);
}

static void call_when_ready(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "sum", 2), 12);
}

HARNESS_TEST(batch, leaves_out_a_row_whose_deadline_has_passed, 20, .size = 3, .setup = setup_two,
             .body = { NULL, expire_and_call_again, call_when_ready },
             .expect = HARNESS_TABLE({ RUNS, 1 }, { RECORD, 12 }))
{
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "requests_expired"), 1);
    HARNESS_EQ(harness_counter(job, "batch_rows"), 2);
}

/* ---- A body on the pool ---------------------------------------------------------------------- */

static int setup_blocking(struct bx_job *job)
{
    return setup_with(job, &(struct bx_batch_options){ .blocking = true }, 2);
}

static void call_while_it_runs(struct bx_job *job)
{
    struct bx_future *first = begin(job, 1, 0), *second;

    harness_await(BODY_ENTERED, 1);
    second = begin(job, 10, 0);
    harness_post(READY);
    await_arrived(job, 4);              /* two rows of each member, while the first body runs */
    HARNESS_EQ(harness_load(RUNS), 1);
    HARNESS_CHECK(!bx_future_is_done(first));
    harness_post(BODY_GO);
    HARNESS_EQ(harness_end_i64(first), 3);
    harness_await(BODY_ENTERED, 2);
    harness_post(BODY_GO);
    HARNESS_EQ(harness_end_i64(second), 30);
}

static void call_while_it_runs_too(struct bx_job *job)
{
    HARNESS_EQ(harness_gate(BODY_GO), 0);

    struct bx_future *first = begin(job, 2, 0), *second;

    harness_await(READY, 1);
    second = begin(job, 20, 0);
    HARNESS_EQ(harness_end_i64(first), 3);
    HARNESS_EQ(harness_end_i64(second), 30);
}

HARNESS_WORLD(batch, keeps_calls_that_arrive_while_its_body_runs_for_the_next_batch, 20, .size = 3,
              .setup = setup_blocking, .body = { NULL, call_while_it_runs, call_while_it_runs_too },
              .store = HARNESS_TABLE({ BODY_WAITS, 1 }), .expect = HARNESS_TABLE({ RUNS, 2 }));
