/* SPDX-License-Identifier: MIT */
/*
 * References of a worker that leaves by bx_job_destroy alone, or dies: its last requests are dropped unread, and its
 * frames behind them are read. worker0 stalls (stall.h) until worker1 is gone.
 */
#include "rref_fixture.h"
#include "tests/harness/stall.h"

TestSuite(rref_left, .timeout = 60);

enum { READY = 8, STALLED, PASSED, USED };      /* gates */
enum { KILLED = 8 };                            /* values */

static void go(struct bx_job *job)
{
    if (harness_load(KILLED) != 0)
        raise(SIGKILL);
    bx_job_destroy(job);
}

static int code(void)
{
    return harness_load(KILLED) != 0 ? BX_E_PEER_DEAD : BX_E_SHUTDOWN;
}

static void see_end(struct bx_job *job)
{
    const struct bxi_header *header = &job->rpc->peers[1]->view.control->header;

    if (harness_load(KILLED) != 0) {
        see_death(job, 1);
        return;
    }
    HARNESS_WAIT_WHILE(bxi_load_acquire((bxi_a32 *)&header->state) != BXI_LEFT);
    bxi_event(job->run, BXI_EVENT_SCAN);
}

static void run(harness_fn first, harness_fn second, harness_fn third)
{
    for (uint32_t killed = 0; killed < 2; killed++) {
        harness_reset();
        harness_store(KILLED, killed);
        harness_run(&(struct harness_world){ .size = third != NULL ? 3 : 2, .setup = setup, .dies = killed << 1,
                                             .handlers = { HARNESS_INLINE("stall", stall) },
                                             .body = { first, second, third } });
    }
}

/* ---- LEAVE behind the request that makes ------------------------------------------------------------------- */

/* Its bx_remote is not answered in time, and it releases the reference. */
static void makes_releases_and_goes(struct bx_job *job)
{
    const struct bx_call_options soon = { .timeout_ns = HARNESS_MS };
    struct bx_rref *rref = NULL;

    harness_leaves_by_itself();
    HARNESS_EQ(harness_call(job, "worker0", "new_nothing", NULL), 1);
    harness_post(READY);
    harness_await(STALLED, 1);
    HARNESS_EQ(bx_remote(job, "worker0", "new_counter", NULL, &soon, &rref), 0);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_TIMEOUT);
    bx_rref_release(rref);
    go(job);
}

static void stalls(struct bx_job *job)
{
    harness_post(STALLED);
    see_end(job);
}

static void stall_until_it_has_gone(struct bx_job *job)
{
    harness_await(READY, 1);
    while_stalled = stalls;
    stall_oneself(job);
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, 1));
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "new_nothing", NULL, NULL, NULL), code());
}

static void calls_the_one_that_has_gone(struct bx_job *job)
{
    stall_until_it_has_gone(job);
    HARNESS_EQ(harness_counter(job, "requests_dropped"), 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    HARNESS_EQ(harness_load(MADE), 0);
}

Test(rref_left, behind_a_request_that_was_dropped_is_no_nonsense)
{
    run(calls_the_one_that_has_gone, makes_releases_and_goes, NULL);
}

/* ---- An object that its maker has passed on ----------------------------------------------------------------- */

static void makes_passes_on_and_goes(struct bx_job *job)
{
    struct bx_rref *rref;

    harness_leaves_by_itself();
    harness_await(STALLED, 1);
    rref = remote(job, "worker0", "new_counter", 5);
    give(job, "worker2", rref, true);
    harness_post(PASSED);
    harness_await(USED, 1);
    go(job);
}

/* The first call waits for the object when the maker goes. */
static void uses_what_never_comes(struct bx_job *job)
{
    OWN(future) *future = NULL;
    OWN(msg) *args = number(1);

    HARNESS_EQ(harness_call(job, "worker0", "new_nothing", NULL), 1);
    harness_post(READY);
    harness_await(PASSED, 1);
    HARNESS_EQ(bx_rref_async(kept_rref, "add", args, NULL, &future), 0);
    harness_post(USED);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), code());
    HARNESS_HAS(bx_future_error_text(future), "its maker was gone before the object could be made");
    HARNESS_EQ(bx_rref_sync(kept_rref, "add", args, NULL, NULL), code());
    HARNESS_EQ(bx_rref_to_here(kept_rref, NULL, NULL), code());
    HARNESS_EQ(harness_load(MADE), 0);
    bx_rref_release(kept_rref);
}

static void serves_the_third(struct bx_job *job)
{
    stall_until_it_has_gone(job);
    harness_serve(job);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

Test(rref_left, before_its_object_is_made_fails_each_use_with_the_code_of_a_call_to_it)
{
    run(serves_the_third, makes_passes_on_and_goes, uses_what_never_comes);
}
