/* SPDX-License-Identifier: MIT */
/*
 * What a hundred workers that come back leave in a survivor: no descriptor, no mapping, and no more than a few structs
 * (rpc/join.c, former peers). Workers are processes without a launcher, as in test_rejoin.c.
 */
#include "rejoin_fixture.h"

TestSuite(rejoin_cost, .init = starts_set_up, .fini = place_tear_down, .timeout = 120);

enum { READY = 4, AGAIN };                      /* gates behind those of the fixture */
enum { WORLD = 5, TIMES = 25, WARM = 2 };       /* each rank but 0 comes back 25 times: 100 times in all */

static int nothing;
static struct bx_tensor *kept;

static const struct bx_type thing_type = { .name = "thing" };

HARNESS_HANDLER(make)
{
    OWN(tensor) *tensor = NULL;

    kept = bx_tensor_acquire(bx_read_tensor(args));
    HARNESS_EQ(bx_tensor_create(bx_request_job(request), BX_F32, 1, (int64_t[]){ 5000 }, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(reply, tensor), 0);
    return bx_msg_put_object(bx_request_job(request), reply, &thing_type, &nothing);
}

static void register_make(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "make", BX_INLINE, make, NULL), 0);
}

/* A struct is used again only for its rank: one is the peer, one may be that of the next, and one a spare. */
static void expect_few_structs(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    for (int rank = 1; rank < WORLD; rank++) {
        int count = 0;

        for (struct bxi_peer *peer = job->rpc->peers[rank]; peer != NULL; peer = bxi_peer_former(peer))
            count++;
        for (struct bxi_peer *peer = job->rpc->joins.spare[rank]; peer != NULL; peer = bxi_peer_former(peer))
            count++;
        HARNESS_CHECK(count <= 2);
    }
    bxi_unlock(&job->run->lock);
}

/* Each worker of the rank lends to this one, borrows from it, and has an object, until after its death. */
static void use_and_outlive(struct bx_job *job, int rank, int generation)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_worker_generation(job, rank), generation);
    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, (int64_t[]){ 5000 }, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_rpc_sync(job, bx_rank(rank), "make", args, NULL, &reply), 0);
    harness_post(AGAIN);
    await_end_of(job, rank, generation);
    HARNESS_EQ(bx_loans_wait(job, rank, 0, BX_FOREVER), 0);
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
    bx_tensor_release(tensor);
    harness_post(READY);
}

static void survives(struct bx_job *job)
{
    int descriptors = 0, mappings = 0;

    if (bx_job_rank(job) != 0)
        return;
    for (int times = 0; times < TIMES; times++) {
        for (int rank = 1; rank < WORLD; rank++) {
            if (times > 0)
                await_alive(job, rank);
            use_and_outlive(job, rank, times + 1);
            harness_await(STARTED, (uint32_t)(WORLD + times * (WORLD - 1) + rank));
        }
        if (times == WARM) {
            descriptors = files_in("/proc/self/fd", "", "");
            mappings = mappings_of("/dev/shm/boxcar.", "");
        }
    }
    /* While a worker joins, the door has descriptors of its own: they may be in the first count. */
    HARNESS_WAIT_WHILE(files_in("/proc/self/fd", "", "") > descriptors ||
                       mappings_of("/dev/shm/boxcar.", "") > mappings);
    expect_few_structs(job);
    for (int rank = 1; rank < WORLD; rank++)
        HARNESS_EQ(bx_worker_generation(job, rank), TIMES + 1);
}

Test(rejoin_cost, a_hundred_rejoins_leave_no_descriptor_and_no_mapping)
{
    begin_lives(WORLD, (struct life){ .body = survives, .setup = register_make });
    for (uint32_t n = 1; n <= TIMES * (WORLD - 1); n++) {
        int rank = 1 + (int)(n - 1) % (WORLD - 1);

        harness_await(AGAIN, n);
        start_is_killed(rank);
        harness_await(READY, n);
        begin_life(rank, (struct life){ .rank = rank, .world_size = WORLD, .body = survives, .setup = register_make });
    }
    harness_await(STARTED, WORLD + TIMES * (WORLD - 1));
    end_lives();
}
