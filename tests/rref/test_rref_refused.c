/* SPDX-License-Identifier: MIT */
/*
 * References in calls that the callee refuses, because /dev/shm has no room for its ring to the caller. The callee can
 * send neither LEAVE nor KEPT, so the caller undoes what it has counted: entries of its own objects, pins of others'.
 */
#include "rref_fixture.h"

#include "rpc/rpc.h"

#include <sys/statvfs.h>

enum { CALLED = 8 };                            /* a gate */

/* The rings between worker0 and worker2 are open, and that to worker1; there is no room for any other. */
static void fill_shm(struct bx_job *job)
{
    struct statvfs shm;

    for (int i = 0; i < 2; i++) {
        OWN(rref) *rref = remote(job, i == 0 ? "worker0" : "worker2", "new_counter", 1);

        HARNESS_EQ(value_of(rref), 1);
    }
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "drop_kept", NULL, NULL), 0);
    await_alive(0);
    HARNESS_EQ(statvfs("/dev/shm", &shm), 0);
    harness_resize_shm((shm.f_blocks - shm.f_bfree) * shm.f_frsize);
}

/* An object of worker0, and one of worker2. */
static struct bx_msg *two_objects(struct bx_job *job, struct bx_rref *rref[2])
{
    struct bx_msg *args = bx_msg_create(0);

    HARNESS_EQ(bx_rref_create(job, &counter_type, new_counter_of(1), &rref[0]), 0);
    rref[1] = remote(job, "worker2", "new_counter", 2);
    HARNESS_EQ(value_of(rref[1]), 2);
    for (int i = 0; i < 2; i++)
        HARNESS_EQ(bx_msg_put_rref(args, rref[i]), 0);
    return args;
}

static void drop_two(struct bx_msg *args, struct bx_rref *rref[2])
{
    bx_msg_destroy(args);
    bx_rref_release(rref[0]);
    bx_rref_release(rref[1]);
    await_alive(0);
}

static void calls_and_is_refused(struct bx_job *job)
{
    struct bx_future *future[3];
    struct bx_rref *rref[2], *made = NULL;
    struct bx_msg *args;

    fill_shm(job);
    args = two_objects(job, rref);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "keep", args, NULL, NULL), BX_E_REFUSED);
    drop_two(args, rref);

    args = two_objects(job, rref);
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "keep", args, NULL, &future[i]), 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "keep", args, NULL), 0);
    HARNESS_EQ(bx_remote(job, "worker1", "new_counter", args, NULL, &made), 0);
    harness_end_all(future, 3, BX_E_REFUSED);
    HARNESS_EQ(bx_rref_wait(made, BX_FOREVER), BX_E_REFUSED);
    bx_rref_release(made);
    drop_two(args, rref);
}

/* Then there is room, and the same call is not refused: what it counts stays. */
static void is_refused_and_accepted(struct bx_job *job)
{
    struct bx_rref *rref[2];
    struct bx_msg *args;

    calls_and_is_refused(job);
    args = two_objects(job, rref);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "keep", args, NULL, NULL), BX_E_REFUSED);
    harness_resize_shm(8 << 20);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "keep", args, NULL, NULL), 0);
    bx_msg_destroy(args);
    bx_rref_release(rref[0]);
    HARNESS_EQ(use_of(job, "worker1"), 2);
    drop_of(job, "worker1");
    await_alive(1);
    bx_rref_release(rref[1]);
    await_alive(0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* worker2 has called worker1 before, and hears from it. */
static void passes_on_what_was_refused(struct bx_job *job)
{
    struct bx_rref *made = NULL;

    harness_await(CALLED, 1);
    fill_shm(job);
    HARNESS_EQ(bx_remote(job, "worker1", "new_counter", NULL, NULL, &made), 0);
    HARNESS_EQ(bx_rref_wait(made, BX_FOREVER), BX_E_REFUSED);
    give(job, "worker2", made, false);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "use_kept", NULL, NULL, NULL), BX_E_REFUSED);
    HARNESS_HAS(bx_error_text(), "was refused");
    drop_of(job, "worker2");
    bx_rref_release(made);
    HARNESS_EQ(harness_load(MADE), 2);          /* of fill_shm */
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

static void calls_worker1(struct bx_job *job)
{
    HARNESS_EQ(harness_call(job, "worker1", "new_nothing", NULL), 1);
    harness_post(CALLED);
    harness_serve(job);
}

HARNESS_WORLD(rref_refused, undoes_what_the_call_has_counted_and_counts_when_it_is_accepted, 60, .size = 3,
              .setup = setup, .body = { is_refused_and_accepted }, .shm_kib = 8192);

HARNESS_WORLD(rref_refused, fails_what_the_call_was_to_make_for_a_third_worker_too, 60, .size = 3, .setup = setup,
              .body = { passes_on_what_was_refused, NULL, calls_worker1 }, .shm_kib = 8192);
