/* SPDX-License-Identifier: MIT */
/*
 * Rounds (rref/rref.h) and leases while a rank is taken again: who is in a round's set, and what is dropped when it
 * ends. Workers are processes without a launcher, as in test_rejoin.c.
 *
 * A worker whose role is in the handler "block" attaches nobody, closes nobody and answers no round. Who joins attaches
 * to the workers in the order of their ranks, and does not run before it is attached everywhere.
 */
#include "rejoin_fixture.h"

TestSuite(rejoin_rounds, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

enum { HELD = 4, BLOCKED, CLOSED, ATTACHED, JOINS, OPEN, SEEN, FREE };      /* gates; the last ones are FREE + rank */
enum { DESTROYED };                                             /* values */
enum { ELEMENTS = 5000 };

static int objects[2];
static struct bx_rref *kept_rref;
static struct bx_tensor *kept_tensor;

static void destroy(void *object)
{
    harness_add(DESTROYED + (object == &objects[1]), 1);
}

static const struct bx_type thing_type = { .name = "thing", .destroy = destroy };

/* ---- handlers of every worker -------------------------------------------------------------------- */

HARNESS_HANDLER(make_thing)
{
    return bx_msg_put_object(bx_request_job(request), reply, &thing_type, &objects[1]);
}

HARNESS_HANDLER(use_thing)
{
    return bx_msg_put_i64(reply, 1);
}

HARNESS_HANDLER(block)
{
    harness_post(BLOCKED);
    harness_await(FREE + bx_job_rank(bx_request_job(request)), 1);
    return 0;
}

HARNESS_HANDLER(keep)
{
    if (args->rref_count > 0)
        kept_rref = bx_rref_acquire(bx_read_rref(args));
    else
        kept_tensor = bx_tensor_acquire(bx_read_tensor(args));
    return 0;
}

HARNESS_HANDLER(drop)
{
    bx_tensor_release(kept_tensor);
    kept_tensor = NULL;
    return 0;
}

/* Keeps it, and passes it on to worker 3. */
HARNESS_HANDLER(pass_on)
{
    kept_tensor = bx_tensor_acquire(bx_read_tensor(args));
    return give_tensor(bx_request_job(request), "worker3", kept_tensor);
}

static void register_all(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("make", make_thing), HARNESS_INLINE("block", block),
                     HARNESS_INLINE("keep", keep), HARNESS_INLINE("drop", drop),
                     HARNESS_BLOCKING("pass on", pass_on));
    HARNESS_EQ(bx_register_method(job, &thing_type, "use", BX_INLINE, use_thing, NULL), 0);
}

/* ---- what bodies do ------------------------------------------------------------------------------ */

/* An object of this worker that only that one refers to. */
static void give_object(struct bx_job *job, const char *to, int *object)
{
    OWN(msg) *args = bx_msg_create(0);
    OWN(rref) *rref = NULL;

    HARNESS_EQ(bx_rref_create(job, &thing_type, object, &rref), 0);
    HARNESS_EQ(bx_msg_put_rref(args, rref), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, "keep", args, NULL, NULL), 0);
}

/* A tensor of this worker, which that one has on loan and has passed on to worker 3. */
static void lend_object(struct bx_job *job, const char *to)
{
    OWN(msg) *args = bx_msg_create(0);
    OWN(tensor) *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, (int64_t[]){ ELEMENTS }, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, "pass on", args, NULL, NULL), 0);
}

static void block_worker(struct bx_job *job, const char *worker)
{
    uint32_t before = harness_gate(BLOCKED);

    HARNESS_EQ(bx_rpc_oneway(job, worker, "block", NULL, NULL), 0);
    harness_await(BLOCKED, before + 1);
}

/* This worker has closed it, and lets another take the rank. */
static void await_ended(struct bx_job *job, int rank)
{
    HARNESS_WAIT_WHILE(bxi_load_acquire(&job->rpc->peers[rank]->ended) == 0);
}

/* It is attached here, and does not run yet. */
static void await_joiner(struct bx_job *job, int rank)
{
    HARNESS_WAIT_WHILE(!bxi_join_waits(job, rank));
}

static void await_round(struct bx_job *job, enum bxi_round_kind kind, int awaited)
{
    for (bool open = false; !open; sched_yield()) {
        bxi_lock(&job->run->lock);
        open = (job->rrefs->rounds[kind].awaited[0] >> awaited & 1) != 0;
        bxi_unlock(&job->run->lock);
    }
}

static void await_destroyed(int value)
{
    HARNESS_WAIT_WHILE(harness_load(value) == 0);
}

/* ---- one that joins is not in the set ------------------------------------------------------------ */

/* Worker 3 dies while worker 4 joins: it is attached to 0 and 1, and waits for 2. Then 4 runs, and makes an object,
 * while 1 still has to answer the round for 3. */
static void owns_while_one_joins(struct bx_job *job)
{
    if (bx_job_rank(job) == 4 || bx_job_rank(job) == 3)
        return;
    if (bx_job_rank(job) == 0)
        give_object(job, "worker3", &objects[0]);
    harness_post(HELD);
    await_ended(job, 4);
    harness_post(CLOSED);
    if (bx_job_rank(job) == 1) {
        await_joiner(job, 4);
        harness_post(ATTACHED);
    }
    if (bx_job_rank(job) != 0)
        return;
    harness_await(CLOSED, 3);
    block_worker(job, "worker2");
    harness_post(GO_ON);
    harness_await(ATTACHED, 1);
    block_worker(job, "worker1");
    harness_post(JOINS);
    await_round(job, BXI_ROUND_ENTRIES, 1);
    harness_post(FREE + 2);
    harness_await(BACK, 1);
    HARNESS_EQ(harness_load(DESTROYED), 0);
    harness_post(FREE + 1);
    await_destroyed(DESTROYED);
    harness_post(OPEN);
    await_destroyed(DESTROYED + 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    harness_post(SEEN);
}

static void refers_and_lets_go(struct bx_job *job)
{
    OWN(rref) *rref = NULL;

    HARNESS_EQ(bx_remote(job, "worker0", "make", NULL, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
    harness_post(BACK);
    harness_await(OPEN, 1);
    HARNESS_EQ(harness_load(DESTROYED + 1), 0);
    HARNESS_EQ(bx_rref_sync(rref, "use", NULL, NULL, NULL), 0);
}

Test(rejoin_rounds, one_that_joins_is_not_in_the_set_of_a_round)
{
    begin_lives(5, (struct life){ .body = owns_while_one_joins, .setup = register_all });
    harness_await(HELD, 3);
    start_is_killed(4);
    harness_await(GO_ON, 1);
    begin_life(5, (struct life){ .rank = 4, .world_size = 5, .body = refers_and_lets_go, .setup = register_all });
    harness_await(JOINS, 1);
    start_is_killed(3);
    harness_await(SEEN, 1);
    end_lives();
}

/* ---- a round ends though a rank in its set is taken again, and one that it awaits dies ----------- */

static bool of_leases;

/* Worker 1 dies. Worker 2 closes it and blocks; 0 closes it, asks 2 and attaches the next worker 1. Then 2 dies. */
static void owns_while_two_die(struct bx_job *job)
{
    switch (bx_job_rank(job)) {
    case 0:
        if (of_leases)
            lend_object(job, "worker1");
        else
            give_object(job, "worker1", &objects[0]);
        harness_post(HELD);
        await_joiner(job, 1);
        await_round(job, of_leases ? BXI_ROUND_LEASES : BXI_ROUND_ENTRIES, 2);
        harness_post(JOINS);
        await_end_of(job, 2, 1);
        if (of_leases)
            HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
        else
            await_destroyed(DESTROYED);
        harness_post(SEEN);
        break;
    case 2:
        await_ended(job, 1);
        harness_post(CLOSED);
        break;
    case 3:
        harness_await(HELD, 1);
        bx_tensor_release(kept_tensor);     /* what worker 1 passed on */
        kept_tensor = NULL;
        block_worker(job, "worker0");
        harness_post(GO_ON);
        harness_await(CLOSED, 1);
        block_worker(job, "worker2");
        harness_post(FREE + 0);
        break;
    default:
        break;
    }
}

static void run_while_two_die(void)
{
    begin_lives(4, (struct life){ .body = owns_while_two_die, .setup = register_all });
    harness_await(GO_ON, 1);
    start_is_killed(1);
    begin_life(4, (struct life){ .rank = 1, .world_size = 4, .setup = register_all });
    harness_await(JOINS, 1);
    start_is_killed(2);
    harness_await(STARTED, 5);              /* else the one that joins finds a job that is ending */
    harness_await(SEEN, 1);
    end_lives();
}

Test(rejoin_rounds, a_round_for_entries_ends_when_its_dead_is_back_and_another_dies) { run_while_two_die(); }

Test(rejoin_rounds, a_round_for_leases_ends_when_its_dead_is_back_and_another_dies)
{
    of_leases = true;
    run_while_two_die();
}

/* ---- a joiner answers for one that it has never met ---------------------------------------------- */

/* Worker 1 dies after it has answered the joiner's question and before the joiner meets it: the joiner waits for the
 * role of worker 0 then. Later worker 0 dies, and the round of worker 2 has both in its set. */
static void dies_between_two_questions(struct bx_job *job)
{
    if (bx_job_rank(job) == 3)
        return;
    await_ended(job, 3);
    harness_post(CLOSED);
    if (bx_job_rank(job) == 0) {
        await_joiner_at_door(job);
        harness_post(JOINS);
    } else if (bx_job_rank(job) == 2) {
        harness_await(CLOSED, 3);
        give_object(job, "worker0", &objects[0]);
        block_worker(job, "worker0");
        harness_post(GO_ON);
        await_ended(job, 1);
        harness_post(FREE + 0);
        harness_await(BACK, 1);
        harness_post(OPEN);
        await_destroyed(DESTROYED);
        harness_post(SEEN);
    }
}

static void posts_back(struct bx_job *job)
{
    HARNESS_CHECK(!bx_worker_is_alive(job, 1));
    HARNESS_EQ(bx_worker_generation(job, 1), 1);
    harness_post(BACK);
}

Test(rejoin_rounds, a_joiner_answers_for_a_worker_that_died_before_they_met)
{
    begin_lives_but(4, 3, (struct life){ .body = dies_between_two_questions, .setup = register_all });
    harness_await(GO_ON, 1);
    begin_life(4, (struct life){ .rank = 3, .world_size = 4, .body = posts_back, .setup = register_all });
    harness_await(JOINS, 1);
    start_is_killed(1);
    harness_await(OPEN, 1);
    start_is_killed(0);
    harness_await(SEEN, 1);
    end_lives();
}

/* ---- a lease of a former worker ------------------------------------------------------------------ */

HARNESS_BODY(posts_back_alone)
{
    harness_post(BACK);
}

static void expect_on_loan(struct bx_job *job, int rank, uint64_t leases)
{
    const struct bxi_loans *shown = &bxi_tables(job->control)->loans[1];
    struct bx_loans loans = { 0 };

    HARNESS_EQ(bx_job_loans(job, rank, &loans), 0);
    HARNESS_EQ(loans.leases, leases);
    HARNESS_EQ(loans.bytes > 0, leases > 0);
    HARNESS_EQ(loans.oldest_ns > 0, leases > 0);
    HARNESS_EQ(bx_loans_wait(job, rank, 0, HARNESS_MS), leases > 0 ? BX_E_TIMEOUT : 0);
    HARNESS_EQ(bxi_load_relaxed((bxi_a64 *)&shown->leases), leases);
    HARNESS_EQ(bxi_load_relaxed((bxi_a64 *)&shown->bytes) > 0, leases > 0);
}

/* Worker 3 has what the dead worker 1 passed on, until it is told to drop it. */
static void lends_to_a_former_worker(struct bx_job *job)
{
    if (bx_job_rank(job) != 0)
        return;
    lend_object(job, "worker1");
    harness_post(GO_ON);
    await_end_of(job, 1, 1);
    harness_await(BACK, 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    expect_on_loan(job, -1, 1);
    expect_on_loan(job, 1, 1);
    HARNESS_CHECK(bxi_peer_former(job->rpc->peers[1]) != NULL);
    HARNESS_EQ(bx_rpc_sync(job, "worker3", "drop", NULL, NULL, NULL), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    expect_on_loan(job, -1, 0);
    expect_on_loan(job, 1, 0);
    HARNESS_EQ(harness_counter(job, "leases_taken_back"), 1);
    harness_post(SEEN);
}

Test(rejoin_rounds, a_lease_of_a_former_worker_is_counted_and_shown_until_it_is_taken_back)
{
    begin_lives(4, (struct life){ .body = lends_to_a_former_worker, .setup = register_all });
    harness_await(GO_ON, 1);
    start_is_killed(1);
    begin_life(4, (struct life){ .rank = 1, .world_size = 4, .body = posts_back_alone, .setup = register_all });
    harness_await(SEEN, 1);
    end_lives();
}
