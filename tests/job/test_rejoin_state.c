/* SPDX-License-Identifier: MIT */
/*
 * What a worker that comes back finds, and what the others find in it (rpc/join.c): leases of the worker before are
 * gone, and nothing of it is taken for the new one's; calls may wait for it. Schedules of that, and references:
 * tests/sim (rrefs, tensors).
 */
#include "rejoin_fixture.h"

TestSuite(rejoin_state, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

enum { ELEMENTS = 5000, MANY = 300 };
enum { HELD = 4, AGAIN = 5, SEEN = 6 };         /* gates behind those of the fixture */

static struct bx_tensor *filled(struct bx_job *job, float first)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, (int64_t[]){ ELEMENTS }, &tensor), 0);
    for (int i = 0; i < ELEMENTS; i++)
        ((float *)bx_tensor_data_mut(tensor))[i] = first + (float)i;
    return tensor;
}

static void expect_filled(const struct bx_tensor *tensor, float first)
{
    for (int i = 0; i < ELEMENTS; i++)
        HARNESS_EQ(((const float *)bx_tensor_data(tensor))[i], first + (float)i);
}

HARNESS_HANDLER(lend)
{
    OWN(tensor) *tensor = filled(bx_request_job(request), (float)bx_read_i64(args));

    return bx_msg_put_tensor(reply, tensor);
}

static struct bx_tensor *kept;

HARNESS_HANDLER(keep)
{
    bx_tensor_release(kept);
    kept = bx_tensor_acquire(bx_read_tensor(args));
    return 0;
}

static bxi_a32 back[3];

static void note_join(struct bx_job *job, int rank, void *context)
{
    (void)job, (void)context;
    bxi_add(&back[rank], 1);
}

static void register_all(struct bx_job *job)
{
    HARNESS_EQ(bx_on_join(job, note_join, NULL), 0);
    HARNESS_REGISTER(job, HARNESS_INLINE("lend", lend), HARNESS_INLINE("keep", keep));
}

static struct bx_msg *borrow(struct bx_job *job, const char *from, int64_t first, struct bx_tensor **tensor)
{
    struct bx_msg *args = bx_msg_create(8), *reply = NULL;
    struct bx_reader reader;

    bx_msg_put_i64(args, first);
    HARNESS_EQ(bx_rpc_sync(job, from, "lend", args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    *tensor = bx_read_tensor(&reader);
    expect_filled(*tensor, (float)first);
    bx_msg_destroy(args);
    return reply;
}

static void await_join(struct bx_job *job, int rank, uint32_t times)
{
    await_alive(job, rank);
    HARNESS_WAIT_WHILE(bxi_load_relaxed(&back[rank]) < times);
    HARNESS_EQ(bxi_load_relaxed(&back[rank]), times);
}

static void comes_back(struct bx_job *job)
{
    HARNESS_EQ(bx_worker_generation(job, bx_job_rank(job)), 2);
    harness_post(BACK);
    harness_await(SEEN, 1);
}

/* Three workers; worker 1 is killed, and a process that does `then` takes its place once gate `when` is passed. */
static void run_over_a_death(harness_fn body, int when, harness_fn then)
{
    begin_lives(3, (struct life){ .body = body, .setup = register_all });
    harness_await(GO_ON, 1);
    start_is_killed(1);
    harness_await(when, 1);
    begin_life(3, (struct life){ .rank = 1, .body = then, .setup = register_all });
    harness_await(SEEN, 1);
    end_lives();
}

/* ---- leases -------------------------------------------------------------------------------------- */

static void lends_over_a_death(struct bx_job *job)
{
    struct bx_tensor *old = NULL, *fresh = NULL, *mine;
    struct bx_loans loans = { 0 };
    struct bx_msg *old_reply, *reply;

    if (bx_job_rank(job) != 0) {
        harness_post(HELD);
        harness_await(SEEN, 1);
        expect_filled(kept, 1000);                      /* by rank 2; rank 1 is dead */
        bx_tensor_release(kept);
        kept = NULL;
        return;
    }
    harness_await(HELD, 2);
    old_reply = borrow(job, "worker1", 1000, &old);
    mine = filled(job, 7);
    HARNESS_EQ(give_tensor(job, "worker1", mine), 0);
    HARNESS_EQ(give_tensor(job, "worker2", old), 0);           /* passed on */
    harness_post(GO_ON);
    await_dead(job, 1);
    harness_await(BACK, 1);
    await_join(job, 1, 1);
    expect_filled(old, 1000);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);        /* what the dead one had */
    reply = borrow(job, "worker1", 2000, &fresh);
    HARNESS_EQ(give_tensor(job, "worker2", fresh), 0);         /* of the same rank, in another arena */
    HARNESS_EQ(give_tensor(job, "worker1", old), 0);           /* its owner is dead: copied */
    HARNESS_EQ(give_tensor(job, "worker2", old), 0);           /* copied too, though its owner's rank lives */
    for (int i = 0; i < MANY; i++) {
        struct bx_tensor *more = NULL;
        OWN(msg) *again = borrow(job, "worker1", i, &more);

        HARNESS_EQ(give_tensor(job, "worker1", mine), 0);
        if (i == MANY / 2) {
            expect_filled(old, 1000);
            bx_msg_destroy(old_reply);                  /* while leases of the new one are out */
        }
    }
    HARNESS_EQ(bx_job_loans(job, 1, &loans), 0);
    HARNESS_EQ(loans.leases, 1);                        /* the last of `mine` */
    HARNESS_EQ(loans.borrowed, 1);                      /* fresh */
    expect_filled(fresh, 2000);
    bx_msg_destroy(reply);
    bx_tensor_release(mine);
    HARNESS_CHECK(bx_worker_is_alive(job, 1) && bx_worker_is_alive(job, 2));
    harness_post(SEEN);
}

static void comes_back_and_keeps(struct bx_job *job)
{
    comes_back(job);
    expect_filled(kept, 7);
    bx_tensor_release(kept);
    kept = NULL;
}

Test(rejoin_state, tensors_of_the_dead_stay_and_its_leases_are_gone)
{
    run_over_a_death(lends_over_a_death, GO_ON, comes_back_and_keeps);
}

static void *waits_for_leases(void *argument)
{
    HARNESS_EQ(bx_loans_wait(argument, -1, 0, BX_FOREVER), 0);
    return NULL;
}

/* A thread waits for leases since before the join: who comes back must ring when it returns one. */
static void waits_for_leases_over_a_death(struct bx_job *job)
{
    OWN(tensor) *mine = NULL;
    pthread_t thread;

    if (bx_job_rank(job) != 0) {
        harness_post(HELD);
        harness_await(SEEN, 1);
        bx_tensor_release(kept);
        kept = NULL;
        return;
    }
    harness_await(HELD, 2);
    mine = filled(job, 7);
    HARNESS_EQ(give_tensor(job, "worker2", mine), 0);
    HARNESS_EQ(pthread_create(&thread, NULL, waits_for_leases, job), 0);
    HARNESS_WAIT_WHILE(bxi_load_relaxed(&job->control->pair[1].want_lease) == 0);
    harness_post(GO_ON);
    harness_await(BACK, 1);
    await_join(job, 1, 1);
    HARNESS_EQ(bxi_load_relaxed(&job->control->pair[1].want_lease), 1);
    harness_post(SEEN);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
}

Test(rejoin_state, one_that_comes_back_rings_a_thread_that_waits_for_leases)
{
    run_over_a_death(waits_for_leases_over_a_death, GO_ON, comes_back);
}

/* Both counts change between the two loads of a serve, as often as it takes to see it. */
static void *counts_again_and_again(void *argument)
{
    struct bx_job *job = argument;

    for (int i = 0; i < 200000; i++) {
        bxi_add_seq_cst(&job->rpc->lost, 1);        /* as count_gone in watch.c */
        bxi_add_seq_cst(&job->rpc->leavers, 1);
        bxi_wake(job->run, &job->rpc->leavers);
        bxi_lock(&job->run->lock);
        bxi_add_seq_cst(&job->rpc->leavers, (uint32_t)-1);      /* as count_back in join.c */
        bxi_add_seq_cst(&job->rpc->lost, (uint32_t)-1);
        bxi_unlock(&job->run->lock);
    }
    bx_job_interrupt(job, true);
    return NULL;
}

static void serves_meanwhile(struct bx_job *job)
{
    pthread_t thread;

    if (bx_job_rank(job) != 0)
        return;
    HARNESS_EQ(pthread_create(&thread, NULL, counts_again_and_again, job), 0);
    HARNESS_EQ(bx_job_serve(job), BX_E_INTERRUPTED);
    bx_job_interrupt(job, false);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    harness_post(SEEN);
}

Test(rejoin_state, a_join_is_not_taken_for_a_worker_that_leaves)
{
    begin_lives(3, (struct life){ .body = serves_meanwhile });
    harness_await(SEEN, 1);
    end_lives();
}

/* ---- calls that wait for it ------------------------------------------------------------------------ */

static int call_with(struct bx_job *job, uint64_t flags, uint64_t timeout_ns, bool no_wait)
{
    OWN(msg) *args = bx_msg_create(8);

    bx_msg_put_i64(args, 1);
    return bx_rpc_sync(job, "worker1", "lend", args,
                     &(struct bx_call_options){ .timeout_ns = timeout_ns, .no_wait = no_wait, .flags = flags }, NULL);
}

static void waits_for_a_join(struct bx_job *job)
{
    if (bx_job_rank(job) != 0) {
        harness_post(HELD);
        harness_await(SEEN, 1);
        return;
    }
    harness_await(HELD, 2);
    HARNESS_EQ(call_with(job, BX_CALL_WAIT_JOIN, 0, false), 0);
    HARNESS_EQ(call_with(job, 4, 0, false), -EINVAL);
    harness_post(GO_ON);
    await_dead(job, 1);
    HARNESS_EQ(call_with(job, 0, 0, false), BX_E_PEER_DEAD);
    HARNESS_EQ(call_with(job, BX_CALL_WAIT_JOIN, 0, true), BX_E_PEER_DEAD);
    HARNESS_EQ(call_with(job, BX_CALL_WAIT_JOIN, 20 * HARNESS_MS, false), BX_E_TIMEOUT);
    HARNESS_CHECK(strstr(bx_error_text(), "did not come back within 0.0") != NULL);
    harness_post(AGAIN);
    HARNESS_EQ(call_with(job, BX_CALL_WAIT_JOIN, BX_FOREVER, false), 0);
    HARNESS_EQ(bx_worker_generation(job, 1), 2);
    harness_await(BACK, 1);
    harness_post(SEEN);
}

Test(rejoin_state, a_call_may_wait_until_the_worker_is_back) { run_over_a_death(waits_for_a_join, AGAIN, comes_back); }

static void is_refused_without_rejoin(struct bx_job *job)
{
    if (bx_job_rank(job) == 0)
        HARNESS_EQ(call_with(job, BX_CALL_WAIT_JOIN, 0, false), -EINVAL);
}

HARNESS_WORLD(rejoin_state, a_call_cannot_wait_where_no_worker_comes_back, 60, .size = 2,
              .body = { is_refused_without_rejoin, is_refused_without_rejoin });
