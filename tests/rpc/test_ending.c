/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/ending.c: workers leave when nothing runs and nothing is under way in any of them, and each one-way call that
 * was accepted has run by then. The simulator has the schedules: oneway, calls, end.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { ENTERED, RELEASED };                     /* gates */
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

static void send_on(struct bx_job *job, int64_t hops)
{
    OWN(msg) *args = harness_msg_i64(hops);

    HARNESS_EQ(bx_rpc_oneway(job, bx_rank((bx_job_rank(job) + 1) % bx_job_world_size(job)), "hop", args, NULL), 0);
}

HARNESS_HANDLER(hop)
{
    int64_t hops = bx_read_i64(args);

    harness_add(COUNTED, 1);
    if (hops > 0)
        send_on(bx_request_job(request), hops - 1);
    return 0;
}

/* Through workers that have all begun to leave when most of them hop. What was consumed waits for a thread of the pool,
 * and has not been handled. */
HARNESS_TEST(ending, runs_chains_of_one_way_calls_to_their_ends, 20, .size = 3,
             .handlers = { HARNESS_BLOCKING("hop", hop) }, .body = { NULL, leave_at_once, leave_at_once },
             .expect = HARNESS_TABLE({ COUNTED, CHAINS * (HOPS + 1) }))
{
    harness_leaves_by_itself();
    for (int i = 0; i < CHAINS; i++)
        send_on(job, HOPS);
    leave(job);
}

/* ---- A thread beside the shutdown ------------------------------------------------------------------ */

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

static void make_it_serve_and_leave(struct bx_job *job)
{
    harness_leaves_by_itself();
    await_leaving(job, 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "stuck", NULL, NULL), 0);
    leave(job);
}

static void shut_down_beside_a_caller(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_threads(job, 2, call_for_a_handler);
    bx_job_destroy(job);
}

Test(ending, a_thread_may_call_as_long_as_a_request_is_served, .timeout = 20)
{
    harness_run(&(struct harness_world){
        .size = 2, .handlers = { HARNESS_BLOCKING("stuck", stuck), HARNESS_INLINE("count", count) },
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

HARNESS_TEST(ending, a_worker_that_lies_is_cut_off_and_not_waited_for, 20, .size = 2,
             .body = { NULL, lie })
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    bx_job_destroy(job);
    harness_post(RELEASED);
}
