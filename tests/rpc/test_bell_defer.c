/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/bell.c, lib/rpc/watch.c: how long a bell may be deferred. Worker 0 has own_loop and reads no ring until all
 * frames are in its rings, so that one call of bx_progress reads them in the order of the ranks.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { SENT, DONE };                    /* gates */
enum { BEFORE, AFTER };                 /* values: frames handled before and after the sleeper's bell was checked */

#define BUSY 6                          /* workers that send */
#define FRAMES 100                      /* of each of them */

static uint64_t looks_before;

static uint64_t looks(const struct bx_job *job)
{
    return harness_counter(job, "doorbells_rung") + harness_counter(job, "doorbells_saved");
}

HARNESS_HANDLER(answer)
{
    looks_before = looks(bx_request_job(request));
    return 0;
}

HARNESS_HANDLER(count)
{
    harness_add(looks(bx_request_job(request)) == looks_before ? BEFORE : AFTER, 1);
    return 0;
}

static void call_and_sleep(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "answer", NULL, NULL, NULL), 0);
}

static void send_many(struct bx_job *job)
{
    for (int i = 0; i < FRAMES; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker0", "count", NULL, NULL), 0);
    harness_post(SENT);
    harness_await(DONE, 1);
}

HARNESS_TEST(bell, of_a_sleeping_peer_is_checked_within_32_frames_of_busy_rings, 20, .size = 2 + BUSY,
             .options = { .own_loop = true },
             .handlers = { HARNESS_INLINE("answer", answer), HARNESS_INLINE("count", count) },
             .body = { NULL, call_and_sleep, send_many, send_many, send_many, send_many, send_many, send_many })
{
    harness_await(SENT, BUSY);
    HARNESS_WAIT_WHILE((bxi_load_seq_cst((bxi_a64 *)job->rpc->peers[1]->bell.word) & 3) != BXI_WHO_LEADER);
    while (harness_load(BEFORE) + harness_load(AFTER) < BUSY * FRAMES)
        HARNESS_CHECK(bx_progress(job) >= 0);
    HARNESS_CHECK(harness_load(BEFORE) <= BXI_DEFER_FRAMES + 8);
    harness_post(DONE);
}
