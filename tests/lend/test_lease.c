/* SPDX-License-Identifier: MIT */
/*
 * lib/lend/grant.c: every lease is returned, however its message ended, and the errors where no more can be lent. Each
 * test counts the leases on loan at its end. The harness does so too, in every worker.
 *
 * The borrower returns a lease without a frame. But a caller that has an answer also sees what the callee did before it
 * answered: counts are exact after a call.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

enum gate { READY };
enum value { RAN = 0 };

/* ---- Ways in which a message ends ---------------------------------------------------------------------- */

static void expect_all_back(struct bx_job *job, uint64_t granted)
{
    HARNESS_EQ(loans_of(job, -1).leases, 0);
    HARNESS_EQ(loans_of(job, -1).borrowed, 0);
    HARNESS_EQ(loans_of(job, -1).granted, granted);
    HARNESS_EQ(loans_of(job, -1).returned, granted);
    HARNESS_EQ(harness_counter(job, "leases_granted"), granted);
    HARNESS_EQ(harness_counter(job, "leases_returned"), granted);
    HARNESS_EQ(harness_counter(job, "leases_taken_back"), 0);
}

HARNESS_TEST(lease, is_returned_whether_the_handler_succeeds_fails_or_is_missing, 20, .size = 2, .setup = loans_setup)
{
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);

        HARNESS_EQ(loans_try(job, name, "verify", loans_msg(job, 1, 3, 500), NULL), 0);
        HARNESS_EQ(loans_of(job, -1).leases, 0);
        HARNESS_EQ(loans_try(job, name, "fail", loans_msg(job, 1, 3, 500), NULL), -EDOM);
        HARNESS_HAS(bx_error_text(), "not this time");
        HARNESS_EQ(loans_of(job, -1).leases, 0);
        HARNESS_EQ(loans_try(job, name, "none", loans_msg(job, 1, 3, 500), NULL), BX_E_NO_FUNCTION);
        HARNESS_EQ(loans_of(job, -1).leases, 0);
        HARNESS_EQ(loans_try(job, "nobody", "verify", loans_msg(job, 1, 3, 500), NULL), BX_E_NO_WORKER);
    }
    loans_come_back(job, -1);
    expect_all_back(job, 4);
}

/* Waits, because the thread that completed a call may not have dropped its own reference yet. */
static void none_borrowed(struct bx_job *job, int rank)
{
    HARNESS_WAIT_WHILE(loans_of(job, rank).borrowed != 0);
}

HARNESS_HANDLER(out)
{
    return bx_msg_put_i64(reply, (int64_t)loans_of(bx_request_job(request), -1).leases);
}

HARNESS_TEST(lease, is_returned_of_a_reply_that_is_dropped_or_not_read, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("out", out) })
{
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);
        struct bx_future *future;

        HARNESS_EQ(loans_try(job, name, "make", harness_msg_i64(2), NULL), 0);
        HARNESS_EQ(loans_of(job, to).borrowed, 0);
        future = loans_start(job, name, "make", harness_msg_i64(2));
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
        HARNESS_EQ(loans_of(job, to).borrowed, 1);
        bx_future_release(future);
        none_borrowed(job, to);
        bx_future_release(loans_start(job, name, "make", harness_msg_i64(2)));
        /* Replies of inline handlers arrive in order, so that of "make" has arrived. */
        HARNESS_EQ(harness_call(job, name, "echo", harness_msg_i64(9)), 9);
        none_borrowed(job, to);
        HARNESS_EQ(harness_call(job, name, "out", harness_msg_i64(0)), 0);
    }
}

HARNESS_TEST(lease, is_returned_of_one_way_calls, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("out", out) })
{
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);
        struct bx_msg *args = loans_msg(job, 2, 2, 500);

        HARNESS_EQ(bx_rpc_oneway(job, name, "verify", args, NULL), 0);
        HARNESS_EQ(bx_rpc_oneway(job, name, "back", args, NULL), 0);    /* its reply is dropped */
        HARNESS_EQ(bx_rpc_oneway(job, name, "fail", args, NULL), 0);
        HARNESS_EQ(bx_rpc_oneway(job, name, "none", args, NULL), BX_E_NO_FUNCTION);
        bx_msg_destroy(args);
        HARNESS_EQ(harness_call(job, name, "out", NULL), 0);
        HARNESS_EQ(loans_of(job, -1).leases, 0);
    }
    expect_all_back(job, 6);
}

/* Calls that time out, until the handler of one has begun, which posts the gate. Returns how many calls. */
static uint64_t times_out_in(struct bx_job *job, const char *function, int gate, uint32_t least)
{
    struct bx_call_options hasty = { .timeout_ns = 10 * HARNESS_MS };
    uint64_t calls = 0;

    for (; harness_gate(gate) < least; calls++, hasty.timeout_ns *= 2)
        HARNESS_EQ(loans_try(job, "worker1", function, loans_msg(job, 3, 2, 500), &hasty), BX_E_TIMEOUT);
    return calls;
}

HARNESS_TEST(lease, is_returned_of_a_call_that_timed_out_and_of_its_late_reply, 20, .size = 2, .setup = loans_setup)
{
    uint64_t calls = times_out_in(job, "stuck", LOANS_STUCK, 1);

    HARNESS_CHECK(loans_of(job, 1).leases >= 1);        /* the handler still has it */
    harness_post(LOANS_GO);
    /* A request that expired before it ran may be ended by the callee's answer, which is not counted as late. */
    while (harness_counter(job, "late_replies") < harness_counter(job, "calls_timed_out"))
        HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    loans_come_back(job, -1);
    expect_all_back(job, calls);
}

/* Makes every thread of worker 1's pool wait in "stuck". */
static void fill_the_pool(struct bx_job *job, struct bx_future **futures)
{
    for (int i = 0; i < BXI_POOL_READY; i++)
        futures[i] = loans_start(job, "worker1", "stuck", loans_msg(job, i, 1, 100));
    harness_await(LOANS_STUCK, BXI_POOL_READY);
}

static void empty_the_pool(struct bx_future **futures)
{
    harness_post(LOANS_GO);
    harness_end_all(futures, BXI_POOL_READY, 0);
}

HARNESS_TEST(lease, is_returned_of_calls_that_expire_or_are_cancelled_in_the_pool, 20, .size = 2, .setup = loans_setup)
{
    struct bx_call_options hasty = { .timeout_ns = 10 * HARNESS_MS };
    struct bx_future *stuck_calls[BXI_POOL_READY], *future;

    fill_the_pool(job, stuck_calls);
    HARNESS_EQ(loans_of(job, 1).leases, BXI_POOL_READY);
    HARNESS_EQ(loans_try(job, "worker1", "keep_blocking", loans_msg(job, 4, 2, 500), &hasty), BX_E_TIMEOUT);
    future = loans_start(job, "worker1", "keep_blocking", loans_msg(job, 4, 2, 500));
    harness_cancel(future);
    /* The callee handles the cancel, and ends its lease, before it handles this request. */
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);
    HARNESS_CHECK(loans_of(job, 1).leases <= BXI_POOL_READY + 1);
    empty_the_pool(stuck_calls);
    loans_come_back(job, -1);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(0)), 0);      /* nothing was kept */
    expect_all_back(job, BXI_POOL_READY + 2);
}

HARNESS_BATCH(never_full)
{
    harness_add(RAN, bx_batch_rows(batch));
    return 0;
}

static int setup_batch(struct bx_job *job)
{
    static const struct bx_batch_options two = { .max_rows = 2 };

    HARNESS_EQ(bx_register_batch(job, "two", never_full, NULL, &two), 0);
    return loans_setup(job);
}

HARNESS_TEST(lease, is_returned_of_rows_that_expire_or_are_cancelled, 20, .size = 2, .setup = setup_batch)
{
    struct bx_call_options hasty = { .timeout_ns = 10 * HARNESS_MS };
    struct bx_future *future;

    HARNESS_EQ(loans_try(job, "worker1", "two", loans_msg(job, 5, 2, 500), &hasty), BX_E_TIMEOUT);
    future = loans_start(job, "worker1", "two", loans_msg(job, 6, 2, 500));
    harness_cancel(future);
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);
    loans_come_back(job, -1);
    HARNESS_EQ(harness_load(RAN), 0);
    expect_all_back(job, 2);
}

HARNESS_TEST(lease, is_returned_of_parked_requests_that_time_out_or_are_cancelled, 20, .size = 2, .setup = loans_setup)
{
    struct bx_future *future = loans_start(job, "worker1", "hold", loans_msg(job, 8, 1, 500));
    uint64_t calls;

    harness_await(LOANS_HELD, 1);
    HARNESS_EQ(loans_of(job, 1).leases, 1);
    harness_cancel(future);
    calls = times_out_in(job, "hold", LOANS_HELD, 2);
    loans_come_back(job, -1);
    expect_all_back(job, 1 + calls);
}

/* The lease and the future of a parked request end when the caller's job ends. */
HARNESS_TEST(lease, of_a_parked_request_does_not_delay_a_shutdown, 20, .size = 2, .setup = loans_setup)
{
    struct bx_future *future = loans_start(job, "worker1", "hold", loans_msg(job, 8, 1, 500));

    harness_leaves_by_itself();
    harness_await(LOANS_HELD, 1);
    HARNESS_EQ(loans_of(job, 1).leases, 1);
    bx_future_cancel(future);
    bx_future_release(future);
    harness_leave(job);
}

/* Both workers keep what they borrowed until both have left. */
static void leaves_with_all_it_holds(struct bx_job *job)
{
    const char *other = bx_worker_name(job, 1 - bx_job_rank(job));
    OWN(msg) *reply = NULL;

    harness_leaves_by_itself();
    reply = harness_ask(job, other, "make", harness_msg_i64(3));
    harness_post(READY);
    harness_await(READY, 2);
    HARNESS_EQ(loans_of(job, -1).leases, 1);
    HARNESS_EQ(loans_of(job, -1).borrowed, 1);
    harness_leave(job);
}

HARNESS_WORLD(lease, does_not_delay_a_shutdown_of_all_workers, 20, .size = 2, .setup = loans_setup,
              .body = { leaves_with_all_it_holds, leaves_with_all_it_holds });

/* ---- The grants ------------------------------------------------------------------------------------------ */

HARNESS_TEST(lease, is_counted_with_its_bytes_and_its_age, 20, .size = 3, .setup = loans_setup)
{
    struct bx_loans loans, later;

    HARNESS_EQ(bx_job_loans(job, 3, &loans), -EINVAL);
    HARNESS_EQ(bx_job_loans(job, -2, &loans), -EINVAL);
    loans = loans_of(job, -1);
    HARNESS_EQ(loans.leases + loans.bytes + loans.oldest_ns + loans.granted, 0);
    for (int to = 0; to < 3; to++)
        for (int i = 0; i <= to; i++)
            HARNESS_EQ(harness_call(job, bx_worker_name(job, to), "keep", loans_msg(job, i, 1, 10000)), 1);
    for (int to = 0; to < 3; to++) {
        loans = loans_of(job, to);
        HARNESS_EQ(loans.leases, (unsigned)to + 1);
        HARNESS_CHECK(loans.bytes >= 10000 * loans.leases && loans.bytes <= 13000 * loans.leases);
        HARNESS_EQ(loans.granted, (unsigned)to + 1);
        HARNESS_EQ(loans.returned + loans.taken_back, 0);
        HARNESS_CHECK(loans.oldest_ns > 0);
    }
    HARNESS_EQ(loans_of(job, -1).leases, 6);
    HARNESS_EQ(loans_of(job, -1).bytes, loans_of(job, 0).bytes * 6);
    HARNESS_EQ(loans_of(job, 0).borrowed, 1);       /* it has borrowed from itself */
    HARNESS_CHECK(loans_of(job, -1).oldest_ns >= loans_of(job, 2).oldest_ns);

    loans = loans_of(job, 2);
    later = loans_of(job, 2);
    HARNESS_CHECK(later.oldest_ns > loans.oldest_ns);
    HARNESS_EQ(harness_call(job, "worker2", "drop", harness_msg_i64(1)), 2);
    HARNESS_EQ(loans_of(job, 2).leases, 2);
    HARNESS_EQ(loans_of(job, 2).returned, 1);
    HARNESS_EQ(loans_of(job, 2).granted, 3);
    for (int to = 0; to < 3; to++)
        HARNESS_EQ(harness_call(job, bx_worker_name(job, to), "drop", harness_msg_i64(9)), 0);
    HARNESS_EQ(loans_of(job, -1).leases, 0);
    HARNESS_EQ(loans_of(job, -1).returned, 6);
}

/* A block on two leases counts twice. Several views of a block on one lease count once. */
HARNESS_TEST(lease, counts_whole_blocks_once_each, 20, .size = 2, .setup = loans_setup)
{
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, 65536, 1), *half = NULL;
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_tensor_slice(tensor, 0, 0, 32768, 1, &half), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, half), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "keep", args, NULL, NULL), 0);

    uint64_t once = loans_of(job, 1).bytes;

    HARNESS_CHECK(once >= 65536);
    HARNESS_EQ(harness_call(job, "worker1", "keep", args), 1);
    HARNESS_EQ(loans_of(job, 1).bytes, 2 * once);
    HARNESS_EQ(bx_tensor_on_loan(tensor), 2);
    HARNESS_EQ(bx_tensor_on_loan(half), 2);
    bx_tensor_release(half);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(2)), 0);
    HARNESS_EQ(bx_tensor_on_loan(tensor), 2);       /* the lease words have not been read since */
    HARNESS_EQ(loans_of(job, 1).leases, 0);
    HARNESS_EQ(bx_tensor_on_loan(tensor), 0);
    bx_tensor_release(tensor);
}

/* ---- BX_LEASES_MAX ----------------------------------------------------------------------------------------- */

static void lends_all_it_may(struct bx_job *job, const char *to)
{
    struct bx_call_options at_once = { .no_wait = true }, hasty = { .timeout_ns = 10 * HARNESS_MS };
    OWN(msg) *args = loans_msg(job, 1, 1, 64);

    for (int i = 0; i < BX_LEASES_MAX; i++)
        HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, &at_once, NULL), 0);
    HARNESS_EQ(loans_of(job, -1).leases, BX_LEASES_MAX);
    HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, &at_once, NULL), -EAGAIN);
    HARNESS_EQ(bx_rpc_oneway(job, to, "keep", args, &at_once), -EAGAIN);
    HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, &hasty, NULL), BX_E_TIMEOUT);
    HARNESS_EQ(bx_rpc_oneway(job, to, "keep", args, &hasty), BX_E_TIMEOUT);
    HARNESS_EQ(loans_of(job, -1).leases, BX_LEASES_MAX);
    /* Calls without tensors still succeed. */
    HARNESS_EQ(harness_call(job, to, "drop", harness_msg_i64(1)), BX_LEASES_MAX - 1);
    HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, &at_once, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, &at_once, NULL), -EAGAIN);
    HARNESS_EQ(harness_call(job, to, "drop", harness_msg_i64(BX_LEASES_MAX)), 0);
    HARNESS_EQ(loans_of(job, -1).leases, 0);
}

HARNESS_TEST(lease, is_one_of_1024_for_each_peer, 60, .size = 2, .setup = loans_setup)
{
    lends_all_it_may(job, "worker1");
    lends_all_it_may(job, "worker0");
    lends_all_it_may(job, "worker1");
}

HARNESS_TEST(lease, that_a_reply_cannot_get_is_an_error_at_the_caller, 60, .size = 2, .setup = loans_setup)
{
    struct bx_msg *args = harness_msg_i64(1), *reply = NULL;
    struct bx_msg **replies = calloc(BX_LEASES_MAX, sizeof(*replies));

    for (int i = 0; i < BX_LEASES_MAX; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "make", args, NULL, &replies[i]), 0);
    HARNESS_EQ(loans_of(job, 1).borrowed, BX_LEASES_MAX);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "make", args, NULL, &reply), BX_E_ON_LOAN);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    bx_msg_destroy(replies[500]);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "make", args, NULL, &replies[500]), 0);
    for (int i = 0; i < BX_LEASES_MAX; i++)
        bx_msg_destroy(replies[i]);
    free(replies);
    bx_msg_destroy(args);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
}

/* ---- loan_bytes_max ---------------------------------------------------------------------------------------- */

#define HALF (512 << 10)

static const struct bx_options one_megabyte = { .loan_bytes_max = 1 << 20 };

HARNESS_TEST(loan_bytes_max, refuses_a_message_that_would_exceed_it, 20, .size = 2, .setup = loans_setup,
             .options = one_megabyte)
{
    struct bx_call_options at_once = { .no_wait = true }, hasty = { .timeout_ns = 10 * HARNESS_MS };

    for (int i = 0; i < 2; i++)
        HARNESS_EQ(loans_try(job, bx_worker_name(job, i), "keep", loans_msg(job, i, 1, HALF), &at_once), 0);
    for (int to = 0; to < 2; to++) {
        const char *name = bx_worker_name(job, to);

        HARNESS_EQ(loans_try(job, name, "keep", loans_msg(job, 2, 1, HALF), &at_once), -EAGAIN);
        HARNESS_EQ(loans_try(job, name, "keep", loans_msg(job, 2, 1, HALF), &hasty), BX_E_TIMEOUT);
    }
    HARNESS_EQ(loans_of(job, -1).bytes, 2 * HALF);
    HARNESS_EQ(loans_of(job, -1).granted, 2);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 0);
    HARNESS_EQ(loans_try(job, "worker0", "keep", loans_msg(job, 2, 1, HALF), &at_once), 0);
    HARNESS_EQ(harness_call(job, "worker0", "drop", harness_msg_i64(2)), 0);
    HARNESS_EQ(loans_of(job, -1).bytes, 0);
}

HARNESS_TEST(loan_bytes_max, refuses_a_message_that_is_larger_than_it, 20, .size = 2, .setup = loans_setup,
             .options = one_megabyte)
{
    for (int to = 0; to < 2; to++) {
        HARNESS_EQ(loans_try(job, bx_worker_name(job, to), "verify", loans_msg(job, 1, 3, HALF), NULL), BX_E_ON_LOAN);
        HARNESS_HAS(bx_error_text(), "loan_bytes_max");
        HARNESS_EQ(loans_of(job, -1).granted, (unsigned)to);
        HARNESS_EQ(loans_try(job, bx_worker_name(job, to), "verify", loans_msg(job, 1, 2, HALF), NULL), 0);
    }
}

HARNESS_TEST(loan_bytes_max, fails_a_reply_that_would_exceed_it, 20, .size = 2, .setup = loans_setup,
             .options = { .loan_bytes_max = 1300 << 10 })
{
    struct bx_msg *args[3], *reply = NULL;
    struct bx_msg *two[2];

    for (int i = 0; i < 3; i++)
        args[i] = harness_msg_i64(HALF / 4000);
    for (int i = 0; i < 2; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "make", args[i], NULL, &two[i]), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "make", args[2], NULL, &reply), BX_E_ON_LOAN);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_CHECK(reply == NULL);
    bx_msg_destroy(two[0]);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "make", args[2], NULL, &reply), 0);
    bx_msg_destroy(reply);
    bx_msg_destroy(two[1]);
    for (int i = 0; i < 3; i++)
        bx_msg_destroy(args[i]);
}

/* ---- A full ring ------------------------------------------------------------------------------------------- */

/* The callee is stopped, so its ring stays full. */
HARNESS_TEST(lease, is_not_taken_by_a_one_way_call_that_finds_the_ring_full, 30, .size = 2, .setup = loans_setup)
{
    static const char payload[8000];
    const struct bx_call_options at_once = { .no_wait = true };
    struct bx_msg *full = bx_msg_create(sizeof(payload)), *args = loans_msg(job, 1, 2, 5000);
    struct bx_arena_info arena = { 0 };
    uint64_t generations[2];
    int rc;

    HARNESS_EQ(bx_msg_put_bytes(full, payload, sizeof(payload)), 0);
    HARNESS_EQ(loans_try(job, "worker1", "verify", loans_msg(job, 1, 1, 500), NULL), 0);
    loans_come_back(job, -1);
    harness_stop_worker(1);
    do
        rc = bx_rpc_oneway(job, "worker1", "echo", full, &at_once);
    while (rc == 0);
    HARNESS_EQ(rc, -EAGAIN);
    for (int i = 0; i < 2; i++) {
        while ((rc = bx_rpc_oneway(job, "worker1", "verify", args, &at_once)) == 0)
            ;                       /* the ring may have room for frames without 8,000 bytes of payload */
        HARNESS_EQ(rc, -EAGAIN);
        HARNESS_HAS(bx_error_text(), "ring is full");
        generations[i] = job->rpc->peers[1]->lend->grants.slots[job->rpc->peers[1]->lend->grants.free].generation;
    }
    HARNESS_EQ(generations[0], generations[1]);
    /* The leases on loan are those of the frames that were sent. */
    HARNESS_EQ(loans_of(job, 1).leases, harness_counter(job, "leases_granted") - 1);
    HARNESS_EQ(loans_of(job, 1).granted, harness_counter(job, "leases_granted"));
    harness_signal(1, SIGCONT);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "verify", args, NULL), 0);
    loans_come_back(job, 1);
    HARNESS_EQ(loans_try(job, "worker1", "verify", args, NULL), 0);
    loans_come_back(job, 1);
    HARNESS_EQ(harness_counter(job, "leases_returned"), harness_counter(job, "leases_granted"));
    bx_msg_destroy(full);
    /* No block is held any more, not even by the calls that failed. */
    HARNESS_EQ(bx_job_arena(job, &arena), 0);
    HARNESS_EQ(arena.used_bytes, 0);
}
