/* SPDX-License-Identifier: MIT */
/* Part of test_kill_steps.c: a worker stops at a step, goes on when another has done its part, and must see that. */
#ifndef TESTS_KILL_STOPPED_H
#define TESTS_KILL_STOPPED_H

static int setup_telling(struct bx_job *job)
{
    aim.tells_of_sleep = bx_job_rank(job) == 0;
    return setup(job);
}

/* Fills the ring of the stopped worker 1 and waits for room, with want_credit stored. Stops itself before it arms. */
static void starves(struct bx_job *job)
{
    struct bx_msg *msg = bytes_from(0);
    uint64_t sent = 0;

    harness_await(ASLEEP, 1);       /* the background thread would recheck too */
    harness_stop_worker(1);
    while (bx_rpc_oneway(job, "worker1", "bytes", msg, &(struct bx_call_options){ .no_wait = true }) == 0)
        sent++;
    harness_store(SENT, sent);
    take_aim("bell.arm_leader", 1, SIGSTOP);
    harness_post(FULL);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "bytes", msg, &(struct bx_call_options){ .timeout_ns = BX_FOREVER }),
               0);
    harness_post(SENT_ALL);
    bx_msg_destroy(msg);
}

/* Lets worker 1 read everything, publish credit and check want_credit, while worker 0 is stopped between its own check
 * and its arming; then continues worker 0. */
static void drains_behind_its_back(struct bx_job *job)
{
    harness_await(FULL, 1);
    harness_await_stopped(harness_pid(0));
    HARNESS_EQ(harness_gate(HIT), 1);
    harness_signal(1, SIGCONT);
    while (harness_load(ONEWAYS) < harness_load(SENT))
        HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 2), 2);
    harness_signal(0, SIGCONT);
    harness_await(SENT_ALL, 1);     /* leaving would ring worker 0 */
}

/* A full ring has become empty, and nobody will ring for it: the recheck after the arming must see it. */
Test(stop_step, a_starved_sender_rereads_the_credit, .timeout = 20)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup_telling, .options = { .no_spin = true },
                                         .body = { starves, NULL, drains_behind_its_back } });
}

/* Keeps worker 1 awake, in a handler. */
HARNESS_HANDLER(stay)
{
    harness_post(STAYS);
    harness_await(GOES, (uint32_t)harness_gate(STAYS));
    return 0;
}

static int setup_staying(struct bx_job *job)
{
    return setup(job) < 0 ? -1 : bx_register(job, "stay", BX_INLINE, stay, NULL);
}

static const bxi_a64 *armed_word;       /* of worker 1 */

static void let_it_sleep(void)
{
    harness_post(GOES);
    HARNESS_WAIT_WHILE((bxi_load_relaxed(armed_word) & 3) == BXI_AWAKE);
}

/* Worker 1 is awake at the first look of the second call and armed at its second one: for all that the caller knows,
 * it has rechecked its rings without the frame. The watchdog may just wake it: then another round tells. */
HARNESS_TEST(stop_step, a_callee_that_falls_asleep_during_the_unlock_is_rung, 20, .size = 2, .setup = setup_staying,
             .options = { .no_spin = true })
{
    uint64_t rung = 0;

    armed_word = job->rpc->peers[1]->bell.word;
    for (uint32_t round = 1; round <= 10 && rung == 0; round++) {
        struct bx_future *staying, *future;

        staying = harness_async(job, "worker1", "stay");
        harness_await(STAYS, round);
        rung = harness_counter(job, "doorbells_rung");
        aim.at_second_look = let_it_sleep;
        future = harness_async(job, "worker1", "nothing");
        aim.at_second_look = NULL;
        rung = harness_counter(job, "doorbells_rung") - rung;
        HARNESS_EQ(harness_gate(GOES), round);
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
        HARNESS_EQ(bx_future_wait(staying, BX_FOREVER), 0);
        bx_future_release(future);
        bx_future_release(staying);
    }
    HARNESS_EQ(rung, 1);
}

#endif
