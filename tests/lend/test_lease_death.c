/* SPDX-License-Identifier: MIT */
/*
 * Leases of workers that die, stop or leave: a dead borrower's leases are taken back, and tensors of a dead owner stay
 * readable for as long as they are held.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

enum gate { READY = 0, DONE };

#define MEGABYTE (UINT64_C(1) << 20)
#define HALF ((int64_t)(512 << 10))

/* ---- The borrower -------------------------------------------------------------------------------------------- */

static void await_death(struct bx_job *job, int rank)
{
    while (bx_worker_is_alive(job, rank))
        HARNESS_EQ(harness_call(job, bx_worker_name(job, bx_job_rank(job)), "echo", harness_msg_i64(1)), 1);
}

HARNESS_TEST(lease_death, of_a_borrower_gives_its_leases_back, 30, .size = 3, .setup = loans_setup, .dies = 1u << 1)
{
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, HALF, 9);
    struct bx_msg *args = harness_msg_i64(9);

    for (int64_t i = 0; i < 4; i++) {
        HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, i, 1, HALF)), 1);
        HARNESS_EQ(harness_call(job, "worker2", "keep", loans_msg(job, i, 1, 100)), 1);
    }
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(harness_call(job, "worker1", "keep", args), 1);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 4);
    HARNESS_EQ(loans_of(job, 1).leases, 4);
    HARNESS_EQ(bx_tensor_on_loan(tensor), 1);
    harness_signal(1, SIGKILL);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(loans_of(job, 1).granted, 5);
    HARNESS_EQ(loans_of(job, 1).returned, 1);
    HARNESS_EQ(loans_of(job, 1).taken_back, 4);
    HARNESS_EQ(harness_counter(job, "leases_taken_back"), 4);
    HARNESS_EQ(loans_of(job, 1).bytes, 0);
    HARNESS_EQ(bx_tensor_on_loan(tensor), 0);
    HARNESS_EQ(loans_of(job, 2).leases, 4);
    bx_tensor_release(tensor);

    struct bx_arena_info info = { 0 };

    HARNESS_EQ(bx_job_arena(job, &info), 0);
    HARNESS_CHECK(info.used_bytes < MEGABYTE / 4);
    HARNESS_EQ(loans_try(job, "worker1", "keep", loans_msg(job, 1, 1, HALF), NULL), BX_E_PEER_DEAD);
    HARNESS_EQ(loans_of(job, 1).granted, 5);
    HARNESS_EQ(harness_call(job, "worker2", "drop", harness_msg_i64(4)), 0);
}

static void waits_for_room_at_one_that_dies(struct bx_job *job)
{
    for (int64_t i = 0; i < 2; i++)
        HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, i, 1, HALF)), 1);
    harness_post(READY);
    /* The call waits for room: worker 1 holds the rest of loan_bytes_max, until it dies. */
    HARNESS_EQ(harness_call(job, "worker2", "keep", loans_msg(job, 5, 1, HALF)), 1);
    HARNESS_EQ(loans_of(job, 1).taken_back, 2);
    HARNESS_EQ(harness_call(job, "worker2", "drop", harness_msg_i64(1)), 0);
}

HARNESS_BODY(kills_worker_1)
{
    harness_await(READY, 1);
    harness_signal(1, SIGKILL);
    harness_serve(job);
}

Test(lease_death, of_a_borrower_makes_room_for_a_call_to_another, .timeout = 30)
{
    for (int no_spin = 0; no_spin < 2; no_spin++) {
        harness_reset();
        harness_run(&(struct harness_world){
            .size = 3, .setup = loans_setup, .dies = 1u << 1,
            .body = { waits_for_room_at_one_that_dies, NULL, kills_worker_1 },
            .options = { .loan_bytes_max = MEGABYTE, .no_spin = no_spin != 0 } });
    }
}

/* ---- The owner ------------------------------------------------------------------------------------------------- */

HARNESS_TEST(lease_death, of_an_owner_leaves_its_tensors_readable, 30, .size = 3, .setup = loans_setup, .dies = 1u << 1)
{
    struct bx_msg *args = harness_msg_i64(500), *reply = NULL;
    struct bx_tensor *last;

    reply = harness_ask(job, "worker1", "make", args);
    harness_signal(1, SIGKILL);
    await_death(job, 1);
    HARNESS_EQ(loans_of(job, 1).borrowed, 1);

    struct bx_reader reader = bx_msg_reader(reply);

    for (uint64_t i = 0; i < 499; i++)
        HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), i));
    last = bx_tensor_acquire(bx_read_tensor(&reader));
    /* To pass it on copies it from the dead owner's memory. */
    args = harness_msg_i64(499);
    HARNESS_EQ(bx_msg_put_tensor(args, last), 0);
    HARNESS_EQ(harness_call(job, "worker2", "verify", args), 1);
    bx_msg_destroy(reply);
    HARNESS_CHECK(loans_hold(last, 499));
    HARNESS_CHECK(bx_tensor_is_borrowed(last) && bx_tensor_data_mut(last) == NULL);
    bx_tensor_release(last);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    HARNESS_EQ(harness_call(job, "worker2", "verify", loans_msg(job, 1, 1, 100)), 1);
}

/* The callee reads the tensor after the caller has died, and after the end of its own job. */
HARNESS_TEST(lease_death, of_an_owner_leaves_its_tensors_readable_beyond_the_job, 30, .size = 3, .setup = loans_setup,
             .dies = 1u << 1)
{
    struct bx_msg *reply;

    harness_leaves_by_itself();
    reply = harness_ask(job, "worker1", "make", harness_msg_i64(3));
    harness_signal(1, SIGKILL);
    await_death(job, 1);
    harness_leave(job);
    loans_end(reply, 0, 3);
}

/* ---- Stopped, and gone ----------------------------------------------------------------------------------------- */

HARNESS_TEST(lease_stopped, is_seen_by_its_age_and_delays_no_other, 30, .size = 3, .setup = loans_setup)
{
    uint64_t age;

    HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, 1, 1, 5000)), 1);
    harness_stop_worker(1);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "echo", NULL, NULL), 0);
    age = loans_of(job, 1).oldest_ns;
    for (int64_t i = 0; i < 200; i++)
        HARNESS_EQ(harness_call(job, "worker2", "verify", loans_msg(job, i, 2, 50000)), 2);
    HARNESS_EQ(loans_of(job, 1).leases, 1);
    HARNESS_EQ(loans_of(job, 2).leases, 0);
    HARNESS_CHECK(loans_of(job, 1).bytes >= 5000);
    HARNESS_CHECK(loans_of(job, 1).oldest_ns > age);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_EQ(bx_loans_wait(job, 2, 0, 0), 0);
    harness_signal(1, SIGCONT);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 0);
    HARNESS_EQ(loans_of(job, 1).leases, 0);
}

/* Destroys the job without a shutdown, and keeps what it has borrowed. */
static void leaves_holding(struct bx_job *job)
{
    struct bx_msg *reply;

    harness_leaves_by_itself();
    reply = harness_ask(job, "worker0", "make", harness_msg_i64(2));
    bx_job_destroy(job);
    harness_post(READY);
    harness_await(DONE, 1);
    loans_end(reply, 0, 2);
}

/* As long as the process that left lives it may read, so the memory must not be used again. */
HARNESS_TEST(lease_left, keeps_its_memory_until_the_process_that_left_has_ended, 30, .size = 3, .setup = loans_setup,
             .body = { NULL, leaves_holding })
{
    harness_await(READY, 1);
    for (int64_t i = 0; i < 200; i++)
        HARNESS_EQ(harness_call(job, "worker2", "verify", loans_msg(job, i, 4, 4000)), 4);
    harness_post(DONE);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(loans_of(job, 1).granted, loans_of(job, 1).returned + loans_of(job, 1).taken_back);
}
