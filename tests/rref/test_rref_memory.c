/* SPDX-License-Identifier: MIT */
/*
 * References when memory is out: what a reader cannot take in is refused; what cannot be queued where the ring to the
 * owner is full waits in a spare frame, or its call is refused. Then no object is left and none was destroyed early,
 * and no worker waits for a frame of the protocol. The simulator lets each allocation of all other operations fail
 * (`rrefs --fail all`).
 *
 * worker0 calls, worker1 owns the objects, worker2 is the third. memory.h lets the allocations fail.
 */
#include "rref_fixture.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"

TestSuite(rref_memory, .timeout = 120);

#define OBJECTS 8

enum { FAILS_IN = 8 };                      /* values: + rank */

HARNESS_HANDLER(is_settled)
{
    const struct bx_job *job = bx_request_job(request);

    return bx_msg_put_i64(reply, job->rrefs->pending == 0 && job->rrefs->count == 0);
}

static int setup_memory(struct bx_job *job)
{
    memory_fails_value = FAILS_IN + bx_job_rank(job);
    setup(job);
    return bx_register(job, "is_settled", BX_INLINE, is_settled, NULL);
}

static void all_is_settled(struct bx_job *job)
{
    for (int rank = 0; rank < 3; rank++)
        drop_of(job, bx_worker_name(job, rank));
    await_alive(0);
    for (int rank = 0; rank < 3; rank++)
        HARNESS_WAIT_WHILE(harness_call(job, bx_worker_name(job, rank), "is_settled", NULL) == 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* worker1 is stopped, and the ring to it is full: what is sent to it is queued. */
static void fill_the_ring_of_1(struct bx_job *job)
{
    harness_stop_worker(1);
    while (bx_rpc_oneway(job, "worker1", "drop_kept", NULL, &(struct bx_call_options){ .no_wait = true }) == 0)
        ;
}

static void await_kept(struct bx_job *job)
{
    bool quiet = false;

    while (!quiet) {
        bxi_lock(&job->run->lock);
        quiet = bxi_rrefs_are_quiet(job);
        bxi_unlock(&job->run->lock);
    }
}

static int get_held(struct bx_job *job, struct bx_rref **rref)
{
    OWN(msg) *reply = NULL;
    struct bx_reader reader;
    int rc = bx_rpc_sync(job, "worker2", "kept", NULL, NULL, &reply);

    if (rc < 0)
        return rc;
    reader = bx_msg_reader(reply);
    *rref = bx_rref_acquire(bx_read_rref(&reader));
    return 0;
}

HARNESS_TEST(rref_memory, of_the_queue_of_a_full_ring_may_be_out, 120, .size = 3, .setup = setup_memory)
{
    struct bx_rref *rref[OBJECTS], *again = NULL;
    struct bx_future *future = NULL;
    struct bx_msg *one = harness_msg_i64(1);
    uint64_t n = 0;
    int rc;

    for (int i = 0; i < OBJECTS; i++) {
        rref[i] = remote(job, "worker1", "new_counter", 6);
        HARNESS_EQ(add_to(rref[i], 1), 7);
    }
    give(job, "worker2", rref[0], false);
    await_kept(job);
    fill_the_ring_of_1(job);
    do
        harness_store(FAILS_IN, ++n);
    while (bx_rref_async(rref[1], "add", one, NULL, &future) == -ENOMEM);
    HARNESS_CHECK(n > 1);                               /* the call itself is one that the thread has kept */
    for (int i = 0; i < OBJECTS; i++) {
        harness_store(FAILS_IN, 1);
        bx_rref_release(rref[i]);                       /* LEAVE finds no memory */
        HARNESS_CHECK(harness_load(FAILS_IN) != 1);
    }
    n = 0;
    do {
        bx_rref_release(again);
        again = NULL;
        harness_store(FAILS_IN, ++n);
        rc = get_held(job, &again);                     /* the last that fails: ENTER finds none */
        /* It may succeed though one failed: the first kind of sleeper needs memory, and there is a second. */
    } while (rc == -ENOMEM || (rc == 0 && harness_load(FAILS_IN) == 0));
    HARNESS_EQ(rc, 0);
    HARNESS_CHECK(n > 3);
    harness_store(FAILS_IN, 0);
    HARNESS_EQ(harness_load(DESTROYED), 0);
    harness_signal(1, SIGCONT);
    HARNESS_EQ(add_to(again, 1), 8);
    bx_rref_release(again);
    HARNESS_EQ(harness_end_i64(future), 8);
    bx_msg_destroy(one);
    all_is_settled(job);
}
