/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/ending.c: workers leave when nothing runs and nothing is under way in any of them, and each one-way call that
 * was accepted has run by then.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#include <criterion/criterion.h>
#include <sched.h>

enum { ENTERED, RELEASED, SENDING, CALLED };    /* gates */
enum { COUNTED, SENT };                         /* values */

HARNESS_HANDLER(count)
{
    harness_add(COUNTED, 1);
    return 0;
}

static void await_leaving(struct bx_job *job, int rank)
{
    const struct bxi_control *theirs = job->rpc->peers[rank]->view.control;

    HARNESS_WAIT_WHILE(bxi_load_acquire((bxi_a32 *)&theirs->header.state) < BXI_LEAVING);
}

static void leave(struct bx_job *job)
{
    harness_check_rescued(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(harness_counter(job, "requests_dropped"), 0);
    bx_job_destroy(job);
}

static void leave_at_once(struct bx_job *job)
{
    harness_leaves_by_itself();
    leave(job);
}

/* ---- Chains ------------------------------------------------------------------------------------- */

#define CHAINS 20
#define HOPS 50

static int step = 1;                            /* 0: to itself */

static void send_on(struct bx_job *job, int64_t hops)
{
    struct bx_msg *args = harness_msg_i64(hops);

    HARNESS_EQ(bx_rpc_oneway(job, bx_rank((bx_job_rank(job) + step) % bx_job_world_size(job)), "hop", args, NULL), 0);
    bx_msg_destroy(args);
}

HARNESS_HANDLER(hop)
{
    int64_t hops = bx_read_i64(args);

    harness_add(COUNTED, 1);
    if (hops > 0)
        send_on(bx_request_job(request), hops - 1);
    return 0;
}

static int setup_inline(struct bx_job *job)
{
    return bx_register(job, "hop", BX_INLINE, hop, NULL);
}

static int setup_blocking(struct bx_job *job)
{
    return bx_register(job, "hop", BX_BLOCKING, hop, NULL);
}

static void begin_chains_and_leave(struct bx_job *job)
{
    harness_leaves_by_itself();
    for (int i = 0; i < CHAINS; i++)
        send_on(job, HOPS);
    leave(job);
}

/* Of workers that have all begun to leave when most of them hop. */
static void run_chains(int workers, int (*setup)(struct bx_job *job))
{
    harness_run(&(struct harness_world){
        .size = workers, .setup = setup, .body = { begin_chains_and_leave, leave_at_once, leave_at_once } });
    cr_expect_eq(harness_load(COUNTED), CHAINS * (HOPS + 1));
}

Test(ending, runs_chains_of_one_way_calls_to_their_ends, .timeout = 20)
{
    run_chains(2, setup_inline);
}

Test(ending, runs_chains_through_three_workers, .timeout = 20)
{
    run_chains(3, setup_inline);
}

/* What was consumed waits for a thread of the pool, and has not been handled. */
Test(ending, runs_chains_of_blocking_handlers, .timeout = 20)
{
    run_chains(3, setup_blocking);
}

Test(ending, runs_chains_that_a_worker_sends_to_itself, .timeout = 20)
{
    step = 0;
    run_chains(2, setup_blocking);
}

/* ---- Handlers of a worker that is leaving -------------------------------------------------------- */

#define RUNS 10
#define LATE 20

/* Runs at worker 0, which is leaving, as worker 1 is. It opens the ring to worker 1. */
HARNESS_HANDLER(send_late)
{
    struct bx_job *job = bx_request_job(request);

    await_leaving(job, 1);
    for (int i = 0; i < LATE; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "count", NULL, NULL), 0);
    return 0;
}

static void ask_the_leaver_and_leave(struct bx_job *job)
{
    harness_leaves_by_itself();
    await_leaving(job, 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "send_late", NULL, NULL), 0);
    leave(job);
}

Test(ending, runs_what_a_handler_sends_while_all_are_leaving, .timeout = 60)
{
    for (int i = 1; i <= RUNS; i++) {
        harness_run(&(struct harness_world){
            .size = 2, .handlers = { HARNESS_BLOCKING("send_late", send_late), HARNESS_INLINE("count", count) },
            .body = { leave_at_once, ask_the_leaver_and_leave } });
        cr_assert_eq(harness_load(COUNTED), (uint64_t)i * LATE);
    }
}

/* ---- Threads beside the shutdown ----------------------------------------------------------------- */

static int setup_count(struct bx_job *job)
{
    return bx_register(job, "count", BX_INLINE, count, NULL);
}

static void send_until_refused(struct bx_job *job, int index)
{
    const char *other = bx_worker_name(job, 1 - bx_job_rank(job));
    uint64_t sent = 0;
    int rc;

    if (index == 0) {
        harness_await(SENDING, 2);
        HARNESS_EQ(bx_job_shutdown(job, 0), 0);
        HARNESS_EQ(harness_counter(job, "requests_dropped"), 0);
        return;
    }
    for (; (rc = bx_rpc_oneway(job, other, "count", NULL, NULL)) == 0; sent++)
        if (sent == 0)
            harness_post(SENDING);
    HARNESS_EQ(rc, BX_E_SHUTDOWN);
    harness_add(SENT, sent);
}

static void shut_down_beside_a_sender(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_threads(job, 2, send_until_refused);
    bx_job_destroy(job);
}

Test(ending, runs_or_refuses_what_a_thread_sends_beside_the_shutdown, .timeout = 60)
{
    for (int i = 0; i < RUNS; i++) {
        harness_reset();
        harness_run(&(struct harness_world){
            .size = 2, .setup = setup_count, .body = { shut_down_beside_a_sender, shut_down_beside_a_sender } });
        cr_assert_eq(harness_load(COUNTED), harness_load(SENT));
        cr_assert_geq(harness_load(SENT), 2);
    }
}

HARNESS_HANDLER(stuck)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    return 0;
}

/* Its call may be what the handler waits for. */
static void call_for_a_handler(struct bx_job *job, int index)
{
    if (index == 0) {
        HARNESS_EQ(bx_job_shutdown(job, 0), 0);
        return;
    }
    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
    harness_post(RELEASED);
    while (bx_rpc_oneway(job, "worker1", "count", NULL, NULL) == 0)
        harness_add(SENT, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), BX_E_SHUTDOWN);
}

static void shut_down_beside_a_caller(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_threads(job, 2, call_for_a_handler);
    bx_job_destroy(job);
}

static void make_it_serve_and_leave(struct bx_job *job)
{
    harness_leaves_by_itself();
    await_leaving(job, 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "stuck", NULL, NULL), 0);
    leave(job);
}

Test(ending, a_thread_may_call_as_long_as_a_request_is_served, .timeout = 20)
{
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup_count, .handlers = { HARNESS_BLOCKING("stuck", stuck) },
        .body = { shut_down_beside_a_caller, make_it_serve_and_leave } });
    cr_expect_eq(harness_load(COUNTED), harness_load(SENT) + 1);
}

/* ---- Nonsense ------------------------------------------------------------------------------------- */

/* Says that it has not moved since a round that is still to come. */
static void lie(struct bx_job *job)
{
    harness_leaves_by_itself();
    bxi_store_release(&job->control->header.ending, UINT64_C(1) << 32 | 2);
    bxi_ring_all(job);
    harness_await(RELEASED, 1);
    bx_job_destroy(job);
}

HARNESS_TEST(ending, a_worker_that_lies_is_cut_off_and_not_waited_for, 20, .size = 2, .setup = setup_count,
             .body = { NULL, lie })
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    bx_job_destroy(job);
    harness_post(RELEASED);
}
